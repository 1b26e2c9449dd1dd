"""Whether a row's result depends on the rows beside it: measured when a model is loaded, on the machine and the weights at hand.

The same rows are run one by one and in spans of several widths behind a short prefix, and their scores are compared to the bit. It costs
some fifteen forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .memory import Array
from .models import Target

__all__ = ["rows_are_exact"]

_BASE: Final = 61
_WIDTHS: Final = (2, 3, 4, 5, 17)
_ALONE: Final = 5


def rows_are_exact(target: Target, context: int) -> bool | None:
    """Run the probe with the target's ``row_width``; None where the context is too short for it."""
    base, most = _BASE, max(_WIDTHS)
    if base + most > context:
        base = context - most
        if base < 1:
            return None
    lane = target.graph.lane()
    lane.cache.reserve(base + most + target.row_width)
    ids = [(7 + 389 * n) % target.vocabulary for n in range(base + most)]

    def rows(tokens: Sequence[int]) -> Array:
        scores = target.run(lane, tokens, "all", hidden=False, scores=True).scores
        assert scores is not None
        return scores

    rows(ids[:base])
    alone = np.concatenate([rows(ids[base + n : base + n + 1]) for n in range(_ALONE)])
    for width in _WIDTHS:
        lane.cache.trim_to(base)
        if not np.array_equal(rows(ids[base : base + width])[:_ALONE], alone[:width]):
            return False
    return True
