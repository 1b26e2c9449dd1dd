"""Spans from a recorded trace: the same as the live ones, with ids that are always the same; to files and to a tree."""

import gzip
import json
import os
import stat
import threading

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from otel_bench import Otel, record, spans_of, tree_of

from spanfold.backends.scripted import Fault, adversarial
from spanfold.engine import DecodeFailed, Decoder, SpanfoldError
from spanfold.engine.cli import main
from spanfold.engine.trace import TraceWriter
from spanfold.telemetry.sending import as_sdk_spans


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path)
    return path


# -- the same spans ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"record_token_ids": True, "original_names": True}], ids=["plain", "all options"])
@pytest.mark.parametrize("level", ["summary", "rounds", "debug"])
def test_a_trace_gives_the_spans_that_the_live_observer_wrote(tmp_path, level, options):
    if level == "summary":
        options = {name: value for name, value in options.items() if name != "original_names"}
    path = tmp_path / "run.jsonl"
    live = record(path, level=level, **options)
    recorded = list(as_sdk_spans(spans_of(path, level, **options)))
    assert tree_of(recorded) == tree_of(live.spans)
    assert len(tree_of(recorded)) == 4


def test_a_failed_turn_too(tmp_path):
    path, otel = tmp_path / "run.jsonl", Otel()
    with TraceWriter(path) as writer:
        bench = otel.bench("debug", decoder={"recorder": writer}, faults=[Fault(call="settle", at=1, started=True)])
        with pytest.raises(DecodeFailed):
            bench.decoder.generate([1, 2, 3], max_tokens=9)
    assert tree_of(list(as_sdk_spans(spans_of(path)))) == tree_of(otel.spans)
    assert any(span.problem for span in spans_of(path))


def test_ids_are_the_same_every_time_and_shared_by_no_other_run(trace, tmp_path):
    def ids(path):
        return [(span.trace_id, span.span_id, span.parent_id) for span in spans_of(path)]

    assert ids(trace) == ids(trace)
    every = [span_id for _, span_id, _ in ids(trace)]
    assert len(every) == len(set(every))
    other = tmp_path / "other.jsonl"
    record(other)
    assert not {one[1] for one in ids(trace)} & {one[1] for one in ids(other)}, "another run, whose times differ"


def test_ids_do_not_depend_on_what_else_is_in_the_file(trace):
    """A round keeps its id when the level changes: a link into Jaeger stays good."""
    turns = {span.span_id for span in spans_of(trace, "summary")}
    assert turns == {span.span_id for span in spans_of(trace, "debug") if span.parent_id is None}


def test_sessions_that_are_interleaved_keep_their_own_rounds(tmp_path):
    path, otel = tmp_path / "two.jsonl", Otel()
    with TraceWriter(path) as writer:
        decoder = otel.bench("rounds", decoder={"recorder": writer}).decoder
        one, two = decoder.open([1, 2, 3], max_tokens=8), decoder.open([4, 5], max_tokens=8)
        while not (one.finished and two.finished):
            one.step()
            two.step()
        one.close()
        two.close()
    assert tree_of(list(as_sdk_spans(spans_of(path, "rounds")))) == tree_of(otel.spans)


def test_a_turn_that_the_trace_does_not_end_is_unfinished_and_ends_with_its_newest_record(tmp_path, capsys):
    path = tmp_path / "torn.jsonl"
    record(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:14]) + lines[14][:20])
    turn = [span for span in spans_of(path) if span.parent_id is None][-1]
    assert turn.attributes["spanfold.finish.reason"] == "unfinished"
    newest = json.loads(lines[13])
    assert turn.end_ns == int(newest["at_ns"])
    assert main(["spans", str(path)]) == 0
    assert "torn" in capsys.readouterr().err


def test_a_session_that_was_resumed_in_another_process_has_two_spans(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:14]))
    runtime = Otel().bench().runtime
    with TraceWriter(path) as writer, Decoder(runtime, policy=3, recorder=writer) as decoder, decoder.resume(path) as session:
        list(session)
    first, second = (span for span in spans_of(path) if span.parent_id is None)
    assert (first.attributes["spanfold.finish.reason"], second.attributes["spanfold.finish.reason"]) == ("unfinished", "length")
    assert second.attributes["spanfold.turn.continued"] is True
    tokens = [span.attributes["gen_ai.usage.output_tokens"] for span in (first, second)]
    assert sum(tokens) == 9 and all(tokens)


def test_a_turn_lasts_as_long_at_every_level_wherever_it_was_cut_and_whether_or_not_it_was_resumed(tmp_path):
    """A turn that a resume ends took 0 at the level summary, and at rounds and debug what their spans knew of."""
    whole, path = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    with TraceWriter(whole) as writer:
        decoder = Otel().bench("summary", decoder={"recorder": writer}, drafts=adversarial()).decoder
        with decoder.open([1, 2, 3], max_tokens=9) as session:
            session.step()
            session.step()
            session.rewind(3)  # in the middle of the turn
            list(session)
            session.extend([5, 6], max_tokens=5)
            list(session)
    lines = whole.read_bytes().splitlines(keepends=True)
    kinds = set()
    for cut in range(2, len(lines) - 1):
        path.write_bytes(b"".join(lines[:cut]))
        for resumed in (False, True):
            if resumed:
                with TraceWriter(path) as writer, Decoder(Otel().bench().runtime, policy=3, recorder=writer) as decoder:
                    try:
                        session = decoder.resume(path)
                    except SpanfoldError:  # its session was dropped already
                        break
                    with session:
                        list(session)
            levels = [[span for span in spans_of(path, level) if span.parent_id is None] for level in ("summary", "rounds", "debug")]
            seen = [[(span.start_ns, span.end_ns, dict(span.attributes)) for span in turns] for turns in levels]
            assert seen[0] == seen[1] == seen[2], f"cut after line {cut}, resumed {resumed}"
            first = levels[0][0]
            if first.attributes["spanfold.finish.reason"] == "unfinished":
                kinds.add(resumed)
                assert first.end_ns == int(json.loads(lines[cut - 1])["at_ns"]), "it ends with its newest record"
    assert kinds == {False, True}


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_tree_shows_every_span_below_its_parent(trace, capsys):
    assert main(["spans", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(spans_of(trace)) + 4, "a line per span and one per turn's trace"
    depths = [len(line) - len(line.lstrip()) for line in lines]
    assert set(depths) == {0, 2, 4}
    assert main(["spans", str(trace), "--level", "summary", "--console"]) == 0
    out = capsys.readouterr().out
    assert out.count("text_completion") == 4 and "spanfold.span" not in out


def test_json_is_otlps_and_decodes_to_the_same_spans(trace, tmp_path):
    """Read back by protobuf's own JSON parser (ids are hex there, by OTLP's exception)."""
    from google.protobuf.json_format import Parse

    file = tmp_path / "spans.json"
    assert main(["spans", str(trace), "--json", str(file)]) == 0
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        request = json.loads(line)
        for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            found.append(span)
            for name, size in (("traceId", 32), ("spanId", 16), ("parentSpanId", 16)):
                if name in span:
                    assert len(span.pop(name)) == size
        Parse(json.dumps(request), otlp.ExportTraceServiceRequest())
    wanted = spans_of(trace)
    assert [(span["name"], int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])) for span in found] == [
        (span.name, span.start_ns, span.end_ns) for span in wanted
    ]
    assert [len(span["attributes"]) for span in found] == [len(span.attributes) for span in wanted]


def test_perfetto_events_nest_by_time_on_their_sessions_thread(trace, tmp_path):
    file = tmp_path / "spans.perfetto.json"
    assert main(["spans", str(trace), "--perfetto", str(file)]) == 0
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    named = [event for event in events if event["ph"] == "M"]
    assert {(event["name"], event["args"]["name"]) for event in named} == {
        ("process_name", "spanfold, segment 0"), ("thread_name", "session 0"), ("thread_name", "session 1"),
    }  # fmt: skip
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(spans_of(trace))
    for thread in {event["tid"] for event in spans}:
        open_until = []
        for event in (event for event in spans if event["tid"] == thread):
            start, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            assert start >= 0 and (not open_until or end <= open_until[-1] + 1e-6), "slices of one thread must nest"
            open_until.append(end)


def test_compressed_and_standard_output(trace, tmp_path, capsys):
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert main(["spans", str(packed), "--json", "-", "--level", "summary"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert len(json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 4


def test_what_is_no_trace_is_one_line(tmp_path, capsys):
    path = tmp_path / "no.jsonl"
    path.write_text("nonsense\n", encoding="utf-8")
    for arguments in ([str(path)], [str(tmp_path / "missing.jsonl")], [str(path), "--original-names", "--level", "summary"]):
        assert main(["spans", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("form", ["--json", "--perfetto"])
@pytest.mark.parametrize("name", ["itself", "a symbolic link", "a hard link"])
def test_the_trace_itself_is_not_written_over(trace, tmp_path, capsys, form, name):
    before, link = trace.read_bytes(), tmp_path / "link.jsonl"
    if name == "a symbolic link":
        link.symlink_to(trace)
    elif name == "a hard link":
        link.hardlink_to(trace)
    written = trace if name == "itself" else link
    assert main(["spans", str(trace), form, str(written)]) == 2
    error = capsys.readouterr().err
    assert str(written) in error and "name another file" in error and error.count("\n") == 1
    assert trace.read_bytes() == before


@pytest.mark.parametrize("form", ["--json", "--perfetto"])
@pytest.mark.parametrize("bad", ["missing", "empty", "damaged late"])
def test_a_failure_leaves_what_was_there_and_nothing_beside_it(trace, tmp_path, capsys, form, bad):
    """Damage after the first turn's end: spans were made by then."""
    source = tmp_path / "bad.jsonl"
    if bad == "empty":
        source.touch()
    elif bad == "damaged late":
        *lines, last = trace.read_bytes().splitlines(keepends=True)
        source.write_bytes(b"".join(lines) + b"nonsense\n" + last)
    folder = tmp_path / "out"
    folder.mkdir()
    kept, new = folder / "kept.json", folder / "new.json"
    kept.write_text("what was there", encoding="utf-8")
    for written in (kept, new):
        assert main(["spans", str(source), form, str(written)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert [(one.name, one.read_text(encoding="utf-8")) for one in folder.iterdir()] == [("kept.json", "what was there")]


def test_what_is_replaced_keeps_its_place_and_its_mode(trace, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    file, link = folder / "spans.json", tmp_path / "link.json"
    file.write_text("older", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    assert main(["spans", str(trace), "--json", str(link)]) == 0
    assert link.is_symlink() and json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert file.stat().st_mode & 0o777 == 0o640 and [one.name for one in folder.iterdir()] == ["spans.json"]


def test_a_pipe_is_written_and_stays_one(trace, tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    assert main(["spans", str(trace), "--perfetto", str(pipe)]) == 0
    reader.join()
    assert json.loads(got[0])["traceEvents"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_is_not_there_is_named_as_it_was_given(trace, tmp_path, capsys):
    written = tmp_path / "nowhere" / "spans.json"
    assert main(["spans", str(trace), "--json", str(written)]) == 2
    assert capsys.readouterr().err.startswith(f"spanfold spans: {written}: ")
