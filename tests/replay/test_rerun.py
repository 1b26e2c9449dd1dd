"""Rerun: the recorded session on a live runtime; the first token that differs, and whether a near tie excuses it."""

import json

import corpus
import pytest
from harness import Bench
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import worlds

from spanfold.backends.scripted import Fault, ScriptedRuntime, hash_target, list_target
from spanfold.engine import Committed, ConfigError, Extras
from spanfold.engine.errors import TraceError
from spanfold.engine.replay import rerun
from spanfold.engine.replay.choices import BOUNDS, bound_for

LOGS = corpus.logs()
TRUTH = list_target((5, 6, 7, 8, 9, 10, 11, 12), prompt=1, vocabulary=16)


def live(log):
    """A runtime with the target that made the log."""
    return Bench(TRUTH if log[0].event.runtime.vocabulary == 16 else None).runtime


@pytest.mark.parametrize("name", LOGS)
def test_every_log_of_the_corpus_comes_out_equal_on_a_runtime_with_its_target(name):
    log = LOGS[name]
    runtime = live(log)
    report = rerun(log, runtime)
    committed = [token for record in log if isinstance(record.event, Committed) for token in record.event.tokens]
    assert (report.verdict, report.status, report.compared, report.difference) == ("equal", "holds", len(committed), None)
    assert runtime.live_sessions == 0 and runtime.live_rows == 0


@given(worlds(), st.integers(0, 5), st.sampled_from(["crop", "checkpoint", "none"]), st.data())
@settings(max_examples=80)
def test_another_head_another_rollback_and_no_head_at_all_change_no_token(world, seed, rollback, data):
    bench = world.bench()
    session = bench.decoder.open(world.prompt, **world.turn)
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(0, 6))):
            session.step()
        length = len(session.state.canonical)
        if length > 1 and data.draw(st.booleans()):
            session.rewind(data.draw(st.integers(1, length - 1)))
        elif length < world.context:
            session.extend((0,), **world.turn)
    corpus.drain(session)
    session.close()
    from spanfold.backends.scripted import noisy

    other = world.bench(rollback=rollback, drafts=noisy(seed, 0.5), head=data.draw(st.booleans()), source="none", policy=0)
    report = rerun(bench.logs[0], other.runtime)
    assert report.verdict == "equal", report.sentence


def target(scores_at):
    """A target of 8 ids whose best token is the length modulo 7, but for the scores given at some lengths."""

    def function(prefix):
        scores = [0.0] * 8
        scores[len(prefix) % 7] = 10.0
        for token, score in scores_at.get(len(prefix), {}).items():
            scores[token] = score
        return scores

    return function


def record(function, margins=True, **options):
    bench = Bench(function, vocabulary=8, decoder={"extras": Extras(margins=margins)})
    bench.generate(max_tokens=12, **options)
    return bench.logs[0]


def test_case_4_1_a_difference_has_its_position_and_margin_and_a_near_tie_is_excused_below_the_bound():
    log = record(target({9: {2: 10.0, 7: 9.8}}))
    flipped = ScriptedRuntime(target({9: {2: 9.9, 7: 10.0}}), vocabulary=8)
    report = rerun(log, flipped, bound=0.25)
    assert (report.verdict, report.status, report.compared) == ("near_tie", "holds", 6)
    found = report.difference
    assert (found.position, found.turn, found.index, found.recorded, found.live) == (9, 0, 6, 2, 7)
    assert found.margin == pytest.approx(0.1) and found.recorded_margin == pytest.approx(0.2)
    assert report.sentence == (
        f"the first difference is at position 9 (record {found.seq}): recorded 2, live 7 "
        "(live margin 0.1, recorded margin 0.2, bound 0.25): a near tie"
    )
    assert rerun(log, flipped, bound=0.15).verdict == "defect"  # the recorded row was surer than that
    assert rerun(log, flipped).verdict == "defect"  # nothing is a tie on the scripted runtime
    assert json.loads(json.dumps(report.to_json()))["difference"]["margin"] == pytest.approx(0.1)


def test_case_4_2_a_margin_of_four_is_a_defect_and_no_tie():
    log = record(target({}))
    report = rerun(log, ScriptedRuntime(target({9: {7: 14.0}}), vocabulary=8), bound=1.0)
    assert (report.verdict, report.status, report.difference.margin) == ("defect", "violated", 4.0)


def test_a_runtime_without_margins_excuses_nothing_by_itself():
    log = record(target({9: {2: 10.0, 7: 9.8}}), margins=False)
    flipped = ScriptedRuntime(target({9: {2: 9.9, 7: 10.0}}), vocabulary=8)
    report = rerun(log, flipped, bound=0.25, margins=False)
    assert report.verdict == "defect" and report.difference.margin is None
    assert "no margin known" in report.sentence


def test_a_token_that_ends_the_live_turn_early_is_the_difference_even_where_the_trace_goes_on():
    log = record(target({}), stop_tokens=[7])
    report = rerun(log, ScriptedRuntime(target({8: {7: 11.0}}), vocabulary=8))
    assert (report.difference.position, report.difference.recorded, report.difference.live) == (8, 1, 7)


def test_the_bounds_are_the_measured_ones_of_the_page_on_numerics():
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "explanation" / "numerics.md").read_text(encoding="utf-8")
    for (backend, dtype), bound in BOUNDS.items():
        if backend == "torch":
            row = next(line for line in page.splitlines() if line.startswith(f"| {dtype} |"))
            assert float(row.split("|")[-2]) == bound
    with pytest.raises(ConfigError, match="bound"):
        bound_for((), -1.0)


def test_a_runtime_that_cannot_hold_the_session_is_refused_before_it_is_touched():
    log = LOGS["plain"]
    with pytest.raises(ConfigError, match=r"vocabulary of 17 ids, scripted has 5"):
        rerun(log, ScriptedRuntime(hash_target(3, 5), vocabulary=5))
    with pytest.raises(ConfigError, match="holds 12 tokens, the context of scripted only 8"):
        rerun(log, ScriptedRuntime(hash_target(3, 17), vocabulary=17, context_length=8))
    with pytest.raises(TraceError, match="empty"):
        rerun([], live(log))


def test_a_longer_context_of_the_live_runtime_does_not_lengthen_a_turn_that_ended_with_its_context():
    bench = Bench(context_length=9)
    bench.generate(max_tokens=None)
    report = rerun(bench.logs[0], Bench(context_length=64).runtime)
    assert (report.verdict, report.compared) == ("equal", 6)


def test_a_live_runtime_that_fails_is_told_and_is_no_difference():
    report = rerun(LOGS["plain"], Bench(faults=[Fault(call="forward", at=1, started=True)]).runtime)
    assert (report.verdict, report.status, report.difference) == ("failed", "unusable", None)
    assert "DeviceError" in report.sentence


def test_what_the_live_runtime_cannot_do_is_noted():
    assert rerun(LOGS["plain"], Bench(head=False, source="none", policy=0).runtime).notes == (
        "scripted has no draft source mtp: decoded serially",
    )
    assert "at most 2 tokens" in rerun(LOGS["plain"], Bench(depth=2, policy=2).runtime).notes[0]
    assert rerun(LOGS["plain"], live(LOGS["plain"])).notes == ()
