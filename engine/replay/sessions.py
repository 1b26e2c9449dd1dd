"""The sessions of a trace: which record belongs to which, where many are interleaved and the file was written by several runs.

Session ids are counted per runtime, so a second process that appends to a file begins again at 0. A session is therefore known
by its id *and* by the segment in which it began: a SessionOpened for an id that was last seen in an earlier segment is a new
session. (A SessionResumed goes on with the newest session of its id.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from attrs import frozen

from ..errors import TraceError
from ..events import Record, SessionOpened
from ..trace import TraceReader

__all__ = ["Router", "SessionKey", "iter_sessions", "session_log"]


@frozen(order=True)
class SessionKey:
    """A session of a file.

    Attributes:
        segment: the segment in which it began, from 0.
        session: its id in the records.
    """

    segment: int
    session: int

    def __str__(self) -> str:
        return f"session {self.session}" + (f" of segment {self.segment}" if self.segment else "")


class Router:
    """Says of each record of a file which session it belongs to."""

    def __init__(self) -> None:
        self._newest: dict[int, SessionKey] = {}
        self._last_seen: dict[int, int] = {}

    def route(self, record: Record, segment: int) -> SessionKey:
        """The session of the next record, which lies in this segment."""
        session = record.session
        key = self._newest.get(session)
        if key is None or (type(record.event) is SessionOpened and self._last_seen[session] < segment):
            key = self._newest[session] = SessionKey(segment, session)
        self._last_seen[session] = segment
        return key


def iter_sessions(reader: TraceReader) -> Iterator[tuple[SessionKey, Record]]:
    """The records of a trace in order, each with its session."""
    router = Router()
    for record in reader:
        yield router.route(record, max(len(reader.segments) - 1, 0)), record


def session_log(path: str | os.PathLike[str], session: int | None = None, segment: int | None = None) -> list[Record]:
    """The records of one session of a trace; a torn tail is left out.

    Args:
        path: the trace.
        session: its id; None where the trace holds one session only.
        segment: the segment in which it began; None: the newest session of that id.

    Raises:
        TraceError: there is no such session, or several and none was named; or the trace is damaged.
        OSError: it cannot be read.
    """
    chosen: SessionKey | None = None
    log: list[Record] = []
    seen: set[SessionKey] = set()
    for key, record in iter_sessions(TraceReader(path)):
        seen.add(key)
        if session is None and len(seen) > 1:
            raise TraceError(f"{os.fspath(path)} holds several sessions ({_listed(seen)}): name one")
        if (session is not None and key.session != session) or (segment is not None and key.segment != segment):
            continue
        if key != chosen:
            chosen, log = key, []
        log.append(record)
    if not log:
        wanted = (
            "no record of a session" if session is None else f"no session {session}" + ("" if segment is None else f" of segment {segment}")
        )
        raise TraceError(f"{os.fspath(path)} holds {wanted}" + (f"; it holds {_listed(seen)}" if seen else ""))
    return log


def _listed(keys: set[SessionKey]) -> str:
    first = sorted(keys)[:8]
    return ", ".join(map(str, first)) + (", ..." if len(keys) > len(first) else "")
