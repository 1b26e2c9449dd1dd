"""Every error that spanfold raises of its own accord.

Errors carry their data as attributes; their message is one sentence that names the thing and says what to do.
A caller's own exceptions (from ``stop_when``, ``on_token``, ``cancel``) are never wrapped: they propagate unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decoder import Result

__all__ = [
    "ConfigError",
    "DecodeFailed",
    "IllegalEvent",
    "NotStarted",
    "RecorderFailed",
    "ReplayDiverged",
    "RuntimeContractError",
    "SessionClosed",
    "SessionInUse",
    "SpanfoldError",
    "TooManySessions",
    "TraceError",
    "UnknownRules",
    "described",
]


class SpanfoldError(Exception):
    """Base of all errors of this package."""


class ConfigError(SpanfoldError, ValueError):
    """An argument, limit, policy or file is unusable; the message names the field and what it should be."""


class IllegalEvent(SpanfoldError):
    """An event that the state does not allow. The state is unchanged.

    Attributes:
        phase: the phase in which the event came.
        event: the name of its type.
        problem: what is wrong with it.
    """

    def __init__(self, phase: str, event: str, problem: str) -> None:
        super().__init__(f"{event} is not allowed in phase {phase!r}: {problem}")
        self.phase = phase
        self.event = event
        self.problem = problem


class NotStarted(SpanfoldError):
    """Raised *by a runtime* when a call was refused before anything was touched.

    The draft of the refused span is restored and the session stays as it was. Any other exception counts as started.
    """


class RuntimeContractError(SpanfoldError):
    """A runtime returned something that its contract excludes (a wrong position, too few predictions, a masked id)."""


class SessionClosed(SpanfoldError):
    """The session was dropped, or its turn is finished: what was committed stays readable, nothing more can be decoded."""


class SessionInUse(SpanfoldError):
    """Two threads drove one session at once, or a callback called back into the session that is calling it."""


class TooManySessions(SpanfoldError):
    """The bound on live sessions of one runtime is reached."""

    def __init__(self, live: int, bound: int) -> None:
        super().__init__(f"{live} sessions are live on this runtime and max_sessions is {bound}: close one, or raise max_sessions")
        self.live = live
        self.bound = bound


class ReplayDiverged(SpanfoldError):
    """A redrive decided something else than was recorded.

    Attributes:
        seq: number of the first event that differs.
        recorded: the event in the log (None: the log ends here).
        replayed: what the round did instead (an event, or the request it made).
    """

    def __init__(self, seq: int, recorded: object, replayed: object) -> None:
        super().__init__(f"event {seq}: recorded {recorded!r}, replayed {replayed!r}")
        self.seq = seq
        self.recorded = recorded
        self.replayed = replayed


class UnknownRules(ConfigError):
    """A log was made by a version of the rules that this engine does not have: it can be read and checked, not decided again.

    Attributes:
        seq: number of the record that says so.
        version: the log's.
        known: this engine's.
    """

    def __init__(self, seq: int, version: int, known: int) -> None:
        super().__init__(f"this log was made by rules version {version}, this engine has version {known}")
        self.seq = seq
        self.version = version
        self.known = known


class _WithPartial(SpanfoldError):
    """Attributes: partial, the Result up to the failure (None from an opened session, whose state stays readable)."""

    def __init__(self, message: str, partial: Result | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class DecodeFailed(_WithPartial):
    """A runtime call failed; the runtime's exception is ``__cause__``, what was committed before it is ``partial``."""


class RecorderFailed(_WithPartial):
    """The recorder could not write; the turn ended at a boundary and nothing was delivered beyond what it wrote."""


class TraceError(SpanfoldError, ValueError):
    """A trace, or one line of it, is not what its format says.

    Attributes:
        problem: what is wrong, with the path to the field (``$.event.limits.max_tokens``) where there is one.
        line: number of the line in the file, from 1; None where no file is concerned.
    """

    def __init__(self, problem: str, *, path: str | None = None, line: int | None = None) -> None:
        where = ", ".join(([path] if path is not None else []) + ([f"line {line}"] if line is not None else []))
        super().__init__(f"{where}: {problem}" if where else problem)
        self.problem = problem
        self.line = line


def described(exc: BaseException) -> str:
    """The exception's text in one line, also where its own ``__str__`` fails."""
    try:
        return " ".join(str(exc).split())
    except Exception:  # a caller's exception class; the exception itself is what matters
        return "(its text cannot be had)"
