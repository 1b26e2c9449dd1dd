"""Matrix products for few rows: weights in the layout in which the CPU reads them once.

A decode step is bound by reading the weights. ``F.linear`` with 1 to 8 rows takes two to three times that time on a CPU, since its
kernel lays each matrix out anew on every call; oneDNN's own layout, made once when the model is loaded, takes far less. It also makes
a row's result independent of how many rows are beside it (from two rows on), which no other product that was tried does.
docs/explanation/torch-path.md has the numbers.

The operators are those that ``torch.compile`` packs weights with. They are not a documented interface of torch, so whether
they work here is tried out (``can_pack``), not assumed.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's operators are found at run time.
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Matrix", "Packed", "Plain", "can_pack", "matrix"]

_OPS: Final[Any] = torch.ops.mkldnn
#: The number of rows that a layout is chosen for; any number may be multiplied.
_ROWS: Final = 4


class Matrix(Protocol):
    """``x W^T + b`` for ``[rows, in]`` -> ``[rows, out]``."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""
        ...

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, plus ``[rows, out]``."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it holds beyond the model's own tensors."""
        ...


class Plain:
    """The weight as it is."""

    nbytes = 0

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See ``Matrix``."""
        return F.linear(x, self._weight, self._bias)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """See ``Matrix``."""
        return F.linear(x, self._weight, self._bias).add_(other)


class Packed:
    """A copy of the weight in oneDNN's layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = _OPS._reorder_linear_weight(weight.contiguous(), _ROWS), bias
        self.nbytes = weight.numel() * weight.element_size()
        self._multiply, self._multiply_add = _OPS._linear_pointwise.default, _OPS._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        """See ``Matrix``."""
        return self._multiply(x, self._weight, self._bias, "none", [], "")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """See ``Matrix``."""
        return self._multiply_add(x, other, self._weight, self._bias, "add")


@cache
def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this torch packs and multiplies ``dtype`` on ``device``, tried out on a small matrix."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16 and not _OPS._is_mkldnn_bf16_supported():
        return False
    weight = torch.linspace(-1, 1, 32 * 64, dtype=torch.float64).sin().reshape(32, 64).to(dtype)
    x, other = weight[:3].flip(0), weight[3:6, :32]
    try:
        with torch.inference_mode():
            found = Packed(weight).plus(x, other)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = x.double() @ weight.double().T + other.double()
    return torch.allclose(found.double(), expected, rtol=2e-2, atol=2e-1 if dtype == torch.bfloat16 else 1e-4)


def matrix(linears: Sequence[nn.Module], packed: bool) -> Matrix:
    """Linear modules that read the same rows as one matrix, their outputs side by side.

    Packed, it is a copy. Plain, the modules' own parameters become views of one tensor, so that nothing is held twice.
    """
    parts: list[Any] = list(linears)
    biases = [part.bias for part in parts]
    bias = None
    if any(one is not None for one in biases):
        zeros = [part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
        bias = torch.cat(zeros) if len(parts) > 1 else zeros[0]
    if packed:
        weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
        return Packed(weight, bias)
    return Plain(_joined(parts), bias)


def _joined(parts: list[Any]) -> Tensor:
    weights: list[Tensor] = [part.weight.data for part in parts]
    first, rows = weights[0], sum(weight.shape[0] for weight in weights)
    if len(weights) == 1:
        return first
    starts = [first.data_ptr() + first.element_size() * first.shape[1] * sum(w.shape[0] for w in weights[:n]) for n in range(len(weights))]
    joined = [weight.data_ptr() for weight in weights] == starts and len({w.untyped_storage().data_ptr() for w in weights}) == 1
    if joined and all(weight.is_contiguous() for weight in weights):
        return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))  # another runtime of the model did it
    whole = torch.cat(weights)
    for part, view in zip(parts, whole.split([weight.shape[0] for weight in weights]), strict=True):
        part.weight.data = view
    return whole
