"""Trace files: one write per record, segments, footers that are checked, and torn tails that lose only themselves."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.engine.errors import TraceError
from spanfold.engine.events import DraftFailed, Record, SessionDropped
from spanfold.engine.trace import TraceReader, TraceWriter, encode_record
from spanfold.engine.trace.sinks import PlainSink


def record(seq: int, words: str = "closed") -> Record:
    return Record(seq=seq, session=0, at_ns=seq, event=SessionDropped(reason=words))


def write(path: Path, *records: Record) -> None:
    with TraceWriter(path) as writer:
        for one in records:
            writer.write(one)


def test_a_trace_is_header_records_and_a_footer_with_count_and_digest(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    write(path, record(0), record(1, "é\n\0"))
    lines = path.read_bytes().splitlines(keepends=True)
    header, footer = json.loads(lines[0]), json.loads(lines[-1])
    assert (header["kind"], header["format"], header["version"]) == ("header", "spanfold-trace", 3)
    assert footer == {"kind": "footer", "records": 2, "sha256": hashlib.sha256(b"".join(lines[1:-1])).hexdigest()}
    reader = TraceReader(path)
    assert list(reader) == [record(0), record(1, "é\n\0")]
    assert [(segment.records, segment.closed, segment.torn) for segment in reader.segments] == [(2, True, None)]


def test_reopening_starts_a_new_segment(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    write(path, record(0))
    write(path, record(1), record(2))
    reader = TraceReader(path)
    assert list(reader) == [record(0), record(1), record(2)]
    assert [(segment.records, segment.closed) for segment in reader.segments] == [(1, True), (2, True)]


def test_each_record_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pieces: list[bytes] = []
    real = PlainSink._write
    monkeypatch.setattr(PlainSink, "_write", lambda sink, piece: (pieces.append(piece), real(sink, piece))[1])
    with TraceWriter(tmp_path / "a.jsonl") as writer:
        pieces.clear()
        writer.write(record(0, "x" * 100_000))
        assert pieces == [encode_record(record(0, "x" * 100_000))]


def test_case_8_1_a_cut_at_every_byte_of_the_last_record_loses_only_that_record(tmp_path: Path):
    path = tmp_path / "whole.jsonl"
    writer = TraceWriter(path)
    writer.write(record(0))
    before = path.stat().st_size
    writer.write(Record(seq=1, session=0, event=DraftFailed(origin="mtp", error="Error", message="🙂 né")))
    whole = path.read_bytes()
    writer.close()
    for end in range(before, len(whole) + 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:end])
        complete = end >= len(whole) - 1  # only the newline is missing, or nothing
        kept = [0, 1] if complete else [0]
        reader = TraceReader(cut)
        assert [one.seq for one in reader] == kept
        assert bool(reader.torn) == (not complete and end > before)
        write(cut, record(2))
        reader = TraceReader(cut)
        assert [one.seq for one in reader] == [*kept, 2], end
        assert bool(reader.torn) == (not complete and end > before)
        assert [segment.closed for segment in reader.segments] == [False, True]


def test_a_header_that_was_cut_is_reported_too(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"kind":"hea')
    with pytest.raises(TraceError, match=r"line 1.*not a trace"):
        list(TraceReader(path))
    write(path, record(0))
    reader = TraceReader(path)
    assert list(reader) == [record(0)]
    assert len(reader.torn) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], b"\0" * 64 + lines[2], *lines[3:]], "line 3: .*NUL"),
        (lambda lines: [*lines[:1], lines[1].rstrip() + lines[2], *lines[3:]], "line 2: .*not JSON"),
        (lambda lines: lines[:1] + lines[2:], r"line 3: \$\.records: the footer counts 2 records, the segment holds 1"),
        (lambda lines: [*lines[:2], lines[2].replace(b"closed", b"opened"), *lines[3:]], "line 4: .*the segment was changed"),
        (lambda lines: [lines[0].replace(b'"version":3', b'"version":4'), *lines[1:]], r"line 1: \$\.version: version 4 is unknown"),
        (lambda lines: [lines[0].replace(b"spanfold-trace", b"other"), *lines[1:]], r"line 1: \$\.format"),
        (lambda lines: lines[1:], "line 1: .*outside a segment"),
        (lambda lines: [*lines, lines[1]], "line 5: .*outside a segment"),
        (lambda lines: [*lines[:3], b'{"kind":"wish"}\n', *lines[3:]], "line 4: .*kind header, record or footer"),
        (lambda lines: [b"[]\n", *lines], "line 1: .*must be an object"),
        (lambda lines: [], "is empty"),
    ],
)
def test_case_8_3_what_is_not_as_the_format_says_is_an_error_that_names_the_line(change, message: str, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    write(path, record(0), record(1))
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(TraceError, match=message):
        list(TraceReader(path))


def test_case_8_12_reading_is_lazy_and_an_unreadable_file_is_an_error(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    write(path, *map(record, range(1000)))
    reader = iter(TraceReader(path))
    assert next(reader).seq == 0
    with pytest.raises(FileNotFoundError):
        list(TraceReader(tmp_path / "none.jsonl"))


def test_case_8_4_a_second_writer_of_one_file_is_refused(tmp_path: Path):
    pytest.importorskip("fcntl", reason="this system has no advisory locks")
    path = tmp_path / "a.jsonl"
    code = "import sys; from spanfold.engine.trace import TraceWriter; TraceWriter(sys.argv[1])"
    with TraceWriter(path) as writer:
        with pytest.raises(TraceError, match="another trace writer"):
            TraceWriter(path)
        other = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert other.returncode != 0 and "another trace writer" in other.stderr
        writer.write(record(0))
    assert list(TraceReader(path)) == [record(0)]


def test_a_failed_write_breaks_the_writer_and_leaves_no_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    writer = TraceWriter(path)
    writer.write(record(0))
    real = writer._sink._file

    class Full:
        def write(self, line: bytes) -> int:
            return real.write(line[:10]) or 0

    monkeypatch.setattr(writer._sink, "_file", Full())
    with pytest.raises(OSError, match="wrote 10 of"):
        writer.write(record(1))
    monkeypatch.undo()
    for use in (lambda: writer.write(record(1)), writer.flush):
        with pytest.raises(TraceError, match=r"broken by an earlier write error \(OSError: wrote 10 of"):
            use()
    writer.close()
    reader = TraceReader(path)
    assert list(reader) == [record(0)]
    assert reader.torn and not reader.segments[0].closed


def test_a_closed_writer_says_so_and_closing_again_is_fine(tmp_path: Path):
    writer = TraceWriter(tmp_path / "a.jsonl")
    writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(TraceError, match="closed"):
        writer.write(record(0))


def test_flush_reaches_the_disk_when_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with TraceWriter(tmp_path / "a.jsonl") as writer:
        writer.flush()
    assert synced == []
    with TraceWriter(tmp_path / "b.jsonl", fsync=True) as writer:
        before = len(synced)
        writer.flush()
    assert len(synced) == before + 2
