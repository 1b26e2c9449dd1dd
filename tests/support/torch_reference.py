"""A second formulation of the target and of the MTP head, in plain tensors and float64, written from the contract.

It takes tensors by their checkpoint names and a few numbers of the config, knows no class of transformers and nothing of
spanfold, keeps no cache: every call computes the whole sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Reference:
    def __init__(self, config: Any, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: value.double() for name, value in tensors.items()}
        self.layers = config.num_hidden_layers
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.eps = config.rms_norm_eps
        self.theta = config.rope_parameters["rope_theta"]

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.tensors[name + ".weight"].T
        bias = self.tensors.get(name + ".bias")
        return y if bias is None else y + bias

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of ``[rows, heads, head_dim]``: channel i is paired with channel i + head_dim / 2."""
        half = self.head_dim // 2
        frequency = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = positions.double()[:, None] * frequency
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def layer(self, x: Tensor, positions: Tensor, prefix: str) -> Tensor:
        rows = x.shape[0]
        y = self.norm(x, self.tensors[prefix + "input_layernorm.weight"])
        q = self.linear(y, prefix + "self_attn.q_proj").view(rows, self.heads, self.head_dim)
        k = self.linear(y, prefix + "self_attn.k_proj").view(rows, self.kv_heads, self.head_dim)
        v = self.linear(y, prefix + "self_attn.v_proj").view(rows, self.kv_heads, self.head_dim)
        if prefix + "self_attn.q_norm.weight" in self.tensors:
            q = self.norm(q, self.tensors[prefix + "self_attn.q_norm.weight"])
            k = self.norm(k, self.tensors[prefix + "self_attn.k_norm.weight"])
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        group = self.heads // self.kv_heads
        out = torch.zeros(rows, self.heads, self.head_dim, dtype=torch.float64)
        for row in range(rows):
            for head in range(self.heads):
                weights = torch.softmax(k[: row + 1, head // group] @ q[row, head] / math.sqrt(self.head_dim), dim=0)
                out[row, head] = weights @ v[: row + 1, head // group]
        x = x + self.linear(out.reshape(rows, -1), prefix + "self_attn.o_proj")
        y = self.norm(x, self.tensors[prefix + "post_attention_layernorm.weight"])
        gate = self.linear(y, prefix + "mlp.gate_proj")
        return x + self.linear(gate * torch.sigmoid(gate) * self.linear(y, prefix + "mlp.up_proj"), prefix + "mlp.down_proj")

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """The target's hidden states after its final norm, ``[rows, hidden]``."""
        x = self.tensors["model.embed_tokens.weight"][list(tokens)]
        for index in range(self.layers):
            x = self.layer(x, torch.arange(len(tokens)), f"model.layers.{index}.")
        return self.norm(x, self.tensors["model.norm.weight"])

    def scores(self, hidden: Tensor) -> Tensor:
        return hidden @ self.tensors.get("lm_head.weight", self.tensors["model.embed_tokens.weight"]).T

    def head_scores(self, canonical: Sequence[int], steps: int) -> list[Tensor]:
        """The head's scores for the ``steps`` tokens after ``canonical``, drafting greedily; one ``[vocabulary]`` per step.

        Pair p is (hidden state of row p, token p + 1) at position id p + 1. Step j adds the pair (z of the step before, the
        token it drafted), one position on.
        """
        prefix = f"model.layers.{self.layers}."
        states = list(self.hidden(canonical[:-1]))
        tokens = list(canonical[1:])
        scores: list[Tensor] = []
        for _ in range(steps):
            embedded = self.norm(self.tensors["model.embed_tokens.weight"][tokens], self.tensors[prefix + "enorm.weight"])
            hidden = self.norm(torch.stack(states), self.tensors[prefix + "hnorm.weight"])
            u = self.linear(torch.cat([embedded, hidden], dim=-1), prefix + "eh_proj")
            out = self.layer(u, torch.arange(1, len(tokens) + 1), prefix)
            z = self.norm(out, self.tensors[prefix + "shared_head.norm.weight"])[-1]
            scores.append(self.scores(z))
            states.append(z)
            tokens.append(int(scores[-1].argmax()))
        return scores
