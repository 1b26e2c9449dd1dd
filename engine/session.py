"""A session that goes on, one step at a time.

The order of one step: a round, to a boundary; the recorder keeps its records; the tokens are delivered; the turn is
finished if it must be; then an error, if there was one, is raised. So a caller who is told of an error finds the session
canonical, or dropped, and never anything between.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

import attrs

from .drivers import Live
from .errors import ConfigError, DecodeFailed, RecorderFailed, RuntimeContractError, SessionClosed, SessionInUse, described
from .events import Extended, FinishLimit, FinishReason, SessionFinished
from .gate import Gate
from .invariants import state_violations
from .life import conclude, drop_session, extend_session, rewind_session
from .requests import Context
from .round import run_round
from .rules import Finish, finish_due, masking
from .runtime import Extras
from .sharing import Share, busy
from .state import DecodeStats, SessionState
from .values import Sampling

if TYPE_CHECKING:
    from .decoder import Decoder, TurnOptions

__all__ = ["Result", "Session"]

#: Spans after which a session that has not accepted one drafted token says so.
ACCEPTANCE_FLOOR_SPANS: Final = 50

log = logging.getLogger("spanfold.engine")

#: Check every state against the invariants after each call (slow; for tests and for hunting a fault).
_CHECK = os.environ.get("SPANFOLD_CHECK") == "1"


@attrs.frozen(kw_only=True)
class Result:
    """What a turn came to.

    Attributes:
        tokens: committed in this turn, the stop token included.
        finish_reason: why it ended; None for a turn that has not.
        limit: which limit, for reason ``length``.
        stats: the session's account.
        session: the session's last state; its canonical tokens stay readable after the session is dropped.
    """

    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    limit: FinishLimit | None
    stats: DecodeStats
    session: SessionState


class Session:
    """One session; made by ``Decoder.open``. Use it from one thread at a time.

    Iterating it yields the turn's tokens, delivered round by round, until the turn is finished.
    """

    def __init__(self, decoder: Decoder, live: Live, share: Share, on_token: Callable[[int], object] | None, extras: Extras) -> None:
        self._decoder = decoder
        self._live = live
        self._share = share
        self._on_token = on_token
        self._extras = extras
        self._ctx_of = live.hooks
        self._ctx = live.context(extras)
        self._gate = Gate()
        self._close_requested = False
        self._warned = False
        self._recorder_told = False
        self._undelivered: deque[int] = deque()  # of the round that an iterator is in
        self._pending: BaseException | None = None  # to be raised once they are delivered

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The session's number in its records."""
        return self._live.log_session

    @property
    def runtime_session(self) -> int:
        """The session's number on the runtime (differs from ``id`` for a resumed session only)."""
        return self._live.session

    @property
    def state(self) -> SessionState:
        """The newest state: a value that never changes."""
        return self._live.state

    @property
    def stats(self) -> DecodeStats:
        """The account so far."""
        return self._live.state.stats

    @property
    def finish(self) -> SessionFinished | None:
        """How the turn ended, or None."""
        return self._live.state.finish

    @property
    def finished(self) -> bool:
        """Whether the turn has ended (or the session is gone)."""
        state = self._live.state
        return state.finish is not None or state.phase == "dropped"

    @property
    def result(self) -> Result:
        """The turn so far."""
        state = self._live.state
        finish = state.finish
        return Result(
            tokens=state.canonical[state.turn.start :],
            finish_reason=finish.reason if finish else None,
            limit=finish.limit if finish else None,
            stats=state.stats,
            session=state,
        )

    # -- driving -----------------------------------------------------------------------------------------------------

    def step(self) -> tuple[int, ...]:
        """Run one round and deliver its tokens (none if the turn is finished, or was cancelled before a token).

        Raises:
            DecodeFailed: a runtime call failed. The session is canonical and can go on unless ``state.phase`` is
                ``dropped``; tokens committed before the failure are in ``state``.
            RecorderFailed: the records could not be kept; the turn is finished ``failed``, nothing of the round delivered.
            SessionClosed, SessionInUse: the session cannot be stepped.
            Exception: whatever a callback raised, unchanged; what was committed stays.
        """
        tokens, error = self.advance()
        if error is not None:
            raise error
        return tokens

    def __iter__(self) -> Iterator[int]:
        while True:
            while self._undelivered:
                yield self._undelivered.popleft()
            if self._pending is not None:
                error, self._pending = self._pending, None
                raise error
            if self.finished:
                return
            tokens, self._pending = self.advance()
            self._undelivered.extend(tokens)

    def extend(self, tokens: Sequence[int] = (), **options: Unpack[TurnOptions]) -> None:
        """Give tokens and begin a new turn (nothing runs before the next step). Options as for ``Decoder.open``.

        The last token of the turn before, a stop token too, is fed with them: its row was not in the cache.
        """
        from .decoder import token_ids

        with self._use():
            state = self._live.state
            given = token_ids(tokens, "tokens", state.runtime.vocabulary)
            length = len(state.canonical) + len(given)
            if length > state.runtime.context_length:
                raise ConfigError(f"{length} tokens are more than the context of {state.runtime.context_length}: extend with fewer")
            turning = self._decoder.turning(options)
            sampling = masking(Sampling(), turning.stops, turning.limits, state.runtime, length)
            extended = Extended(tokens=given, limits=turning.limits, stops=turning.stops, sampling=sampling, turn=state.turn.number + 1)
            self._live.wake()
            self._live.run(extend_session(extended, state, self._context()))
            error = self._take_error()
            if self._live.state.turn.number == extended.turn:  # also where an interrupt came with the event
                self._live.hooks = turning.hooks
                self._on_token = turning.on_token
        if error is not None:
            raise error

    def rewind(self, count: int) -> None:
        """Take back the last ``count`` tokens, of this turn or of earlier ones. A finished turn goes on.

        Below its start the turn begins anew where the tokens end now: ``max_tokens`` and ``min_tokens`` count from there.

        Raises:
            ConfigError: ``count`` is not from 1 to ``len(canonical) - 1``.
            DecodeFailed: the runtime failed; says whether the session can go on.
        """
        with self._use():
            state = self._live.state
            if type(count) is not int or not 1 <= count < len(state.canonical):
                raise ConfigError(f"rewind takes 1 to {len(state.canonical) - 1} tokens here, not {count!r}")
            self._live.wake()
            self._live.run(rewind_session(count, state, self._context()))
            error = self._take_error()
            state = self._live.state
            if self._live.hooks.matcher is not None:
                self._live.hooks.matcher.reset(state.canonical[state.turn.start :])
        if error is not None:
            raise error

    def close(self) -> None:
        """Finish the turn ``closed`` if it has not ended, and release the session.

        May be called twice, from a callback and from another thread: a round under way ends first.

        Raises:
            RecorderFailed: the last records could not be kept.
            SessionInUse: the runtime does not allow this thread.
            BaseException: an interrupt that came meanwhile.
        """
        self._share.check_thread()
        self._close_requested = True  # first: whoever holds the gate looks at this after leaving it
        if not self._gate.enter():
            return
        try:
            self._gate.inside = True
            self._close_now(Finish("closed"))
        finally:
            self._gate.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        # An abandoned session must not hold rows on the device. A finalizer may run inside the engine: then later.
        live = getattr(self, "_live", None)
        if live is None or live.state.phase in ("new", "dropped"):
            return
        later = not self._share.this_thread_may_call or busy()
        try:
            if not later:
                close_live(live, Finish("closed"))
        except BaseException:
            later = True
            raise
        finally:
            if later:
                self._share.orphan(lambda: close_live(live, Finish("closed")))

    # -- inside the package ------------------------------------------------------------------------------------------

    def advance(self) -> tuple[tuple[int, ...], BaseException | None]:
        """One step: the tokens delivered, and what is to be raised once the caller has them."""
        with self._use(finished=True):
            live = self._live
            if live.state.finish is not None:
                return (), None
            if live.recorder_error is not None:
                return (), self._recorder_error()
            before = len(live.state.canonical)
            live.run(run_round(live.state, self._context()))
            tokens = live.state.canonical[before:]
            if not live.flush():
                return (), self._recorder_error()
            error = self._deliver(tokens)
            error = self._take_error(error)
            self._mind_the_floor()
            if error is None and live.state.phase == "ready":
                due = finish_due(live.state)
                if due is not None:
                    live.run(conclude(live.state, due))
                    if not live.flush():
                        error = self._recorder_error()
            if live.state.finish is not None:
                self._decoder.learn(live.state)
            return tokens, error

    def fail(self, error: BaseException) -> BaseException:
        """Finish ``failed`` and release; what to raise instead of ``error``: the same, with ``partial`` where it has one."""
        if self._gate.enter():
            try:
                self._gate.inside = True
                close_live(self._live, Finish("failed", None, f"{type(error).__name__}: {described(error)}"[:500]))
            finally:
                self._gate.leave()
        else:  # in use elsewhere: who holds it closes it
            self._close_requested = True
        if isinstance(error, (DecodeFailed, RecorderFailed)):
            error.partial = self.result
        return error

    def raise_if_not_opened(self) -> None:
        """Raises the runtime's refusal to open the session."""
        error = self._take_error()
        if error is not None:
            close_live(self._live, Finish("failed"))
            raise error

    def _context(self) -> Context:
        hooks = self._live.hooks
        if self._ctx_of is not hooks:  # once per turn
            self._ctx_of, self._ctx = hooks, self._live.context(self._extras)
        return self._ctx

    @contextmanager
    def _use(self, finished: bool = False) -> Generator[None, None, None]:
        self._share.check_thread()
        if not self._gate.enter():
            raise SessionInUse("this session is in use, by another thread or by the step that called back")
        try:
            self._gate.inside = True
            if self._live.state.phase == "dropped" and not (finished and self._live.state.finish is not None):
                raise SessionClosed("this session is released: its tokens stay readable in session.state, open a new one to decode")
            if not busy():
                self._share.release_orphans()
            yield
            if _CHECK:
                found = state_violations(self._live.state)
                assert not found, found
        finally:
            self._gate.leave()
            # A close that found the gate shut left its wish before it looked; one that comes later finds it open.
            if self._close_requested and self._live.state.phase != "dropped" and self._gate.enter():
                try:
                    self._gate.inside = True
                    self._close_now(Finish("closed"))
                finally:
                    self._gate.leave()

    def _close_now(self, finish: Finish) -> None:
        if self._live.state.finish is None:
            self._decoder.learn(self._live.state)
        close_live(self._live, finish)
        interrupt, self._live.interrupt = self._live.interrupt, None
        if interrupt is not None:
            raise interrupt
        if self._live.recorder_error is not None and not self._recorder_told:
            raise self._recorder_error()

    def _mind_the_floor(self) -> None:
        stats = self._live.state.stats
        if stats.spans >= ACCEPTANCE_FLOOR_SPANS and not stats.accepted and not self._warned:
            self._warned = True
            log.warning(
                "session %d: none of %d drafted tokens was accepted in %d spans. The output is right, the speculation is lost time: "
                "likely the head does not belong to this target, was loaded under a wrong contract, or was quantised to nothing",
                self.id,
                stats.verified,
                stats.spans,
            )

    def _deliver(self, tokens: tuple[int, ...]) -> BaseException | None:
        if self._on_token is not None:
            for token in tokens:
                try:
                    self._on_token(token)
                except BaseException as exc:
                    return exc
        return None

    def _take_error(self, delivery: BaseException | None = None) -> BaseException | None:
        """What to raise, most urgent first: an interrupt, the caller's own exception, the runtime's failure."""
        live = self._live
        interrupt, user, cause, failure = live.interrupt, live.user_error, live.call_error, live.failure
        live.interrupt = live.user_error = live.call_error = live.failure = None
        own = interrupt or user or delivery
        if own is not None:
            return own
        if failure is None:
            return None
        after = "the session is dropped" if live.state.phase == "dropped" else "the session is canonical and can go on"
        error = DecodeFailed(f"{failure.call} failed: {failure.error}: {failure.message} ({after})")
        error.__cause__ = cause if cause is not None else RuntimeContractError(failure.message)
        return error

    def _recorder_error(self) -> BaseException:
        live = self._live
        cause = live.recorder_error
        assert cause is not None
        self._recorder_told = True
        if live.state.phase == "ready":
            live.run(conclude(live.state, Finish("failed", None, f"recorder: {type(cause).__name__}: {described(cause)}"[:500])))
        interrupt = live.interrupt
        self._take_error()
        if interrupt is not None:
            return interrupt
        error = RecorderFailed(f"the recorder could not write: {type(cause).__name__}: {described(cause)}", self.result)
        error.__cause__ = cause
        return error


def close_live(live: Live, finish: Finish) -> None:
    """Finish the turn if it has not ended, and release the session."""
    if live.state.phase == "ready":
        due = finish_due(live.state) if finish.reason == "closed" else None
        live.run(conclude(live.state, due or finish))
    if live.state.phase not in ("new", "dropped"):
        live.run(drop_session(live.state, finish.reason))
    live.flush()
