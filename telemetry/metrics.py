"""The instruments, and how counts are fed to them. Attributes are few words each, never an id: see names.METRICS."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.metrics import Counter, Histogram, Meter, UpDownCounter

from . import names
from .spans import TurnEnded
from .tally import Tally, per_depth

__all__ = ["Instruments"]


class Instruments:
    """All metrics of ``names.METRICS`` on one meter."""

    def __init__(self, meter: Meter) -> None:
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._live: UpDownCounter | None = None
        for metric in names.METRICS:
            told = {"unit": metric.unit, "description": metric.meaning}
            if metric.kind == "counter":
                self._counters[metric.name] = meter.create_counter(metric.name, **told)
            elif metric.kind == "histogram":
                made = meter.create_histogram(metric.name, explicit_bucket_boundaries_advisory=metric.buckets, **told)
                self._histograms[metric.name] = made
            else:
                self._live = meter.create_up_down_counter(metric.name, **told)

    def sessions(self, change: int, common: Mapping[str, str]) -> None:
        """So many more sessions are open."""
        if self._live is not None:
            self._live.add(change, common)

    def turn(self, turn: TurnEnded, common: Mapping[str, str]) -> None:
        """A turn has ended."""
        asked = {names.OPERATION_NAME: names.OPERATION, names.PROVIDER_NAME: names.PROVIDER, **common}
        if turn.first_token_s is not None:
            self._histograms[names.M_TIME_TO_FIRST].record(turn.first_token_s, asked)
        if turn.per_token_s is not None:
            self._histograms[names.M_TIME_PER_TOKEN].record(turn.per_token_s, asked)

    def rounds(self, tally: Tally, common: Mapping[str, str]) -> None:
        """Add the counts of some rounds."""
        self._add(names.M_DRAFTS, tally.spans, common)
        self._add(names.M_OFFERED_TOKENS, tally.drafted, common)
        self._add(names.M_DRAFT_TOKENS, tally.verified, common)
        self._add(names.M_ACCEPTED_TOKENS, tally.accepted, common)
        self._add(names.M_SAVED, tally.saved, common)
        self._add(names.M_REPLAYS, tally.replay_forwards, common)
        self._add(names.M_REPLAYED_ROWS, tally.replayed_rows, common)
        for name, lengths in ((names.M_VERIFIED_PER_DEPTH, tally.verified_lengths), (names.M_ACCEPTED_PER_DEPTH, tally.accepted_lengths)):
            for depth, count in enumerate(per_depth(lengths, max(lengths, default=0)), 1):
                self._add(name, count, {**common, names.A_DEPTH: min(depth, names.DEEPEST)})
        forwards = {"prefill": tally.prefills, "span": tally.spans, "serial": tally.serial_steps}
        for name, key, counts in (
            (names.M_FORWARDS, names.A_KIND, forwards),
            (names.M_TOKENS, names.A_KIND, tally.tokens),
            (names.M_DISCARDED_TOKENS, names.A_REASON, tally.discarded),
            (names.M_TRIMS, names.TRIM_CAUSE, tally.trims),
            (names.M_FAILURES, names.FAILED_CALL, tally.failures),
        ):
            for word, count in counts.items():
                self._add(name, count, {**common, key: word})
        lengths = self._histograms[names.M_ACCEPTANCE_LENGTH]
        for count in tally.lengths:
            lengths.record(count, common)
        verifies = self._histograms[names.M_VERIFY_DURATION]
        by_rows = {rows: {**common, names.ROWS: min(rows, names.DEEPEST + 1)} for rows in {rows for rows, _ in tally.verifies}}
        for rows, cost_ns in tally.verifies:
            verifies.record(cost_ns / 1e9, by_rows[rows])

    def _add(self, name: str, count: int, attributes: Mapping[str, str | int]) -> None:
        if count:
            self._counters[name].add(count, attributes)
