"""The head's side of one session on ONNX Runtime: its pairs (``backends.pairs``) and the draft itself.

Hidden rows wait on the host, wherever the graphs run: they are a few kilobytes a round.
"""

from __future__ import annotations

import numpy as np

from ...engine.values import Sampling
from ..pairs import HeadRows
from .caches import RowCache
from .choice import masked_scores
from .graph import Lane
from .memory import Array
from .models import Head

__all__ = ["HeadSession"]


class HeadSession(HeadRows):
    """The head's lane and the waiting rows of one session.

    Args:
        head: what runs the pairs.
        lane: of the head's graph, empty.
    """

    cache: RowCache

    def __init__(self, head: Head, lane: Lane) -> None:
        super().__init__(lane.cache)
        self._head, self._lane = head, lane

    def _joined(self, hidden: Array, more: Array) -> Array:
        return np.concatenate([hidden, more])

    def _copy(self, hidden: Array) -> Array:
        return hidden.copy()

    def _run(self, tokens: list[int], hidden: Array, first: int, scores: bool) -> tuple[int, Array, Array | None]:
        """What ``Head.run`` gives of the last pair."""
        return self._head.run(self._lane, tokens, hidden, scores=scores)

    def draft(self, current: int, limit: int, sampling: Sampling, masked: Array | None) -> tuple[int, ...]:
        """See ``HeadRows``."""
        index = self.end + 1  # of the first drafted token

        def choosing(step: int) -> bool:
            return masked is not None and index + step < sampling.mask_until

        found: tuple[int, Array, Array | None] | None = self._feed(current, choosing(0))
        vocabulary = self._head.vocabulary
        if found is None or limit == 0:
            return ()
        if vocabulary is not None and masked is not None and len(masked) == len(vocabulary) and choosing(0):
            return ()
        position = self.cache.rows
        ids: list[int] = []
        try:
            for step in range(limit):
                best, z, scores = found
                if scores is not None:
                    best = int(masked_scores(scores, index + step, sampling, masked)[0].argmax())
                    best = best if vocabulary is None else int(vocabulary[best])
                ids.append(best)
                if step + 1 < limit:
                    found = self._head.run(self._lane, [best], z, scores=choosing(step + 1))
        finally:
            self.cache.trim_to(position)
        return tuple(ids)
