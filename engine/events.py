"""What happened: the immutable events of a session, and the envelope that numbers them.

Events are past tense, hold tuples and plain values, and are validated when built. What is not a pure function of the state
(results, failures, observed positions, costs, drafts, a cancel, what ``stop_when`` decided) is in them, so the same
decisions can be made again from the log alone. ``cost_ns`` and ``at_ns`` take no part in equality.

The words are those of docs/explanation/architecture.md: base, rows, matched, commit, accepted, trim, retire.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from attrs import field

from .adaptive import Pace
from .errors import ConfigError
from .values import (
    DraftInfo,
    Limits,
    Origin,
    Policy,
    RuntimeInfo,
    Sampling,
    Stops,
    flag,
    ids,
    instance,
    integer,
    one_of,
    text,
    value,
)

__all__ = [
    "CUT_BY",
    "DISCARD_REASONS",
    "EVENT_TYPES",
    "FailedCall",
    "CheckpointRetired",
    "Committed",
    "CutBy",
    "DiscardReason",
    "DraftDiscarded",
    "DraftFailed",
    "DraftOffered",
    "DraftRestored",
    "DraftTaken",
    "Event",
    "Extended",
    "FinishLimit",
    "FinishReason",
    "Prefilled",
    "Record",
    "Rewound",
    "RuntimeFailed",
    "SerialDecoded",
    "SessionDropped",
    "SessionFinished",
    "SessionOpened",
    "SessionResumed",
    "Source",
    "SpanRefused",
    "SpanVerified",
    "TrimCause",
    "Trimmed",
    "Verdict",
]

DiscardReason: TypeAlias = Literal[
    "rejected_tail",
    "clipped",
    "short",
    "invalid",
    "stopped",
    "cancelled",
    "superseded",
    "rewound",
    "extended",
    "resumed",
    "finished",
    "failed",
]
CutBy: TypeAlias = Literal["none", "stop_token", "stop_text", "stop_when", "stop_when_error", "length", "cancelled"]
FinishReason: TypeAlias = Literal["stop_token", "stop_text", "stop_when", "length", "cancelled", "closed", "failed"]
FinishLimit: TypeAlias = Literal["max_tokens", "context"]
Source: TypeAlias = Literal["prefill", "serial", "span"]
Verdict: TypeAlias = Literal["none", "accepted", "rejected"]
TrimCause: TypeAlias = Literal["span", "failure", "rewind", "cancel"]
FailedCall: TypeAlias = Literal["open", "configure", "prefill", "serial", "span", "settle", "reset", "drop"]

DISCARD_REASONS: Final[tuple[DiscardReason, ...]] = get_args(DiscardReason)
CUT_BY: Final[tuple[CutBy, ...]] = get_args(CutBy)

_ORIGIN = one_of(*get_args(Origin))
_cost = field(default=0, eq=False, validator=integer(0))


def _number(owner: object, attribute: object, got: object) -> None:
    # None where not asked for; NaN and infinities have no place in a log (strict JSON has no word for them).
    if got is None or (isinstance(got, float) and got - got == 0.0):
        return
    raise ConfigError(f"{type(owner).__name__} holds {got!r} where a finite float or None belongs")


def _numbers(owner: object, attribute: object, got: tuple[object, ...] | None) -> None:
    for one in got or ():
        _number(owner, attribute, one)


@value
class SessionOpened:
    """A session begins; nothing has run yet.

    ``draft`` says what this session drafts with (the runtime's head, prompt lookup) or None; ``rules`` is the version of the
    pure decisions that made this log; ``prior`` is what an earlier session of the same decoder knew of costs and acceptance, from
    which a policy ``auto`` goes on (None: it begins anew).
    """

    prompt: tuple[int, ...] = field(validator=ids)
    limits: Limits = field(validator=instance(Limits))
    stops: Stops = field(validator=instance(Stops))
    sampling: Sampling = field(validator=instance(Sampling))
    policy: Policy = field(validator=instance(Policy))
    runtime: RuntimeInfo = field(validator=instance(RuntimeInfo))
    draft: DraftInfo | None = field(default=None, validator=instance(DraftInfo, optional=True))
    rules: int = field(validator=integer(1))
    prior: Pace | None = field(default=None, validator=instance(Pace, optional=True))


@value
class Extended:
    """Tokens were given after the prompt or a finished turn; a new turn (counted from 0 at SessionOpened) begins."""

    tokens: tuple[int, ...] = field(validator=ids)
    limits: Limits = field(validator=instance(Limits))
    stops: Stops = field(validator=instance(Stops))
    sampling: Sampling = field(validator=instance(Sampling))
    turn: int = field(validator=integer(1))


@value
class SessionResumed:
    """The log goes on upon an empty runtime session: the position is 0, whatever was speculative is gone."""

    runtime: RuntimeInfo = field(validator=instance(RuntimeInfo))
    draft: DraftInfo | None = field(default=None, validator=instance(DraftInfo, optional=True))
    rules: int = field(validator=integer(1))


@value
class Prefilled:
    """``canonical[start:]`` was fed in ``chunks`` forwards; ``prediction`` is the target's choice after the last row.

    ``reused`` rows were in the cache already; ``position`` is the observed one.
    """

    start: int = field(validator=integer(0))
    position: int = field(validator=integer(1))
    reused: int = field(validator=integer(0))
    chunks: int = field(validator=integer(1))
    prediction: int = field(validator=integer(0))
    margin: float | None = field(default=None, validator=_number)
    logprob: float | None = field(default=None, validator=_number)
    cost_ns: int = _cost


@value
class DraftOffered:
    """A source answered. ``tokens`` are the usable ones (possibly none), ``invalid`` counts those from the first id
    outside the vocabulary on. ``at == len(canonical)``: the prefix that the draft follows. ``probe``: a policy ``auto`` had
    stopped drafting and looks whether it pays again."""

    limit: int = field(validator=integer(1))
    tokens: tuple[int, ...] = field(validator=ids)
    origin: Origin = field(validator=_ORIGIN)
    at: int = field(validator=integer(1))
    invalid: int = field(default=0, validator=integer(0))
    probe: bool = field(default=False, validator=flag())
    cost_ns: int = _cost


@value
class DraftFailed:
    """A source raised. Drafting is off for the rest of the session; decoding goes on serially."""

    origin: Origin = field(validator=_ORIGIN)
    error: str = field(validator=text())
    message: str = field(validator=text())


@value
class DraftTaken:
    """The first ``len(tokens)`` of ``offered`` drafted tokens will be verified in a span."""

    tokens: tuple[int, ...] = field(validator=ids)
    offered: int = field(validator=integer(1))


@value
class DraftRestored:
    """The span did not run; its ``count`` tokens are pending again."""

    count: int = field(validator=integer(1))
    reason: Literal["not_started", "cancelled"] = field(validator=one_of("not_started", "cancelled"))


@value
class DraftDiscarded:
    """``count`` pending tokens, the last ones, were thrown away."""

    count: int = field(validator=integer(1))
    reason: DiscardReason = field(validator=one_of(*DISCARD_REASONS))


@value
class SpanRefused:
    """Rounds are serial from here on for ``reason``; written only when the reason changes, void once a draft is taken."""

    reason: str = field(validator=text())


@value
class SpanVerified:
    """One target forward over ``[current, *pending]`` returned.

    ``predictions`` are as returned (shorter than ``rows`` only after a mismatch), ``matched`` the length of the longest
    prefix of the draft that equals them, ``observed`` the position that the runtime reports: ``base + rows``.
    """

    base: int = field(validator=integer(0))
    rows: int = field(validator=integer(2))
    predictions: tuple[int, ...] = field(validator=ids)
    matched: int = field(validator=integer(0))
    observed: int = field(validator=integer(0))
    margins: tuple[float, ...] | None = field(default=None, validator=_numbers)
    logprobs: tuple[float, ...] | None = field(default=None, validator=_numbers)
    cost_ns: int = _cost


@value
class SerialDecoded:
    """One target forward over ``[current]`` returned. A pending draft's first token was judged by it (``verdict``)."""

    base: int = field(validator=integer(0))
    prediction: int = field(validator=integer(0))
    verdict: Verdict = field(validator=one_of("none", "accepted", "rejected"))
    observed: int = field(validator=integer(0))
    margin: float | None = field(default=None, validator=_number)
    logprob: float | None = field(default=None, validator=_number)
    cost_ns: int = _cost


@value
class Committed:
    """Predictions became canonical: the first ``len(tokens)`` of the forward before it.

    ``accepted`` counts those that were drafted; ``cut_by`` says what ends the turn here, ``detail`` which one;
    ``position`` is where the cache is canonical again: ``len(canonical) - 1``.
    """

    tokens: tuple[int, ...] = field(validator=ids)
    accepted: int = field(validator=integer(0))
    source: Source = field(validator=one_of("prefill", "serial", "span"))
    cut_by: CutBy = field(default="none", validator=one_of(*CUT_BY))
    detail: str | None = field(default=None, validator=text(optional=True))
    position: int = field(validator=integer(0))


@value
class Trimmed:
    """The cache was cut back.

    ``from_`` (``from`` in a trace) is the position before, as far as known, ``to`` the one wanted, ``observed`` the
    one reported; ``replayed_rows`` had to be computed again for it.
    """

    from_: int = field(validator=integer(0))
    to: int = field(validator=integer(0))
    observed: int = field(validator=integer(0))
    replayed_rows: int = field(default=0, validator=integer(0))
    cause: TrimCause = field(validator=one_of(*get_args(TrimCause)))
    cost_ns: int = _cost


@value
class CheckpointRetired:
    """Every row of the span turned out canonical: the checkpoint is gone, the rows stay."""

    base: int = field(validator=integer(0))
    rows: int = field(validator=integer(2))
    observed: int = field(validator=integer(0))
    cost_ns: int = _cost


@value
class Rewound:
    """The last ``count`` canonical tokens were taken back; ``length`` remain."""

    count: int = field(validator=integer(1))
    length: int = field(validator=integer(1))


@value
class RuntimeFailed:
    """A runtime call failed, or returned what its contract excludes.

    ``started`` False: nothing was touched. ``observed`` is the position found afterwards; None: not known.
    """

    call: FailedCall = field(validator=one_of(*get_args(FailedCall)))
    started: bool = field(validator=flag())
    error: str = field(validator=text())
    message: str = field(validator=text())
    observed: int | None = field(default=None, validator=integer(0, optional=True))


@value
class SessionFinished:
    """The turn ended. ``limit`` names the limit if the reason is ``length``; ``detail`` what stopped, cancelled or failed."""

    reason: FinishReason = field(validator=one_of(*get_args(FinishReason)))
    limit: FinishLimit | None = field(default=None)
    detail: str | None = field(default=None, validator=text(optional=True))
    turn: int = field(validator=integer(0))

    def __attrs_post_init__(self) -> None:
        if (self.reason == "length") != (self.limit in ("max_tokens", "context")):
            raise ConfigError(f"SessionFinished.limit must be max_tokens or context for reason length and None else, not {self.limit!r}")


@value
class SessionDropped:
    """The runtime holds nothing of this session any more; what was committed stays readable."""

    reason: str = field(validator=text())


Event: TypeAlias = (
    SessionOpened
    | Extended
    | SessionResumed
    | Prefilled
    | DraftOffered
    | DraftFailed
    | DraftTaken
    | DraftRestored
    | DraftDiscarded
    | SpanRefused
    | SpanVerified
    | SerialDecoded
    | Committed
    | Trimmed
    | CheckpointRetired
    | Rewound
    | RuntimeFailed
    | SessionFinished
    | SessionDropped
)

EVENT_TYPES: Final[tuple[type[Event], ...]] = get_args(Event)


@value
class Record:
    """The envelope of an event.

    Attributes:
        seq: gapless from 0 within the session.
        session: counted per runtime, never reused.
        at_ns: the driver's clock; no part of equality.
        event: what happened.
    """

    seq: int
    session: int
    at_ns: int = field(default=0, eq=False)
    event: Event

    def __attrs_post_init__(self) -> None:
        # One check instead of three validators: a record is made for every event.
        seq, session, at_ns = self.seq, self.session, self.at_ns
        if type(seq) is type(session) is type(at_ns) is int and seq >= 0 and session >= 0 and at_ns >= 0:
            return
        raise ConfigError(f"Record.seq, .session and .at_ns must be integers of at least 0, not {(seq, session, at_ns)!r}")
