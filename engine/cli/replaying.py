"""``spanfold replay``, ``diff`` and ``resume``: a trace decided again, compared, gone on with."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from ..decoder import Decoder
from ..errors import TraceError
from ..events import Record
from ..registry import Opened, OpenOptions, backend
from ..replay.diff import DiffReport, Side, diff
from ..replay.replayer import Divergence, Replay, Replayer
from ..replay.rerun import RerunReport, rerun
from ..replay.resume import resume_trace
from ..replay.sessions import SessionKey, iter_sessions, session_log
from ..text import TextStream
from ..trace import TraceReader, TraceWriter
from .account import Run, as_json, lines
from .eventlog import EventLog
from .generate import INTERRUPTED, interruptible
from .terminal import Terminal
from .traces import EXIT, account_lines

__all__ = ["run_diff", "run_replay", "run_resume"]

_AROUND: Final = 5  # events shown before and after a divergence
_CODES: Final = {"equal": 0, "diverged": 1, "unknown_rules": 2, "unusable": 2}


def _open(args: argparse.Namespace, terminal: Terminal, stack: ExitStack) -> Opened:
    chosen = backend(args.backend or "torch")
    opened = chosen.open(OpenOptions(model=args.model, device=args.device, dtype=args.dtype, progress=terminal.progress))
    stack.callback(opened.runtime.close)
    terminal.clear_status()
    return opened


# -- replay ----------------------------------------------------------------------------------------------------------


def run_replay(args: argparse.Namespace, terminal: Terminal) -> int:
    """Redrive the traces, or rerun them on a live model; returns the exit code."""
    if args.model is not None or args.backend is not None:
        return _rerun(args, terminal)
    results: list[Replay] = []
    for result in _redriven(args):
        results.append(result)
        if not args.json:
            for line in _replayed(result):
                terminal.line(line)
        if args.fail_fast and not result.equal:
            break
    if args.session is not None and not results:
        raise TraceError(f"no trace holds a session {args.session}: dump one to see which it holds")
    if args.json:
        terminal.line(json.dumps([result.to_json() for result in results], ensure_ascii=False, allow_nan=False))
    return max((_CODES[result.outcome] for result in results), default=2)


def _redriven(args: argparse.Namespace) -> Iterator[Replay]:
    for result in Replayer(fail_fast=False).replay_many(args.traces):
        if args.session is None or result.session in (args.session, None):
            yield result


def _replayed(result: Replay) -> Iterator[str]:
    place = result.path or "log"
    yield f"{place}: " + (f"session {result.session}: " if result.session is not None else "") + result.sentence
    if result.divergence is None:
        return
    yield from (f"  {line}" for line in _side_by_side(result.divergence))
    first, last = max(result.divergence.seq - _AROUND, 0), result.divergence.seq + _AROUND
    yield f"  around it: spanfold dump {place} --session {result.session} --events {first}-{last}"


def _side_by_side(found: Divergence) -> Iterator[str]:
    log = EventLog(costs=False)
    for name, event in (("recorded", found.recorded), ("replayed", found.replayed)):
        if event is None:
            yield f"{name}  nothing: the trace ends here"
        elif isinstance(event, str):
            yield f"{name}  {event}"
        else:
            yield f"{name}  {type(event).__name__}: {log.described(event)}"
            yield f"          {event}"


def _rerun(args: argparse.Namespace, terminal: Terminal) -> int:
    reports: list[tuple[str, int, RerunReport]] = []
    with ExitStack() as stack:
        opened = _open(args, terminal, stack)
        for path in args.traces:
            for session, log in _sessions(path, args.session):
                terminal.progress(f"decoding session {session} of {path} again")
                report = rerun(log, opened.runtime, bound=args.bound)
                terminal.clear_status()
                reports.append((path, session, report))
                if not args.json:
                    terminal.line(f"{path}: session {session}: {report.sentence}")
                    for note in report.notes:
                        terminal.line(f"  {note}")
                    if report.difference is not None:
                        first, last = max(report.difference.seq - _AROUND, 0), report.difference.seq + _AROUND
                        terminal.line(f"  around it: spanfold dump {path} --session {session} --events {first}-{last}")
    if args.json:
        shown = [{"path": path, "session": session, **report.to_json()} for path, session, report in reports]
        terminal.line(json.dumps(shown, ensure_ascii=False, allow_nan=False))
    return max(EXIT[report.status] for _, _, report in reports)


def _sessions(path: str, wanted: int | None) -> list[tuple[int, list[Record]]]:
    if wanted is not None:
        return [(wanted, session_log(path, wanted))]
    logs: dict[SessionKey, list[Record]] = {}
    for key, record in iter_sessions(TraceReader(path)):
        logs.setdefault(key, []).append(record)
    if not logs:
        raise TraceError(f"{path} holds no record: there is no session to decode again")
    return [(key.session, log) for key, log in logs.items()]


# -- diff ------------------------------------------------------------------------------------------------------------


def run_diff(args: argparse.Namespace, terminal: Terminal) -> int:
    """Compare two traces; returns the exit code."""
    other = args.session if args.session_b is None else args.session_b
    report = diff(session_log(args.trace_a, args.session), session_log(args.trace_b, other), bound=args.bound)
    if args.json:
        terminal.line(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        for line in _differences(report, args):
            terminal.line(line)
    return EXIT[report.status]


def _differences(report: DiffReport, args: argparse.Namespace) -> Iterator[str]:
    yield report.sentence
    log = EventLog(costs=False)
    if report.events is not None:
        yield f"events part at number {report.events.seq}:"
        for name, event in (("A", report.events.a), ("B", report.events.b)):
            yield f"  {name}  " + ("nothing: it has ended" if event is None else f"{type(event).__name__}: {log.described(event)}")
    if report.tokens is not None:
        for path, seq in ((args.trace_a, report.tokens.seq_a), (args.trace_b, report.tokens.seq_b)):
            if seq is not None:
                yield f"around it: spanfold dump {path} --events {max(seq - _AROUND, 0)}-{seq + _AROUND}"
    for setting in report.settings:
        yield f"setting {setting.name}: {setting.a!r} and {setting.b!r}"
    for name, side in (("A", report.a), ("B", report.b)):
        yield from _side(name, side)


def _side(name: str, side: Side) -> Iterator[str]:
    yield f"{name}: {side.records} records, {side.finish or 'unfinished'}"
    yield from (f"  {line}" for line in account_lines(side.account))


# -- resume ----------------------------------------------------------------------------------------------------------


def run_resume(args: argparse.Namespace, terminal: Terminal) -> int:
    """Go on with a session, appending to its trace; returns the exit code."""
    log = session_log(args.trace, args.session)  # before a model is loaded: a trace that cannot be read is better known now
    cancel = threading.Event()
    with ExitStack() as stack:
        opened = _open(args, terminal, stack)
        recorder = stack.enter_context(TraceWriter(args.trace))
        decoder = stack.enter_context(Decoder(opened.runtime, recorder=recorder, text=opened.text))
        session = resume_trace(decoder, args.trace, log[0].session, cancel=cancel)
        stack.callback(session.close)
        state = session.state
        before = state.canonical[state.turn.start :]
        text = TextStream(opened.text)
        shown = "".join(map(text.push, before))
        if not args.json:
            terminal.line(f"{args.trace}: session {log[0].session} goes on behind {len(before)} tokens of its turn", style="dim")
            terminal.write(shown)
        began = time.perf_counter_ns()
        with interruptible(cancel):
            for token in session:
                piece = text.push(token)
                shown += piece
                if not args.json:
                    terminal.write(piece)
        rest = text.finish()
        shown += rest
        run = Run(result=session.result, text=shown, elapsed_ns=time.perf_counter_ns() - began)
        if args.json:
            terminal.line(json.dumps({"resumed_after": len(before), **as_json(run)}, ensure_ascii=False, allow_nan=False))
        else:
            terminal.write(rest)
            terminal.line("" if shown.endswith("\n") else "\n")
            for line in lines(run):
                terminal.line(line, style="dim")
    return INTERRUPTED if cancel.is_set() else 0
