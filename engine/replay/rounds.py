"""Counts of rounds by what was decided about drafting: widths, probes, and serial steps by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import frozen

from ..events import DraftOffered, Event, SerialDecoded, SpanRefused
from .plain import Plain

__all__ = ["RoundCounter", "RoundFigures"]


@frozen(kw_only=True)
class RoundFigures(Plain):
    """How wide the rounds were, and why.

    Attributes:
        widths: tokens asked for -> drafts.
        width_changes: drafts that were asked for with another width than the one before.
        probes: drafts that were asked for to see whether drafting pays again.
        refusals: reason -> serial steps. A step after a draft that was too short has no reason and is counted under ``short``.
    """

    widths: Mapping[int, int]
    width_changes: int
    probes: int
    refusals: Mapping[str, int]


class RoundCounter:
    """Counts the events of one session."""

    def __init__(self) -> None:
        self.widths: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()
        self.width_changes = 0
        self.probes = 0
        self._width: int | None = None
        self._reason = "short"

    def feed(self, event: Event) -> None:
        """Take the next event."""
        kind = type(event)
        if kind is DraftOffered and isinstance(event, DraftOffered):
            self.widths[event.limit] += 1
            self.width_changes += self._width is not None and self._width != event.limit
            self._width = event.limit
            self.probes += event.probe
            self._reason = "short"
        elif isinstance(event, SpanRefused):
            self._reason = event.reason
        elif kind is SerialDecoded:
            self.refusals[self._reason] += 1

    def figures(self) -> RoundFigures:
        """What was counted so far."""
        return summed([self])


def summed(counters: list[RoundCounter]) -> RoundFigures:
    """The figures of several sessions together."""
    widths: Counter[int] = Counter()
    refusals: Counter[str] = Counter()
    for counter in counters:
        widths.update(counter.widths)
        refusals.update(counter.refusals)
    return RoundFigures(
        widths=dict(sorted(widths.items())),
        width_changes=sum(counter.width_changes for counter in counters),
        probes=sum(counter.probes for counter in counters),
        refusals=dict(sorted(refusals.items())),
    )
