"""Draft sources: where proposed tokens come from, behind one small protocol.

A drafter's answer is a pure function of the canonical prefix, and a shorter one is a prefix of a longer one (law 11). It
never decides a token: a wrong draft costs time, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
from attrs import field

from .errors import ConfigError
from .runtime import Draft
from .tokens import TokenLog
from .values import DraftInfo, RuntimeInfo, integer

__all__ = ["Drafter", "DraftSource", "HeadSource", "PromptLookup"]


class Drafter(Protocol):
    """Drafts for one session."""

    def draft(self, canonical: TokenLog, limit: int) -> Draft:
        """At most ``limit`` tokens to follow ``canonical``; none is a valid answer. May raise: drafting is then off."""
        ...


class DraftSource(Protocol):
    """Makes a drafter for each session."""

    def info(self, runtime: RuntimeInfo) -> DraftInfo:
        """What it can do on this runtime.

        Raises:
            ConfigError: it cannot draft there.
        """
        ...

    def open(self, session: int, ask_head: Callable[[TokenLog, int], Draft]) -> Drafter:
        """A drafter for the session.

        ``ask_head`` asks the runtime's own head and feeds it as a side effect. It may be used only by a source whose info
        has the origin ``mtp``: for others the session is opened without the head.
        """
        ...


@attrs.frozen
class _HeadDrafter:
    ask_head: Callable[[TokenLog, int], Draft]

    def draft(self, canonical: TokenLog, limit: int) -> Draft:
        return self.ask_head(canonical, limit)


@attrs.frozen
class HeadSource:
    """The model's own MTP head."""

    def info(self, runtime: RuntimeInfo) -> DraftInfo:
        """The runtime's declaration."""
        if runtime.draft is None:
            raise ConfigError(f"source is 'mtp' but {runtime.model} has no MTP head: use source='prompt_lookup' or 'none'")
        return runtime.draft

    def open(self, session: int, ask_head: Callable[[TokenLog, int], Draft]) -> Drafter:
        """A drafter that asks the runtime."""
        return _HeadDrafter(ask_head)


@attrs.frozen(kw_only=True)
class PromptLookup:
    """Drafts by repetition: what followed the most recent earlier occurrence of the newest n-gram.

    Source: prompt lookup decoding (Saxena, 2023), as in transformers' ``prompt_lookup_num_tokens``; here with an index
    that grows with the text instead of a search through it.

    Attributes:
        longest, shortest: sizes of the n-grams looked up, the longest first.
        depth: most tokens of one draft.
    """

    longest: int = field(default=3, validator=integer(1))
    shortest: int = field(default=2, validator=integer(1))
    depth: int = field(default=16, validator=integer(1))

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ConfigError(f"PromptLookup.shortest ({self.shortest}) must not exceed PromptLookup.longest ({self.longest})")

    def info(self, runtime: RuntimeInfo) -> DraftInfo:
        """No layers, no context of its own."""
        return DraftInfo(origin="prompt_lookup", layers=0, depth=self.depth, context_length=runtime.context_length)

    def open(self, session: int, ask_head: Callable[[TokenLog, int], Draft]) -> Drafter:
        """A drafter with an empty index."""
        return NgramDrafter(self.longest, self.shortest)


class NgramDrafter:
    """An incremental index of n-grams -> the position after their most recent occurrence.

    The index is a cache derived from the canonical tokens: amortized O(1) per token and n-gram size. It is rebuilt when the
    text is not a continuation of what was indexed (after a rewind).
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = TokenLog()

    def _index(self, canonical: TokenLog) -> None:
        done = len(self._indexed)
        if not canonical.continues(self._indexed):
            self._after.clear()
            done = 0
        # An n-gram is entered once a token follows it: the newest one must find an earlier occurrence, not itself.
        for end in range(max(1, done), len(canonical)):
            for size in self._sizes:
                if size <= end:
                    self._after[canonical[end - size : end]] = end
        self._indexed = canonical

    def draft(self, canonical: TokenLog, limit: int) -> Draft:
        """The tokens that followed the newest n-gram last time, longest n-gram first."""
        self._index(canonical)
        length = len(canonical)
        for size in self._sizes:
            if size <= length:
                at = self._after.get(canonical[length - size : length])
                if at is not None:
                    return Draft(session=0, tokens=canonical[at : at + limit])
        return Draft(session=0, tokens=())
