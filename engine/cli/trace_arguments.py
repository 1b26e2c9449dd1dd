"""The arguments of the commands that work on traces. Nothing heavy is imported before one of them runs."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["TRACE_COMMANDS", "add_trace_commands"]

TRACE_COMMANDS = ("check", "dump", "stats", "replay", "diff", "resume")

_EXITS = "Exit codes: 0 it holds, 1 violated or diverged, 2 unusable input."


def add_trace_commands(commands: Any) -> None:
    """Add a parser for each command to argparse's sub-parsers."""
    one = _command(commands, "check", "prove the laws over traces: fold, laws 1 to 5, account, digests")
    _traces(one)

    one = _command(commands, "dump", "print a trace's events, or the state after one of them")
    _trace(one)
    _session(one)
    one.add_argument("--events", type=_range, metavar="A-B", help="only the events with these numbers: 127, or 120-160")
    one.add_argument("--at", type=_number, metavar="N", help="print the state after event N instead")

    one = _command(commands, "stats", "what speculation did in traces, and whether it paid")
    _traces(one)

    one = _command(
        commands,
        "replay",
        "decide traces again: the same events must come out; with --model, decode them again on a live model",
    )
    _traces(one)
    _session(one)
    one.add_argument("--fail-fast", action="store_true", help="stop at the first session that does not come out equal")
    _live(one, "decode the sessions again on this model and compare token by token")
    _bound(one)

    one = _command(commands, "diff", "compare two traces of one prompt: the first difference, then both accounts")
    one.add_argument("trace_a", metavar="A", help="a trace file; compressed if the name ends in .gz")
    one.add_argument("trace_b", metavar="B", help="the trace file to compare it with")
    one.add_argument("--session", type=_number, metavar="S", help="the session of A (default: its only one)")
    one.add_argument("--segment", type=_number, metavar="N", help="the segment of A, from 0, in which it begins (default: the newest)")
    one.add_argument("--session-b", type=_number, metavar="S", help="the session of B (default: as for A)")
    one.add_argument("--segment-b", type=_number, metavar="N", help="the segment of B in which it begins (default: the newest)")
    _bound(one)

    one = _command(commands, "resume", "go on with a session whose process ended, appending to its trace")
    _trace(one)
    _session(one)
    _live(one, "the model to go on with (default: the backend's own)")


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=_EXITS
    )
    one.add_argument("--json", action="store_true", help="print JSON instead of text")
    return one


def _traces(one: argparse.ArgumentParser) -> None:
    one.add_argument("traces", nargs="+", metavar="TRACE", help="trace files; compressed if the name ends in .gz")


def _trace(one: argparse.ArgumentParser) -> None:
    one.add_argument("trace", metavar="TRACE", help="a trace file; compressed if the name ends in .gz")


def _session(one: argparse.ArgumentParser) -> None:
    one.add_argument("--session", type=_number, metavar="S", help="only the session with this id")
    one.add_argument(
        "--segment", type=_number, metavar="N", help="only what begins in this segment, from 0: every run that appends to a file adds one"
    )


def _live(one: argparse.ArgumentParser, model: str) -> None:
    one.add_argument("--model", metavar="DIR", help=model)
    one.add_argument("--backend", metavar="NAME", help="what runs the model: see `spanfold backends` (default: torch)")
    one.add_argument("--device", metavar="NAME", help="where the model runs (default: the backend's choice)")
    one.add_argument("--dtype", metavar="NAME", help="float32, bfloat16, float16 or int4 (default: the backend's choice)")


def _bound(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--bound", type=_margin, metavar="M", help="top-2 margin below which a differing token is a near tie (default: measured per dtype)"
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, not {text!r}")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    found = _number(first), _number(last if dash else first)
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(f"must run upwards, not {text!r}")
    return found


def _margin(text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = -1.0
    if not 0 <= margin < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text!r}")
    return margin
