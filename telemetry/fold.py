"""The fold of a session's records into spans and counts: pure, and the only place that knows what a span is made of.

The observer feeds it while a decode runs, the export of traces from a file; so both make the same spans. It tolerates what a live
observer meets: records that an interrupt kept from it, a session that begins in the middle, an end that never comes.

Times come from the records: a forward ended when its record was made and began ``cost_ns`` before, but not before what came before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from ..engine.events import (
    Event,
    Extended,
    Record,
    Rewound,
    SessionDropped,
    SessionFinished,
    SessionOpened,
    SessionResumed,
)
from ..engine.state import SessionState
from ..engine.values import DraftInfo, Limits, Policy, RuntimeInfo, Sampling
from . import names
from .round_fold import RoundFold
from .rounds import Options, problem_of
from .spans import Problem, Sink, TurnBegan, TurnEnded, Value

__all__ = ["SessionFold"]

_FINISH: Final = {
    "stop_token": "stop",
    "stop_text": "stop",
    "stop_when": "stop",
    "length": "length",
    "cancelled": "cancelled",
    "closed": "cancelled",
    "failed": "error",
    "dropped": "error",
}


class SessionFold:
    """Folds one session's records and tells a sink.

    Args:
        state: what the session goes on from; ``NEW``, or for a resumed one the fold of its log.
        sink: takes what comes out.
        options: how much.
    """

    def __init__(self, state: SessionState, sink: Sink, options: Options) -> None:
        self._sink = sink
        self._options = options
        self._rounds = RoundFold(sink, options)
        self._open = False
        self._recorded = False
        self._began_ns = 0
        self._runtime: RuntimeInfo | None = None
        self._draft: DraftInfo | None = None
        self._policy = Policy(width=0)
        self._turn(0, Limits(), Sampling())
        if state.phase != "new":
            self._rounds.length = len(state.canonical)
            self._setting(state.runtime, state.draft, state.policy)
            self._turn(state.turn.number, state.turn.limits, state.turn.sampling)
            self._finished = state.finish is not None

    @property
    def rounds(self) -> RoundFold:
        """Takes the records that neither begin nor end a turn; ``feed`` passes them on to it."""
        return self._rounds

    @property
    def recorded(self) -> bool:
        """Whether the newest turn's span is, or was, recorded."""
        return self._recorded

    def feed(self, record: Record) -> None:
        """Take the next record."""
        event = record.event
        handler = self._HANDLERS.get(type(event))
        if handler is None:
            self._rounds.feed(record)
        else:
            handler(self, event, record)
            self._rounds.at_ns = record.at_ns  # afterwards: a turn that a resume ends has ended with the record before it

    def abandon(self, at_ns: int) -> None:
        """Nothing more will come: end what is open as unfinished, at the newest record or at ``at_ns`` if that is later."""
        if self._open:
            self._end(max(at_ns, self._rounds.at_ns), "unfinished")
        self._rounds.hand_on()

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _setting(self, runtime: RuntimeInfo, draft: DraftInfo | None, policy: Policy) -> None:
        self._runtime, self._draft, self._policy = runtime, draft, policy

    def _turn(self, number: int, limits: Limits, sampling: Sampling) -> None:
        self._number, self._limits, self._sampling = number, limits, sampling
        self._finished = False

    def _begin(self, record: Record, *, continued: bool = False) -> None:
        runtime, limits = self._runtime, self._limits
        if runtime is None:  # an interrupt kept its opening from us
            return
        model = str(runtime.model)
        attributes: dict[str, Value] = {
            names.OPERATION_NAME: names.OPERATION,
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: model,
            names.REQUEST_SEED: self._sampling.seed,
            names.REQUEST_TEMPERATURE: float(self._sampling.temperature),
            names.INPUT_TOKENS: self._rounds.length,
            names.SESSION_ID: record.session,
            names.TURN_NUMBER: self._number,
            names.BACKEND: str(runtime.backend),
            names.POLICY_KIND: str(self._policy.kind),
            names.POLICY_WIDTH: self._policy.width,
        }
        if limits.max_tokens is not None:
            attributes[names.REQUEST_MAX_TOKENS] = limits.max_tokens
        if continued:
            attributes[names.TURN_CONTINUED] = True
        if self._draft is not None:
            attributes |= {names.DRAFT_ORIGIN: str(self._draft.origin), names.DRAFT_DEPTH: self._draft.depth}
        attributes |= {name: str(said) for name, said in ((names.DEVICE, runtime.device), (names.DTYPE, runtime.dtype)) if said}
        self._began_ns = record.at_ns
        self._rounds.begin_turn(record.at_ns, detailed=False)
        self._open, self._recorded = True, False
        began = TurnBegan(name=f"{names.OPERATION} {model}", seq=record.seq, start_ns=record.at_ns, attributes=attributes)
        self._recorded = self._sink.turn_began(began)
        if self._recorded and self._options.level != "summary":
            self._rounds.begin_turn(record.at_ns, detailed=True)

    def _end(self, at_ns: int, reason: str, problem: Problem | None = None, extra: dict[str, Value] | None = None) -> None:
        self._open = False
        try:
            self._rounds.end_turn()
        finally:  # what went wrong with a round must not keep the turn's span from its end
            self._tell_end(at_ns, reason, problem, extra or {})

    def _tell_end(self, at_ns: int, reason: str, problem: Problem | None, extra: dict[str, Value]) -> None:
        rounds = self._rounds
        total, first = rounds.total, rounds.first_ns
        attributes: dict[str, Value] = {}
        if self._recorded:
            attributes = total.attributes()
            attributes[names.FINISH_REASON] = reason
            if reason in _FINISH:
                attributes[names.FINISH_REASONS] = (_FINISH[reason],)
            if rounds.cached is not None:
                attributes[names.CACHED_TOKENS] = rounds.cached
            if first is not None:
                attributes[names.TIME_TO_FIRST] = (first - self._began_ns) / 1e9
            if problem is not None:
                attributes[names.ERROR_TYPE] = problem.type
                if rounds.failure is not None:
                    attributes[names.FAILED_CALL] = str(rounds.failure.call)
            attributes |= extra
        per_token = None
        later = sum(total.tokens.values()) - rounds.first_tokens
        if later > 0 and first is not None and rounds.last_ns is not None and problem is None:
            per_token = (rounds.last_ns - first) / later / 1e9
        self._sink.turn_ended(
            TurnEnded(
                end_ns=max(at_ns, self._began_ns),
                attributes=attributes,
                problem=problem,
                first_token_s=None if first is None else (first - self._began_ns) / 1e9,
                per_token_s=per_token,
            )
        )

    def _on_opened(self, event: SessionOpened, record: Record) -> None:
        self._rounds.length = len(event.prompt)
        self._setting(event.runtime, event.draft, event.policy)
        self._turn(0, event.limits, event.sampling)
        self._begin(record)

    def _on_extended(self, event: Extended, record: Record) -> None:
        if self._open:  # it was extended before it had run
            self._end(record.at_ns, "extended")
        self._rounds.length += len(event.tokens)
        self._turn(event.turn, event.limits, event.sampling)
        self._begin(record)

    def _on_resumed(self, event: SessionResumed, record: Record) -> None:
        if self._open:  # the process that ran it is gone, and so is whatever it was doing
            self._end(self._rounds.at_ns, "unfinished")
        self._setting(event.runtime, event.draft, self._policy)
        self._rounds.resumed()
        if not self._finished:
            self._begin(record, continued=True)

    def _on_rewound(self, event: Rewound, record: Record) -> None:
        self._rounds.close_round()
        self._rounds.length = event.length
        if not self._open:
            self._finished = False
            self._begin(record, continued=True)

    def _on_finished(self, event: SessionFinished, record: Record) -> None:
        self._finished = True
        if not self._open:
            return
        extra: dict[str, Value] = {}
        if event.limit is not None:
            extra[names.FINISH_LIMIT] = str(event.limit)
        if event.detail is not None and self._options.record_token_ids and event.reason in ("stop_token", "stop_text"):
            extra[names.FINISH_DETAIL] = str(event.detail)
        problem = self._problem(event.detail or "") if event.reason == "failed" else None
        raised = (event.detail or "").partition("cancel raised ")[2] if event.reason == "cancelled" else ""
        if raised:  # the caller's own function failed, so the turn did
            problem = Problem(raised, f"cancel failed: {raised}")
        self._end(record.at_ns, str(event.reason), problem, extra)

    def _problem(self, detail: str) -> Problem:
        """From ``ValueError: what it said``, after ``recorder: `` perhaps, or from the failed runtime call."""
        by, _, rest = detail.partition("recorder: ")
        error = (rest if rest and not by else detail).partition(":")[0] or "failed"
        if error == "DecodeFailed" and self._rounds.failure is not None:
            return problem_of(self._rounds.failure, self._options)
        who = "recorder failed: " if rest and not by else ""
        return Problem(error, detail if self._options.record_messages else who + error)

    def _on_dropped(self, event: SessionDropped, record: Record) -> None:
        if not self._open:
            self._rounds.hand_on()  # a failed drop is counted after the turn's end
            return
        interrupt = event.reason.partition("interrupted: ")[2]
        if interrupt:
            problem = Problem(interrupt, f"interrupted: {interrupt}")
        elif self._rounds.failure is not None:
            problem = problem_of(self._rounds.failure, self._options)
        else:
            problem = Problem("dropped", "the session was dropped")
        self._end(record.at_ns, "dropped", problem)

    _HANDLERS: ClassVar[dict[type[Event], Callable[[SessionFold, Any, Record], None]]] = {
        SessionOpened: _on_opened,
        Extended: _on_extended,
        SessionResumed: _on_resumed,
        Rewound: _on_rewound,
        SessionFinished: _on_finished,
        SessionDropped: _on_dropped,
    }
