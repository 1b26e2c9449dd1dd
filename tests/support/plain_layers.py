"""The decoder layers that MTP modules are made of, family by family, in plain tensors: no module of any library, no cache.

A second formulation, to hold the library's heads against. Each layer is computed over the whole sequence from the tensors as the
family's checkpoint file names them. Shapes tell the number of heads, and names tell whether an MLP is dense or of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from plain_ops import Weights, attend, linear, norm, relu_squared, rotate, silu
from torch import Tensor

__all__ = ["TRAITS", "Traits", "decoder_layer", "norm_eps"]

_LATENT_EPS = 1e-6
"""Of the norms inside latent attention: fixed in DeepSeek's modules, whatever the config says of the others."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What sets a family's layers apart.

    Attributes:
        latent: attention over low-rank latents (MLA).
        offset: what is added to the norms' weights.
        interleaved: rotary pairs are neighbours.
        rotated: the kinds of attention that know positions; all where the config has no window.
        gated: "query" where q_proj makes (query, gate) per head, "head" where g_proj makes one gate per head.
        router: which experts, and with which weights.
    """

    latent: bool = False
    offset: float = 0.0
    interleaved: bool = False
    rotated: tuple[str, ...] = ("full_attention", "sliding_attention")
    gated: str | None = None
    router: str = "sigmoid"


TRAITS = {
    "llama": Traits(),
    "qwen2": Traits(),
    "qwen3": Traits(),
    "deepseek_v3": Traits(latent=True),
    "glm4_moe": Traits(),
    "glm4_moe_lite": Traits(latent=True),
    "qwen3_next": Traits(offset=1.0, gated="query", router="softmax"),
    "qwen3_5": Traits(offset=1.0, gated="query"),
    "qwen3_5_moe": Traits(offset=1.0, gated="query", router="softmax"),
    "mimo_v2": Traits(),
    "ernie4_5_moe": Traits(interleaved=True, router="corrected softmax"),
    "longcat_flash": Traits(latent=True),
    "nemotron_h": Traits(rotated=()),
    "step3p5": Traits(offset=1.0, gated="head", router="step"),
    "exaone_moe": Traits(rotated=("sliding_attention",)),
}


def decoder_layer(family: str, weights: Weights, config: Any, x: Tensor, positions: Tensor, kind: str = "full_attention") -> Tensor:
    """One layer over ``x`` [rows, hidden] at ``positions`` [rows]; [rows, hidden].

    ``kind`` is the layer's entry of ``layer_types``. For nemotron_h a layer is one block, and its tensors tell which.
    """
    if family == "nemotron_h":
        return _nemotron_block(weights, config, x, positions)
    traits, eps = TRAITS[family], norm_eps(config)
    y = norm(x, weights["input_layernorm.weight"], eps, traits.offset)
    attention = weights.under("self_attn.")
    if traits.latent:
        x = x + _latent_attention(family, attention, config, y, positions)
    else:
        x = x + _grouped_attention(family, attention, config, y, positions, kind)
    second = "pre_mlp_layernorm" if "pre_mlp_layernorm.weight" in weights else "post_attention_layernorm"
    y = norm(x, weights[f"{second}.weight"], eps, traits.offset)
    return x + _feed_forward(traits, weights, config, y)


def norm_eps(config: Any) -> float:
    return config.layer_norm_epsilon if hasattr(config, "layer_norm_epsilon") else config.rms_norm_eps


def _nemotron_block(weights: Weights, config: Any, x: Tensor, positions: Tensor) -> Tensor:
    y = norm(x, weights["norm.weight"], config.layer_norm_epsilon)
    mixer = weights.under("mixer.")
    if "q_proj.weight" in mixer:
        return x + _grouped_attention("nemotron_h", mixer, config, y, positions, "full_attention")
    if "gate.weight" not in mixer:
        return x + _squared_mlp(mixer, y)
    # Routed experts may work in a narrower space; the router and the shared experts see the full one.
    narrow = linear(y, mixer.under("fc1_latent_proj.")) if "fc1_latent_proj.weight" in mixer else y
    chosen, share = _sigmoid_router(mixer, config, y)
    routed = _mixture(chosen, share, narrow, lambda e, rows: _squared_mlp(mixer.under(f"experts.{e}."), rows))
    if "fc2_latent_proj.weight" in mixer:
        routed = linear(routed, mixer.under("fc2_latent_proj."))
    return x + routed + _squared_mlp(mixer.under("shared_experts."), y)


# --- Attention


def _rope(config: Any, kind: str) -> tuple[float, float]:
    """(theta, share of the channels that turn) of a kind of attention."""
    parameters = config.rope_parameters
    if kind in parameters:
        parameters = parameters[kind]
    if parameters.get("rope_type", "default") != "default":
        raise NotImplementedError(f"rope_type {parameters['rope_type']!r} has no plain formulation here; use 'default'")
    return parameters["rope_theta"], parameters.get("partial_rotary_factor", 1.0)


def _grouped_attention(family: str, w: Weights, config: Any, x: Tensor, positions: Tensor, kind: str) -> Tensor:
    """Heads in groups that share keys and values, with what families add: norms, gates, windows, sinks, smaller values."""
    traits, rows = TRAITS[family], x.shape[0]
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    q = linear(x, w.under("q_proj."))
    gate = None
    if traits.gated == "query":
        q, gate = q.reshape(rows, -1, 2, size).unbind(2)
    elif traits.gated == "head":
        gate = linear(x, w.under("g_proj."))[..., None]
    q, k = q.reshape(rows, -1, size), linear(x, w.under("k_proj.")).reshape(rows, -1, size)
    v = linear(x, w.under("v_proj.")).reshape(rows, k.shape[1], -1)
    if "q_norm.weight" in w:
        q = norm(q, w["q_norm.weight"], norm_eps(config), traits.offset)
        k = norm(k, w["k_norm.weight"], norm_eps(config), traits.offset)
    if kind in traits.rotated or (traits.rotated and getattr(config, "sliding_window", None) is None):
        theta, portion = _rope(config, kind)
        turned = int(size * portion)
        q = rotate(q, positions, theta, turned, interleaved=traits.interleaved)
        k = rotate(k, positions, theta, turned, interleaved=traits.interleaved)
    if family == "mimo_v2" and config.attention_value_scale is not None:
        v = v * config.attention_value_scale
    scale = (getattr(config, "query_pre_attn_scalar", None) or size) ** -0.5
    window = config.sliding_window if kind == "sliding_attention" else None
    sinks = w.optional("attention_sink_bias")
    out = attend(q, k, v, scale, window=window, sinks=sinks)
    if gate is not None:
        out = out * torch.sigmoid(gate)
    return linear(out.reshape(rows, -1), w.under("o_proj."))


def _latent_attention(family: str, w: Weights, config: Any, x: Tensor, positions: Tensor) -> Tensor:
    """Multi-head latent attention: keys and values come out of one latent per row, positions from a few channels of their own.

    LongCat rescales both latents to the variance of the hidden state.
    """
    rows, heads = x.shape[0], config.num_attention_heads
    plain, turned, values = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    rescaled = family == "longcat_flash"
    if "q_a_proj.weight" in w:
        latent = norm(linear(x, w.under("q_a_proj.")), w["q_a_layernorm.weight"], _LATENT_EPS)
        if rescaled:
            latent = latent * (config.hidden_size / config.q_lora_rank) ** 0.5
        q = linear(latent, w.under("q_b_proj."))
    else:
        q = linear(x, w.under("q_proj."))
    q = q.reshape(rows, heads, plain + turned)
    latent, shared = linear(x, w.under("kv_a_proj_with_mqa.")).split([config.kv_lora_rank, turned], dim=-1)
    latent = norm(latent, w["kv_a_layernorm.weight"], _LATENT_EPS)
    if rescaled:
        latent = latent * (config.hidden_size / config.kv_lora_rank) ** 0.5
    k, v = linear(latent, w.under("kv_b_proj.")).reshape(rows, heads, plain + values).split([plain, values], dim=-1)
    theta, _ = _rope(config, "full_attention")
    neighbours = getattr(config, "rope_interleave", True)
    q_turned = rotate(q[..., plain:], positions, theta, turned, interleaved=neighbours)
    k_turned = rotate(shared[:, None, :], positions, theta, turned, interleaved=neighbours).expand(-1, heads, -1)
    q, k = torch.cat([q[..., :plain], q_turned], dim=-1), torch.cat([k, k_turned], dim=-1)
    out = attend(q, k, v, (plain + turned) ** -0.5)
    return linear(out.reshape(rows, -1), w.under("o_proj."))


# --- Feed forward


def _feed_forward(traits: Traits, weights: Weights, config: Any, x: Tensor) -> Tensor:
    if "moe.gate.weight" in weights:
        return _step_experts(weights, config, x)
    if "transformer_layer.mlp.up_proj.weight" in weights:  # LongCat's MTP layer
        return _gated_mlp(weights.under("transformer_layer.mlp."), x)
    mlp = weights.under("mlp.")
    if "gate.weight" not in mlp:
        return _gated_mlp(mlp, x)
    chosen, share = _ROUTERS[traits.router](mlp, config, x)
    out = _mixture(chosen, share, x, lambda e, rows: _expert(mlp, e, rows))
    if "shared_experts.up_proj.weight" in mlp:
        out = out + _gated_mlp(mlp.under("shared_experts."), x)
    if "shared_expert.up_proj.weight" in mlp:
        out = out + torch.sigmoid(linear(x, mlp.under("shared_expert_gate."))) * _gated_mlp(mlp.under("shared_expert."), x)
    return out


def _gated_mlp(w: Weights, x: Tensor) -> Tensor:
    return linear(silu(linear(x, w.under("gate_proj."))) * linear(x, w.under("up_proj.")), w.under("down_proj."))


def _squared_mlp(w: Weights, x: Tensor) -> Tensor:
    return linear(relu_squared(linear(x, w.under("up_proj."))), w.under("down_proj."))


def _expert(mlp: Weights, e: int, x: Tensor) -> Tensor:
    """An expert of its own tensors, or of one slice of the tensors of all: [experts, 2 x inner, hidden], the gate first."""
    if "experts.gate_up_proj" not in mlp:
        return _gated_mlp(mlp.under(f"experts.{e}."), x)
    gate, up = (x @ mlp["experts.gate_up_proj"][e].T).chunk(2, dim=-1)
    return (silu(gate) * up) @ mlp["experts.down_proj"][e].T


def _mixture(chosen: Tensor, share: Tensor, x: Tensor, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Each row's ``chosen`` [rows, k] experts, weighted by ``share`` [rows, k]."""
    rows = []
    for row in range(x.shape[0]):
        parts = [weight * expert(int(e), x[row]) for e, weight in zip(chosen[row], share[row], strict=True)]
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


def _best(scores: Tensor, count: int) -> Tensor:
    return scores.argsort(dim=-1, descending=True)[:, :count]


def _sigmoid_router(mlp: Weights, config: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3's: the correction decides who is chosen, within the best groups; the score itself decides the weight."""
    scores = torch.sigmoid(x @ mlp["gate.weight"].T)
    # On disk beside the router in Exaone's files.
    beside = "e_score_correction_bias" in mlp
    corrected = scores + mlp["e_score_correction_bias" if beside else "gate.e_score_correction_bias"]
    rows, experts = scores.shape
    grouped = corrected.reshape(rows, config.n_group, experts // config.n_group)
    strength = grouped.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    open_group = torch.zeros(rows, config.n_group, dtype=torch.bool).scatter(1, _best(strength, config.topk_group), True)
    allowed = grouped.masked_fill(~open_group[..., None], float("-inf")).reshape(rows, experts)
    chosen = _best(allowed, config.num_experts_per_tok)
    share = scores.gather(1, chosen)
    if config.norm_topk_prob:
        share = share / share.sum(-1, keepdim=True)
    return chosen, share * config.routed_scaling_factor


def _softmax_router(mlp: Weights, config: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Qwen's: the most probable experts, their shares made to sum to one (always in 3.5, by the config before)."""
    scores = torch.softmax(x @ mlp["gate.weight"].T, dim=-1)
    chosen = _best(scores, config.num_experts_per_tok)
    share = scores.gather(1, chosen)
    return chosen, share / share.sum(-1, keepdim=True) if getattr(config, "norm_topk_prob", True) else share


def _corrected_softmax_router(mlp: Weights, config: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """ERNIE's: probabilities, of which a correction decides who is chosen."""
    scores = torch.softmax(x @ mlp["gate.weight"].T, dim=-1)
    chosen = _best(scores + mlp["moe_statics.e_score_correction_bias"].reshape(1, -1), config.moe_k)
    share = scores.gather(1, chosen)
    return chosen, share / share.sum(-1, keepdim=True).clamp(min=config.moe_norm_min)


_ROUTERS: dict[str, Callable[[Weights, Any, Tensor], tuple[Tensor, Tensor]]] = {
    "sigmoid": _sigmoid_router,
    "softmax": _softmax_router,
    "corrected softmax": _corrected_softmax_router,
}


def _step_experts(weights: Weights, config: Any, x: Tensor) -> Tensor:
    """Step's experts lie in three tensors [experts, ..., ...] beside ``mlp``; only what is routed is scaled.

    The clamps that a few of its target layers have (``swiglu_limits``) do not reach the MTP layers and are left out.
    """
    moe = weights.under("moe.")
    scores = torch.sigmoid(linear(x, moe.under("gate.")))
    chosen = _best(scores + moe["router_bias"], config.num_experts_per_tok)
    share = scores.gather(1, chosen)
    share = share / share.sum(-1, keepdim=True) * config.moe_router_scaling_factor
    gate, up, down = moe["gate_proj.weight"], moe["up_proj.weight"], moe["down_proj.weight"]
    routed = _mixture(chosen, share, x, lambda e, rows: (silu(rows @ gate[e].T) * (rows @ up[e].T)) @ down[e].T)
    return routed + _gated_mlp(weights.under("share_expert."), x)
