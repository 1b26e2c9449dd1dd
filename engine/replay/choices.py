"""The tokens of a log one by one, each with its absolute index and margin; and what a difference between two of them means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from attrs import frozen

from ..errors import ConfigError
from ..events import Committed, Event, Extended, Prefilled, Rewound, SerialDecoded, SessionOpened, SpanVerified
from ..values import RuntimeInfo

__all__ = ["BOUNDS", "Choice", "ChoiceReader", "Verdict", "bound_for", "judged"]

Verdict: TypeAlias = Literal["equal", "near_tie", "defect"]

#: (backend, dtype) -> the margin below which two runs may choose differently, as measured (docs/explanation/numerics.md).
BOUNDS: Final[Mapping[tuple[str, str], float]] = {
    ("scripted", ""): 0.0,
    ("torch", "float32"): 1e-3,
    ("torch", "float16"): 0.25,
    ("torch", "bfloat16"): 1.0,
    ("onnx", "float32"): 1e-3,
    ("onnx", "float16"): 0.25,
    ("onnx", "int4"): 1.0,
}


def bound_for(runtimes: tuple[RuntimeInfo, ...], bound: float | None) -> float:
    """The bound given, or else the largest of those measured for these runtimes; 0 for one that was never measured."""
    if bound is not None:
        if not bound >= 0:
            raise ConfigError(f"the bound on the margin must be a number of at least 0, not {bound!r}")
        return float(bound)
    return max(BOUNDS.get((runtime.backend, runtime.dtype), 0.0) for runtime in runtimes)


def judged(margins: tuple[float | None, ...], bound: float) -> Verdict:
    """Whether a differing choice is a near tie: the largest margin known of it is below the bound. Unknown margins excuse nothing."""
    known = [margin for margin in margins if margin is not None]
    return "near_tie" if known and max(known) < bound else "defect"


@frozen
class Choice:
    """One token that became canonical.

    Attributes:
        position: its absolute index in the session, the prompt's first token being 0.
        token: the id.
        given: it was given (prompt, extension), not chosen.
        margin: between the two best scores of the row that chose it, where recorded.
        seq: the record that made it canonical.
    """

    position: int
    token: int
    given: bool
    margin: float | None
    seq: int


class ChoiceReader:
    """Takes the events of one session in order; O(tokens of the event)."""

    def __init__(self) -> None:
        self._length = 0
        self._margins: tuple[float | None, ...] = ()

    def feed(self, seq: int, event: Event) -> Iterator[Choice]:
        """The tokens that the event makes canonical."""
        match event:
            case SessionOpened():
                return self._add(seq, event.prompt, given=True)
            case Extended():
                return self._add(seq, event.tokens, given=True)
            case Committed():
                return self._add(seq, event.tokens, given=False)
            case Prefilled() | SerialDecoded():
                self._margins = (event.margin,)
            case SpanVerified():
                self._margins = event.margins or ()
            case Rewound():
                self._length = event.length
            case _:
                pass
        return iter(())

    def _add(self, seq: int, tokens: tuple[int, ...], *, given: bool) -> Iterator[Choice]:
        start, margins = self._length, () if given else self._margins
        self._length += len(tokens)
        return (
            Choice(start + at, token, given, margins[at] if at < len(margins) else None, seq)  # None where they were not asked for
            for at, token in enumerate(tokens)
        )
