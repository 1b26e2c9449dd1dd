"""What telemetry adds to the command line: ``spanfold spans`` and ``spanfold generate --otel``."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from ..engine.cli.terminal import Terminal
from ..engine.errors import ConfigError
from ..engine.extensions import require
from ..engine.hooks import AnyObserver
from ..engine.trace import TraceReader
from .descriptors import NEEDS
from .files import write_whole
from .formats import otlp_json, perfetto_json, tree
from .recorded import recorded_spans
from .rounds import Level, Options

__all__ = ["run_spans", "watching"]


def run_spans(args: argparse.Namespace, terminal: Terminal) -> int:
    """Write the spans of a trace; returns the exit code. TraceError and OSError are for the caller to print."""
    options = Options(level=args.level, record_token_ids=args.record_token_ids, original_names=args.original_names)
    _check(options)
    if args.otlp is not None:
        _check_url(args.otlp)
        require("spanfold spans --otlp", NEEDS, "otel")
    reader = TraceReader(args.trace)
    spans = recorded_spans(reader, options)
    if args.otlp is not None:
        from .sending import endpoint, send

        terminal.note(f"sent {send(spans, args.otlp)} spans to {endpoint(args.otlp, 'traces')}")
    elif args.json is not None:
        _write(args.json, (f"{line}\n" for line in otlp_json(spans)), terminal, args.trace)
    elif args.perfetto is not None:
        _write(args.perfetto, perfetto_json(spans), terminal, args.trace)
    else:
        for line in tree(spans):
            terminal.line(line)
    for torn in reader.torn:
        terminal.note(f"torn: {torn}")
    return 0


def _check(options: Options) -> None:
    if options.original_names and options.level == "summary":
        raise ConfigError("--original-names names the spans of rounds: take --level rounds or debug")


def _check_url(url: str) -> None:
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigError(f"--otlp must be a collector's URL, http://localhost:4318 for example, not {url!r}")


def _write(path: str, pieces: Iterable[str], terminal: Terminal, read: str) -> None:
    if path == "-":
        for piece in pieces:
            terminal.write(piece)
        return
    write_whole(path, pieces, read=read)


@contextmanager
def watching(args: argparse.Namespace, terminal: Terminal) -> Generator[AnyObserver | None]:
    """The observer that ``spanfold generate`` was asked for, or None."""
    if args.otlp is not None:
        _check_url(args.otlp)
    elif not args.otel:
        if args.otel_level is not None:
            raise ConfigError("--otel-level is the level of spans that are sent: add --otel or --otlp URL, or leave out --otel-level")
        yield None
        return
    require("spanfold generate --otel", NEEDS, "otel")
    from .sending import live_observer

    # A round commits a token at least; it is at most a span of four at the level debug.
    level: Level = args.otel_level or "rounds"
    most = 1 + (4 if level == "debug" else 1) * (args.max_tokens + 1)
    told: list[str] = []
    try:
        with live_observer(args.otlp, Options(level=level), most) as (observer, told):
            yield observer
    finally:  # a decode that failed is one whose spans are wanted
        for line in told:
            terminal.note(f"spanfold generate: {line}")
