"""Two logs of one prompt: the first difference of tokens and of events, and both accounts."""

import json

import attrs
import corpus
import pytest
from harness import Bench
from hypothesis import given, settings
from worlds import worlds

from spanfold.backends.scripted import adversarial, oracle
from spanfold.engine import Committed, DraftOffered, Extras, Policy
from spanfold.engine.errors import TraceError
from spanfold.engine.replay import diff

LOGS = corpus.logs()


@pytest.mark.parametrize("name", LOGS)
def test_a_log_does_not_differ_from_itself_whatever_the_costs(name):
    again = [attrs.evolve(record, at_ns=record.at_ns + 5) for record in LOGS[name]]
    report = diff(LOGS[name], again)
    assert (report.status, report.verdict, report.tokens, report.events, report.settings) == ("holds", "equal", None, None, ())
    assert report.a == report.b


@given(worlds())
@settings(max_examples=60)
def test_policies_part_in_events_and_never_in_tokens(world):
    """Law 6, by the trace tools."""
    one, other = world.bench(), world.bench(policy=Policy(width=0))
    for bench in (one, other):
        bench.generate(world.prompt, **world.turn)
    report = diff(one.logs[0], other.logs[0])
    assert (report.status, report.tokens) == ("holds", None)
    assert report.a.account.tokens == report.b.account.tokens
    assert report.b.account.spans == 0


def test_settings_are_told_apart_from_decisions():
    one, other = Bench(drafts=oracle()), Bench(drafts=adversarial(), rollback="checkpoint", policy=2)
    for bench in (one, other):
        bench.generate(max_tokens=9)
    report = diff(one.logs[0], other.logs[0])
    assert {setting.name: (setting.a, setting.b) for setting in report.settings} == {
        "policy.width": (3, 2),
        "runtime.rollback": ("crop", "checkpoint"),
    }
    assert report.verdict == "equal"
    assert report.events.seq > 0 and isinstance(report.events.a, DraftOffered) and isinstance(report.events.b, DraftOffered)
    assert report.a.account.saved_net > report.b.account.saved_net
    assert json.loads(json.dumps(report.to_json()))["events"]["a"]["type"] == "DraftOffered"


def scored(length, scores):
    def function(prefix):
        made = [0.0] * 8
        made[len(prefix) % 7] = 10.0
        if len(prefix) == length:
            for token, score in scores.items():
                made[token] = score
        return made

    return function


def logged(function, prompt=(1, 2, 3), **options):
    bench = Bench(function, vocabulary=8, decoder={"extras": Extras(margins=True)})
    bench.generate(prompt, **{"max_tokens": 12, **options})
    return bench.logs[0]


def test_the_first_differing_token_has_its_position_both_margins_and_a_verdict():
    one, other = logged(scored(9, {7: 9.8})), logged(scored(9, {7: 10.1}))
    report = diff(one, other, bound=0.25)
    found = report.tokens
    assert (found.position, found.a, found.b, found.given) == (9, 2, 7, False)
    assert found.margin_a == pytest.approx(0.2) and found.margin_b == pytest.approx(0.1)
    assert isinstance(one[found.seq_a].event, Committed) and isinstance(other[found.seq_b].event, Committed)
    assert (report.verdict, report.status) == ("near_tie", "holds")
    assert report.sentence == "the tokens differ first at position 9: 2 and 7 (margin 0.2 and 0.1, bound 0.25): a near tie"
    strict = diff(one, other)
    assert (strict.verdict, strict.status, strict.bound) == ("defect", "violated", 0.0)


def test_a_run_that_ends_sooner_and_one_of_another_prompt():
    whole, short = logged(scored(0, {})), logged(scored(0, {}), max_tokens=5)
    report = diff(whole, short)
    assert (report.tokens.position, report.tokens.b, report.status) == (8, None, "violated")
    report = diff(whole, logged(scored(0, {}), prompt=(1, 4, 3)))
    assert (report.tokens.position, report.tokens.given) == (1, True)
    assert "not of one input" in report.sentence


def test_equal_tokens_with_other_reasons_to_finish_differ():
    report = diff(logged(scored(0, {}), max_tokens=5), logged(scored(0, {}), stop_tokens=[0]))
    assert report.tokens is None and report.verdict == "defect"
    assert report.sentence == "the tokens are equal, the reasons to finish are not: length and stop_token"


def test_a_rewind_in_one_of_them_is_found_where_it_was():
    report = diff(LOGS["turns"], LOGS["plain"])
    assert report.status == "violated" and report.tokens.a is not None and report.tokens.b is None


def test_what_cannot_be_compared_is_said():
    with pytest.raises(TraceError, match="the second log is empty"):
        diff(LOGS["plain"], [])
    with pytest.raises(TraceError, match="the first log does not fold at record 3"):
        diff([*LOGS["plain"][:2], LOGS["plain"][3]], LOGS["plain"])
