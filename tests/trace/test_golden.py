"""The golden traces of every version: whatever this engine becomes, it reads them, and decides them as they were decided."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.engine import EVENT_TYPES, Record, fold, redrive, state_violations
from spanfold.engine.errors import TraceError
from spanfold.engine.trace import TraceReader, encode_record
from spanfold.engine.trace.header import FORMAT_VERSION

HERE = Path(__file__).parent
FOLDERS = {"golden": 1, "golden-2": 2, "golden-3": 3}  # folder -> version of the format
SUMS = {
    f"{folder}/{name}": digest
    for folder in FOLDERS
    for digest, name in (line.split("  ") for line in (HERE / folder / "SHA256SUMS").read_text(encoding="ascii").splitlines())
}
TORN = {"torn.jsonl": 2}


def sessions(records: list[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.session, []).append(record)
    return found


def test_the_golden_traces_are_the_ones_that_were_recorded():
    for folder, version in FOLDERS.items():
        here = {name.partition("/")[2] for name in SUMS if name.startswith(f"{folder}/")}
        assert {path.name for path in (HERE / folder).iterdir()} == {*here, "SHA256SUMS"}
        assert json.loads((HERE / folder / "accepted.jsonl").read_bytes().splitlines()[0])["version"] == version
    assert max(FOLDERS.values()) == FORMAT_VERSION
    for name, digest in SUMS.items():
        assert hashlib.sha256((HERE / name).read_bytes()).hexdigest() == digest, f"{name} was changed: a new format is a new version"


@pytest.mark.parametrize("name", SUMS)
def test_a_golden_trace_reads_folds_and_redrives(name: str):
    reader = TraceReader(HERE / name)
    records = list(reader)
    assert records and len(reader.torn) == TORN.get(Path(name).name, 0)
    assert all(segment.closed != (segment.torn is not None) for segment in reader.segments)
    for log in sessions(records).values():
        state = fold(log)
        assert state_violations(state) == () or not state.boundary
        assert list(redrive(log)) == log


@pytest.mark.parametrize("name", [name for name in SUMS if "golden-3" in name and "torn" not in name and "gz" not in name])
def test_records_are_still_written_as_they_were(name: str):
    lines = (HERE / name).read_bytes().splitlines(keepends=True)
    assert [encode_record(record) for record in TraceReader(HERE / name)] == lines[1:-1]


@pytest.mark.parametrize(
    ("folder", "kind", "where", "name", "value"),
    [
        ("golden", "SessionOpened", ("event",), "prior", None),
        ("golden", "DraftOffered", ("event",), "probe", False),
        ("golden-2", "SessionOpened", ("event", "runtime"), "rollback_note", ""),
        ("golden-2", "SessionResumed", ("event", "runtime"), "rollback_note", ""),
    ],
)
def test_a_trace_that_holds_what_its_version_had_not_is_refused(
    folder: str, kind: str, where: tuple[str, ...], name: str, value: object, tmp_path: Path
):
    lines = (HERE / folder / f"{'resumed' if kind == 'SessionResumed' else 'accepted'}.jsonl").read_bytes().splitlines()
    at = next(at for at, line in enumerate(lines) if json.loads(line).get("type") == kind)
    wrong = json.loads(lines[at])
    inner = wrong
    for step in where:
        inner = inner[step]
    inner[name] = value
    lines[at] = json.dumps(wrong, separators=(",", ":")).encode()
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(TraceError, match=f"version {FOLDERS[folder]} has no field '{name}'"):
        list(TraceReader(path))


def test_together_they_hold_every_type_of_event_and_every_reason():
    records = [record for name in SUMS for record in TraceReader(HERE / name)]
    assert {type(record.event) for record in records} == set(EVENT_TYPES)
    finished = {record.event.reason for record in records if type(record.event).__name__ == "SessionFinished"}
    assert finished == {"stop_token", "stop_text", "stop_when", "length", "cancelled", "closed", "failed"}
    cut = {record.event.cut_by for record in records if type(record.event).__name__ == "Committed"}
    assert cut == {"none", "stop_token", "stop_text", "stop_when", "stop_when_error", "length", "cancelled"}
    calls = {record.event.call for record in records if type(record.event).__name__ == "RuntimeFailed"}
    assert calls >= {"open", "configure", "prefill", "serial", "span", "settle", "drop"}


def test_the_recording_script_changes_no_golden_trace(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("kept")
    script = Path(__file__).parents[2] / "tools" / "record_traces.py"
    run = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and "recorded once" in run.stderr
    assert (tmp_path / "a.jsonl").read_text() == "kept"
