"""How a check ends besides passing: the contract is broken, or the runtime does not claim what the check is about."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["ContractBroken", "NotApplicable", "broken", "expect"]


class ContractBroken(AssertionError):
    """The runtime did something that its contract excludes; the message says what, in one sentence."""


class NotApplicable(Exception):
    """The runtime lacks the capability that a check is about, and says so; the message names it. A visible skip."""


def broken(problem: str) -> NoReturn:
    """The contract is broken."""
    __tracebackhide__ = True
    raise ContractBroken(problem)


def expect(holds: bool, problem: str) -> None:
    """The contract is broken unless this holds; a plain assert would vanish under ``python -O``."""
    __tracebackhide__ = True
    if not holds:
        raise ContractBroken(problem)
