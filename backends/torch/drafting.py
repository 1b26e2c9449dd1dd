"""The head's side of one session: which pairs its cache holds, which hidden rows wait, and the draft itself.

Authoritative here, and nowhere else:

| what | meaning |
|---|---|
| ``cache.rows`` | the head's rows; row p was made from (target hidden p, canonical[p + 1]) |
| ``hidden``, ``tokens`` | the target's hidden rows ``[start, start + len)`` and the tokens of those rows |
| ``start <= cache.rows`` | no pair is ever missing between the head's rows and the waiting ones |

The row of the newest canonical token always waits, even after it was fed: asked again for the same place (after a failed
span, say), the head drops its last pair and feeds it anew, so a draft depends on the canonical prefix alone (law 11).
Rows wait until the next draft, at most ``BACKLOG`` of them; beyond that the pairs whose second half is known are fed.
After a rewind below the waiting rows there is no hidden row to start from: drafts are empty until the next forward.
"""

from __future__ import annotations

from typing import Final, cast

import torch
from torch import Tensor

from ...engine.values import Sampling
from .caches import RowCache
from .choice import masked_scores
from .paths import Drafting

__all__ = ["BACKLOG", "HeadSession"]

#: Most hidden rows that wait for a draft.
BACKLOG: Final = 64


class HeadSession:
    """The head's cache and the waiting rows of one session.

    Args:
        head: what runs the pairs.
        cache: of one layer, empty.
        device: where it lies.
    """

    def __init__(self, head: Drafting, cache: RowCache, device: torch.device) -> None:
        self._head = head
        self.cache = cache
        self._device = device
        self._start = 0
        self._hidden: Tensor | None = None
        self._tokens: list[int] = []

    @property
    def end(self) -> int:
        """The position behind the newest canonical row."""
        return self._start + len(self._tokens)

    @property
    def waiting(self) -> int:
        """Hidden rows held."""
        return len(self._tokens)

    def append(self, hidden: Tensor, tokens: tuple[int, ...]) -> None:
        """Canonical rows: the target's hidden states ``[rows, hidden]`` and the rows' tokens. Feeds a full backlog."""
        if not tokens:
            return
        self._hidden = hidden if self._hidden is None else torch.cat([self._hidden, hidden])
        self._tokens.extend(tokens)
        if len(self._tokens) > BACKLOG:
            self._feed(None)

    def trim_to(self, position: int) -> None:
        """The canonical rows end at ``position``: drop what lies behind it."""
        if position < self.end:
            keep = max(position - self._start, 0)
            del self._tokens[keep:]
            self._hidden = self._hidden[:keep] if self._hidden is not None and keep else None
            self._start = min(self._start, position)
        self.cache.trim_to(min(self.cache.rows, position))

    def _feed(self, current: int | None) -> Tensor | None:
        """Feed every pair whose token is known; return z of the last one, ``[1, hidden]``, or None if none was fed."""
        last = self.end - 1
        if self._hidden is None or last < 0:
            return None
        if current is not None and self.cache.rows > last:
            self.cache.trim_to(last)
        first = self.cache.rows
        if first < self._start:
            raise RuntimeError(f"the head holds {first} rows and the hidden rows begin at {self._start}: a pair is missing")
        tokens = self._tokens[first + 1 - self._start :]
        if current is not None:
            tokens = [*tokens, current]
        if not tokens:
            return None
        end = first + len(tokens)
        ids = torch.tensor(tokens, device=self._device)
        z = self._head.run(ids, self._hidden[first - self._start : end - self._start], first, self.cache)
        # A copy: a view would keep the whole chunk that it was cut from.
        self._hidden = self._hidden[-1:].clone()
        self._tokens = self._tokens[-1:]
        self._start = last
        return z[-1:]

    def draft(self, current: int, limit: int, sampling: Sampling, masked: Tensor | None) -> tuple[int, ...]:
        """Feed what waits, then draft ``limit`` tokens to follow ``current``; the head's rows end at the target's position.

        Shorter where the draft vocabulary holds masked ids only. No value travels to the host before the last step is enqueued.

        Args:
            current: the newest canonical token.
            limit: most tokens.
            sampling: the session's.
            masked: the session's masked ids; with a draft vocabulary, their places in it.
        """
        z = self._feed(current)
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
