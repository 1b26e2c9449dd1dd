"""Hypothesis strategies over what a runtime says of itself; the state machine draws from them, and so may tests of a backend."""

from __future__ import annotations

from hypothesis import strategies as st

from ...engine.values import RuntimeInfo

__all__ = ["chunks", "ids", "outlooks", "prompts"]


def ids(info: RuntimeInfo) -> st.SearchStrategy[int]:
    """A token id of the vocabulary."""
    return st.integers(0, info.vocabulary - 1)


def prompts(info: RuntimeInfo, longest: int = 6) -> st.SearchStrategy[list[int]]:
    """A prompt. Few different ones, so that sessions meet in the same text and a reference is computed once."""
    few = [at * 7919 % info.vocabulary for at in range(5)]
    return st.lists(st.sampled_from(few), min_size=1, max_size=min(longest, max(info.context_length - 1, 1)))


def chunks(longest: int = 6) -> st.SearchStrategy[int]:
    """Most rows of one prefill forward."""
    return st.integers(1, longest)


def outlooks(info: RuntimeInfo, widest: int = 5) -> st.SearchStrategy[tuple[int, int]]:
    """(right, wrong): how many tokens of a draft the target will choose, and how many other ones follow."""
    wrong = st.integers(0, widest if info.vocabulary > 1 else 0)
    return st.tuples(st.integers(0, widest), wrong).filter(lambda pair: 0 < sum(pair) <= widest)
