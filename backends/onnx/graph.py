"""One InferenceSession and the lanes on it: each decode session has a lane of its own, with its own bindings and caches.

An InferenceSession may run from several threads at once as long as every run has bindings of its own, and so may lanes; one lane is used by
one thread at a time. What all lanes read (ones for the mask, the positions) is made once and never written.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# onnxruntime carries no type information.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime

from .caches import CacheShape, RowCache, make_cache
from .memory import Array, Block, allocate
from .providers import Device
from .signature import HeadSignature, Port, TargetSignature

__all__ = ["SLACK", "Bound", "Graph", "Lane"]

#: An input or output and the host memory that it is bound to.
Bound: TypeAlias = tuple[Port, Array]

#: Rows of padding that a cache may hold behind its limit.
SLACK: Final = 32

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

    def bind_shared(self, binding: Any, base: int, rows: int) -> None:
        """Bind what all lanes read: the mask of ``base + rows`` ones and the positions from ``base`` on."""
        kind, index = self.device.kind, self.device.index
        mask, positions = self._signature.mask, self._signature.positions
        if mask is not None and self._ones is not None:
            binding.bind_input(mask.name, kind, index, mask.dtype, (1, base + rows), self._ones.pointer)
        if positions is not None and self._positions is not None:
            pointer = self._positions.pointer + base * positions.dtype().itemsize
            binding.bind_input(positions.name, kind, index, positions.dtype, (1, rows), pointer)


class Lane:
    """One decode session's bindings and cache on a graph."""

    def __init__(self, graph: Graph, cache: RowCache) -> None:
        self._graph = graph
        self.cache = cache
        # One per set of outputs: what is bound stays bound, and an output that is not wanted must not be.
        self._bindings: dict[tuple[str, ...], Any] = {}

    def run(self, rows: int, kept: int, inputs: Sequence[Bound], outputs: Sequence[Bound]) -> None:
        """Run ``rows`` rows from the cache's end on and keep the first ``kept`` of them; if this raises, the cache is as before.

        Args:
            rows: how many, padding included; the cache must have room (``reserve``).
            kept: how many are no padding.
            inputs: host arrays, contiguous, in the ports' types.
            outputs: host arrays that are written.
        """
        graph, cache = self._graph, self.cache
        names = tuple(port.name for port, _ in outputs)
        binding = self._bindings.get(names)
        if binding is None:
            binding = self._bindings[names] = graph.session.io_binding()
        graph.bind_shared(binding, cache.rows, rows)
        cache.bind(binding, rows)
        for port, array in inputs:
            binding.bind_input(port.name, "cpu", 0, port.dtype, array.shape, array.ctypes.data)
        for port, array in outputs:
            binding.bind_output(port.name, "cpu", 0, port.dtype, array.shape, array.ctypes.data)
        graph.session.run_with_iobinding(binding)
        if graph.device.kind != "cpu":
            binding.synchronize_outputs()
        cache.advance(rows, kept)
