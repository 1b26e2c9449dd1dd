"""The head's side of one session: which pairs its cache holds and which hidden rows wait. What backends share of it.

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

from abc import ABC, abstractmethod
from typing import Any, Final

from ..engine.values import Sampling

__all__ = ["BACKLOG", "HeadRows"]

#: Most hidden rows that wait for a draft.
BACKLOG: Final = 64


class HeadRows(ABC):
    """The head's cache and the waiting rows of one session.

    Args:
        cache: the head's rows, none yet.
        layers: distinct layers that one draft runs through. As many pairs are fed anew for each draft, and as many rows wait.
    """

    def __init__(self, cache: Any, layers: int = 1) -> None:
        self.cache = cache
        self._layers = layers
        self._start = 0
        self._hidden: Any = None
        self._tokens: list[int] = []

    @abstractmethod
    def draft(self, current: int, limit: int, sampling: Sampling, masked: Any) -> tuple[int, ...]:
        """Feed what waits, then draft ``limit`` tokens to follow ``current``; the head's rows end at the target's position.

        Shorter where the draft vocabulary holds masked ids only.

        Args:
            current: the newest canonical token.
            limit: most tokens.
            sampling: the session's.
            masked: the session's masked ids; with a draft vocabulary, their places in it; None if it has none.
        """

    @abstractmethod
    def _joined(self, hidden: Any, more: Any) -> Any:
        """Hidden rows, and more behind them."""

    @abstractmethod
    def _copy(self, hidden: Any) -> Any:
        """The rows without what they were cut from: a view would keep the whole chunk."""

    @abstractmethod
    def _run(self, tokens: list[int], hidden: Any, first: int, scores: bool) -> Any:
        """Feed pairs as rows ``first ...`` of the cache; whatever a draft begins with, of the last one.

        ``scores``: the draft must choose from scores.
        """

    def _level(self, rows: int) -> None:
        """End the cache at ``rows`` rows, in every layer."""
        self.cache.trim_to(rows)

    @property
    def end(self) -> int:
        """The position behind the newest canonical row."""
        return self._start + len(self._tokens)

    @property
    def waiting(self) -> int:
        """Hidden rows held."""
        return len(self._tokens)

    @property
    def floor(self) -> int:
        """The smallest position to which ``trim_to`` may be called such that the next rows can be fed."""
        return 0 if self._layers == 1 or self._start == 0 else min(self._start + self._layers, self.end)

    def append(self, hidden: Any, tokens: tuple[int, ...]) -> None:
        """Canonical rows: the target's hidden states ``[rows, hidden]`` and the rows' tokens. Feeds a full backlog."""
        if not tokens:
            return
        self._hidden = hidden if self._hidden is None else self._joined(self._hidden, hidden)
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

    def _feed(self, current: int | None, scores: bool = False) -> Any:
        """Feed every pair whose token is known; what ``_run`` gives, or None if none was fed."""
        last = self.end - 1
        if self._hidden is None or last < 0:
            return None
        rows = self.cache.rows
        first = max((rows if current is None else min(rows, last)) - self._layers + 1, 0)
        if first < rows:
            self._level(first)
        if first < self._start:
            raise RuntimeError(f"the head holds {first} rows and the hidden rows begin at {self._start}: a pair is missing")
        tokens = self._tokens[first + 1 - self._start :]
        if current is not None:
            tokens = [*tokens, current]
        if not tokens:
            return None
        end = first + len(tokens)
        found = self._run(tokens, self._hidden[first - self._start : end - self._start], first, scores)
        keep = min(self._layers, len(self._tokens))
        self._start += len(self._tokens) - keep
        self._hidden = self._copy(self._hidden[-keep:])
        self._tokens = self._tokens[-keep:]
        return found
