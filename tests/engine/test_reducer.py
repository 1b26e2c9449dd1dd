"""The reducer accepts what happened and refuses what could not have: judged by the law checker, which shares nothing with it."""

import attrs
import corpus
import laws
import pytest
from corpus import renumbered, variants

from spanfold.engine import (
    EVENT_TYPES,
    NEW,
    Committed,
    DraftDiscarded,
    DraftOffered,
    IllegalEvent,
    Prefilled,
    Record,
    Rewound,
    RuntimeFailed,
    SerialDecoded,
    SessionDropped,
    SessionResumed,
    SpanVerified,
    Trimmed,
    fold,
    redrive,
    reduce,
    state_violations,
)
from spanfold.engine.state import evolve_state
from spanfold.engine.transitions import TRANSITIONS

LOGS = corpus.logs()


def test_the_corpus_holds_every_type_of_event():
    seen = {type(record.event) for log in LOGS.values() for record in log}
    assert seen == set(EVENT_TYPES)


@pytest.mark.parametrize("name", LOGS)
def test_what_happened_is_accepted_and_lawful(name):
    log = LOGS[name]
    state = fold(log)
    assert laws.violations(log) == []
    assert laws.account_differences(log, state.stats) == []
    assert redrive(log) == log
    state = NEW
    for record in log:
        state = reduce(state, record.event)
        assert state_violations(state) == ()


@pytest.mark.parametrize("name", LOGS)
def test_whatever_the_reducer_accepts_keeps_the_laws(name):
    """Every almost-right variant of the next event, and every event of a pool, at every point of the log."""
    log, state, events = LOGS[name], NEW, []
    pool = POOL if name in POOLED else ()
    for record in log:
        for other in (*variants(record.event), *pool):
            try:
                after = reduce(state, other)
            except IllegalEvent:
                continue
            found = laws.violations(renumbered([*events, other]))
            assert not found, f"accepted after {len(events)} events: {other}\n" + "\n".join(map(str, found))
            if after.boundary:
                assert state_violations(after) == (), other
        before = state
        state = reduce(state, record.event)
        events.append(record.event)
        assert before == fold(renumbered(events[:-1])), "an event changed the state before it"


#: Logs at whose every point the whole pool is tried; the others have the variants of their own next event.
POOLED = ("plain", "serial", "turns", "stop draft", "stop error", "cancel 4", "forward 1 crash", "refused twice", "resumed 5", "chunks")
POOL = list({repr(event): event for log in ("plain", "turns", "stop error", "cancel 4") for event in (r.event for r in LOGS[log])}.values())

#: Fields that repeat what the state knows already: a change of one of them is refused at once.
REDUNDANT = {
    "Prefilled": ("start", "position", "reused", "chunks"),
    "DraftOffered": ("at", "origin"),
    "DraftFailed": ("origin",),
    "DraftTaken": ("tokens", "offered"),
    "DraftRestored": ("count",),
    "SpanVerified": ("base", "rows", "matched", "observed"),
    "SerialDecoded": ("base", "observed", "verdict"),
    "Committed": ("tokens", "accepted", "source", "position"),
    "Trimmed": ("from_", "to", "observed", "cause"),
    "CheckpointRetired": ("base", "rows", "observed"),
    "Rewound": ("count", "length"),
    "Extended": ("turn",),
    "SessionFinished": ("turn",),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_change_of_a_redundant_field_is_refused_at_once_and_names_it(name):
    state = NEW
    for record in LOGS[name]:
        event = record.event
        for other in variants(event):
            changed = [
                field.name for field in attrs.fields(type(event)) if field.eq and getattr(event, field.name) != getattr(other, field.name)
            ]
            if changed[0] in REDUNDANT.get(type(event).__name__, ()) and not (
                changed == ["tokens"] and event.__class__.__name__ == "DraftTaken"
            ):
                if type(event).__name__ == "Committed" and event.cut_by == "cancelled":
                    continue  # how much a cancel cut is an input
                if changed[0] == "from_" and (event.cause == "cancel" or (state.failed and state.failed.observed is None)):
                    continue  # how far a prefill or a failed forward had come is an input
                with pytest.raises(IllegalEvent) as caught:
                    reduce(state, other)
                assert caught.value.phase == state.phase and caught.value.event.startswith(type(event).__name__)
        state = reduce(state, event)


@pytest.mark.parametrize("name", ["plain", "accepted", "rejected", "surplus", "invalid", "turns", "stop error", "forward 1 crash"])
def test_a_record_left_out_doubled_or_swapped_is_noticed(name):
    """By the fold where it breaks the order, else by the redrive, which decides everything again."""
    events = [record.event for record in LOGS[name]]

    def noticed(changed):
        try:
            fold(renumbered(changed))
            return redrive(renumbered(changed)) != renumbered(changed)
        except Exception:
            return True

    for at in range(len(events) - 1):
        without = events[:at] + events[at + 1 :]
        # A session may be dropped without a finish: that is what an interrupt leaves.
        assert type(events[at]).__name__ == "SessionFinished" or noticed(without), f"event {at} left out: {events[at]}"
        doubled = [*events[: at + 1], *events[at:]]
        assert noticed(doubled), f"event {at} doubled: {events[at]}"
        swapped = [*events[:at], events[at + 1], events[at], *events[at + 2 :]]
        assert noticed(swapped), f"events {at} and {at + 1} swapped: {events[at]}, {events[at + 1]}"


def test_an_illegal_event_raises_with_phase_event_and_problem_and_changes_nothing():
    log = LOGS["plain"]
    state = fold(log[:3])
    copy = fold(log[:3])
    with pytest.raises(IllegalEvent, match=r"^SessionOpened is not allowed in phase 'ready': this phase allows .*Extended") as caught:
        reduce(state, log[0].event)
    assert (caught.value.phase, caught.value.event) == ("ready", "SessionOpened")
    assert state == copy


def test_nothing_follows_a_drop_but_a_resume():
    assert set(TRANSITIONS["dropped"]) == {"SessionResumed", "SessionResumed (finished)"}
    state = fold(LOGS["plain"])
    for log in LOGS.values():
        for record in log:
            if type(record.event).__name__ != "SessionResumed":
                with pytest.raises(IllegalEvent):
                    reduce(state, record.event)


def test_the_numbering_of_records_is_gapless_and_of_one_session():
    log = LOGS["plain"]
    with pytest.raises(IllegalEvent, match="record 2 follows record 0"):
        fold([log[0], log[2]])
    with pytest.raises(IllegalEvent, match="record of session 1 among those of 0"):
        fold([log[0], Record(seq=1, session=1, event=log[1].event)])
    assert fold(log[3:], fold(log[:3])) == fold(log)


def test_an_event_of_an_older_state_leaves_that_state_as_it_was():
    """Two branches from one state share its tokens and do not see each other's."""
    log = LOGS["accepted"]
    at = next(at for at, record in enumerate(log) if type(record.event).__name__ == "SpanVerified") + 1
    before = fold(log[:at])
    tokens = before.canonical[:]
    one, two = reduce(before, log[at].event), reduce(before, log[at].event)
    assert one == two and one.canonical[:] == two.canonical[:] == (*tokens, *log[at].event.tokens)
    assert before.canonical[:] == tokens


def tokens_of(event):
    """(field, how to put an id in its place) for everything in an event that is a token."""
    for name in ("prompt", "tokens", "predictions", "prediction"):
        held = getattr(event, name, None)
        if isinstance(held, tuple):
            for at in range(len(held)):
                yield f"{name}[{at}]", lambda token, name=name, held=held, at=at: {name: (*held[:at], token, *held[at + 1 :])}
        elif held is not None:
            yield name, lambda token, name=name: {name: token}


@pytest.mark.parametrize("name", ["plain", "serial", "turns", "accepted", "early exit", "resumed 5"])
def test_an_id_outside_the_vocabulary_is_refused_wherever_it_stands(name):
    state = NEW
    for record in LOGS[name]:
        vocabulary = (record.event if type(record.event).__name__ == "SessionOpened" else state).runtime.vocabulary
        for where, put in tokens_of(record.event):
            with pytest.raises(IllegalEvent):
                reduce(state, attrs.evolve(record.event, **put(vocabulary)))
            if where.startswith(("prompt", "prediction")):  # the last id of the vocabulary is in it
                try:
                    reduce(state, attrs.evolve(record.event, **put(vocabulary - 1)))
                except IllegalEvent as error:
                    assert "vocabulary" not in error.problem
        state = reduce(state, record.event)


@pytest.mark.parametrize("name", ["stop masked", "masked, serial", "masked, rejected"])
def test_a_masked_id_is_refused_in_every_row_below_its_index_and_in_no_row_from_there_on(name):
    """Stop ids 6 and 9 may not be chosen for the first three tokens: at the absolute indices 1, 2 and 3."""
    state, refused = NEW, set()
    for record in LOGS[name]:
        event = record.event
        if type(event).__name__ == "Prefilled":
            with pytest.raises(IllegalEvent, match="prediction 0 is id 9, masked below index 4"):
                reduce(state, attrs.evolve(event, prediction=9))
        if type(event).__name__ == "SerialDecoded" and event.base + 1 < 4:
            with pytest.raises(IllegalEvent, match="prediction 0 is id 9, masked below index 4"):
                reduce(state, attrs.evolve(event, prediction=9))
            refused.add(event.base + 1)
        if type(event).__name__ == "SpanVerified":
            for row in range(event.matched + 1):
                predictions = (*event.predictions[:row], 9, *event.predictions[row + 1 :])
                changed = attrs.evolve(event, predictions=predictions, matched=min(event.matched, row))
                try:
                    reduce(state, changed)
                except IllegalEvent as error:
                    assert f"prediction {row} is id 9, masked below index 4" in error.problem
                    refused.add(event.base + row + 1)
                else:
                    assert event.base + row + 1 >= 4
            for row in range(event.matched + 1, len(event.predictions)):  # behind a mismatch nothing was chosen
                reduce(state, attrs.evolve(event, predictions=(*event.predictions[:row], 9, *event.predictions[row + 1 :])))
        state = reduce(state, event)
    assert refused == {2, 3}


def test_a_reason_for_serial_rounds_is_not_written_twice():
    for name in ("serial", "window", "give up"):
        state = NEW
        for record in LOGS[name]:
            state = reduce(state, record.event)
            if type(record.event).__name__ == "SpanRefused":
                with pytest.raises(IllegalEvent, match="has not changed"):
                    reduce(state, record.event)
                assert reduce(state, attrs.evolve(record.event, reason="another")).refused == "another"


def test_no_span_runs_before_what_was_clipped_is_discarded():
    found = 0
    for _, state, _ in states("drafted"):
        if not state.surplus:
            continue
        found += 1
        rows, base = len(state.pending) + 1, state.position
        span = SpanVerified(base=base, rows=rows, predictions=(*state.pending, 0), matched=rows - 1, observed=base + rows)
        with pytest.raises(IllegalEvent, match="no draft is ready for a span"):
            reduce(state, span)
        ready = reduce(state, DraftDiscarded(count=state.surplus, reason="clipped"))
        assert reduce(ready, span).phase == "verified"
        turn = attrs.evolve(ready.turn, limits=attrs.evolve(ready.turn.limits, max_tokens=ready.decoded + rows - 1))
        with pytest.raises(IllegalEvent, match=f"{rows} rows exceed the {rows - 1} tokens that remain"):
            reduce(evolve_state(ready, turn=turn), span)
    assert found


def first(name, kind):
    log = LOGS[name]
    at = next(at for at, record in enumerate(log) if type(record.event).__name__ == kind)
    return fold(log[:at]), log[at].event


def test_a_prompt_fills_the_context_at_most():
    opened = LOGS["plain"][0].event
    room = attrs.evolve(opened.runtime, context_length=3)
    assert len(reduce(NEW, attrs.evolve(opened, runtime=room)).canonical) == 3
    with pytest.raises(IllegalEvent, match="longer than the context of 2"):
        reduce(NEW, attrs.evolve(opened, runtime=attrs.evolve(room, context_length=2)))
    with pytest.raises(IllegalEvent, match="the prompt is empty"):
        reduce(NEW, attrs.evolve(opened, prompt=()))


def test_an_extension_fills_the_context_at_most():
    state, extended = first("turns", "Extended")
    room = state.runtime.context_length - len(state.canonical)
    small = state.runtime.context_length - room + 5
    state = evolve_state(state, runtime=attrs.evolve(state.runtime, context_length=small))
    assert len(reduce(state, attrs.evolve(extended, tokens=(1,) * 5)).canonical) == small
    with pytest.raises(IllegalEvent, match=f"{small + 1} tokens are more than the context of {small}"):
        reduce(state, attrs.evolve(extended, tokens=(1,) * 6))


def test_a_resume_takes_the_new_runtime_if_the_tokens_fit_it():
    state, resumed = first("resumed 8", "SessionResumed")
    length = len(state.canonical)
    tight = attrs.evolve(resumed.runtime, context_length=length, rollback="checkpoint")
    after = reduce(state, attrs.evolve(resumed, runtime=tight, draft=None))
    assert after.runtime == tight and after.draft is None and after.position == 0 and not after.primed
    with pytest.raises(IllegalEvent, match=f"{length} tokens are more than the context of {length - 1}"):
        reduce(state, attrs.evolve(resumed, runtime=attrs.evolve(tight, context_length=length - 1)))
    with pytest.raises(IllegalEvent, match="vocabulary 18 is not the recorded 17"):
        reduce(state, attrs.evolve(resumed, runtime=attrs.evolve(tight, vocabulary=18)))


def test_a_rewind_leaves_one_token():
    state, rewound = first("turns", "Rewound")
    length = len(state.canonical)
    assert len(reduce(state, attrs.evolve(rewound, count=length - 1, length=1)).canonical) == 1
    for count in (length, length + 1):
        with pytest.raises(IllegalEvent, match="one must remain"):
            reduce(state, attrs.evolve(rewound, count=count, length=1))


def states(phase):
    """Every state of the corpus in this phase with at least two tokens pending, and the events that led to it."""
    for name, log in LOGS.items():
        state, events = NEW, []
        for record in log:
            state = reduce(state, record.event)
            events.append(record.event)
            if state.phase == phase and state.stats.pending >= 2:
                yield name, state, events[:]


@pytest.mark.parametrize("phase", ["ready", "offered", "drafted", "serial", "verified", "unsettled", "failing"])
def test_pending_tokens_leave_one_by_one_as_they_leave_at_once(phase):
    found = 0
    for name, state, _ in states(phase):
        found += 1
        count = state.stats.pending
        at_once = reduce(state, DraftDiscarded(count=count, reason="failed"))
        one_by_one = state
        for _ in range(count):
            one_by_one = reduce(one_by_one, DraftDiscarded(count=1, reason="failed"))
        for some in range(1, count):
            first = reduce(state, DraftDiscarded(count=some, reason="failed"))
            assert first.stats.pending == len(first.pending) + first.surplus == count - some
            assert first.pending == state.pending[: len(first.pending)]
            assert reduce(first, DraftDiscarded(count=count - some, reason="failed")) == at_once
        assert one_by_one == at_once and at_once.stats.pending == 0 and at_once.pending == () and at_once.surplus == 0, name
        assert at_once.phase == ("ready" if phase in ("ready", "offered", "drafted") else phase)
        with pytest.raises(IllegalEvent):
            reduce(state, DraftDiscarded(count=count + 1, reason="failed"))
        assert reduce(at_once, SessionDropped(reason="interrupted")).phase == "dropped"
    assert found


def test_a_verified_span_that_fails_before_its_commit_is_trimmed_to_its_base():
    found = 0
    for _, state, events in states("verified"):
        found += 1
        base = state.forward.base
        failed = RuntimeFailed(call="span", started=True, error="E", message="", observed=state.position)
        more = [failed, DraftDiscarded(count=state.stats.pending, reason="failed")]
        for event in more:
            state = reduce(state, event)
        assert state.phase == "failing" and state.position == base
        trim = Trimmed(from_=failed.observed, to=base, observed=base, cause="failure")
        with pytest.raises(IllegalEvent):
            reduce(state, attrs.evolve(trim, to=base + 1, observed=base + 1))
        after = reduce(state, trim)
        assert (after.phase, after.position, after.stats.empty_forwards) == (
            "ready",
            base,
            fold(renumbered(events)).stats.empty_forwards + 1,
        )
        assert state_violations(after) == ()
        assert laws.violations(renumbered([*events, *more, trim])) == []
        resumed = reduce(state, SessionResumed(runtime=state.runtime, draft=state.draft, rules=1))
        assert state_violations(resumed) == () and resumed.stats.empty_forwards == after.stats.empty_forwards
    assert found


def test_a_rewind_waits_until_nothing_is_pending():
    for name, state, _ in states("ready"):
        with pytest.raises(IllegalEvent, match="pending is"):
            reduce(state, Rewound(count=1, length=len(state.canonical) - 1))
        with pytest.raises(IllegalEvent, match="pending is"):
            reduce(state, SessionDropped(reason=name))


@pytest.mark.parametrize("phase", ["prefilled", "serial", "verified", "unsettled", "failing", "ready", "finished"])
def test_a_session_can_be_dropped_in_every_phase_and_its_account_stays_whole(phase):
    found = 0
    for name, log in LOGS.items():
        state, events = NEW, []
        for record in log:
            state = reduce(state, record.event)
            events.append(record.event)
            if state.phase != phase:
                continue
            found += 1
            more = [DraftDiscarded(count=state.stats.pending, reason="failed")] if state.stats.pending else []
            more.append(SessionDropped(reason="interrupted"))
            after = fold(renumbered([*events, *more]))
            assert state_violations(after) == (), name
            assert laws.violations(renumbered([*events, *more])) == []
            assert laws.account_differences(renumbered([*events, *more]), after.stats) == []
            assert after.canonical == state.canonical and after.position == 0 and after.forward is None
    assert found


def test_a_turn_is_prefilled_once():
    state = fold(LOGS["plain"][:3])
    length = len(state.canonical)
    again = Prefilled(start=length - 1, reused=length - 1, position=length, chunks=1, prediction=0)
    with pytest.raises(IllegalEvent, match="prefilled already"):
        reduce(state, again)


@pytest.mark.parametrize("name", ["stop draft", "stop when", "stop text", "cancel once after SpanVerified"])
def test_nothing_runs_in_a_turn_that_was_ended(name):
    log = LOGS[name]
    at = next(at for at, record in enumerate(log) if type(record.event).__name__ == "SessionFinished")
    state = fold(log[:at])
    length = len(state.canonical)
    for event in (
        SerialDecoded(base=length - 1, prediction=0, verdict="none", observed=length),
        DraftOffered(limit=1, tokens=(0,), origin="mtp", at=length),
    ):
        with pytest.raises(IllegalEvent, match="the turn was ended by"):
            reduce(state, event)
    resumed = reduce(state, SessionResumed(runtime=state.runtime, draft=state.draft, rules=1))
    with pytest.raises(IllegalEvent, match="the turn was ended by"):
        reduce(resumed, Prefilled(start=0, reused=0, position=length, chunks=1, prediction=0))


def test_a_span_needs_a_turn_that_goes_on():
    """A restored draft, judged by a serial step that stops the turn: its rest is no draft for a span."""
    log = LOGS["stop token on a restored draft"]
    at = next(at for at, record in enumerate(log) if type(record.event).__name__ == "Committed" and record.event.source == "serial") + 1
    state = fold(log[:at])
    assert len(state.pending) == 2
    base = state.position
    with pytest.raises(IllegalEvent, match="the turn was ended by stop_token"):
        reduce(state, SpanVerified(base=base, rows=3, predictions=(*state.pending, 0), matched=2, observed=base + 3))


def test_nothing_is_decoded_or_drafted_before_the_prefill():
    for state in (fold(LOGS["plain"][:1]), fold(LOGS["resumed 8"][:9])):
        assert not state.primed and state.boundary
        with pytest.raises(IllegalEvent, match="not prefilled"):
            reduce(state, SerialDecoded(base=state.position, prediction=0, verdict="none", observed=state.position + 1))
        with pytest.raises(IllegalEvent, match="no draft can be used here"):
            reduce(state, DraftOffered(limit=1, tokens=(0,), origin="mtp", at=len(state.canonical)))


def test_nothing_is_committed_beyond_what_remains():
    log = LOGS["nothing"]
    state = fold(log[:1])
    with pytest.raises(IllegalEvent, match="nothing may be committed any more"):
        reduce(state, Prefilled(start=0, reused=0, position=3, chunks=1, prediction=0))
    log = LOGS["plain"]
    state = fold(log[:3])
    turn = attrs.evolve(state.turn, limits=attrs.evolve(state.turn.limits, max_tokens=1))
    spent = evolve_state(state, turn=turn)
    with pytest.raises(IllegalEvent, match="nothing may be committed any more"):
        reduce(spent, SerialDecoded(base=3, prediction=0, verdict="none", observed=4))
    offered = DraftOffered(limit=3, tokens=(1, 2, 3), origin="mtp", at=4)
    for most, accepted in ((4, False), (5, True)):
        turn = attrs.evolve(state.turn, limits=attrs.evolve(state.turn.limits, max_tokens=most))
        if accepted:
            assert reduce(evolve_state(state, turn=turn), offered).pending == (1, 2, 3)
        else:
            with pytest.raises(IllegalEvent, match="limit 3 exceeds the 3 tokens that remain, less one"):
                reduce(evolve_state(state, turn=turn), offered)


def commits():
    """(log's name, state before, event, the tokens that could be committed) for every commit of the corpus."""
    for name, log in LOGS.items():
        state = NEW
        for record in log:
            event, forward = record.event, state.forward
            if type(event).__name__ == "Committed":
                span = type(forward).__name__ == "SpanVerified"
                yield name, state, event, forward.predictions[: forward.matched + 1] if span else (forward.prediction,)
            state = reduce(state, event)


def test_what_cut_a_commit_is_what_the_state_says():
    for name, state, event, possible in commits():
        count, spent = len(event.tokens), state.remaining == len(event.tokens)
        if count and event.tokens[-1] in state.turn.stop_ids:
            allowed = {"stop_token"}
        else:
            allowed = {"stop_when", "stop_when_error"} if count else set()
            allowed |= {"length"} if spent else set()
            allowed |= {"none"} if not spent and count == len(possible) else set()
            allowed |= {"cancelled"} if event.source == "span" and count < len(possible) else set()
        for cut in ("none", "stop_token", "stop_when", "stop_when_error", "length", "cancelled"):
            changed = attrs.evolve(event, cut_by=cut)
            if cut in allowed:
                reduce(state, changed)
            else:
                with pytest.raises(IllegalEvent):
                    reduce(state, changed)
                    pytest.fail(f"{name}: {changed} was accepted")


def test_no_more_is_committed_than_was_chosen_and_nothing_behind_a_stop():
    behind_a_mismatch = behind_a_stop = 0
    for name, state, event, possible in commits():
        if event.source != "span":
            continue
        predictions, base = state.forward.predictions, state.forward.base
        for count in range(1, len(predictions) + 1):
            tokens = predictions[:count]
            stop = next((at for at, token in enumerate(tokens) if token in state.turn.stop_ids), None)
            beyond = count > len(possible)
            cut_off = stop is not None and stop < count - 1
            if not (beyond or cut_off):
                continue
            behind_a_mismatch += beyond
            behind_a_stop += cut_off
            accepted = min(state.forward.matched, count)
            for cut in ("none", "length", "stop_token", "stop_when"):
                changed = attrs.evolve(event, tokens=tokens, accepted=accepted, position=base + count, cut_by=cut)
                with pytest.raises(IllegalEvent):
                    reduce(state, changed)
                    pytest.fail(f"{name}: {changed} was accepted")
    assert behind_a_mismatch and behind_a_stop


def test_the_rest_of_a_draft_that_a_serial_step_rejected_is_discarded_before_the_commit():
    found = {"accepted": 0, "rejected": 0}
    for _, state, _ in (*states("serial"), *one_pending("serial")):
        verdict = state.forward.verdict
        if state.forward.prediction in state.turn.stop_ids:
            continue
        found[verdict] += 1
        length = len(state.canonical)
        commit = Committed(tokens=(state.forward.prediction,), accepted=0, source="serial", position=length)
        if verdict == "rejected":
            with pytest.raises(IllegalEvent, match="the rest of the rejected draft is not discarded yet"):
                reduce(state, commit)
            state = reduce(state, DraftDiscarded(count=state.stats.pending, reason="rejected_tail"))
        assert reduce(state, commit).phase == "ready"
    assert all(found.values())


def one_pending(phase):
    """As `states`, with exactly one token pending."""
    for name, log in LOGS.items():
        state = NEW
        for record in log:
            state = reduce(state, record.event)
            if state.phase == phase and state.stats.pending == 1 and state.remaining > 1:
                yield name, state, []


def test_a_span_whose_rows_are_all_canonical_is_retired_and_never_trimmed():
    state, retired = first("accepted", "CheckpointRetired")
    with pytest.raises(IllegalEvent, match="retired, not trimmed"):
        reduce(state, Trimmed(from_=state.position, to=state.position, observed=state.position, cause="span"))
    assert reduce(state, retired).phase == "ready"


def test_a_failure_is_repaired_only_where_the_cache_is_known_and_nothing_is_pending():
    for _, state, _ in states("failing"):
        trim = Trimmed(from_=state.failed.observed or 0, to=state.position, observed=state.position, cause="failure")
        with pytest.raises(IllegalEvent):
            reduce(state, trim)
    for name in ("settle 0 crash", "settle position"):
        log = LOGS[name]
        at = next(at for at, record in enumerate(log) if getattr(record.event, "call", None) == "settle") + 1
        state = fold(log[:at])
        if state.stats.pending:
            state = reduce(state, DraftDiscarded(count=state.stats.pending, reason="failed"))
        trim = Trimmed(from_=state.failed.observed or 0, to=state.position, observed=state.position, cause="failure")
        with pytest.raises(IllegalEvent, match="unknown place"):
            reduce(state, trim)


def test_at_rest_only_a_prefill_that_was_cancelled_is_trimmed():
    cancelled = next(log for name, log in LOGS.items() if any(getattr(record.event, "cause", "") == "cancel" for record in log))
    at = next(at for at, record in enumerate(cancelled) if getattr(record.event, "cause", "") == "cancel")
    state, trim = fold(cancelled[:at]), cancelled[at].event
    assert reduce(state, trim).phase == "ready"
    for changed in (
        attrs.evolve(trim, from_=trim.to),
        attrs.evolve(trim, to=trim.from_, observed=trim.from_),
        attrs.evolve(trim, to=1, observed=1),
    ):
        with pytest.raises(IllegalEvent):
            reduce(state, changed)
    primed = fold(LOGS["plain"][:3])
    for to in (0, primed.position):
        with pytest.raises(IllegalEvent, match="only a prefill"):
            reduce(primed, Trimmed(from_=primed.position + 1, to=to, observed=to, cause="cancel"))
