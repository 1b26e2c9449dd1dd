"""The writer as a recorder: what reaches the system when, what a death or a full disk leaves, and who may write."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import ConfigError, Decoder, Record, RecorderFailed, SessionDropped, SessionFinished, SessionOpened, fold, redrive
from spanfold.engine.errors import TraceError
from spanfold.engine.events import DraftFailed
from spanfold.engine.trace import MAX_LINE_BYTES, TraceReader, TraceWriter, encode_record
from spanfold.engine.trace.sinks import PlainSink
from spanfold.engine.values import Limits, Policy, RuntimeInfo, Sampling, Stops


def record(seq: int, words: str = "closed", session: int = 0) -> Record:
    return Record(seq=seq, session=session, at_ns=seq, event=SessionDropped(reason=words))


def runtime(**options) -> ScriptedRuntime:
    return ScriptedRuntime(hash_target(3, 17), drafts=noisy(5, 0.7), **options)


# -- the header ------------------------------------------------------------------------------------------------------


def test_the_header_says_what_wrote_the_segment_and_imports_nothing_for_it(tmp_path: Path):
    info = runtime().info
    code = (
        "import sys; from spanfold.engine.trace import TraceReader, TraceWriter\n"
        "with TraceWriter(sys.argv[1]): pass\n"
        "print(not {'torch', 'transformers', 'onnxruntime', 'numpy'} & sys.modules.keys())"
    )
    path = tmp_path / "a.jsonl"
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
    with TraceWriter(path, runtime=info):
        pass
    reader = TraceReader(path)
    assert list(reader) == []
    first, second = (segment.header for segment in reader.segments)
    assert first is not None and first.runtime is None and not first.redacted
    assert first.libraries["python"] == ".".join(map(str, sys.version_info[:3])) and {"attrs", "cattrs"} <= first.libraries.keys()
    assert second is not None and second.runtime == info and second.created_unix_ns >= first.created_unix_ns


# -- the flush policies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize(("policy", "after_write", "after_flush"), [("record", 2, 2), ("round", 0, 2), ("end", 0, 0)])
def test_a_policy_says_what_has_reached_the_system(policy, after_write: int, after_flush: int, suffix: str, tmp_path: Path):
    path = tmp_path / f"a{suffix}"
    writer = TraceWriter(path, flush=policy)
    writer.write(record(0))
    writer.write(record(1))
    assert len(list(TraceReader(path))) == after_write
    writer.flush()
    assert len(list(TraceReader(path))) == after_flush
    writer.close()
    reader = TraceReader(path)
    assert list(reader) == [record(0), record(1)] and reader.segments[0].closed


@pytest.mark.parametrize("policy", ["round", "end"])
def test_what_is_collected_is_bounded(policy, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with TraceWriter(path, flush=policy) as writer:
        for seq in range(4):
            writer.write(record(seq, "x" * 100_000))
        assert len(list(TraceReader(path))) == 3
    assert len(list(TraceReader(path))) == 4


def test_tokens_are_delivered_only_after_their_records_have_reached_the_system(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    seen: list[int] = []

    def on_token(token: int) -> None:
        seen.append(token)
        state = fold(TraceReader(path))
        assert list(state.canonical[3:][: len(seen)]) == seen

    with TraceWriter(path, flush="round") as writer, Decoder(runtime(), recorder=writer) as decoder:
        decoder.generate((1, 2, 3), max_tokens=20, on_token=on_token)
    assert len(seen) == 20


@pytest.mark.parametrize(("policy", "syncs"), [("record", 2), ("round", 2), ("end", 1)])
def test_fsync_waits_at_every_flush_and_at_the_end(policy, syncs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with TraceWriter(tmp_path / "a.jsonl", flush=policy, fsync=True) as writer:
        assert len(synced) == 2, "the header, and the name in the folder"
        writer.write(record(0))
        writer.flush()
    assert len(synced) == 2 + syncs


def test_arguments_that_cannot_be_used_are_refused_before_anything_is_touched(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(ConfigError, match="flush must be one of record, round, end, not 'never'"):
        TraceWriter(path, flush="never")
    with pytest.raises(ConfigError, match="redact=True"):
        TraceWriter(path, key=b"x" * 16)
    with pytest.raises(ConfigError, match="16 to 64 bytes"):
        TraceWriter(path, redact=True, key=b"short")
    assert not path.exists()


# -- death at any byte -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["record", "round"])
def test_case_8_1_a_trace_that_is_cut_at_any_byte_reads_up_to_there_and_can_be_gone_on_with(policy, tmp_path: Path):
    path = tmp_path / "whole.jsonl"
    with TraceWriter(path, flush=policy) as writer:
        writer.write(record(0, "né 🙂"))
        writer.flush()
        writer.write(Record(seq=1, session=0, event=DraftFailed(origin="mtp", error="Error", message="🙂\n\0")))
    whole = path.read_bytes()
    assert whole.isascii()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    lines = whole.splitlines()
    for end in range(len(whole) + 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:end])
        complete = sum(1 for one in ends if one <= end + 1)  # a line that lacks its newline alone is whole
        records = [record(0, "né 🙂"), Record(seq=1, session=0, event=DraftFailed(origin="mtp", error="Error", message="🙂\n\0"))]
        kept = records[: max(0, min(complete - 1, 2))]
        torn = end > 0 and whole[:end].rsplit(b"\n", 1)[-1] not in (b"", *lines)
        if complete:
            reader = TraceReader(cut)
            assert list(reader) == kept, end
            assert bool(reader.torn) == torn, end
        else:
            with pytest.raises(TraceError, match="empty" if end == 0 else "line 1: not a trace"):
                list(TraceReader(cut))
        with TraceWriter(cut) as writer:
            writer.write(record(7))
        reader = TraceReader(cut)
        assert list(reader) == [*kept, record(7)], end
        assert bool(reader.torn) == torn, end
        assert reader.segments[-1].closed


@pytest.mark.parametrize("policy", ["record", "round", "end"])
def test_case_8_1_a_compressed_trace_that_is_cut_at_any_byte_reads_up_to_its_last_sync_point(
    policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "whole.jsonl.gz"
    records = [record(seq, f"né 🙂 {seq * 7919}") for seq in range(5)]
    pieces = [0]  # the file's sizes between two writes: where a process can have died without a torn tail
    real = PlainSink._write
    monkeypatch.setattr(PlainSink, "_write", lambda sink, piece: (real(sink, piece), pieces.append(path.stat().st_size))[0])
    handed = [(0, 0)]  # file size -> records that are safe
    for segment in (records[:4], records[4:]):
        with TraceWriter(path, flush=policy) as writer:
            for one in segment:
                writer.write(one)
                writer.flush()
                if policy != "end":
                    handed.append((path.stat().st_size, one.seq + 1))
        handed.append((path.stat().st_size, segment[-1].seq + 1))
    monkeypatch.undo()
    whole = path.read_bytes()
    for end in range(1, len(whole) + 1):
        cut = tmp_path / "cut.jsonl.gz"
        cut.write_bytes(whole[:end])
        reader, found = TraceReader(cut), []
        try:
            for one in reader:
                found.append(one)
        except TraceError as error:
            assert end < pieces[1] and "not a trace" in str(error), end
        else:
            assert bool(reader.torn) == (end not in pieces), end
        least = max(count for size, count in handed if size <= end)
        assert found == records[: len(found)] and len(found) >= least, end
        with TraceWriter(cut) as writer:
            writer.write(record(9))
        reader = TraceReader(cut)
        assert list(reader) == [*found, record(9)], end
        assert reader.segments[-1].closed, end
        cut.unlink()


def test_a_process_that_is_killed_leaves_what_it_had_handed_over(tmp_path: Path):
    code = """
import os, signal, sys
from spanfold.backends.scripted import ScriptedRuntime, hash_target
from spanfold.engine import Decoder
from spanfold.engine.trace import TraceWriter
with TraceWriter(sys.argv[1], flush=sys.argv[2]) as writer, Decoder(ScriptedRuntime(hash_target(3, 17)), recorder=writer) as decoder:
    def on_token(token):
        print(token, flush=True)
        if len(seen.append(token) or seen) == 10:
            os.kill(os.getpid(), signal.SIGKILL)
    seen = []
    decoder.generate((1, 2, 3), max_tokens=50, on_token=on_token)
"""
    for name, policy in (("a.jsonl", "record"), ("b.jsonl", "round"), ("c.jsonl.gz", "round")):
        path = tmp_path / name
        run = subprocess.run([sys.executable, "-c", code, str(path), policy], capture_output=True, text=True, check=False)
        assert run.returncode == -9
        shown = [int(line) for line in run.stdout.split()]
        reader = TraceReader(path)
        state = fold(reader)
        assert list(state.canonical[3:][:10]) == shown and not reader.segments[0].closed


def test_a_compressed_file_that_is_something_else_is_left_alone(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"plain text\n")
    with pytest.raises(TraceError, match="not compressed by gzip"):
        TraceWriter(path)
    whole = tmp_path / "b.jsonl.gz"
    with TraceWriter(whole) as writer:
        writer.write(record(0))
    damaged = bytearray(whole.read_bytes())
    damaged[40] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(TraceError, match="damaged"):
        TraceWriter(path)
    with pytest.raises(TraceError, match="damaged"):
        list(TraceReader(path))
    assert path.read_bytes() == damaged


def test_a_file_that_is_no_trace_is_left_alone(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("do not touch")
    with pytest.raises(TraceError, match="holds something that is no trace"):
        TraceWriter(path)
    assert path.read_text() == "do not touch"


# -- a disk that is full ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_device_without_space_is_said_at_once():
    with pytest.raises(OSError, match="No space left"):
        TraceWriter("/dev/full")


@pytest.mark.parametrize("policy", ["record", "round"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_full_disk_ends_the_session_at_a_boundary_and_loses_nothing_before_it(policy, name: str, tmp_path: Path):
    """A real limit of the system on the file's size, in a process of its own."""
    code = """
import resource, sys
from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import Decoder, RecorderFailed
from spanfold.engine.trace import TraceWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
runtime = ScriptedRuntime(hash_target(3, 17), drafts=noisy(5, 0.7))
with TraceWriter(sys.argv[1], flush=sys.argv[2]) as writer, Decoder(runtime, recorder=writer) as decoder:
    seen = []
    try:
        decoder.generate((1, 2, 3), max_tokens=400, on_token=seen.append)
    except RecorderFailed as error:
        print(error.partial.finish_reason, error.partial.session.phase, runtime.live_sessions)
        print(error)
        print(*seen)
"""
    path = tmp_path / name
    run = subprocess.run([sys.executable, "-c", code, str(path), policy], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    outcome, message, tokens = run.stdout.splitlines()
    assert outcome == "failed dropped 0"
    assert message.startswith("the recorder could not write: OSError:")
    reader = TraceReader(path)
    records = list(reader)
    state = fold(records)
    delivered = [int(token) for token in tokens.split()]
    assert delivered and list(state.canonical[3:][: len(delivered)]) == delivered, "delivered, and not in the trace"
    assert list(redrive(records)) == records
    assert not reader.segments[0].closed
    with TraceWriter(path) as writer:  # there is space again
        writer.write(record(0, session=1))
    again = list(TraceReader(path))
    assert again == [*records, record(0, session=1)]


@pytest.mark.parametrize("policy", ["record", "round", "end"])
def test_an_error_at_any_write_is_felt_at_a_boundary(policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for failing in range(1, 12):
        path = tmp_path / f"{failing}.jsonl"
        writer = TraceWriter(path, flush=policy)
        real, left = writer._sink._write, iter(range(failing - 1))

        def write(piece: bytes, real=real, left=left) -> None:
            if next(left, None) is None:
                raise OSError(28, "No space left on device")
            real(piece)

        monkeypatch.setattr(writer._sink, "_write", write)
        seen: list[int] = []
        with Decoder(runtime(), recorder=writer) as decoder:
            if policy == "end":
                decoder.generate((1, 2, 3), max_tokens=20, on_token=seen.append)
                if failing == 1:
                    with pytest.raises(OSError, match="No space"):
                        writer.close()
            else:
                with pytest.raises(RecorderFailed, match="No space left on device") as failed:
                    decoder.generate((1, 2, 3), max_tokens=400, on_token=seen.append)
                assert failed.value.partial is not None and failed.value.partial.finish_reason == "failed"
        writer.close()
        if policy != "end":
            state = fold(TraceReader(path))
            assert list(state.canonical[3:][: len(seen)]) == seen if seen else True


def test_a_record_that_does_not_fit_breaks_nothing(tmp_path: Path):
    with TraceWriter(tmp_path / "a.jsonl") as writer:
        with pytest.raises(TraceError, match="longer than"):
            writer.write(record(0, "x" * MAX_LINE_BYTES))
        with pytest.raises(TraceError, match="below 2\\*\\*53"):
            writer.write(record(2**53))
        with pytest.raises(TraceError, match="at most 40 digits"):
            writer.write(Record(seq=0, session=0, at_ns=10**40, event=SessionDropped(reason="x")))
        writer.write(record(0))
    assert list(TraceReader(tmp_path / "a.jsonl")) == [record(0)]


# -- one writer per file, many sessions and threads ------------------------------------------------------------------


def test_case_8_4_no_second_writer_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, link, hard = tmp_path / "a.jsonl", tmp_path / "link.jsonl", tmp_path / "hard.jsonl"
    with TraceWriter(path) as writer:
        link.symlink_to(path)
        os.link(path, hard)
        (tmp_path / "folder").symlink_to(tmp_path)
        for locks in (True, False):
            if not locks:
                monkeypatch.setattr("spanfold.engine.trace.sinks.fcntl", None)
            for name in (path, link, hard, tmp_path / "folder" / "a.jsonl"):
                with pytest.raises(TraceError, match="another trace writer"):
                    TraceWriter(name)
        writer.write(record(0))
    for name in (link, hard):
        with TraceWriter(name) as writer:
            writer.write(record(1))
    assert len(list(TraceReader(path))) == 3


def test_case_8_4_processes_that_race_for_a_file_leave_whole_lines(tmp_path: Path):
    code = """
import sys
from spanfold.engine.errors import TraceError
from spanfold.engine.events import Record, SessionDropped
from spanfold.engine.trace import TraceWriter
words, session = "x" * 100_000, int(sys.argv[2])
written = 0
while written < 50:
    try:
        with TraceWriter(sys.argv[1]) as writer:
            for seq in range(written, written + 10):
                writer.write(Record(seq=seq, session=session, event=SessionDropped(reason=words)))
            written += 10
    except TraceError as refused:
        assert "another trace writer" in str(refused)
"""
    path = tmp_path / "a.jsonl"
    racing = [subprocess.Popen([sys.executable, "-c", code, str(path), str(session)]) for session in range(4)]
    assert [one.wait() for one in racing] == [0] * 4
    reader = TraceReader(path)
    found: dict[int, list[int]] = {}
    for one in reader:
        found.setdefault(one.session, []).append(one.seq)
    assert found == {session: list(range(50)) for session in range(4)}
    assert len(reader.segments) == 20 and all(segment.closed for segment in reader.segments)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_does_not_write_into_its_parents_trace(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    writer = TraceWriter(path)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.write(record(0))
        except TraceError as refused:
            status = 0 if "belongs to the process that made it" in str(refused) else 2
        writer.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(TraceError, match="another trace writer"):
        TraceWriter(path)
    writer.write(record(0))
    writer.close()
    reader = TraceReader(path)
    assert list(reader) == [record(0)] and reader.segments[0].closed


def test_threads_share_a_writer(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with TraceWriter(path, flush="round") as writer:

        def work(session: int) -> None:
            for seq in range(200):
                writer.write(record(seq, session=session))
                writer.flush()

        threads = [threading.Thread(target=work, args=(session,)) for session in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found: dict[int, list[int]] = {}
    for one in TraceReader(path):
        found.setdefault(one.session, []).append(one.seq)
    assert found == {session: list(range(200)) for session in range(4)}


def test_case_8_9_sessions_that_run_at_once_fold_as_if_alone(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with TraceWriter(path, flush="round") as writer, Decoder(runtime(), recorder=writer) as decoder:
        sessions = [decoder.open((1, 2, 3 + at), max_tokens=12 + at) for at in range(3)]
        while any(not session.finished for session in sessions):
            for session in sessions:
                if not session.finished:
                    session.step()
        states = {session.id: session.state for session in sessions}
        logs: dict[int, list[Record]] = {}
        order: list[int] = []
        for one in TraceReader(path):
            logs.setdefault(one.session, []).append(one)
            order.append(one.session)
        assert order != sorted(order), "nothing was interleaved"
        assert {number: fold(log) for number, log in logs.items()} == states
        for session in sessions:
            session.close()


def test_case_8_10_an_observer_or_a_poll_changes_no_event(tmp_path: Path):
    def events(name: str, observers=(), **turn) -> list[bytes]:
        clock = iter(range(10**9))
        with (
            TraceWriter(tmp_path / name) as writer,
            Decoder(runtime(), recorder=writer, observers=observers, clock=lambda: next(clock)) as decoder,
        ):
            decoder.generate((1, 2, 3), max_tokens=30, **turn)
        return [encode_record(one) for one in TraceReader(tmp_path / name)]

    def raising(_: Record) -> None:
        raise ValueError("not felt")

    plain = events("plain.jsonl")
    assert events("observed.jsonl", [lambda _: None, raising]) == plain
    assert [line.split(b"at_ns")[0] for line in events("polled.jsonl", cancel=lambda: False)] == [line.split(b"at_ns")[0] for line in plain]


def test_many_sessions_leave_nothing_behind_in_a_redacting_writer(tmp_path: Path):
    with TraceWriter(tmp_path / "a.jsonl", redact=True) as writer, Decoder(runtime(), recorder=writer) as decoder:
        for _ in range(20):
            decoder.generate((1, 2, 3), max_tokens=2)
        assert writer._redactor is not None and writer._redactor._of_session == {}
    assert sum(isinstance(one.event, SessionFinished) for one in TraceReader(tmp_path / "a.jsonl")) == 20


def test_the_limit_of_a_line_admits_a_prompt_of_a_million_tokens(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    info = RuntimeInfo(backend="scripted", model="toy", vocabulary=10_000_000, context_length=2_000_000, rollback="crop")
    prompt = tuple(range(8_000_000, 9_000_000))
    opened = SessionOpened(prompt=prompt, limits=Limits(), stops=Stops(), sampling=Sampling(), policy=Policy(), runtime=info, rules=1)
    with TraceWriter(path) as writer:
        writer.write(Record(seq=0, session=0, event=opened))
    assert [one.event for one in TraceReader(path)] == [opened]
