"""``spanfold check``, ``dump`` and ``stats``: what a trace says by itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from ..errors import IllegalEvent, TraceError
from ..positions import boundary_position
from ..reducer import reduce
from ..replay.check import CheckReport, FileCheck, check
from ..replay.plain import plain
from ..replay.rounds import RoundFigures
from ..replay.sessions import Router, SessionKey, iter_sessions, listed
from ..replay.stats import Account, TraceStats, trace_stats
from ..state import NEW, SessionState
from ..trace import TraceReader, Unknown, record_to_dict
from .eventlog import EventLog
from .terminal import Terminal

__all__ = ["EXIT", "account_lines", "is_meant", "run_check", "run_dump", "run_stats"]

EXIT = {"holds": 0, "violated": 1, "unusable": 2}


def is_meant(key: SessionKey, args: argparse.Namespace) -> bool:
    """Whether ``--session`` and ``--segment`` leave this session in."""
    return args.session in (None, key.session) and args.segment in (None, key.segment)


# -- check -----------------------------------------------------------------------------------------------------------


def run_check(args: argparse.Namespace, terminal: Terminal) -> int:
    """Check the traces; returns the exit code."""
    report: CheckReport = check(args.traces)
    if args.json:
        terminal.line(json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        for file in report.files:
            for line in _checked(file):
                terminal.line(line)
    return EXIT[report.status]


def _checked(file: FileCheck) -> Iterator[str]:
    yield f"{file.path}: {file.status}, {_many(file.records, 'record')}, {_many(len(file.sessions), 'session')}"
    if file.problem is not None:
        yield f"  unusable: {file.problem}"
    for segment in file.segments:
        if segment.digest != "closed" or segment.torn is not None:
            note = segment.problem or segment.torn or "has no footer: its writer did not close it, or is still writing"
            yield f"  segment at line {segment.line}: {note}"
    for session in file.sessions:
        ended = f"finished {session.finish}" if session.finish else f"breaks off in phase {session.phase}"
        counts = f"{_many(session.records, 'record')}, {_many(session.turns, 'turn')}, {_many(session.tokens, 'token')} committed"
        yield f"  session {session.session}: {session.status}, {counts}, {ended}"
        for violation in session.violations:
            yield f"    event {violation.seq}: {violation.law}: {violation.sentence}"
        if session.found > len(session.violations):
            yield f"    and {session.found - len(session.violations)} more"


# -- dump ------------------------------------------------------------------------------------------------------------


def run_dump(args: argparse.Namespace, terminal: Terminal) -> int:
    """Print events, or the state after one; returns the exit code."""
    reader = TraceReader(args.trace)
    if args.at is not None:
        state = _state_at(reader, args)
        shown = _state_as_json(state, args.at)
        if args.json:
            terminal.line(json.dumps(shown, ensure_ascii=False, allow_nan=False))
        else:
            for line in _state_lines(shown):
                terminal.line(line)
        return 0
    log, router, found = EventLog(), Router(), 0
    first, last = args.events or (0, float("inf"))
    for entry in reader.lenient():
        if isinstance(entry, Unknown):
            terminal.line(_unknown_as_json(entry) if args.json else f"    ?  line {entry.line}: {entry.problem}")
            continue
        key = router.route(entry, max(len(reader.segments) - 1, 0))
        if is_meant(key, args) and first <= entry.seq <= last:
            found += 1
            if args.json:
                terminal.line(json.dumps(record_to_dict(entry), allow_nan=False))
            else:
                terminal.line(f"{entry.session:3d} {log.line(entry)}")
    if not found and any(named is not None for named in (args.session, args.segment, args.events)):
        raise TraceError(f"{args.trace} holds no such event: dump it without --session, --segment and --events")
    for torn in reader.torn:
        terminal.note(f"torn: {torn}")
    return 0


def _unknown_as_json(entry: Unknown) -> str:
    return json.dumps({"kind": "unknown", "line": entry.line, "problem": entry.problem, "raw": plain(entry.raw)})


def _state_at(reader: TraceReader, args: argparse.Namespace) -> SessionState:
    """The state after event ``--at`` of the one session that is meant."""
    keys = {key for key, _ in iter_sessions(reader)}
    meant = {key for key in keys if is_meant(key, args)}
    if len(meant) > 1:
        raise TraceError(f"{args.trace} holds several sessions ({listed(meant)}): name one with --session and --segment")
    state = NEW
    for key, record in iter_sessions(reader):
        if key not in meant or record.seq > args.at:
            continue
        try:
            state = reduce(state, record.event)
        except IllegalEvent as illegal:
            raise TraceError(f"event {record.seq} does not fold ({illegal}): spanfold check {args.trace}") from illegal
        if record.seq == args.at:
            return state
    of = f" of {listed(meant)}" if meant else f" of a session as named; it holds {listed(keys)}" if keys else ""
    raise TraceError(f"{args.trace} holds no event {args.at}{of}")


def _state_as_json(state: SessionState, at: int) -> dict[str, Any]:
    return {
        "at": at,
        "phase": state.phase,
        "canonical": list(state.canonical),
        "position": state.position,
        "boundary_position": boundary_position(len(state.canonical)),
        "primed": state.primed,
        "pending": list(state.pending),
        "turn": state.turn.number,
        "turn_start": state.turn.start,
        "remaining": state.remaining,
        "cut": state.cut,
        "refused": state.refused,
        "drafting_off": state.drafting_off,
        "finish": plain(state.finish),
        "stats": {
            **{name: plain(value) for name, value in vars(state.stats).items() if name != "discarded_counts"},
            "discarded": plain(state.stats.discarded),
        },
    }


def _state_lines(shown: dict[str, Any]) -> Iterator[str]:
    tokens: list[int] = shown["canonical"]
    newest = " ".join(map(str, tokens[-16:]))
    yield f"after event {shown['at']}: phase {shown['phase']}, turn {shown['turn']}, cut {shown['cut']}"
    yield f"canonical  {_many(len(tokens), 'token')}{' ... ' if len(tokens) > 16 else ' '}{newest}"
    yield f"position   {shown['position']} (canonical at a boundary: {shown['boundary_position']}), {shown['remaining']} tokens may follow"
    yield f"pending    {' '.join(map(str, shown['pending'])) or 'nothing'}"
    figures = {name: value for name, value in shown["stats"].items() if value not in (0, [], {})}
    yield "stats      " + ", ".join(f"{name} {json.dumps(value)}" for name, value in figures.items())


# -- stats -----------------------------------------------------------------------------------------------------------


def run_stats(args: argparse.Namespace, terminal: Terminal) -> int:
    """Print the figures of the traces; returns the exit code."""
    figures = [trace_stats(path) for path in args.traces]
    if args.json:
        terminal.line(json.dumps([one.to_json() for one in figures], ensure_ascii=False, allow_nan=False))
        return 0
    for one in figures:
        for line in _figures(one):
            terminal.line(line)
    return 0


def _figures(stats: TraceStats) -> Iterator[str]:
    yield f"{stats.path}: {_many(stats.records, 'record')}, {_many(len(stats.sessions), 'session')}"
    yield from (f"  {line}" for line in account_lines(stats.total))
    yield from (f"  {line}" for line in round_lines(stats.rounds))
    for torn in stats.torn:
        yield f"  torn: {torn}"
    for session in stats.sessions:
        for turn in session.turns:
            tokens, ended = turn.acceptance.completion_tokens, turn.finish or "unfinished"
            first = "" if turn.first_token_ns is None else f", the first after {turn.first_token_ns / 1e9:.3f} s"
            yield f"  session {session.session} turn {turn.turn}: {_many(tokens, 'token')} in {turn.wall_ns / 1e9:.3f} s{first}; {ended}"


def account_lines(account: Account) -> Iterator[str]:
    """An account in a few lines."""
    yield (
        f"{_many(account.tokens, 'token')} from {_many(account.forwards, 'target forward')} ({_many(account.prefills, 'prefill')}, "
        f"{_many(account.spans, 'span')}, {_many(account.serial_steps, 'serial step')}); {account.saved_net} net forwards saved"
    )
    if account.acceptance_rate is None or account.acceptance_length is None:
        yield f"drafts: {account.drafted} drafted, none verified"
    else:
        depths = " ".join(f"{rate:.2f}" for rate in account.acceptance_per_depth)
        yield (
            f"drafts: {account.accepted} of {account.verified} verified ones accepted (rate {account.acceptance_rate:.2f}), "
            f"{account.acceptance_length:.2f} tokens per span, by depth {depths}"
        )
        histogram = " ".join(f"{length}:{spans}" for length, spans in sorted(account.acceptance_length_histogram.items()))
        yield f"tokens per span (tokens:spans) {histogram}"
    discarded = ", ".join(f"{reason} {count}" for reason, count in account.discarded.items()) or "none"
    yield f"rejected {account.rejected}, accepted serially {account.accepted_serial}, pending {account.pending}, discarded: {discarded}"
    yield "time: " + ", ".join(f"{phase} {spent / 1e9:.3f} s" for phase, spent in account.time_ns.items())


def round_lines(rounds: RoundFigures) -> Iterator[str]:
    """How wide the rounds were, and why some were serial."""
    widths = " ".join(f"{width}:{drafts}" for width, drafts in rounds.widths.items()) or "none"
    yield f"drafts asked for (width:drafts) {widths}; {_many(rounds.width_changes, 'change')} of the width, {_many(rounds.probes, 'probe')}"
    if rounds.refusals:
        yield "serial steps: " + ", ".join(f"{reason} {count}" for reason, count in rounds.refusals.items())


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
