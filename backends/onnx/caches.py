"""Preallocated key/value caches of one sequence, bound to a graph's past and present.

Two kinds of graph, and a load finds out which one it has (``graph.py``):

* **shared**: past and present are the same memory, as many rows as there is room for, and the graph is told how many of them count (the
  attention mask's length, which GroupQueryAttention reads). A trim moves a number, nothing is copied.
* **appended**: the present is the past and the new rows behind it (a Concat). Two blocks take turns, one the past, one the present. A
  trim moves a number too; the rows that stay are moved together once, before the next forward, because the graph wants them dense.

Both grow by doubling up to a limit; what lies behind the rows was zeroed when made or written by a forward, and is never read. ``rows``
is what the next forward is bound to: it changes by a forward that returned and by a trim, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from attrs import frozen

from .memory import Array, Block, allocate
from .providers import Device
from .signature import CacheNames

__all__ = ["BLOCK", "AppendedCache", "CacheShape", "RowCache", "SharedCache", "make_cache"]

#: Rows of the first allocation; later ones double it.
BLOCK: Final = 256


@frozen
class CacheShape:
    """The caches' shape: for each past, heads and head dimension."""

    names: CacheNames
    sizes: tuple[tuple[int, int], ...]
    device: Device

    def elements(self, rows: int) -> int:
        """Elements of one block of so many rows."""
        return sum(heads * dim for heads, dim in self.sizes) * rows

    def views(self, flat: Array, capacity: int, rows: int | None = None) -> list[Array]:
        """Each cache in a block: ``[heads, capacity, dim]``; or ``[heads, rows, dim]``, dense at the start of its place."""
        found: list[Array] = []
        start = 0
        for heads, dim in self.sizes:
            shown = capacity if rows is None else rows
            found.append(flat[start : start + heads * shown * dim].reshape(heads, shown, dim))
            start += heads * capacity * dim
        return found


class RowCache(Protocol):
    """The cache of one sequence."""

    @property
    def rows(self) -> int:
        """Rows that it holds."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all. Content stays, also where this runs out of memory."""
        ...

    def bind(self, binding: Any, rows: int) -> None:
        """Bind past and present for a forward of ``rows`` new rows."""
        ...

    def advance(self, rows: int, kept: int) -> None:
        """A forward of ``rows`` rows returned, of which the first ``kept`` are kept (the others were padding)."""
        ...

    def trim_to(self, rows: int) -> None:
        """End with ``rows`` rows; ValueError, and no change, where there are fewer."""
        ...


def _bind(binding: Any, shape: CacheShape, what: Sequence[Any], output: bool, block: Block, capacity: int, rows: int) -> None:
    device, pointer = shape.device, block.pointer
    add = binding.bind_output if output else binding.bind_input
    for port, (heads, dim) in zip(what, shape.sizes, strict=True):
        add(port.name, device.kind, device.index, port.dtype, (1, heads, rows, dim), pointer)
        pointer += heads * capacity * dim * port.dtype().itemsize


def _room(rows: int, capacity: int, limit: int) -> int:
    wanted = max(capacity, BLOCK)
    while wanted < rows:
        wanted *= 2
    return max(min(wanted, limit), rows)


class _Cache:
    def __init__(self, shape: CacheShape, limit: int) -> None:
        self._shape, self._limit = shape, limit
        self._capacity: int = 0
        self._rows: int = 0

    @property
    def rows(self) -> int:
        return self._rows

    def _check_room(self, rows: int) -> None:
        if rows > self._limit:
            raise ValueError(f"{rows} rows exceed the cache's limit of {self._limit}")

    def trim_to(self, rows: int) -> None:
        if not 0 <= rows <= self._rows:
            raise ValueError(f"cannot trim {self._rows} rows to {rows}")
        self._rows = rows


class SharedCache(_Cache):
    """Past and present in one place."""

    def __init__(self, shape: CacheShape, limit: int) -> None:
        super().__init__(shape, limit)
        self._block: Block | None = None
        self._bound: list[Any] = []

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self._block is None else self._block.nbytes

    def reserve(self, rows: int) -> None:
        """See ``RowCache``."""
        if rows <= self._capacity:
            return
        self._check_room(rows)
        capacity = _room(rows, self._capacity, self._limit)
        grown = allocate(self._shape.elements(capacity), self._shape.names.dtype, self._shape.device)
        if self._block is not None and self._rows:
            fresh = grown.load()
            for old, new in zip(self._shape.views(self._block.load(), self._capacity), self._shape.views(fresh, capacity), strict=True):
                new[:, : self._rows] = old[:, : self._rows]
            grown.store(fresh)
        self._block, self._capacity, self._bound = grown, capacity, []

    def bind(self, binding: Any, rows: int) -> None:
        """See ``RowCache``. Bound once per block."""
        if self._block is None or any(one is binding for one in self._bound):
            return
        names = self._shape.names
        _bind(binding, self._shape, names.pasts, False, self._block, self._capacity, self._capacity)
        _bind(binding, self._shape, names.presents, True, self._block, self._capacity, self._capacity)
        self._bound.append(binding)

    def advance(self, rows: int, kept: int) -> None:
        """See ``RowCache``."""
        self._rows += kept


class AppendedCache(_Cache):
    """Past and present in two places that take turns."""

    def __init__(self, shape: CacheShape, limit: int) -> None:
        super().__init__(shape, limit)
        self._blocks: tuple[Block, ...] = ()  # past and present of the next forward
        self._dense: int = 0  # rows as they lie in the first block; at least ``rows``

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(block.nbytes for block in self._blocks)

    def reserve(self, rows: int) -> None:
        """See ``RowCache``."""
        if rows <= self._capacity:
            return
        self._check_room(rows)
        capacity = _room(rows, self._capacity, self._limit)
        elements = self._shape.elements(capacity)
        grown = [allocate(elements, self._shape.names.dtype, self._shape.device) for _ in range(2)]
        if self._blocks and self._rows:
            self._move(self._blocks[0], self._capacity, grown[0], capacity)
        self._blocks, self._capacity, self._dense = tuple(grown), capacity, self._rows

    def _move(self, source: Block, capacity: int, target: Block, room: int) -> None:
        fresh = target.load()
        old, new = self._shape.views(source.load(), capacity, self._dense), self._shape.views(fresh, room, self._rows)
        for one, other in zip(old, new, strict=True):
            other[:] = one[:, : self._rows]
        target.store(fresh)

    def bind(self, binding: Any, rows: int) -> None:
        """See ``RowCache``. Bound anew for every forward; moves the rows together where a trim came before."""
        first, second = self._blocks
        if self._dense > self._rows:
            if self._rows:
                self._move(first, self._capacity, second, self._capacity)
                first, second = second, first
            self._blocks, self._dense = (first, second), self._rows
        names = self._shape.names
        _bind(binding, self._shape, names.pasts, False, first, self._capacity, self._rows)
        _bind(binding, self._shape, names.presents, True, second, self._capacity, self._rows + rows)

    def advance(self, rows: int, kept: int) -> None:
        """See ``RowCache``."""
        first, second = self._blocks
        self._blocks = (second, first)
        self._dense = self._rows + rows
        self._rows += kept


def make_cache(shape: CacheShape, limit: int, *, shared: bool) -> RowCache:
    """An empty cache of the kind that the graph takes, of at most ``limit`` rows, padding included."""
    return SharedCache(shape, limit) if shared else AppendedCache(shape, limit)
