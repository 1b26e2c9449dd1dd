"""The records of a run as answers: what a script asks for is read from the event that follows there.

Everything that is not a pure function of the state is in the log, so every request of a script has its answer in the next event, or
in one of the few after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from .errors import ReplayDiverged
from .events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    Event,
    FailedCall,
    Prefilled,
    Record,
    RuntimeFailed,
    SerialDecoded,
    SessionDropped,
    SessionFinished,
    SessionResumed,
    SpanVerified,
    Trimmed,
)
from .positions import boundary_position
from .requests import AskDraft, AskStop, Configure, Drop, Failed, Floor, Open, Poll, Reset, StopVerdict
from .runtime import Draft, Forward, Rows, Settle, Settled
from .state import NEW, SessionState

__all__ = ["LOOKAHEAD", "MARKED", "Elsewhere", "RecordedRun"]

#: A script consumes far fewer records than this, so with so many at hand it never meets the end of what was fed by chance.
LOOKAHEAD: Final = 32

#: Events in which a cancel, a user's stop or an interrupt can show.
MARKED: Final = frozenset((Committed, Trimmed, RuntimeFailed, DraftRestored, SessionFinished, SessionDropped))


class Elsewhere(Exception):
    """The script at hand was left at this point of the recorded run (its end, a crash, an interrupt)."""


class RecordedRun:
    """What is at hand of one session's records, where in them the redrive stands, and the answers that they hold."""

    def __init__(self) -> None:
        self._log: list[Record] = []  # what is needed of the records fed so far; [at:] is undecided
        self._at: int = 0
        self._seq = 0  # the number that the next record must have
        self._state: SessionState = NEW
        self._polled = 0  # polls since the span was verified
        self._fed_to = 0  # the position that the chunks of a prefill have reached
        self._dropping = False
        self._instead: object = None  # what the script at hand came to, where the recorded run may have left it
        # Where in the log a cancel, a user's stop and an interrupt lie: seldom anywhere.
        self._cancels: list[int] = []
        self._stops: list[int] = []
        self._interrupts: list[int] = []
        self._answers: dict[type, Callable[[Any], Any]] = {
            Forward: self._forward,
            Settle: self._settle,
            AskDraft: self._draft,
            AskStop: self._ask_stop,
            Poll: self._poll,
            Floor: self._floor,
            Open: lambda _: self._call("open"),
            Configure: lambda _: self._call("configure"),
            Reset: lambda _: self._call("reset"),
            Drop: lambda _: self._call("drop"),
        }

    # -- looking ahead -----------------------------------------------------------------------------------------------

    def _mark(self, event: Event, at: int) -> None:
        match event:
            case Committed(cut_by="cancelled") | Trimmed(cause="cancel") | RuntimeFailed(call="settle" | "reset"):
                self._cancels.append(at)
            case DraftRestored(reason="cancelled") | SessionFinished(reason="cancelled"):
                self._cancels.append(at)
            case Committed(cut_by="stop_text" | "stop_when" | "stop_when_error"):
                self._stops.append(at)
            case SessionDropped() if event.reason.startswith("interrupted: "):
                self._interrupts.append(at)
            case _:
                pass

    def _forget(self) -> None:
        done = self._at
        del self._log[:done]
        self._at = 0
        for marks in (self._cancels, self._stops, self._interrupts):
            marks[:] = [mark - done for mark in marks if mark >= done]

    def _near(self, marks: list[int]) -> bool:
        return any(self._at <= mark < self._at + LOOKAHEAD for mark in marks)

    def _ahead(self) -> Event | None:
        """The next event that is not a discard."""
        log = self._log
        for at in range(self._at, len(log)):
            event = log[at].event
            if type(event) is not DraftDiscarded:
                return event
        return None

    def _drops(self, ahead: Event | None) -> bool:
        return isinstance(ahead, SessionDropped) or (isinstance(ahead, RuntimeFailed) and ahead.call == "drop")

    def _drop_reason(self) -> str | None:
        """The reason of the drop that comes; None: the log breaks off before it."""
        for record in self._log[self._at : self._at + 4]:
            if isinstance(record.event, SessionDropped):
                return record.event.reason
        return None

    def _interrupted(self) -> bool:
        event = self._log[self._at].event
        if type(event) is DraftDiscarded and event.reason not in ("failed", "finished"):
            return False  # a discard of the round itself: the interrupt came behind it
        return self._drops(self._ahead()) and (self._drop_reason() or "").startswith("interrupted: ")

    def _next(self, request: object) -> Event:
        """The recorded event that answers a request; leaves the script where the recorded run left it."""
        if self._at >= len(self._log):
            raise Elsewhere
        event = self._log[self._at].event
        if type(event) is SessionResumed and type(request) is not SessionResumed:
            raise Elsewhere
        if self._interrupts and not self._dropping and self._interrupted():
            raise Elsewhere
        return event

    def _diverged(self, replayed: object) -> NoReturn:
        record = self._log[self._at] if self._at < len(self._log) else None
        raise ReplayDiverged(record.seq if record else self._seq, record.event if record else None, replayed)

    def _unanswerable(self, request: object) -> NoReturn:
        if self._state.boundary:
            self._instead = request
            raise Elsewhere
        self._diverged(request)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _call(self, call: FailedCall) -> Failed | None:
        if self._at < len(self._log):
            event = self._log[self._at].event
            if isinstance(event, RuntimeFailed) and event.call == call:
                return _failed(event)
        return None

    def _poll(self, request: Poll) -> str | None:
        event, state = self._next(request), self._state
        if state.phase == "verified":
            self._polled += 1
            cut = isinstance(event, Committed) and event.cut_by == "cancelled" and self._polled == len(event.tokens) + 1
            return _why(event.detail) if cut and isinstance(event, Committed) else None
        if isinstance(event, Trimmed) and event.cause == "cancel":
            return self._finish_detail() if self._fed_to >= event.from_ else None
        if _way_back_failed(event):  # after a cancel between chunks; how many had run makes no difference
            return "cancel" if self._fed_to > state.position else None
        if isinstance(event, DraftRestored) and event.reason == "cancelled":
            return self._finish_detail()
        ahead = self._ahead()
        return _why(ahead.detail) if isinstance(ahead, SessionFinished) and ahead.reason == "cancelled" else None

    def _finish_detail(self) -> str:
        for record in self._log[self._at : self._at + 4]:
            if isinstance(record.event, SessionFinished):
                return _why(record.event.detail)
        return "cancel"

    def _forward(self, call: Forward) -> Rows | Failed:
        event = self._next(call)
        if isinstance(event, RuntimeFailed) and event.call in ("prefill", "serial", "span"):
            return _failed(event)
        position = call.base + len(call.tokens)
        cancelled = _way_back_failed(event) or (isinstance(event, Trimmed) and event.cause == "cancel")
        if call.want == "none" and (cancelled or isinstance(event, Prefilled)):
            self._fed_to = position
            return Rows(session=call.session, predictions=(), position=position, cost_ns=0)
        if call.want == "last" and isinstance(event, Prefilled | SerialDecoded):
            return Rows(
                session=call.session,
                predictions=(event.prediction,),
                position=event.position if isinstance(event, Prefilled) else event.observed,
                cost_ns=event.cost_ns,
                margins=None if event.margin is None else (event.margin,),
                logprobs=None if event.logprob is None else (event.logprob,),
            )
        if call.want == "all" and isinstance(event, SpanVerified):
            return Rows(
                session=call.session,
                predictions=event.predictions,
                position=event.observed,
                cost_ns=event.cost_ns,
                margins=event.margins,
                logprobs=event.logprobs,
            )
        self._unanswerable(call)

    def _settle(self, call: Settle) -> Settled | Failed:
        event = self._next(call)
        if isinstance(event, RuntimeFailed) and event.call == "settle":
            return _failed(event)
        if isinstance(event, Trimmed):
            return Settled(session=call.session, position=event.observed, replayed_rows=event.replayed_rows, cost_ns=event.cost_ns)
        if isinstance(event, CheckpointRetired):
            return Settled(session=call.session, position=event.observed, cost_ns=event.cost_ns)
        self._unanswerable(call)

    def _draft(self, ask: AskDraft) -> Draft | Failed:
        event = self._next(ask)
        if isinstance(event, DraftFailed):
            return Failed(started=True, error=event.error, message=event.message)
        if isinstance(event, DraftOffered):
            outside = self._state.runtime.vocabulary
            return Draft(session=0, tokens=event.tokens + (outside,) * event.invalid, cost_ns=event.cost_ns)
        self._unanswerable(ask)

    def _ask_stop(self, ask: AskStop) -> StopVerdict | None:
        event = self._log[self._at].event if self._at < len(self._log) else None
        if not isinstance(event, Committed) or event.cut_by not in ("stop_text", "stop_when", "stop_when_error"):
            return None
        last = ask.index - self._state.decoded == len(event.tokens) - 1
        return StopVerdict(event.cut_by, event.detail) if last else None

    def _floor(self, request: Floor) -> int:
        event, state = self._next(request), self._state
        wanted = boundary_position(len(state.canonical)) if state.phase == "rewinding" else state.position
        unreachable = (isinstance(event, Trimmed) and event.to != wanted) or (isinstance(event, RuntimeFailed) and event.call == "reset")
        return wanted + 1 if unreachable else 0


def _failed(event: RuntimeFailed) -> Failed:
    return Failed(started=event.started, error=event.error, message=event.message, observed=event.observed)


def _way_back_failed(event: Event) -> bool:
    return isinstance(event, RuntimeFailed) and event.call in ("settle", "reset")


def _why(detail: str | None) -> str:
    return "cancel" if detail is None else detail
