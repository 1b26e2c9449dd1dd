"""The adaptive width: what it guarantees under a grid of costs and acceptance ratios, and what its estimates do."""

import json
from itertools import pairwise

import attrs
import pytest
from adaptive_worlds import Model, simulate

from spanfold.backends.scripted import Costs, ScriptedRuntime, constant, hash_target, noisy, oracle, short
from spanfold.engine import (
    ConfigError,
    Decoder,
    DraftOffered,
    IllegalEvent,
    Policy,
    ReplayDiverged,
    SerialDecoded,
    SessionOpened,
    SpanRefused,
    fold,
    redrive,
)
from spanfold.engine.adaptive import DEBT_DOUBTED, after_serial, after_span, carried, first_pace
from spanfold.engine.estimates import ONE
from spanfold.engine.reducer import reduce
from spanfold.engine.replay.laws import law_violations
from spanfold.engine.replay.rounds import RoundCounter
from spanfold.engine.trace.codec import record_from_dict, record_to_dict

MODELS = (
    Model(0.02, 0.05),
    Model(0.05, 0.1),
    Model(0.05, 0.1, 0.3),  # a span costs something as such: other kernels
    Model(0.1, 0.2, 0.2),
    Model(0.3, 0.3),
    Model(1.0, 1.0),  # every row costs as much as a forward: nothing can pay
)
STEADY = (0.0, 0.3, 0.5, 0.7, 0.9)
CHANGING = ((0.3, 0.8, 8), (0.9, 0.0, 2), (0.0, 0.9, 2), (0.8, 0.3, 4))
TOKENS = 2048


def always(chance):
    return lambda at, depth: chance


def turning(before, after, at):
    return lambda index, depth: before if index < at else after


def steady_or_changing():
    for chance in STEADY:
        yield f"{chance}", always(chance)
    for before, after, part in CHANGING:
        yield f"{before} to {after} after 1/{part}", turning(before, after, TOKENS // part)


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize(("name", "acceptance"), list(steady_or_changing()))
def test_no_stretch_is_slow_probes_are_rare_and_the_whole_is_near_the_best_fixed_width(name, acceptance, model):
    runs = [simulate(model, acceptance, tokens=TOKENS, seed=seed) for seed in (1, 2)]
    for out in runs:
        assert out.window <= 1.05
        assert out.probes <= 0.02
    best, width = min((sum(out.fixed[width] for out in runs), width) for width in runs[0].fixed)
    assert best >= 0.95 * sum(out.spent for out in runs), f"the best fixed width is {width}"


@pytest.mark.parametrize("model", MODELS[:5], ids=str)
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9])
def test_costs_that_vary_by_a_tenth_and_are_wild_at_times_change_little(chance, model):
    out = simulate(model, always(chance), tokens=TOKENS, seed=2, noise=0.1)
    assert out.window <= 1.07
    assert out.probes <= 0.02
    assert out.speed >= 0.9, f"the best fixed width is {out.best}"


ORDINARY = (0.76, 0.6, 0.5)


def text(*sessions):
    """Chances by depth for each session in turn: another prompt is another text. The sessions' indices lie 200 apart."""

    def acceptance(at, depth):
        chances = sessions[min(at // 200, 7) % len(sessions)]
        return chances[min(depth, len(chances) - 1)]

    return acceptance


def cold(forward):
    return 2.2 if forward < 14 else 1


def by_turns(forward):
    return 1 + forward // 150 % 2


@pytest.mark.parametrize("model", [Model(0.02, 0.12, 0.25), Model(0.05, 0.1), Model(0.02, 0.05, 0.5)], ids=str)
@pytest.mark.parametrize("pace", [lambda forward: 1, cold, by_turns], ids=["even", "cold at first", "twice as slow by turns"])
@pytest.mark.parametrize("sessions", [(ORDINARY,), ((1.0,), ORDINARY, ORDINARY)], ids=["ordinary", "one of three repeats itself"])
def test_what_was_measured_in_a_slower_time_or_accepted_in_another_text_does_not_hold_it_back(sessions, pace, model):
    """Seen on a real model: costs of the first slow rounds and the chances of a text that repeats itself ended all drafting."""
    runs = [simulate(model, text(*sessions), tokens=768, seed=seed, noise=0.1, sessions=8, pace=pace) for seed in (1, 2, 3)]
    assert min(sum(out.fixed[width] for out in runs) for width in runs[0].fixed) >= 0.94 * sum(out.spent for out in runs)


def test_short_sessions_of_one_decoder_learn_as_one_long_session():
    short = simulate(Model(0.05, 0.1), always(0.8), tokens=1920, seed=3, sessions=30)
    priors = [record.event.prior for record in short.records if isinstance(record.event, SessionOpened)]
    assert priors[0] is None and all(prior is not None for prior in priors[1:])
    assert short.speed >= 0.95
    dull = simulate(Model(0.3, 0.3), always(0.0), tokens=1920, seed=3, sessions=30)
    assert dull.probes <= 0.02 and dull.speed >= 0.95


def test_a_log_with_a_prior_is_decided_the_same_from_itself_alone():
    out = simulate(Model(0.1, 0.2, 0.2), turning(0.9, 0.1, 200), tokens=600, seed=4, noise=0.2, sessions=3)
    for session in range(3):
        log = [record for record in out.records if record.session == session]
        assert redrive(log) == log
        assert not law_violations(log)
    forgotten = [
        attrs.evolve(record, event=attrs.evolve(record.event, prior=None)) if isinstance(record.event, SessionOpened) else record
        for record in log
    ]
    with pytest.raises(ReplayDiverged):
        redrive(forgotten)  # what was known decided something


@pytest.mark.parametrize("most", [1, 8, 64])
def test_a_prior_can_be_recorded_at_any_moment(most):
    """A trace holds integers below 2**53. The counts of wide drafts are packed into larger ones, so they may not be carried on."""
    opened = decoded(oracle(), tokens=2)[0]
    pace, widest = first_pace(most), 0
    for forwards in range(1, 300):
        if pace.width:
            width = widest = max(pace.width, widest)
            pace = after_span(pace, pace.width, pace.width, False, pace.width + 1, 1000 + width, forwards, pace.draft_ns + 10 * width)
        else:
            pace = after_serial(pace, 100_000, forwards, pace.draft_ns)
        prior = carried(pace, forwards)
        record = attrs.evolve(opened, event=attrs.evolve(opened.event, policy=Policy(kind="auto", width=most), prior=prior))
        assert record_from_dict(json.loads(json.dumps(record_to_dict(record)))) == record
        assert prior.chosen == pace.chosen and prior.accepted == prior.judged == prior.rounds == 0
    assert widest > most * 3 // 4


def test_a_session_that_learned_nothing_takes_nothing_away():
    """One that is opened and closed again, or resumed, must not make the next one begin anew; nor one of another width."""
    runtime = ScriptedRuntime(hash_target(1, 100), drafts=oracle(), costs=Costs(forward=1000, row=20, step=50))
    records = []
    with Decoder(runtime, observers=[records.append], clock=runtime.clock) as decoder:
        idle = decoder.open((1, 2), max_tokens=5)
        decoder.generate((1, 2, 3), max_tokens=200)
        idle.close()
        decoder.generate((1, 2), policy=Policy(kind="auto", width=2), max_tokens=9)
        decoder.generate((1, 2, 3), max_tokens=9)
    priors = [record.event.prior for record in records if isinstance(record.event, SessionOpened)]
    assert priors[:3] == [None, None, None]  # nobody knew anything of a widest draft of two
    assert priors[3] is not None and priors[3].most == 8 and priors[3].known > 20


def test_a_prior_whose_costs_cannot_be_is_refused():
    """Once a division by zero in `check`."""
    with pytest.raises(ConfigError, match=r"Pace\.costs must be above 0 where Pace\.samples is"):
        attrs.evolve(first_pace(2), samples=(16, 0, 0), debt=10)


def test_costs_of_any_size_stay_integers_of_a_trace():
    opened = decoded(oracle(), tokens=2)[0]
    pace = first_pace(2)
    for forwards in range(1, 60):
        cost = 1 << 60
        if pace.width:
            pace = after_span(pace, pace.width, 0, True, 1, cost, forwards, pace.draft_ns + cost)
        else:
            pace = after_serial(pace, cost, forwards, pace.draft_ns)
        event = attrs.evolve(opened.event, policy=Policy(kind="auto", width=2), prior=carried(pace, forwards))
        record = attrs.evolve(opened, event=event)
        assert record_from_dict(json.loads(json.dumps(record_to_dict(record)))) == record


@pytest.mark.parametrize("name", ["draft_ns", "rounds", "spent", "accepted", "judged"])
def test_a_prior_that_still_collects_is_refused(name):
    """Such a trace was tampered with: its counts have no meaning, and once led to an index that does not exist."""
    opened = decoded(oracle(), tokens=2)[0]
    prior = attrs.evolve(first_pace(8), **{name: 5})
    with pytest.raises(IllegalEvent, match=f"prior.{name}"):
        fold([attrs.evolve(opened, event=attrs.evolve(opened.event, prior=prior))])


def decoded(drafts, tokens=400, **costs):
    runtime = ScriptedRuntime(hash_target(1, 100), drafts=drafts, costs=Costs(**costs))
    records = []
    with Decoder(runtime, observers=[records.append], clock=runtime.clock) as decoder:
        decoder.generate((1, 2, 3), max_tokens=tokens)
    return records


def test_the_events_tell_why_rounds_are_serial_and_which_drafts_are_probes():
    records = decoded(constant(0), forward=100_000, step=50_000)
    reasons = [record.event.reason for record in records if isinstance(record.event, SpanRefused)]
    assert reasons[:3] == ["measuring", "not_paying", "cool_down"] or reasons[:4] == ["measuring", "measuring", "not_paying", "cool_down"]
    probes = [record.event for record in records if isinstance(record.event, DraftOffered) and record.event.probe]
    counter = RoundCounter()
    for record in records:
        counter.feed(record.event)
    figures = counter.figures()
    assert figures.probes == len(probes) > 0
    assert set(figures.refusals) >= {"measuring", "not_paying", "cool_down"}
    assert sum(figures.refusals.values()) == sum(isinstance(record.event, SerialDecoded) for record in records)
    assert 50 * len(probes) <= fold(records).stats.forwards


def vain(offers, ask_ns, policy, forward=100_000, tokens=2000):
    """A decode in which drafting comes to no span, after spans as many as ``offers`` says; its records and its time in serial steps."""
    asked = []

    def draft(head, limit):
        asked.append(limit)
        if len(asked) > offers:
            return []
        state = head.target.advance(head.hidden, head.current)
        return [(head.target.choose(state, ()) + 1) % head.vocabulary]

    runtime = ScriptedRuntime(hash_target(1, 100), drafts=draft, costs=Costs(forward=forward, row=0, step=0, draft=ask_ns))
    records = []
    with Decoder(runtime, observers=[records.append], clock=runtime.clock, policy=policy) as decoder:
        decoder.generate((1, 2, 3), max_tokens=tokens)
    spent = sum(getattr(record.event, "cost_ns", 0) or 0 for record in records)
    return records, spent / (forward * tokens)


@pytest.mark.parametrize("offers", [0, 3, 40])
@pytest.mark.parametrize("ask_ns", [10_000, 200_000, 2_000_000])
def test_a_source_that_takes_time_and_offers_nothing_is_asked_no_more(offers, ask_ns):
    """Its asks are lost time as spans are, and probes that come to no span are probes too."""
    records, spent = vain(offers, ask_ns, Policy(kind="auto", width=4))
    offered = [record.event for record in records if isinstance(record.event, DraftOffered)]
    forwards = fold(records).stats.forwards
    assert 50 * sum(event.probe for event in offered) <= forwards
    ordinary = sum(not event.probe for event in offered)
    assert ordinary <= offers + 5 + DEBT_DOUBTED * 100_000 // ask_ns
    assert spent <= 1.05 + 12 * max(ask_ns, 100_000) / (100_000 * forwards) + ask_ns / 100_000 / 50
    assert redrive(records) == records and not law_violations(records)
    counter = RoundCounter()
    for record in records:
        counter.feed(record.event)
    assert counter.figures().probes == sum(event.probe for event in offered)


def test_drafts_too_short_for_min_draft_are_asked_for_no_more():
    runtime = ScriptedRuntime(hash_target(1, 100), drafts=short(1), costs=Costs(forward=100_000, row=1000, step=50_000))
    records = []
    with Decoder(runtime, observers=[records.append], clock=runtime.clock, policy=Policy(kind="auto", width=8, min_draft=2)) as decoder:
        decoder.generate((1, 2, 3), max_tokens=1000)
    offered = [record.event for record in records if isinstance(record.event, DraftOffered)]
    assert len(offered) <= 40


def test_the_wait_between_probes_grows_while_they_fail():
    records = decoded(constant(0), tokens=3000, forward=100_000, row=20_000, step=50_000)
    places = [record.event.at for record in records if isinstance(record.event, DraftOffered) and record.event.probe]
    waits = [later - earlier for earlier, later in pairwise(places)]
    assert min(waits) >= 50 and max(waits) >= 1.9 * waits[0]


def test_where_nothing_costs_anything_the_widest_draft_is_found():
    records = decoded(oracle())
    assert {record.event.limit for record in records[40:] if isinstance(record.event, DraftOffered)} >= {8}


def test_one_wild_round_stops_nothing():
    pace = first_pace(8)
    pace = after_serial(pace, 100, 1, 0)
    for forward in range(2, 60):
        cost = 13_000 if forward == 40 else 130
        width = pace.width
        pace = after_span(pace, width, width, False, width + 1, cost, forward, 0) if width else after_serial(pace, 100, forward, 0)
        assert not pace.off
    assert pace.chosen == 8 and max(pace.costs) < 150


@pytest.mark.parametrize("first", [100, 10_000])
def test_a_slow_first_round_of_a_kind_does_not_count(first):
    pace = after_serial(first_pace(4), first, 1, 0)
    pace = after_span(pace, 2, 1, True, 2, 13_000, 2, 0)
    pace = after_span(pace, 2, 1, True, 2, 130, 3, 0)
    assert pace.costs[2] == 130 and pace.serial == min(first, 130) and not pace.off


def test_a_commit_that_was_cut_short_is_no_rejection():
    pace = after_serial(first_pace(4), 100, 1, 0)
    cut = after_span(pace, 2, 0, False, 0, 130, 2, 0)  # cancelled before its first token
    assert cut.seen == pace.seen and cut.debt == pace.debt
    stopped = after_span(pace, 2, 1, False, 1, 130, 2, 0)
    assert stopped.seen == (1, 0, 0, 0) and stopped.chances[0] > ONE * 3 // 4
    rejected = after_span(pace, 2, 1, True, 2, 130, 2, 0)
    assert rejected.seen == (1, 1, 0, 0) and rejected.chances[1] < rejected.chances[0]


def test_a_draft_wider_than_the_policy_asks_for_or_a_wrong_probe_is_refused():
    records = decoded(noisy(1, 0.8), tokens=60, forward=90_000, row=10_000, step=10_000)
    at = next(at for at, record in enumerate(records) if isinstance(record.event, DraftOffered))
    state = fold(records[:at])
    for changes in ({"limit": 3}, {"probe": True}):
        with pytest.raises(IllegalEvent, match="not what the policy asks for"):
            reduce(state, attrs.evolve(records[at].event, **changes))


def test_a_prior_and_a_policy_must_fit():
    opened = decoded(oracle(), tokens=2)[0].event
    from spanfold.engine import NEW

    assert reduce(NEW, opened).pace == first_pace(8)
    for changes, problem in (
        ({"rules": 1}, "the policy 'auto' of rules version 1 is not known"),
        ({"rules": 2}, "the policy 'auto' of rules version 2 is not known"),
        ({"prior": first_pace(4)}, "prior.most"),
        ({"policy": Policy(width=3), "prior": first_pace(3)}, "a prior is for"),
    ):
        with pytest.raises(IllegalEvent, match=problem):
            reduce(NEW, attrs.evolve(opened, **changes))


def test_unusable_policies_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"Policy\.width must be from 1 to 64 for kind 'auto', not 0"):
        Policy(kind="auto", width=0)
    with pytest.raises(ConfigError, match=r"Policy\.kind must be one of fixed, auto"):
        Policy(kind="wide")
    with pytest.raises(ConfigError, match="policy must be 'auto', a number of tokens"):
        Decoder(ScriptedRuntime(hash_target()), policy="automatic")

    class Array:  # as numpy's: comparing gives an array, which has no truth value
        def __eq__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None

    with pytest.raises(ConfigError, match="policy must be 'auto'"):
        Decoder(ScriptedRuntime(hash_target()), policy=Array())


@pytest.mark.parametrize(
    "changes",
    [
        {"costs": (1, 2)},
        {"seen": (0,)},
        {"chosen": 5},
        {"width": 5},
        {"chances": (ONE + 1, 0, 0, 0)},
        {"fails": 9},
        {"off": True, "width": 1},
        {"reason": "tired"},
    ],
)
def test_a_pace_that_cannot_be_is_refused(changes):
    with pytest.raises(ConfigError, match="Pace"):
        attrs.evolve(first_pace(4), **changes)
