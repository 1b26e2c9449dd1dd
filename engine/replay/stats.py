"""Figures of a trace: what speculation did and whether it paid, per session, per turn and in all.

``AcceptanceRecord`` is the neutral per-request record that other tools read: the fields of AIPerf's SpecDecodeAcceptanceRecord,
under their own names. Its words in ours: a *spec step* is a span, *draft tokens* are verified drafts, *completion tokens* are the
tokens committed in the turn, ``num_spec_tokens`` is the policy's width (for ``auto``: the widest), and ``mean_acceptance_length``
is 1 + accepted / spans (which counts a correction or bonus token for every span, also one whose commit was cut;
``acceptance_length`` does not).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from attrs import frozen

from ..errors import IllegalEvent, TraceError
from ..events import Committed, Extended, FinishReason, Record, Rewound, SessionFinished, SessionOpened, SpanVerified
from ..reducer import reduce
from ..state import NEW, DecodeStats
from ..trace import TraceReader
from .plain import Plain
from .rounds import RoundCounter, RoundFigures, summed
from .sessions import SessionKey, iter_sessions

__all__ = ["AcceptanceRecord", "Account", "SessionCounter", "SessionFigures", "TraceStats", "TurnFigures", "account_of", "trace_stats"]


@frozen(kw_only=True)
class AcceptanceRecord(Plain):
    """AIPerf's SpecDecodeAcceptanceRecord; see the module. Rates are None where nothing was verified."""

    engine: str
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: Mapping[int, int]
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    num_spec_tokens: int | None
    completion_tokens: int
    per_step_accepted: tuple[int, ...]
    per_step_drafted: tuple[int, ...]


@frozen(kw_only=True)
class TurnFigures(Plain):
    """One turn. ``wall_ns`` runs from its first record to its last, ``first_token_ns`` to its first commit (None without one)."""

    turn: int
    finish: FinishReason | None
    wall_ns: int
    first_token_ns: int | None
    acceptance: AcceptanceRecord


@frozen(kw_only=True)
class Account(Plain):
    """The figures of a session or of a whole trace; the words are those of DecodeStats.

    ``acceptance_length_histogram``: tokens committed by a span -> spans. ``acceptance_per_depth``: accepted / verified at depth
    ``i + 1``. ``time_ns``: recorded costs by phase (prefill, verify, serial, draft, settle).
    """

    prompt_tokens: int
    tokens: int
    forwards: int
    prefills: int
    serial_steps: int
    spans: int
    drafted: int
    verified: int
    accepted: int
    accepted_serial: int
    rejected: int
    pending: int
    discarded: Mapping[str, int]
    acceptance_rate: float | None
    acceptance_length: float | None
    acceptance_length_histogram: Mapping[int, int]
    accepted_per_depth: tuple[int, ...]
    verified_per_depth: tuple[int, ...]
    acceptance_per_depth: tuple[float, ...]
    saved_forwards: int
    replay_forwards: int
    saved_net: int
    time_ns: Mapping[str, int]


@frozen(kw_only=True)
class SessionFigures(Plain):
    """One session; see Account."""

    session: int
    segment: int
    model: str
    account: Account
    rounds: RoundFigures
    turns: tuple[TurnFigures, ...]


@frozen(kw_only=True)
class TraceStats(Plain):
    """One trace: its sessions, and their sum."""

    path: str
    records: int
    torn: tuple[str, ...]
    total: Account
    rounds: RoundFigures
    sessions: tuple[SessionFigures, ...]


def trace_stats(path: str | os.PathLike[str]) -> TraceStats:
    """The figures of a trace, in one pass.

    Raises:
        TraceError: it is not a trace, is damaged, or a session in it does not fold (``check`` says more).
        OSError: it cannot be read.
    """
    reader = TraceReader(path)
    counting: dict[SessionKey, SessionCounter] = {}
    records = 0
    for key, record in iter_sessions(reader):
        records += 1
        session = counting.get(key)
        if session is None:
            session = counting[key] = SessionCounter(key)
        try:
            session.feed(record)
        except IllegalEvent as illegal:
            raise TraceError(f"{os.fspath(path)}: record {record.seq} of {key} does not fold ({illegal}): check the trace") from illegal
    sessions = tuple(session.figures() for session in counting.values())
    histogram: Counter[int] = Counter()
    for session in counting.values():
        histogram.update(session.lengths)
    return TraceStats(
        path=os.fspath(path),
        records=records,
        torn=reader.torn,
        total=account_of(_summed([session.state.stats for session in counting.values()]), histogram),
        rounds=summed([session.rounds for session in counting.values()]),
        sessions=sessions,
    )


def _summed(all_stats: list[DecodeStats]) -> DecodeStats:
    values: dict[str, int | tuple[int, ...]] = {}
    for stats in all_stats:
        for name, more in vars(stats).items():
            had = values.get(name)
            values[name] = more if had is None else had + more if isinstance(had, int) else _added(had, more)
    return DecodeStats(**values)  # pyright: ignore[reportArgumentType] - the fields of DecodeStats, each summed with its like


def _added(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    length = max(len(left), len(right))
    return tuple(a + b for a, b in zip(left + (0,) * (length - len(left)), right + (0,) * (length - len(right)), strict=True))


def account_of(stats: DecodeStats, histogram: Mapping[int, int]) -> Account:
    """The account of statistics that were folded, and the histogram of tokens per span."""
    return Account(
        prompt_tokens=stats.prompt_tokens,
        tokens=stats.tokens,
        forwards=stats.forwards,
        prefills=stats.prefills,
        serial_steps=stats.serial_steps,
        spans=stats.spans,
        drafted=stats.drafted,
        verified=stats.verified,
        accepted=stats.accepted,
        accepted_serial=stats.accepted_serial,
        rejected=stats.rejected,
        pending=stats.pending,
        discarded={str(reason): count for reason, count in stats.discarded.items()},
        acceptance_rate=stats.acceptance_rate,
        acceptance_length=stats.acceptance_length,
        acceptance_length_histogram=dict(sorted(histogram.items())),
        accepted_per_depth=stats.accepted_per_depth,
        verified_per_depth=stats.verified_per_depth,
        acceptance_per_depth=tuple(
            accepted / verified for accepted, verified in zip(stats.accepted_per_depth, stats.verified_per_depth, strict=True)
        ),
        saved_forwards=stats.saved_forwards,
        replay_forwards=stats.replay_forwards,
        saved_net=stats.saved_net,
        time_ns={
            "prefill": stats.prefill_ns,
            "verify": stats.verify_ns,
            "serial": stats.serial_ns,
            "draft": stats.draft_ns,
            "settle": stats.settle_ns,
        },
    )


class _Turn:
    def __init__(self, number: int, at_ns: int) -> None:
        self.number = number
        self.began_ns = self.ended_ns = at_ns
        self.first_ns: int | None = None
        self.finish: FinishReason | None = None
        self.tokens = 0
        self.verified = 0
        self.accepted: list[int] = []
        self.drafted: list[int] = []


class SessionCounter:
    """One session, being folded and counted.

    Attributes:
        opened: its first event, once there.
        state: the fold.
        lengths: tokens committed by a span -> spans.
        rounds: widths, probes and refusals.
    """

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.opened: SessionOpened | None = None
        self.state = NEW
        self.lengths: Counter[int] = Counter()
        self.rounds = RoundCounter()
        self._turns: list[_Turn] = []

    def feed(self, record: Record) -> None:
        """Take the next record. Raises IllegalEvent where it does not fold."""
        event = record.event
        self.state = reduce(self.state, event)
        self.rounds.feed(event)
        if isinstance(event, SessionOpened):
            self.opened = event
        if isinstance(event, (SessionOpened, Extended)):
            self._turns.append(_Turn(len(self._turns), record.at_ns))
            return
        turn = self._turns[-1]
        if isinstance(event, SpanVerified):
            turn.verified = event.rows - 1
        elif isinstance(event, Committed):
            turn.tokens += len(event.tokens)
            if turn.first_ns is None and event.tokens:
                turn.first_ns = record.at_ns
            if event.source == "span":
                # Both at the commit: a span that broke off before it was no step.
                turn.accepted.append(event.accepted)
                turn.drafted.append(turn.verified)
                self.lengths[len(event.tokens)] += 1
        elif isinstance(event, Rewound):
            turn.finish = None
        elif isinstance(event, SessionFinished):
            turn.finish = event.reason
        if turn.finish is None or isinstance(event, SessionFinished):
            turn.ended_ns = record.at_ns

    def figures(self) -> SessionFigures:
        """The session's figures so far."""
        runtime, width = self.state.runtime, self.state.policy.width
        engine = f"spanfold/{runtime.backend}"
        return SessionFigures(
            session=self.key.session,
            segment=self.key.segment,
            model=runtime.model,
            account=account_of(self.state.stats, self.lengths),
            rounds=self.rounds.figures(),
            turns=tuple(_turn_figures(turn, engine, width or None) for turn in self._turns),
        )


def _turn_figures(turn: _Turn, engine: str, width: int | None) -> TurnFigures:
    accepted_in_all, drafted_in_all, steps = sum(turn.accepted), sum(turn.drafted), len(turn.accepted)
    return TurnFigures(
        turn=turn.number,
        finish=turn.finish,
        wall_ns=turn.ended_ns - turn.began_ns,
        first_token_ns=None if turn.first_ns is None else turn.first_ns - turn.began_ns,
        acceptance=AcceptanceRecord(
            engine=engine,
            mean_acceptance_length=1 + accepted_in_all / steps if steps else None,
            draft_acceptance_rate=accepted_in_all / drafted_in_all if drafted_in_all else None,
            acceptance_histogram=dict(sorted(Counter(turn.accepted).items())),
            num_accepted_draft_tokens=accepted_in_all,
            num_draft_tokens=drafted_in_all,
            num_spec_steps=steps,
            num_spec_tokens=width,
            completion_tokens=turn.tokens,
            per_step_accepted=tuple(turn.accepted),
            per_step_drafted=tuple(turn.drafted),
        ),
    )
