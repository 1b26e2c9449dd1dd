"""The spans of a recorded trace: those that a live observer would have written, with the original times and ids that are always the same.

Every turn is a trace of its own, as it is live where the caller has no span. Ids are digests of the session's first record (which
holds its time), of the number of the record that began a turn or ended a round, and of the span's place among those of that record. So
the same trace always gives the same ids, and two runs do not share any. Nothing here needs OpenTelemetry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from attrs import frozen

from ..engine.events import Record
from ..engine.replay.sessions import SessionKey, iter_sessions
from ..engine.state import NEW
from ..engine.trace import TraceReader, encode_record
from .fold import SessionFold
from .rounds import Options
from .spans import Problem, SpanData, TurnBegan, TurnEnded, Value
from .tally import Tally

__all__ = ["RecordedSpan", "recorded_spans"]


@frozen(kw_only=True)
class RecordedSpan:
    """A span with its ids. ``trace_id`` has 128 bits, ``span_id`` and ``parent_id`` 64; a turn's span has no parent."""

    trace_id: int
    span_id: int
    parent_id: int | None
    depth: int
    session: SessionKey
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    problem: Problem | None


def recorded_spans(reader: TraceReader, options: Options) -> Iterator[RecordedSpan]:
    """The spans of the trace that ``reader`` reads, children before the turn that they belong to, as they ended.

    A turn that the trace does not end comes last, as ``unfinished``, and ends with its newest record.

    Raises:
        TraceError: it is not a trace or is damaged. OSError: it cannot be read.
    """
    sessions: dict[SessionKey, _Session] = {}
    for key, record in iter_sessions(reader):
        session = sessions.get(key)
        if session is None:
            session = sessions[key] = _Session(key, record, options)
        session.fold.feed(record)
        yield from session.taken()
    for session in sessions.values():
        session.fold.abandon(0)
        yield from session.taken()


class _Session:
    """One session of the trace: the sink of its fold."""

    def __init__(self, key: SessionKey, first: Record, options: Options) -> None:
        self._key = key
        self._seed = hashlib.sha256(f"{key.segment}:{encode_record(first)}".encode()).digest()
        self._ready: list[RecordedSpan] = []
        self._turn: TurnBegan | None = None
        self._turn_id = self._trace_id = 0
        self._used: dict[int, int] = {}
        self.fold = SessionFold(NEW, self, options)

    def taken(self) -> list[RecordedSpan]:
        """What is complete since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def turn_began(self, turn: TurnBegan) -> bool:
        """Begin a turn's span."""
        self._turn, self._turn_id = turn, self._id(turn.seq)
        self._trace_id = self._digest(f"trace {turn.seq}".encode(), 16)
        return True

    def span(self, span: SpanData) -> None:
        """Take a complete child, and its children."""
        self._take(span, self._turn_id, 1)

    def turn_ended(self, turn: TurnEnded) -> None:
        """End the turn's span."""
        began, self._turn = self._turn, None
        if began is not None:
            self._keep(
                self._turn_id, None, 0, began.name, began.start_ns, turn.end_ns, {**began.attributes, **turn.attributes}, turn.problem
            )

    def counted(self, tally: Tally) -> None:
        """Counts are for live metrics."""

    def _take(self, span: SpanData, parent: int, depth: int) -> None:
        span_id = self._id(span.seq)
        for child in span.children:
            self._take(child, span_id, depth + 1)
        self._keep(span_id, parent, depth, span.name, span.start_ns, span.end_ns, span.attributes, span.problem)

    def _keep(
        self,
        span_id: int,
        parent: int | None,
        depth: int,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Value],
        problem: Problem | None,
    ) -> None:
        self._ready.append(
            RecordedSpan(
                trace_id=self._trace_id,
                span_id=span_id,
                parent_id=parent,
                depth=depth,
                session=self._key,
                name=name,
                start_ns=start_ns,
                end_ns=end_ns,
                attributes=attributes,
                problem=problem,
            )
        )

    def _id(self, seq: int) -> int:
        # Several spans may belong to one record: a round and its parts, a turn and the one that it ended.
        if len(self._used) > 4096:
            self._used.clear()  # long before, so never asked for again
        place = self._used[seq] = self._used.get(seq, -1) + 1
        return self._digest(f"span {seq} {place}".encode(), 8)

    def _digest(self, what: bytes, size: int) -> int:
        # Never 0, which is no id.
        return int.from_bytes(hashlib.sha256(self._seed + what).digest()[:size], "big") or 1
