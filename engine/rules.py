"""Pure decisions over the state. ``VERSION`` is recorded; a change that decides differently raises it.

The driver's effects are elsewhere; nothing here looks at a clock, a runtime or a callback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

from .events import CutBy, DiscardReason, FinishLimit, FinishReason
from .state import SessionState, Turn
from .values import Limits, RuntimeInfo, Sampling, Stops

__all__ = [
    "AUTO_SINCE",
    "DECIDED_ALIKE",
    "PURE_PROCESSORS",
    "VERSION",
    "DraftUpTo",
    "Finish",
    "Plan",
    "Prefill",
    "Serial",
    "draft_threshold",
    "finish_due",
    "leftover_reason",
    "new_turn",
    "plan",
    "rewound_turn",
    "screen",
    "width",
]

VERSION: Final = 3

#: The versions whose logs this one decides as they were decided. Version 2 brought the policy ``auto``, which version 3 decides
#: otherwise: logs of it are known from then on. Fixed widths are as before.
DECIDED_ALIKE: Final[frozenset[int]] = frozenset({1, 2, 3})
AUTO_SINCE: Final = 3

#: Processors known to be pure functions of (row logits, true prefix, absolute index). Any other makes rounds serial.
PURE_PROCESSORS: Final[frozenset[str]] = frozenset()


@attrs.frozen
class Finish:
    """End the turn."""

    reason: FinishReason
    limit: FinishLimit | None = None
    detail: str | None = None


@attrs.frozen
class Prefill:
    """Feed ``canonical[position:]``."""


@attrs.frozen
class Serial:
    """Decode one row, for this reason."""

    reason: str


@attrs.frozen
class DraftUpTo:
    """Take (or ask for) a draft of at most ``limit`` tokens and verify it in a span."""

    limit: int


Plan: TypeAlias = Finish | Prefill | Serial | DraftUpTo

_DUE: Final[dict[CutBy, FinishReason]] = {
    "stop_token": "stop_token",
    "stop_text": "stop_text",
    "stop_when": "stop_when",
    "cancelled": "cancelled",
}
_PREFILL: Final = Prefill()


def finish_due(state: SessionState) -> Finish | None:
    """Why the turn must end at this boundary, if it must.

    An exception of ``stop_when`` is no reason: it went to the caller, who may go on.
    """
    reason = _DUE.get(state.cut)
    if reason is not None:
        return Finish(reason, None, state.cut_detail)
    if state.remaining <= 0:
        return Finish("length", state.limit)
    return None


def width(state: SessionState) -> int:
    """Tokens that a span should draft."""
    return state.policy.width if state.pace is None else state.pace.width


def _refusal(state: SessionState, remaining: int) -> str | None:
    if state.policy.width == 0:
        return "policy"
    if state.draft is None:
        return "no_draft_source"
    if state.drafting_off:
        return "draft_failed"
    give_up_after = state.policy.give_up_after
    if give_up_after is not None and not state.stats.accepted and state.stats.spans >= give_up_after:
        return "never_accepted"
    if state.runtime.rollback == "none":
        return "no_rollback"
    for processor in state.turn.sampling.processors:
        if not processor.pure or processor.name not in PURE_PROCESSORS:
            return f"processor {processor.name}"
    if state.held:
        return "not_started"
    if remaining < 2:
        return "budget"
    if state.draft.context_length <= len(state.canonical):
        return "draft_context"
    pace = state.pace
    if pace is not None and not pace.width:
        return pace.reason
    return None


def plan(state: SessionState) -> Plan:
    """What the next round does. The state is at phase ``ready``."""
    finish = finish_due(state)
    if finish is not None:
        return finish
    if not state.primed:
        return _PREFILL
    remaining = state.remaining
    reason = _refusal(state, remaining)
    if reason is not None or state.draft is None:
        return Serial(reason or "no_draft_source")
    # `remaining - 1`: a span of k drafts may commit k + 1 tokens.
    limit = min(width(state), remaining - 1, state.draft.context_length - len(state.canonical), state.draft.depth)
    return DraftUpTo(limit) if limit > 0 else Serial("policy")


def screen(tokens: Sequence[int], vocabulary: int) -> tuple[tuple[int, ...], int]:
    """The drafted tokens up to the first id outside the vocabulary, and how many are cut off by that."""
    for at, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            return tuple(tokens[:at]), len(tokens) - at
    return tuple(tokens), 0


def draft_threshold(state: SessionState, limit: int) -> int:
    """The shortest offer worth a span. A limit below ``min_draft`` clips; it does not make every offer short."""
    return max(1, min(state.policy.min_draft, limit))


def leftover_reason(rejected: bool, cut: CutBy) -> DiscardReason:
    """Why the drafts of a span that were neither accepted nor rejected are thrown away."""
    if rejected:
        return "rejected_tail"
    return "cancelled" if cut == "cancelled" else "stopped"


def discard_reason(finish: FinishReason) -> DiscardReason:
    """Why a draft that is pending at the end of a turn is thrown away."""
    if finish in ("stop_token", "stop_text", "stop_when"):
        return "stopped"
    if finish == "cancelled":
        return "cancelled"
    return "failed" if finish == "failed" else "finished"


def effective_stops(stops: Stops, runtime: RuntimeInfo) -> frozenset[int]:
    """The ids that stop: the one stop predicate."""
    return frozenset(stops.tokens) - (frozenset(runtime.stop_tokens) if stops.ignore_eos else frozenset())


def masking(sampling: Sampling, stops: Stops, limits: Limits, runtime: RuntimeInfo, start: int) -> Sampling:
    """The sampling of a turn that starts with ``start`` canonical tokens: stop ids are masked below ``min_tokens``."""
    if not limits.min_tokens:
        return attrs.evolve(sampling, masked=(), mask_until=0)
    return attrs.evolve(sampling, masked=tuple(sorted(effective_stops(stops, runtime))), mask_until=start + limits.min_tokens)


def new_turn(number: int, start: int, limits: Limits, stops: Stops, sampling: Sampling, runtime: RuntimeInfo) -> Turn:
    """The constant part of a turn."""
    return Turn(number=number, start=start, limits=limits, stops=stops, sampling=sampling, stop_ids=effective_stops(stops, runtime))


def rewound_turn(state: SessionState, length: int) -> Turn:
    """The turn once only ``length`` tokens are left: below its start it begins anew there, ``min_tokens`` included."""
    turn = state.turn
    if length >= turn.start:
        return turn
    sampling = masking(turn.sampling, turn.stops, turn.limits, state.runtime, length)
    return new_turn(turn.number, length, turn.limits, turn.stops, sampling, state.runtime)


#: Why a round is serial. The last three are of the policy ``auto``: it measures what a serial step costs; drafting does not pay by what
#: is known, and was stopped; and it is stopped still after a probe that gained nothing, or not enough.
RefusalReason: TypeAlias = Literal[
    "policy",
    "no_draft_source",
    "draft_failed",
    "never_accepted",
    "no_rollback",
    "not_started",
    "budget",
    "draft_context",
    "measuring",
    "not_paying",
    "cool_down",
]
