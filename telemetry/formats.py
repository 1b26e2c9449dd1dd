"""Spans of a trace as text: a tree for people, OTLP's JSON for collectors, trace events for Perfetto. Nothing needs OpenTelemetry."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from . import names
from .recorded import RecordedSpan
from .spans import Value

__all__ = ["BATCH", "otlp_json", "perfetto_json", "resource", "tree"]

#: Spans of one request; a long trace is written in several.
BATCH: Final = 512

_INTERNAL: Final = 1  # OTLP's SPAN_KIND_INTERNAL
_FLAGS: Final = 0x101  # sampled; the parent is known not to be remote
_ERROR: Final = 2  # OTLP's STATUS_CODE_ERROR

#: What the tree shows of each span, by a short word.
_SHOWN: Final = {
    names.OUTPUT_TOKENS: "tokens",
    names.FORWARDS: "forwards",
    names.SAVED_NET: "saved",
    names.ACCEPTANCE_RATE: "acceptance",
    names.FINISH_REASON: "finish",
    names.ROWS: "rows",
    names.VERIFIED: "verified",
    names.ACCEPTED: "accepted",
    names.COMMITTED: "committed",
    names.CUT_BY: "cut by",
    names.SERIAL_REASON: "reason",
    names.DRAFT_LIMIT: "limit",
    names.DRAFTED: "drafted",
    names.SETTLED_BY: "",
    names.REPLAYED_ROWS: "replayed",
    names.ERROR_TYPE: "error",
}


def resource(service: str = "spanfold") -> dict[str, str]:
    """The resource that exported spans name."""
    return {"service.name": service}


# -- for people --------------------------------------------------------------------------------------------------------


def tree(spans: Iterable[RecordedSpan]) -> Iterator[str]:
    """Each turn as an indented tree, a line per span: name, duration, the most telling attributes."""
    waiting: dict[int, list[RecordedSpan]] = defaultdict(list)
    for span in spans:
        if span.parent_id is not None:
            waiting[span.parent_id].append(span)
        else:
            yield f"trace {span.trace_id:032x}, {span.session}"
            yield from _branch(span, waiting, span.start_ns)


def _branch(span: RecordedSpan, waiting: dict[int, list[RecordedSpan]], zero_ns: int) -> Iterator[str]:
    told = [
        f"{word} {_short(span.attributes[name])}".strip()
        for name, word in _SHOWN.items()
        if name in span.attributes and span.attributes[name] not in (0, "")
    ]
    at, took = (span.start_ns - zero_ns) / 1e6, (span.end_ns - span.start_ns) / 1e6
    yield f"{'  ' * span.depth}{span.name}  at {at:.3f} ms, {took:.3f} ms" + (f"  {', '.join(told)}" if told else "")
    for child in sorted(waiting.pop(span.span_id, ()), key=lambda child: child.start_ns):
        yield from _branch(child, waiting, zero_ns)


def _short(value: Value) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


# -- OTLP --------------------------------------------------------------------------------------------------------------


def otlp_json(spans: Iterable[RecordedSpan]) -> Iterator[str]:
    """OTLP's JSON: an ``ExportTraceServiceRequest`` per line, as the collector's file exporter writes and its file receiver reads it."""
    batch: list[dict[str, Any]] = []
    for span in spans:
        batch.append(_otlp_span(span))
        if len(batch) >= BATCH:
            yield _request(batch)
            batch = []
    if batch:
        yield _request(batch)


def _request(batch: list[dict[str, Any]]) -> str:
    scoped = {"scope": {"name": names.SCOPE}, "spans": batch}
    request = {"resourceSpans": [{"resource": {"attributes": _otlp_attributes(resource())}, "scopeSpans": [scoped]}]}
    return json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _otlp_span(span: RecordedSpan) -> dict[str, Any]:
    # Ids in hex and 64-bit integers as strings, as OTLP's JSON demands.
    found: dict[str, Any] = {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "flags": _FLAGS,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _otlp_attributes(span.attributes),
    }
    if span.parent_id is not None:
        found["parentSpanId"] = f"{span.parent_id:016x}"
    if span.problem is not None:
        found["status"] = {"code": _ERROR, "message": span.problem.description}
    return found


def _otlp_attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _otlp_value(value)} for key, value in attributes.items()]


def _otlp_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_otlp_value(one) for one in value]}}


# -- Perfetto ----------------------------------------------------------------------------------------------------------


def perfetto_json(spans: Iterable[RecordedSpan]) -> Iterator[str]:
    """The Trace Event Format, which Perfetto and chrome://tracing read: a process per segment, a thread per session.

    In pieces, to be written one after the other. Times are microseconds from the first span's.
    """
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    first = True
    zero_ns: int | None = None
    named: set[tuple[int, int]] = set()
    waiting: dict[int, list[RecordedSpan]] = defaultdict(list)
    for span in spans:
        waiting[span.trace_id].append(span)
        if span.parent_id is not None:
            continue
        held = waiting.pop(span.trace_id)
        # A turn ends after its rounds, and a viewer wants the outer one first.
        held.sort(key=lambda one: (one.start_ns, one.depth))
        if zero_ns is None:
            zero_ns = held[0].start_ns
        pid, tid = span.session.segment + 1, span.session.session + 1
        events: list[dict[str, Any]] = []
        if (pid, tid) not in named:
            named.add((pid, tid))
            events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"spanfold, segment {pid - 1}"}})
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"session {tid - 1}"}})
        events += [_event(one, one.start_ns - zero_ns, pid, tid) for one in held]
        for event in events:
            yield ("" if first else ",\n") + json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            first = False
    yield "\n]}\n"


def _event(span: RecordedSpan, from_ns: int, pid: int, tid: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {**span.attributes}
    if span.problem is not None:
        arguments["error"] = span.problem.description
    return {
        "ph": "X",
        "name": span.name,
        "cat": "turn" if span.parent_id is None else "part" if span.depth > 1 else "round",
        "ts": from_ns / 1000,
        "dur": (span.end_ns - span.start_ns) / 1000,
        "pid": pid,
        "tid": tid,
        "args": arguments,
    }
