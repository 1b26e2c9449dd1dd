"""Over sessions of every kind, with faults, rewinds, extensions and early ends: the spans are whole, and a trace gives the same ones."""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from hypothesis import given, settings
from hypothesis import strategies as st
from otel_bench import Otel, tree_of
from worlds import worlds

from spanfold.backends.scripted import Fault
from spanfold.engine import ConfigError, DecodeFailed, SessionClosed
from spanfold.engine.trace import TraceReader, TraceWriter
from spanfold.telemetry import names
from spanfold.telemetry.recorded import recorded_spans
from spanfold.telemetry.rounds import Options
from spanfold.telemetry.sending import as_sdk_spans

faults = st.builds(
    Fault,
    call=st.sampled_from(["open", "configure", "drop", "forward", "settle", "draft"]),
    at=st.integers(0, 6),
    started=st.booleans(),
)
acts = st.lists(st.sampled_from(["step", "step", "finish", "rewind", "extend", "cancel", "forget"]), max_size=10)


def drive(decoder, world, doing):
    """One session, whatever comes of it; the exceptions are those that a caller must expect."""
    cancelled = []
    try:
        session = decoder.open(world.prompt, cancel=lambda: bool(cancelled), **world.turn)
    except DecodeFailed:
        return
    for act in doing:
        try:
            if act == "step":
                session.step()
            elif act == "finish":
                while not session.finished:
                    session.step()
            elif act == "rewind":
                session.rewind(1)
            elif act == "extend":
                cancelled.clear()
                session.extend([0], max_tokens=4, cancel=lambda: bool(cancelled))
            elif act == "cancel":
                cancelled.append(True)
            else:
                break
        except (DecodeFailed, ConfigError):
            continue
        except SessionClosed:
            break
    if "forget" not in doing:
        session.close()
    del session  # a forgotten session is closed by its finalizer


@given(world=worlds(), fault=st.none() | faults, doing=acts, level=st.sampled_from(["rounds", "debug"]))
@settings(max_examples=150)
def test_spans_are_whole_and_a_trace_gives_the_same_ones(world, fault, doing, level):
    otel, now = Otel(), itertools.count(1000, 10)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with TraceWriter(path) as writer:
            observing = {"observers": [otel.observer(level)], "recorder": writer, "clock": lambda: next(now)}
            bench = world.bench(decoder=observing, faults=[fault] if fault else [])
            drive(bench.decoder, world, doing)
            bench.decoder.close()
        recorded = list(as_sdk_spans(recorded_spans(TraceReader(path), Options(level=level))))
        summary = list(as_sdk_spans(recorded_spans(TraceReader(path), Options(level="summary"))))
    assert bench.decoder.observers.errors == [0, 0]
    assert tree_of(recorded) == tree_of(otel.spans)
    assert tree_of(summary) == [(*turn[:-1], []) for turn in tree_of(recorded)], "a turn is the same at every level"

    events = [event for log in bench.logs.values() for event in (record.event for record in log)]
    begun = sum(type(event).__name__ in ("SessionOpened", "Extended") for event in events)
    continued = sum(names.TURN_CONTINUED in turn.attributes for turn in otel.turns)
    assert len(otel.turns) == begun + continued
    forwards = sum(type(event).__name__ in ("Prefilled", "SpanVerified", "SerialDecoded") for event in events)
    assert sum(turn.attributes[names.FORWARDS] for turn in otel.turns) == forwards
    assert otel.metrics().get(names.M_SESSIONS, {(): 0}) == {(): 0}

    ids = {span.context.span_id for span in otel.spans}
    assert len(ids) == len(otel.spans), "each span ends once"
    for turn in otel.turns:
        below = [span for span in otel.spans if span.parent is not None and span.parent.span_id == turn.context.span_id]
        last = turn.start_time
        for span in sorted(below, key=lambda span: (span.start_time, span.end_time)):
            assert last <= span.start_time <= span.end_time <= turn.end_time
            last = span.end_time
    for span in otel.spans:
        assert span.parent is None or span.parent.span_id in ids
