"""Preallocated key/value caches whose trim moves a length.

``RowCache`` is a transformers ``Cache``, so a model's own forward runs on it. One store holds the rows of all layers, ``[layers,
rows, 2, heads, head_dim]`` with a row's keys before its values, zeroed when made; each layer has a length, and attention sees the
first ``length`` rows as a view. The length is the layer's only record of how much it holds, for attention and for ``view``
alike: it is advanced by the write itself, so after a forward that failed half-way the layers differ, and the cache holds the
rows that *all* have.

Two ways to cut, one meaning:

* ``trim_to(rows)``, ours, names the length to *end with*, as every position in spanfold is absolute;
* ``crop(-n)``, transformers' own method, names the number to *remove*, negated. (In older releases a positive argument
  was the length to end with; 5.24 refuses one. So do we, and also a number beyond what is there, where transformers'
  dynamic cache would silently leave some rows or none.)

Both are O(layers): nothing is copied or erased, the rows behind the length are overwritten later and never read. (``window``,
which our own path reads through, shows a rounded number of rows; it zeroes what lies behind those being written first.)
The store grows by half, in blocks of 256 rows, up to the limit; memory follows use, not the context length.
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# transformers' cache classes carry partial type information.
from __future__ import annotations

from typing import Any, Final

import torch
from attrs import frozen
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["BLOCK", "PADDING", "STEP", "RowCache", "RowLayer", "Window"]

#: Rows by which the capacity is rounded up.
BLOCK: Final = 256
#: Rows to which a window's length is rounded up, unless a cache is made with another number.
STEP: Final = 64
#: Most rows of padding behind the limit.
PADDING: Final = 64


class _Store:
    # What layers share. It does not know them: a cycle would keep the memory of a dropped session until the next collection.
    def __init__(self, layers: int, heads: int, head_dim: int, limit: int, dtype: torch.dtype, device: torch.device, step: int) -> None:
        self.rows = torch.zeros((layers, 0, 2, heads, head_dim), dtype=dtype, device=device)
        self.limit, self.step = limit, step
        # Behind the capacity, for padding and for the rounding of a window. Never canonical.
        self.slack = PADDING + step

    @property
    def capacity(self) -> int:
        return max(self.rows.shape[1] - self.slack, 0)

    def reserve(self, rows: int) -> None:
        if rows <= self.capacity:
            return
        if rows > self.limit:
            raise ValueError(f"{rows} rows exceed the cache's limit of {self.limit}")
        wanted = max(rows, self.capacity + self.capacity // 2)
        wanted = min(-(-wanted // BLOCK) * BLOCK, self.limit)
        grown = self.rows.new_zeros((self.rows.shape[0], wanted + self.slack, *self.rows.shape[2:]))
        grown[:, : self.rows.shape[1]] = self.rows
        self.rows = grown


@frozen
class Window:
    """What one forward of our own path works on; one entry per layer, all of them views of the store.

    Attributes:
        base: rows before it.
        length: keys that attention sees, a multiple of the cache's step.
        write: ``[rows, 2, heads, head_dim]``, where keys and values of the new rows go.
        keys, values: ``[batch, heads, length, head_dim]``.
    """

    base: int
    length: int
    write: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer: its place in the store, and its length."""

    is_croppable = True
    is_sliding = False

    def __init__(self, store: _Store, index: int) -> None:
        super().__init__()
        self._store, self._index = store, index
        self.limit = store.limit
        self.length = 0
        self.device = store.rows.device
        self.is_initialized = True

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return self._store.capacity

    @property
    def nbytes(self) -> int:
        """Bytes held for this layer."""
        return self._store.rows[self._index].nbytes

    @property
    def _keys(self) -> Tensor:
        return self._store.rows[self._index, :, 0].transpose(0, 1).unsqueeze(0)

    @property
    def _values(self) -> Tensor:
        return self._store.rows[self._index, :, 1].transpose(0, 1).unsqueeze(0)

    # The names under which transformers' classes look for a layer's content; they are always views of the store.
    @property
    def keys(self) -> Tensor:
        """``[1, heads, length, head_dim]``."""
        return self._keys[:, :, : self.length]

    @keys.setter
    def keys(self, value: Tensor | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pass

    @property
    def values(self) -> Tensor:
        """As ``keys``."""
        return self._values[:, :, : self.length]

    @values.setter
    def values(self, value: Tensor | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pass

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write ``[1, heads, rows, head_dim]`` behind the length, advance it, and return views of all rows up to it."""
        start, end = self.length, self.length + key_states.shape[2]
        self._store.reserve(end)
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        self.length = end
        return self.keys, self.values

    def trim_to(self, rows: int) -> None:
        """End with ``rows`` rows; ValueError, and no change, where there are fewer."""
        if not 0 <= rows <= self.length:
            raise ValueError(f"cannot trim {self.length} rows to {rows}")
        self.length = rows

    def crop(self, tokens_to_remove: int) -> None:
        """The cut as transformers has it: ``-n`` removes the last n rows."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of rows to remove, not {tokens_to_remove}")
        self.trim_to(self.length + tokens_to_remove)

    def get_seq_length(self) -> int:
        """The layer's length."""
        return self.length

    def get_max_length(self) -> int:
        """The layer's limit."""
        return self.limit

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number and offset of the keys that the next ``query_length`` rows are masked against."""
        return self.length + query_length, 0

    def reset(self) -> None:
        """Empty the layer and zero its rows."""
        self._store.rows[self._index].zero_()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the store's shape is known when the layer is made."""

    def offload(self) -> None:
        """Refused: the rows stay on their device."""
        raise NotImplementedError("RowCache does not offload")

    def prefetch(self) -> None:
        """Refused, as ``offload`` is."""
        raise NotImplementedError("RowCache does not offload")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused: one sequence, no beams."""
        raise NotImplementedError("RowCache holds one sequence: no beams")


class RowCache(Cache):
    """The cache of one sequence: one ``RowLayer`` per layer.

    Args:
        layers, heads, head_dim: of the keys and values.
        limit: most rows it may hold.
        step: rows to which a window's length is rounded up.
    """

    layers: list[RowLayer]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, layers: int, heads: int, head_dim: int, limit: int, dtype: torch.dtype, device: torch.device, step: int = STEP
    ) -> None:
        self._store = _Store(layers, heads, head_dim, limit, dtype, device, step)
        super().__init__(layers=[RowLayer(self._store, index) for index in range(layers)])

    @property
    def rows(self) -> int:
        """Rows that every layer holds."""
        return min(layer.length for layer in self.layers)

    @property
    def floor(self) -> int:
        """The fewest rows that ``trim_to`` can get back to: none."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes held by the store."""
        return self._store.rows.nbytes

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all. Content and lengths stay, also where this runs out of memory."""
        self._store.reserve(rows)

    def window(self, base: int, rows: int, batch: int) -> Window:
        """Views for a forward that writes ``rows`` rows from ``base`` on, of which ``PADDING`` may lie past the capacity.

        What lies behind them in the window is zeroed: it is masked, but zero times what a failed forward left there might not be zero.
        """
        store, end = self._store.rows, base + rows
        length = -(-end // self._store.step) * self._store.step
        if length > end:
            store[:, end:length] = 0
        shown = store[:, :length].permute(2, 0, 3, 1, 4).unsqueeze(2)  # [2, layers, 1, heads, length, head_dim]
        keys, values = shown.expand(-1, -1, batch, -1, -1, -1).unbind(0)
        return Window(base, length, store[:, base:end].unbind(0), keys.unbind(0), values.unbind(0))

    def advance(self, rows: int) -> None:
        """Every layer holds ``rows`` rows now: what a forward wrote through a window."""
        for layer in self.layers:
            layer.length = rows

    def trim_to(self, rows: int) -> None:
        """End with ``rows`` rows in every layer; ValueError, and no change, where a layer has fewer."""
        if not 0 <= rows <= self.rows:
            raise ValueError(f"cannot trim {self.rows} rows to {rows}")
        for layer in self.layers:
            layer.trim_to(rows)
