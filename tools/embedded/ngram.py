"""A token 5-gram model with interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998): what a trunk must beat."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ORDER: Final = 5

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class KneserNey:
    """Probabilities of ids below ``vocabulary`` (at most 4096, so that five of them fit into 63 bits).

    An n-gram is one integer, the oldest token in its highest digits: ``gram // vocabulary`` is its context,
    ``gram % vocabulary ** (n - 1)`` what is left without the oldest token.
    """

    def __init__(self, tokens: Ints, vocabulary: int) -> None:
        if not 2 <= vocabulary <= 4096:
            raise ValueError(f"vocabulary must be from 2 to 4096, not {vocabulary}")
        self.vocabulary = vocabulary
        self._orders: list[dict[str, Any]] = []
        grams, counts = np.unique(self._grams(tokens, ORDER), return_counts=True)
        for order in range(ORDER, 0, -1):
            self._orders.insert(0, self._table(grams, counts))
            if order > 1:  # a shorter n-gram counts in how many different longer ones it is the end
                grams, counts = np.unique(grams % vocabulary ** (order - 1), return_counts=True)

    def _grams(self, tokens: Ints, order: int) -> Ints:
        """``[len - ORDER + 1]``: the n-gram that ends at every place from the fifth on."""
        grams = np.zeros(len(tokens) - ORDER + 1, dtype=np.int64)
        for back in range(order - 1, -1, -1):
            at = ORDER - 1 - back
            grams = grams * self.vocabulary + tokens[at : at + len(grams)]
        return grams

    def _table(self, grams: Ints, counts: Ints) -> dict[str, Any]:
        ones, twos, threes, fours = (max(int((counts == n).sum()), 1) for n in (1, 2, 3, 4))
        y = ones / (ones + 2 * twos)
        own = [1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes]
        # Within reason also where a text is too small for such estimates: no probability may become 0 or negative.
        discounts = np.array([0.0, *(min(max(one, 0.05), count - 0.05) for count, one in enumerate(own, start=1))])
        contexts, starts = np.unique(grams // self.vocabulary, return_index=True)
        totals = np.add.reduceat(counts, starts)
        held_back = np.add.reduceat(discounts[np.minimum(counts, 3)], starts)
        return {
            "grams": grams,
            "counts": counts,
            "discounts": discounts,
            "contexts": contexts,
            "totals": totals,
            "back": held_back / totals,
        }

    def probabilities(self, tokens: Ints) -> Floats:
        """``[len - ORDER + 1]``: the probability of every token from the fifth on, given the four before it."""
        result: Floats = np.full(len(tokens) - ORDER + 1, 1.0 / self.vocabulary)
        for order, table in enumerate(self._orders, start=1):
            grams = self._grams(tokens, order)
            counts, _ = _look_up(table["grams"], table["counts"], grams)
            contexts = grams // self.vocabulary
            totals, known = _look_up(table["contexts"], table["totals"], contexts)
            back, _ = _look_up(table["contexts"], table["back"], contexts)
            own = counts - table["discounts"][np.minimum(counts, 3).astype(np.int64)]
            result = np.where(known, own / np.maximum(totals, 1) + back * result, result)
        return result


def _look_up(keys: Ints, values: Any, wanted: Ints) -> tuple[Any, NDArray[np.bool_]]:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = keys[at] == wanted
    return np.where(found, values[at], 0), found
