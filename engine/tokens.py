"""An append-only sequence of tokens that shares its storage between a state and its successors.

A state holds its canonical tokens in a ``TokenLog``. Appending costs O(appended) and leaves the older log as it was: both
look at one list, each with its own length. Only a log that is not the newest one copies when it is appended to (a branch,
after a rewind for instance).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

__all__ = ["TokenLog"]


class TokenLog(Sequence[int]):
    """An immutable view of the first ``len(self)`` tokens of a shared list."""

    __slots__ = ("_items", "_length")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._items: list[int] = list(tokens)
        self._length = len(self._items)

    @classmethod
    def _view(cls, items: list[int], length: int) -> TokenLog:
        log = object.__new__(cls)
        log._items = items
        log._length = length
        return log

    def append(self, tokens: Sequence[int]) -> TokenLog:
        """The log with ``tokens`` behind it; O(len(tokens)) unless this log was appended to before."""
        items = self._items
        if len(items) != self._length:
            items = items[: self._length]
        items.extend(tokens)
        return TokenLog._view(items, self._length + len(tokens))

    def shortened(self, count: int) -> TokenLog:
        """The log without its last ``count`` tokens; O(1)."""
        if not 0 <= count <= self._length:
            raise IndexError(f"cannot take {count} tokens from {self._length}")
        return TokenLog._view(self._items, self._length - count)

    def continues(self, earlier: TokenLog) -> bool:
        """Whether this log surely begins with ``earlier``; O(1), and may say no of an equal copy."""
        return self._items is earlier._items and self._length >= earlier._length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return tuple(self._items[start:stop])
            return tuple(self._items[at] for at in range(start, stop, step))
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError("token index out of range")
        return self._items[index]

    def __iter__(self) -> Iterator[int]:
        items = self._items
        for at in range(self._length):
            yield items[at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenLog):
            return NotImplemented
        if self._length != other._length:
            return False
        return self._items is other._items or self[:] == other[:]

    def __hash__(self) -> int:
        return hash(self[:])

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self[-8:]))
        return f"TokenLog({self._length} tokens: {'..., ' if self._length > 8 else ''}{shown})"
