"""Failures, and the ways back from them to a canonical session, or to none: the parts that the scripts of ``round`` and ``life`` share."""

from __future__ import annotations

from .events import DiscardReason, DraftDiscarded, DraftRestored, FailedCall, RuntimeFailed, SessionDropped, Trimmed
from .positions import row_index
from .requests import DROP, FLOOR, RESET, Context, Failed, Script
from .runtime import Rows, Settle, Settled
from .state import SessionState

__all__ = ["checked", "cut_back", "discard_pending", "give_up", "recover", "runtime_failed", "wrong_position"]


def checked(state: SessionState, rows: Rows, base: int, fed: int, wanted: int, least: int) -> Rows | Failed:
    """The rows, or the failure that they are: a wrong position, too few or impossible predictions.

    ``wanted`` predictions were asked for; the first ``least`` may be committed and must be there.
    """
    if rows.position != base + fed:
        return wrong_position(rows.position, base + fed, "forward")
    predictions = rows.predictions
    vocabulary, sampling, first = state.runtime.vocabulary, state.turn.sampling, base + fed - wanted
    problem = None
    if not least <= len(predictions) <= wanted:
        problem = f"the forward returned {len(predictions)} predictions, {wanted} were wanted"
    elif predictions and not (min(predictions) >= 0 and max(predictions) < vocabulary):
        problem = f"the predictions {predictions} are not all in the vocabulary of {vocabulary}"
    elif first + 1 < sampling.mask_until:
        for at, token in enumerate(predictions[:least]):
            if sampling.masks(token, row_index(first, at)):
                problem = f"prediction {at} is id {token}, which is masked at index {row_index(first, at)}"
    if problem is None:
        return rows
    return Failed(started=True, error="RuntimeContractError", message=problem, observed=rows.position)


def wrong_position(observed: int, expected: int, call: str) -> Failed:
    """The failure that a wrong position is."""
    message = f"the cache holds {observed} rows after the {call}, {expected} were expected"
    return Failed(started=True, error="RuntimeContractError", message=message, observed=observed if observed >= 0 else None)


def runtime_failed(call: FailedCall, failed: Failed) -> RuntimeFailed:
    """The event of a failed call."""
    return RuntimeFailed(call=call, started=failed.started, error=failed.error, message=failed.message, observed=failed.observed)


def recover(state: SessionState, ctx: Context, call: FailedCall, failed: Failed, rows: int) -> Script[SessionState]:
    """After a failed forward: restore the draft if nothing ran, else trim to base; if that fails, drop."""
    base, was = state.position, state.phase
    state = yield runtime_failed(call, failed)
    if not failed.started:
        if was == "drafted":
            state = yield DraftRestored(count=state.stats.pending, reason="not_started")
        return state
    state = yield from discard_pending(state, "failed")
    settled: Settled | Failed = yield Settle(session=ctx.session, base=base, rows=rows, position=base)
    if isinstance(settled, Settled) and settled.position != base:
        settled = wrong_position(settled.position, base, "settle")
    if isinstance(settled, Failed):
        return (yield from give_up(state, "settle", settled))
    return (
        yield Trimmed(
            from_=base if failed.observed is None else failed.observed,
            to=base,
            observed=settled.position,
            replayed_rows=settled.replayed_rows,
            cause="failure",
            cost_ns=settled.cost_ns or 0,
        )
    )


def cut_back(state: SessionState, ctx: Context, to: int, reached: int, cause: str) -> Script[SessionState]:
    """Cut canonical rows: by a settle where the runtime reaches so far back, else by emptying its session."""
    floor: int = yield FLOOR
    if floor <= to:
        settled: Settled | Failed = yield Settle(session=ctx.session, base=to, rows=reached - to, position=to)
        if isinstance(settled, Settled) and settled.position != to:
            settled = wrong_position(settled.position, to, "settle")
        if isinstance(settled, Failed):
            return (yield from give_up(state, "settle", settled))
        replayed, cost = settled.replayed_rows, settled.cost_ns or 0
    else:
        failed: Failed | None = yield RESET
        if failed is not None:
            return (yield from give_up(state, "reset", failed))
        to, replayed, cost = 0, 0, 0
    return (
        yield Trimmed(
            from_=reached,
            to=to,
            observed=to,
            replayed_rows=replayed,
            cause="rewind" if cause == "rewind" else "cancel",
            cost_ns=cost,
        )
    )


def give_up(state: SessionState, call: FailedCall, failed: Failed) -> Script[SessionState]:
    """The cache is in an unknown place: say so and drop the session."""
    state = yield runtime_failed(call, failed)
    state = yield from discard_pending(state, "failed")
    again: Failed | None = yield DROP
    if again is not None:
        state = yield runtime_failed("drop", again)
    return (yield SessionDropped(reason=f"{call} failed: {failed.error}"))


def discard_pending(state: SessionState, reason: DiscardReason) -> Script[SessionState]:
    """Throw away the pending draft, if there is one."""
    if state.stats.pending:
        state = yield DraftDiscarded(count=state.stats.pending, reason=reason)
    return state
