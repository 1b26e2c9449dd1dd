"""The state of a session: a value, the fold of its events.

What owns what: the reducer (reducer.py) is the only code that makes a new state from an old one; a driver holds the newest
one; everything else reads.

====================  ==================================================================================
authoritative state   meaning
====================  ==================================================================================
phase                 where in a round the session is; ``ready`` and ``finished`` are the boundaries
canonical             every token given or committed, less those rewound
position              rows in the target's cache, as the runtime last reported
primed                the turn's prefill is done: ``position == len(canonical) - 1`` at every boundary
pending, surplus      drafted tokens not yet judged; ``surplus`` were offered beyond what was taken
forward               the forward whose predictions are not committed yet
committed             c, from Committed until the span is settled
cut                   what ended the turn from within, until SessionFinished says it
pace                  what a policy ``auto`` knows of costs and acceptance (adaptive.py); None for a fixed width
====================  ==================================================================================
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, cast, get_args

import attrs
from attrs import field

from .adaptive import Pace
from .events import (
    DISCARD_REASONS,
    CutBy,
    DiscardReason,
    FinishLimit,
    Prefilled,
    RuntimeFailed,
    SerialDecoded,
    SessionFinished,
    SpanVerified,
)
from .evolving import evolver
from .tokens import TokenLog
from .values import DraftInfo, Limits, Policy, RuntimeInfo, Sampling, Stops

__all__ = ["NEW", "PHASES", "DecodeStats", "Phase", "SessionState", "Turn", "evolve_state", "evolve_stats"]

Phase: TypeAlias = Literal[
    "new", "ready", "offered", "drafted", "prefilled", "serial", "verified", "unsettled", "failing", "rewinding", "finished", "dropped"
]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

_NO_DISCARDS: Final = (0,) * len(DISCARD_REASONS)


@attrs.frozen(kw_only=True, slots=False)
class DecodeStats:
    """The account of a session, over all its turns. Counts are tokens unless they say otherwise.

    Attributes:
        prompt_tokens: given by the prompt and by extensions.
        tokens: ever committed (a rewind takes none back).
        prefills, serial_steps, spans: target forwards by kind (a prefill counts once, however many chunks).
        empty_forwards: forwards that committed nothing (a span cancelled before its first token, a run that broke off).
        drafted: offered by the source, unusable ids included.
        verified: drafts that went through a span.
        matched: drafts that equalled the target's choice, those past a cut included.
        accepted: drafts committed by spans; ``accepted_serial``: by serial steps that a restored draft foresaw.
        rejected: drafts in whose place a correction was committed.
        pending: drafted and not yet judged.
        span_tokens: committed by spans, corrections and bonus tokens included.
        saved_forwards: sum over spans of ``max(c - 1, 0)``.
        replay_forwards, replayed_rows: what trims cost in recomputation (0 where a trim is a crop).
        retired, trims: settled spans by kind; a trim of a failure, a cancel or a rewind counts as a trim too.
        accepted_per_depth, verified_per_depth: entry ``i`` counts drafts at depth ``i + 1``; both have the same length.
        prefill_ns, verify_ns, serial_ns, draft_ns, settle_ns: recorded costs by phase; no part of equality.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    prefills: int = 0
    serial_steps: int = 0
    spans: int = 0
    empty_forwards: int = 0
    drafted: int = 0
    verified: int = 0
    matched: int = 0
    accepted: int = 0
    accepted_serial: int = 0
    rejected: int = 0
    discarded_counts: tuple[int, ...] = _NO_DISCARDS
    pending: int = 0
    span_tokens: int = 0
    saved_forwards: int = 0
    replay_forwards: int = 0
    replayed_rows: int = 0
    retired: int = 0
    trims: int = 0
    accepted_per_depth: tuple[int, ...] = ()
    verified_per_depth: tuple[int, ...] = ()
    prefill_ns: int = field(default=0, eq=False)
    verify_ns: int = field(default=0, eq=False)
    serial_ns: int = field(default=0, eq=False)
    draft_ns: int = field(default=0, eq=False)
    settle_ns: int = field(default=0, eq=False)

    @property
    def forwards(self) -> int:
        """Target forwards whose result was used or could have been: prefills, serial steps and spans."""
        return self.prefills + self.serial_steps + self.spans

    @property
    def discarded(self) -> dict[DiscardReason, int]:
        """Drafted tokens thrown away unjudged, by reason; reasons that did not occur are left out."""
        return {reason: count for reason, count in zip(DISCARD_REASONS, self.discarded_counts, strict=True) if count}

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified; None before the first verify."""
        return self.accepted / self.verified if self.verified else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per span, bonus and correction included; None before the first span."""
        return self.span_tokens / self.spans if self.spans else None

    @property
    def saved_net(self) -> int:
        """Forwards saved, less those that trims had to replay."""
        return self.saved_forwards - self.replay_forwards


evolve_stats = evolver(DecodeStats)


@attrs.frozen(kw_only=True)
class Turn:
    """What stays the same from SessionOpened or Extended to SessionFinished.

    Attributes:
        number: counted from 0.
        start: ``len(canonical)`` when the turn began; a rewind below it lowers it.
        stop_ids: the ids that stop, with ``ignore_eos`` taken into account.
    """

    number: int
    start: int
    limits: Limits
    stops: Stops
    sampling: Sampling
    stop_ids: frozenset[int]


@attrs.frozen(kw_only=True, slots=False)
class SessionState:
    """See the module's table. ``runtime``, ``policy`` and ``turn`` are placeholders in phase ``new`` only."""

    phase: Phase = "new"
    runtime: RuntimeInfo = cast(RuntimeInfo, None)
    draft: DraftInfo | None = None
    policy: Policy = cast(Policy, None)
    turn: Turn = cast(Turn, None)
    canonical: TokenLog = TokenLog()
    position: int = 0
    primed: bool = False
    pending: tuple[int, ...] = ()
    surplus: int = 0
    offer_limit: int = 0
    forward: Prefilled | SerialDecoded | SpanVerified | None = None
    committed: int = 0
    cut: CutBy = "none"
    cut_detail: str | None = None
    failed: RuntimeFailed | None = None
    refused: str | None = None
    drafting_off: bool = False
    held: bool = False
    pace: Pace | None = None
    finish: SessionFinished | None = None
    stats: DecodeStats = DecodeStats()

    @property
    def current(self) -> int:
        """The newest canonical token; its row is not in the cache at a boundary."""
        return self.canonical[-1]

    @property
    def decoded(self) -> int:
        """Tokens of this turn that are canonical."""
        return len(self.canonical) - self.turn.start

    @property
    def boundary(self) -> bool:
        """No row is speculative and no checkpoint lives."""
        return self.phase in ("ready", "finished")

    @property
    def remaining(self) -> int:
        """How many more tokens the turn may commit."""
        length = len(self.canonical)
        room = self.runtime.context_length - length
        limit = self.turn.limits.max_tokens
        if limit is None:
            return room
        left = limit - (length - self.turn.start)
        return left if left < room else room

    @property
    def limit(self) -> FinishLimit:
        """The limit that will end the turn first; ``max_tokens`` where both would at once."""
        limit = self.turn.limits.max_tokens
        if limit is not None and limit - self.decoded <= self.runtime.context_length - len(self.canonical):
            return "max_tokens"
        return "context"


evolve_state = evolver(SessionState)

#: The state before the first event.
NEW: Final = SessionState()
