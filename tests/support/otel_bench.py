"""Providers that keep everything in memory, and a scripted decode that writes to them."""

from harness import Bench
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spanfold.engine.trace import TraceReader, TraceWriter
from spanfold.telemetry import OTelObserver
from spanfold.telemetry.recorded import recorded_spans
from spanfold.telemetry.rounds import Options


class Otel:
    """Providers of a test: nothing is set globally."""

    def __init__(self, sampler=None):
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer = self.tracers.get_tracer("caller")

    def observer(self, level="rounds", **options):
        return OTelObserver(self.tracers, self.meters, level=level, **options)

    def bench(self, level="rounds", observer=None, **options):
        """A decoder with an observer; ``Bench.logs`` keeps the records."""
        given = options.pop("decoder", {})
        self.watching = self.observer(level, **(observer or {}))
        return Bench(decoder={"observers": [self.watching], **given}, **options)

    @property
    def spans(self):
        """What has ended, in that order."""
        return self.exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    @property
    def turns(self):
        return [span for span in self.spans if span.name.startswith("text_completion")]

    @property
    def turn(self):
        (span,) = self.turns
        return span

    def metrics(self):
        """name -> {attributes without model and backend: value, or (count, sum) of a histogram}."""
        found = {}
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = found.setdefault(metric.name, {})
                    for point in metric.data.data_points:
                        key = tuple(sorted((k, v) for k, v in point.attributes.items() if k not in COMMON))
                        points[key] = point.value if hasattr(point, "value") else (point.count, point.sum)
        return found


COMMON = ("gen_ai.request.model", "spanfold.backend", "gen_ai.operation.name", "gen_ai.provider.name")


def tree_of(spans):
    """Nested (name, start, end, attributes, status, children), whatever the ids are: for comparisons."""
    by_parent = {}
    for span in spans:
        by_parent.setdefault(span.parent.span_id if span.parent else None, []).append(span)

    def branch(span):
        below = sorted(by_parent.get(span.context.span_id, ()), key=lambda one: (one.start_time, one.end_time))
        status = (span.status.status_code.name, span.status.description)
        return (span.name, span.start_time, span.end_time, dict(span.attributes), status, [branch(one) for one in below])

    known = {span.context.span_id for span in spans}
    roots = [span for span in spans if span.parent is None or span.parent.span_id not in known]
    return [branch(span) for span in sorted(roots, key=lambda one: (one.start_time, one.end_time))]


def record(path, otel=None, level="debug", *, faults=(), **observer):
    """Two turns with a rewind between them and a third session that fails; observed live while it is recorded."""
    otel = otel or Otel()
    with TraceWriter(path) as writer:
        bench = otel.bench(level, observer=observer, decoder={"recorder": writer}, faults=faults)
        with bench.decoder.open([1, 2, 3], max_tokens=9) as session:
            list(session)
            session.rewind(3)
            list(session)
            session.extend([5, 6], max_tokens=5)
            list(session)
        bench.decoder.generate([7, 8], max_tokens=6)
        bench.runtime.faults = ()
    return otel


def spans_of(path, level="debug", **options):
    return list(recorded_spans(TraceReader(path), Options(level=level, **options)))
