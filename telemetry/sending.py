"""Where the SDK is needed: sending recorded spans by OTLP over HTTP, and the providers of ``spanfold generate --otel``.

The observer knows none of this: who embeds spanfold brings providers of their own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from ..engine.errors import SpanfoldError
from . import names
from .formats import BATCH, resource
from .observer import OTelObserver
from .recorded import RecordedSpan
from .rounds import Options

__all__ = ["NotSent", "endpoint", "live_observer", "send"]

_DEFAULT: Final = "http://localhost:4318"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class NotSent(SpanfoldError):
    """A collector took no spans."""


def endpoint(url: str | None, signal: str) -> str:
    """Where a signal (``traces``, ``metrics``) goes: below a base URL, as OTEL_EXPORTER_OTLP_ENDPOINT is one, or to that very path."""
    base = (url or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or _DEFAULT).rstrip("/")
    for known in ("traces", "metrics"):
        base = base.removesuffix(f"/v1/{known}")
    return f"{base}/v1/{signal}"


# -- recorded spans ----------------------------------------------------------------------------------------------------


class _Ids(IdGenerator):
    """Gives the ids that were set."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Kept(SpanProcessor):
    """Keeps what has ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def as_sdk_spans(spans: Iterable[RecordedSpan]) -> Iterator[ReadableSpan]:
    """The same as spans of the SDK, with the same ids and times."""
    ids, kept = _Ids(), _Kept()
    provider = TracerProvider(sampler=ALWAYS_ON, id_generator=ids, resource=Resource.create(resource()), shutdown_on_exit=False)
    provider.add_span_processor(kept)
    tracer = provider.get_tracer(names.SCOPE)
    for span in spans:
        ids.trace_id, ids.span_id = span.trace_id, span.span_id
        parent = None
        if span.parent_id is not None:
            above = SpanContext(span.trace_id, span.parent_id, is_remote=False, trace_flags=_SAMPLED)
            parent = set_span_in_context(NonRecordingSpan(above))
        made = tracer.start_span(span.name, context=parent, attributes=span.attributes, start_time=span.start_ns)
        if span.problem is not None:
            made.set_status(Status(StatusCode.ERROR, span.problem.description))
        made.end(span.end_ns)
        yield kept.spans.pop()


def send(spans: Iterable[RecordedSpan], url: str) -> int:
    """Send spans to a collector's OTLP over HTTP; returns how many.

    Raises:
        NotSent: it was not reached, or refused them; those before were taken.
    """
    where = endpoint(url, "traces")
    count, source = 0, as_sdk_spans(spans)
    with _listening() as heard:
        exporter = OTLPSpanExporter(endpoint=where)
        try:
            while batch := list(islice(source, BATCH)):
                if exporter.export(batch) is not SpanExportResult.SUCCESS:
                    raise NotSent(f"{where} took {count} spans and no more: {heard.why} (is a collector listening there?)")
                count += len(batch)
        finally:
            exporter.shutdown()
    return count


# -- live --------------------------------------------------------------------------------------------------------------


class _Counted(SpanExporter):
    """Counts what another exporter could not send."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


@contextmanager
def live_observer(url: str | None, options: Options, most_spans: int) -> Generator[tuple[OTelObserver, list[str]]]:
    """An observer with providers of its own that send by OTLP over HTTP; everything is sent when it is left.

    Args:
        url: the collector; None: OTEL_EXPORTER_OTLP_ENDPOINT, else this machine.
        options: what goes into spans.
        most_spans: the queue holds as many, so that none is dropped.

    Yields:
        The observer, and a list that afterwards holds a line for whatever went wrong.
    """
    complaints: list[str] = []
    where = endpoint(url, "traces")
    made = Resource.create(resource())
    with _listening() as heard:
        exporter = _Counted(OTLPSpanExporter(endpoint=where))
        tracers = TracerProvider(resource=made, shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=max(most_spans, 2048)))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint(url, "metrics")))
        meters = MeterProvider([reader], resource=made, shutdown_on_exit=False)
        observer = OTelObserver(
            tracers,
            meters,
            level=options.level,
            record_token_ids=options.record_token_ids,
            original_names=options.original_names,
        )
        try:
            yield observer, complaints
        finally:
            observer.close()
            tracers.shutdown()
            if exporter.lost:
                complaints.append(f"{where} did not take {exporter.lost} spans: {heard.why}")
            heard.first = ""
            meters.shutdown()
            if heard.first:
                complaints.append(f"{endpoint(url, 'metrics')} did not take the metrics: {heard.why}")


class _Heard(logging.Handler):
    """Remembers the first warning of the exporters, which names the cause, to be told in one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    @property
    def why(self) -> str:
        """The reason, as far as one was logged."""
        return " ".join(self.first.split())[:300] or "no reason was given"

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


@contextmanager
def _listening() -> Generator[_Heard]:
    """Have the exporters tell us instead of the terminal."""
    logger, heard = logging.getLogger("opentelemetry"), _Heard()
    before = logger.propagate
    logger.addHandler(heard)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.propagate = before
        logger.removeHandler(heard)
