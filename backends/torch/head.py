"""The MTP layer: one decoder layer of the target's own kind behind a projection of (next embedding, hidden state).

The contract (DeepSeek-V3 layout; Llama, Qwen2 and Qwen3 targets):

    u = eh_proj(cat[enorm(E[x_{p+1}]), hnorm(h_p)])     the embedding side first
    z = shared_head.norm(layer(u))                      at position id p + 1, the token's
    logits = lm_head(z)                                 predict x_{p+2}

``h_p`` is the target's hidden state *after* its final norm. Recycled: z, after the head's norm, takes the place of h, the
drafted token the place of x_{p+1}, and the position grows by one. Embedding and lm_head are the target's.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

from .caches import RowCache

__all__ = ["MtpHead"]

_BLOCK: Final = "block."


class _SharedHead(nn.Module):
    # Only there so that a parameter is called shared_head.norm.weight, as in the checkpoint.
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm


class MtpHead(nn.Module):
    """One MTP layer for a transformers causal LM.

    Args:
        model: the target; its decoder layer and norm classes, config, embedding, rotary table and lm_head are used. The
            head holds no copy of them and does not register them as its own.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        base, config = model.model, model.config
        norm: Any = type(base.norm)
        self.enorm: nn.Module = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.hnorm: nn.Module = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        # Index 0: the layer's place in a cache of its own (and a full-attention entry of config.layer_types).
        self.block: nn.Module = type(base.layers[-1])(config, 0)
        self.shared_head = _SharedHead(norm(config.hidden_size, eps=config.rms_norm_eps))
        # In a tuple, so that torch does not take the target's modules for parts of this one.
        self._shared = (model,)

    def belongs_to(self, model: Any) -> bool:
        """Whether it was made for this very model."""
        return self._shared[0] is model

    @staticmethod
    def leaf(parameter: str) -> str:
        """The name in the checkpoint, behind ``model.layers.{N}.``, of one of this module's parameters."""
        return parameter.removeprefix(_BLOCK)

    def load_leaves(self, tensors: dict[str, Tensor]) -> None:
        """Take tensors by their checkpoint names; every one must be there, none more, in the right shape."""
        names = {self.leaf(name): name for name in self.state_dict()}
        self.load_state_dict({names.get(leaf, leaf): tensor for leaf, tensor in tensors.items()}, strict=True, assign=True)
        self.requires_grad_(False)
        self.eval()

    def embed(self, ids: Tensor) -> Tensor:
        """The target's embedding: ids ``[1, rows]`` -> ``[1, rows, hidden]``."""
        return self._shared[0].model.embed_tokens(ids)

    def scores(self, hidden: Tensor) -> Tensor:
        """The target's lm_head: ``[rows, hidden]`` -> ``[rows, vocabulary]``."""
        return self._shared[0].lm_head(hidden)

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        """Run pairs through the layer and append them to its cache.

        Args:
            ids: ``[1, rows]``, the token of each pair, x_{p+1}.
            hidden: ``[1, rows, hidden]``, h_p of each pair, or the recycled z.
            positions: ``[1, rows]``, the position id p + 1 of each pair.
            cache: the head's own; its rows must be the pairs before these.

        Returns:
            z, ``[1, rows, hidden]``.
        """
        base = self._shared[0].model
        embedded = self.embed(ids)
        joined = torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1)
        projected = self.eh_proj(joined)
        mask = create_causal_mask(config=base.config, inputs_embeds=projected, attention_mask=None, cache=cache, position_ids=positions)
        rotary = base.rotary_emb(projected, position_ids=positions)
        out = self.block(projected, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, position_embeddings=rotary)
        return self.shared_head.norm(out)
