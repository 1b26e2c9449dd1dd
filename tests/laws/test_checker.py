"""The law checker can fail: every law, broken on purpose in a true log, is reported by its name and at the right record."""

import attrs
import corpus
import laws
import pytest
from corpus import renumbered

from spanfold.engine import CheckpointRetired, Committed, DraftDiscarded, DraftTaken, SerialDecoded, SessionFinished, SpanVerified, Trimmed

LOGS = corpus.logs()


def events_of(name):
    return [record.event for record in LOGS[name]]


def find(events, kind, nth=0):
    return [at for at, event in enumerate(events) if isinstance(event, kind)][nth]


def changed(name, kind, nth=0, **fields):
    events = events_of(name)
    at = find(events, kind, nth)
    events[at] = attrs.evolve(events[at], **fields)
    return events, at


def without(name, kind, nth=0):
    events = events_of(name)
    at = find(events, kind, nth)
    return events[:at] + events[at + 1 :], at


@pytest.mark.parametrize("name", LOGS)
def test_a_true_log_has_no_violation(name):
    assert laws.violations(LOGS[name]) == []


@pytest.mark.parametrize(
    ("law", "tampered"),
    [
        ("law 1", changed("rejected", Trimmed, to=4, observed=3)),
        ("law 1", changed("plain", SpanVerified, base=4)),
        ("law 1", changed("serial", SerialDecoded, observed=5)),
        ("law 1", changed("plain", Committed, nth=1, position=9)),
        ("law 2", changed("rejected", Trimmed, observed=5)),
        ("law 2", changed("plain", SpanVerified, rows=3)),
        ("law 2", changed("accepted", CheckpointRetired, base=0)),
        ("law 2", without("rejected", Trimmed)),
        ("law 2", without("accepted", CheckpointRetired)),
        ("law 2", without("forward 1 crash", Trimmed)),
        ("law 3", changed("plain", Committed, tokens=(0,))),
        ("law 3", changed("plain", Committed, nth=1, accepted=0)),
        ("law 3", changed("plain", SpanVerified, matched=0)),
        ("law 3", changed("stop draft", Committed, nth=1, cut_by="none")),
        ("law 3", changed("plain", Committed, cut_by="stop_token")),
        ("law 3", changed("stop draft", SessionFinished, reason="cancelled")),
        ("law 3", changed("plain", SessionFinished, limit="context")),
        ("law 3", without("plain", Committed)),
        ("law 4", without("rejected", DraftDiscarded)),
        ("law 4", changed("rejected", DraftDiscarded, count=1)),
        ("law 4", changed("plain", DraftTaken, tokens=(1,))),
        ("law 4", changed("refused twice", SerialDecoded, verdict="none")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_breach_is_reported_under_its_law_at_its_record_or_soon_after(law, tampered):
    events, at = tampered
    found = laws.violations(renumbered(events))
    assert law in {violation.law for violation in found}, found
    assert at <= min(violation.seq for violation in found) <= at + 4


def test_gaps_in_the_numbering_and_foreign_records_are_reported():
    log = LOGS["plain"]
    assert laws.violations([log[0], log[2]])[0].law == "numbering"
    foreign = attrs.evolve(log[1], session=9)
    assert laws.violations([log[0], foreign])[0].law == "numbering"


def test_wrong_statistics_are_reported_by_name():
    from spanfold.engine import fold

    stats = fold(LOGS["plain"]).stats
    for name in ("tokens", "spans", "accepted", "rejected", "saved_forwards", "trims", "verify_ns"):
        wrong = attrs.evolve(stats, **{name: getattr(stats, name) + 1})
        assert name in {difference[0] for difference in laws.account_differences(LOGS["plain"], wrong)}
