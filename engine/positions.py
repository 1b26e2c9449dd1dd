"""The arithmetic of rows, positions and drafts; the off-by-one lives here, once.

The newest canonical token, *current*, has no row in the cache yet. So at a boundary of a started turn
``position == len(canonical) - 1``: one row for every canonical token but the newest. A forward over ``[current, d1..dk]``
writes ``k + 1`` rows; row ``i`` chooses the token that would follow ``i`` drafts, with the absolute index
``base + i + 1``. Committing ``c`` of these choices makes the first ``c`` rows canonical (current's, then those of the
``c - 1`` accepted drafts that are no longer the newest token), hence ``base + c``.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["boundary_position", "matched_length", "row_index"]


def boundary_position(length: int) -> int:
    """The cache's length at a boundary with ``length`` canonical tokens."""
    return length - 1


def row_index(base: int, row: int) -> int:
    """The absolute index of the token chosen by row ``row`` of a forward at ``base``."""
    return base + row + 1


def matched_length(draft: Sequence[int], predictions: Sequence[int]) -> int:
    """Length of the longest prefix of the draft that equals the predictions."""
    matched = 0
    for drafted, predicted in zip(draft, predictions, strict=False):
        if drafted != predicted:
            break
        matched += 1
    return matched
