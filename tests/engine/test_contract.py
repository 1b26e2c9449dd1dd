"""What a runtime may not return is a failure of the call, wherever it comes; and what it may return is taken."""

import pytest
from harness import Bench

from spanfold.backends.scripted import Fault, list_target, listed, oracle
from spanfold.engine import DecodeFailed, RuntimeContractError, RuntimeFailed, Trimmed

TRUTH = (5, 6, 7, 8, 9, 10, 11, 12)


def truthful(**options):
    options.setdefault("drafts", oracle())
    return Bench(list_target(TRUTH, prompt=1, vocabulary=16), **options)


@pytest.mark.parametrize("index", range(6))
def test_a_masked_id_is_a_failure_below_min_tokens_and_a_stop_from_there_on(index):
    """The row at position p chooses the token with index p + 1: the last masked row and the first free one differ by one."""
    bench = truthful(policy=0, faults=[Fault(call="forward", at=index, wrong="masked")])
    session = bench.decoder.open((0,), stop_tokens=[3], min_tokens=3, max_tokens=8)
    if index < 3:
        with pytest.raises(DecodeFailed, match=f"is id 3, which is masked at index {1 + index}") as caught:
            list(session)
        assert isinstance(caught.value.__cause__, RuntimeContractError)
        bench.audit(session)
        assert tuple(session.state.canonical[1:]) + tuple(session) == TRUTH
    else:
        assert list(session) == [*TRUTH[:index], 3] and session.finish.reason == "stop_token"
    bench.audit_logs()


@pytest.mark.parametrize("min_tokens", [4, 5, 6])
def test_a_masked_id_in_the_last_row_of_a_span_is_judged_at_its_own_index(min_tokens):
    # A span of rows 1 to 4 after the prefill's token 0: its last prediction has index 4 in the turn.
    bench = truthful(policy=3, faults=[Fault(call="forward", at=1, wrong="masked")])
    session = bench.decoder.open((0,), stop_tokens=[3], min_tokens=min_tokens, max_tokens=8)
    session.step()
    if min_tokens > 4:
        with pytest.raises(DecodeFailed, match="prediction 3 is id 3, which is masked at index 5"):
            session.step()
        assert session.state.canonical[1:] == TRUTH[:1]
    else:
        assert session.step() == (*TRUTH[1:4], 3) and session.finish.reason == "stop_token"
    bench.audit(session)


def test_a_masked_id_behind_a_mismatch_was_never_chosen_and_harms_nothing():
    bench = truthful(policy=3, drafts=listed((6, 0, 0), start=2), faults=[Fault(call="forward", at=1, wrong="masked")])
    session = bench.decoder.open((0,), stop_tokens=[3], min_tokens=6, max_tokens=8)
    session.step()
    assert session.step() == TRUTH[1:3]
    bench.audit(session)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("short", "returned 3 predictions, 4 were wanted"),
        ("long", "returned 5 predictions, 4 were wanted"),
        ("vocabulary", "16\\) are not all in the vocabulary of 16"),
        ("position", "the cache holds 6 rows after the forward, 5 were expected"),
        ("lost_row", "the cache holds 4 rows after the forward, 5 were expected"),
    ],
)
def test_a_wrong_answer_to_a_span_is_told_exactly_and_the_session_goes_on(wrong, message):
    bench = truthful(policy=3, faults=[Fault(call="forward", at=1, wrong=wrong)])
    session = bench.decoder.open((0,), max_tokens=8)
    session.step()
    with pytest.raises(DecodeFailed, match=message):
        session.step()
    (failed,) = bench.of(RuntimeFailed)
    assert (failed.call, failed.started, failed.error) == ("span", True, "RuntimeContractError")
    (trim,) = bench.of(Trimmed)
    assert (trim.cause, trim.to, trim.observed, trim.from_) == ("failure", 1, 1, failed.observed)
    bench.audit(session)
    list(session)
    assert session.state.canonical[1:] == TRUTH


@pytest.mark.parametrize("wrong", ["short", "long", "vocabulary", "position", "lost_row"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_wrong_answer_to_a_prefill_or_a_serial_step_is_repaired_too(wrong, at):
    bench = truthful(policy=0, faults=[Fault(call="forward", at=at, wrong=wrong)])
    session = bench.decoder.open((0,), max_tokens=8)
    with pytest.raises(DecodeFailed, match=r"^(prefill|serial) failed: RuntimeContractError"):
        list(session)
    bench.audit(session)
    list(session)
    assert session.state.canonical[1:] == TRUTH


def test_predictions_that_end_behind_the_mismatch_are_taken_as_they_are():
    full, early = (truthful(policy=3, drafts=listed((6, 0, 0, 9, 0), start=2), early_exit=early) for early in (False, True))
    assert full.generate((0,), max_tokens=8) == early.generate((0,), max_tokens=8)


def test_predictions_that_end_at_the_mismatch_are_too_few():
    class OneLess(type(truthful().runtime)):
        def forward(self, calls):
            (rows,) = super().forward(calls)
            if calls[0].want == "all" and not done:
                done.append(1)
                import attrs

                return [attrs.evolve(rows, predictions=rows.predictions[:1])]
            return [rows]

    done = []
    bench = truthful(policy=3, drafts=listed((6, 0, 0), start=2))
    bench.runtime.__class__ = OneLess
    session = bench.decoder.open((0,), max_tokens=8)
    session.step()
    with pytest.raises(DecodeFailed, match="returned 1 predictions, 4 were wanted"):
        session.step()
    list(session)
    assert session.state.canonical[1:] == TRUTH


@pytest.mark.parametrize("wrong", ["position", "trim_noop", "trim_off_by_one"])
def test_a_settle_that_ends_elsewhere_is_noticed_and_drops_the_session(wrong):
    bench = truthful(policy=3, drafts=listed((0,) * 9, start=2), faults=[Fault(call="settle", wrong=wrong)])
    session = bench.decoder.open((0,), max_tokens=8)
    session.step()
    with pytest.raises(
        DecodeFailed, match=r"^settle failed: RuntimeContractError: the cache holds \d rows after the settle, 2 were expected"
    ):
        session.step()
    assert session.state.phase == "dropped" and session.state.canonical[1:] == TRUTH[:2]
    assert bench.all_released()
    bench.audit_logs()


def test_a_retire_that_ends_elsewhere_drops_the_session_too():
    bench = truthful(policy=3, faults=[Fault(call="settle", wrong="position")])
    session = bench.decoder.open((0,), max_tokens=8)
    session.step()
    with pytest.raises(DecodeFailed, match="the cache holds 6 rows after the settle, 5 were expected"):
        session.step()
    assert session.state.phase == "dropped" and session.state.canonical[1:] == TRUTH[:5]
