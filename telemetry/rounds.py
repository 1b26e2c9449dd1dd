"""The span of one round, from the events that made it up."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from attrs import frozen

from ..engine.events import (
    CheckpointRetired,
    Committed,
    DraftFailed,
    DraftOffered,
    Prefilled,
    RuntimeFailed,
    SerialDecoded,
    SpanVerified,
    Trimmed,
)
from . import names
from .spans import Problem, SpanData, Value

__all__ = ["LEVELS", "Level", "Options", "Round", "draft_part", "problem_of", "settle_part"]

#: How much is written: the turn alone, a span per target forward too, or also the parts of each round.
Level: TypeAlias = Literal["summary", "rounds", "debug"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

_KINDS: Final = {"prefill": names.PREFILL, "span": names.SPAN, "serial": names.SERIAL_STEP}


@frozen(kw_only=True)
class Options:
    """What goes into spans. See OTelObserver."""

    level: Level = "summary"
    record_token_ids: bool = False
    record_messages: bool = False
    original_names: bool = False


def problem_of(failed: RuntimeFailed, options: Options) -> Problem:
    """A failed runtime call as a status."""
    told = f": {failed.message}" if options.record_messages and failed.message else ""
    return Problem(str(failed.error), f"{failed.call} failed: {failed.error}{told}")


class Round:
    """Collects the events of one round. ``floor_ns``: the end of what came before it, where the round cannot have begun yet."""

    __slots__ = (
        *("floor_ns", "end_ns", "seq", "reason", "offered", "offered_ns", "draft_failed", "restored", "discarded"),
        *("forward", "forward_ns", "committed", "settled", "settled_ns", "failed"),
    )

    def __init__(self, floor_ns: int) -> None:
        self.floor_ns = self.end_ns = floor_ns
        self.seq = 0
        self.reason: str | None = None
        self.offered: DraftOffered | None = None
        self.offered_ns = self.forward_ns = self.settled_ns = floor_ns
        self.draft_failed: DraftFailed | None = None
        self.restored: str | None = None
        self.discarded: dict[str, int] = {}
        self.forward: Prefilled | SerialDecoded | SpanVerified | None = None
        self.committed: Committed | None = None
        self.settled: Trimmed | CheckpointRetired | None = None
        self.failed: RuntimeFailed | None = None

    @property
    def kind(self) -> str | None:
        """``prefill``, ``span`` or ``serial``; None: no target forward was made."""
        forward = self.forward
        if forward is None:
            return self.failed.call if self.failed is not None and self.failed.call in _KINDS else None
        return "span" if isinstance(forward, SpanVerified) else "serial" if isinstance(forward, SerialDecoded) else "prefill"

    def spans(self, options: Options) -> tuple[SpanData, ...]:
        """The round's span; where no forward was made, the parts alone."""
        kind = self.kind
        parts = self._parts(options) if options.level == "debug" else ()
        if kind is None:
            return parts
        attributes = self._attributes(options)
        name = _KINDS[kind]
        if options.original_names and self.committed is not None and isinstance(self.forward, SpanVerified):
            name = names.ORIGINAL_SPAN
            attributes |= _original(self.forward, self.committed)
        start = max(self.floor_ns, min(self._start_ns(), self.end_ns))
        return (
            SpanData(
                name=name,
                seq=self.seq,
                start_ns=start,
                end_ns=max(self.end_ns, start),
                attributes=attributes,
                problem=None if self.failed is None else problem_of(self.failed, options),
                children=parts,
            ),
        )

    def _start_ns(self) -> int:
        if self.offered is not None:
            return self.offered_ns - self.offered.cost_ns
        if self.forward is not None:
            return self.forward_ns - self.forward.cost_ns
        return self.floor_ns  # a failed call: what it cost is not known, it began after what came before

    def _attributes(self, options: Options) -> dict[str, Value]:
        found: dict[str, Value] = {}
        if self.offered is not None:
            found |= _draft_attributes(self.offered, options)
            found[names.TIME + "draft"] = self.offered.cost_ns / 1e9
        if self.draft_failed is not None:
            found[names.DRAFT_ERROR] = str(self.draft_failed.error)
        if self.restored is not None:
            found[names.DRAFT_RESTORED] = self.restored
        forward, committed = self.forward, self.committed
        if isinstance(forward, SpanVerified):
            found |= _verify_attributes(forward)
            found[names.TIME + "verify"] = forward.cost_ns / 1e9
            if committed is not None:
                count, accepted, drafted = len(committed.tokens), committed.accepted, forward.rows - 1
                found[names.ACCEPTED] = accepted
                if count > accepted and accepted < drafted:
                    found[names.REJECTED] = 1
                found[names.SAVED] = max(count - 1, 0)
                found[names.FULL_ACCEPT] = accepted == drafted
        elif isinstance(forward, SerialDecoded):
            found |= {names.BASE_POSITION: forward.base, names.ROWS: 1, names.TIME + "serial": forward.cost_ns / 1e9}
            if self.reason is not None:
                found[names.SERIAL_REASON] = self.reason
            if forward.verdict != "none":
                found[names.VERDICT] = str(forward.verdict)
                found[names.ACCEPTED_SERIAL if forward.verdict == "accepted" else names.REJECTED] = 1
        elif forward is not None:
            found |= {names.BASE_POSITION: forward.start, names.ROWS: forward.position - forward.start, names.CHUNKS: forward.chunks}
            found[names.TIME + "prefill"] = forward.cost_ns / 1e9
        if committed is not None:
            found[names.COMMITTED] = len(committed.tokens)
            if committed.cut_by != "none":
                found[names.CUT_BY] = str(committed.cut_by)
            if options.record_token_ids:
                found[names.TOKEN_IDS] = committed.tokens
        for reason, count in self.discarded.items():
            found[names.DISCARDED + reason] = count
        settled = self.settled
        if settled is not None:
            found[names.SETTLED_BY] = "trimmed" if isinstance(settled, Trimmed) else "retired"
            found[names.TIME + "settle"] = settled.cost_ns / 1e9
            if isinstance(settled, Trimmed) and settled.replayed_rows:
                found[names.REPLAYED_ROWS] = settled.replayed_rows
        failed = self.failed
        if failed is not None:
            found |= {names.ERROR_TYPE: str(failed.error), names.FAILED_CALL: str(failed.call), names.FAILURE_STARTED: failed.started}
        return found

    def _parts(self, options: Options) -> tuple[SpanData, ...]:
        parts: list[SpanData] = []
        end = self.floor_ns
        if self.offered is not None:
            parts.append(draft_part(self.offered, self.seq, end, self.offered_ns, options))
            end = parts[-1].end_ns
        forward = self.forward
        if isinstance(forward, SpanVerified):
            start = _begun(end, self.forward_ns, forward.cost_ns)
            end = max(start, self.forward_ns)
            attributes = _verify_attributes(forward)
            parts.append(SpanData(name=names.VERIFY, seq=self.seq, start_ns=start, end_ns=end, attributes=attributes))
        if self.settled is not None:
            parts.append(settle_part(self.settled, self.seq, end, self.settled_ns))
        return tuple(parts)


def _begun(floor: int, end: int, cost: int) -> int:
    """When what took ``cost`` and ended at ``end`` began: not before ``floor``, whatever a runtime says of its costs."""
    return max(floor, end - cost)


def draft_part(offered: DraftOffered, seq: int, floor_ns: int, end_ns: int, options: Options) -> SpanData:
    """The span of one question to the draft source."""
    start = _begun(floor_ns, end_ns, offered.cost_ns)
    attributes = _draft_attributes(offered, options)
    return SpanData(name=names.DRAFT, seq=seq, start_ns=start, end_ns=max(start, end_ns), attributes=attributes)


def settle_part(settled: Trimmed | CheckpointRetired, seq: int, floor_ns: int, end_ns: int) -> SpanData:
    """The span of one settle."""
    start = _begun(floor_ns, end_ns, settled.cost_ns)
    attributes: dict[str, Value] = {names.SETTLED_BY: "retired"}
    if isinstance(settled, Trimmed):
        attributes = {names.SETTLED_BY: "trimmed", names.TRIM_CAUSE: str(settled.cause), names.BASE_POSITION: settled.to}
        attributes[names.REPLAYED_ROWS] = settled.replayed_rows
    return SpanData(name=names.SETTLE, seq=seq, start_ns=start, end_ns=max(start, end_ns), attributes=attributes)


def _draft_attributes(offered: DraftOffered, options: Options) -> dict[str, Value]:
    found: dict[str, Value] = {names.DRAFT_LIMIT: offered.limit, names.DRAFTED: len(offered.tokens) + offered.invalid}
    if offered.probe:
        found[names.DRAFT_PROBE] = True
    if options.record_token_ids:
        found[names.DRAFT_TOKEN_IDS] = offered.tokens
    return found


def _verify_attributes(span: SpanVerified) -> dict[str, Value]:
    return {names.BASE_POSITION: span.base, names.ROWS: span.rows, names.VERIFIED: span.rows - 1, names.MATCHED: span.matched}


def _original(span: SpanVerified, committed: Committed) -> dict[str, Value]:
    count = len(committed.tokens)
    return {
        names.ORIGINAL_DRAFT_TOKENS: span.rows - 1,
        names.ORIGINAL_ACCEPTED_TOKENS: committed.accepted,
        names.ORIGINAL_COMMITTED_TOKENS: count,
        names.ORIGINAL_SAVED_FORWARDS: max(count - 1, 0),
        names.ORIGINAL_FULL_ACCEPT: committed.accepted == span.rows - 1,
        names.ORIGINAL_VERIFICATION_US: span.cost_ns // 1000,
    }
