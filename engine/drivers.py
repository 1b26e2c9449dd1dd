"""The live driver: connects the scripts of round.py and life.py to one session of one runtime.

All effects are here: runtime calls, the clock, the caller's callbacks, observers and the recorder. It takes no decision
about the decode; it turns whatever happens into the answers that a script understands, and remembers the exception that
the caller must see once the session is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, TypeVar

from .drafting import Drafter, DraftSource
from .errors import NotStarted, RuntimeContractError, described
from .events import Event, Record, RuntimeFailed
from .hooks import Clock, Hooks, Recorder, Watch
from .life import drop_session
from .reducer import reduce
from .requests import AskDraft, AskStop, Configure, Context, Drop, Failed, Floor, Open, Poll, Reset, Script, StopVerdict
from .runtime import Ask, Draft, Extras, Failure, Forward, Rows, Runtime, Settle, Settled
from .sharing import Share, engine_activity
from .state import NEW, SessionState
from .tokens import TokenLog

__all__ = ["Live"]

log = logging.getLogger("spanfold.engine")

T = TypeVar("T")


class Live:
    """One session on one runtime, and the state that its events fold to."""

    def __init__(
        self,
        runtime: Runtime,
        share: Share,
        session: int,
        *,
        source: DraftSource | None,
        watch: Watch,
        recorder: Recorder | None,
        clock: Clock,
        state: SessionState = NEW,
        log_session: int | None = None,
        seq: int = 0,
    ) -> None:
        self.state = state
        self.seq = seq
        self.session = session
        self.log_session = session if log_session is None else log_session
        self.hooks = Hooks()
        self.recorder_error: BaseException | None = None
        self.call_error: BaseException | None = None  # of a runtime call: raised as the cause of DecodeFailed
        self.user_error: BaseException | None = None  # of a callback: raised unchanged
        self.interrupt: BaseException | None = None  # not an Exception: raised unchanged, before all others
        self.failure: RuntimeFailed | None = None
        self._runtime = runtime
        self._share = share
        self._watch = watch
        self._recorder = recorder
        self._watched = recorder is not None or watch.awake
        self._clock = clock.read
        self._epoch = clock.epoch
        self._drafter: Drafter | None = source.open(session, self._ask_head) if source is not None else None
        self._unsent: Record | None = None
        self._writing = False
        self._unrecorded = False  # the runtime was called and no event tells of it yet
        self._answers: dict[type, Callable[[Any], Any]] = {
            Forward: self._forward,
            Settle: self._settle,
            AskDraft: self._draft,
            AskStop: self._ask_stop,
            Poll: self._poll,
            Floor: self._floor,
            Open: self._open,
            Configure: self._configure,
            Reset: self._reset,
            Drop: self._drop,
        }

    # -- running scripts ---------------------------------------------------------------------------------------------

    def context(self, extras: Extras) -> Context:
        """What the scripts of this turn must know."""
        return Context(session=self.session, polls=self.hooks.polls, asks=self.hooks.asks, extras=extras)

    def wake(self) -> None:
        """A turn is about to begin or to be rewound: observers that rested are told again."""
        self._watch.wake()
        self._watched = self._recorder is not None or self._watch.awake

    def run(self, script: Script[SessionState]) -> None:
        """Drive a script to its end, or to the next boundary after an interrupt.

        An exception that no call answers for (an interrupt between two calls, a fault of the engine) leaves the session at
        a boundary or dropped, and propagates.
        """
        with engine_activity():
            try:
                answer: Any = None
                answers = self._answers
                while True:
                    request = script.send(answer)
                    handler = answers.get(type(request))
                    if handler is not None:
                        answer = handler(request)
                        continue  # whatever came of the call, the script must hear of it before it may be left
                    answer = self._record(request)  # pyright: ignore[reportArgumentType]
                    if self.interrupt is not None and self.state.boundary:
                        script.close()
                        return
            except StopIteration:
                return
            except BaseException as exc:
                script.close()
                self._abandon(exc)
                raise

    def _abandon(self, exc: BaseException) -> None:
        if (self.state.boundary and not self._unrecorded) or self.state.phase == "dropped":
            return
        if self.state.phase == "new":
            self.release()
            return
        script = drop_session(self.state, f"interrupted: {type(exc).__name__}")
        try:
            answer: Any = None
            while True:
                request = script.send(answer)
                handler = self._answers.get(type(request))
                answer = handler(request) if handler is not None else self._record(request)  # pyright: ignore[reportArgumentType]
        except StopIteration:
            return
        finally:
            self.release()

    def _record(self, event: Event) -> SessionState:
        if self._unsent is not None:
            self._tell()
        state = reduce(self.state, event)
        seq, record = self.seq, None
        if self._watched:  # nobody who would look at the envelope: no envelope
            record = Record(seq=seq, session=self.log_session, at_ns=self._clock() + self._epoch, event=event)
        # Without a call in between, so that a signal finds either all of it done or nothing.
        self.state, self.seq, self._unsent, self._unrecorded = state, seq + 1, record, False
        if type(event) is RuntimeFailed and self.failure is None:
            self.failure = event
        if record is not None:
            self._tell()
        return state

    def _tell(self) -> None:
        """Give the newest record to the recorder and the observers; also what an interrupt kept from being given."""
        record = self._unsent
        if record is None:
            return
        if self._recorder is not None and self.recorder_error is None:
            if self._writing:
                # An interrupt came between the write and this line: whether the record is kept cannot be known.
                self._recorder_failed(RuntimeError(f"interrupted while record {record.seq} was written"))
            else:
                self._writing = True
                try:
                    self._recorder.write(record)
                except BaseException as exc:
                    self._recorder_failed(exc)
        # Written once, whatever comes now; an observer may miss a record to an interrupt, the recorder may not.
        self._writing, self._unsent = False, None
        watch = self._watch
        interrupt = watch.notify(record)
        self.interrupt = self.interrupt or interrupt
        if not watch.awake and self._recorder is None:
            self._watched = False

    def flush(self) -> bool:
        """Have the recorder keep what it was given; False if it cannot, or could not write before."""
        if self._recorder is not None and self.recorder_error is None:
            try:
                with engine_activity():
                    self._tell()
                    self._recorder.flush()
            except BaseException as exc:
                self._recorder_failed(exc)
        return self.recorder_error is None

    def _recorder_failed(self, exc: BaseException) -> None:
        self.recorder_error = exc
        if not isinstance(exc, Exception):
            self.interrupt = self.interrupt or exc

    # -- answers: runtime calls --------------------------------------------------------------------------------------

    def _failed(self, exc: BaseException) -> Failed:
        self.call_error = self.call_error or exc
        if not isinstance(exc, Exception):
            self.interrupt = self.interrupt or exc
        return Failed(started=not isinstance(exc, NotStarted), error=type(exc).__name__, message=_one_line(exc), observed=self._position())

    def _element_failed(self, failure: Failure) -> Failed:
        self.call_error = self.call_error or failure.cause or RuntimeContractError(f"{failure.error}: {failure.message}")
        return Failed(started=failure.started, error=failure.error, message=failure.message, observed=self._position())

    def _position(self) -> int | None:
        try:
            with self._share.lock:
                view = self._runtime.view(self.session)
            return None if view is None else max(0, index(view.position))
        except Exception:  # the failure that led here is the one to report; the position stays unknown
            return None

    def _timed(self, call: Callable[[tuple[Any]], Sequence[Any]], argument: Any) -> tuple[Any, int]:
        """The one element that a call answers with, and the time it took, waiting for the lock excluded."""
        clock = self._clock
        self._unrecorded = True
        with self._share.lock:
            began = clock()
            results = call((argument,))
            took = clock() - began
        if len(results) != 1 or results[0].session != self.session:
            raise RuntimeContractError(f"the runtime answered one call with {len(results)} elements or for another session")
        return results[0], max(0, took)

    def _forward(self, call: Forward) -> Rows | Failed:
        try:
            rows, took = self._timed(self._runtime.forward, call)
            if isinstance(rows, Failure):
                return self._element_failed(rows)
            if self.hooks.on_prefill is not None:
                self._prefill_progress(call)
            return Rows(
                session=self.session,
                predictions=tuple(map(index, rows.predictions)),
                position=index(rows.position),
                cost_ns=took if rows.cost_ns is None else max(0, index(rows.cost_ns)),
                margins=_floats(rows.margins, len(rows.predictions)),
                logprobs=_floats(rows.logprobs, len(rows.predictions)),
            )
        except BaseException as exc:
            return self._failed(exc)

    def _prefill_progress(self, call: Forward) -> None:
        hook, state = self.hooks.on_prefill, self.state
        if hook is None or state.primed:
            return
        try:
            hook(call.base + len(call.tokens) - state.position, len(state.canonical) - state.position)
        except Exception:
            self.hooks.on_prefill = None
            log.exception("on_prefill failed; it is not called again")

    def _settle(self, call: Settle) -> Settled | Failed:
        try:
            settled, took = self._timed(self._runtime.settle, call)
            if isinstance(settled, Failure):
                return self._element_failed(settled)
            return Settled(
                session=self.session,
                position=index(settled.position),
                replayed_rows=index(settled.replayed_rows),
                cost_ns=took if settled.cost_ns is None else max(0, index(settled.cost_ns)),
            )
        except BaseException as exc:
            return self._failed(exc)

    def _ask_head(self, canonical: TokenLog, limit: int) -> Draft:
        draft, took = self._timed(self._runtime.draft, Ask(session=self.session, current=canonical[-1], limit=limit))
        if isinstance(draft, Failure):
            raise draft.cause or RuntimeContractError(f"{draft.error}: {draft.message}")
        return Draft(session=self.session, tokens=draft.tokens, cost_ns=took if draft.cost_ns is None else draft.cost_ns)

    def _draft(self, ask: AskDraft) -> Draft | Failed:
        try:
            assert self._drafter is not None
            clock = self._clock
            began = clock()
            draft = self._drafter.draft(self.state.canonical, ask.limit)
            took = max(0, clock() - began)
            return Draft(
                session=self.session,
                tokens=tuple(map(index, draft.tokens)),
                cost_ns=took if draft.cost_ns is None else max(0, index(draft.cost_ns)),
            )
        except BaseException as exc:
            if not isinstance(exc, Exception):
                self.interrupt = self.interrupt or exc
            log.warning(
                "the draft source failed, session %d decodes serially from here on: %s", self.session, _one_line(exc) or type(exc).__name__
            )
            return Failed(started=True, error=type(exc).__name__, message=_one_line(exc))

    @property
    def _feeds_head(self) -> bool:
        # A session that drafts from its own text never asks the head: then its rows would be fed for nothing.
        draft = self.state.draft
        return draft is not None and draft.origin == "mtp"

    def _floor(self, _: Floor) -> int:
        try:
            with self._share.lock:
                view = self._runtime.view(self.session)
            if view is not None:
                return index(view.floor)
        except Exception:  # where it is not known what can be reached, nothing is taken to be
            log.debug("view failed", exc_info=True)
        return self.state.runtime.context_length + 1

    def _guarded(self, call: Callable[[], None]) -> Failed | None:
        self._unrecorded = True
        try:
            with self._share.lock:
                call()
        except BaseException as exc:
            return self._failed(exc)
        return None

    def _open(self, _: Open) -> Failed | None:
        sampling = self.state.turn.sampling
        failed = self._guarded(lambda: self._runtime.open_session(self.session, sampling, self._feeds_head))
        self._unrecorded = failed is not None  # an empty session needs no event beyond SessionOpened
        return failed

    def _configure(self, request: Configure) -> Failed | None:
        return self._guarded(lambda: self._runtime.configure(self.session, request.sampling))

    def _reset(self, _: Reset) -> Failed | None:
        def call() -> None:
            self._runtime.drop_session(self.session)
            self._runtime.open_session(self.session, self.state.turn.sampling, self._feeds_head)

        return self._guarded(call)

    def _drop(self, _: Drop) -> Failed | None:
        error = self.call_error
        failed = self._guarded(lambda: self._runtime.drop_session(self.session))
        if failed is not None and self.interrupt is not None:
            # Ctrl-C at the moment of closing must not leave rows on the device; dropping twice is harmless.
            failed = self._guarded(lambda: self._runtime.drop_session(self.session))
        if failed is not None:
            # Nothing that was decoded is wrong: the log and the warning tell it, the caller's result stands.
            self.call_error = error
            log.warning("the runtime could not release session %d: %s: %s", self.session, failed.error, failed.message)
        self.release()
        return failed

    def release(self) -> None:
        """The session counts as live no more."""
        self._share.released(self)

    # -- answers: the caller -----------------------------------------------------------------------------------------

    def _poll(self, _: Poll) -> str | None:
        hooks = self.hooks
        if hooks.cancel is not None:
            try:
                if hooks.cancel():
                    return "cancel"
            except BaseException as exc:
                self._user_failed(exc)
                return f"cancel raised {type(exc).__name__}"
        if hooks.deadline_ns is not None and self._clock() >= hooks.deadline_ns:
            return "deadline"
        return None

    def _ask_stop(self, ask: AskStop) -> StopVerdict | None:
        hooks = self.hooks
        try:
            if hooks.matcher is not None:
                found = hooks.matcher.push(ask.token)
                if found is not None:
                    return StopVerdict("stop_text", found)
            if hooks.stop_when is not None and hooks.stop_when(ask.token, ask.index):
                return StopVerdict("stop_when", f"token {ask.index}")
        except BaseException as exc:
            self._user_failed(exc)
            return StopVerdict("stop_when_error", f"{type(exc).__name__}: {_one_line(exc)}")
        return None

    def _user_failed(self, exc: BaseException) -> None:
        self.user_error = self.user_error or exc


def _floats(values: Sequence[float] | None, count: int) -> tuple[float, ...] | None:
    if values is None:
        return None
    numbers = tuple(map(float, values))
    if len(numbers) != count or not all(number - number == 0.0 for number in numbers):
        raise RuntimeContractError(f"margins and logprobs must be finite and one per prediction ({count}), not {numbers}")
    return numbers


def _one_line(exc: BaseException) -> str:
    return described(exc)[:500]
