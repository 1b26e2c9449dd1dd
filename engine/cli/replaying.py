"""``spanfold replay``, ``diff`` and ``resume``: a trace decided again, compared, gone on with."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from ..decoder import Decoder, Result
from ..errors import ConfigError, TraceError
from ..events import Record
from ..reducer import fold
from ..registry import Opened, OpenOptions, backend
from ..replay.diff import DiffReport, Side, diff
from ..replay.replayer import Divergence, Replay, Replayer
from ..replay.rerun import RerunReport, rerun
from ..replay.resume import resume_trace
from ..replay.sessions import SessionKey, is_redacted, iter_sessions, redacted_error, session_log
from ..state import SessionState
from ..text import TextStream
from ..trace import TraceReader, TraceWriter
from .account import Run, as_json, lines
from .eventlog import EventLog
from .generate import INTERRUPTED, interruptible
from .terminal import Terminal
from .traces import EXIT, account_lines, is_meant

__all__ = ["run_diff", "run_replay", "run_resume"]

_AROUND: Final = 5  # events shown before and after a divergence
_CODES: Final = {"equal": 0, "empty": 0, "diverged": 1, "unknown_rules": 2, "unusable": 2}


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
    for name in ("device", "dtype", "bound"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name} is for decoding on a live model: give --model or --backend too, or leave out --{name}")
    results: list[Replay] = []
    for result in _redriven(args):
        results.append(result)
        if not args.json:
            for line in _replayed(result):
                terminal.line(line)
        if args.fail_fast and _CODES[result.outcome]:
            break
    if not results:
        raise _nothing_meant(args)
    if args.json:
        terminal.line(json.dumps([result.to_json() for result in results], ensure_ascii=False, allow_nan=False))
    return max(_CODES[result.outcome] for result in results)


def _redriven(args: argparse.Namespace) -> Iterator[Replay]:
    for result in Replayer(fail_fast=False).replay_many(args.traces):
        if result.session is None or result.segment is None:
            # Of the whole file: that it cannot be read is always told, that it holds no session only where none was named.
            if result.outcome != "empty" or _all_meant(args):
                yield result
        elif is_meant(SessionKey(result.segment, result.session), args):
            yield result


def _nothing_meant(args: argparse.Namespace) -> TraceError:
    named = [f"--{name} {getattr(args, name)}" for name in ("session", "segment") if getattr(args, name) is not None]
    return TraceError(f"no trace holds a session with {' and '.join(named)}: dump one to see which it holds")


def _named(session: int | None, segment: int | None) -> str:
    """The options that name a session to ``dump``, each with a space behind it."""
    return "".join(f"--{name} {number} " for name, number in (("session", session), ("segment", segment)) if number is not None)


def _replayed(result: Replay) -> Iterator[str]:
    place = result.path or "log"
    key = None if result.session is None or result.segment is None else SessionKey(result.segment, result.session)
    yield f"{place}: " + (f"{key}: " if key is not None else "") + result.sentence
    if result.divergence is None:
        return
    yield from (f"  {line}" for line in _side_by_side(result.divergence))
    first, last = max(result.divergence.seq - _AROUND, 0), result.divergence.seq + _AROUND
    yield f"  around it: spanfold dump {place} {_named(result.session, result.segment or None)}--events {first}-{last}"


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


def _all_meant(args: argparse.Namespace) -> bool:
    """Whether no session was named."""
    return args.session is None and args.segment is None


def _rerun(args: argparse.Namespace, terminal: Terminal) -> int:
    reports: list[tuple[str, SessionKey, RerunReport]] = []
    logs = [(path, _sessions(path, args)) for path in args.traces]  # before a model is loaded: what cannot be decoded is known now
    if not any(found for _, found in logs) and not _all_meant(args):
        raise _nothing_meant(args)
    with ExitStack() as stack:
        opened = _open(args, terminal, stack)
        for path, found in logs:
            if not found and _all_meant(args) and not args.json:
                terminal.line(f"{path}: no session: the trace holds no record")
            for key, log in found.items():
                terminal.progress(f"decoding {key} of {path} again")
                report = rerun(log, opened.runtime, bound=args.bound)
                terminal.clear_status()
                reports.append((path, key, report))
                if not args.json:
                    terminal.line(f"{path}: {key}: {report.sentence}")
                    for note in report.notes:
                        terminal.line(f"  {note}")
                    if report.difference is not None:
                        first, last = max(report.difference.seq - _AROUND, 0), report.difference.seq + _AROUND
                        terminal.line(
                            f"  around it: spanfold dump {path} {_named(key.session, key.segment or None)}--events {first}-{last}"
                        )
                if args.fail_fast and report.status != "holds":
                    break
            if args.fail_fast and reports and reports[-1][2].status != "holds":
                break
    if args.json:
        shown = [{"path": path, "session": key.session, "segment": key.segment, **report.to_json()} for path, key, report in reports]
        terminal.line(json.dumps(shown, ensure_ascii=False, allow_nan=False))
    return max((EXIT[report.status] for _, _, report in reports), default=0)


def _sessions(path: str, args: argparse.Namespace) -> dict[SessionKey, list[Record]]:
    logs: dict[SessionKey, list[Record]] = {}
    reader = TraceReader(path)
    for key, record in iter_sessions(reader):
        if is_meant(key, args):
            if is_redacted(reader):
                raise redacted_error(path)
            logs.setdefault(key, []).append(record)
    return logs


# -- diff ------------------------------------------------------------------------------------------------------------


def run_diff(args: argparse.Namespace, terminal: Terminal) -> int:
    """Compare two traces; returns the exit code."""
    other = args.session if args.session_b is None else args.session_b
    one, two = session_log(args.trace_a, args.session, args.segment), session_log(args.trace_b, other, args.segment_b)
    report = diff(one, two, bound=args.bound)
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
        other = args.session if args.session_b is None else args.session_b
        for path, session, segment, seq in (
            (args.trace_a, args.session, args.segment, report.tokens.seq_a),
            (args.trace_b, other, args.segment_b, report.tokens.seq_b),
        ):
            if seq is not None:
                yield f"around it: spanfold dump {path} {_named(session, segment)}--events {max(seq - _AROUND, 0)}-{seq + _AROUND}"
    for setting in report.settings:
        yield f"setting {setting.name}: {setting.a!r} and {setting.b!r}"
    for name, side in (("A", report.a), ("B", report.b)):
        yield from _side(name, side)


def _side(name: str, side: Side) -> Iterator[str]:
    yield f"{name}: {side.records} record{'' if side.records == 1 else 's'}, {side.finish or 'unfinished'}"
    yield from (f"  {line}" for line in account_lines(side.account))


# -- resume ----------------------------------------------------------------------------------------------------------


def run_resume(args: argparse.Namespace, terminal: Terminal) -> int:
    """Go on with a session, appending to its trace; returns the exit code."""
    log = _resumable(args)  # before a model is loaded: a trace that cannot be gone on with is better known now
    recorded = fold(log)
    if recorded.finish is not None:
        _report_finished(recorded, log[0].session, args, terminal)
        return 0
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
            behind = f"{len(before)} token{'' if len(before) == 1 else 's'}"
            terminal.line(f"{args.trace}: session {log[0].session} goes on behind {behind} of its turn", style="dim")
            terminal.write(shown)
        elapsed = 0
        tokens = iter(session)
        with interruptible(cancel):
            while True:
                began = time.perf_counter_ns()
                token = next(tokens, None)
                elapsed += time.perf_counter_ns() - began
                piece = text.finish() if token is None else text.push(token)
                shown += piece
                if not args.json:
                    terminal.write(piece)
                if token is None:
                    break
        run = Run(result=session.result, text=shown, elapsed_ns=elapsed, before=state.stats)
        if args.json:
            terminal.line(json.dumps({"resumed_after": len(before), **as_json(run)}, ensure_ascii=False, allow_nan=False))
        else:
            terminal.line("" if shown.endswith("\n") else "\n")
            for line in lines(run):
                terminal.line(line, style="dim")
    return INTERRUPTED if cancel.is_set() else 0


def _resumable(args: argparse.Namespace) -> list[Record]:
    """The log of the session that is meant; it must be the newest of its id, since the records to come will be taken for that one's."""
    log = session_log(args.trace, args.session, args.segment, live=True)
    if args.segment is not None:
        newest = max(key for key, _ in iter_sessions(TraceReader(args.trace)) if key.session == log[0].session)
        if newest.segment != args.segment:
            raise TraceError(f"only the newest session of an id can be gone on with, here that of segment {newest.segment}: name that one")
    return log


def _report_finished(state: SessionState, session: int, args: argparse.Namespace, terminal: Terminal) -> None:
    """There is nothing to go on with: no model is loaded, and nothing is written."""
    finish = state.finish
    assert finish is not None
    tokens = state.canonical[state.turn.start :]
    if args.json:
        result = Result(tokens=tokens, finish_reason=finish.reason, limit=finish.limit, stats=state.stats, session=state)
        shown = as_json(Run(result=result, text="", elapsed_ns=0, before=state.stats))
        terminal.line(json.dumps({"resumed_after": len(tokens), **shown, "text": None}, ensure_ascii=False, allow_nan=False))
    else:
        limit = f", {finish.limit}" if finish.limit else ""
        counted = f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}"
        terminal.line(f"{args.trace}: session {session} has finished ({finish.reason}{limit}) with {counted}; nothing was appended")
