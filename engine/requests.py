"""What a script (round.py, life.py) asks of the world, besides recording events, and the answers it understands.

A script yields either an event (answer: the state after it) or one of these frozen requests. ``Forward`` and ``Settle`` of
runtime.py are requests too.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from .events import CutBy, Event
from .runtime import NO_EXTRAS, Extras, Forward, Settle
from .values import Sampling

__all__ = [
    "DROP",
    "FLOOR",
    "OPEN",
    "POLL",
    "RESET",
    "Answer",
    "AskDraft",
    "AskStop",
    "Configure",
    "Context",
    "Drop",
    "Failed",
    "Floor",
    "Open",
    "Poll",
    "Request",
    "Reset",
    "Script",
    "StopVerdict",
]


@attrs.frozen
class Context:
    """What a script must know of its driver and is not in the state.

    Attributes:
        session: the id that the runtime knows it by.
        polls: whether a cancel or deadline can come; without, no Poll is yielded.
        asks: whether a stop text or ``stop_when`` can stop; without, no AskStop is yielded.
        extras: what each deciding forward should return besides its predictions.
    """

    session: int
    polls: bool = True
    asks: bool = True
    extras: Extras = NO_EXTRAS


@attrs.frozen
class AskDraft:
    """Ask the session's draft source for at most ``limit`` tokens. Answer: Draft or Failed."""

    limit: int


@attrs.frozen
class AskStop:
    """Ask whether ``token``, the ``index``-th of the turn (from 0), ends it by text or by the user's decision.

    Answer: StopVerdict or None.
    """

    token: int
    index: int


@attrs.frozen
class StopVerdict:
    """The token ends the turn (or the user's decision raised)."""

    cut_by: CutBy
    detail: str | None = None


@attrs.frozen
class Poll:
    """Ask whether to go on. Answer: None, or why not (``cancel``, ``deadline``)."""


@attrs.frozen
class Floor:
    """Ask for the smallest position that settle can reach now. Answer: int."""


@attrs.frozen
class Open:
    """Make the runtime session. Answer: None or Failed."""


@attrs.frozen
class Configure:
    """Give the runtime session this sampling. Answer: None or Failed."""

    sampling: Sampling


@attrs.frozen
class Reset:
    """Make the runtime session empty again (drop and open): the way back where settle cannot reach. Answer: None or Failed."""


@attrs.frozen
class Drop:
    """Release the runtime session. Answer: None or Failed."""


@attrs.frozen
class Failed:
    """A call failed.

    Attributes:
        started: False when nothing was touched.
        error, message: of the exception.
        observed: the position that the runtime reports now; None if it does not say.
    """

    started: bool
    error: str
    message: str
    observed: int | None = None


FLOOR: Final = Floor()
OPEN: Final = Open()
POLL: Final = Poll()
RESET: Final = Reset()
DROP: Final = Drop()

Request: TypeAlias = Event | Forward | Settle | AskDraft | AskStop | Poll | Floor | Open | Configure | Reset | Drop
# A generator has one type for all that is sent to it; each `yield` in a script is annotated with the answer of its request.
Answer: TypeAlias = Any
T = TypeVar("T")
Script: TypeAlias = Generator[Request, Answer, T]
