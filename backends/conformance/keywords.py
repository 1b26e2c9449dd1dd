"""The options as keyword arguments, for type checkers."""

from __future__ import annotations

from typing import TypedDict

from .bench import Fail

__all__ = ["Keywords"]


class Keywords(TypedDict, total=False):
    """See `Options`, which has the same names."""

    margin: float
    draft_differences: float
    fail: Fail | None
    context_reach: int
    rounds: int
    examples: int
    steps: int
    shrink: bool
