"""What mutants of the engine got past the other tests: one test for each, so that they do not again."""

import attrs
import pytest

from spanfold.backends.scripted import Fault, ScriptedRuntime, hash_target, list_target, oracle
from spanfold.engine import (
    DecodeFailed,
    Decoder,
    DraftDiscarded,
    DraftOffered,
    DraftTaken,
    IllegalEvent,
    Policy,
    Prefilled,
    RuntimeFailed,
    SessionDropped,
    SpanVerified,
    fold,
    reduce,
)

TARGET = hash_target(7, 50)


def recorded(runtime, prompt=(1, 2, 3), policy=3, **options):
    log = []
    with Decoder(runtime, policy=policy, observers=[log.append]) as decoder:
        try:
            decoder.generate(prompt, **options)
        except DecodeFailed:
            pass
    return log


def before(log, kind):
    """The state before the first event of a kind, and that event."""
    at = next(at for at, record in enumerate(log) if isinstance(record.event, kind))
    return fold(log[:at]), log[at].event


def test_a_draft_cannot_be_taken_before_its_invalid_ids_are_discarded():
    state, offered = before(recorded(ScriptedRuntime(TARGET, vocabulary=50), max_tokens=8), DraftOffered)
    state = reduce(state, attrs.evolve(offered, invalid=1))
    taken = DraftTaken(tokens=offered.tokens, offered=len(offered.tokens))
    with pytest.raises(IllegalEvent, match="1 invalid ids are not discarded yet"):
        reduce(state, taken)
    reduce(reduce(state, DraftDiscarded(count=1, reason="invalid")), taken)


def test_the_first_token_of_a_turn_cannot_be_a_masked_one():
    log = recorded(ScriptedRuntime(TARGET, vocabulary=50), max_tokens=4, min_tokens=1, stop_tokens=[0])
    state, prefilled = before(log, Prefilled)
    with pytest.raises(IllegalEvent, match="masked below index 4"):
        reduce(state, attrs.evolve(prefilled, prediction=0))


def test_a_span_that_broke_off_and_was_dropped_is_an_empty_forward():
    log = recorded(ScriptedRuntime(TARGET, vocabulary=50), max_tokens=8)
    state, verified = before(log, SpanVerified)
    state = reduce(state, verified)
    assert state.stats.empty_forwards == 0
    for event in (
        RuntimeFailed(call="settle", started=True, error="E", message=""),
        DraftDiscarded(count=state.stats.pending, reason="failed"),
        SessionDropped(reason="settle failed: E"),
    ):
        state = reduce(state, event)
    assert state.stats.empty_forwards == 1
    assert state.stats.forwards + state.stats.saved_forwards == state.stats.tokens + state.stats.empty_forwards


def test_a_failed_prefill_is_settled_over_the_rows_it_was_to_feed():
    runtime = ScriptedRuntime(TARGET, vocabulary=50, faults=[Fault(call="forward", at=3, started=True)])
    seen = []
    settle = runtime.settle
    runtime.settle = lambda calls: (seen.append(calls[0]), settle(calls))[1]
    with Decoder(runtime, policy=Policy(width=0, prefill_chunk=2)) as decoder, decoder.open([1, 2], max_tokens=1) as session:
        session.step()
        session.extend([4, 5, 6, 7], max_tokens=1)
        with pytest.raises(DecodeFailed):
            while True:
                session.step()
    (call,) = seen
    assert (call.base, call.rows, call.position) == (2, 5, 2), "the token before and the four given"


def test_an_observed_position_of_zero_is_recorded_as_zero():
    class Lost(ScriptedRuntime):
        def forward(self, calls):
            return [attrs.evolve(rows, position=0) for rows in super().forward(calls)]

    log = recorded(Lost(TARGET, vocabulary=50), max_tokens=2)
    (failed,) = [record.event for record in log if isinstance(record.event, RuntimeFailed)]
    assert (failed.call, failed.observed) == ("prefill", 0)


def test_a_drop_that_fails_after_a_failed_settle_is_recorded_too():
    faults = [Fault(call="settle", at=0, started=True), Fault(call="drop", at=0, started=True)]
    runtime = ScriptedRuntime(list_target(range(4, 12), vocabulary=50), vocabulary=50, drafts=oracle(), faults=faults)
    log = recorded(runtime, max_tokens=6)
    assert [record.event.call for record in log if isinstance(record.event, RuntimeFailed)] == ["settle", "drop"]
    assert isinstance(log[-1].event, SessionDropped)
