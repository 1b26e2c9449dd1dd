"""The head's side of one session on a device: its pairs (``backends.pairs``) and the draft itself."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ...engine.values import Sampling
from ..pairs import HeadRows
from .caches import RowCache
from .choice import masked_scores
from .paths import Drafting

__all__ = ["HeadSession"]


class HeadSession(HeadRows):
    """The head's cache and the waiting rows of one session.

    Args:
        head: what runs the pairs.
        cache: of one layer, empty.
        device: where it lies.
    """

    cache: RowCache

    def __init__(self, head: Drafting, cache: RowCache, device: torch.device) -> None:
        super().__init__(cache)
        self._head, self._device = head, device

    def _joined(self, hidden: Tensor, more: Tensor) -> Tensor:
        return torch.cat([hidden, more])

    def _copy(self, hidden: Tensor) -> Tensor:
        return hidden.clone()

    def _run(self, tokens: list[int], hidden: Tensor, first: int, scores: bool) -> Tensor:
        """Z of the last pair, ``[1, hidden]``."""
        return self._head.run(torch.tensor(tokens, device=self._device), hidden, first, self.cache)[-1:]

    def draft(self, current: int, limit: int, sampling: Sampling, masked: Tensor | None) -> tuple[int, ...]:
        """See ``HeadRows``. No value travels to the host before the last step is enqueued."""
        z: Tensor | None = self._feed(current)
        if z is None or limit == 0:
            return ()
        position, vocabulary = self.cache.rows, self._head.vocabulary
        if vocabulary is not None and masked is not None and len(masked) == len(vocabulary) and position + 1 < sampling.mask_until:
            return ()
        self.cache.reserve(position + limit)
        ids: list[Tensor] = []
        try:
            for step in range(limit):
                scores = masked_scores(self._head.scores(z), position + 1 + step, sampling, masked)
                best = scores.argmax(dim=-1)
                ids.append(best if vocabulary is None else vocabulary.ids[best])
                if step + 1 < limit:
                    z = self._head.run(ids[-1], z, position + step, self.cache)
        finally:
            self.cache.trim_to(position)
        return tuple(cast("list[int]", torch.cat(ids).tolist()))  # pyright: ignore[reportUnknownMemberType]
