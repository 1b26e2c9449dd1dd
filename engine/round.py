"""One round of the decode loop, as a sans-IO script.

A script is a generator. It yields *events* (and is sent the state after them) and *requests* (and is sent what the world
answered); it never calls a runtime, reads a clock or waits. A driver connects it to the world: ``drivers.Live`` to a
runtime, ``drivers.redrive`` to the records of an earlier run. Every exit of a script leaves the session canonical, at a
boundary, or dropped.

::

    plan      rules.plan(state): finish | prefill | serial | draft up to a limit
    ask       the pending draft, else the source                   -> DraftOffered | DraftFailed
    take      long enough? clip to the limit                       -> DraftTaken (+ DraftDiscarded), else serial
    run       forward(base, [current, *draft])                     -> SpanVerified | SerialDecoded | RuntimeFailed
    decide    per token: cancel, stop token, stop text, stop_when  -> Committed, DraftDiscarded
    settle    c == rows: retire; else trim to base + c             -> CheckpointRetired | Trimmed
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .events import (
    CheckpointRetired,
    Committed,
    CutBy,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    DraftTaken,
    Prefilled,
    SerialDecoded,
    SpanRefused,
    SpanVerified,
    Trimmed,
)
from .life import conclude
from .positions import boundary_position, matched_length
from .repairs import checked, cut_back, discard_pending, give_up, recover, wrong_position
from .requests import POLL, AskDraft, AskStop, Context, Failed, Script, StopVerdict
from .rules import DraftUpTo, Finish, Prefill, Serial, draft_threshold, leftover_reason, plan, screen
from .runtime import Draft, Forward, Rows, Settle, Settled
from .state import SessionState

__all__ = ["run_round"]


def run_round(state: SessionState, ctx: Context) -> Script[SessionState]:
    """One turn of the loop, from the boundary ``ready`` to a boundary or a drop."""
    decision = plan(state)
    if isinstance(decision, Finish):
        return (yield from conclude(state, decision))
    if isinstance(decision, Prefill):
        return (yield from _prefill(state, ctx))
    if ctx.polls:
        why: str | None = yield POLL
        if why is not None:
            return (yield from conclude(state, Finish("cancelled", None, why)))
    if isinstance(decision, DraftUpTo):
        drafting = state.stats.pending == 0
        state = yield from _obtain_draft(state, decision.limit)
        if state.stats.pending:
            if drafting and ctx.polls:
                why = yield POLL
                if why is not None:
                    state = yield DraftRestored(count=state.stats.pending, reason="cancelled")
                    return (yield from conclude(state, Finish("cancelled", None, why)))
            return (yield from _span(state, ctx))
        decision = plan(state)  # a source that failed is a reason now; an offer too short is none
    if isinstance(decision, Serial) and decision.reason != state.refused:
        state = yield SpanRefused(reason=decision.reason)
    return (yield from _serial(state, ctx))


def _obtain_draft(state: SessionState, limit: int) -> Script[SessionState]:
    """A pending draft of 1 to ``limit`` tokens, or none."""
    if state.stats.pending:  # a restored draft
        if state.stats.pending > limit:
            state = yield DraftDiscarded(count=state.stats.pending - limit, reason="clipped")
        return state
    answer: Draft | Failed = yield AskDraft(limit)
    assert state.draft is not None
    origin = state.draft.origin
    if isinstance(answer, Failed):
        return (yield DraftFailed(origin=origin, error=answer.error, message=answer.message))
    tokens, invalid = screen(answer.tokens, state.runtime.vocabulary)
    state = yield DraftOffered(
        limit=limit,
        tokens=tokens,
        origin=origin,
        at=len(state.canonical),
        invalid=invalid,
        cost_ns=answer.cost_ns or 0,
        probe=state.pace is not None and state.pace.probe,
    )
    if invalid:
        state = yield DraftDiscarded(count=invalid, reason="invalid")
    if len(tokens) < draft_threshold(state, limit):
        return (yield from discard_pending(state, "short"))
    state = yield DraftTaken(tokens=tokens[:limit], offered=len(tokens))
    if state.surplus:
        state = yield DraftDiscarded(count=state.surplus, reason="clipped")
    return state


def _prefill(state: SessionState, ctx: Context) -> Script[SessionState]:
    start, length = state.position, len(state.canonical)
    chunk = state.policy.prefill_chunk
    cost = chunks = 0
    position = start
    while True:
        if ctx.polls:
            why: str | None = yield POLL
            if why is not None:
                if position > start:
                    state = yield from cut_back(state, ctx, start, position, "cancel")
                    if state.phase == "dropped":
                        return state
                return (yield from conclude(state, Finish("cancelled", None, why)))
        end = min(position + chunk, length)
        last = end == length
        rows: Rows | Failed = yield Forward(
            session=ctx.session,
            base=position,
            tokens=state.canonical[position:end],
            want="last" if last else "none",
            canonical=True,
            extras=ctx.extras,
        )
        if isinstance(rows, Rows):
            wanted = 1 if last else 0
            rows = checked(state, rows, position, end - position, wanted, wanted)
        if isinstance(rows, Failed):
            if chunks:  # earlier chunks are in the cache: the prefill as a whole has started
                rows = attrs.evolve(rows, started=True)
            return (yield from recover(state, ctx, "prefill", rows, end - start))
        cost += rows.cost_ns or 0
        chunks += 1
        position = end
        if last:
            break
    prediction = rows.predictions[0]
    state = yield Prefilled(
        start=start,
        position=rows.position,
        reused=start,
        chunks=chunks,
        prediction=prediction,
        margin=rows.margins[0] if rows.margins else None,
        logprob=rows.logprobs[0] if rows.logprobs else None,
        cost_ns=cost,
    )
    return (yield from _commit_row(state, ctx, prediction, "prefill"))


def _serial(state: SessionState, ctx: Context) -> Script[SessionState]:
    base = state.position
    rows: Rows | Failed = yield Forward(
        session=ctx.session, base=base, tokens=(state.current,), want="last", canonical=True, extras=ctx.extras
    )
    if isinstance(rows, Rows):
        rows = checked(state, rows, base, 1, 1, 1)
    if isinstance(rows, Failed):
        return (yield from recover(state, ctx, "serial", rows, 1))
    prediction = rows.predictions[0]
    pending = state.pending
    state = yield SerialDecoded(
        base=base,
        prediction=prediction,
        verdict="none" if not pending else ("accepted" if pending[0] == prediction else "rejected"),
        observed=rows.position,
        margin=rows.margins[0] if rows.margins else None,
        logprob=rows.logprobs[0] if rows.logprobs else None,
        cost_ns=rows.cost_ns or 0,
    )
    if pending and pending[0] != prediction:
        state = yield from discard_pending(state, "rejected_tail")
    return (yield from _commit_row(state, ctx, prediction, "serial"))


def _commit_row(state: SessionState, ctx: Context, prediction: int, source: str) -> Script[SessionState]:
    # The row is canonical and has no checkpoint: its token is always committed, so no cancel is looked at here.
    _, cut, detail = yield from _decide(state, ctx, (prediction,), polls=False)
    return (
        yield Committed(
            tokens=(prediction,),
            accepted=0,
            source="prefill" if source == "prefill" else "serial",
            cut_by=cut,
            detail=detail,
            position=boundary_position(len(state.canonical) + 1),
        )
    )


def _span(state: SessionState, ctx: Context) -> Script[SessionState]:
    draft, base = state.pending, state.position
    rows: Rows | Failed = yield Forward(
        session=ctx.session, base=base, tokens=(state.current, *draft), want="all", canonical=False, extras=ctx.extras
    )
    matched = 0
    if isinstance(rows, Rows):
        # Predictions may end early only behind a mismatch: one more than the matches must be there.
        matched = matched_length(draft, rows.predictions)
        rows = checked(state, rows, base, len(draft) + 1, len(draft) + 1, matched + 1)
    if isinstance(rows, Failed):
        return (yield from recover(state, ctx, "span", rows, len(draft) + 1))
    state = yield SpanVerified(
        base=base,
        rows=len(draft) + 1,
        predictions=rows.predictions,
        matched=matched,
        observed=rows.position,
        margins=rows.margins,
        logprobs=rows.logprobs,
        cost_ns=rows.cost_ns or 0,
    )
    count, cut, detail = yield from _decide(state, ctx, rows.predictions[: matched + 1], polls=ctx.polls)
    state = yield Committed(
        tokens=rows.predictions[:count],
        accepted=min(matched, count),
        source="span",
        cut_by=cut,
        detail=detail,
        position=base + count,
    )
    state = yield from discard_pending(state, leftover_reason(matched < count and matched < len(draft), cut))
    return (yield from _settle(state, ctx, base, len(draft) + 1, count))


def _decide(state: SessionState, ctx: Context, tokens: Sequence[int], *, polls: bool) -> Script[tuple[int, CutBy, str | None]]:
    """How many of the tokens are committed, what cuts the commit, and which one it is."""
    stop_ids, index = state.turn.stop_ids, state.decoded
    for at, token in enumerate(tokens):
        if polls:
            why: str | None = yield POLL
            if why is not None:
                return at, "cancelled", why
        if token in stop_ids:
            return at + 1, "stop_token", str(token)
        if ctx.asks:
            verdict: StopVerdict | None = yield AskStop(token, index + at)
            if verdict is not None:
                return at + 1, verdict.cut_by, verdict.detail
    return len(tokens), "length" if len(tokens) >= state.remaining else "none", None


def _settle(state: SessionState, ctx: Context, base: int, rows: int, count: int) -> Script[SessionState]:
    """The one word that the first ``count`` rows are canonical. A settle that fails leaves an unknown cache: drop."""
    wanted = base + count
    settled: Settled | Failed = yield Settle(session=ctx.session, base=base, rows=rows, position=wanted)
    if isinstance(settled, Settled) and settled.position != wanted:
        settled = wrong_position(settled.position, wanted, "settle")
    if isinstance(settled, Failed):
        return (yield from give_up(state, "settle", settled))
    if count == rows:
        return (yield CheckpointRetired(base=base, rows=rows, observed=settled.position, cost_ns=settled.cost_ns or 0))
    return (
        yield Trimmed(
            from_=base + rows,
            to=wanted,
            observed=settled.position,
            replayed_rows=settled.replayed_rows,
            cause="span",
            cost_ns=settled.cost_ns or 0,
        )
    )
