"""The head's side of one session on a device: its pairs (``backends.pairs``) and the draft itself.

Layer 0 turns pairs (h_p, x_{p+1}) into states. With more layers, layer i turns (state of layer i - 1 at row p, x_{p+1+i}) into its own: of
canonical tokens as far as there are, then of drafted ones; the rows of drafted ones leave the cache when the draft is done. Draft step i
reads the last row of layer i; beyond the layers the last one is recycled, each time one row on.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ...engine.values import Sampling
from ..pairs import HeadRows
from .caches import RowCache
from .choice import masked_scores
from .model_cache import ModelCache
from .paths import Drafting

__all__ = ["HeadSession"]


class HeadSession(HeadRows):
    """The head's cache and the waiting rows of one session.

    Args:
        head: what runs the pairs.
        cache: of its layers, empty.
        device: where it lies.
    """

    cache: RowCache | ModelCache

    def __init__(self, head: Drafting, cache: RowCache | ModelCache, device: torch.device) -> None:
        super().__init__(cache, head.layers)
        self._head, self._device = head, device
        # Per layer the state of its last row of canonical tokens, and behind it those of drafted ones: what the next layer is given.
        self._tails: list[Tensor] = []

    @property
    def floor(self) -> int:
        """See ``HeadRows``; also what the cache can get back to."""
        return max(super().floor, self.cache.floor)

    def _joined(self, hidden: Tensor, more: Tensor) -> Tensor:
        return torch.cat([hidden, more])

    def _copy(self, hidden: Tensor) -> Tensor:
        return hidden.clone()

    def _level(self, rows: int) -> None:
        if isinstance(self.cache, ModelCache):
            self.cache.level(rows)
        else:
            self.cache.trim_to(rows)

    def _run(self, tokens: list[int], hidden: Tensor, first: int, scores: bool) -> Tensor:
        """The state of the last pair, ``[1, hidden]``."""
        ids = torch.tensor(tokens, device=self._device)
        states = self._head.run(ids, hidden, first, self.cache)
        self._tails = [states[-1:]]
        for layer in range(1, self._head.layers):
            more = len(tokens) > layer
            states = self._head.run(ids[layer:], states[:-1], first, self.cache, layer) if more else states[:0]
            self._tails.append(states[-1:])
        if isinstance(self.cache, ModelCache):
            self.cache.settled()
        return self._tails[0]

    def draft(self, current: int, limit: int, sampling: Sampling, masked: Tensor | None) -> tuple[int, ...]:
        """See ``HeadRows``. No value travels to the host before the last step is enqueued."""
        state: Tensor | None = self._feed(current)
        if state is None or limit == 0:
            return ()
        position, vocabulary = self.cache.rows, self._head.vocabulary
        if vocabulary is not None and masked is not None and len(masked) == len(vocabulary) and position + 1 < sampling.mask_until:
            return ()
        self.cache.reserve(position + limit)
        last = self._head.layers - 1
        ids: list[Tensor] = []
        try:
            for step in range(limit):
                layer = min(step, last)
                scores = masked_scores(self._head.scores(state, layer), position + 1 + step, sampling, masked)
                best = scores.argmax(dim=-1)
                ids.append(best if vocabulary is None else vocabulary.ids[best])
                if step + 1 < limit:
                    state = self._next(ids, state, position, step + 1)
        finally:
            self.cache.trim_to(position)
        return tuple(cast("list[int]", torch.cat(ids).tolist()))  # pyright: ignore[reportUnknownMemberType]

    def _next(self, ids: list[Tensor], state: Tensor, position: int, step: int) -> Tensor:
        # Step i < layers: layer i over the rows of the drafted tokens, of which the last is drafted from. Then one row on at a time.
        layers = self._head.layers
        if step >= layers:
            return self._head.run(ids[-1], state, position + step - layers, self.cache, layers - 1)
        given = self._tails[step - 1]
        rows = given.shape[0]
        states = self._head.run(torch.cat(ids[-rows:]), given, position - rows, self.cache, step)
        if step + 1 < layers:
            self._tails[step] = torch.cat([self._tails[step], states])
        return states[-1:]
