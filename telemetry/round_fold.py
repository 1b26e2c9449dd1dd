"""The fold of a session's rounds: counts, and where they are asked for, the spans of rounds. The turns are fold.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from ..engine.events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    Event,
    Prefilled,
    Record,
    RuntimeFailed,
    SerialDecoded,
    SpanRefused,
    SpanVerified,
    Trimmed,
)
from .rounds import Options, Round, settle_part
from .spans import Sink
from .tally import Tally

__all__ = ["RoundFold"]

#: Counts are handed on at a turn's end, and in a long one every so many rounds.
BEAT: Final = 32
_SHORT: Final = "short"  # why a round was serial whose draft was too short, or of which no reason was written


class RoundFold:
    """Folds the events between the begin and the end of a turn, and tells a sink.

    Attributes:
        length: canonical tokens. cached: rows that the turn's first prefill found in the cache.
        total: the turn's counts, as far as they were handed on.
        floor_ns: the end of what came last. at_ns: the time of the newest record.
        first_ns, last_ns: when the turn's first and newest tokens were committed. first_tokens: how many the first ones were.
        failure: the failed runtime call after which nothing was committed yet.
    """

    def __init__(self, sink: Sink, options: Options) -> None:
        self._sink = sink
        self._options = options
        self.length = self.at_ns = 0
        self._detailed = False  # whether rounds become spans
        self._tally = Tally()
        self._rounds = 0
        self._round: Round | None = None
        self._reason = _SHORT
        self._verified = 0
        self.begin_turn(0, detailed=False)

    def begin_turn(self, at_ns: int, *, detailed: bool) -> None:
        """A turn begins; ``detailed``: its rounds become spans."""
        self._detailed = detailed
        self.floor_ns = at_ns
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.first_tokens = 0
        self.cached: int | None = None
        self.failure: RuntimeFailed | None = None
        self.total = Tally()

    def end_turn(self) -> None:
        """A turn ends: what is open is closed, and all counts are handed on."""
        try:
            self.close_round()
        finally:
            self._detailed = False
            self.hand_on()

    def resumed(self) -> None:
        """Another runtime goes on: why the last round was serial says nothing any more."""
        self._reason = _SHORT

    def hand_on(self) -> None:
        """Give the newest counts to the sink."""
        self._rounds = 0
        tally, self._tally = self._tally, Tally()
        self.total.merge(tally)
        self._sink.counted(tally)

    def feed(self, record: Record) -> None:
        """Take the next record."""
        event = record.event
        self.at_ns = record.at_ns
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, record)

    def close_round(self) -> None:
        """End the round that is open, if one is."""
        done, self._round = self._round, None
        if done is None:
            return
        self.floor_ns = max(self.floor_ns, done.end_ns)
        for span in done.spans(self._options):
            self._sink.span(span)

    def _round_of(self, record: Record) -> Round | None:
        """The round that this record belongs to; None where rounds are counted only."""
        if not self._detailed:
            return None
        found = self._round
        if found is None:
            found = self._round = Round(self.floor_ns)
        found.end_ns, found.seq = max(found.end_ns, record.at_ns), record.seq
        return found

    def _round_done(self) -> None:
        if self._round is not None:
            self.close_round()
        self._rounds += 1
        if self._rounds >= BEAT:
            self.hand_on()

    def _begin_round(self) -> None:
        """What is still there is a round that broke off."""
        if self._round is not None and (self._round.failed is not None or self._round.forward is not None):
            self.close_round()

    def _spend(self, phase: str, cost_ns: int) -> None:
        time_ns = self._tally.time_ns
        time_ns[phase] = time_ns.get(phase, 0) + cost_ns

    def _on_prefilled(self, event: Prefilled, record: Record) -> None:
        self._begin_round()
        self._tally.prefills += 1
        self._spend("prefill", event.cost_ns)
        if self.cached is None:
            self.cached = event.reused
        self._forward(event, record)

    def _forward(self, event: Prefilled | SerialDecoded | SpanVerified, record: Record) -> None:
        found = self._round_of(record)
        if found is not None:
            found.forward, found.forward_ns = event, record.at_ns

    def _on_offered(self, event: DraftOffered, record: Record) -> None:
        self._begin_round()
        self._tally.drafted += len(event.tokens) + event.invalid
        self._spend("draft", event.cost_ns)
        self._reason = _SHORT
        self._tally.probes += event.probe
        found = self._round_of(record)
        if found is not None:
            found.offered, found.offered_ns = event, record.at_ns

    def _on_draft_failed(self, event: DraftFailed, record: Record) -> None:
        self._begin_round()
        found = self._round_of(record)
        if found is not None:
            found.draft_failed = event

    def _on_restored(self, event: DraftRestored, record: Record) -> None:
        found = self._round_of(record)
        if found is not None:
            found.restored = str(event.reason)

    def _on_discarded(self, event: DraftDiscarded, record: Record) -> None:
        reason, count = str(event.reason), event.count
        discarded = self._tally.discarded
        discarded[reason] = discarded.get(reason, 0) + count
        found = self._round
        if found is not None:
            found.discarded[reason] = found.discarded.get(reason, 0) + count

    def _on_refused(self, event: SpanRefused, record: Record) -> None:
        self._reason = str(event.reason).partition(" ")[0]  # `processor NAME`: names are for the log

    def _on_serial(self, event: SerialDecoded, record: Record) -> None:
        self._begin_round()
        tally = self._tally
        tally.serial_steps += 1
        tally.accepted_serial += event.verdict == "accepted"
        tally.rejected += event.verdict == "rejected"
        tally.serial_reasons[self._reason] = tally.serial_reasons.get(self._reason, 0) + 1
        self._spend("serial", event.cost_ns)
        self._forward(event, record)
        if self._round is not None:
            self._round.reason = self._reason

    def _on_verified(self, event: SpanVerified, record: Record) -> None:
        self._begin_round()
        tally, drafted = self._tally, event.rows - 1
        self._verified = drafted
        tally.spans += 1
        tally.verified += drafted
        tally.matched += event.matched
        tally.verified_lengths[drafted] = tally.verified_lengths.get(drafted, 0) + 1
        tally.verifies.append((event.rows, event.cost_ns))
        self._spend("verify", event.cost_ns)
        self._forward(event, record)

    def _on_committed(self, event: Committed, record: Record) -> None:
        count, source, tally = len(event.tokens), str(event.source), self._tally
        self.length += count
        self.failure = None
        if count:
            tally.tokens[source] = tally.tokens.get(source, 0) + count
            self.last_ns = record.at_ns
            if self.first_ns is None:
                self.first_ns, self.first_tokens = record.at_ns, count
        found = self._round_of(record)
        if found is not None:
            found.committed = event
        if source != "span":
            self._round_done()
            return
        accepted = event.accepted
        tally.accepted += accepted
        tally.rejected += count > accepted and accepted < self._verified
        tally.span_tokens += count
        tally.saved += count - 1 if count else 0
        tally.accepted_lengths[accepted] = tally.accepted_lengths.get(accepted, 0) + 1
        tally.lengths.append(count)

    def _on_trimmed(self, event: Trimmed, record: Record) -> None:
        tally, cause = self._tally, str(event.cause)
        tally.trims[cause] = tally.trims.get(cause, 0) + 1
        tally.replay_forwards += event.replayed_rows > 0
        tally.replayed_rows += event.replayed_rows
        self._spend("settle", event.cost_ns)
        if cause in ("span", "failure"):
            self._settled(event, record)
        elif self._detailed and self._options.level == "debug":
            self.close_round()
            part = settle_part(event, record.seq, self.floor_ns, record.at_ns)
            self.floor_ns = max(self.floor_ns, part.end_ns)
            self._sink.span(part)

    def _on_retired(self, event: CheckpointRetired, record: Record) -> None:
        self._tally.retired += 1
        self._spend("settle", event.cost_ns)
        self._settled(event, record)

    def _settled(self, event: Trimmed | CheckpointRetired, record: Record) -> None:
        found = self._round_of(record)
        if found is not None:
            found.settled, found.settled_ns = event, record.at_ns
        self._round_done()

    def _on_failed(self, event: RuntimeFailed, record: Record) -> None:
        failures, call = self._tally.failures, str(event.call)
        failures[call] = failures.get(call, 0) + 1
        if call == "drop":
            return
        self.failure = event
        found = self._round_of(record)
        if found is not None and found.failed is None:
            found.failed = event

    _HANDLERS: ClassVar[dict[type[Event], Callable[[RoundFold, Any, Record], None]]] = {
        Prefilled: _on_prefilled,
        DraftOffered: _on_offered,
        DraftFailed: _on_draft_failed,
        DraftRestored: _on_restored,
        DraftDiscarded: _on_discarded,
        SpanRefused: _on_refused,
        SerialDecoded: _on_serial,
        SpanVerified: _on_verified,
        Committed: _on_committed,
        Trimmed: _on_trimmed,
        CheckpointRetired: _on_retired,
        RuntimeFailed: _on_failed,
    }
