"""Draft models for the scripted head: right, wrong, noisy or broken on purpose.

Each is a pure function of what the head's cache really holds, so an unfed, stale or wrongly fed row shows as another draft
(law 11). A draft model sees the head as a `HeadView` and returns the tokens that it proposes to follow current.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import attrs

from .targets import State, Target, mix

__all__ = [
    "DraftModel",
    "HeadView",
    "adversarial",
    "constant",
    "invalid",
    "listed",
    "mapped",
    "noisy",
    "oracle",
    "short",
    "surplus",
]


@attrs.define
class HeadView:
    """The head's cache just after the newest pair was fed.

    Attributes:
        rows: number of pairs; equals the target's position.
        hidden: the newest pair's hidden id: the target's state after row ``rows - 1``.
        current: the newest pair's token.
        target: the model that the head was "trained" on.
        vocabulary: number of ids.
        masked: gives the ids that may not be chosen for an absolute index.
        attend: gives what an attention over all pairs would find: a hash of them, and whether they fit each other. A head with
            a gap or a stale pair has lost the thread: `oracle` and `noisy` then draft wrong tokens.
    """

    rows: int
    hidden: State
    current: int
    target: Target
    vocabulary: int
    masked: Callable[[int], Collection[int]]
    attend: Callable[[], tuple[int, bool]]


#: Takes the head and the most tokens wanted; returns the draft (a faulty one may return too many).
DraftModel: TypeAlias = Callable[[HeadView, int], Sequence[int]]


def oracle() -> DraftModel:
    """Always drafts what the target will choose."""

    def draft(head: HeadView, limit: int) -> Sequence[int]:
        target, tokens = head.target, list[int]()
        shift = 0 if head.attend()[1] else 1
        state, token = head.hidden, head.current
        for index in range(head.rows + 1, head.rows + 1 + limit):
            state = target.advance(state, token)
            token = (target.choose(state, head.masked(index)) + shift) % head.vocabulary
            tokens.append(token)
        return tokens

    return draft


def adversarial() -> DraftModel:
    """Never drafts what the target will choose (in a vocabulary of more than one id)."""
    return noisy(0, 0.0)


def noisy(seed: int, accuracy: float) -> DraftModel:
    """Drafts each token right with probability ``accuracy``, decided by a hash of the seed and all of the head's pairs."""
    bar = round(accuracy * (1 << 32))

    def draft(head: HeadView, limit: int) -> Sequence[int]:
        tokens: list[int] = []
        state = head.target.advance(head.hidden, head.current)
        folded, sound = head.attend()
        salt = mix((folded ^ mix(seed + 1)) & ((1 << 64) - 1))
        for depth in range(limit):
            token = head.target.choose(state, head.masked(head.rows + 1 + depth))
            draw = mix(salt + depth)
            if draw & 0xFFFFFFFF >= bar or not sound:
                token = (token + 1 + (draw >> 32) % max(head.vocabulary - 1, 1)) % head.vocabulary
            tokens.append(token)
            state = head.target.advance(state, token)
        return tokens

    return draft


def constant(token: int) -> DraftModel:
    """Drafts one token for ever (cases 6.2 and 6.7: a head that learned nothing)."""
    return lambda head, limit: (token,) * limit


def listed(tokens: Sequence[int], *, start: int = 0) -> DraftModel:
    """Drafts ``tokens[i]`` for the absolute index ``start + i``; nothing beyond the list."""
    fixed = tuple(tokens)

    def draft(head: HeadView, limit: int) -> Sequence[int]:
        at = head.rows + 1 - start
        return fixed[at : at + limit] if at >= 0 else ()

    return draft


def mapped(table: Mapping[int, Sequence[int]], otherwise: DraftModel | None = None) -> DraftModel:
    """Drafts ``table[n]`` after ``n`` canonical tokens; elsewhere what ``otherwise`` drafts, or nothing."""
    fixed = {length: tuple(tokens) for length, tokens in table.items()}

    def draft(head: HeadView, limit: int) -> Sequence[int]:
        if head.rows + 1 in fixed:
            return fixed[head.rows + 1][:limit]
        return otherwise(head, limit) if otherwise is not None else ()

    return draft


def invalid(token: int, *, depth: int = 0, inner: DraftModel | None = None) -> DraftModel:
    """Another draft (default `oracle`) with ``token``, an id outside the vocabulary, put in at ``depth``."""
    source = inner if inner is not None else oracle()

    def draft(head: HeadView, limit: int) -> Sequence[int]:
        tokens = list(source(head, limit))
        if depth < len(tokens):
            tokens[depth] = token
        return tokens

    return draft


def short(count: int, inner: DraftModel | None = None) -> DraftModel:
    """Another draft (default `oracle`), never longer than ``count`` tokens."""
    source = inner if inner is not None else oracle()
    return lambda head, limit: source(head, min(limit, count))


def surplus(count: int, inner: DraftModel | None = None) -> DraftModel:
    """Another draft (default `oracle`) with ``count`` tokens more than asked for."""
    source = inner if inner is not None else oracle()
    return lambda head, limit: source(head, limit + count)
