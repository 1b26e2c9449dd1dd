"""Memory on the session's device, whose address is bound to a graph's inputs and outputs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
# onnxruntime carries no type information.
from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .providers import Device

__all__ = ["Array", "Block", "allocate"]

Array: TypeAlias = NDArray[Any]


class Block(Protocol):
    """A flat piece of memory, zeroed when made."""

    @property
    def pointer(self) -> int:
        """Its address on its device."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...

    def load(self) -> Array:
        """Its elements: a view where it lies on the host, else a copy."""
        ...

    def store(self, values: Array) -> None:
        """Replace all elements."""
        ...


class _HostBlock:
    def __init__(self, elements: int, dtype: Any) -> None:
        self._values: Array = np.zeros(elements, dtype)

    @property
    def pointer(self) -> int:
        return self._values.ctypes.data

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def load(self) -> Array:
        return self._values

    def store(self, values: Array) -> None:
        if values is not self._values:
            self._values[:] = values


class _DeviceBlock:
    def __init__(self, elements: int, dtype: Any, device: Device) -> None:
        zeros = np.zeros(elements, dtype)
        self.nbytes = zeros.nbytes
        self._value: Any = onnxruntime.OrtValue.ortvalue_from_numpy(zeros, device.kind, device.index)

    @property
    def pointer(self) -> int:
        return int(self._value.data_ptr())

    def load(self) -> Array:
        return self._value.numpy()

    def store(self, values: Array) -> None:
        self._value.update_inplace(values)


def allocate(elements: int, dtype: Any, device: Device) -> Block:
    """Zeroed memory; MemoryError or ONNX Runtime's own error where there is none."""
    return _HostBlock(elements, dtype) if device.kind == "cpu" else _DeviceBlock(elements, dtype, device)
