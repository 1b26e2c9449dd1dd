"""Handlers of the reducer for the events of a round: prefill, draft, forward, commit, settle."""

from __future__ import annotations

from .adaptive import Pace, after_probe_asked, after_serial, after_span
from .checks import broken_off, check_choosable, check_running, check_vocabulary, discard, expect, one_more_per_depth, refuse
from .events import (
    CheckpointRetired,
    Committed,
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
from .positions import boundary_position, matched_length
from .state import Phase, SessionState, evolve_state, evolve_stats


def on_prefilled(state: SessionState, event: Prefilled, to: Phase) -> SessionState:
    """The turn begins: the rows are canonical, their prediction awaits its commit."""
    length = len(state.canonical)
    if state.primed:
        refuse("the turn is prefilled already")
    check_running(state)
    expect("start", event.start, state.position)
    expect("reused", event.reused, state.position)
    expect("position", event.position, length)
    expect("chunks", event.chunks, -(-(length - event.start) // state.policy.prefill_chunk))
    if state.remaining < 1:
        refuse("nothing may be committed any more")
    check_choosable(state, length - 1, (event.prediction,))
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        position=event.position,
        forward=event,
        stats=evolve_stats(stats, prefills=stats.prefills + 1, prefill_ns=stats.prefill_ns + event.cost_ns),
    )


def on_offered(state: SessionState, event: DraftOffered, to: Phase) -> SessionState:
    """Offered tokens count as drafted and pending from here on."""
    if not state.primed or state.draft is None or state.drafting_off:
        refuse("no draft can be used here")
    check_running(state)
    expect("pending", state.stats.pending, 0)
    expect("at", event.at, len(state.canonical))
    expect("origin", event.origin, state.draft.origin)
    if event.limit > state.remaining - 1:
        refuse(f"limit {event.limit} exceeds the {state.remaining} tokens that remain, less one")
    check_vocabulary(state, event.tokens, "drafted id")
    pace = state.pace
    if event.probe if pace is None else event.probe != pace.probe or event.limit > pace.width:
        refuse(f"a draft of at most {event.limit}, probe {event.probe}, is not what the policy asks for")
    count = len(event.tokens) + event.invalid
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        pending=event.tokens,
        surplus=event.invalid,
        offer_limit=event.limit,
        pace=after_probe_asked(pace, stats.forwards) if pace is not None and pace.probe else pace,
        stats=evolve_stats(stats, drafted=stats.drafted + count, pending=count, draft_ns=stats.draft_ns + event.cost_ns),
    )


def on_draft_failed(state: SessionState, event: DraftFailed, to: Phase) -> SessionState:
    """No more drafts in this session."""
    expect("origin", event.origin, state.draft.origin if state.draft else None)
    return evolve_state(state, phase=to, drafting_off=True)


def on_taken(state: SessionState, event: DraftTaken, to: Phase) -> SessionState:
    """The taken tokens go into the span; the surplus is discarded next."""
    if state.surplus:
        refuse(f"{state.surplus} invalid ids are not discarded yet")
    expect("offered", event.offered, len(state.pending))
    count = len(event.tokens)
    if not 1 <= count <= state.offer_limit:
        refuse(f"{count} tokens were taken where the limit is {state.offer_limit}")
    expect("tokens", event.tokens, state.pending[:count])
    return evolve_state(state, phase=to, pending=event.tokens, surplus=event.offered - count, refused=None)


def on_restored(state: SessionState, event: DraftRestored, to: Phase) -> SessionState:
    """The draft is pending again; after a refused span (``held``) the next round is serial and judges its first token."""
    expect("count", event.count, state.stats.pending)
    return evolve_state(state, phase=to, held=event.reason == "not_started", failed=None)


def on_discarded(state: SessionState, event: DraftDiscarded, to: Phase) -> SessionState:
    """Pending tokens leave from the end: first the surplus, then the draft."""
    if event.count > state.stats.pending:
        refuse(f"{event.count} tokens are more than the {state.stats.pending} that are pending")
    surplus = max(0, state.surplus - event.count)
    kept = len(state.pending) - (event.count - (state.surplus - surplus))
    return evolve_state(
        state, phase=to, pending=state.pending[:kept], surplus=surplus, stats=discard(state.stats, event.count, event.reason)
    )


def on_span_refused(state: SessionState, event: SpanRefused, to: Phase) -> SessionState:
    """Remember the reason, so that it is written once."""
    if event.reason == state.refused:
        refuse(f"the reason {event.reason!r} has not changed")
    return evolve_state(state, phase=to, refused=event.reason)


def on_verified(state: SessionState, event: SpanVerified, to: Phase) -> SessionState:
    """The span ran: its rows lie in the cache, speculative until settled."""
    draft = state.pending
    if not draft or state.surplus or not state.primed:
        refuse("no draft is ready for a span")
    check_running(state)
    rows = len(draft) + 1
    expect("base", event.base, state.position)
    expect("rows", event.rows, rows)
    expect("observed", event.observed, state.position + rows)
    if rows > state.remaining:
        refuse(f"{rows} rows exceed the {state.remaining} tokens that remain")
    expect("matched", event.matched, matched_length(draft, event.predictions))
    if not event.matched < len(event.predictions) <= rows:
        refuse(f"{len(event.predictions)} predictions for {rows} rows of which {event.matched} drafts match")
    check_choosable(state, event.base, event.predictions[: event.matched + 1])
    check_vocabulary(state, event.predictions, "prediction")
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        position=event.observed,
        forward=event,
        failed=None,
        stats=evolve_stats(
            stats,
            spans=stats.spans + 1,
            verified=stats.verified + rows - 1,
            matched=stats.matched + event.matched,
            verified_per_depth=one_more_per_depth(stats.verified_per_depth, rows - 1),
            accepted_per_depth=stats.accepted_per_depth + (0,) * (rows - 1 - len(stats.accepted_per_depth)),
            verify_ns=stats.verify_ns + event.cost_ns,
        ),
    )


def on_serial(state: SessionState, event: SerialDecoded, to: Phase) -> SessionState:
    """One canonical row; a pending draft is judged by it."""
    if not state.primed:
        refuse("the turn is not prefilled")
    check_running(state)
    expect("base", event.base, state.position)
    expect("observed", event.observed, state.position + 1)
    if state.remaining < 1:
        refuse("nothing may be committed any more")
    check_choosable(state, event.base, (event.prediction,))
    pending = state.pending
    verdict = "none" if not pending else ("accepted" if pending[0] == event.prediction else "rejected")
    expect("verdict", event.verdict, verdict)
    judged = 0 if verdict == "none" else 1
    stats, pace = state.stats, state.pace
    stats = evolve_stats(
        stats,
        serial_steps=stats.serial_steps + 1,
        accepted_serial=stats.accepted_serial + (verdict == "accepted"),
        rejected=stats.rejected + (verdict == "rejected"),
        pending=stats.pending - judged,
        serial_ns=stats.serial_ns + event.cost_ns,
    )
    return evolve_state(
        state,
        phase=to,
        position=event.observed,
        forward=event,
        pending=pending[1:],
        held=False,
        failed=None,
        pace=None if pace is None else after_serial(pace, event.cost_ns, stats.forwards, stats.draft_ns),
        stats=stats,
    )


def _check_commit(state: SessionState, event: Committed) -> int:
    """Check everything that the forward and the turn fix; returns the drafts accepted."""
    count = len(event.tokens)
    forward = state.forward
    if isinstance(forward, SpanVerified):
        expect("source", event.source, "span")
        possible, accepted = forward.matched + 1, min(forward.matched, count)
        expect("tokens", event.tokens, forward.predictions[:count])
    elif forward is not None:
        expect("source", event.source, "serial" if isinstance(forward, SerialDecoded) else "prefill")
        possible, accepted = 1, 0
        expect("tokens", event.tokens, (forward.prediction,))
        if state.pending and isinstance(forward, SerialDecoded) and forward.verdict == "rejected":
            refuse("the rest of the rejected draft is not discarded yet")
    else:
        refuse("no forward awaits its commit")
    if count > possible:
        refuse(f"{count} tokens where {possible} can be committed")
    expect("accepted", event.accepted, accepted)
    expect("position", event.position, boundary_position(len(state.canonical) + count))
    stop_ids = state.turn.stop_ids
    for token in event.tokens[:-1]:
        if token in stop_ids:
            refuse(f"the stop token {token} does not end the commit")
    stopped = bool(event.tokens) and event.tokens[-1] in stop_ids
    cut = event.cut_by
    if stopped != (cut == "stop_token"):
        refuse(f"cut_by is {cut!r} where the last token is {'' if stopped else 'not '}a stop token")
    if cut == "stop_text" and event.detail not in state.turn.stops.texts:
        refuse(f"{event.detail!r} is not among the turn's stop texts")
    if cut == "cancelled":
        if event.source != "span" or count >= possible:
            refuse("a cancel can cut only a span, and only short")
    elif not count:
        refuse("only a cancel commits nothing")
    spent = state.remaining == count
    if (cut == "length" and not spent) or (cut == "none" and (spent or count < possible)):
        refuse(f"cut_by {cut!r} with {count} of {possible} tokens committed and {state.remaining} remaining before")
    return accepted


def on_committed(state: SessionState, event: Committed, to: Phase) -> SessionState:
    """Predictions become canonical; the account of a span is drawn up."""
    accepted = _check_commit(state, event)
    count = len(event.tokens)
    stats = state.stats
    pending = state.pending
    if event.source == "span":
        # A correction was committed iff the commit went one past the matches and the draft was longer than them.
        rejected = 1 if count > accepted and accepted < len(pending) else 0
        pending = pending[accepted + rejected :]
        stats = evolve_stats(
            stats,
            tokens=stats.tokens + count,
            accepted=stats.accepted + accepted,
            rejected=stats.rejected + rejected,
            pending=len(pending),
            span_tokens=stats.span_tokens + count,
            saved_forwards=stats.saved_forwards + (count - 1 if count else 0),
            empty_forwards=stats.empty_forwards + (0 if count else 1),
            accepted_per_depth=one_more_per_depth(stats.accepted_per_depth, accepted) if accepted else stats.accepted_per_depth,
        )
    else:
        stats = evolve_stats(stats, tokens=stats.tokens + count)
    return evolve_state(
        state,
        phase=to,
        canonical=state.canonical.append(event.tokens) if count else state.canonical,
        primed=True,
        pending=pending,
        forward=state.forward if event.source == "span" else None,
        committed=count if event.source == "span" else 0,
        cut=event.cut_by,
        cut_detail=event.detail,
        stats=stats,
    )


def _paced(state: SessionState, settle_ns: int) -> Pace | None:
    """What a policy ``auto`` knows once a span is settled."""
    pace, span = state.pace, state.forward
    if pace is None or not isinstance(span, SpanVerified):
        return pace
    committed, drafted, stats = state.committed, span.rows - 1, state.stats
    # What a stop or a cancel cut off was not judged: a commit that reaches the mismatch has found it, a shorter one has not.
    accepted = min(span.matched, committed)
    rejected = committed > accepted and accepted < drafted
    return after_span(pace, drafted, accepted, rejected, committed, span.cost_ns + settle_ns, stats.forwards, stats.draft_ns)


def on_trimmed(state: SessionState, event: Trimmed, to: Phase) -> SessionState:
    """The cache is cut back to where it is canonical."""
    wanted = boundary_position(len(state.canonical))
    primed = state.primed
    if state.phase == "unsettled":
        expect("cause", event.cause, "span")
        expect("pending", state.stats.pending, 0)
        expect("from", event.from_, state.position)
        expect("to", event.to, wanted)
        if event.to >= state.position:
            refuse("every row is canonical: the checkpoint is retired, not trimmed")
    elif state.phase == "rewinding":
        expect("cause", event.cause, "rewind")
        expect("from", event.from_, state.position)
        if event.to not in (wanted, 0):
            refuse(f"to is {event.to}, the rewind needs {wanted}, or 0 from a reset")
        primed = primed and event.to == wanted > 0  # with no row at all there is nothing a head could draft from
    elif state.phase == "failing":
        expect("cause", event.cause, "failure")
        expect("to", event.to, state.position)
        expect("pending", state.stats.pending, 0)
        if state.failed is None or state.failed.call not in ("prefill", "serial", "span"):
            refuse("the cache is in an unknown place: the session can only be dropped")
        if state.failed.observed is not None:
            expect("from", event.from_, state.failed.observed)
    else:
        expect("cause", event.cause, "cancel")
        if primed or event.to not in (state.position, 0) or event.from_ <= state.position:
            refuse("only a prefill that was cancelled between its chunks is trimmed here")
    expect("observed", event.observed, event.to)
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        position=event.observed,
        primed=primed,
        forward=None,
        committed=0,
        failed=None,
        pace=state.pace if event.cause != "span" else _paced(state, event.cost_ns),
        stats=evolve_stats(
            broken_off(state) if state.phase == "failing" else stats,
            trims=stats.trims + 1,
            replay_forwards=stats.replay_forwards + (1 if event.replayed_rows else 0),
            replayed_rows=stats.replayed_rows + event.replayed_rows,
            settle_ns=stats.settle_ns + event.cost_ns,
        ),
    )


def on_retired(state: SessionState, event: CheckpointRetired, to: Phase) -> SessionState:
    """Every row of the span is canonical."""
    span = state.forward
    if not isinstance(span, SpanVerified):
        refuse("no span awaits its settle")
    expect("pending", state.stats.pending, 0)
    expect("base", event.base, span.base)
    expect("rows", event.rows, span.rows)
    expect("committed rows", state.committed, span.rows)
    expect("observed", event.observed, state.position)
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        forward=None,
        committed=0,
        pace=_paced(state, event.cost_ns),
        stats=evolve_stats(stats, retired=stats.retired + 1, settle_ns=stats.settle_ns + event.cost_ns),
    )
