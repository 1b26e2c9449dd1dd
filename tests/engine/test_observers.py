"""Observers of one session: each is told apart, may rest until the next turn, and is never felt by the decode."""

import pytest
from harness import Bench

from spanfold.engine import NEW, REST, ConfigError, Decoder, Extended, SessionOpened, SessionResumed


class PerSession:
    """Keeps the records of every session in a list of its own."""

    def __init__(self):
        self.seen = []

    def watch(self, state):
        mine = []
        self.seen.append((state, mine))
        return mine.append


def kinds(records):
    return [type(record.event).__name__ for record in records]


def test_each_session_is_observed_by_an_observer_of_its_own_also_across_runtimes():
    both = PerSession()
    for _ in range(2):
        Bench(decoder={"observers": [both]}).generate(max_tokens=4)
    assert [state for state, _ in both.seen] == [NEW, NEW]
    assert [{record.session for record in records} for _, records in both.seen] == [{0}, {0}], "two runtimes count from 0 alike"
    assert [kinds(records)[0] for _, records in both.seen] == ["SessionOpened"] * 2


def test_a_resumed_session_is_observed_from_the_state_that_its_log_folds_to():
    bench = Bench()
    bench.generate(max_tokens=6)
    log = bench.logs[0][:-2]  # neither finished nor dropped
    observer = PerSession()
    with Decoder(bench.runtime, policy=3, observers=[observer]) as decoder, decoder.resume(log):
        pass
    ((state, records),) = observer.seen
    assert state.stats.tokens > 0 and isinstance(records[0].event, SessionResumed)


@pytest.mark.parametrize("others", [0, 1])
def test_an_observer_that_rests_is_told_nothing_until_the_next_turn(others):
    told, all_told = [], []

    def resting(record):
        told.append(record)
        return REST

    observers = [resting, *[all_told.append] * others]
    runtime = Bench().runtime
    with Decoder(runtime, policy=3, observers=observers) as decoder, decoder.open([1, 2], max_tokens=4) as session:
        list(session)
        session.extend([3], max_tokens=4)
        list(session)
    events = [type(record.event) for record in told]
    assert events[0] is SessionOpened
    assert len(told) == 2 and events[1] is Extended
    assert [record.seq for record in all_told] == list(range(len(all_told))), "those that do not rest miss nothing"
    assert told[1].seq > 1, "the records are numbered as if everybody had been told"


def test_case_8_10_resting_and_watching_observers_change_no_record():
    plain = Bench()
    plain.generate(max_tokens=12)
    watched = Bench(decoder={"observers": [PerSession(), lambda record: REST]})
    watched.generate(max_tokens=12)
    assert plain.logs == watched.logs


def test_an_observer_that_cannot_watch_is_counted_and_missed_in_that_session_only(caplog):
    class Broken:
        def watch(self, state):
            raise RuntimeError("not today")

    bench = Bench(decoder={"observers": [Broken()]})
    result = bench.generate(max_tokens=4)
    assert len(result.tokens) == 4
    assert bench.decoder.observers.errors == [0, 1]
    assert "not today" in caplog.text


def test_what_is_no_observer_is_refused():
    with pytest.raises(ConfigError, match="watch"):
        Decoder(Bench().runtime, observers=[object()])  # type: ignore[list-item]
