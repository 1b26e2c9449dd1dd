"""The figures of a trace: those of the fold, and the neutral record that other tools read."""

import json

import attrs
import corpus
import pytest
from hypothesis import given, settings
from worlds import worlds

from spanfold.engine import Committed, SpanVerified, fold
from spanfold.engine.errors import TraceError
from spanfold.engine.replay import trace_stats
from spanfold.engine.trace import TraceWriter

LOGS = corpus.logs()
SCHEMA = [
    *("engine", "mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "num_accepted_draft_tokens"),
    *("num_draft_tokens", "num_spec_steps", "num_spec_tokens", "completion_tokens", "per_step_accepted", "per_step_drafted"),
]


@pytest.fixture
def file(tmp_path):
    def write(*logs):
        path = tmp_path / "run.jsonl"
        with TraceWriter(path) as writer:
            for number, log in enumerate(logs):
                for record in log:
                    writer.write(attrs.evolve(record, session=number))
        return path

    return write


def test_the_figures_are_those_of_the_fold_and_the_total_is_their_sum(file):
    stats = trace_stats(file(*LOGS.values()))
    folded = [fold(log).stats for log in LOGS.values()]
    for session, own in zip(stats.sessions, folded, strict=True):
        for name in ("tokens", "forwards", "drafted", "verified", "accepted", "rejected", "saved_net", "acceptance_rate", "discarded"):
            assert getattr(session.account, name) == getattr(own, name), name
        assert session.account.time_ns["verify"] == own.verify_ns
        histogram = session.account.acceptance_length_histogram
        assert sum(length * count for length, count in histogram.items()) == own.span_tokens
        assert sum(turn.acceptance.completion_tokens for turn in session.turns) == own.tokens
    assert stats.total.tokens == sum(own.tokens for own in folded)
    assert stats.total.accepted_per_depth[0] == sum(own.accepted_per_depth[0] for own in folded if own.accepted_per_depth)
    assert sum(stats.total.discarded.values()) == sum(sum(own.discarded_counts) for own in folded)


def test_the_neutral_record_of_a_turn_by_hand(file):
    """Draft width 3, everything right: a prefill's token, then two spans of four."""
    (session,) = trace_stats(file(LOGS["accepted"])).sessions
    (turn,) = session.turns
    assert list(turn.acceptance.to_json()) == SCHEMA
    assert turn.acceptance.to_json() == {
        "engine": "spanfold/scripted",
        "mean_acceptance_length": 4.0,
        "draft_acceptance_rate": 1.0,
        "acceptance_histogram": {"3": 2},
        "num_accepted_draft_tokens": 6,
        "num_draft_tokens": 6,
        "num_spec_steps": 2,
        "num_spec_tokens": 3,
        "completion_tokens": 9,
        "per_step_accepted": [3, 3],
        "per_step_drafted": [3, 3],
    }
    assert turn.finish == "length" and 0 < turn.first_token_ns <= turn.wall_ns


def test_rates_are_none_where_nothing_was_verified(file):
    """Case 3.6: never a division by nothing, never NaN."""
    stats = trace_stats(file(LOGS["serial"], LOGS["nothing"]))
    for session in stats.sessions:
        (turn,) = session.turns
        assert (turn.acceptance.mean_acceptance_length, turn.acceptance.draft_acceptance_rate) == (None, None)
        assert turn.acceptance.num_spec_steps == 0 and turn.acceptance.per_step_accepted == ()
    assert stats.total.acceptance_rate is None
    assert json.loads(json.dumps(stats.to_json(), allow_nan=False))["total"]["acceptance_rate"] is None
    assert stats.sessions[1].turns[0].first_token_ns is None


@given(worlds())
@settings(max_examples=50)
def test_the_neutral_record_adds_up_with_the_events(tmp_path_factory, world):
    bench = world.bench()
    bench.generate(world.prompt, **world.turn)
    path = tmp_path_factory.mktemp("stats") / "run.jsonl"
    with TraceWriter(path) as writer:
        for record in bench.logs[0]:
            writer.write(record)
    ((turn,),) = [session.turns for session in trace_stats(path).sessions]
    record = turn.acceptance
    spans = bench.of(SpanVerified)
    assert record.per_step_drafted == tuple(span.rows - 1 for span in spans)
    assert record.per_step_accepted == tuple(commit.accepted for commit in bench.of(Committed) if commit.source == "span")
    assert record.num_spec_steps == len(spans) == sum(record.acceptance_histogram.values())
    assert 0 <= record.num_accepted_draft_tokens <= record.num_draft_tokens


def test_a_rewound_turn_ends_again_and_a_broken_off_span_is_no_step(file):
    turns = trace_stats(file(LOGS["turns"])).sessions[0].turns
    file().unlink()
    assert [turn.turn for turn in turns] == [0, 1, 2] and all(turn.finish == "length" for turn in turns)
    resumed = {name: log for name, log in LOGS.items() if name.startswith("resumed")}
    for session in trace_stats(file(*resumed.values())).sessions:
        for turn in session.turns:
            assert len(turn.acceptance.per_step_accepted) == len(turn.acceptance.per_step_drafted)


def test_a_trace_that_does_not_fold_has_no_figures(file):
    log = LOGS["plain"]
    with pytest.raises(TraceError, match=r"record 2 of session 0 does not fold .*: check the trace"):
        trace_stats(file([*log[:2], attrs.evolve(log[3], seq=2)]))
