"""Whatever is in a file or a log, a report comes of it: never another exception, never a claim that it holds what it cannot hold."""

import random

import attrs
import corpus
import pytest
from event_strategies import events
from hypothesis import given, settings
from hypothesis import strategies as st

from spanfold.engine import Record
from spanfold.engine.errors import TraceError
from spanfold.engine.replay import Replayer, check, check_records, trace_stats
from spanfold.engine.trace import TraceWriter

LOGS = corpus.logs()


def judged(path):
    """(check's status, the replay's outcomes); figures are made or refused with an error of the trace."""
    try:
        trace_stats(path)
    except TraceError:
        pass
    return check(path).status, {result.outcome for result in Replayer(fail_fast=False).replay_file(path)}


@pytest.mark.parametrize("seed", range(150))
def test_a_file_with_damaged_bytes(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as writer:
        for number, name in enumerate(rng.sample(sorted(LOGS), 2)):
            for record in LOGS[name]:
                writer.write(attrs.evolve(record, session=number))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[at] = rng.randrange(256)
            case 1:
                del content[at : at + rng.randrange(1, 400)]
            case 2:
                content[at:at] = content[rng.randrange(len(content)) :][: rng.randrange(1, 400)]
            case _:
                content[at] = rng.choice(b'0123456789{}[]",:\n')
    intact = bytes(content) == path.read_bytes()
    path.write_bytes(content)
    status, outcomes = judged(path)
    assert status in ("holds", "violated", "unusable")
    assert intact or status != "holds" or check(path).files[0].segments[-1].digest != "closed" or outcomes == {"equal"}


@given(st.lists(events, min_size=1, max_size=8), st.sampled_from(sorted(LOGS)), st.data())
@settings(max_examples=200)
def test_any_events_in_any_order_behind_a_true_beginning(drawn, name, data):
    log = LOGS[name]
    begun = log[: data.draw(st.integers(0, len(log)))]
    records = [*begun, *(Record(seq=len(begun) + at, session=0, event=event) for at, event in enumerate(drawn))]
    (found,) = check_records(attrs.evolve(record, session=0) for record in records)
    assert found.records == len(records)
    assert Replayer(fail_fast=False).replay(records).outcome in ("equal", "diverged", "unknown_rules")


@given(st.data())
@settings(max_examples=200)
def test_records_of_true_logs_shuffled_doubled_and_mixed(data):
    pool = [record.event for name in data.draw(st.lists(st.sampled_from(sorted(LOGS)), min_size=1, max_size=3)) for record in LOGS[name]]
    chosen = data.draw(st.lists(st.sampled_from(range(len(pool))), min_size=1, max_size=30))
    records = [Record(seq=at, session=0, event=pool[index]) for at, index in enumerate(chosen)]
    check_records(records)
    replay = Replayer(fail_fast=False).replay(records)
    if replay.equal:
        assert check_records(records)[0].status == "holds", "what the round decides keeps the laws"
