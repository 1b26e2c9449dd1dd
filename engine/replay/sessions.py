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

__all__ = ["Router", "SessionKey", "is_redacted", "iter_sessions", "listed", "redacted_error", "session_log"]


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


def is_redacted(reader: TraceReader) -> bool:
    """Whether the record that was just read lies in a redacted segment."""
    header = reader.segments[-1].header if reader.segments else None
    return header is not None and header.redacted


def redacted_error(path: str | os.PathLike[str]) -> TraceError:
    """Why no model can go on with a redacted session, or decode it again."""
    return TraceError(
        f"{os.fspath(path)} is redacted: its token ids stand for others, so no model can decode from them "
        "(check, stats, diff, and replay without a model work on it)"
    )


def session_log(
    path: str | os.PathLike[str], session: int | None = None, segment: int | None = None, *, live: bool = False
) -> list[Record]:
    """The records of one session of a trace; a torn tail is left out.

    Args:
        path: the trace.
        session: its id; None where the trace (or the segment) holds one session only.
        segment: the segment in which it began; None: the newest session of that id.
        live: the records are for a model to decode from: a redacted session is refused.

    Raises:
        TraceError: there is no such session, or several and none was named; it is redacted; or the trace is damaged.
        OSError: it cannot be read.
    """
    chosen: SessionKey | None = None
    log: list[Record] = []
    seen: set[SessionKey] = set()
    redacted = False
    reader = TraceReader(path)
    for key, record in iter_sessions(reader):
        seen.add(key)
        if (session is not None and key.session != session) or (segment is not None and key.segment != segment):
            continue
        if session is None and chosen is not None and key != chosen:
            seen.update(other for other, _ in iter_sessions(TraceReader(path)))
            raise TraceError(
                f"{os.fspath(path)} holds several sessions ({listed(seen)}): name one by session and segment (--session, --segment)"
            )
        if key != chosen:
            chosen, log, redacted = key, [], False
        redacted = redacted or is_redacted(reader)
        log.append(record)
    if not log:
        wanted = "no record of a session" if session is None else f"no session {session}"
        wanted += "" if segment is None else f" of segment {segment}"
        raise TraceError(f"{os.fspath(path)} holds {wanted}" + (f"; it holds {listed(seen)}" if seen else ""))
    if live and redacted:
        raise redacted_error(path)
    return log


def listed(keys: set[SessionKey]) -> str:
    """The first of them in words; with their segments, where there are several."""
    first = sorted(keys)[:8]
    name = "session {0.session} of segment {0.segment}" if len({key.segment for key in keys}) > 1 else "{0}"
    return ", ".join(map(name.format, first)) + (", ..." if len(keys) > len(first) else "")
