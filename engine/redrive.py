"""Redrive: run the real scripts of round.py against the recorded inputs of a log; the same events must come out.

Everything that is not a pure function of the state is in the log, so every request of a script can be answered from the
event that follows it there. What was decided (which event comes, its counts, its reasons) is computed again and compared.
No runtime, no clock, no callback is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from .errors import ConfigError, IllegalEvent, ReplayDiverged, UnknownRules
from .events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    Event,
    Extended,
    FailedCall,
    Prefilled,
    Record,
    Rewound,
    RuntimeFailed,
    SerialDecoded,
    SessionDropped,
    SessionFinished,
    SessionOpened,
    SessionResumed,
    SpanVerified,
    Trimmed,
)
from .positions import boundary_position
from .reducer import reduce
from .requests import AskDraft, AskStop, Configure, Context, Drop, Failed, Floor, Open, Poll, Reset, Script, StopVerdict
from .round import conclude, drop_session, extend_session, open_session, resume_session, rewind_session, run_round
from .rules import VERSION, Finish, finish_due
from .runtime import Draft, Forward, Rows, Settle, Settled
from .state import NEW, SessionState

__all__ = ["Redriver", "redrive"]

#: A script consumes far fewer records than this, so with so many at hand it never meets the end of what was fed by chance.
_LOOKAHEAD: Final = 32
_BATCH: Final = 256

#: A context per (may be cancelled, may be stopped by text or by the user's decision); the fewer questions, the faster.
_CONTEXTS: Final = {(polls, asks): Context(session=0, polls=polls, asks=asks) for polls in (False, True) for asks in (False, True)}


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


class _Elsewhere(Exception):
    """The script at hand was left at this point of the recorded run (its end, a crash, an interrupt)."""


class Redriver:
    """Decides one session's log again while it is read, a bounded number of records behind the newest.

    Args:
        keep: is given each record that came out; None: they are only compared.

    ``feed`` and ``finish`` raise as :func:`redrive`; after that the object is spent.
    """

    def __init__(self, keep: Callable[[Record], object] | None = None) -> None:
        self._keep = keep
        self._log: list[Record] = []  # what is needed of the records fed so far; [at:] is undecided
        self._at = 0
        self._first: Record | None = None
        self._seq = 0  # the number that the next record must have
        self._state: SessionState = NEW
        self._polled = 0
        self._fed_to = 0
        self._dropping = False
        self._instead: object = None  # what the script at hand came to, where the recorded run may have left it
        # Where, from the end of what was decided, a cancel, a user's stop and an interrupt lie: seldom anywhere.
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
        if type(record.event) in _MARKED:
            self._mark(record.event, len(log))
        log.append(record)
        if len(log) >= _BATCH:
            while len(log) - self._at >= _LOOKAHEAD:
                self._run()
            self._forget()
        elif type(record.event) is SessionDropped:
            self.finish()  # a drop ends its script: nothing behind it is needed to decide it, and often nothing comes

    def finish(self) -> None:
        """Decide all that was fed: the log ends here, or goes on after a drop."""
        while self._at < len(self._log):
            self._run()
        self._forget()

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

    def _run(self) -> None:
        began, self._fed_to, self._dropping, self._instead = self._at, 0, False, None
        script = self._script()
        try:
            self._drive(script)
        except _Elsewhere:
            script.close()
        except ConfigError as exc:  # the state that the log led to is one that the round cannot make an event of
            self._diverged(exc)
        if self._at == began:
            self._diverged("no event" if self._instead is None else self._instead)

    def _near(self, marks: list[int]) -> bool:
        return any(self._at <= mark < self._at + _LOOKAHEAD for mark in marks)

    # -- which script ran ------------------------------------------------------------------------------------------------

    def _script(self) -> Script[SessionState]:
        state, event = self._state, self._log[self._at].event
        if isinstance(event, SessionOpened | SessionResumed) and event.rules != VERSION:
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
            self._diverged("nothing that this phase allows")
        return run_round(state, ctx)

    def _command(self, event: Event, ahead: Event | None, ctx: Context) -> Script[SessionState] | None:
        """The script of what was asked of the session from outside; None: a round went on."""
        state = self._state
        if isinstance(event, SessionOpened):
            return open_session(event, ctx)
        if state.phase == "new":
            self._diverged("no session that was opened")
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

    def _next(self, request: object) -> Event:
        """The recorded event that answers a request; leaves the script where the recorded run left it."""
        if self._at >= len(self._log):
            raise _Elsewhere
        event = self._log[self._at].event
        if type(event) is SessionResumed and type(request) is not SessionResumed:
            raise _Elsewhere
        if self._interrupts and not self._dropping and self._interrupted():
            raise _Elsewhere
        return event

    def _interrupted(self) -> bool:
        return self._drops(self._ahead()) and (self._drop_reason() or "").startswith("interrupted: ")

    def _record(self, event: Event) -> SessionState:
        recorded = self._next(event)
        if not event == recorded:  # noqa: SIM201 - `!=` would call `==` through one more function
            if self._state.boundary and not isinstance(event, SessionFinished):
                # The recorded run may have been left at this boundary (an interrupt); _script finds what came then.
                self._instead = event
                raise _Elsewhere
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

    def _diverged(self, replayed: object) -> NoReturn:
        record = self._log[self._at] if self._at < len(self._log) else None
        raise ReplayDiverged(record.seq if record else self._seq, record.event if record else None, replayed)

    def _unanswerable(self, request: object) -> NoReturn:
        if self._state.boundary:
            self._instead = request
            raise _Elsewhere
        self._diverged(request)

    # -- answers ---------------------------------------------------------------------------------------------------------

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


_MARKED: Final = frozenset((Committed, Trimmed, RuntimeFailed, DraftRestored, SessionFinished, SessionDropped))
_COMMANDS: Final = frozenset((SessionOpened, SessionResumed, Extended, Rewound, SessionFinished, RuntimeFailed, SessionDropped))


def _failed(event: RuntimeFailed) -> Failed:
    return Failed(started=event.started, error=event.error, message=event.message, observed=event.observed)


def _way_back_failed(event: Event) -> bool:
    return isinstance(event, RuntimeFailed) and event.call in ("settle", "reset")


def _why(detail: str | None) -> str:
    return "cancel" if detail is None else detail
