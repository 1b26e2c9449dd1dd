"""The few operations that the plain-tensor decoder layers are made of, in float64, on one sequence without a batch.

Nothing here knows a model family, a module or a cache. Rows are tokens: ``[rows, ...]``, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Weights", "attend", "linear", "norm", "relu_squared", "rotate", "silu"]


class Weights:
    """Tensors of a checkpoint below one prefix, as float64; ``read`` collects the full names that were used.

    A name that is missing is a KeyError with the full name: no tensor is ever made up.
    """

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str = "", read: set[str] | None = None) -> None:
        self.tensors = tensors
        self.prefix = prefix
        self.read: set[str] = set() if read is None else read

    def __getitem__(self, name: str) -> Tensor:
        value = self.tensors[self.prefix + name].double()
        self.read.add(self.prefix + name)
        return value

    def optional(self, name: str) -> Tensor | None:
        return self[name] if self.prefix + name in self.tensors else None

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def under(self, prefix: str) -> Weights:
        return Weights(self.tensors, self.prefix + prefix, self.read)


def norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Root mean square norm of the last axis, times ``weight + offset`` (1 where the file holds the distance from one)."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (weight + offset)


def linear(x: Tensor, weights: Weights) -> Tensor:
    """``x W^T + b``; without b where the checkpoint has none."""
    y, bias = x @ weights["weight"].T, weights.optional("bias")
    return y if bias is None else y + bias


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def relu_squared(x: Tensor) -> Tensor:
    return x.clamp(min=0).square()


def rotate(x: Tensor, positions: Tensor, theta: float, width: int, *, interleaved: bool = False) -> Tensor:
    """Rotary embedding of the first ``width`` channels of ``[rows, heads, channels]``; the others pass.

    Pair i turns by ``position * theta ** (-2 i / width)``. A pair is channels (i, i + width / 2), or (2 i, 2 i + 1) if interleaved.
    """
    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = positions.double()[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)[:, None, :]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        pairs = torch.view_as_complex(turned.reshape(*turned.shape[:-1], width // 2, 2).contiguous()) * turn
        return torch.cat([torch.view_as_real(pairs).flatten(-2), rest], dim=-1)
    pairs = torch.complex(turned[..., : width // 2].contiguous(), turned[..., width // 2 :].contiguous()) * turn
    return torch.cat([pairs.real, pairs.imag, rest], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, *, window: int | None = None, sinks: Tensor | None = None) -> Tensor:
    """Causal attention of ``q`` [rows, heads, d] over ``k`` [rows, groups, d] and ``v`` [rows, groups, e]; [rows, heads, e].

    Consecutive heads share a group. ``window`` counts the keys that a row sees, itself included. A sink [heads] is the score of one
    more key whose value is zero.
    """
    rows, heads = q.shape[:2]
    share = heads // k.shape[1]
    k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    behind = torch.arange(rows)[:, None] - torch.arange(rows)[None, :]
    seen = (behind >= 0) & (behind < (rows if window is None else window))
    scores = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(heads, rows, 1)], dim=-1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    return torch.einsum("hqk,khe->qhe", torch.softmax(scores, dim=-1), v)
