"""Checking files: every violation with its record, many sessions in one pass, unusable told from violated."""

import gzip
import json

import attrs
import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import worlds

from spanfold.engine import Committed, Record, SpanVerified, fold
from spanfold.engine.replay import check, check_records
from spanfold.engine.replay.check import KEPT
from spanfold.engine.trace import TraceReader, TraceWriter, encode_record

LOGS = corpus.logs()


def written(path, *logs):
    """The logs one after the other, as sessions 0, 1, ..."""
    with TraceWriter(path) as writer:
        for number, log in enumerate(logs):
            for record in log:
                writer.write(attrs.evolve(record, session=number))
    return path


def test_true_logs_hold_and_are_counted(tmp_path):
    report = check(written(tmp_path / "run.jsonl", *LOGS.values()))
    (file,) = report.files
    assert (report.status, file.status, file.problem) == ("holds", "holds", None)
    assert file.records == sum(map(len, LOGS.values()))
    assert [(segment.records, segment.digest, segment.torn) for segment in file.segments] == [(file.records, "closed", None)]
    assert len(file.sessions) == len(LOGS)
    for session, log in zip(file.sessions, LOGS.values(), strict=True):
        state = fold(log)
        assert (session.records, session.phase, session.tokens) == (len(log), state.phase, state.stats.tokens)
        assert session.finish == (state.finish.reason if state.finish else None)
        assert (session.status, session.violations, session.found) == ("holds", (), 0)


def tampered(log, kind, nth=0, **fields):
    at = [index for index, record in enumerate(log) if isinstance(record.event, kind)][nth]
    return [*log[:at], attrs.evolve(log[at], event=attrs.evolve(log[at].event, **fields)), *log[at + 1 :]], at


def test_a_violation_names_the_law_the_session_and_the_record(tmp_path):
    log, at = tampered(LOGS["rejected"], Committed, nth=1, accepted=1)
    report = check(written(tmp_path / "run.jsonl", LOGS["plain"], log))
    (file,) = report.files
    assert (report.status, file.status) == ("violated", "violated")
    good, bad = file.sessions
    assert good.status == "holds" and bad.status == "violated"
    assert {(violation.law, violation.seq) for violation in bad.violations} >= {("fold", at), ("law 3", at)}
    assert str(next(one for one in bad.violations if one.law == "law 3")) == f"record {at}: law 3: accepted 1, min(matched, c) is 0"


def test_an_illegal_event_ends_the_fold_and_is_reported_once():
    log, at = tampered(LOGS["plain"], SpanVerified, base=0)
    (session,) = check_records(log)
    assert [violation.seq for violation in session.violations if violation.law == "fold"] == [at]


def test_no_more_violations_are_kept_than_a_person_reads():
    log = [LOGS["plain"][0], *(Record(seq=5, session=0, event=LOGS["plain"][2].event) for _ in range(3 * KEPT))]
    (session,) = check_records(log)
    assert len(session.violations) == KEPT < session.found


def test_a_changed_segment_is_a_violation_and_the_rest_of_the_file_is_checked_all_the_same(tmp_path):
    path = written(tmp_path / "run.jsonl", LOGS["plain"])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"cost_ns":', b'"cost_ns":1')
    path.write_bytes(b"".join(lines))
    with TraceWriter(path) as writer:
        for record in LOGS["accepted"]:
            writer.write(attrs.evolve(record, session=7))
    report = check(path)
    (file,) = report.files
    assert [segment.digest for segment in file.segments] == ["mismatch", "closed"]
    assert "digest" in file.segments[0].problem
    assert (report.status, [session.status for session in file.sessions]) == ("violated", ["holds", "holds"])


def test_a_torn_tail_and_a_missing_footer_are_told_and_hold(tmp_path):
    path = written(tmp_path / "run.jsonl", LOGS["plain"])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1])[:-20])  # no footer, and the last record cut
    report = check(path)
    (segment,) = report.files[0].segments
    assert (report.status, segment.digest, segment.records) == ("holds", "absent", len(LOGS["plain"]) - 1)
    assert "cut off" in segment.torn


@pytest.mark.parametrize(
    "content",
    [b"", b"no trace\n", b'{"kind":"record"}\n', None],
    ids=["empty", "text", "headless", "absent"],
)
def test_what_is_no_trace_is_unusable_and_not_violated(tmp_path, content):
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_bytes(content)
    report = check(path)
    assert report.status == report.files[0].status == "unusable"
    assert report.files[0].problem


@pytest.mark.parametrize(
    "change", [('"type":"Committed"', '"type":"Emitted"'), ('"accepted":', '"approved":'), ('"tokens":[', '"tokens":["')]
)
def test_a_record_that_is_not_understood_makes_the_file_unusable_and_says_where(tmp_path, change):
    path = written(tmp_path / "run.jsonl", LOGS["plain"])
    lines = path.read_text("ascii").splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type":"Committed"' in line)
    lines[at] = lines[at].replace(*change)
    path.write_text("".join(lines), "ascii")
    report = check(path)
    assert report.status == "unusable"
    assert f"line {at + 1}" in report.files[0].problem
    assert report.files[0].records == at - 1


def test_many_files_have_the_worst_status_of_theirs(tmp_path):
    good = written(tmp_path / "good.jsonl", LOGS["plain"])
    bad = written(tmp_path / "bad.jsonl", tampered(LOGS["plain"], Committed, accepted=1)[0])
    assert check([good, good]).status == "holds"
    assert check([good, bad]).status == "violated"
    assert check([good, bad, tmp_path / "absent.jsonl"]).status == "unusable"
    assert check(TraceReader(good)).status == "holds"


def test_a_second_run_that_appends_has_sessions_of_its_own(tmp_path):
    """Ids are counted per runtime: the second process begins at 0 again."""
    path = tmp_path / "run.jsonl"
    for name in ("plain", "accepted"):
        with TraceWriter(path) as writer:
            for record in LOGS[name]:
                writer.write(record)
    report = check(path)
    assert report.status == "holds"
    assert [(session.session, session.segment) for session in report.files[0].sessions] == [(0, 0), (0, 1)]


def test_within_one_run_a_second_opening_is_a_violation(tmp_path):
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as writer:
        for record in (*LOGS["plain"], *LOGS["accepted"]):
            writer.write(record)
    assert check(path).status == "violated"


def test_a_report_is_json(tmp_path):
    report = check(written(tmp_path / "run.jsonl", LOGS["plain"], tampered(LOGS["plain"], Committed, accepted=1)[0]))
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
    assert report.to_json()["files"][0]["sessions"][1]["violations"][0]["law"]


def test_a_compressed_trace_is_checked_like_any_other(tmp_path):
    plain = written(tmp_path / "run.jsonl", LOGS["plain"])
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert check(path).status == "holds"


@given(st.data())
@settings(max_examples=60)
def test_any_interleaving_of_sessions_comes_to_the_same(data):
    """Case 8.9: the order of records of different sessions means nothing; within a session it means everything."""
    names = data.draw(st.lists(st.sampled_from(sorted(LOGS)), min_size=2, max_size=5))
    logs = [[attrs.evolve(record, session=number) for record in LOGS[name]] for number, name in enumerate(names)]
    order = data.draw(st.permutations([number for number, log in enumerate(logs) for _ in log]))
    waiting = [iter(log) for log in logs]
    mixed = [next(waiting[number]) for number in order]
    by_session = {check.session: check for check in check_records(mixed)}
    assert [by_session[number] for number in range(len(logs))] == [check_records(log)[0] for log in logs]
    for number, log in enumerate(logs):
        assert fold(record for record in mixed if record.session == number) == fold(log)


@given(worlds(), worlds())
@settings(max_examples=40)
def test_sessions_decoded_in_turns_on_one_recorder_are_each_what_they_are_alone(one, other):
    benches = [world.bench() for world in (one, other)]
    mixed, alone = [], []
    sessions = []
    for number, (world, bench) in enumerate(zip((one, other), benches, strict=True)):
        bench.decoder.observers = type(bench.decoder.observers)(
            [bench.record, lambda record, number=number: mixed.append(attrs.evolve(record, session=number))]
        )
        sessions.append(bench.decoder.open(world.prompt, **world.turn))
    while not all(session.finished for session in sessions):
        for session in sessions:
            session.step()
    for bench, session in zip(benches, sessions, strict=True):
        session.close()
        alone.append(check_records(bench.logs[0])[0])
    checked = {found.session: found for found in check_records(mixed)}
    assert [attrs.evolve(checked[number], session=0) for number in (0, 1)] == alone
    assert all(found.status == "holds" for found in checked.values())


def test_the_lines_of_interleaved_sessions_are_those_of_each_alone(tmp_path):
    logs = [[attrs.evolve(record, session=number) for record in LOGS[name]] for number, name in enumerate(("plain", "turns"))]
    path = tmp_path / "run.jsonl"
    with TraceWriter(path) as writer:
        for records in zip(*logs, strict=False):
            for record in records:
                writer.write(record)
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if b'"kind":"record"' in line]
    assert kept[::2] == [encode_record(record) for record in logs[0][: len(kept) // 2]]
