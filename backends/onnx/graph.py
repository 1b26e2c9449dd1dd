"""One InferenceSession and the lanes on it: each decode session has a lane of its own, with its own bindings and caches.

An InferenceSession may run from several threads at once as long as every run has bindings of its own, and so may lanes; one lane is used by
one thread at a time. What all lanes read (ones for the mask, the positions) is made once and never written.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# onnxruntime carries no type information.
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime

from .caches import CacheShape, RowCache, make_cache
from .memory import Array, Block, allocate
from .providers import Device
from .signature import HeadSignature, Port, TargetSignature

__all__ = ["SLACK", "Bound", "Graph", "Lane", "Placed"]

#: An output and the host memory that it is bound to.
Bound: TypeAlias = tuple[Port, Array]
#: An input or output in the lane's own host memory, and its shape.
Placed: TypeAlias = tuple[Port, tuple[int, ...]]

#: Rows of padding that a cache may hold behind its limit.
SLACK: Final = 32

_HOST: Final = Device("cpu")
_QUIET: Final = 4
_PROBED: Final = 8


class Graph:
    """A session and what was found out about it.

    Args:
        session: the ``InferenceSession``.
        signature: its names.
        sizes: heads and head dimension of each past.
        device: where it runs.
        limit: most rows of a lane, padding not included.
        shift: position id of a row less its place in the cache (0 for a target, 1 for an MTP layer).
        share: past and present in the same memory: True where the graph can, False never, None as True.
    """

    def __init__(
        self,
        session: Any,
        signature: TargetSignature | HeadSignature,
        sizes: tuple[tuple[int, int], ...],
        device: Device,
        limit: int,
        *,
        shift: int = 0,
        share: bool | None = None,
    ) -> None:
        self.session, self.device = session, device
        self._signature, self._limit = signature, limit
        self._shape = CacheShape(signature.cache, sizes, device)
        self._ones = self._constant(signature.mask, np.ones(limit + SLACK, np.int64))
        self._positions = self._constant(signature.positions, np.arange(shift, limit + SLACK + shift))
        self.shared = share is not False and self._keeps_its_length()

    def _constant(self, port: Port | None, values: Array) -> Block | None:
        if port is None:
            return None
        block = allocate(len(values), port.dtype, self.device)
        block.store(values.astype(port.dtype))
        return block

    def _keeps_its_length(self) -> bool:
        # A past with room for eight rows, of which the mask counts four and the new one: GroupQueryAttention gives eight back, a Concat
        # nine, if it does not find mask and past at odds first.
        signature = self._signature
        if signature.mask is None:
            return False
        feeds: dict[str, Array] = {
            signature.tokens.name: np.zeros((1, 1), signature.tokens.dtype),
            signature.mask.name: np.ones((1, 5), signature.mask.dtype),
        }
        if signature.positions is not None:
            feeds[signature.positions.name] = np.full((1, 1), 4, signature.positions.dtype)
        if isinstance(signature, HeadSignature):
            feeds[signature.hidden.name] = np.zeros((1, 1, signature.hidden.shape[2] or 1), signature.hidden.dtype)
        for port, (heads, dim) in zip(signature.cache.pasts, self._shape.sizes, strict=True):
            feeds[port.name] = np.zeros((1, heads, _PROBED, dim), port.dtype)
        options = onnxruntime.RunOptions()
        options.log_severity_level = _QUIET
        try:
            (present,) = self.session.run([signature.cache.presents[0].name], feeds, options)
        except Exception:  # onnxruntime's own errors share no base class
            return False
        return present.shape[2] == _PROBED

    def lane(self) -> Lane:
        """A lane with an empty cache."""
        return Lane(self, make_cache(self._shape, self._limit + SLACK, shared=self.shared))

    def bind_shared(self, bound: _Bindings, base: int, rows: int) -> None:
        """Bind what all lanes read: the mask of ``base + rows`` ones and the positions from ``base`` on."""
        mask, positions = self._signature.mask, self._signature.positions
        if mask is not None and self._ones is not None:
            bound.input(mask, self.device, (1, base + rows), self._ones.pointer)
        if positions is not None and self._positions is not None:
            pointer = self._positions.pointer + base * positions.dtype().itemsize
            bound.input(positions, self.device, (1, rows), pointer)


class _Bindings:
    """An ``IOBinding`` that knows what it has: a step mostly binds again what is bound, and each call costs some microseconds."""

    def __init__(self, session: Any) -> None:
        self.binding: Any = session.io_binding()
        self._known: dict[str, tuple[tuple[int, ...], int]] = {}

    def input(self, port: Port, device: Device, shape: tuple[int, ...], pointer: int) -> None:
        if self._known.get(port.name) != (shape, pointer):
            self.binding.bind_input(port.name, device.kind, device.index, port.dtype, shape, pointer)
            self._known[port.name] = (shape, pointer)

    def output(self, port: Port, device: Device, shape: tuple[int, ...], pointer: int) -> None:
        if self._known.get(port.name) != (shape, pointer):
            self.binding.bind_output(port.name, device.kind, device.index, port.dtype, shape, pointer)
            self._known[port.name] = (shape, pointer)


class _Scratch:
    """Host memory for one input or output, as large as its largest use."""

    def __init__(self, dtype: Any, size: int) -> None:
        self.flat: Array = np.empty(size, dtype)
        self.pointer = self.flat.ctypes.data


class Lane:
    """One decode session's bindings and cache on a graph."""

    def __init__(self, graph: Graph, cache: RowCache) -> None:
        self._graph = graph
        self.cache = cache
        # One per set of outputs: what is bound stays bound, and an output that is not wanted must not be.
        self._bindings: dict[tuple[str, ...], _Bindings] = {}
        self._scratch: dict[str, _Scratch] = {}

    def place(self, port: Port, shape: tuple[int, ...]) -> Array:
        """The lane's memory for one input or output, to be filled before a run or read after it; every run writes it again."""
        return self._place(port, shape).flat[: math.prod(shape)].reshape(shape)

    def _place(self, port: Port, shape: tuple[int, ...]) -> _Scratch:
        size = math.prod(shape)
        found = self._scratch.get(port.name)
        if found is None or found.flat.size < size:
            found = self._scratch[port.name] = _Scratch(port.dtype, size)
        return found

    def run(self, rows: int, kept: int, inputs: Sequence[Placed], outputs: Sequence[Placed], fresh: Sequence[Bound] = ()) -> None:
        """Run ``rows`` rows from the cache's end on and keep the first ``kept`` of them; if this raises, the cache is as before.

        Args:
            rows: how many, padding included; the cache must have room (``reserve``).
            kept: how many are no padding.
            inputs: ports and shapes, filled by way of ``place``.
            outputs: ports and shapes, to be read by way of ``place``.
            fresh: outputs that go to arrays of the caller's.
        """
        graph, cache = self._graph, self.cache
        names = (*(port.name for port, _ in outputs), *(port.name for port, _ in fresh))
        bound = self._bindings.get(names)
        if bound is None:
            bound = self._bindings[names] = _Bindings(graph.session)
        graph.bind_shared(bound, cache.rows, rows)
        cache.bind(bound.binding, rows)
        for port, shape in inputs:
            bound.input(port, _HOST, shape, self._place(port, shape).pointer)
        for port, shape in outputs:
            bound.output(port, _HOST, shape, self._place(port, shape).pointer)
        for port, array in fresh:
            bound.output(port, _HOST, array.shape, array.ctypes.data)
        graph.session.run_with_iobinding(bound.binding)
        if graph.device.kind != "cpu":
            bound.binding.synchronize_outputs()
        cache.advance(rows, kept)
