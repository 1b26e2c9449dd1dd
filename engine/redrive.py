"""Redrive: run the real scripts of round.py and life.py against the recorded inputs of a log; the same events must come out.

Everything that is not a pure function of the state is in the log, so every request of a script can be answered from the
event that follows it there. What was decided (which event comes, its counts, its reasons) is computed again and compared.
No runtime, no clock, no callback is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from .errors import ConfigError, IllegalEvent, UnknownRules
from .events import (
    DraftDiscarded,
    Event,
    Extended,
    Record,
    Rewound,
    RuntimeFailed,
    SessionDropped,
    SessionFinished,
    SessionOpened,
    SessionResumed,
    SpanVerified,
)
from .life import conclude, drop_session, extend_session, open_session, resume_session, rewind_session
from .recorded import LOOKAHEAD, MARKED, Elsewhere, RecordedRun
from .reducer import reduce
from .requests import Context, Script
from .round import run_round
from .rules import DECIDED_ALIKE, VERSION, Finish, finish_due
from .state import SessionState

__all__ = ["Redriver", "redrive"]

_BATCH: Final = 256

#: A context per (may be cancelled, may be stopped by text or by the user's decision); the fewer questions, the faster.
_CONTEXTS: Final = {(polls, asks): Context(session=0, polls=polls, asks=asks) for polls in (False, True) for asks in (False, True)}


#: Events that a round does not begin with, where nothing was asked of the session from outside.
_COMMANDS: Final = frozenset((SessionOpened, SessionResumed, Extended, Rewound, SessionFinished, RuntimeFailed, SessionDropped))


def redrive(records: Iterable[Record]) -> list[Record]:
    """Decide one session's whole log again.

    Args:
        records: of one session, from its first event on; the log may break off anywhere.

    Returns:
        The records that came out: equal to those that went in.

    Raises:
        ReplayDiverged: at the first event that comes out different.
        UnknownRules: the log was made by rules that this engine does not have (a ConfigError).
    """
    out: list[Record] = []
    redriver = Redriver(out.append)
    for record in records:
        redriver.feed(record)
    redriver.finish()
    return out


class Redriver(RecordedRun):
    """Decides one session's log again while it is read, a bounded number of records behind the newest.

    Args:
        keep: is given each record that came out; None: they are only compared.

    ``feed`` and ``finish`` raise as :func:`redrive`; after that the object is spent.
    """

    def __init__(self, keep: Callable[[Record], object] | None = None) -> None:
        super().__init__()
        self._keep = keep
        self._first: Record | None = None

    @property
    def state(self) -> SessionState:
        """The state after what was decided."""
        return self._state

    @property
    def decided(self) -> int:
        """Records that were decided again and came out equal."""
        return 0 if self._first is None else self._seq - self._first.seq

    def feed(self, record: Record) -> None:
        """Take the next record."""
        log = self._log
        if self._first is None:
            self._first, self._seq = record, record.seq
        if type(record.event) in MARKED:
            self._mark(record.event, len(log))
        log.append(record)
        if len(log) >= _BATCH:
            while len(log) - self._at >= LOOKAHEAD:
                self._run()
            self._forget()
        elif type(record.event) is SessionDropped:
            self.finish()  # a drop ends its script: nothing behind it is needed to decide it, and often nothing comes

    def finish(self) -> None:
        """Decide all that was fed: the log ends here, or goes on after a drop."""
        while self._at < len(self._log):
            self._run()
        self._forget()

    def _run(self) -> None:
        began, self._fed_to, self._dropping, self._instead = self._at, 0, False, None
        script = self._script()
        try:
            self._drive(script)
        except Elsewhere:
            script.close()
        except ConfigError as exc:  # the state that the log led to is one that the round cannot make an event of
            self._diverged(exc)
        if self._at == began:
            self._diverged("no event" if self._instead is None else self._instead)

    # -- which script ran ------------------------------------------------------------------------------------------------

    def _script(self) -> Script[SessionState]:
        state, event = self._state, self._log[self._at].event
        if state.phase == "new" and not isinstance(event, SessionOpened):
            self._diverged("nothing: a session begins with SessionOpened")
        if isinstance(event, SessionOpened | SessionResumed) and event.rules not in DECIDED_ALIKE:
            raise UnknownRules(self._log[self._at].seq, event.rules, VERSION)
        cancels, stops = self._cancels, self._stops
        ctx = _CONTEXTS[bool(cancels) and self._near(cancels), bool(stops) and self._near(stops)]
        ahead = self._ahead()
        if type(ahead) in _COMMANDS or type(event) in _COMMANDS:
            script = self._command(event, ahead, ctx)
            if script is not None:
                return script
        if ahead is None and isinstance(event, DraftDiscarded):
            script = self._broken_off(event, ctx)
            if script is not None:
                return script
        if state.phase != "ready":
            self._diverged(f"nothing: no round begins in phase {state.phase!r}")
        return run_round(state, ctx)

    def _command(self, event: Event, ahead: Event | None, ctx: Context) -> Script[SessionState] | None:
        """The script of what was asked of the session from outside; None: a round went on."""
        state = self._state
        if isinstance(event, SessionOpened):
            return open_session(event, ctx)
        if isinstance(event, SessionResumed):
            return resume_session(event, state, ctx)
        if isinstance(ahead, Extended):
            return extend_session(ahead, state, ctx)
        if isinstance(ahead, Rewound):
            return rewind_session(ahead.count, state, ctx)
        if isinstance(ahead, SessionFinished) and ahead.reason == "closed":
            return conclude(state, finish_due(state) or Finish("closed"))
        if isinstance(ahead, SessionFinished) and ahead.reason == "failed":
            return conclude(state, Finish("failed", None, ahead.detail))
        if isinstance(ahead, RuntimeFailed) and ahead.call == "configure":
            return extend_session(self._some_extension(), state, ctx)
        if self._drops(ahead):
            reason = self._drop_reason()
            # A drop for a failed call is part of the script that failed, so it cannot come from outside.
            if reason is None or reason in ("closed", "failed") or reason.startswith("interrupted: "):
                self._dropping = True
                return drop_session(state, reason or "closed")
        return None

    def _broken_off(self, event: DraftDiscarded, ctx: Context) -> Script[SessionState] | None:
        """The script that began with this discard, where the log ends before the event that names it."""
        state = self._state
        match event.reason:
            case "rewound":
                return rewind_session(1, state, ctx)
            case "extended":
                return extend_session(self._some_extension(), state, ctx)
            case "cancelled" | "failed":
                return conclude(state, Finish(event.reason))
            case "finished":
                return conclude(state, Finish("closed"))
            case _:
                return None

    def _some_extension(self) -> Extended:
        """An extension of which nothing is in the log but what came before it."""
        turn = self._state.turn
        return Extended(tokens=(), limits=turn.limits, stops=turn.stops, sampling=turn.sampling, turn=turn.number + 1)

    # -- driving it ------------------------------------------------------------------------------------------------------

    def _drive(self, script: Script[SessionState]) -> None:
        answer: Any = None
        send, handlers, record = script.send, self._answers, self._record
        while True:
            try:
                request = send(answer)
            except StopIteration:
                return
            handler = handlers.get(type(request))
            answer = handler(request) if handler is not None else record(request)  # pyright: ignore[reportArgumentType]

    def _record(self, event: Event) -> SessionState:
        recorded = self._next(event)
        if not event == recorded:  # noqa: SIM201 - `!=` would call `==` through one more function
            if self._state.boundary and not isinstance(event, SessionFinished):
                # The recorded run may have been left at this boundary (an interrupt); _script finds what came then.
                self._instead = event
                raise Elsewhere
            self._diverged(event)
        record = self._log[self._at]
        first = self._first
        assert first is not None
        if record.seq != self._seq or record.session != first.session:
            self._diverged(f"record {self._seq} of session {first.session}")
        try:
            self._state = state = reduce(self._state, event)
        except IllegalEvent as exc:
            self._diverged(exc)
        self._at += 1
        self._seq += 1
        if self._keep is not None:
            self._keep(Record(seq=record.seq, session=record.session, at_ns=record.at_ns, event=event))
        if type(event) is SpanVerified:
            self._polled = 0
        return state
