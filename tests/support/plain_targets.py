"""Tiny targets of the families, transformers' own, that the plain-tensor layers are compared with.

Every layer is one of those that MTP modules are made of: attention and feed forward, no recurrence. Where a family has two kinds of
attention or of feed forward, the target has both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from plain_layers import TRAITS
from safetensors.torch import load_file
from torch import Tensor

__all__ = ["CASES", "PER_KIND", "WINDOW", "Case", "rope", "saved", "scatter", "states_of", "target"]

WINDOW = 5
COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "eos_token_id": None,
    "pad_token_id": 0,
    # Large, so that it matters which epsilon a norm has.
    "rms_norm_eps": 0.03,
}
_LATENT = {"q_lora_rank": 12, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6, "v_head_dim": 10}
_EXPERTS = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
_GROUPS = {"n_group": 4, "topk_group": 2}
_QWEN_EXPERTS = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 3}
_FULL = ["full_attention", "full_attention"]
_BOTH = ["full_attention", "sliding_attention"]
_MLPS = ["dense", "sparse"]


def rope(portion: float | None = None, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **({} if portion is None else {"partial_rotary_factor": portion}), **more}


PER_KIND = {"full_attention": rope(0.5, 50000.0), "sliding_attention": rope(0.75)}


@dataclass(frozen=True)
class Case:
    """``values`` of the config; ``kinds`` of the layers' attention; ``only`` the fields of the common ones that are not there."""

    family: str
    name: str
    values: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("full_attention", "full_attention")
    without: tuple[str, ...] = ()
    model: str = ""
    note: str = ""

    def config(self) -> Any:
        common = {key: value for key, value in COMMON.items() if key not in self.without}
        return getattr(transformers, f"{self.name}Config")(**(common | self.values))

    def __str__(self) -> str:
        return " ".join(filter(None, (self.family, self.note)))


_QWEN_LAYERS = {"num_hidden_layers": 2, "head_dim": 16, "layer_types": _FULL}
_EXAONE = {
    "num_hidden_layers": 2,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "sliding_window_pattern": "LG",
    "layer_types": _BOTH,
    "mlp_layer_types": _MLPS,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "routed_scaling_factor": 1.7,
    "rope_parameters": rope(),
}
_MIMO = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "v_head_dim": 6,
    "sliding_window": WINDOW,
    "layer_types": _BOTH,
    "mlp_layer_types": _MLPS,
    "rope_parameters": PER_KIND,
    "attention_bias": True,
}
_STEP = {
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_sliding_attention_heads": 6,
    "sliding_window": WINDOW,
    "layer_types": _BOTH,
    "mlp_layer_types": _MLPS,
    "moe_intermediate_size": 16,
    "share_expert_dim": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_router_scaling_factor": 1.7,
    "rope_theta": [50000.0, 10000.0],
    "partial_rotary_factors": [0.5, 1.0],
}
_NEMOTRON = {
    "layers_block_type": ["full_attention", "moe", "mlp"],
    "head_dim": 8,
    "layer_norm_epsilon": 0.03,
    "moe_shared_expert_intermediate_size": 24,
    **_EXPERTS,
    **_GROUPS,
}

CASES = (
    Case("llama", "Llama", {"num_hidden_layers": 2, "attention_bias": True, "rope_parameters": rope()}),
    Case("qwen2", "Qwen2", {"num_hidden_layers": 2, "rope_parameters": rope()}),
    Case("qwen3", "Qwen3", {"num_hidden_layers": 2, "head_dim": 16, "rope_parameters": rope()}),
    Case(
        "deepseek_v3",
        "DeepseekV3",
        {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4, **_LATENT, **_EXPERTS, **_GROUPS},
    ),
    Case(
        "deepseek_v3",
        "DeepseekV3",
        {
            "num_hidden_layers": 2,
            "first_k_dense_replace": 0,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "rope_interleave": False,
            **_LATENT,
            **_EXPERTS,
            **_GROUPS,
            "q_lora_rank": None,
            "n_shared_experts": 2,
        },
        note="whole queries, halved pairs",
    ),
    Case(
        "glm4_moe",
        "Glm4Moe",
        {
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": rope(0.5),
            **_EXPERTS,
            **_GROUPS,
        },
    ),
    Case(
        "glm4_moe_lite",
        "Glm4MoeLite",
        {"num_hidden_layers": 2, "num_key_value_heads": 4, "mlp_layer_types": _MLPS, **_LATENT, **_EXPERTS, **_GROUPS},
    ),
    Case("qwen3_next", "Qwen3Next", _QWEN_LAYERS | _QWEN_EXPERTS | {"norm_topk_prob": True, "rope_parameters": rope(0.25)}),
    Case(
        "qwen3_next",
        "Qwen3Next",
        _QWEN_LAYERS | _QWEN_EXPERTS | {"norm_topk_prob": False, "mlp_only_layers": [0], "rope_parameters": rope(0.5)},
        note="shares as they are",
    ),
    Case("qwen3_5", "Qwen3_5Text", _QWEN_LAYERS | {"rope_parameters": rope(0.5, mrope_section=[2, 1, 1])}, model="Qwen3_5ForCausalLM"),
    Case(
        "qwen3_5_moe",
        "Qwen3_5MoeText",
        _QWEN_LAYERS | _QWEN_EXPERTS | {"rope_parameters": rope(0.5, mrope_section=[2, 1, 1])},
        model="Qwen3_5MoeForCausalLM",
    ),
    Case("mimo_v2", "MiMoV2Flash", _MIMO | _EXPERTS | _GROUPS, kinds=tuple(_BOTH)),
    Case(
        "ernie4_5_moe",
        "Ernie4_5_Moe",
        {
            "num_hidden_layers": 2,
            "moe_intermediate_size": 16,
            "moe_k": 3,
            "moe_num_experts": 6,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "use_bias": True,
            "rope_parameters": rope(),
        },
    ),
    Case(
        "longcat_flash",
        "LongcatFlash",
        {
            "num_layers": 1,
            "ffn_hidden_size": 40,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": 4,
            "zero_expert_num": 0,
            "moe_topk": 2,
            "head_dim": 8,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "rope_parameters": rope(),
            **_LATENT,
        },
        kinds=("full_attention",),
        without=("intermediate_size",),
    ),
    Case("nemotron_h", "NemotronH", _NEMOTRON, kinds=("full_attention",) * 3),
    Case("nemotron_h", "NemotronH", _NEMOTRON | {"moe_latent_size": 12}, kinds=("full_attention",) * 3, note="latent experts"),
    Case("step3p5", "Step3p7Text", _STEP, kinds=tuple(_BOTH), model="Step3p7ForConditionalGeneration"),
    Case("exaone_moe", "ExaoneMoe", _EXAONE | _GROUPS, kinds=tuple(_BOTH)),
)


def target(case: Case) -> Any:
    """The tiny model, with eager attention and weights that leave no convention without effect."""
    config = case.config()
    name = case.model or f"{case.name}ForCausalLM"
    if name == "Step3p7ForConditionalGeneration":  # has no class of its own for text
        vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "mlp_ratio": 1.0}
        config = transformers.Step3p7Config(text_config=config.to_dict(), vision_config=vision)
    model = getattr(transformers, name)(config).eval()
    model.set_attn_implementation("eager")
    scatter(model, TRAITS[case.family].offset, seed=len(str(case)))
    return model


@torch.no_grad()
def scatter(model: torch.nn.Module, offset: float, seed: int) -> None:
    """Random values for every parameter and saved buffer, none of them where it would have no effect."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if value.dtype.is_floating_point:
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith(("norm.weight", "layernorm.weight", "norm.0.weight", "norm.1.weight", "norm_f.weight")):
                value.copy_(1 - offset + 0.4 * noise)
            elif name.endswith("e_score_correction_bias"):
                value.copy_(0.15 * noise)
            elif value.dim() == 1:
                value.copy_(0.5 * noise)
            else:
                value.copy_(noise if "embed" in name else 1.3 * noise / value.shape[-1] ** 0.5)


def saved(model: Any, folder: Path) -> dict[str, Tensor]:
    """The model's tensors by their names on disk."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@torch.no_grad()
def states_of(model: Any, rows: int) -> list[Tensor]:
    """Hidden states before and behind every layer, [rows, hidden]; the last behind the final norm. Positions begin at 1."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(2, COMMON["vocab_size"], (1, rows), generator=generator)
    positions = torch.arange(1, rows + 1)[None]
    out = model.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False, output_hidden_states=True)
    return [state[0] for state in out.hidden_states]
