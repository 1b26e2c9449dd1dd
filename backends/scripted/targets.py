"""Targets: what the scripted model would say after any true prefix.

A target is a fold over tokens and a choice at the end of it. The runtime keeps the folded states where a device keeps its
cache, so a row that should have been trimmed shows in every later choice, as it would on a device.

States are values: `advance` returns a new one and leaves the old one usable. Both calls must cost O(1) for long sessions;
`FunctionTarget`, which folds the whole prefix into a tuple, is meant for short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

__all__ = [
    "FunctionTarget",
    "HashTarget",
    "ListTarget",
    "PrefixFunction",
    "State",
    "Target",
    "as_target",
    "hash_target",
    "list_target",
    "mix",
]

#: Whatever a target folds tokens into; compared with ``==``, never changed in place.
State: TypeAlias = Any

#: A target as a plain function of the true prefix: the chosen id, or one score per id of the vocabulary.
PrefixFunction: TypeAlias = Callable[[tuple[int, ...]], "Sequence[float] | int"]

_MASK = (1 << 64) - 1


def mix(number: int) -> int:
    """Spread 64 bits (the finalizer of splitmix64); the same on every platform and in every run."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


class Target(Protocol):
    """A language model reduced to what the engine can see of it."""

    def start(self) -> State:
        """The state of an empty cache."""
        ...

    def advance(self, state: State, token: int) -> State:
        """The state after one more row. ``state`` itself stays valid."""
        ...

    def choose(self, state: State, masked: Collection[int]) -> int:
        """The best id that is not masked (the lowest one on a tie). Masking everything raises ValueError."""
        ...

    def scores(self, state: State) -> Sequence[float]:
        """One score per id, such that ``choose`` is their argmax."""
        ...


def _follow(best: int, vocabulary: int, masked: Collection[int]) -> int:
    """The first id from ``best`` on, cyclically, that is not masked: the ranking of a target that names one id only."""
    if best not in masked:
        return best
    for step in range(1, vocabulary):
        token = (best + step) % vocabulary
        if token not in masked:
            return token
    raise ValueError(f"all {vocabulary} ids are masked: nothing can be chosen")


def _ranking(best: int, vocabulary: int) -> tuple[float, ...]:
    return tuple(-float((token - best) % vocabulary) for token in range(vocabulary))


@attrs.frozen
class HashTarget:
    """Chooses by a hash of every token fed so far: two prefixes that differ anywhere part for good.

    Attributes:
        seed: another seed, another model.
        vocabulary: number of ids. The next best after id ``b`` is ``b + 1``, cyclically.
    """

    seed: int
    vocabulary: int

    def start(self) -> int:
        """The hash of nothing."""
        return mix(self.seed + 1)

    def advance(self, state: int, token: int) -> int:
        """One more token hashed in."""
        state = ((state ^ (token + 1)) * 0x9E3779B97F4A7C15) & _MASK
        return state ^ (state >> 29)

    def choose(self, state: int, masked: Collection[int]) -> int:
        """The state, mixed, modulo the vocabulary."""
        best = mix(state) % self.vocabulary
        return best if not masked else _follow(best, self.vocabulary, masked)

    def scores(self, state: int) -> tuple[float, ...]:
        """0 for the chosen id, -1 for the next best, and so on."""
        return _ranking(mix(state) % self.vocabulary, self.vocabulary)


@attrs.frozen
class ListTarget:
    """Follows a fixed continuation, over and over; a prefix that left it is answered by a hash instead.

    Attributes:
        tokens: ``tokens[i]`` is the choice for the absolute index ``prompt + i`` (modulo their number).
        prompt: number of tokens before the continuation; they may be anything.
        vocabulary: number of ids.
    """

    tokens: tuple[int, ...]
    prompt: int
    vocabulary: int

    def start(self) -> int:
        """Row count 0. While the continuation is followed a state is the number of rows; after that a negative hash."""
        return 0

    def advance(self, state: int, token: int) -> int:
        """One row more, or off the track."""
        at = state - self.prompt
        if state >= 0 and (at < 0 or self.tokens[at % len(self.tokens)] == token):
            return state + 1
        return -1 - mix((state * 0x9E3779B97F4A7C15 + token + 1) & _MASK)

    def choose(self, state: int, masked: Collection[int]) -> int:
        """The continuation's next token; before its beginning, its first one."""
        best = self._best(state)
        return best if not masked else _follow(best, self.vocabulary, masked)

    def scores(self, state: int) -> tuple[float, ...]:
        """0 for the chosen id, -1 for the next best, and so on."""
        return _ranking(self._best(state), self.vocabulary)

    def _best(self, state: int) -> int:
        if state < 0:
            return mix(-1 - state) % self.vocabulary
        return self.tokens[max(state - self.prompt, 0) % len(self.tokens)]


@attrs.frozen
class FunctionTarget:
    """A plain function of the true prefix. A state is the prefix itself, so a row costs O(prefix).

    Attributes:
        function: takes the prefix as a tuple; returns the chosen id, or ``vocabulary`` scores.
        vocabulary: number of ids.
    """

    function: PrefixFunction
    vocabulary: int

    def start(self) -> tuple[int, ...]:
        """The empty prefix."""
        return ()

    def advance(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        """The prefix with one more token."""
        return (*state, token)

    def choose(self, state: tuple[int, ...], masked: Collection[int]) -> int:
        """The returned id (if masked: the next one, cyclically), or the argmax of the scores (lowest id on a tie)."""
        answer = self.function(state)
        if isinstance(answer, int):
            return _follow(self._checked(answer), self.vocabulary, masked)
        best = None
        for token, score in enumerate(answer):
            if token not in masked and (best is None or score > answer[best]):
                best = token
        if best is None:
            raise ValueError(f"all {self.vocabulary} ids are masked: nothing can be chosen")
        return best

    def scores(self, state: tuple[int, ...]) -> tuple[float, ...]:
        """The function's scores, or the ranking that its single id stands for."""
        answer = self.function(state)
        return _ranking(self._checked(answer), self.vocabulary) if isinstance(answer, int) else tuple(answer)

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocabulary:
            raise ValueError(f"the target chose id {token}, outside a vocabulary of {self.vocabulary}")
        return token


def hash_target(seed: int = 0, vocabulary: int = 32) -> HashTarget:
    """A model that depends on every token of its prefix, in O(1) per row."""
    return HashTarget(seed, vocabulary)


def list_target(tokens: Sequence[int], *, prompt: int = 1, vocabulary: int | None = None) -> ListTarget:
    """A model that continues any prompt of ``prompt`` tokens with ``tokens``, over and over, in O(1) per row.

    Raises:
        ValueError: no tokens, or one outside the vocabulary (default: just large enough).
    """
    fixed = tuple(tokens)
    size = max(fixed, default=0) + 1 if vocabulary is None else vocabulary
    if not fixed or not all(0 <= token < size for token in fixed):
        raise ValueError(f"list_target needs at least one token and only ids below {size}, not {fixed!r}")
    return ListTarget(fixed, prompt, size)


def as_target(target: Target | PrefixFunction, vocabulary: int) -> Target:
    """A target as it is, or a function of the prefix made into one."""
    if isinstance(target, HashTarget | ListTarget | FunctionTarget) or hasattr(target, "advance"):
        return target  # pyright: ignore[reportReturnType]
    if callable(target):
        return FunctionTarget(target, vocabulary)
    raise TypeError(f"a target is a Target or a function of the prefix, not {target!r}")
