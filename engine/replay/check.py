"""Check traces: fold, laws 1 to 5, the account, the digests; every violation with the number of its record.

One pass, in memory that holds each session's state and tokens but none of its records, however many sessions are interleaved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, cast

from attrs import frozen

from ..errors import IllegalEvent, TraceError
from ..events import Extended, Record, SessionDropped, SessionFinished
from ..reducer import reduce
from ..state import NEW, Phase
from ..trace import TraceReader
from .laws import LawChecker, Violation
from .plain import Plain
from .sessions import Router, SessionKey

__all__ = ["CheckReport", "DigestState", "FileCheck", "SegmentCheck", "SessionCheck", "Status", "check", "check_records"]

Status: TypeAlias = Literal["holds", "violated", "unusable"]
DigestState: TypeAlias = Literal["closed", "absent", "mismatch"]

#: Violations kept per session; the others are counted.
KEPT = 100


@frozen(kw_only=True)
class SegmentCheck(Plain):
    """What was found of one segment.

    Attributes:
        line: of its header, from 1.
        records: whole records in it.
        digest: ``closed``: the footer's count and digest are those of the records; ``absent``: there is no footer (the writer
            crashed, or writes on); ``mismatch``: they are not, the segment was changed after it was written.
        torn: what was cut off at its end, or None.
        problem: what the footer says wrongly, or None.
    """

    line: int
    records: int
    digest: DigestState
    torn: str | None
    problem: str | None


@frozen(kw_only=True)
class SessionCheck(Plain):
    """What was found of one session.

    Attributes:
        session, segment: its id, and the segment in which it began.
        status: ``holds`` or ``violated``.
        records, turns, tokens: how many, tokens being those committed.
        phase: where the log leaves it; a log may break off anywhere.
        finish: why its last turn ended, or None.
        violations: the first of them, in order.
        found: how many there are in all.
    """

    session: int
    segment: int
    status: Status
    records: int
    turns: int
    tokens: int
    phase: Phase
    finish: str | None
    violations: tuple[Violation, ...]
    found: int


@frozen(kw_only=True)
class FileCheck(Plain):
    """What was found of one file.

    Attributes:
        status: ``unusable`` where it cannot be read to its end; ``problem`` says why.
        records: read in all.
        segments, sessions: in order.
    """

    path: str
    status: Status
    problem: str | None
    records: int
    segments: tuple[SegmentCheck, ...]
    sessions: tuple[SessionCheck, ...]


@frozen(kw_only=True)
class CheckReport(Plain):
    """What was found of all files. ``status`` is the worst of theirs: ``unusable``, then ``violated``, then ``holds``."""

    status: Status
    files: tuple[FileCheck, ...]


def check(paths: str | os.PathLike[str] | TraceReader | Iterable[str | os.PathLike[str] | TraceReader]) -> CheckReport:
    """Check one or many traces. Never raises for what is in them: unreadable ones are ``unusable``."""
    if isinstance(paths, (str, os.PathLike, TraceReader)):
        paths = (paths,)
    files = tuple(_check_file(one if isinstance(one, TraceReader) else TraceReader(one)) for one in paths)
    return CheckReport(status=_worst(file.status for file in files), files=files)


def check_records(records: Iterable[Record]) -> tuple[SessionCheck, ...]:
    """Check records that are at hand, of one or many sessions."""
    sessions = _Sessions()
    for record in records:
        sessions.feed(record, 0)
    return sessions.checked()


def _worst(found: Iterable[Status]) -> Status:
    statuses = set(found)
    return "unusable" if "unusable" in statuses else "violated" if "violated" in statuses else "holds"


def _check_file(reader: TraceReader) -> FileCheck:
    sessions = _Sessions()
    footers: dict[int, str] = {}
    problem: str | None = None
    records = 0
    try:
        for entry in reader.lenient():
            at = max(len(reader.segments) - 1, 0)
            if isinstance(entry, Record):
                records += 1
                sessions.feed(entry, at)
            elif _is_footer(entry.raw) and reader.segments:
                footers[at] = entry.problem
            else:
                # An unknown record may be anything: what follows it cannot be checked.
                problem = str(TraceError(entry.problem, line=entry.line))
                break
    except (TraceError, OSError) as unreadable:
        problem = str(unreadable)
    segments = tuple(
        SegmentCheck(
            line=segment.line,
            records=segment.records,
            digest="mismatch" if at in footers else "closed" if segment.closed else "absent",
            torn=segment.torn,
            problem=footers.get(at),
        )
        for at, segment in enumerate(reader.segments)
    )
    checked = sessions.checked()
    status: Status = "violated" if footers or _worst(one.status for one in checked) != "holds" else "holds"
    return FileCheck(
        path=os.fspath(reader.path),
        status="unusable" if problem is not None else status,
        problem=problem,
        records=records,
        segments=segments,
        sessions=checked,
    )


def _is_footer(raw: object) -> bool:
    return isinstance(raw, Mapping) and cast("Mapping[str, object]", raw).get("kind") == "footer"


class _Sessions:
    """Every session of a file, being checked."""

    def __init__(self) -> None:
        self._router = Router()
        self._checking: dict[SessionKey, _Checking] = {}

    def feed(self, record: Record, segment: int) -> None:
        key = self._router.route(record, segment)
        checking = self._checking.get(key)
        if checking is None:
            checking = self._checking[key] = _Checking(key)
        checking.feed(record)

    def checked(self) -> tuple[SessionCheck, ...]:
        return tuple(checking.result() for checking in self._checking.values())


class _Checking:
    """One session, being checked."""

    def __init__(self, key: SessionKey) -> None:
        self._key = key
        self._laws = LawChecker()
        self._state = NEW
        self._folds = True  # until an event is illegal: the state says nothing of what comes after it
        self._records = 0
        self._turns = 1
        self._seq = 0
        self._kept: list[Violation] = []
        self._found = 0
        self._differing: set[str] = set()

    def feed(self, record: Record) -> None:
        self._records += 1
        self._seq = record.seq
        event = record.event
        broken = self._laws.feed(record)
        if self._folds:
            try:
                self._state = reduce(self._state, event)
            except IllegalEvent as illegal:
                self._folds = False
                self._note(Violation("fold", record.seq, str(illegal)))
        for violation in broken:
            self._note(violation)
        if isinstance(event, Extended):
            self._turns += 1
        elif isinstance(event, (SessionFinished, SessionDropped)):
            self._compare_accounts()

    def _note(self, violation: Violation) -> None:
        self._found += 1
        if len(self._kept) < KEPT:
            self._kept.append(violation)

    def _compare_accounts(self) -> None:
        if not self._folds:
            return
        for name, engine, counted in self._laws.tally.differences(self._state.stats):
            if name not in self._differing:
                self._differing.add(name)
                self._note(Violation("account", self._seq, f"{name} is {engine} by the fold, {counted} by the events"))

    def result(self) -> SessionCheck:
        self._compare_accounts()
        state = self._state
        return SessionCheck(
            session=self._key.session,
            segment=self._key.segment,
            status="violated" if self._found else "holds",
            records=self._records,
            turns=self._turns,
            tokens=self._laws.tally.tokens,
            phase=state.phase,
            finish=state.finish.reason if state.finish is not None else None,
            violations=tuple(self._kept),
            found=self._found,
        )
