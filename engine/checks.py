"""What the handlers of the reducer share: refusing an event, and a few counters."""

from __future__ import annotations

from typing import NoReturn

from .events import DISCARD_REASONS, DiscardReason
from .positions import row_index
from .state import DecodeStats, SessionState, evolve_stats

__all__ = [
    "Refused",
    "broken_off",
    "check_choosable",
    "check_running",
    "check_vocabulary",
    "discard",
    "expect",
    "one_more_per_depth",
    "refuse",
]


class Refused(Exception):
    """What a handler has against an event; ``reduce`` names phase and event."""


def refuse(problem: str) -> NoReturn:
    """Refuse the event, for this reason."""
    raise Refused(problem)


def expect(name: str, got: object, wanted: object) -> None:
    """Refuse the event unless a redundant field says what the state says."""
    if got != wanted:
        raise Refused(f"{name} is {got!r}, the state says {wanted!r}")


def check_running(state: SessionState) -> None:
    """Refuse an event that goes on with a turn which a stop, a limit or a cancel has ended."""
    if state.cut not in ("none", "stop_when_error"):
        refuse(f"the turn was ended by {state.cut}")


def check_vocabulary(state: SessionState, tokens: tuple[int, ...], what: str) -> None:
    """Refuse ids outside the vocabulary."""
    vocabulary = state.runtime.vocabulary
    if tokens and max(tokens) >= vocabulary:
        refuse(f"{what} {max(tokens)} is outside the vocabulary of {vocabulary}")


def check_choosable(state: SessionState, base: int, predictions: tuple[int, ...]) -> None:
    """Refuse predictions that the target could not have chosen: outside the vocabulary, or masked at their index."""
    check_vocabulary(state, predictions, "prediction")
    sampling = state.turn.sampling
    if base + 1 < sampling.mask_until:
        for row, token in enumerate(predictions):
            if sampling.masks(token, row_index(base, row)):
                refuse(f"prediction {row} is id {token}, masked below index {sampling.mask_until}")


def discard(stats: DecodeStats, count: int, reason: DiscardReason) -> DecodeStats:
    """The account after ``count`` pending tokens were thrown away."""
    at = DISCARD_REASONS.index(reason)
    counts = stats.discarded_counts
    return evolve_stats(stats, pending=stats.pending - count, discarded_counts=(*counts[:at], counts[at] + count, *counts[at + 1 :]))


def one_more_per_depth(counts: tuple[int, ...], upto: int) -> tuple[int, ...]:
    """Per-depth counters, one more for each of the depths ``1..upto``."""
    if upto > len(counts):
        counts = counts + (0,) * (upto - len(counts))
    return tuple([count + 1 for count in counts[:upto]]) + counts[upto:]


def broken_off(state: SessionState) -> DecodeStats:
    """The account when a forward's predictions will never be committed."""
    return evolve_stats(state.stats, empty_forwards=state.stats.empty_forwards + 1) if state.forward is not None else state.stats
