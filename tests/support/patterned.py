"""A draft source that is right and wrong where a test says so, and keeps the model's own head fed."""

from __future__ import annotations

from collections.abc import Callable

from spanfold.engine.drafting import Drafter
from spanfold.engine.runtime import Draft
from spanfold.engine.tokens import TokenLog
from spanfold.engine.values import DraftInfo, RuntimeInfo

__all__ = ["Patterned"]


class Patterned:
    """Drafts the true continuation, wrong at every index where ``wrong(index)``; feeds the head as its own source would."""

    def __init__(self, tokens: tuple[int, ...], vocabulary: int, wrong: Callable[[int], bool]) -> None:
        self.tokens, self.vocabulary, self.wrong = tokens, vocabulary, wrong

    def info(self, runtime: RuntimeInfo) -> DraftInfo:
        assert runtime.draft is not None
        return runtime.draft

    def open(self, session: int, ask_head: Callable[[TokenLog, int], Draft]) -> Drafter:
        source = self

        class One:
            def draft(self, canonical: TokenLog, limit: int) -> Draft:
                ask_head(canonical, limit)
                at = len(canonical)
                true = source.tokens[at : at + limit]
                drafted = tuple((t + 1) % source.vocabulary if source.wrong(at + n) else t for n, t in enumerate(true))
                return Draft(session=session, tokens=drafted)

        return One()
