"""Reading: constant memory, errors that name line and field, lenient reading for people, older versions, hostile files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from spanfold.engine import fold
from spanfold.engine.errors import TraceError
from spanfold.engine.events import Committed, Record, SessionDropped, SpanVerified
from spanfold.engine.trace import FORMAT_VERSION, TraceReader, TraceWriter, Unknown, encode_record
from spanfold.engine.trace.lines import encode_line, parse_line

GOLDEN = Path(__file__).parent / "golden-3"
PLAIN = (GOLDEN / "accepted.jsonl").read_bytes().splitlines(keepends=True)


def record(seq: int, words: str = "closed") -> Record:
    return Record(seq=seq, session=0, at_ns=seq, event=SessionDropped(reason=words))


def written(path: Path, lines: list[bytes]) -> TraceReader:
    path.write_bytes(b"".join(lines))
    return TraceReader(path)


def at(kind: str) -> int:
    return next(number for number, line in enumerate(PLAIN) if f'"type":"{kind}"'.encode() in line)


# -- constant memory -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell a process its peak memory")
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_case_8_12_a_long_trace_is_read_in_constant_memory(name: str, tmp_path: Path):
    """In a process of its own; benchmarks/trace_memory.py does it with a million records."""
    path = tmp_path / name
    span = SpanVerified(base=4, rows=4, predictions=(7, 8, 9, 10), matched=3, observed=8, cost_ns=9)
    with TraceWriter(path, flush="end") as writer:
        for seq in range(60_000 if name == "a.jsonl" else 20_000):
            writer.write(Record(seq=seq, session=0, event=span))
    code = """
import sys
from spanfold.engine.trace import TraceReader
def peak():
    with open("/proc/self/status") as status:  # of this program alone; getrusage counts the parent's before exec
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
count, reader = 0, TraceReader(sys.argv[1])
records = iter(reader)
for _ in range(1000): next(records)
before = peak()
for _ in records: count += 1
print(count + 1000, peak() - before, before)
"""
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, grown, before = map(int, run.stdout.split())
    assert count == (60_000 if name == "a.jsonl" else 20_000)
    assert grown < 2048 and before < 100 * 1024, f"{grown} KiB more after the first thousand records, {before} KiB before"


def test_case_8_12_a_file_that_cannot_be_read_is_no_empty_session(tmp_path: Path):
    with pytest.raises(IsADirectoryError):
        list(TraceReader(tmp_path))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty.jsonl.gz").touch()
    for name in ("empty.jsonl", "empty.jsonl.gz"):
        with pytest.raises(TraceError, match="is empty: not a trace"):
            list(TraceReader(tmp_path / name))


# -- what is not understood ------------------------------------------------------------------------------------------


def changed(number: int, change: Any) -> list[bytes]:
    got = json.loads(PLAIN[number])
    change(got)
    return [*PLAIN[:number], encode_line(got), *PLAIN[number + 1 :]]


CHANGES = [
    (lambda got: got.update(type="SpanDreamt"), r"\$\.type: unknown event type 'SpanDreamt'"),
    (lambda got: got["event"].update(dreamt=1), r"\$\.event: unknown fields: dreamt"),
    (lambda got: got.update(dreamt=1), r"\$: unknown fields: dreamt"),
    (lambda got: got["event"].pop("matched"), r"\$\.event: fields are missing: matched"),
    (lambda got: got["event"].update(predictions=[1, "2"]), r"\$\.event\.predictions\[1\]: expected an integer, found '2'"),
    (lambda got: got.update(kind="wish"), "a line must be an object of the kind header, record or footer"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_case_8_8_what_is_unknown_is_refused_with_line_and_path(change: Any, message: str, tmp_path: Path):
    number = at("SpanVerified")
    reader = written(tmp_path / "a.jsonl", changed(number, change))
    with pytest.raises(TraceError, match=rf"^line {number + 1}: {message}") as error:
        list(reader)
    assert error.value.line == number + 1


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_case_8_8_what_is_unknown_is_shown_by_lenient_reading(change: Any, message: str, tmp_path: Path):
    number = at("SpanVerified")
    lines = changed(number, change)
    reader = written(tmp_path / "a.jsonl", lines)
    entries = list(reader.lenient())
    unknown = [one for one in entries if isinstance(one, Unknown)]
    assert unknown[0].line == number + 1 and unknown[0].raw == json.loads(lines[number])
    with pytest.raises(TraceError, match=message):
        raise TraceError(unknown[0].problem)
    assert len(entries) - len(unknown) == len(PLAIN) - 3
    # The footer's digest was over the line as it was.
    assert [one.line for one in unknown[1:]] == [len(PLAIN)] and "the segment was changed" in unknown[1].problem


def test_lenient_reading_shows_a_line_that_is_no_json_and_goes_on(tmp_path: Path):
    lines = [*PLAIN[:3], b'{"kind":"rec\xff\n', *PLAIN[3:]]
    reader = written(tmp_path / "a.jsonl", lines)
    entries = list(reader.lenient())
    assert isinstance(entries[2], Unknown)
    assert (entries[2].line, entries[2].raw) == (4, '{"kind":"rec\\xff\n') and "not UTF-8 at byte 12" in entries[2].problem
    assert sum(isinstance(one, Record) for one in entries) == len(PLAIN) - 2
    with pytest.raises(TraceError, match="line 4: not UTF-8 at byte 12"):
        list(reader)


def test_lenient_reading_of_a_good_trace_is_reading_it():
    for path in GOLDEN.glob("*.jsonl*"):
        reader = TraceReader(path)
        assert list(reader.lenient()) == list(reader)


def test_a_segment_of_a_newer_version_is_refused_and_shown(tmp_path: Path):
    lines = [PLAIN[0].replace(b'"version":3', b'"version":4,"news":1'), *PLAIN[1:], *PLAIN]
    reader = written(tmp_path / "a.jsonl", lines)
    with pytest.raises(TraceError, match=r"line 1: \$\.version: version 4 is unknown; .* reads 1, 2, 3; a newer spanfold wrote it"):
        list(reader)
    entries = list(reader.lenient())
    assert all(isinstance(one, Unknown) for one in entries[: len(PLAIN)])
    assert all(isinstance(one, Record) for one in entries[len(PLAIN) :]) and len(entries) == 2 * len(PLAIN) - 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda got: got.pop("libraries"), "fields are missing: libraries"),
        (lambda got: got.update(libraries=[]), r"\$\.libraries: expected an object"),
        (lambda got: got.update(libraries={"python": 3}), r"\$\.libraries: expected a string, found 3"),
        (lambda got: got.update(runtime={}), r"\$\.runtime: fields are missing"),
        (lambda got: got.update(created_unix_ns=5), r"\$\.created_unix_ns: expected an integer written as a string"),
        (lambda got: got.update(version=True), r"\$\.version: version True is unknown"),
        (lambda got: got.update(news=1), "unknown fields: news"),
    ],
)
def test_a_header_that_is_not_as_the_format_says_is_refused(change: Any, message: str, tmp_path: Path):
    with pytest.raises(TraceError, match=f"line 1: .*{message}"):
        list(written(tmp_path / "a.jsonl", changed(0, change)))


# -- older versions --------------------------------------------------------------------------------------------------


def older(line: bytes) -> bytes:
    """A line as a version 0 could have written it: records flat, other names, no library versions."""
    got = json.loads(line)
    if got["kind"] == "header":
        got = {"kind": "header", "format": got["format"], "version": 0, "created_unix_ns": got["created_unix_ns"], "model": "toy"}
    elif got["kind"] == "record":
        event = got.pop("event")
        if got["type"] == "Committed":
            event["hits"] = event.pop("accepted")
        got = {**got, **{f"event.{name}": one for name, one in event.items()}}
    return encode_line(got)


def from_0(got: dict[str, Any]) -> dict[str, Any]:
    """Version 0 -> 1."""
    if got["kind"] == "header":
        return {
            **{name: got[name] for name in ("kind", "format", "created_unix_ns")},
            "version": 1,
            "runtime": None,
            "libraries": {},
            "redacted": False,
        }
    if got["kind"] == "footer":
        return got
    event = {name.removeprefix("event."): one for name, one in got.items() if name.startswith("event.")}
    if got["type"] == "Committed":
        event["accepted"] = event.pop("hits")
    return {**{name: one for name, one in got.items() if not name.startswith("event.")}, "event": event}


def from_later(got: dict[str, Any]) -> dict[str, Any]:
    """A later version to the next, of lines that hold all that the next one has."""
    return {**got, "version": got["version"] + 1} if got["kind"] == "header" else got


def test_an_older_version_is_brought_up_on_read(tmp_path: Path):
    from hashlib import sha256

    body = [older(line) for line in PLAIN[1:-1]]
    footer = {"kind": "footer", "records": len(body), "sha256": sha256(b"".join(body)).hexdigest()}
    old = [older(PLAIN[0]), *body, json.dumps(footer).encode() + b"\n"]
    path = tmp_path / "a.jsonl"
    reader = written(path, old)
    with pytest.raises(TraceError, match="version 0 is unknown"):
        list(reader)
    path.write_bytes(b"".join([*old, *PLAIN]))  # a later writer went on in the present version
    reader = TraceReader(path, upcasts={0: from_0, 1: from_later, 2: from_later})
    records = list(reader)
    present = list(TraceReader(GOLDEN / "accepted.jsonl"))
    assert records == [*present, *present]
    assert [segment.closed for segment in reader.segments] == [True, True]
    assert fold(records[: len(present)]) == fold(present)


def test_versions_are_passed_through_one_at_a_time(tmp_path: Path):
    seen: list[tuple[int, str]] = []

    def step(version: int):
        def up(got: dict[str, Any]) -> dict[str, Any]:
            seen.append((version, got["kind"]))
            assert got.get("passed", version) == version
            made = {**got, "passed": version + 1}
            if version == FORMAT_VERSION - 1:
                made.pop("passed")
                if got["kind"] == "header":
                    made["version"] = FORMAT_VERSION
            return made

        return up

    lines = [PLAIN[0].replace(b'"version":3', b'"version":-2'), *PLAIN[1:]]
    reader = written(tmp_path / "a.jsonl", lines)
    assert len(list(TraceReader(reader.path, upcasts={version: step(version) for version in (-2, -1, 0, 1, 2)}))) == len(PLAIN) - 2
    assert seen[:3] == [(-2, "header"), (-1, "header"), (0, "header")]


def test_a_line_that_cannot_be_brought_up_is_refused_with_its_number(tmp_path: Path):
    lines = [older(PLAIN[0]), b'{"kind":"record","type":"Committed"}\n']
    with pytest.raises(TraceError, match=r"line 2: \$: this is no line of version 0: KeyError: 'hits'"):
        list(TraceReader(written(tmp_path / "a.jsonl", lines).path, upcasts={0: from_0, 1: from_later, 2: from_later}))


# -- hostile files ---------------------------------------------------------------------------------------------------

DEEP = 200_000
HOSTILE = {
    "deep arrays": (b"[" * DEEP + b"\n", "nested too deeply|not JSON"),
    "deep arrays in an event": (b'{"kind":"record","event":' + b"[" * 40_000 + b"]" * 40_000 + b"}\n", "nested too deeply"),
    "deep objects": (b'{"a":' * 40_000 + b"1" + b"}" * 40_000 + b"\n", "nested too deeply"),
    "a bomb of empty arrays": (b"[" + b"[]," * 400_000 + b"[]]\n", "brackets is no line of a trace"),
    "a bomb of empty objects": (b'{"kind":"record","event":[' + b"{}," * 400_000 + b"{}]}\n", "brackets is no line of a trace"),
    "an integer of many digits": (b'{"kind":"record","seq":' + b"9" * 5000 + b"}\n", "not JSON .an integer of too many digits"),
    "an integer of very many digits": (b'{"kind":"record","seq":' + b"9" * 1_000_000 + b"}\n", "not JSON .an integer of too many digits"),
    "a huge exponent": (PLAIN[1].replace(b'"temperature":0.0', b'"temperature":1e400'), "finite"),
    "a huge seed": (PLAIN[1].replace(b'"seed":"0"', b'"seed":"' + b"9" * 4000 + b'"'), "written as a string"),
    "a huge integer": (PLAIN[1].replace(b'"seq":0', b'"seq":' + b"9" * 4000), r"\$\.seq: integers must be below 2\*\*53"),
    "a gigantic line": (b'{"kind":"record","x":"' + b"x" * (16 * 1024 * 1024) + b'"}\n', "a line of more than 16777216 bytes"),
    "a gigantic torn line": (b"x" * (40 * 1024 * 1024), "a line of more than 16777216 bytes"),
    "a run of NUL": (b"\0" * 4096 + PLAIN[1], "NUL bytes"),
    "a line of NUL": (b"\0" * 4096 + b"\n", "NUL bytes"),
    "two objects on a line": (PLAIN[1].rstrip() + PLAIN[2], "not JSON .Extra data"),
    "a comma between objects": (PLAIN[1].rstrip() + b",\n", "not JSON .Extra data"),
    "a field twice": (PLAIN[1].replace(b'"seq":0', b'"seq":0,"seq":0'), "'seq' stands twice"),
    "a field twice inside": (PLAIN[1].replace(b'"width":3', b'"width":3,"width":3'), "'width' stands twice"),
    "very many fields": (
        b'{"kind":"record",' + b",".join(b'"f%d":0' % number for number in range(200_000)) + b"}\n",
        "unknown fields: f0, f1, f10, ",
    ),
    "very many fields, the last one twice": (
        b'{"kind":"record",' + b",".join(b'"f%d":0' % number for number in range(300_000)) + b',"f299999":0}\n',
        "'f299999' stands twice",
    ),
    "a byte order mark": (b"\xef\xbb\xbf" + PLAIN[1], "byte order mark"),
    "UTF-16": (PLAIN[1].decode().encode("utf-16"), "not UTF-8"),
    "a wrong type": (
        PLAIN[1].replace(b'"prompt":[', b'"prompt":{}, "x":['),
        "unknown fields: x.*expected an array, found {}|expected an array",
    ),
    "very many wrong items": (
        PLAIN[1].replace(b'"prompt":[', b'"prompt":[' + b'"x",' * 300_000),
        r"\$\.event\.prompt\[0\]: expected an integer",
    ),
    "no object": (b"17\n", "must be an object"),
    "nothing": (b"\n", "not JSON"),
    "NaN": (PLAIN[1].replace(b'"temperature":0.0', b'"temperature":NaN'), "NaN is not JSON"),
    "an unhashable tag": (PLAIN[1].replace(b'"type":"SessionOpened"', b'"type":[]'), r"\$\.type: unknown event type"),
    "an unhashable word": (PLAIN[1].replace(b'"rollback":"crop"', b'"rollback":{}'), r"\$\.event\.runtime\.rollback"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_case_8_3_a_hostile_line_gives_a_clear_error_in_bounded_memory(name: str, tmp_path: Path):
    line, message = HOSTILE[name]
    assert line not in PLAIN
    reader = written(tmp_path / "a.jsonl", [PLAIN[0], line, *PLAIN[1:]])
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=f"^line 2: .*({message})") as error:
            list(reader)
        assert len(str(error.value)) < 1500
        shown = []
        try:
            shown = list(reader.lenient())
        except TraceError as refused:
            assert "gigantic" in name and "max_line_bytes" in str(refused)
        assert all(isinstance(one, (Record, Unknown)) for one in shown)
        assert tracemalloc.get_traced_memory()[1] < 150 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "place", [b'"kind":"record"', b'"type":"SessionOpened"', b'"seq":0', b'"prompt":', b'"event":', b'"rollback":"crop"']
)
def test_nesting_at_the_edge_of_what_can_be_parsed_is_refused_like_any_other(place: bytes, tmp_path: Path):
    name = place.split(b":")[0]
    for line, start in ((PLAIN[1], [PLAIN[0]]), (PLAIN[0], [])):
        for depth in range(300, sys.getrecursionlimit() + 20, 7):
            deep = name + b":" + b"[" * depth + b"]" * depth + b","
            bad = line.replace(place, deep + b'"x":' if place.endswith(b":") else deep + b'"x":0')
            if bad == line:
                bad = line.replace(b'"version":3', b'"version":' + b"[" * depth + b"]" * depth)
            reader = written(tmp_path / "a.jsonl", [*start, bad, *PLAIN[len(start) + 1 :]])
            with pytest.raises(TraceError, match=f"line {len(start) + 1}: "):
                list(reader)
            shown = []
            try:
                for one in reader.lenient():
                    shown.append(one)
            except TraceError as error:
                assert "holds no segment of a trace" in str(error) and not start
            assert len(shown) >= len(PLAIN) - 2


def test_lines_may_end_as_windows_ends_them(tmp_path: Path):
    """Every line still parses; the digest says that the bytes are other ones."""
    reader = written(tmp_path / "a.jsonl", [line.replace(b"\n", b"\r\n") for line in PLAIN])
    with pytest.raises(TraceError, match=rf"line {len(PLAIN)}: \$\.sha256: .*the segment was changed"):
        list(reader)


def test_a_last_line_that_somebody_ended_was_not_torn(tmp_path: Path):
    reader = written(tmp_path / "a.jsonl", [*PLAIN[:3], b'{"kind":"rec\n'])
    with pytest.raises(TraceError, match="line 4: not JSON"):
        list(reader)
    for tail in (b'{"kind":"rec', b"{", b"\0" * 100, b'{"kind":"rec\0\0\0'):
        reader = written(tmp_path / "a.jsonl", [*PLAIN[:3], tail])
        assert len(list(reader)) == 2 and len(reader.torn) == 1
    for foreign in (b"hello", b"\xff", b'{"note":', b"\0hello"):
        for more in ([], [b"\n", *PLAIN]):
            with pytest.raises(TraceError, match="line 4: not"):
                list(written(tmp_path / "a.jsonl", [*PLAIN[:3], foreign, *more]))


def test_the_limit_of_a_line_can_be_moved(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with TraceWriter(path) as writer:
        writer.write(record(0, "x" * 5000))
    with pytest.raises(TraceError, match="line 2: a line of more than 4096 bytes; .* larger max_line_bytes"):
        list(TraceReader(path, max_line_bytes=4096))
    assert len(list(TraceReader(path, max_line_bytes=8192))) == 1


def test_a_trace_is_recognised_by_its_first_bytes(tmp_path: Path):
    for first in (
        b" " + PLAIN[0],
        PLAIN[0].replace(b'{"kind"', b'{ "kind"'),
        b'{"version":3,' + PLAIN[0][1:].replace(b'"version":3,', b""),
    ):
        with pytest.raises(TraceError, match='line 1: a header begins with {"kind":"header", without spaces'):
            list(written(tmp_path / "a.jsonl", [first, *PLAIN[1:]]))


def test_a_file_that_expands_without_end_is_refused_in_bounded_memory(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(PLAIN[0])
        for _ in range(64):
            file.write(b" " * (4 * 1024 * 1024))
    assert path.stat().st_size < 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="line 2: a line of more than"):
            list(TraceReader(path))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_compressed_file_by_another_name_says_so(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b"".join(PLAIN)))
    with pytest.raises(TraceError, match=r"line 1: not UTF-8 .*suffix \.gz"):
        list(TraceReader(path))
    path = tmp_path / "b.jsonl.gz"
    path.write_bytes(b"".join(PLAIN))
    with pytest.raises(TraceError, match="line 1: the compressed stream is damaged: not gzip"):
        list(TraceReader(path))
    path.write_bytes(gzip.compress(b"".join(PLAIN)))
    assert len(list(TraceReader(path))) == len(PLAIN) - 2


def test_case_8_6_every_line_is_strict_json():
    for path in GOLDEN.glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                got = json.loads(line, parse_constant=pytest.fail)
            except json.JSONDecodeError:
                assert path.name == "torn.jsonl"
                continue
            assert parse_line(line) == got


def test_a_record_is_read_as_it_was_written_with_any_width_of_integers(tmp_path: Path):
    event = Committed(tokens=(2**53 - 1, 0), accepted=0, source="span", position=2**53 - 1)
    with TraceWriter(tmp_path / "a.jsonl") as writer:
        writer.write(Record(seq=2**53 - 1, session=2**53 - 1, at_ns=10**40 - 1, event=event))
    (got,) = TraceReader(tmp_path / "a.jsonl")
    assert got.event == event and got.at_ns == 10**40 - 1
    assert len(encode_record(got).splitlines()) == 1
