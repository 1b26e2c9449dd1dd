"""Cases 3.x: every drafted token and every forward is accounted for, once."""

import json

import laws
import pytest
from harness import Bench

from spanfold.backends.scripted import adversarial, hash_target, list_target, listed, noisy, oracle, short
from spanfold.engine import DraftOffered, Policy, SpanRefused, SpanVerified, fold

TRUTH = (5, 6, 7, 8, 9, 10, 11, 12)


def truthful(policy=5, **options):
    options.setdefault("drafts", oracle())
    return Bench(list_target(TRUTH, prompt=1, vocabulary=16), policy=policy, **options)


def test_case_3_1_what_matched_and_what_was_committed_are_two_figures():
    bench = truthful()
    result = bench.generate((0,), stop_tokens=[8], max_tokens=8)  # five drafts, all right; the stop is the third
    stats = result.stats
    assert (stats.verified, stats.matched, stats.accepted) == (5, 5, 3)
    assert (stats.span_tokens, stats.acceptance_length) == (3, 3.0)
    assert stats.rejected == 0 and stats.discarded == {"stopped": 2}
    assert stats.acceptance_rate == 3 / 5
    assert stats.accepted_per_depth == (1, 1, 1, 0, 0) and stats.verified_per_depth == (1, 1, 1, 1, 1)


def test_case_3_3_a_draft_below_the_minimum_is_drafted_and_not_verified():
    bench = truthful(policy=Policy(width=3, min_draft=2), drafts=short(1))
    session = bench.decoder.open((0,), max_tokens=8)
    for _ in range(3):
        session.step()
    stats = session.stats
    assert (stats.drafted, stats.verified, stats.spans, stats.serial_steps) == (2, 0, 0, 2)
    assert stats.discarded == {"short": 2} and stats.acceptance_rate is None


def test_case_3_3_tokens_cut_by_the_budget_are_not_rejected():
    bench = truthful(policy=Policy(width=3), drafts=lambda head, limit: oracle()(head, 5))
    stats = bench.generate((0,), max_tokens=4).stats
    assert [event.limit for event in bench.of(DraftOffered)] == [2]
    assert (stats.drafted, stats.verified, stats.rejected, stats.discarded) == (5, 2, 0, {"clipped": 3})


def test_case_3_3_a_draft_clipped_below_the_minimum_is_not_short():
    bench = truthful(policy=Policy(width=4, min_draft=4))
    result = bench.generate((0,), max_tokens=3)  # room for one draft only
    assert (result.stats.verified, result.stats.accepted, result.stats.discarded) == (1, 1, {})


def test_case_3_6_there_is_no_rate_before_the_first_verify():
    bench = Bench()
    session = bench.decoder.open((1, 2, 3))
    for _ in range(2):
        assert session.stats.acceptance_rate is None and session.stats.acceptance_length is None
        assert json.loads(json.dumps({"acceptance_rate": session.stats.acceptance_rate})) == {"acceptance_rate": None}
        session.step() if session.stats.prefills == 0 else None


@pytest.mark.parametrize("drafts", [oracle(), adversarial(), noisy(3, 0.6), short(2), listed((1, 2), start=5)])
@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
def test_case_3_7_the_result_the_folded_events_and_an_outside_tally_agree(drafts, rollback):
    bench = Bench(drafts=drafts, rollback=rollback)
    result = bench.generate(max_tokens=30)
    assert result.stats == fold(bench.logs[0]).stats == result.session.stats
    assert laws.account_differences(bench.logs[0], result.stats) == []


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_case_3_8_a_fully_accepted_draft_saves_as_many_forwards_as_it_has_tokens(width):
    bench = truthful(policy=width)
    rounds = 6
    result = bench.generate((0,), max_tokens=1 + rounds * (width + 1))
    stats = result.stats
    assert stats.spans == rounds and all(event.matched == width for event in bench.of(SpanVerified))
    assert stats.saved_forwards == stats.saved_net == rounds * width
    assert stats.forwards == 1 + rounds == bench.runtime.count("forward")
    assert stats.forwards + stats.saved_forwards == stats.tokens == len(result.tokens)


def test_case_3_8_replayed_forwards_are_taken_off_what_is_shown_as_saved():
    bench = Bench(hash_target(3, 17), drafts=noisy(5, 0.5), rollback="checkpoint")
    stats = bench.generate(max_tokens=40).stats
    assert stats.replay_forwards == stats.trims > 0
    assert stats.saved_net == stats.saved_forwards - stats.replay_forwards


def test_the_reason_for_serial_rounds_is_written_only_when_it_changes():
    bench = truthful(policy=0)
    bench.generate((0,), max_tokens=8)
    assert [event.reason for event in bench.of(SpanRefused)] == ["policy"]
