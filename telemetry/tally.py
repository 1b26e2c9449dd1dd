"""Counts of rounds, from the raw events: what a turn's span says at its end, and what metrics are fed with."""

from __future__ import annotations

from typing import Final

from . import names
from .spans import Value

__all__ = ["PHASES", "Tally", "per_depth"]

#: The phases whose costs are summed, as ``spanfold.time.PHASE``.
PHASES: Final = ("prefill", "draft", "verify", "serial", "settle")

_PLAIN: Final = {
    "prefills": names.PREFILLS,
    "spans": names.SPAN_COUNT,
    "serial_steps": names.SERIAL_STEPS,
    "drafted": names.DRAFTED,
    "verified": names.VERIFIED,
    "matched": names.MATCHED,
    "accepted": names.ACCEPTED,
    "accepted_serial": names.ACCEPTED_SERIAL,
    "rejected": names.REJECTED,
    "saved": names.SAVED,
    "replay_forwards": names.REPLAY_FORWARDS,
    "replayed_rows": names.REPLAYED_ROWS,
    "retired": names.RETIRED,
}
_COUNTS: Final = (*_PLAIN, "probes", "span_tokens")
_COUNTERS: Final = ("tokens", "discarded", "trims", "serial_reasons", "failures", "verified_lengths", "accepted_lengths", "time_ns")


class Tally:
    """What happened in some rounds. Counts are named as in DecodeStats.

    Attributes:
        tokens: committed tokens by the kind of forward that chose them.
        discarded, trims, serial_reasons, failures: counts by reason, cause, reason and call.
        verified_lengths, accepted_lengths: spans by how many drafts they verified and accepted.
        time_ns: recorded costs by phase.
        verifies: (rows, nanoseconds) of each span. lengths: tokens of each committed span. Both are for histograms alone and are
            not merged.
    """

    __slots__ = (*_COUNTS, *_COUNTERS, "lengths", "verifies")

    def __init__(self) -> None:
        self.prefills = self.spans = self.serial_steps = self.probes = 0
        self.drafted = self.verified = self.matched = self.accepted = self.accepted_serial = self.rejected = 0
        self.span_tokens = self.saved = self.replay_forwards = self.replayed_rows = self.retired = 0
        self.tokens: dict[str, int] = {}
        self.discarded: dict[str, int] = {}
        self.trims: dict[str, int] = {}
        self.serial_reasons: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.verified_lengths: dict[int, int] = {}
        self.accepted_lengths: dict[int, int] = {}
        self.time_ns: dict[str, int] = {}
        self.verifies: list[tuple[int, int]] = []
        self.lengths: list[int] = []

    @property
    def forwards(self) -> int:
        """Target forwards of all kinds."""
        return self.prefills + self.spans + self.serial_steps

    def merge(self, other: Tally) -> None:
        """Add the counts of later rounds."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTERS:
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count

    def attributes(self) -> dict[str, Value]:
        """The attributes of a turn's span that these counts are."""
        found: dict[str, Value] = {names.OUTPUT_TOKENS: sum(self.tokens.values()), names.FORWARDS: self.forwards}
        for name, attribute in _PLAIN.items():
            found[attribute] = getattr(self, name)
        found[names.SAVED_NET] = self.saved - self.replay_forwards
        found[names.TRIMS] = sum(self.trims.values())
        if self.probes:
            found[names.PROBES] = self.probes
        for prefix, counts in ((names.DISCARDED, self.discarded), (names.SERIAL_BY_REASON, self.serial_reasons)):
            found |= {prefix + key: count for key, count in counts.items()}
        found |= {names.TIME + phase: self.time_ns[phase] / 1e9 for phase in PHASES if phase in self.time_ns}
        if self.verified:
            found[names.ACCEPTANCE_RATE] = self.accepted / self.verified
            deepest = max(self.verified_lengths)
            found[names.VERIFIED_PER_DEPTH] = per_depth(self.verified_lengths, deepest)
            found[names.ACCEPTED_PER_DEPTH] = per_depth(self.accepted_lengths, deepest)
        if self.spans:
            found[names.ACCEPTANCE_LENGTH] = self.span_tokens / self.spans
        return found


def per_depth(lengths: dict[int, int], deepest: int) -> tuple[int, ...]:
    """From spans by length to tokens by depth: a run of n reached each of the depths 1 to n."""
    return tuple(sum(spans for length, spans in lengths.items() if length >= depth) for depth in range(1, deepest + 1))
