"""Where the SDK is needed: sending recorded spans by OTLP over HTTP, and the providers of ``spanfold generate --otel``.

The observer knows none of this: who embeds spanfold brings providers of their own.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from ..engine.errors import ConfigError, SpanfoldError
from . import names
from .formats import BATCH, resource
from .observer import OTelObserver
from .recorded import RecordedSpan
from .rounds import Options

__all__ = ["PATIENCE_S", "NotSent", "endpoint", "live_observer", "patience_s", "send"]

#: Seconds that ``spanfold generate`` waits for a collector; the exporters' own 10 for each request made 16 in all of saying nothing.
PATIENCE_S: Final = 4.0

_DEFAULT: Final = "http://localhost:4318"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
R = TypeVar("R")


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
                    raise NotSent(f"{where} took {count} spans and no more: {heard.why('trace')} (is a collector listening there?)")
                count += len(batch)
        finally:
            exporter.shutdown()
    return count


# -- live --------------------------------------------------------------------------------------------------------------


class _Patience:
    """Tries to send; once the decode is done, no longer than so many seconds and nothing more after a failure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = math.inf

    def hurry(self) -> None:
        """The decode is done, and somebody waits."""
        self._until = time.monotonic() + self._seconds

    def tried(self, export: Callable[[], R], failure: R) -> R:
        """What ``export`` returns; ``failure`` without a try where it is too late."""
        if time.monotonic() >= self._until:
            return failure
        result = export()
        if result is failure and self._until < math.inf:
            self._until = 0.0
        return result


class _Spans(SpanExporter):
    """Counts what another exporter could not send."""

    def __init__(self, inner: SpanExporter, patience_s: float) -> None:
        self._inner = inner
        self.patience = _Patience(patience_s)
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.patience.tried(lambda: self._inner.export(spans), SpanExportResult.FAILURE)
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class _Metrics(OTLPMetricExporter):
    """Knows whether the newest state of the metrics was sent; they are sums, so it holds all before."""

    def __init__(self, url: str, patience_s: float) -> None:
        super().__init__(endpoint=url, timeout=patience_s)
        self.patience = _Patience(patience_s)
        self.lost = False

    def export(self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any) -> MetricExportResult:
        send = partial(super().export, metrics_data, timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        result = self.patience.tried(send, MetricExportResult.FAILURE)
        self.lost = result is not MetricExportResult.SUCCESS
        return result


def patience_s() -> float:
    """How long a collector may take for one request, and for all that is left at the end, in seconds: OTEL_EXPORTER_OTLP_TIMEOUT.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    given = os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT")
    if not given:
        return PATIENCE_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_TIMEOUT must be a number of seconds above 0, not {given!r}")
    return seconds


@contextmanager
def live_observer(url: str | None, options: Options, most_spans: int) -> Generator[tuple[OTelObserver, list[str]]]:
    """An observer with providers of its own that send by OTLP over HTTP; when it is left, everything is sent or given up.

    Args:
        url: the collector; None: OTEL_EXPORTER_OTLP_ENDPOINT, else this machine.
        options: what goes into spans.
        most_spans: the queue holds as many, so that none is dropped.

    Yields:
        The observer, and a list that afterwards holds a line if something went wrong.
    """
    complaints: list[str] = []
    where, patience = endpoint(url, "traces"), patience_s()
    made = Resource.create(resource())
    with _listening() as heard:
        spans = _Spans(OTLPSpanExporter(endpoint=where, timeout=patience), patience)
        tracers = TracerProvider(resource=made, shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(spans, max_queue_size=max(most_spans, 2048)))
        metrics = _Metrics(endpoint(url, "metrics"), patience)
        meters = MeterProvider([PeriodicExportingMetricReader(metrics)], resource=made, shutdown_on_exit=False)
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
            spans.patience.hurry()
            metrics.patience.hurry()
            with ThreadPoolExecutor(1) as beside:  # both at once: where nobody listens, each takes all its time
                closing = beside.submit(meters.shutdown)
                tracers.shutdown()
                closing.result()
            if spans.lost:
                complaints.append(f"{where} did not take {spans.lost} spans{', nor the metrics' * metrics.lost}: {heard.why('trace')}")
            elif metrics.lost:
                complaints.append(f"{endpoint(url, 'metrics')} did not take the metrics: {heard.why('metric')}")


class _Heard(logging.Handler):
    """Remembers the first warning of each exporter, which names the cause, to be told in one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._first: dict[str, str] = {}

    def why(self, signal: str) -> str:
        """The reason, as far as one was logged; ``signal``: trace or metric."""
        told = [text for name, text in self._first.items() if signal in name] or list(self._first.values())
        return " ".join(told[0].split())[:300] if told else "no reason was given"

    def emit(self, record: logging.LogRecord) -> None:
        self._first.setdefault(record.name, record.getMessage())


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
