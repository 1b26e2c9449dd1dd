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

Hidden rows wait on the host, wherever the graphs run: they are a few kilobytes a round.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...engine.values import Sampling
from .caches import RowCache
from .choice import masked_scores
from .graph import Lane
from .memory import Array
from .models import Head

__all__ = ["BACKLOG", "HeadSession"]

#: Most hidden rows that wait for a draft.
BACKLOG: Final = 64


class HeadSession:
    """The head's lane and the waiting rows of one session.

    Args:
        head: what runs the pairs.
        lane: of the head's graph, empty.
    """

    def __init__(self, head: Head, lane: Lane) -> None:
        self._head, self._lane = head, lane
        self._start = 0
        self._hidden: Array | None = None
        self._tokens: list[int] = []

    @property
    def cache(self) -> RowCache:
        """The head's rows."""
        return self._lane.cache

    @property
    def end(self) -> int:
        """The position behind the newest canonical row."""
        return self._start + len(self._tokens)

    @property
    def waiting(self) -> int:
        """Hidden rows held."""
        return len(self._tokens)

    def append(self, hidden: Array, tokens: tuple[int, ...]) -> None:
        """Canonical rows: the target's hidden states ``[rows, hidden]`` and the rows' tokens. Feeds a full backlog."""
        if not tokens:
            return
        self._hidden = hidden if self._hidden is None else np.concatenate([self._hidden, hidden])
        self._tokens.extend(tokens)
        if len(self._tokens) > BACKLOG:
            self._feed(None, False)

    def trim_to(self, position: int) -> None:
        """The canonical rows end at ``position``: drop what lies behind it."""
        if position < self.end:
            keep = max(position - self._start, 0)
            del self._tokens[keep:]
            self._hidden = self._hidden[:keep] if self._hidden is not None and keep else None
            self._start = min(self._start, position)
        self.cache.trim_to(min(self.cache.rows, position))

    def _feed(self, current: int | None, scores: bool) -> tuple[int, Array, Array | None] | None:
        """Feed every pair whose token is known; what ``Head.run`` gives of the last one, or None if none was fed."""
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
        found = self._head.run(self._lane, tokens, self._hidden[first - self._start : end - self._start], scores=scores)
        # A copy: a view would keep the whole chunk that it was cut from.
        self._hidden = self._hidden[-1:].copy()
        self._tokens = self._tokens[-1:]
        self._start = last
        return found

    def draft(self, current: int, limit: int, sampling: Sampling, masked: Array | None) -> tuple[int, ...]:
        """Feed what waits, then draft ``limit`` tokens to follow ``current``; the head's rows end at the target's position.

        Shorter where the draft vocabulary holds masked ids only.

        Args:
            current: the newest canonical token.
            limit: most tokens.
            sampling: the session's.
            masked: the session's masked ids; with a draft vocabulary, their places in it.
        """
        index = self.end + 1  # of the first drafted token

        def choosing(step: int) -> bool:
            return masked is not None and index + step < sampling.mask_until

        found = self._feed(current, choosing(0))
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
