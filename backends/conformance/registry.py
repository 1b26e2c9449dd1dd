"""The checks in reading order: a name, what holds, and where that is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

from .bench import Bench

__all__ = ["Check", "Checks", "Run"]

Run: TypeAlias = Callable[[Bench], None]


@frozen
class Check:
    """One property of a runtime.

    Attributes:
        name: a sentence, in words joined by underscores.
        holds: what must hold, from the function's docstring.
        source: the laws and the public bug reports (cases) that it comes from, and the part of the protocol.
        run: raises ContractBroken (or whatever the runtime raised) where it does not hold, NotApplicable where the runtime does
            not claim to.
    """

    name: str
    holds: str
    source: str
    run: Run


class Checks(list[Check]):
    """A list of checks; used as a decorator it adds a function under its own name."""

    def __call__(self, source: str) -> Callable[[Run], Run]:
        """Add the decorated function, whose docstring says what holds."""

        def add(run: Run) -> Run:
            self.append(Check(run.__name__, " ".join((run.__doc__ or "").split()), source, run))
            return run

        return add
