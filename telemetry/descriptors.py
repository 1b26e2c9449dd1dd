"""What telemetry announces to the command line. Importing this loads no OpenTelemetry."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from ..engine.extensions import Command, Watching
from ..engine.hooks import AnyObserver

if TYPE_CHECKING:
    from ..engine.cli.terminal import Terminal

__all__ = ["NEEDS", "OTEL", "SPANS"]

#: What sending needs; everything else works without.
NEEDS: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

_LEVELS: Final = ("summary", "rounds", "debug")
_LEVEL: Final = "summary: a span per turn; rounds: one per target forward too; debug: also its parts"


def _spans_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("trace", metavar="TRACE", help="a trace file; compressed if the name ends in .gz")
    to = one.add_mutually_exclusive_group()
    to.add_argument("--console", action="store_true", help="print each turn as a tree (the default)")
    to.add_argument("--otlp", metavar="URL", help="send them to a collector by OTLP over HTTP, http://localhost:4318 for example")
    to.add_argument("--json", metavar="FILE", help="write OTLP's JSON, one request per line; - for standard output")
    to.add_argument("--perfetto", metavar="FILE", help="write trace events that Perfetto and chrome://tracing open; - for standard output")
    one.add_argument("--level", metavar="LEVEL", choices=_LEVELS, default="debug", help=f"{_LEVEL} (default: debug)")
    one.add_argument("--record-token-ids", action="store_true", help="put token ids and stop texts into the spans")
    one.add_argument("--original-names", action="store_true", help="name spans stage.openai_native_mtp_span, as the original system does")


def _run_spans(args: argparse.Namespace, terminal: Terminal) -> int:
    from .commands import run_spans

    return run_spans(args, terminal)


def _otel_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("--otel", action="store_true", help="send spans and metrics to a collector by OTLP over HTTP")
    one.add_argument("--otlp", metavar="URL", help="the collector (default: OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318)")
    one.add_argument("--otel-level", metavar="LEVEL", choices=_LEVELS, help=f"{_LEVEL} (default: rounds)")


def _open_otel(args: argparse.Namespace, terminal: Terminal) -> AbstractContextManager[AnyObserver | None]:
    from .commands import watching

    return watching(args, terminal)


SPANS: Final = Command(
    name="spans",
    summary="the OpenTelemetry spans of a recorded trace: as a tree, to a collector, for Perfetto",
    arguments=_spans_arguments,
    run=_run_spans,
)
OTEL: Final = Watching(name="otel", arguments=_otel_arguments, open=_open_otel)
