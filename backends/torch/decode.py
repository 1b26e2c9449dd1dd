"""The decode path: a Llama, Qwen2 or Qwen3 decoder as plain functions of few rows over a ``RowCache``.

The mathematics is that of transformers' modules, which it is tested against; what differs is what a step costs. Per layer it calls
four matrix products (``matrices``; query, key and value are one, gate and up are one, the residual is added inside two) and some
ten small operators. Nothing is allocated per step but the rows themselves: caches, rotary tables and masks are there, and a step
takes views of them.

Rows do not depend on the rows beside them, as far as the kernels allow it, so that a token verified in a span is the token
decoded alone, to the bit:

* forwards of fewer than ``row_width`` rows are padded to it (the last row is repeated), because a kernel for one row adds in another
  order than that for several; padding is written behind the rows, never kept, and its results are dropped;
* up to ``NEAR_ROWS`` rows, each row attends by itself, over a number of keys rounded up to ``key_step``; those behind it are masked.

Longer forwards (prefill) attend in one call; a span that is longer runs in pieces (``paths.OwnTarget``). ``exact.py`` measures whether
it holds on the machine at hand; what the kernels do, and what was tried, is in docs/explanation/torch-path.md.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Final

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from .caches import STEP, RowCache
from .matrices import Matrix, matrix

__all__ = ["NEAR_ROWS", "Norm", "Stack", "Tables", "key_step", "unfit"]

#: Most rows whose attention is computed one by one.
NEAR_ROWS: Final = 32
#: Most queries for which the CPU's kernels add up keys in the same order, however many there are.
_FEW: Final = 3
#: Rows by which the tables grow at least.
_GROWTH: Final = 1024


def unfit(model: Any) -> str | None:
    """Why this path cannot run a model of one of ``families.PLAIN``, in a few words; None if it can."""
    act = model.config.hidden_act
    return None if act in ("silu", "swish") else f"hidden_act is {act!r}, not 'silu'"


def key_step(config: Any) -> int:
    """The number of keys to round up to.

    torch's attention kernel on a CPU works through blocks of 512 keys, each one matrix product, whose sums depend on its size from
    four queries on (a key head's group of query heads); for fewer, any multiple of the vector width gives the same.
    """
    return STEP if config.num_attention_heads // config.num_key_value_heads <= _FEW else 512


class Norm:
    """RMS norm over the last dimension, computed in float32, with a module's weight and eps.

    Args:
        modules: one; or one for the query heads and one for the key heads.
        repeats: in that case, their numbers.
    """

    def __init__(self, *modules: Any, repeats: Sequence[int] = ()) -> None:
        weights = [module.weight.float() for module in modules]
        if repeats:  # one weight per head: [heads, head_dim]
            weights = [weight.expand(count, -1) for weight, count in zip(weights, repeats, strict=True)]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        size = weight.shape[-1]
        # x / sqrt(mean(x^2) + eps) == x * sqrt(size) / hypot(|x|, sqrt(size * eps)): two operators less
        self._weight = weight * size**0.5
        self._floor = torch.tensor((size * modules[0].variance_epsilon) ** 0.5, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` over its root mean square, times the weight; in the dtype of ``x``."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return x.div(length.hypot_(self._floor)).mul_(self._weight).to(x.dtype)


class Attention:
    """Three ways to the same: rows ``[rows, heads, head_dim]`` over their keys, ``[rows, heads * head_dim]``.

    For ``near`` and ``each`` the mask has the real rows only; padding, whose result nobody reads, gets the last one's.
    """

    def __init__(self, config: Any, head_dim: int, scale: float) -> None:
        self._kv = int(config.num_key_value_heads)
        self._group = int(config.num_attention_heads) // self._kv
        self._dim, self._scale = head_dim, scale

    def near(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Each row a batch element, the heads of a group its queries. ``keys``: ``[real rows, kv heads, length, head_dim]``."""
        rows, wanted = queries.shape[0], mask.shape[0]
        split = queries[:wanted].view(wanted, self._kv, self._group, self._dim)
        mixed = F.scaled_dot_product_attention(split, keys, values, attn_mask=mask, scale=self._scale).reshape(wanted, -1)
        return mixed if rows == wanted else torch.cat([mixed, mixed[-1:].expand(rows - wanted, -1)])

    def each(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Each row a call. ``keys``: ``[1, kv heads, length, head_dim]``."""
        rows, wanted = queries.shape[0], mask.shape[0]
        split = queries.view(rows, self._kv, self._group, self._dim)
        mixed = [
            F.scaled_dot_product_attention(split[row : row + 1], keys, values, attn_mask=mask[row : row + 1], scale=self._scale)
            for row in range(wanted)
        ]
        return torch.cat([*mixed, *[mixed[-1]] * (rows - wanted)]).view(rows, -1)

    def far(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """All rows in one call. ``keys`` as for ``each``."""
        split = queries.transpose(0, 1).unsqueeze(0)
        mixed = F.scaled_dot_product_attention(split, keys, values, attn_mask=mask, scale=self._scale, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(queries.shape[0], -1)


@frozen
class _Built:
    reach: int
    cos: Tensor
    turn: Tensor
    mask: Tensor


class Tables:
    """Rotary factors and masks by position, grown as sessions grow.

    All sessions of a runtime share them. They change by one assignment, so that none ever sees the parts of two sizes, whatever
    interrupts it.
    """

    def __init__(self, rotary: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._rotary, self._dtype, self._device = rotary, dtype, device
        self._built = self._build(_GROWTH)

    def reserve(self, reach: int) -> None:
        """Cover positions below ``reach``."""
        if reach > self._built.reach:
            self._built = self._build(max(reach, 2 * self._built.reach))

    def _build(self, reach: int) -> _Built:
        like = torch.empty(0, dtype=self._dtype, device=self._device)
        positions = torch.arange(reach, device=self._device)
        cos, sin = (part[0].unsqueeze(1) for part in self._rotary(like, position_ids=positions.unsqueeze(0)))
        half = sin.shape[-1] // 2
        # x * cos + (x rolled by half) * turn is the rotation, without a cat per step
        turn = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        # Row i of a forward at base b sees key j iff j <= b + i: columns [reach - b, ...) of one table for all b.
        columns = torch.arange(reach + NEAR_ROWS + 512, device=self._device)
        seen = columns <= reach + torch.arange(NEAR_ROWS, device=self._device).unsqueeze(1)
        return _Built(reach, cos, turn, torch.where(seen, 0.0, -torch.inf).to(self._dtype))

    def turns(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        """Cosine and signed sin of ``rows`` positions, each ``[rows, 1, head_dim]``."""
        return self._built.cos[first : first + rows], self._built.turn[first : first + rows]

    def near(self, base: int, rows: int, length: int) -> Tensor:
        """``[rows, 1, 1, length]``: what is added to each row's scores. A view, at most ``NEAR_ROWS`` rows."""
        start = self._built.reach - base
        return self._built.mask[:rows, start : start + length].unsqueeze(1).unsqueeze(1)

    def far(self, base: int, rows: int, length: int) -> Tensor:
        """``[1, 1, rows, length]``, True where a row sees a key; any number of rows."""
        keys = torch.arange(length, device=self._device)
        return (keys <= torch.arange(base, base + rows, device=self._device).unsqueeze(1)).unsqueeze(0).unsqueeze(0)


class Layer:
    """One decoder layer of transformers' Llama, Qwen2 or Qwen3 classes."""

    def __init__(self, module: Any, config: Any, packed: bool) -> None:
        attention, mlp = module.self_attn, module.mlp
        self._heads, self._kv = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._dim = int(attention.head_dim)
        self.attention = Attention(config, self._dim, float(attention.scaling))
        self._norm, self._mlp_norm = Norm(module.input_layernorm), Norm(module.post_attention_layernorm)
        self._head_norm: Norm | None = None
        if hasattr(attention, "q_norm"):
            self._head_norm = Norm(attention.q_norm, attention.k_norm, repeats=(self._heads, self._kv))
        self._qkv: Matrix = matrix([attention.q_proj, attention.k_proj, attention.v_proj], packed)
        self._out: Matrix = matrix([attention.o_proj], packed)
        self._gate_up: Matrix = matrix([mlp.gate_proj, mlp.up_proj], packed)
        self._down: Matrix = matrix([mlp.down_proj], packed)

    @property
    def nbytes(self) -> int:
        """Bytes beyond the model's own tensors."""
        return sum(one.nbytes for one in (self._qkv, self._out, self._gate_up, self._down))

    def __call__(
        self, x: Tensor, turns: tuple[Tensor, Tensor], write: Tensor, keys: Tensor, values: Tensor, mask: Tensor, way: str
    ) -> Tensor:
        """Rows ``[rows, hidden]`` through the layer.

        Args:
            x: the rows.
            turns: ``Tables.turns``.
            write: where the rows' keys and values go; ``keys`` and ``values`` show it.
            keys: as the way of attending takes them.
            values: likewise.
            mask: likewise.
            way: ``near``, ``each`` or ``far``, see ``Attention``.
        """
        rows = x.shape[0]
        heads = self._qkv(self._norm(x)).view(rows, -1, self._dim)
        turned = heads[:, : self._heads + self._kv]
        if self._head_norm is not None:
            turned.copy_(self._head_norm(turned))
        rolled = turned.roll(self._dim // 2, -1).mul_(turns[1])
        turned.mul_(turns[0]).add_(rolled)
        write.copy_(heads[:, self._heads :].view(rows, 2, self._kv, self._dim))
        mixed = getattr(self.attention, way)(heads[:, : self._heads], keys, values, mask)
        x = self._out.plus(mixed, x)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, -1)
        return self._down.plus(F.silu(gate).mul_(up), x)


class Stack:
    """Decoder layers and the norm behind them, over one cache.

    Args:
        modules: the decoder layers.
        norm: the norm behind them.
        shift: position id of a row less its place in the cache (0 for a target, 1 for an MTP layer).
        row_width: least rows of a forward.
    """

    def __init__(
        self, modules: Sequence[Any], norm: Any, config: Any, tables: Tables, *, packed: bool, shift: int = 0, row_width: int = 1
    ) -> None:
        self.layers = [Layer(module, config, packed) for module in modules]
        self._norm, self._tables, self._shift, self.row_width = Norm(norm), tables, shift, row_width
        self._device, few = norm.weight.device, config.num_attention_heads // config.num_key_value_heads <= _FEW
        self._each = few and norm.weight.dtype == torch.float32

    @property
    def nbytes(self) -> int:
        """Bytes beyond the model's own tensors."""
        return sum(layer.nbytes for layer in self.layers)

    def over(self, layers: list[Layer]) -> Stack:
        """This stack with other layers."""
        other = copy(self)
        other.layers = layers
        return other

    def padded(self, x: Tensor) -> Tensor:
        """``x`` with its last row repeated up to ``row_width`` rows."""
        missing = self.row_width - x.shape[0]
        return x if missing <= 0 else torch.cat([x, x[-1:].expand(missing, -1)])

    def _way(self, rows: int) -> str:
        if rows > NEAR_ROWS:
            return "far"
        # The kernel's threads have buffers side by side, which for float32 and few queries start at unlike places within a
        # cache line; there a product adds up in another order. A call per row does the same on the same threads.
        several = self._device.type == "cpu" and torch.get_num_threads() > 1
        return "each" if several and self._each else "near"

    def run(self, x: Tensor, base: int, rows: int, cache: RowCache) -> Tensor:
        """Run ``x`` (``[padded rows, hidden]``, its first ``rows`` real) from row ``base`` of the cache on; hidden states of all.

        The cache must have room for ``base + rows`` rows, and holds so many afterwards; if this raises, it holds ``base``.
        """
        wide = x.shape[0]
        way = self._way(wide)
        window = cache.window(base, wide, rows if way == "near" else 1)
        self._tables.reserve(base + wide + self._shift)
        turns = self._tables.turns(base + self._shift, wide)
        masked = self._tables.far if way == "far" else self._tables.near
        mask = masked(base, wide if way == "far" else rows, window.length)
        for layer, write, keys, values in zip(self.layers, window.write, window.keys, window.values, strict=False):
            x = layer(x, turns, write, keys, values, mask, way)
        x = self._norm(x)
        cache.advance(base + rows)
        return x
