"""Redrive: every log comes out as recorded, and a first divergence is told with both sides."""

import json

import attrs
import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import worlds

from spanfold.backends.scripted import Fault
from spanfold.engine import (
    Committed,
    ConfigError,
    DecodeFailed,
    DraftOffered,
    DraftTaken,
    ReplayDiverged,
    SessionOpened,
    SpanVerified,
    UnknownRules,
    redrive,
)
from spanfold.engine.errors import TraceError
from spanfold.engine.redrive import Redriver
from spanfold.engine.replay import Replayer
from spanfold.engine.trace import TraceWriter

LOGS = corpus.logs()


def written(path, *logs):
    with TraceWriter(path) as writer:
        for number, log in enumerate(logs):
            for record in log:
                writer.write(attrs.evolve(record, session=number))
    return path


def changed(log, kind, nth=0, **fields):
    at = [index for index, record in enumerate(log) if isinstance(record.event, kind)][nth]
    return [*log[:at], attrs.evolve(log[at], event=attrs.evolve(log[at].event, **fields)), *log[at + 1 :]], at


@pytest.mark.parametrize("name", LOGS)
def test_every_log_of_the_corpus_comes_out_as_recorded_cut_anywhere(name):
    log = LOGS[name]
    for cut in range(1, len(log) + 1):
        result = Replayer().replay(log[:cut])
        assert (result.outcome, result.records) == ("equal", cut)


@given(worlds(), st.data())
@settings(max_examples=150)
def test_every_log_of_a_drawn_world_comes_out_as_recorded(world, data):
    """Law 7: over turns, rewinds, cancels and one failure at any call, through a file and in memory."""
    fault = Fault(
        call=data.draw(st.sampled_from(["open", "forward", "settle", "draft", "configure", "drop"])),
        at=data.draw(st.integers(0, 6)),
        started=data.draw(st.booleans()),
        done=data.draw(st.sampled_from([0, 1, None])),
    )
    polls = data.draw(st.one_of(st.none(), st.integers(0, 25)))
    left = iter(range(polls)) if polls is not None else None
    cancel = None if left is None else lambda: next(left, None) is None
    index = data.draw(st.one_of(st.none(), st.integers(0, 8)))
    stop_when = None if index is None else lambda token, at: at == index
    bench = world.bench(faults=[fault])
    try:
        session = bench.decoder.open(world.prompt, cancel=cancel, stop_when=stop_when, **world.turn)
    except DecodeFailed:
        session = None
    for _ in range(data.draw(st.integers(1, 3)) if session is not None else 0):
        corpus.drain(session)
        if session.state.phase == "dropped":
            break
        try:
            length = len(session.state.canonical)
            if length > 1 and data.draw(st.booleans()):
                session.rewind(data.draw(st.integers(1, length - 1)))
            elif length < world.context:
                session.extend((0,), **world.turn)
        except DecodeFailed:
            break
    if session is not None:
        session.close()
    for log in bench.logs.values():
        assert redrive(log) == log
        assert Replayer().replay(log).equal


def test_a_long_log_is_decided_while_it_is_read():
    from harness import Bench

    bench = Bench(context_length=5000)
    bench.generate(max_tokens=2000)
    log = bench.logs[0]
    redriver, behind = Redriver(), 0
    for number, record in enumerate(log, 1):
        redriver.feed(record)
        behind = max(behind, number - redriver.decided)
    assert behind <= 256 and redriver.decided == len(log)  # a drop ends the session, so nothing is left to finish
    redriver.finish()
    assert redriver.decided == len(log)


def test_a_divergence_has_the_number_both_sides_and_a_sentence():
    log, at = changed(LOGS["plain"], SpanVerified, matched=0)
    result = Replayer(fail_fast=False).replay(log)
    assert (result.outcome, result.equal, result.records) == ("diverged", False, at)
    found = result.divergence
    assert (found.seq, found.recorded) == (at, log[at].event)
    assert found.replayed == LOGS["plain"][at].event
    assert found.sentence == result.sentence == f"record {at}: recorded SpanVerified, replayed another: matched 0 is 2"
    with pytest.raises(ReplayDiverged) as caught:
        Replayer().replay(log)
    assert (caught.value.seq, caught.value.recorded, caught.value.replayed) == (at, found.recorded, found.replayed)


def test_a_decision_that_is_missing_or_another_is_told_by_its_name():
    log = LOGS["plain"]
    at = next(number for number, record in enumerate(log) if isinstance(record.event, DraftOffered))
    without = [record for number, record in enumerate(log) if number != at]
    renumbered = [attrs.evolve(record, seq=number) for number, record in enumerate(without)]
    found = Replayer(fail_fast=False).replay(renumbered).divergence
    assert found.seq == at and isinstance(found.recorded, DraftTaken)
    assert found.sentence == f"record {at}: recorded DraftTaken, replayed the round asks for AskDraft"


def test_rules_that_this_engine_does_not_have_are_said_so_and_are_no_divergence():
    log, _ = changed(LOGS["plain"], SessionOpened, rules=7)
    result = Replayer(fail_fast=False).replay(log)
    assert (result.outcome, result.divergence) == ("unknown_rules", None)
    assert result.sentence == "this log was made by rules version 7, this engine has version 3"
    with pytest.raises(UnknownRules) as caught:
        Replayer().replay(log)
    assert isinstance(caught.value, ConfigError) and (caught.value.version, caught.value.known, caught.value.seq) == (7, 3, 0)


def test_a_file_gives_a_result_per_session_and_many_files_an_iterator(tmp_path):
    bad, at = changed(LOGS["rejected"], Committed, accepted=1)
    first = written(tmp_path / "first.jsonl", LOGS["plain"], bad, LOGS["turns"])
    second = written(tmp_path / "second.jsonl", LOGS["accepted"])
    results = Replayer(fail_fast=False).replay_many([first, tmp_path / "absent.jsonl", second])
    assert iter(results) is results
    found = list(results)
    assert [(result.session, result.outcome) for result in found] == [
        (0, "equal"),
        (1, "diverged"),
        (2, "equal"),
        (None, "unusable"),
        (0, "equal"),
    ]
    assert found[1].path == str(first) and found[1].divergence.seq == at
    assert json.loads(json.dumps(found[1].to_json()))["divergence"]["recorded"]["type"] == "Committed"
    with pytest.raises(ReplayDiverged):
        list(Replayer().replay_many([second, first]))
    with pytest.raises(OSError):
        list(Replayer().replay_many([tmp_path / "absent.jsonl"]))


def test_a_damaged_file_is_unusable_from_there_on(tmp_path):
    path = written(tmp_path / "run.jsonl", LOGS["plain"])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:9], b"{}\n", *lines[9:]]))
    good, bad = Replayer(fail_fast=False).replay_file(path)
    assert (good.outcome, good.records) == ("equal", 8)
    assert (bad.outcome, bad.session) == ("unusable", None) and "line 10" in bad.sentence
    with pytest.raises(TraceError):
        Replayer().replay_file(path)


def test_nothing_to_replay_is_never_equal(tmp_path):
    path = tmp_path / "run.jsonl"
    with TraceWriter(path):
        pass
    for fail_fast in (False, True):
        (result,) = Replayer(fail_fast=fail_fast).replay_file(path)
        assert (result.outcome, result.equal, result.records, result.session) == ("empty", False, 0, None)
    assert Replayer(fail_fast=False).replay([]).outcome == "unusable", "a caller who has no log has no session"
    with pytest.raises(TraceError, match="no session"):
        Replayer().replay([])


def test_many_sessions_are_forgotten_as_they_end(tmp_path):
    """Of a session that was dropped nothing but its result is kept, however long the file goes on."""
    redriver = Redriver()
    for record in LOGS["plain"]:
        redriver.feed(record)
    assert redriver._log == [] and redriver.decided == len(LOGS["plain"])
