"""The cache of any transformers model, with a way back: transformers' own layers, and what of them must be kept for a rollback.

Three kinds of layers, and how each gets back to fewer rows:

* full attention (``GrowingLayer``: transformers' dynamic layer in buffers with room to spare): the length moves;
* a sliding window (transformers' own layer, recording its past): the last rows are cut off. It keeps ``SLACK`` rows more than its
  window needs, and is cut down to them after every forward whose rows are canonical, so its memory follows the window;
* a recurrent state (transformers' own layer): rows cannot be taken out of it. It is copied before a span; a cut below
  the span's end puts the copy back, and the kept rows must be computed again.

``Cache.crop`` of transformers is not used: it takes minus the number to remove, leaves recurrent states as they are, and forgets
the recorded past. Whether all this is a rollback for a given model is not assumed but measured (``rollback``).
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' cache classes carry partial type information.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen
from torch import Tensor
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from ...engine.values import Rollback
from .caches import BLOCK

__all__ = ["SLACK", "GrowingLayer", "ModelCache"]

#: Rows that a windowed layer keeps beyond its window: so far a cut of canonical rows reaches.
SLACK: Final = 64


class GrowingLayer(DynamicLayer):
    """Keys and values ``[1, heads, rows, dim]`` in buffers that grow by half, in blocks of 256 rows; attention sees the rows as views.

    Keys and values may differ in heads and dim, which are those of the first rows written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Tensor | None:
        """The rows' keys; None before the first."""
        return None if self._buffers is None else self._buffers[0][:, :, : self.length]

    @keys.setter
    def keys(self, value: Tensor | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pass

    @property
    def values(self) -> Tensor | None:
        """The rows' values; None before the first."""
        return None if self._buffers is None else self._buffers[1][:, :, : self.length]

    @values.setter
    def values(self, value: Tensor | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pass

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return 0 if self._buffers is None else sum(buffer.nbytes for buffer in self._buffers)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take heads, dims, dtype and device from the first rows."""
        self.device = key_states.device
        self._buffers = (key_states[:, :, :0].clone(), value_states[:, :, :0].clone())
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write rows behind the length, advance it, and return views of all of them."""
        if self._buffers is None:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self.reserve(end)
        assert self._buffers is not None
        keys, values = self._buffers
        keys[:, :, self.length : end] = key_states
        values[:, :, self.length : end] = value_states
        self.length = end
        return keys[:, :, :end], values[:, :, :end]

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all. Before the first rows nothing is known of their shape, and nothing happens."""
        if self._buffers is None or rows <= self._buffers[0].shape[2]:
            return
        room = max(rows, self._buffers[0].shape[2] * 3 // 2)
        room = -(-room // BLOCK) * BLOCK
        grown: list[Tensor] = []
        for buffer in self._buffers:
            more = buffer.new_empty((*buffer.shape[:2], room, buffer.shape[3]))
            more[:, :, : self.length] = buffer[:, :, : self.length]
            grown.append(more)
        self._buffers = (grown[0], grown[1])

    def get_seq_length(self) -> int:
        """The layer's length."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """The cut as transformers has it: ``-n`` removes the last n rows."""
        if not 0 <= -tokens_to_remove <= self.length:
            raise ValueError(f"cannot remove {-tokens_to_remove} of {self.length} rows")
        self.length += tokens_to_remove

    def reset(self) -> None:
        """Empty the layer."""
        self.length, self._buffers, self.is_initialized = 0, None, False


@frozen
class _State:
    """What a recurrent layer holds: its tensors copied, its flags."""

    tensors: dict[str, dict[int, Tensor | None]]
    flags: dict[str, dict[int, Any]]

    @classmethod
    def of(cls, layer: Any) -> _State:
        tensors = {name: {i: None if one is None else one.clone() for i, one in getattr(layer, name).items()} for name in _TENSORS}
        return cls(tensors, {name: dict(getattr(layer, name)) for name in _FLAGS})

    def put_back(self, layer: Any) -> None:
        for name, value in (self.tensors | self.flags).items():
            setattr(layer, name, dict(value))


_TENSORS: Final = ("conv_states", "recurrent_states")
_FLAGS: Final = ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state", "conv_kernel_size")


@frozen
class _Saved:
    """The recurrent layers as they were before a span, and the rows before and after it."""

    base: int
    end: int
    states: list[_State]


class ModelCache:
    """The cache of one sequence.

    Args:
        config: the text config whose layers it is for.
        lags: per layer, rows by which it holds fewer than the first one (the layers of a chained head); (): none does.

    Attributes:
        library: what the model's modules are given.
    """

    def __init__(self, config: Any, lags: Sequence[int] = ()) -> None:
        self.library = DynamicCache(config=config)
        layers: list[Any] = self.library.layers
        for at, layer in enumerate(layers):
            if type(layer) is DynamicLayer:
                layers[at] = GrowingLayer()
            elif isinstance(layer, DynamicSlidingWindowLayer):
                layer.activate_past_recording()
        self._lags = dict(enumerate(lags))
        self._attention: list[tuple[int, Any]] = [(at, layer) for at, layer in enumerate(layers) if isinstance(layer, CacheLayerMixin)]
        self._recurrent: list[Any] = [layer for layer in layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
        self._saved: _Saved | None = None
        self._dirty = False

    @property
    def rows(self) -> int:
        """Rows that every layer holds (every first one, where layers lag)."""
        return min((layer.get_seq_length() for at, layer in self._attention if not self._lags.get(at)), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, a copy for the way back included."""
        total = 0
        for _, layer in self._attention:
            own = getattr(layer, "nbytes", None)
            total += sum(one.nbytes for one in (layer.keys, layer.values) if one is not None) if own is None else own
        for layer in self._recurrent:
            total += _size(layer.conv_states) + _size(layer.recurrent_states)
        if self._saved is not None:
            total += sum(_size(tensors) for state in self._saved.states for tensors in state.tensors.values())
        return total

    @property
    def widest_window(self) -> int:
        """Rows of the widest sliding window; 0 without one."""
        return max((_window(layer) or 0 for _, layer in self._attention), default=0)

    @property
    def way_back(self) -> tuple[Rollback, str]:
        """How far back ``cut`` reaches by the kinds of the layers, and why not everywhere."""
        if self._recurrent:
            share = f"{len(self._recurrent)} of {len(self.library.layers)} layers are recurrent"
            return "checkpoint", f"{share}: kept rows are computed again after a rejection"
        if self.widest_window:
            return "checkpoint", f"sliding window of {self.widest_window}: rows before the window and {SLACK} more are not kept"
        return "crop", ""

    @property
    def floor(self) -> int:
        """The fewest rows that ``cut`` can get back to now."""
        floor = 0
        for at, layer in self._attention:
            if _window(layer) is not None:
                stored = 0 if layer.keys is None else layer.keys.shape[2]
                dropped = layer.get_seq_length() - stored
                if dropped:
                    floor = max(floor, dropped + _window(layer) - 1 + self._lags.get(at, 0))
        if self._recurrent:
            floor = max(floor, self.rows if self._saved is None else self._saved.base)
        return min(floor, self.rows)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all. Content and lengths stay, also where this runs out of memory."""
        for _, layer in self._attention:
            if isinstance(layer, GrowingLayer):
                layer.reserve(rows)

    def before(self, rows: int, canonical: bool) -> None:
        """A forward over ``rows`` rows follows; ``canonical``: they stay, whatever comes."""
        self._dirty = bool(self._recurrent) and canonical
        if not canonical and self._recurrent:
            self._saved = _Saved(self.rows, self.rows + rows, [_State.of(layer) for layer in self._recurrent])

    def settled(self) -> None:
        """Every row is canonical: no way back is needed beyond ``SLACK`` rows."""
        self._saved, self._dirty = None, False
        for _, layer in self._attention:
            window = _window(layer)
            if window is not None and layer.keys is not None and layer.keys.shape[2] > window - 1 + SLACK:
                keep = window - 1 + SLACK
                # A copy: a view would keep the rows before it.
                layer.keys, layer.values = layer.keys[:, :, -keep:].clone(), layer.values[:, :, -keep:].clone()
        for layer in self._recurrent:
            for at, one in layer.conv_states.items():
                kernel = layer.conv_kernel_size[at]
                if one is not None and kernel is not None and one.shape[-1] > kernel:
                    layer.conv_states[at] = one[..., -kernel:].clone()

    def cut(self, rows: int) -> int:
        """End with ``rows`` rows, and return how many of them must be computed again: the last ones, which are gone.

        ValueError, and no change, where it cannot get back so far. A forward that failed half-way may have left the layers with
        different numbers of rows.
        """
        if self._dirty and self._saved is None:
            raise ValueError(f"a forward over canonical rows failed: the recurrent state cannot get back to {rows} rows")
        if not self.floor <= rows <= self.rows:
            raise ValueError(f"cannot cut {self.rows} rows to {rows}, only to {self.floor} or more")
        again, saved = 0, self._saved
        if saved is not None and rows != saved.end:
            for layer, state in zip(self._recurrent, saved.states, strict=True):
                state.put_back(layer)
            self._saved = None
            again, rows = rows - saved.base, saved.base
        for at, layer in self._attention:
            _shorten(layer, max(rows - self._lags.get(at, 0), 0))
        return again

    def level(self, rows: int) -> None:
        """End with ``rows`` rows in every layer, also in one that lags."""
        for _, layer in self._attention:
            _shorten(layer, rows)

    def trim_to(self, rows: int) -> None:
        """``cut`` where nothing needs to be computed again; ValueError, and no change, where something would."""
        if self._recurrent and rows < self.rows:
            raise ValueError(f"cannot trim {self.rows} rows of a recurrent state to {rows}")
        self.cut(rows)


def _window(layer: Any) -> Any:
    return layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None


def _shorten(layer: Any, rows: int) -> None:
    extra = layer.get_seq_length() - rows
    if extra <= 0:
        return
    if _window(layer) is None:
        layer.crop(-extra)
        return
    # Not the layer's own crop, which also forgets the rows that a later cut may need.
    layer.keys, layer.values = layer.keys[:, :, :-extra], layer.values[:, :, :-extra]
    layer.cumulative_length -= extra


def _size(tensors: dict[int, Tensor | None]) -> int:
    return sum(one.nbytes for one in tensors.values() if one is not None)
