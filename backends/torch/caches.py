"""Preallocated key/value caches whose trim moves a length.

``RowCache`` is a transformers ``Cache``, so a model's own forward runs on it. Each layer owns one buffer of keys and one of
values, ``[1, heads, capacity, head_dim]``, zeroed when made, and a length; attention sees the first ``length`` rows as a
view. The length is the layer's only record of how much it holds, for attention and for ``view`` alike: it is advanced by
the write itself, so after a forward that failed half-way the layers differ, and the cache holds the rows that *all* have.

Two ways to cut, one meaning:

* ``trim_to(rows)``, ours, names the length to *end with*, as every position in spanfold is absolute;
* ``crop(-n)``, transformers' own method, names the number to *remove*, negated. (In older releases a positive argument
  was the length to end with; 5.24 refuses one. So do we, and also a number beyond what is there, where transformers'
  dynamic cache would silently leave some rows or none.)

Both are O(layers): nothing is copied or erased, the rows behind the length are overwritten later and never read.
Buffers grow by half, in blocks of 256 rows, up to the limit; memory follows use, not the context length.
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# transformers' cache classes carry partial type information.
from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["BLOCK", "RowCache", "RowLayer"]

#: Rows by which a buffer's capacity is rounded up.
BLOCK: Final = 256


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer.

    Args:
        heads, head_dim: of the keys and values.
        limit: most rows the layer may hold.
    """

    is_croppable = True
    is_sliding = False

    def __init__(self, heads: int, head_dim: int, limit: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.limit = limit
        self.length = 0
        self.device = device
        self._keys = torch.zeros((1, heads, 0, head_dim), dtype=dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self.is_initialized = True
        self._show()

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return self._keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes held by both buffers."""
        return self._keys.nbytes + self._values.nbytes

    def _show(self) -> tuple[Tensor, Tensor]:
        # The names under which transformers' classes look for a layer's content.
        keys, values = self._keys[:, :, : self.length], self._values[:, :, : self.length]
        self.keys, self.values = keys, values
        return keys, values

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all. Content and length stay, also where this runs out of memory."""
        if rows <= self.capacity:
            return
        if rows > self.limit:
            raise ValueError(f"{rows} rows exceed the cache's limit of {self.limit}")
        wanted = max(rows, self.capacity + self.capacity // 2)
        wanted = min(-(-wanted // BLOCK) * BLOCK, self.limit)
        shape = (*self._keys.shape[:2], wanted, self._keys.shape[3])
        keys, values = self._keys.new_zeros(shape), self._values.new_zeros(shape)
        keys[:, :, : self.length] = self._keys[:, :, : self.length]
        values[:, :, : self.length] = self._values[:, :, : self.length]
        self._keys, self._values = keys, values
        self._show()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write ``[1, heads, rows, head_dim]`` behind the length, advance it, and return views of all rows up to it."""
        start, end = self.length, self.length + key_states.shape[2]
        self.reserve(end)
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        self.length = end
        return self._show()

    def trim_to(self, rows: int) -> None:
        """End with ``rows`` rows; ValueError, and no change, where there are fewer."""
        if not 0 <= rows <= self.length:
            raise ValueError(f"cannot trim {self.length} rows to {rows}")
        self.length = rows
        self._show()

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
        """Empty the layer and zero its buffers."""
        self._keys.zero_()
        self._values.zero_()
        self.length = 0
        self._show()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffers' shape is known when the layer is made."""

    def offload(self) -> None:
        """Refused: the buffers stay on their device."""
        raise NotImplementedError("RowCache does not offload")

    def prefetch(self) -> None:
        """Refused, as ``offload`` is."""
        raise NotImplementedError("RowCache does not offload")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused: one sequence, no beams."""
        raise NotImplementedError("RowCache holds one sequence: no beams")


class RowCache(Cache):
    """The cache of one sequence: one ``RowLayer`` per layer."""

    layers: list[RowLayer]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, layers: int, heads: int, head_dim: int, limit: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[RowLayer(heads, head_dim, limit, dtype, device) for _ in range(layers)])

    @property
    def rows(self) -> int:
        """Rows that every layer holds."""
        return min(layer.length for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes held by all buffers."""
        return sum(layer.nbytes for layer in self.layers)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all, in every layer."""
        for layer in self.layers:
            layer.reserve(rows)

    def trim_to(self, rows: int) -> None:
        """End with ``rows`` rows in every layer; ValueError, and no change, where a layer has fewer."""
        if not 0 <= rows <= self.rows:
            raise ValueError(f"cannot trim {self.rows} rows to {rows}")
        for layer in self.layers:
            layer.trim_to(rows)
