"""The account of one session, drawn up from its raw events alone, to be compared with the engine's statistics."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from ..state import DecodeStats

__all__ = ["Tally"]

_COUNTS: Final = (
    *("prompt_tokens", "tokens", "prefills", "serial_steps", "spans", "drafted", "verified", "matched", "accepted"),
    *("accepted_serial", "rejected", "pending", "span_tokens", "saved_forwards", "replay_forwards", "replayed_rows", "retired", "trims"),
    *("prefill_ns", "verify_ns", "serial_ns", "draft_ns", "settle_ns"),
)


class Tally:
    """Counts of one log. Attributes are named as in DecodeStats; ``empty`` counts the forwards that committed nothing."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.tokens = 0
        self.prefills = 0
        self.serial_steps = 0
        self.spans = 0
        self.empty = 0
        self.drafted = 0
        self.verified = 0
        self.matched = 0
        self.accepted = 0
        self.accepted_serial = 0
        self.rejected = 0
        self.pending = 0
        self.span_tokens = 0
        self.saved_forwards = 0
        self.replay_forwards = 0
        self.replayed_rows = 0
        self.retired = 0
        self.trims = 0
        self.prefill_ns = 0
        self.verify_ns = 0
        self.serial_ns = 0
        self.draft_ns = 0
        self.settle_ns = 0
        self.discarded: Counter[str] = Counter()
        self.discarded_in_all = 0
        self.verified_by_length: Counter[int] = Counter()
        self.accepted_by_length: Counter[int] = Counter()

    @property
    def forwards(self) -> int:
        """Target forwards of all kinds."""
        return self.prefills + self.serial_steps + self.spans

    @property
    def judged_or_discarded(self) -> int:
        """Drafted tokens that are explained and not pending."""
        return self.accepted + self.accepted_serial + self.rejected + self.discarded_in_all

    def totals(self) -> dict[str, Any]:
        """Every figure that the engine's statistics must equal, by the name that it has there."""
        deepest = max(self.verified_by_length, default=0)
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "empty_forwards": self.empty,
            "forwards": self.forwards,
            "discarded": dict(self.discarded),
            "acceptance_rate": self.accepted / self.verified if self.verified else None,
            "acceptance_length": self.span_tokens / self.spans if self.spans else None,
            "saved_net": self.saved_forwards - self.replay_forwards,
            "verified_per_depth": _per_depth(self.verified_by_length, deepest),
            "accepted_per_depth": _per_depth(self.accepted_by_length, deepest),
        }

    def differences(self, stats: DecodeStats) -> list[tuple[str, Any, Any]]:
        """Where the engine's statistics differ: (name, the engine's, counted here)."""
        return [(name, getattr(stats, name), wanted) for name, wanted in self.totals().items() if getattr(stats, name) != wanted]


def _per_depth(by_length: Counter[int], deepest: int) -> tuple[int, ...]:
    # A run of n reached each of the depths 1..n. Both figures have the same depths, accepted or not.
    reached = 0
    upwards: list[int] = []
    for depth in range(deepest, 0, -1):
        reached += by_length[depth]
        upwards.append(reached)
    return tuple(reversed(upwards))
