"""Going on after a crash, from the file: killed at any record, torn within any record, the tokens are those of the whole run."""

import attrs
import corpus
import pytest
from harness import Bench
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import worlds

from spanfold.engine import Committed, SessionFinished, SessionResumed, fold, redrive
from spanfold.engine.errors import ConfigError, TraceError
from spanfold.engine.replay import Replayer, check, resume_trace, session_log
from spanfold.engine.trace import TraceReader, TraceWriter

LOGS = corpus.logs()


def recorded(path, bench, prompt, **turn):
    """A whole run, and its lines: the header, the records, the footer."""
    with TraceWriter(path) as writer:
        bench.decoder._recorder = writer
        session = bench.decoder.open(prompt, **turn)
        corpus.drain(session)
        session.close()
    return session, path.read_bytes().splitlines(keepends=True)


def resumed(path, content, bench):
    """Go on with a file of this content; the session at its end."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with TraceWriter(path) as writer:
        bench.decoder._recorder = writer
        session = resume_trace(bench.decoder, path)
        corpus.drain(session)
        session.close()
    return session


def assert_goes_on(path, whole, session):
    assert session.state.canonical == whole.state.canonical
    assert (session.finish.reason, session.finish.limit) == (whole.finish.reason, whole.finish.limit)
    report = check(path)
    assert report.status == "holds", report
    assert len(report.files[0].segments) == 2 and len(report.files[0].sessions) == 1
    assert [result.outcome for result in Replayer().replay_file(path)] == ["equal"]
    log = session_log(path)
    assert fold(log) == session.state and redrive(log) == log
    assert any(isinstance(record.event, SessionResumed) for record in log)


def test_killed_at_any_record_and_torn_at_any_record_the_tokens_are_those_of_the_whole_run(tmp_path):
    path = tmp_path / "run.jsonl"
    whole, lines = recorded(path, Bench(), (1, 2, 3), max_tokens=9)
    records = lines[1:-1]
    finished = next(at for at, record in enumerate(session_log(path)) if isinstance(record.event, SessionFinished))
    for count in range(1, finished + 1):
        head, torn = b"".join([lines[0], *records[:count]]), records[count]
        for cut in (0, 1, len(torn) // 2, len(torn) - 2):
            session = resumed(path, head + torn[:cut], Bench())
            assert_goes_on(path, whole, session)
            reader = TraceReader(path)
            list(reader)
            assert len(reader.torn) == (1 if cut else 0)


def test_a_last_record_that_lacks_only_its_newline_is_not_lost(tmp_path):
    path = tmp_path / "run.jsonl"
    whole, lines = recorded(path, Bench(), (1, 2, 3), max_tokens=9)
    session = resumed(path, b"".join(lines[:9])[:-1], Bench())
    assert_goes_on(path, whole, session)
    resumption = next(record for record in session_log(path) if isinstance(record.event, SessionResumed))
    assert resumption.seq == 8


@given(worlds(), st.data())
@settings(max_examples=60)
def test_the_same_in_any_world(tmp_path_factory, world, data):
    path = tmp_path_factory.mktemp("resume") / "run.jsonl"
    whole, lines = recorded(path, world.bench(), world.prompt, **world.turn)
    finished = next(at for at, record in enumerate(session_log(path)) if isinstance(record.event, SessionFinished))
    count = data.draw(st.integers(1, finished))
    cut = data.draw(st.integers(0, len(lines[count + 1]) - 2))
    session = resumed(path, b"".join(lines[: count + 1]) + lines[count + 1][:cut], world.bench())
    assert_goes_on(path, whole, session)


def test_killed_twice_the_third_run_goes_on_with_both(tmp_path):
    path = tmp_path / "run.jsonl"
    whole, lines = recorded(path, Bench(), (1, 2, 3), max_tokens=20)
    resumed(path, b"".join(lines[:8]), Bench())
    again = path.read_bytes().splitlines(keepends=True)
    session = resumed(path, b"".join(again[:16]) + again[16][:10], Bench())
    assert session.state.canonical == whole.state.canonical
    assert check(path).status == "holds"
    assert sum(isinstance(record.event, SessionResumed) for record in session_log(path)) == 2


def test_one_of_many_sessions_is_resumed_by_its_number_and_the_others_stay(tmp_path):
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as writer:
        for records in zip(LOGS["plain"][:7], LOGS["rejected"][:7], strict=True):
            for number, record in enumerate(records):
                writer.write(attrs.evolve(record, session=number))
    with pytest.raises(TraceError, match=r"holds several sessions \(session 0, session 1\): name one"):
        resume_trace(Bench().decoder, path)
    with pytest.raises(TraceError, match=r"holds no session 4; it holds session 0, session 1"):
        resume_trace(Bench().decoder, path, 4)
    bench = Bench()
    with TraceWriter(path) as writer:
        bench.decoder._recorder = writer
        session = resume_trace(bench.decoder, path, 1)
        corpus.drain(session)
        session.close()
    assert session.id == 1
    assert [record.event.tokens for record in session_log(path, 0) if isinstance(record.event, Committed)]
    report = check(path)
    assert report.status == "holds" and report.files[0].sessions[0].records == 7


def test_after_a_resume_new_sessions_have_numbers_of_their_own(tmp_path):
    """Ids are never reused on a runtime: a resumed session brings its own number, which no new one may get."""
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as writer:
        for record in LOGS["plain"][:7]:
            writer.write(attrs.evolve(record, session=1))
    bench = Bench()
    with TraceWriter(path) as writer:
        bench.decoder._recorder = writer
        first = resume_trace(bench.decoder, path)
        others = [bench.decoder.open((1, 2), max_tokens=4) for _ in range(3)]
        for session in (first, *others):
            corpus.drain(session)
            session.close()
    assert len({session.id for session in (first, *others)}) == 4
    report = check(path)
    assert report.status == "holds" and len(report.files[0].sessions) == 4


def test_a_session_of_an_earlier_run_is_named_by_its_segment(tmp_path):
    path = tmp_path / "run.jsonl"
    for name in ("plain", "accepted"):
        with TraceWriter(path) as writer:
            for record in LOGS[name]:
                writer.write(record)
    assert session_log(path, 0) == LOGS["accepted"]
    assert session_log(path, 0, 0) == LOGS["plain"]
    with pytest.raises(TraceError, match="no session 0 of segment 2"):
        session_log(path, 0, 2)


def test_limits_are_those_of_the_trace(tmp_path):
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as writer:
        for record in LOGS["plain"][:7]:
            writer.write(record)
    with pytest.raises(ConfigError, match="max_tokens is fixed by the log"):
        resume_trace(Bench().decoder, path, max_tokens=3)


def test_a_redacted_session_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    for redact in (False, True):
        with TraceWriter(path, redact=redact) as writer:
            for record in LOGS["plain"][:7]:
                writer.write(record)
    with pytest.raises(TraceError, match=r"run\.jsonl is redacted: its token ids stand for others"):
        resume_trace(Bench().decoder, path, 0)
    with pytest.raises(TraceError, match="is redacted"):
        session_log(path, 0, live=True)
    assert session_log(path, 0, 0, live=True) == LOGS["plain"][:7], "the older one, written in full"
    assert len(session_log(path, 0)) == 7, "without a model it may be read"
