"""Metrics: fed from the same counts as the spans, also for unsampled turns, with few attributes."""

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from hypothesis import given, settings
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from otel_bench import COMMON, Otel
from worlds import worlds

from spanfold.backends.scripted import Fault, oracle
from spanfold.engine import DecodeFailed
from spanfold.telemetry import names


def total(points):
    return sum(points.values())


def by(points, attribute):
    return {dict(key)[attribute]: value for key, value in points.items()}


@pytest.mark.parametrize("sampler", [None, ALWAYS_OFF], ids=["sampled", "unsampled"])
@given(world=worlds())
@settings(max_examples=30)
def test_case_3_7_metrics_agree_with_the_result(sampler, world):
    otel = Otel(sampler=sampler)
    bench = world.bench(decoder={"observers": [otel.observer("summary")]})
    stats = bench.decoder.generate(world.prompt, **world.turn).stats
    found = otel.metrics()
    wanted = {
        names.M_DRAFTS: stats.spans,
        names.M_OFFERED_TOKENS: stats.drafted,
        names.M_DRAFT_TOKENS: stats.verified,
        names.M_ACCEPTED_TOKENS: stats.accepted,
        names.M_VERIFIED_PER_DEPTH: sum(stats.verified_per_depth),
        names.M_ACCEPTED_PER_DEPTH: sum(stats.accepted_per_depth),
        names.M_DISCARDED_TOKENS: sum(stats.discarded.values()),
        names.M_TOKENS: stats.tokens,
        names.M_FORWARDS: stats.forwards,
        names.M_SAVED: stats.saved_forwards,
        names.M_REPLAYS: stats.replay_forwards,
        names.M_TRIMS: stats.trims,
        names.M_REPLAYED_ROWS: stats.replayed_rows,
        names.M_FAILURES: 0,
        names.M_SESSIONS: 0,
    }
    assert {name: total(found.get(name, {})) for name in wanted} == wanted
    assert by(found.get(names.M_DISCARDED_TOKENS, {}), names.A_REASON) == stats.discarded
    accepted = by(found.get(names.M_ACCEPTED_PER_DEPTH, {}), names.A_DEPTH)
    assert accepted == {depth: count for depth, count in enumerate(stats.accepted_per_depth, 1) if count}
    lengths = found.get(names.M_ACCEPTANCE_LENGTH, {(): (0, 0)})[()]
    assert lengths == (stats.spans, stats.span_tokens)
    assert sum(count for count, _ in found.get(names.M_VERIFY_DURATION, {}).values()) == stats.spans


def test_the_recipes_of_the_reference_give_the_results_figures():
    """docs/reference/telemetry.md: acceptance rate and mean acceptance length from counters."""
    otel = Otel()
    stats = otel.bench("summary").generate(max_tokens=60).stats
    found = {name: total(points) for name, points in otel.metrics().items() if name.startswith("spanfold.draft")}
    assert found[names.M_ACCEPTED_TOKENS] / found[names.M_DRAFT_TOKENS] == pytest.approx(stats.acceptance_rate)
    spans = by(otel.metrics()[names.M_TOKENS], names.A_KIND)["span"]
    assert spans / found[names.M_DRAFTS] == pytest.approx(stats.acceptance_length)


def test_a_long_turn_hands_its_counts_on_while_it_runs():
    otel = Otel()
    session = otel.bench("summary", drafts=oracle()).decoder.open([1, 2, 3], max_tokens=500, ignore_eos=True)
    for _ in range(80):
        session.step()
    during = total(otel.metrics()[names.M_FORWARDS])
    assert 60 <= during <= 80
    list(session)
    session.close()
    assert total(otel.metrics()[names.M_FORWARDS]) == session.stats.forwards


def test_live_sessions_go_up_and_down():
    otel = Otel()
    decoder = otel.bench().decoder
    live = lambda: otel.metrics()[names.M_SESSIONS][()]  # noqa: E731
    first, second = decoder.open([1, 2]), decoder.open([3, 4])
    assert live() == 2
    first.close()
    assert live() == 1
    second.close()
    assert live() == 0


def test_durations_are_seconds_of_turns_that_did_not_fail():
    now = iter(range(0, 10**12, 10**6))
    otel = Otel()
    bench = otel.bench("summary", decoder={"clock": lambda: next(now)})
    bench.generate(max_tokens=10)
    found, turn = otel.metrics(), otel.turn
    assert found[names.M_TIME_TO_FIRST][()] == (1, pytest.approx(turn.attributes[names.TIME_TO_FIRST]))
    count, per_token = found[names.M_TIME_PER_TOKEN][()]
    assert count == 1 and 0 < per_token < (turn.end_time - turn.start_time) / 1e9


def test_failures_are_counted_by_call():
    otel = Otel()
    with pytest.raises(DecodeFailed):
        otel.bench(faults=[Fault(call="forward", at=2, started=True)]).generate(max_tokens=9)
    assert otel.metrics()[names.M_FAILURES] == {((names.FAILED_CALL, "span"),): 1}
    assert names.M_TIME_PER_TOKEN not in otel.metrics()


def test_names_units_and_attributes_are_those_of_the_table():
    otel = Otel()
    bench = otel.bench(faults=[Fault(call="forward", at=9, started=True)])
    with pytest.raises(DecodeFailed):
        bench.generate(max_tokens=90)
    bench.generate(max_tokens=8)
    table = {metric.name: metric for metric in names.METRICS}
    (resource,) = otel.reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == names.SCOPE
    assert {metric.name for metric in scope.metrics} >= {m.name for m in names.METRICS} - {names.M_REPLAYS, names.M_REPLAYED_ROWS}
    for metric in scope.metrics:
        wanted = table[metric.name]
        assert (metric.unit, metric.description) == (wanted.unit, wanted.meaning)
        for point in metric.data.data_points:
            assert set(point.attributes) <= {*COMMON, *wanted.attributes}, "no attribute with many values"
            assert all(type(value) in (str, int) for value in point.attributes.values())
            if wanted.buckets:
                assert tuple(point.explicit_bounds) == wanted.buckets


def test_a_very_wide_policy_makes_no_more_values():
    otel = Otel()
    stats = otel.bench("summary", policy=60, depth=60, drafts=oracle()).generate(max_tokens=400, ignore_eos=True).stats
    assert len(stats.verified_per_depth) == 60
    found = otel.metrics()
    depths = by(found[names.M_ACCEPTED_PER_DEPTH], names.A_DEPTH)
    assert set(depths) == set(range(1, 33)) and sum(depths.values()) == stats.accepted
    rows = by(found[names.M_VERIFY_DURATION], names.ROWS)
    assert max(rows) == 33
