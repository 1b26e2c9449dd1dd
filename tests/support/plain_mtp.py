"""MTP heads of the public families in plain tensors, written from their contracts: what a draft step must compute, without a cache.

Every step computes the whole sequence anew, so an entry that a cache missed, kept too long or placed wrong shows as a difference.
Nothing here imports the library or a module of transformers; tensors are those of the checkpoint file, by their names there.

With canonical tokens x_0..x_{n-1} and fed hidden states h_0..h_{n-2} the head's row p is the pair (h_p, x_{p+1}) at position id p + 1::

    u = projection(cat[norm_e(E[token]), norm_h(hidden)]);  y = block(u);  z = norm(y);  logits = output matrix (z)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from plain_layers import TRAITS, decoder_layer, norm_eps
from plain_ops import Weights, linear, norm
from torch import Tensor

__all__ = ["FAMILIES", "LAYOUTS", "Layout", "head_logits"]

Stage = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a family's MTP tensors lie, and the two conventions in which families differ.

    In a name ``{n}`` is the number of the target's layers plus i, ``{i}`` the index of the MTP layer. Copies of the target's two matrices
    that some files carry beside the MTP layers are not read: the target's are used.

    Attributes:
        embedding, output: the target's two matrices; without the second in the file the first is both.
        e, h, projection: norms of the two halves, and the matrix [H, 2 H] behind them.
        block: beginning of the names of the decoder layer.
        last: norm behind the block; None where nothing follows it.
        own_output: output matrix of the MTP layer's own.
        recycled: which state goes into the next step, from before or from behind the last norm.
    """

    embedding: str = "model.embed_tokens.weight"
    output: str = "lm_head.weight"
    e: str
    h: str
    projection: str
    block: str
    last: str | None
    own_output: str | None = None
    recycled: Stage = "post"


_DEEPSEEK = Layout(
    e="model.layers.{n}.enorm.weight",
    h="model.layers.{n}.hnorm.weight",
    projection="model.layers.{n}.eh_proj.",
    block="model.layers.{n}.",
    last="model.layers.{n}.shared_head.norm.weight",
)
_QWEN = Layout(
    e="mtp.pre_fc_norm_embedding.weight",
    h="mtp.pre_fc_norm_hidden.weight",
    projection="mtp.fc.",
    block="mtp.layers.{i}.",
    last="mtp.norm.weight",
)
_QWEN_IN_WHOLE = replace(_QWEN, embedding="model.language_model.embed_tokens.weight")

LAYOUTS: dict[str, Layout] = {
    "llama": _DEEPSEEK,
    "qwen2": _DEEPSEEK,
    "qwen3": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "qwen3_next": _QWEN,
    "qwen3_5": _QWEN_IN_WHOLE,
    "qwen3_5_moe": _QWEN_IN_WHOLE,
    "exaone_moe": _QWEN,
    # Sources dispute the stages: SGLang (several layers) and llama.cpp recycle the state from before the norm, vLLM (one layer) from
    # behind it. `recycled` of head_logits gives the other reading.
    "mimo_v2": Layout(
        e="model.mtp.layers.{i}.enorm.weight",
        h="model.mtp.layers.{i}.hnorm.weight",
        projection="model.mtp.layers.{i}.eh_proj.",
        block="model.mtp.layers.{i}.",
        last="model.mtp.layers.{i}.final_layernorm.weight",
        recycled="pre",
    ),
    "ernie4_5_moe": Layout(
        e="model.mtp_emb_norm.{i}.weight",
        h="model.mtp_hidden_norm.{i}.weight",
        projection="model.mtp_linear_proj.{i}.",
        block="model.mtp_block.{i}.",
        last=None,
    ),
    "longcat_flash": Layout(
        e="model.mtp.layers.{i}.enorm.m.weight",
        h="model.mtp.layers.{i}.hnorm.m.weight",
        projection="model.mtp.layers.{i}.eh_proj.",
        block="model.mtp.layers.{i}.",
        last="model.mtp.norm.weight",
    ),
    # One MTP layer of several blocks: the projection lies in the first, the last norm in the last.
    "nemotron_h": Layout(
        embedding="backbone.embeddings.weight",
        e="mtp.layers.0.enorm.weight",
        h="mtp.layers.0.hnorm.weight",
        projection="mtp.layers.0.eh_proj.",
        block="mtp.layers.",
        last="final_layernorm.weight",
    ),
    "step3p5": Layout(
        e="model.layers.{n}.enorm.weight",
        h="model.layers.{n}.hnorm.weight",
        projection="model.layers.{n}.eh_proj.",
        block="model.layers.{n}.",
        last="model.layers.{n}.shared_head.norm.weight",
        own_output="model.layers.{n}.shared_head.output.weight",
        recycled="pre",
    ),
}
FAMILIES: tuple[str, ...] = tuple(LAYOUTS)


class _Head:
    """The MTP layers of one checkpoint."""

    def __init__(self, family: str, tensors: Mapping[str, Tensor], config: Any) -> None:
        self.family, self.layout, self.config = family, LAYOUTS[family], config
        # Step's files may nest parts of an MTP layer in `transformer.`; no other family has the word in its names.
        plain = {name.replace(".transformer.", "."): value for name, value in tensors.items()} if family == "step3p5" else tensors
        self.weights = Weights(plain)
        self.offset = TRAITS[family].offset
        self.count = 0
        while self.count < 64 and self._name(self.layout.projection, self.count) + "weight" in self.weights:
            self.count += 1
            if "{" not in self.layout.projection:
                break
        if not self.count:
            raise ValueError(f"{family}: no MTP layer in the tensors, {self._name(self.layout.projection, 0)}weight is missing")

    def _name(self, template: str, i: int) -> str:
        return template.format(n=self.config.num_hidden_layers + i, i=i)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return norm(x, self.weights[name], norm_eps(self.config), self.offset)

    def states(self, i: int, hidden: Tensor, tokens: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
        """States of MTP layer i before and behind its last norm, for rows (hidden, token) at ``first``, ``first + 1``, ...: [rows, H]."""
        e = self._norm(self.weights[self.layout.embedding][list(tokens)], self._name(self.layout.e, i))
        h = self._norm(hidden, self._name(self.layout.h, i))
        u = linear(torch.cat([e, h], dim=-1), self.weights.under(self._name(self.layout.projection, i)))
        positions = torch.arange(first, first + len(tokens))
        if self.family == "nemotron_h":
            return self._blocks(u, positions)
        block = self.weights.under(self._name(self.layout.block, i))
        before = decoder_layer(self.family, block, self.config, u, positions, self._kind(i))
        return before, before if self.layout.last is None else self._norm(before, self._name(self.layout.last, i))

    def _blocks(self, u: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        blocks = 0
        while f"{self.layout.block}{blocks}.norm.weight" in self.weights:
            u = decoder_layer(self.family, self.weights.under(f"{self.layout.block}{blocks}."), self.config, u, positions)
            blocks += 1
        return u, self._norm(u, f"{self.layout.block}{blocks - 1}.{self.layout.last}")

    def _kind(self, i: int) -> str:
        """Each of MiMo's slides; Step's and Exaone's configs say it (full where they do not); the others have no window."""
        if self.family == "mimo_v2":
            return "sliding_attention"
        kinds = getattr(self.config, "mtp_layer_types", None) if self.family in ("step3p5", "exaone_moe") else None
        return kinds[i] if kinds else "full_attention"

    def logits(self, i: int, after: Tensor) -> Tensor:
        if self.layout.own_output is not None:
            return after @ self.weights[self._name(self.layout.own_output, i)].T
        tied = self.layout.output not in self.weights
        return after @ self.weights[self.layout.embedding if tied else self.layout.output].T


def head_logits(
    family: str,
    tensors: Mapping[str, Tensor],
    config: Any,
    ids: Sequence[int],
    hidden: Tensor,
    depth: int,
    *,
    recycled: Stage | None = None,
    read: set[str] | None = None,
) -> list[Tensor]:
    """What the head scores at draft steps 1 to ``depth`` behind ``ids``, drafting greedily (the lowest id of the best).

    Step j of L MTP layers runs layer j over rows p = 0..n-2 that take (state of layer j-1 at p, token p + j) at position id p + j; the
    tokens behind the canonical ones are the drafts. From step L + 1 on the last layer is recycled: a row (its last state, the last
    draft) is added, one position on. Llama's, DeepSeek's and all others with one layer recycle from step 2.

    Args:
        family: one of ``FAMILIES``.
        tensors: of the checkpoint, target and MTP layers, by their names on disk.
        config: the text config, for numbers.
        ids: canonical tokens, two or more.
        hidden: [len(ids) - 1, H], the target's states at the stage that the family feeds: Step and MiMo-V2 (disputed) from before its
            final norm, all others from behind it.
        depth: draft steps.
        recycled: stage of the recycled state, where it is not to be the family's.
        read: is given the names of all tensors that were used.

    Returns:
        One [rows, vocabulary] per step, float64. The last row is the draft's; the others are the head's earlier rows.
    """
    if len(ids) < 2 or hidden.shape[0] != len(ids) - 1:
        raise ValueError(f"{len(ids)} tokens and {hidden.shape[0]} states: give two tokens or more, and a state for each but the last")
    head = _Head(family, tensors, config)
    stage = recycled or head.layout.recycled
    stream, rows, steps = list(ids), len(ids) - 1, []
    state = hidden.double()
    first, tokens, entering = 1, stream[1:], state
    for step in range(depth):
        layer = min(step, head.count - 1)
        if step < head.count:
            first, entering, tokens = 1 + step, state, stream[1 + step : 1 + step + rows]
        else:
            entering, tokens = torch.cat([entering, state[-1:]]), [*tokens, stream[-1]]
        before, after = head.states(layer, entering, tokens, first)
        state = before if stage == "pre" else after
        steps.append(head.logits(layer, after))
        stream.append(int(steps[-1][-1].argmax()))
    if read is not None:
        read |= head.weights.read
    return steps
