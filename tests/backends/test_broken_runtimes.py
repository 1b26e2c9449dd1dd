"""Each broken runtime differs from its sound origin in something that calls of the protocol alone can see.

A probe is a short script of calls; what it observes is the answers, the views, and the kinds of errors. It runs on the broken
runtime and on its origin. Where a runtime claims too much, the probe observes whether the promise that `info` makes is kept.
"""

import inspect

import pytest
from broken_base import VOCABULARY, Careless, Rounding
from broken_runtimes import BROKEN, SOUND, origin
from protocol_script import PROMPT, Script, attempt, continued

from spanfold.engine.runtime import Extras, Forward, Runtime
from spanfold.engine.values import Sampling

#: Every id but 7: a masked row chooses 7.
ALL_BUT_7 = tuple(token for token in range(VOCABULARY) if token != 7)

# Probes. Each takes a runtime and returns what it observed.


def spans(*widths_and_commits):
    """Spans after a prompt, then four serial steps."""

    def probe(runtime):
        script = Script(runtime).prefill()
        for width, commit in widths_and_commits:
            script.span(width, commit)
        return script.serial(4).seen

    return probe


def rounds(runtime):
    """Rounds with the head's own drafts."""
    return Script(runtime).prefill().rounds(20).seen


def settles(base, rows, position):
    """A settle of canonical rows."""

    def probe(runtime):
        script = Script(runtime).prefill()
        script.see(attempt(script.settle, base, rows, position))
        script.look()
        return script.seen

    return probe


def refused_settle_in_a_span(runtime):
    script = Script(runtime).prefill()
    script.forward([script.canonical[-1], 1, 2], canonical=False)
    script.see(attempt(script.settle, 6, 3, 2))
    script.look()
    script.see(attempt(script.settle, 6, 3, 7))
    return script.seen


def forwards(tokens, base=None):
    """A forward that must be refused, and the session after it."""

    def probe(runtime):
        script = Script(runtime).prefill()
        script.see(attempt(lambda: script.forward(tokens, base=base)))
        script.look()
        return script.seen

    return probe


def interleaved_spans(runtime):
    one, two = Script(runtime).prefill(), Script(runtime, 1).prefill((2, 7, 1, 8))
    for script in (one, two):
        script.forward([script.canonical[-1], 1, 2], base=len(script.canonical) - 1, canonical=False)
    for script in (one, two):
        base = len(script.canonical) - 1
        script.canonical += script.seen[-1].predictions[:1]
        script.settle(base, 3, base + 1)
        script.serial(3)
    return one.seen, two.seen


def a_session_after_another(runtime):
    Script(runtime).prefill()
    runtime.drop_session(0)
    return Script(runtime, 1).prefill((2, 7, 1, 8)).serial(2).seen


def views_after_serial(runtime):
    script = Script(runtime).prefill().serial(2)
    return script.look()


def prefill_with_all(runtime):
    return Script(runtime).forward(PROMPT)


def dropped(runtime):
    Script(runtime).prefill()
    runtime.drop_session(0)
    runtime.drop_session(5)
    return runtime.view(0), runtime.view(5)


def drops_in_spans(runtime):
    def one(session):
        script = Script(runtime, session).prefill()
        script.forward([script.canonical[-1], 1, 2], canonical=False)
        runtime.drop_session(session)
        return runtime.view(session)

    return [attempt(one, session) for session in range(12)]


def unknown_forward(runtime):
    call = Forward(session=9, base=0, tokens=(1,), want="last", canonical=True)
    return attempt(runtime.forward, [call]), runtime.view(9)


def closed(runtime):
    runtime.close()
    return attempt(Script, runtime)


def two_elements(*tokens):
    """Two sessions in one forward, then a serial step of each."""

    def probe(runtime):
        scripts = [Script(runtime, session) for session in range(2)]
        calls = [Forward(session=at, base=0, tokens=fed, want="last", canonical=True) for at, fed in enumerate(tokens)]
        answers = attempt(runtime.forward, calls)
        kinds = answers if isinstance(answers, str) else [(type(answer), answer.session) for answer in answers]
        after = [attempt(lambda script=script: script.forward([1], want="last")) for script in scripts]
        return kinds, after, [runtime.view(0), runtime.view(1)]

    return probe


def first_draft(tokens=PROMPT, chunk=99, serial=0):
    """A prompt, serial steps, and the first draft."""

    def probe(runtime):
        script = Script(runtime).prefill(tokens, chunk=chunk).serial(serial)
        script.draft(5)
        script.look()
        return script.seen

    return probe


def draft_after(width, commit):
    """A draft, a span that is not its own, and another draft."""

    def probe(runtime):
        script = Script(runtime).prefill()
        script.draft(0)
        script.span(width, commit).draft(5)
        script.look()
        return script.seen

    return probe


def draft_after_a_rewind_to_other_text(runtime):
    script = Script(runtime).prefill().serial(6)
    script.draft(5)
    script.settle(4, 8, 4)
    script.canonical = [*PROMPT[:4], *script.forward((20, 21, 22)).predictions[:0], 20, 21, 22, 23]
    script.draft(5)
    script.look()
    return script.seen


def drafts_of_two_sessions(runtime):
    one, two = Script(runtime).prefill(), Script(runtime, 1).prefill((2, 7, 1, 8, 2, 8))
    for script in (one, two, one):
        script.draft(5)
    for script in (one, two):
        script.serial(1).draft(5)
    return one.seen, two.seen


def drafts(*limits):
    """Drafts of several limits at one prefix, with the views."""

    def probe(runtime):
        script = Script(runtime).prefill()
        script.look()
        for limit in limits:
            script.draft(limit)
            script.look()
        return script.seen

    return probe


def rows_agree_as_claimed(runtime):
    script, equal = Script(runtime).prefill(), True
    for _ in range(20):
        base = len(script.canonical) - 1
        spanned = script.forward([script.canonical[-1], 1, 2], base=base, canonical=False).predictions[0]
        script.settle(base, 3, base)
        equal &= script.serial(1).canonical[-1] == spanned
    return equal or not runtime.info.row_exact


def rolls_back_as_claimed(runtime):
    script, claimed = Script(runtime).prefill(), runtime.info.rollback
    if claimed == "none":
        return True
    if isinstance(attempt(lambda: script.span(2, 1)), str):
        return False
    return claimed != "crop" or not isinstance(attempt(script.settle, 2, 5, 2), str)


def drafts_as_claimed(runtime):
    script, head = Script(runtime).prefill(), runtime.info.draft
    if head is None:
        return True
    if isinstance(attempt(script.draft, head.depth), str):
        return False
    script.serial(head.context_length - 1 - len(script.canonical))
    return not isinstance(attempt(script.draft, 1), str)


def fills_the_context(runtime):
    script = Script(runtime).prefill()
    return attempt(lambda: script.serial(runtime.info.context_length - len(PROMPT)).look().position) == runtime.info.context_length


def runs_every_id(runtime):
    script = Script(runtime)
    return not isinstance(attempt(script.forward, range(runtime.info.vocabulary)), str)


def hashes(runtime):
    return attempt(lambda: hash(runtime) is not None)


def configured(runtime):
    script = Script(runtime).prefill()
    runtime.configure(0, Sampling(masked=ALL_BUT_7, mask_until=99))
    return script.serial(2).seen


def configured_beside(runtime):
    script = Script(runtime).prefill()
    Script(runtime, 1)
    runtime.configure(1, Sampling(masked=ALL_BUT_7, mask_until=99))
    return script.serial(2).seen


def masked_span(runtime):
    script = Script(runtime, sampling=Sampling(masked=ALL_BUT_7, mask_until=9)).prefill()
    return script.span(4, 1).serial(4).seen


def extras(runtime):
    script = Script(runtime).prefill()
    wanted = Extras(margins=True, logprobs=True)
    rows = script.forward([script.canonical[-1], 1, 2], canonical=False, extras=wanted)
    return rows.margins, rows.logprobs


PROBES = {
    "trim_no_op": spans((3, 1)),
    "trim_skips_one_row": spans((3, 3)),
    "trim_one_too_many": spans((3, 1)),
    "trim_one_too_few": spans((3, 1)),
    "trim_to_zero_ignored": settles(0, 6, 0),
    "trim_keeps_first_row": spans((3, 0)),
    "trims_relatively": settles(0, 9, 4),
    "stale_recurrent_state": spans((3, 1)),
    "restore_without_replay": spans((3, 1)),
    "checkpoint_taken_late": spans((3, 1)),
    "checkpoint_not_renewed": spans((2, 3), (3, 1)),
    "snapshot_shared": interleaved_spans,
    "slot_not_cleared": a_session_after_another,
    "zero_state_multi_token": spans((2, 3)),
    "serial_keeps_checkpoint": views_after_serial,
    "predictions_rotated": spans((2, 1)),
    "bonus_missing": spans((3, 4)),
    "prefill_answers_last_only": prefill_with_all,
    "position_not_advanced": spans((3, 1)),
    "view_counts_on_the_host": forwards((1, 2, 99), 6),
    "base_ignored": forwards((1, 2), 4),
    "refuses_after_touching": forwards((1, 2, 99), 6),
    "settle_checks_late": refused_settle_in_a_span,
    "settle_cuts_then_raises": refused_settle_in_a_span,
    "floor_is_always_zero": views_after_serial,
    "settle_clamps_above": settles(6, 3, 8),
    "settle_clamps_at_floor": settles(3, 3, 3),
    "drop_leaves_an_empty_session": dropped,
    "drop_creates_the_unknown": dropped,
    "drop_in_a_span_leaks": drops_in_spans,
    "forward_creates_the_unknown": unknown_forward,
    "close_keeps_serving": closed,
    "elements_sorted": two_elements((1,), (2, 3, 4)),
    "padding_enters_the_state": two_elements((1,), (2, 3, 4)),
    "one_refusal_raises_for_all": two_elements((1,), (2, 99)),
    "extra_elements_ignored": two_elements((1,), (2,)),
    "head_skips_prompt": first_draft(),
    "head_sees_last_chunk_only": first_draft((3, 1, 4, 1, 5, 9, 2, 6), chunk=4),
    "head_backlog_overflows": first_draft(serial=20),
    "head_gap_after_full_accept": draft_after(3, 4),
    "head_falls_behind": draft_after(3, 1),
    "head_keeps_drafted_rows": rounds,
    "head_not_rewound": draft_after_a_rewind_to_other_text,
    "head_shared": drafts_of_two_sessions,
    "head_position_is_the_targets": drafts(),
    "limit_zero_feeds_nothing": drafts(0),
    "draft_remembers_rejected": draft_after(3, 1),
    "draft_depends_on_limit": drafts(2, 3),
    "draft_uses_a_generator": drafts(3, 3),
    "draft_ignores_limit": drafts(2),
    "claims_row_exact": rows_agree_as_claimed,
    "claims_crop": rolls_back_as_claimed,
    "claims_checkpoint": rolls_back_as_claimed,
    "claims_a_head": drafts_as_claimed,
    "claims_longer_context": fills_the_context,
    "claims_longer_draft_context": drafts_as_claimed,
    "claims_deeper_draft": drafts_as_claimed,
    "claims_padded_vocabulary": runs_every_id,
    "unhashable": hashes,
    "configure_ignored": configured,
    "sampling_shared": configured_beside,
    "mask_ignored_in_spans": masked_span,
    "mask_decided_per_forward": masked_span,
    "mask_by_position": masked_span,
    "logprobs_only_serial": extras,
    "margins_ignored": extras,
}


def test_every_broken_runtime_has_a_probe():
    assert PROBES.keys() == BROKEN.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_runtime_differs_from_its_sound_origin_in_what_the_protocol_shows(name):
    sound, probe = SOUND[origin(name)], PROBES[name]
    expected = probe(sound())
    assert probe(sound()) == expected, "the sound runtime answers a probe the same every time"
    assert probe(BROKEN[name]()) != expected


@pytest.mark.parametrize("name", BROKEN)
def test_the_base_class_without_a_mistake_makes_no_difference(name):
    base = Rounding if origin(name) == "rounding" else Careless
    unbroken = type("Unbroken", (base,), {"origin": origin(name)})
    assert PROBES[name](unbroken()) == PROBES[name](SOUND[origin(name)]())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_runtime_is_a_runtime_that_says_what_its_author_did(name):
    runtime, words = BROKEN[name](), inspect.getdoc(BROKEN[name])
    assert isinstance(runtime, Runtime)
    assert len(words.splitlines()) == 1
    assert words not in {inspect.getdoc(BROKEN[other]) for other in BROKEN if other != name}


@pytest.mark.parametrize("name", [name for name in BROKEN if name.startswith("claims_")])
def test_a_false_claim_is_broken_and_its_sound_origin_keeps_what_it_promises(name):
    assert PROBES[name](SOUND[origin(name)]()) is True
    assert PROBES[name](BROKEN[name]()) is False


OUTPUT_CANNOT_TELL = [
    *(name for name in BROKEN if name.startswith(("head_", "draft_", "limit_"))),
    "serial_keeps_checkpoint",
    "prefill_answers_last_only",
    "settle_checks_late",
    "drop_leaves_an_empty_session",
    "drop_in_a_span_leaks",
    "trim_keeps_first_row",
    "snapshot_shared",
    "slot_not_cleared",
]


@pytest.mark.parametrize("name", OUTPUT_CANNOT_TELL)
def test_a_decode_of_one_session_does_not_show_these(name):
    tokens = Script(BROKEN[name]()).prefill().rounds(20).canonical
    assert tokens == continued(PROMPT, len(tokens) - len(PROMPT))
