"""The embedded model's shape, and its MTP layer as it is trained: every step of a draft at once, over whole windows.

At decode time the head's cache holds rows made from true hidden states; a draft's step j sees those, and the rows that the
draft itself made. Here the same attention is written out for all positions together: queries of step j, at place p, see
the step-1 keys of places <= p and the keys of steps 2..j of place p alone.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from spanfold.backends.torch.head import MtpHead

__all__ = ["CONTEXT", "DEPTH", "chain", "fresh"]

CONTEXT: Final = 512
DEPTH: Final = 3  # steps of a draft that are trained


def fresh(vocabulary: int, end: int) -> tuple[Any, MtpHead]:
    """A model with random weights (torch's global generator) and its head: 10 layers of width 128, 2.5 million parameters."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    head = MtpHead(model)
    layer: Any = head.layers[0]
    for linear in [layer.eh_proj, *(part for part in layer.block.modules() if isinstance(part, torch.nn.Linear))]:
        torch.nn.init.normal_(linear.weight, std=config.initializer_range)
    return model, head


def _allowed(rows: int, steps: int) -> Tensor:
    """``[rows, steps * rows]``: which keys of which step a query of the last of ``steps`` steps sees."""
    own = torch.eye(rows, dtype=torch.bool)
    return torch.cat([torch.ones(rows, rows, dtype=torch.bool).tril(), *[own] * (steps - 1)], dim=1)


def chain(model: Any, head: MtpHead, hidden: Tensor, ids: Tensor, depth: int = DEPTH) -> list[Tensor]:
    """The head's output z of each step, from the target's hidden states.

    Nothing flows back into the target: hidden states, embedding and output matrix are constants here, so the target is
    the one that training without a head gives.

    Args:
        model: the target.
        head: its MTP layer.
        hidden: ``[batch, length, width]``, after the final norm.
        ids: ``[batch, length]``, the tokens of these rows.
        depth: steps, at least 1.

    Returns:
        ``depth`` tensors ``[batch, length - depth, width]``; row p of step j (from 1) predicts token p + j + 1.
    """
    layer: Any = head.layers[0]
    block: Any = layer.block
    attention, config = block.self_attn, model.config
    rows = ids.shape[1] - depth
    embedding = model.model.embed_tokens.weight.detach()
    z = hidden.detach()[:, :rows]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    for step in range(1, depth + 1):
        embedded = functional.embedding(ids[:, step : step + rows], embedding)
        u = layer.eh_proj(torch.cat([layer.enorm(embedded), layer.hnorm(z)], dim=-1))
        positions = torch.arange(step, step + rows, device=ids.device).unsqueeze(0)
        cos, sin = model.model.rotary_emb(u, position_ids=positions)
        normed = block.input_layernorm(u)
        shape = (*normed.shape[:2], -1, config.head_dim)
        q, k, v = (part(normed).view(shape).transpose(1, 2) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        keys.append(k)
        values.append(v)
        mask = _allowed(rows, step).to(ids.device) if step > 1 else None
        seen = functional.scaled_dot_product_attention(
            q, torch.cat(keys, dim=2), torch.cat(values, dim=2), attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        u = u + attention.o_proj(seen.transpose(1, 2).reshape(*normed.shape[:2], -1))
        u = u + block.mlp(block.post_attention_layernorm(u))
        z = layer.norm(u)
        outputs.append(z)
    return outputs
