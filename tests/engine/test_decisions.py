"""Decisions taken on purpose against the engine that this one grew out of; each is one test.

That engine commits after emission; retires by "the draft was fully accepted"; raises when cancelled before the first token; loses
state on a callback error and on a repair error; keeps the next draft across a stop; counts acceptance past a stop; waits for the
consumer inside the speculative window; checks positions against its own count; throws the draft away after any rejection; drafts
when no span can run; speculates under greedy sampling only.
"""

import attrs
import pytest
from harness import Bench

from spanfold.backends.scripted import Fault, adversarial, list_target, listed, oracle
from spanfold.engine import (
    CheckpointRetired,
    Committed,
    DecodeFailed,
    DraftDiscarded,
    DraftOffered,
    Processor,
    RuntimeFailed,
    Sampling,
    SerialDecoded,
    SessionDropped,
    SessionFinished,
    SpanVerified,
    Trimmed,
    rules,
)
from spanfold.engine.state import evolve_state

TRUTH = (5, 6, 7, 8, 9, 10, 11, 12)


def truthful(**options):
    options.setdefault("drafts", oracle())
    options.setdefault("policy", 3)
    return Bench(list_target(TRUTH, prompt=1, vocabulary=16), **options)


def test_tokens_are_committed_and_repaired_before_they_are_emitted():
    seen = []

    def on_token(token):
        view = bench.runtime.inspect(0)
        committed = [token for event in bench.of(Committed) for token in event.tokens]
        seen.append(token)
        assert committed[: len(seen)] == seen, "emitted before its commit"
        assert not view.checkpoint and view.position == len(committed), "emitted before the repair"

    bench = truthful(drafts=listed((6, 7, 0, 0, 10, 11), start=2))
    bench.generate((0,), max_tokens=8, on_token=on_token)
    assert tuple(seen) == TRUTH


def test_a_fully_accepted_draft_that_a_cancel_cut_short_is_trimmed_not_retired():
    polls = []

    def cancel():
        polls.append(len(bench.of(SpanVerified)))
        return polls.count(1) > 2  # the span's third token

    bench = truthful()
    result = bench.generate((0,), cancel=cancel, max_tokens=8)
    assert result.tokens == TRUTH[:3] and result.finish_reason == "cancelled"
    assert bench.of(SpanVerified)[0].matched == 3 and not bench.of(CheckpointRetired)
    assert [(event.to, event.cause) for event in bench.of(Trimmed)] == [(3, "span")]


def test_a_stop_on_the_last_draft_trims_and_a_stop_on_the_bonus_retires():
    bench = truthful()
    assert bench.generate((0,), stop_tokens=[8]).tokens == TRUTH[:4]
    assert len(bench.of(Trimmed)) == 1 and not bench.of(CheckpointRetired)
    bench = truthful()
    assert bench.generate((0,), stop_tokens=[9]).tokens == TRUTH[:5]
    assert len(bench.of(CheckpointRetired)) == 1 and not bench.of(Trimmed)


def test_an_ignored_stop_inside_a_span_cuts_nothing_and_the_span_is_retired():
    bench = truthful(stop_tokens=[7])
    result = bench.generate((0,), max_tokens=5, ignore_eos=True)
    assert result.tokens == TRUTH[:5] and len(bench.of(CheckpointRetired)) == 1


def test_a_cancel_before_the_first_token_of_a_span_is_a_clean_finish():
    bench = truthful()
    result = bench.generate((0,), cancel=lambda: bool(bench.of(SpanVerified)), max_tokens=8)
    assert result.tokens == TRUTH[:1] and result.finish_reason == "cancelled"
    commit = bench.of(Committed)[-1]
    assert (commit.tokens, commit.cut_by) == ((), "cancelled")
    assert bench.of(Trimmed)[-1].to == bench.of(SpanVerified)[-1].base
    assert result.stats.discarded == {"cancelled": 3}


def test_nothing_is_lost_by_an_error_of_a_callback():
    def stop_when(token, index):
        if index == 2:
            raise LookupError
        return False

    bench = truthful()
    with pytest.raises(LookupError):
        bench.generate((0,), stop_when=stop_when, max_tokens=8)
    assert bench.of(Committed)[-1].tokens == TRUTH[1:3]
    assert isinstance(bench.events()[-1], SessionDropped) and bench.of(SessionFinished)[0].reason == "failed"
    assert bench.all_released()


def test_nothing_is_lost_by_an_error_of_the_repair():
    bench = truthful(drafts=adversarial(), faults=[Fault(call="settle", at=1, started=True)])
    with pytest.raises(DecodeFailed) as caught:
        bench.generate((0,), max_tokens=8)
    assert caught.value.partial.tokens == TRUTH[:3]
    assert caught.value.partial.session.canonical[1:] == TRUTH[:3]
    assert bench.of(RuntimeFailed)[0].call == "settle" and bench.all_released()


def test_no_draft_lives_on_across_a_stop():
    bench = truthful()
    session = bench.decoder.open((0,), stop_tokens=[7], max_tokens=8)
    list(session)
    assert session.stats.pending == 0 and session.state.pending == ()
    assert [(event.count, event.reason) for event in bench.of(DraftDiscarded)] == [(1, "stopped")]
    session.extend((), max_tokens=5)
    list(session)
    assert [event.at for event in bench.of(DraftOffered)] == [2, 5]
    bench.audit(session)


def test_acceptance_is_not_counted_past_a_stop():
    stats = truthful().generate((0,), stop_tokens=[7]).stats
    assert (stats.verified, stats.matched, stats.accepted, stats.rejected) == (3, 3, 2, 0)


def test_a_slow_consumer_never_waits_inside_the_speculative_window():
    bench = truthful()
    for _ in bench.decoder.stream((0,), max_tokens=8):
        # Here the consumer may take its time: no span is open, and nothing was asked of the runtime for later.
        assert not bench.runtime.inspect(0).checkpoint
        assert bench.runtime.calls[-1].name in ("forward", "settle")
    assert bench.all_released()


def test_a_position_is_what_the_runtime_found_not_what_the_engine_counted():
    for wrong in ("position", "lost_row"):
        bench = truthful(faults=[Fault(call="forward", at=1, wrong=wrong)])
        session = bench.decoder.open((0,), max_tokens=8)
        session.step()
        with pytest.raises(DecodeFailed, match=r"the cache holds \d+ rows after the forward, 5 were expected"):
            session.step()
        bench.audit(session)
        list(session)
        assert session.result.tokens == TRUTH


def test_a_rejection_costs_no_serial_step():
    bench = truthful(drafts=adversarial())
    stats = bench.generate((0,), max_tokens=8).stats
    assert stats.rejected == stats.spans == 6
    assert stats.serial_steps == 1  # the last token: nothing is left to draft for


def test_nothing_is_drafted_when_no_span_can_run():
    assert truthful().generate((0,), max_tokens=1).stats.drafted == 0
    assert truthful().generate((0,), max_tokens=2).stats.drafted == 0
    assert truthful(context_length=3).generate((0,)).stats.drafted == 0
    for options in ({"rollback": "none"}, {"policy": 0}, {"source": "none"}, {"draft_context": 1}):
        bench = truthful(**options)
        assert bench.generate((0,), max_tokens=8).tokens == TRUTH
        assert bench.runtime.count("draft") == 0, options


def test_spans_are_admitted_by_purity_of_the_sampling_not_by_its_being_greedy(monkeypatch):
    bench = truthful()
    session = bench.decoder.open((0,), max_tokens=8)
    session.step()
    state = session.state
    known = Processor(name="top_k", params=(("k", 4),), pure=True)

    def planned(*processors):
        turn = attrs.evolve(state.turn, sampling=Sampling(processors=processors))
        return rules.plan(evolve_state(state, turn=turn))

    monkeypatch.setattr(rules, "PURE_PROCESSORS", frozenset({"top_k"}))
    assert planned(known) == planned() == rules.DraftUpTo(3)
    assert planned(attrs.evolve(known, pure=False)) == rules.Serial("processor top_k")
    assert planned(known, Processor(name="mine", pure=True)) == rules.Serial("processor mine")
    assert not bench.of(SerialDecoded)
