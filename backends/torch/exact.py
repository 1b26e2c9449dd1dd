"""Whether a row's result depends on the rows beside it: measured, on the machine and the weights at hand.

One layer and the output matrix stand for the model: all layers have the same shapes, and it is shapes that kernels are chosen by. The
same rows are computed one by one and in spans of several widths, at positions around the roundings of ``caches.STEP``
and of a block of the attention kernel, and compared to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .caches import RowCache
from .decode import NEAR_ROWS
from .paths import OwnTarget

__all__ = ["rows_are_exact"]

_BASES: Final = (61, 253, 509)
_WIDTHS: Final = (2, 3, 4, 5, 17, NEAR_ROWS)
_ALONE: Final = 6


def rows_are_exact(target: OwnTarget, vocabulary: int, make_cache: Callable[[int, int], RowCache]) -> bool:
    """Run the probe. ``make_cache``: layers and limit -> an empty cache."""
    most, first = max(_WIDTHS), target.stack.layers[:1]
    cache = make_cache(1, max(_BASES) + most)
    cache.reserve(max(_BASES) + most)
    stack = target.stack.over(first)
    ids = [(7 + 389 * n) % vocabulary for n in range(max(_BASES) + most)]

    def rows(base: int, count: int) -> Tensor:
        return stack.run(target.embed(ids[base : base + count]), base, count, cache)[:count]

    start = 0
    hidden: list[Tensor] = []
    for base in _BASES:
        rows(start, base - start)
        hidden = [rows(base + n, 1) for n in range(_ALONE)]
        alone = torch.cat(hidden)
        if not all(torch.equal(rows(base, width)[:_ALONE], alone[:width]) for width in _WIDTHS):
            return False
        start = base
    scores = torch.cat([target.scores(row) for row in hidden])
    return all(torch.equal(target.scores(torch.cat(hidden[:width])), scores[:width]) for width in range(2, _ALONE + 1))
