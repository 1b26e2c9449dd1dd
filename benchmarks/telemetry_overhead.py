"""What observing costs per round, and how many spans a long generation makes.

The engine decodes the canned target of engine_overhead.py (three drafts a round, all accepted) without an observer and with one, in turn;
what is stated is the difference of the medians per round, so the making of the records that an observer is given is counted too.

    python benchmarks/telemetry_overhead.py [--tokens 20000] [--runs 5] [--json FILE]

nobody records    providers of the API package alone, as in a program that has set none up
unsampled         a tracer whose sampler takes nothing, and a meter of the SDK
a function        an observer that does nothing: what any observer costs, whatever it does
metrics           no tracer, a meter of the SDK
LEVEL             tracer with the SDK's batch processor, whose exporter throws the spans away; no meter
LEVEL + metrics   both

Targets (docs/reference/telemetry.md): nobody records at most 3 microseconds per round, ``rounds`` with the batch processor at most 60.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine_overhead import PROMPT, Canned
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider

from spanfold.engine import AnyObserver, Decoder
from spanfold.telemetry import OTelObserver

WIDTH = 3
TARGETS_US = {"nobody records": 3.0, "rounds": 60.0}


class Thrown(SpanExporter):
    """Counts spans and throws them away."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


class Setting:
    """One way to observe: the observer, and what must be shut down after it."""

    def __init__(self, observer: AnyObserver | None, exporter: Thrown | None = None, providers: Sequence[Any] = ()) -> None:
        self.observer = observer
        self.exporter = exporter
        self._providers = providers

    def close(self) -> int:
        """Shut down; returns the spans exported."""
        for provider in self._providers:
            provider.shutdown()
        return self.exporter.count if self.exporter else 0


def meters() -> MeterProvider:
    return MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)


def batched(level: Any, queue: int, meter: bool) -> Setting:
    exporter = Thrown()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=queue, max_export_batch_size=512))
    meter_provider = meters() if meter else NoOpMeterProvider()
    observer = OTelObserver(tracers, meter_provider, level=level)
    return Setting(observer, exporter, [tracers])


def settings(tokens: int) -> dict[str, Callable[[], Setting]]:
    queue = 4 * tokens
    made: dict[str, Callable[[], Setting]] = {
        "no observer": lambda: Setting(None),
        "a function": lambda: Setting(lambda record: None),
        "nobody records": lambda: Setting(OTelObserver(NoOpTracerProvider(), NoOpMeterProvider(), level="debug")),
        "unsampled": lambda: Setting(OTelObserver(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False), meters(), level="debug")),
        "metrics": lambda: Setting(OTelObserver(NoOpTracerProvider(), meters())),
    }
    for level in ("summary", "rounds", "debug"):
        made[level] = lambda level=level: batched(level, queue, False)
    made["rounds + metrics"] = lambda: batched("rounds", queue, True)
    return made


def run(tokens: int, setting: Setting) -> list[int]:
    """Nanoseconds of each round."""
    took: list[int] = []
    observers = [] if setting.observer is None else [setting.observer]
    with Decoder(Canned(tokens), policy=WIDTH, observers=observers) as decoder, decoder.open(PROMPT, max_tokens=tokens) as session:
        session.step()  # the prefill
        while not session.finished:
            began = time.perf_counter_ns()
            session.step()
            took.append(time.perf_counter_ns() - began)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    made = settings(args.tokens)
    medians: dict[str, list[float]] = {name: [] for name in made}
    means: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(args.runs):  # in turn, so that a slow moment of the machine is shared by all
        for name, make in made.items():
            setting = make()
            took = run(args.tokens, setting)
            setting.close()
            medians[name].append(statistics.median(took) / 1e3)
            means[name].append(statistics.fmean(sorted(took)[: len(took) * 99 // 100]) / 1e3)
    base, base_mean = statistics.median(medians["no observer"]), statistics.median(means["no observer"])
    spans = {}
    for level in ("summary", "rounds", "debug"):
        setting = batched(level, 100_000, False)
        run(10_000, setting)
        spans[level] = setting.close()
    figures = {
        "command": "python benchmarks/telemetry_overhead.py " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "tokens": args.tokens,
        "round_us": base,
        "added_us": {name: statistics.median(found) - base for name, found in medians.items() if name != "no observer"},
        "added_mean_us": {name: statistics.median(found) - base_mean for name, found in means.items() if name != "no observer"},
        "spans_of_10000_tokens": spans,
    }
    print(f"a round without an observer takes {base:.1f} us (median of {args.runs} runs of {args.tokens} tokens)")
    print(f"{'added per round':20} {'median us':>10} {'mean us':>10}")
    for name, added in figures["added_us"].items():
        print(f"{name:20} {added:10.1f} {figures['added_mean_us'][name]:10.1f}")
    print("spans of 10,000 tokens, three drafts a round, all accepted: " + ", ".join(f"{level} {count}" for level, count in spans.items()))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)
    missed = {name: target for name, target in TARGETS_US.items() if figures["added_us"][name] > target}
    for name, target in missed.items():
        print(f"missed: {name} should add at most {target:.0f} us per round", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
