"""Redrive traces: the real round runs against the recorded inputs, and the same events must come out.

::

    Replayer().replay_file("run.jsonl")                      # raises at the first session that does not come out equal
    for result in Replayer(fail_fast=False).replay_many(paths): print(result.outcome, result.sentence)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import attrs
from attrs import frozen

from ..errors import ReplayDiverged, SpanfoldError, TraceError, UnknownRules
from ..events import Event, Record
from ..redrive import Redriver
from ..trace import TraceReader
from .plain import Plain
from .sessions import Router, SessionKey

__all__ = ["Divergence", "Outcome", "Replay", "Replayer"]

Outcome: TypeAlias = Literal["equal", "diverged", "unknown_rules", "unusable", "empty"]


@frozen(kw_only=True)
class Divergence(Plain):
    """The first event that came out different.

    Attributes:
        seq: its number in the session.
        recorded: what the trace holds there; None: the trace ends.
        replayed: what was decided instead: an event, or words for what the round asked for where no event was due.
        sentence: both, in one line.
    """

    seq: int
    recorded: Event | None
    replayed: Event | str
    sentence: str


@frozen(kw_only=True)
class Replay(Plain):
    """What came of one session (or of a file, where it holds none or none could be read).

    Attributes:
        path: the trace, or None for records that were at hand.
        session, segment: the session's id, and the segment in which it began; None for a file without a session, or not read so far.
        outcome: ``equal``; ``diverged``; ``unknown_rules``: it was made by rules that this engine does not have, so nothing is
            known; ``unusable``: the file could not be read to its end, so nothing is known from there on;
            ``empty``: it is a trace that holds no record, so nothing can diverge.
        records: records of the session that were decided again and came out equal.
        divergence: the first difference, where it diverged.
        sentence: the outcome in one line.
    """

    path: str | None
    session: int | None
    segment: int | None
    outcome: Outcome
    records: int
    divergence: Divergence | None
    sentence: str

    @property
    def equal(self) -> bool:
        """Whether every event came out as recorded."""
        return self.outcome == "equal"


class Replayer:
    """Redrives one log, one file or many.

    Args:
        fail_fast: raise at the first session that does not come out equal: ReplayDiverged, UnknownRules, or what made the file
            unusable (TraceError, OSError). False: every outcome is a result.

    Records are decided while they are read, a few dozen behind the newest, so sessions may be long and interleaved in any way.
    """

    def __init__(self, *, fail_fast: bool = True) -> None:
        self.fail_fast = fail_fast

    def replay(self, records: Iterable[Record]) -> Replay:
        """Redrive the log of one session."""
        running: _Running | None = None
        for record in records:
            if running is None:
                running = _Running(None, SessionKey(0, record.session))
            running.feed(record)
        if running is None:
            return self._judged(_Running(None, None), TraceError("the log is empty: there is no session to replay"))
        return self._judged(running)

    def replay_file(self, path: str | os.PathLike[str]) -> tuple[Replay, ...]:
        """Redrive every session of a file, in the order in which they begin; a file that breaks off says so in a last result."""
        shown, reader, router = os.fspath(path), TraceReader(path), Router()
        running: dict[SessionKey, _Running] = {}
        problem: Exception | None = None
        try:
            for record in reader:
                key = router.route(record, max(len(reader.segments) - 1, 0))
                session = running.get(key)
                if session is None:
                    session = running[key] = _Running(shown, key)
                session.feed(record)
                if self.fail_fast and session.error is not None:
                    raise session.error
        except (TraceError, OSError) as unreadable:
            problem = unreadable
        results = [self._judged(session) for session in running.values()]
        if problem is None and not results:
            # An empty segment is well-formed and diverges from nothing, as it violates nothing.
            results.append(attrs.evolve(_Running(shown, None).result(), outcome="empty", sentence="no session: the trace holds no record"))
        if problem is not None:
            results.append(self._judged(_Running(shown, None), problem))
        return tuple(results)

    def replay_many(self, paths: Iterable[str | os.PathLike[str]]) -> Iterator[Replay]:
        """Redrive files, one after the other; results come as each file is done."""
        for path in paths:
            yield from self.replay_file(path)

    def _judged(self, running: _Running, problem: Exception | None = None) -> Replay:
        result = running.result(problem)
        error = running.error or problem
        if self.fail_fast and error is not None:
            raise error
        return result


class _Running:
    """One session, being decided again."""

    def __init__(self, path: str | None, key: SessionKey | None) -> None:
        self._path = path
        self._key = key
        self._redriver = Redriver()
        self.error: ReplayDiverged | UnknownRules | None = None

    def feed(self, record: Record) -> None:
        if self.error is None:
            try:
                self._redriver.feed(record)
            except (ReplayDiverged, UnknownRules) as error:
                self.error = error

    def result(self, problem: Exception | None = None) -> Replay:
        redriver = self._redriver
        if self.error is None and problem is None:
            try:
                redriver.finish()
            except (ReplayDiverged, UnknownRules) as error:
                self.error = error
        outcome: Outcome = "equal"
        divergence: Divergence | None = None
        sentence = f"{redriver.decided} record{'' if redriver.decided == 1 else 's'} came out as recorded"
        if problem is not None:
            outcome, sentence = "unusable", str(problem)
        elif isinstance(self.error, UnknownRules):
            outcome, sentence = "unknown_rules", str(self.error)
        elif self.error is not None:
            outcome, divergence = "diverged", _divergence(self.error)
            sentence = divergence.sentence
        return Replay(
            path=self._path,
            session=None if self._key is None else self._key.session,
            segment=None if self._key is None else self._key.segment,
            outcome=outcome,
            records=redriver.decided,
            divergence=divergence,
            sentence=sentence,
        )


def _divergence(error: ReplayDiverged) -> Divergence:
    recorded = error.recorded if isinstance(error.recorded, Event) else None
    replayed = error.replayed
    if isinstance(replayed, Event):
        shown: Event | str = replayed
        words = _differing(recorded, replayed)
    else:
        shown = str(replayed) if isinstance(replayed, (str, SpanfoldError)) else f"the round asks for {type(replayed).__name__}"
        words = shown
    was = "the end of the trace" if recorded is None else type(recorded).__name__
    return Divergence(seq=error.seq, recorded=recorded, replayed=shown, sentence=f"record {error.seq}: recorded {was}, replayed {words}")


def _differing(recorded: Event | None, replayed: Event) -> str:
    """The replayed event's name; where it is of the recorded one's type, the fields that differ."""
    name = type(replayed).__name__
    if type(recorded) is not type(replayed):
        return name
    fields = [
        f"{field.name.rstrip('_')} {getattr(recorded, field.name)!r} is {getattr(replayed, field.name)!r}"
        for field in attrs.fields(type(replayed))
        if field.eq and getattr(recorded, field.name) != getattr(replayed, field.name)
    ]
    return f"another: {'; '.join(fields)}"
