"""The law checker of spanfold.engine.replay, in the form that the tests use: whole logs, lists of what was found."""

from spanfold.engine import events as ev
from spanfold.engine.replay.laws import LawChecker, law_violations


class Checker(LawChecker):
    """Keeps what it found."""

    def __init__(self):
        super().__init__()
        self.found = []

    def read(self, record):
        self.found += self.feed(record)


def read(records):
    """A checker that has read all records."""
    checker = Checker()
    for record in records:
        checker.read(record)
    return checker


def violations(records):
    """Every breach of laws 1 to 5 in the records of one session."""
    return list(law_violations(records))


def differences(checker, stats):
    """Where the engine's statistics differ from the tallies of the raw events: (name, engine's, tallied)."""
    return checker.tally.differences(stats)


def account_differences(records, stats):
    """The same, from the records."""
    return differences(read(records), stats)


def committed_tokens(records):
    """All tokens ever committed, in order."""
    return [token for record in records if isinstance(record.event, ev.Committed) for token in record.event.tokens]
