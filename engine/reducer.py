"""The reducer: ``reduce(state, event) -> state``, the only way a session's state changes.

Two rules: the table below decides *whether* an event may come, and the handlers check that what it says agrees with the
state. An illegal event raises ``IllegalEvent`` and changes nothing. Redundant fields (matched, rows, positions, counts) are
in the events so that they can be checked here: that is what makes a tampered log visible.

Theory of operation. A session is at the boundary ``ready``. A round leaves it by a draft (``offered``, ``drafted``) or by a
forward (``prefilled``, ``serial``, ``verified``), commits what the forward chose, and is back: at once after a prefill or a
serial step, whose row is canonical; after ``unsettled`` for a span, whose rows are not canonical before they are trimmed or
the checkpoint retired. A failed call leads to ``failing``, from where a trim to the last canonical position leads back, and
nothing else but ``dropped`` leads on.

Every handler is O(tokens of the event), whatever the session's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeAlias

from .errors import IllegalEvent
from .events import (
    DISCARD_REASONS,
    CheckpointRetired,
    Committed,
    DiscardReason,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    DraftTaken,
    Event,
    Extended,
    Prefilled,
    Record,
    Rewound,
    RuntimeFailed,
    SerialDecoded,
    SessionDropped,
    SessionFinished,
    SessionOpened,
    SessionResumed,
    SpanRefused,
    SpanVerified,
    Trimmed,
)
from .positions import boundary_position, matched_length, row_index
from .rules import finish_due, new_turn
from .state import NEW, DecodeStats, Phase, SessionState, evolve_state, evolve_stats
from .tokens import TokenLog

__all__ = ["TRANSITIONS", "fold", "kind", "reduce"]

#: phase -> kind of event -> phase. A kind is the event's type, with a qualifier where one field decides where to go.
TRANSITIONS: Final[dict[Phase, dict[str, Phase]]] = {
    "new": {"SessionOpened": "ready"},
    "ready": {
        "Prefilled": "prefilled",
        "DraftOffered": "offered",
        "DraftOffered (empty)": "ready",
        "DraftFailed": "ready",
        "DraftDiscarded": "ready",
        "DraftDiscarded (all)": "ready",
        "SpanRefused": "ready",
        "SpanVerified": "verified",  # of a restored draft
        "SerialDecoded": "serial",
        "Trimmed": "ready",  # a prefill that was cancelled between its chunks
        "Extended": "ready",
        "Rewound": "rewinding",
        "Rewound (nothing to trim)": "ready",
        "SessionFinished": "finished",
    },
    "offered": {"DraftDiscarded": "offered", "DraftDiscarded (all)": "ready", "DraftTaken": "drafted"},
    "drafted": {
        "DraftDiscarded": "drafted",
        "DraftDiscarded (all)": "ready",
        "DraftRestored": "ready",
        "SpanVerified": "verified",
    },
    "prefilled": {"Committed": "ready"},
    "serial": {"DraftDiscarded": "serial", "DraftDiscarded (all)": "serial", "Committed": "ready"},
    "verified": {"Committed": "unsettled", "DraftDiscarded": "verified", "DraftDiscarded (all)": "verified"},
    "unsettled": {
        "DraftDiscarded": "unsettled",
        "DraftDiscarded (all)": "unsettled",
        "Trimmed": "ready",
        "CheckpointRetired": "ready",
    },
    "failing": {"DraftDiscarded": "failing", "DraftDiscarded (all)": "failing", "Trimmed": "ready"},
    "rewinding": {"Trimmed": "ready"},
    "finished": {
        "Extended": "ready",
        "Rewound": "rewinding",
        "Rewound (nothing to trim)": "ready",
    },
    "dropped": {},
}
for _phase, _row in TRANSITIONS.items():
    if _phase not in ("new", "dropped"):
        # A call can fail, a session can be dropped and a log can break off in every phase.
        _row["RuntimeFailed (started)"] = "failing"
        _row["RuntimeFailed (not started)"] = _phase if _phase in ("ready", "drafted", "finished") else "failing"
        _row["SessionDropped"] = "dropped"
    if _phase != "new":
        _row["SessionResumed"] = "ready"
        _row["SessionResumed (finished)"] = "finished"


def _of_failure(state: SessionState, event: RuntimeFailed) -> str:
    return "RuntimeFailed (started)" if event.started else "RuntimeFailed (not started)"


def _of_discard(state: SessionState, event: DraftDiscarded) -> str:
    return "DraftDiscarded (all)" if event.count >= state.stats.pending else "DraftDiscarded"


def _of_offer(state: SessionState, event: DraftOffered) -> str:
    return "DraftOffered" if event.tokens or event.invalid else "DraftOffered (empty)"


def _of_rewind(state: SessionState, event: Rewound) -> str:
    clean = state.position <= boundary_position(len(state.canonical) - event.count)
    return "Rewound (nothing to trim)" if clean else "Rewound"


def _of_resume(state: SessionState, event: SessionResumed) -> str:
    return "SessionResumed (finished)" if state.finish is not None else "SessionResumed"


_QUALIFIED: Final[dict[type[Event], Callable[[SessionState, Any], str]]] = {
    RuntimeFailed: _of_failure,
    DraftDiscarded: _of_discard,
    DraftOffered: _of_offer,
    Rewound: _of_rewind,
    SessionResumed: _of_resume,
}


def kind(state: SessionState, event: Event) -> str:
    """The event's name in the transition table."""
    qualified = _QUALIFIED.get(type(event))
    return type(event).__name__ if qualified is None else qualified(state, event)


class _Refused(Exception):
    """What a handler has against an event; ``reduce`` names phase and event."""


def _refuse(problem: str) -> NoReturn:
    raise _Refused(problem)


def _expect(name: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise _Refused(f"{name} is {got!r}, the state says {wanted!r}")


def reduce(state: SessionState, event: Event) -> SessionState:
    """The state after ``event``.

    Raises:
        IllegalEvent: the phase does not allow it, or one of its fields contradicts the state. Nothing has changed.
    """
    name = kind(state, event)
    to = TRANSITIONS[state.phase].get(name)
    if to is None:
        allowed = ", ".join(sorted(TRANSITIONS[state.phase])) or "nothing"
        raise IllegalEvent(state.phase, name, f"this phase allows {allowed}")
    try:
        return _HANDLERS[type(event)](state, event, to)
    except _Refused as refused:
        raise IllegalEvent(state.phase, name, str(refused)) from None


def fold(records: Iterable[Record], state: SessionState = NEW) -> SessionState:
    """The state after the records of one session, in order.

    Raises:
        IllegalEvent: as ``reduce``; also for a gap or a second session in the numbering.
    """
    session: int | None = None
    seq: int | None = None
    for record in records:
        if session is not None and record.session != session:
            raise IllegalEvent(state.phase, type(record.event).__name__, f"record of session {record.session} among those of {session}")
        if seq is not None and record.seq != seq + 1:
            raise IllegalEvent(state.phase, type(record.event).__name__, f"record {record.seq} follows record {seq}")
        session, seq = record.session, record.seq
        state = reduce(state, record.event)
    return state


# -- checks shared by handlers ---------------------------------------------------------------------------------------


def _vocabulary(state: SessionState, tokens: Iterable[int], what: str) -> None:
    vocabulary = state.runtime.vocabulary
    for token in tokens:
        if token >= vocabulary:
            _refuse(f"{what} {token} is outside the vocabulary of {vocabulary}")


def _choosable(state: SessionState, base: int, predictions: tuple[int, ...]) -> None:
    _vocabulary(state, predictions, "prediction")
    sampling = state.turn.sampling
    if base + 1 < sampling.mask_until:
        for row, token in enumerate(predictions):
            if sampling.masks(token, row_index(base, row)):
                _refuse(f"prediction {row} is id {token}, masked below index {sampling.mask_until}")


def _discard(stats: DecodeStats, count: int, reason: DiscardReason) -> DecodeStats:
    at = DISCARD_REASONS.index(reason)
    counts = stats.discarded_counts
    return evolve_stats(stats, pending=stats.pending - count, discarded_counts=(*counts[:at], counts[at] + count, *counts[at + 1 :]))


def _added(counts: tuple[int, ...], upto: int) -> tuple[int, ...]:
    """Per-depth counters, one more for each of the depths ``1..upto``."""
    if upto > len(counts):
        counts = counts + (0,) * (upto - len(counts))
    return tuple([count + 1 for count in counts[:upto]]) + counts[upto:]


def _broken_off(state: SessionState) -> DecodeStats:
    """The account when a forward's predictions will never be committed."""
    return evolve_stats(state.stats, empty_forwards=state.stats.empty_forwards + 1) if state.forward is not None else state.stats


# -- handlers --------------------------------------------------------------------------------------------------------


def _opened(state: SessionState, event: SessionOpened, to: Phase) -> SessionState:
    length = len(event.prompt)
    if not length:
        _refuse("the prompt is empty")
    if length > event.runtime.context_length:
        _refuse(f"the prompt of {length} tokens is longer than the context of {event.runtime.context_length}")
    state = evolve_state(
        state,
        phase=to,
        runtime=event.runtime,
        draft=event.draft,
        policy=event.policy,
        turn=new_turn(0, length, event.limits, event.stops, event.sampling, event.runtime),
        canonical=TokenLog(event.prompt),
        stats=evolve_stats(state.stats, prompt_tokens=length),
    )
    _vocabulary(state, event.prompt, "prompt token")
    return state


def _extended(state: SessionState, event: Extended, to: Phase) -> SessionState:
    _expect("pending", state.stats.pending, 0)
    _expect("turn", event.turn, state.turn.number + 1)
    _vocabulary(state, event.tokens, "token")
    length = len(state.canonical) + len(event.tokens)
    if length > state.runtime.context_length:
        _refuse(f"{length} tokens are more than the context of {state.runtime.context_length}")
    return evolve_state(
        state,
        phase=to,
        turn=new_turn(event.turn, length, event.limits, event.stops, event.sampling, state.runtime),
        canonical=state.canonical.append(event.tokens),
        primed=False,
        cut="none",
        cut_detail=None,
        failed=None,
        finish=None,
        held=False,
        stats=evolve_stats(state.stats, prompt_tokens=state.stats.prompt_tokens + len(event.tokens)),
    )


def _resumed(state: SessionState, event: SessionResumed, to: Phase) -> SessionState:
    if event.runtime.vocabulary != state.runtime.vocabulary:
        _refuse(f"vocabulary {event.runtime.vocabulary} is not the recorded {state.runtime.vocabulary}")
    if len(state.canonical) > event.runtime.context_length:
        _refuse(f"{len(state.canonical)} tokens are more than the context of {event.runtime.context_length}")
    return evolve_state(
        state,
        phase=to,
        runtime=event.runtime,
        draft=event.draft,
        position=0,
        primed=False,
        forward=None,
        committed=0,
        failed=None,
        refused=None,
        drafting_off=False,
        held=False,
        stats=_broken_off(state) if state.phase in ("prefilled", "serial", "verified", "failing") else state.stats,
    )


def _prefilled(state: SessionState, event: Prefilled, to: Phase) -> SessionState:
    length = len(state.canonical)
    if state.primed:
        _refuse("the turn is prefilled already")
    _expect("start", event.start, state.position)
    _expect("reused", event.reused, state.position)
    _expect("position", event.position, length)
    _expect("chunks", event.chunks, -(-(length - event.start) // state.policy.prefill_chunk))
    if state.remaining < 1:
        _refuse("nothing may be committed any more")
    _choosable(state, length - 1, (event.prediction,))
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        position=event.position,
        forward=event,
        stats=evolve_stats(stats, prefills=stats.prefills + 1, prefill_ns=stats.prefill_ns + event.cost_ns),
    )


def _offered(state: SessionState, event: DraftOffered, to: Phase) -> SessionState:
    if not state.primed or state.draft is None or state.drafting_off:
        _refuse("no draft can be used here")
    _expect("pending", state.stats.pending, 0)
    _expect("at", event.at, len(state.canonical))
    _expect("origin", event.origin, state.draft.origin)
    if event.limit > state.remaining - 1:
        _refuse(f"limit {event.limit} exceeds the {state.remaining} tokens that remain, less one")
    _vocabulary(state, event.tokens, "drafted id")
    count = len(event.tokens) + event.invalid
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        pending=event.tokens,
        surplus=event.invalid,
        offer_limit=event.limit,
        stats=evolve_stats(stats, drafted=stats.drafted + count, pending=count, draft_ns=stats.draft_ns + event.cost_ns),
    )


def _draft_failed(state: SessionState, event: DraftFailed, to: Phase) -> SessionState:
    _expect("origin", event.origin, state.draft.origin if state.draft else None)
    return evolve_state(state, phase=to, drafting_off=True)


def _taken(state: SessionState, event: DraftTaken, to: Phase) -> SessionState:
    if state.surplus:
        _refuse(f"{state.surplus} invalid ids are not discarded yet")
    _expect("offered", event.offered, len(state.pending))
    count = len(event.tokens)
    if not 1 <= count <= state.offer_limit:
        _refuse(f"{count} tokens were taken where the limit is {state.offer_limit}")
    _expect("tokens", event.tokens, state.pending[:count])
    return evolve_state(state, phase=to, pending=event.tokens, surplus=event.offered - count, refused=None)


def _restored(state: SessionState, event: DraftRestored, to: Phase) -> SessionState:
    _expect("count", event.count, state.stats.pending)
    return evolve_state(state, phase=to, held=event.reason == "not_started", failed=None)


def _discarded(state: SessionState, event: DraftDiscarded, to: Phase) -> SessionState:
    if event.count > state.stats.pending:
        _refuse(f"{event.count} tokens are more than the {state.stats.pending} that are pending")
    surplus = max(0, state.surplus - event.count)
    kept = len(state.pending) - (event.count - (state.surplus - surplus))
    return evolve_state(
        state, phase=to, pending=state.pending[:kept], surplus=surplus, stats=_discard(state.stats, event.count, event.reason)
    )


def _span_refused(state: SessionState, event: SpanRefused, to: Phase) -> SessionState:
    if event.reason == state.refused:
        _refuse(f"the reason {event.reason!r} has not changed")
    return evolve_state(state, phase=to, refused=event.reason)


def _verified(state: SessionState, event: SpanVerified, to: Phase) -> SessionState:
    draft = state.pending
    if not draft or state.surplus or not state.primed:
        _refuse("no draft is ready for a span")
    rows = len(draft) + 1
    _expect("base", event.base, state.position)
    _expect("rows", event.rows, rows)
    _expect("observed", event.observed, state.position + rows)
    if rows > state.remaining:
        _refuse(f"{rows} rows exceed the {state.remaining} tokens that remain")
    _expect("matched", event.matched, matched_length(draft, event.predictions))
    if not event.matched < len(event.predictions) <= rows:
        _refuse(f"{len(event.predictions)} predictions for {rows} rows of which {event.matched} drafts match")
    _choosable(state, event.base, event.predictions[: event.matched + 1])
    _vocabulary(state, event.predictions, "prediction")
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
            verified_per_depth=_added(stats.verified_per_depth, rows - 1),
            verify_ns=stats.verify_ns + event.cost_ns,
        ),
    )


def _serial(state: SessionState, event: SerialDecoded, to: Phase) -> SessionState:
    if not state.primed:
        _refuse("the turn is not prefilled")
    _expect("base", event.base, state.position)
    _expect("observed", event.observed, state.position + 1)
    if state.remaining < 1:
        _refuse("nothing may be committed any more")
    _choosable(state, event.base, (event.prediction,))
    pending = state.pending
    verdict = "none" if not pending else ("accepted" if pending[0] == event.prediction else "rejected")
    _expect("verdict", event.verdict, verdict)
    judged = 0 if verdict == "none" else 1
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        position=event.observed,
        forward=event,
        pending=pending[1:],
        held=False,
        failed=None,
        stats=evolve_stats(
            stats,
            serial_steps=stats.serial_steps + 1,
            accepted_serial=stats.accepted_serial + (verdict == "accepted"),
            rejected=stats.rejected + (verdict == "rejected"),
            pending=stats.pending - judged,
            serial_ns=stats.serial_ns + event.cost_ns,
        ),
    )


def _check_commit(state: SessionState, event: Committed) -> int:
    """Check everything that the forward and the turn fix; returns the drafts accepted."""
    count = len(event.tokens)
    forward = state.forward
    if isinstance(forward, SpanVerified):
        _expect("source", event.source, "span")
        possible, accepted = forward.matched + 1, min(forward.matched, count)
        _expect("tokens", event.tokens, forward.predictions[:count])
    elif forward is not None:
        _expect("source", event.source, "serial" if isinstance(forward, SerialDecoded) else "prefill")
        possible, accepted = 1, 0
        _expect("tokens", event.tokens, (forward.prediction,))
        if state.pending and isinstance(forward, SerialDecoded) and forward.verdict == "rejected":
            _refuse("the rest of the rejected draft is not discarded yet")
    else:
        _refuse("no forward awaits its commit")
    if count > possible:
        _refuse(f"{count} tokens where {possible} can be committed")
    _expect("accepted", event.accepted, accepted)
    _expect("position", event.position, boundary_position(len(state.canonical) + count))
    stop_ids = state.turn.stop_ids
    for token in event.tokens[:-1]:
        if token in stop_ids:
            _refuse(f"the stop token {token} does not end the commit")
    stopped = bool(event.tokens) and event.tokens[-1] in stop_ids
    cut = event.cut_by
    if stopped != (cut == "stop_token"):
        _refuse(f"cut_by is {cut!r} where the last token is {'' if stopped else 'not '}a stop token")
    if cut == "cancelled":
        if event.source != "span" or count >= possible:
            _refuse("a cancel can cut only a span, and only short")
    elif not count:
        _refuse("only a cancel commits nothing")
    spent = state.remaining == count
    if (cut == "length" and not spent) or (cut == "none" and (spent or count < possible)):
        _refuse(f"cut_by {cut!r} with {count} of {possible} tokens committed and {state.remaining} remaining before")
    return accepted


def _committed(state: SessionState, event: Committed, to: Phase) -> SessionState:
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
            accepted_per_depth=_added(stats.accepted_per_depth, accepted) if accepted else stats.accepted_per_depth,
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


def _trimmed(state: SessionState, event: Trimmed, to: Phase) -> SessionState:
    wanted = boundary_position(len(state.canonical))
    primed = state.primed
    if state.phase == "unsettled":
        _expect("cause", event.cause, "span")
        _expect("pending", state.stats.pending, 0)
        _expect("from", event.from_, state.position)
        _expect("to", event.to, wanted)
        if event.to >= state.position:
            _refuse("every row is canonical: the checkpoint is retired, not trimmed")
    elif state.phase == "rewinding":
        _expect("cause", event.cause, "rewind")
        _expect("from", event.from_, state.position)
        if event.to not in (wanted, 0):
            _refuse(f"to is {event.to}, the rewind needs {wanted}, or 0 from a reset")
        primed = primed and event.to == wanted > 0  # with no row at all there is nothing a head could draft from
    elif state.phase == "failing":
        _expect("cause", event.cause, "failure")
        _expect("to", event.to, state.position)
        _expect("pending", state.stats.pending, 0)
        if state.failed is None or state.failed.call not in ("prefill", "serial", "span"):
            _refuse("the cache is in an unknown place: the session can only be dropped")
        if state.failed.observed is not None:
            _expect("from", event.from_, state.failed.observed)
    else:
        _expect("cause", event.cause, "cancel")
        if primed or event.to not in (state.position, 0) or event.from_ <= state.position:
            _refuse("only a prefill that was cancelled between its chunks is trimmed here")
    _expect("observed", event.observed, event.to)
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        position=event.observed,
        primed=primed,
        forward=None,
        committed=0,
        failed=None,
        stats=evolve_stats(
            _broken_off(state) if state.phase == "failing" else stats,
            trims=stats.trims + 1,
            replay_forwards=stats.replay_forwards + (1 if event.replayed_rows else 0),
            replayed_rows=stats.replayed_rows + event.replayed_rows,
            settle_ns=stats.settle_ns + event.cost_ns,
        ),
    )


def _retired(state: SessionState, event: CheckpointRetired, to: Phase) -> SessionState:
    span = state.forward
    if not isinstance(span, SpanVerified):
        _refuse("no span awaits its settle")
    _expect("pending", state.stats.pending, 0)
    _expect("base", event.base, span.base)
    _expect("rows", event.rows, span.rows)
    _expect("committed rows", state.committed, span.rows)
    _expect("observed", event.observed, state.position)
    stats = state.stats
    return evolve_state(
        state,
        phase=to,
        forward=None,
        committed=0,
        stats=evolve_stats(stats, retired=stats.retired + 1, settle_ns=stats.settle_ns + event.cost_ns),
    )


def _rewound(state: SessionState, event: Rewound, to: Phase) -> SessionState:
    _expect("pending", state.stats.pending, 0)
    length = len(state.canonical) - event.count
    if length < 1:
        _refuse(f"{event.count} tokens cannot be taken from {len(state.canonical)}: one must remain")
    _expect("length", event.length, length)
    turn = state.turn
    if length < turn.start:
        turn = new_turn(turn.number, length, turn.limits, turn.stops, turn.sampling, state.runtime)
    return evolve_state(
        state,
        phase=to,
        canonical=state.canonical.shortened(event.count),
        turn=turn,
        cut="none",
        cut_detail=None,
        finish=None,
        held=False,
        primed=state.primed and length > 1 and state.position >= boundary_position(length),
    )


def _failed(state: SessionState, event: RuntimeFailed, to: Phase) -> SessionState:
    position = state.position
    forward = state.forward
    if to == "failing":
        if forward is not None and state.committed == 0 and state.phase == "verified":
            # The verified rows are speculative and will never be committed: back to where the span began.
            position = forward.base if isinstance(forward, SpanVerified) else position
        elif state.phase != "failing":
            forward = None
    held = state.held or (to == "ready" and bool(state.pending))  # a restored draft was refused again
    return evolve_state(state, phase=to, failed=event, position=position, forward=forward, held=held)


def _finished(state: SessionState, event: SessionFinished, to: Phase) -> SessionState:
    _expect("pending", state.stats.pending, 0)
    _expect("turn", event.turn, state.turn.number)
    if event.reason in ("stop_token", "stop_text", "stop_when"):
        _expect("cut", state.cut, event.reason)
    elif event.reason == "length":
        due = finish_due(state)
        _expect("reason", event.reason, due.reason if due else None)
        _expect("limit", event.limit, due.limit if due else None)
    return evolve_state(state, phase=to, finish=event)


def _dropped(state: SessionState, event: SessionDropped, to: Phase) -> SessionState:
    broken = state.phase in ("prefilled", "serial", "verified", "failing")
    return evolve_state(
        state,
        phase=to,
        position=0,
        primed=False,
        forward=None,
        committed=0,
        stats=_broken_off(state) if broken else state.stats,
    )


_Handler: TypeAlias = Callable[[SessionState, Any, Phase], SessionState]

_HANDLERS: Final[dict[type[Event], _Handler]] = {
    SessionOpened: _opened,
    Extended: _extended,
    SessionResumed: _resumed,
    Prefilled: _prefilled,
    DraftOffered: _offered,
    DraftFailed: _draft_failed,
    DraftTaken: _taken,
    DraftRestored: _restored,
    DraftDiscarded: _discarded,
    SpanRefused: _span_refused,
    SpanVerified: _verified,
    SerialDecoded: _serial,
    Committed: _committed,
    Trimmed: _trimmed,
    CheckpointRetired: _retired,
    Rewound: _rewound,
    RuntimeFailed: _failed,
    SessionFinished: _finished,
    SessionDropped: _dropped,
}
