"""What a span will hold, as plain values: made by the fold, written out by the observer and by the export of traces alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from .tally import Tally

__all__ = ["Problem", "Sink", "SpanData", "TurnBegan", "TurnEnded", "Value"]

#: What an attribute may be: plain types, whatever a backend returns.
Value: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int]


@frozen
class Problem:
    """Why a span has the status ERROR.

    Attributes:
        type: the error's type, ``error.type``.
        description: one line for the status.
    """

    type: str
    description: str


@frozen(kw_only=True)
class SpanData:
    """A finished round or part of one. Times are Unix nanoseconds; ``seq`` is the number of the record that ended it."""

    name: str
    seq: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    problem: Problem | None = None
    children: tuple[SpanData, ...] = ()


@frozen(kw_only=True)
class TurnBegan:
    """A turn's span begins; its attributes are those that a sampler may decide by."""

    name: str
    seq: int
    start_ns: int
    attributes: Mapping[str, Value]


@frozen(kw_only=True)
class TurnEnded:
    """A turn's span ends, and has these attributes too (none where it is not recorded).

    ``first_token_s``, ``per_token_s``: seconds to the first committed tokens and per token after them; None where there were none, the
    latter also for a turn that failed.
    """

    end_ns: int
    attributes: Mapping[str, Value]
    problem: Problem | None = None
    first_token_s: float | None = None
    per_token_s: float | None = None


class Sink(Protocol):
    """Takes what the fold makes of a session's records, in order."""

    def turn_began(self, turn: TurnBegan) -> bool:
        """Begin a turn's span. Returns whether it is recorded: if not, no ``span`` follows for it."""
        ...

    def span(self, span: SpanData) -> None:
        """A child of the turn's span is complete."""
        ...

    def turn_ended(self, turn: TurnEnded) -> None:
        """End the turn's span."""
        ...

    def counted(self, tally: Tally) -> None:
        """Counts of the rounds since the last call."""
        ...
