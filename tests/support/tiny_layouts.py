"""What the tiny checkpoints of ``tiny_families`` are made of: for each family a config, and the names of its MTP tensors on disk.

The names are written down here a second time, apart from the package's own tables, so that the two can be compared. They are those
of the public checkpoints; shapes and block names come from transformers, which is asked for the target with one more layer of the
MTP block's kind (``grown``) and whose names for that layer are rewritten (``block``).
"""

from __future__ import annotations

from typing import Any

from tiny_layout import Layout

__all__ = ["LAYOUTS", "WINDOW"]

WINDOW = 8
_COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_NEXTN = {"num_nextn_predict_layers": 1}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# --- model.layers.{N}.*, DeepSeek-V3's. Copies of the target's embedding and output matrix lie beside the layer in the big ones.
_DEEPSEEK_BLOCK = (("model.layers.{last}.", "model.layers.{n}."),)
_DEEPSEEK_PARTS = (
    ("model.layers.{n}.enorm.weight", "norm"),
    ("model.layers.{n}.hnorm.weight", "norm"),
    ("model.layers.{n}.eh_proj.weight", "projection"),
    ("model.layers.{n}.shared_head.norm.weight", "norm"),
)
_DEEPSEEK_COPIES = (
    ("model.layers.{n}.embed_tokens.weight", "embedding"),
    ("model.layers.{n}.shared_head.head.weight", "head"),
)


def _dense(name: str, **values: Any) -> Layout:
    return Layout(
        config=f"{name}Config",
        model=f"{name}ForCausalLM",
        values=_COMMON | {"num_hidden_layers": 2, "head_dim": 8} | values,
        grown={"num_hidden_layers": 3},
        block=_DEEPSEEK_BLOCK,
        parts=_DEEPSEEK_PARTS,
        declared=_NEXTN,
    )


_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_EXPERTS = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}

_DEEPSEEK_V3 = Layout(
    config="DeepseekV3Config",
    model="DeepseekV3ForCausalLM",
    values=_COMMON | _LATENT | _EXPERTS | {"num_hidden_layers": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
    grown={"num_hidden_layers": 3},
    block=_DEEPSEEK_BLOCK,
    parts=_DEEPSEEK_PARTS + _DEEPSEEK_COPIES,
    declared=_NEXTN,
)
_GLM4_MOE = Layout(
    config="Glm4MoeConfig",
    model="Glm4MoeForCausalLM",
    values=_COMMON
    | _EXPERTS
    | {
        "num_hidden_layers": 2,
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": True,
        "attention_bias": True,
        "rope_parameters": _ROPE | {"partial_rotary_factor": 0.5},
    },
    grown={"num_hidden_layers": 3},
    block=_DEEPSEEK_BLOCK,
    parts=_DEEPSEEK_PARTS + _DEEPSEEK_COPIES,
    declared=_NEXTN,
)
_GLM4_MOE_LITE = Layout(
    config="Glm4MoeLiteConfig",
    model="Glm4MoeLiteForCausalLM",
    values=_COMMON | _LATENT | _EXPERTS | {"num_hidden_layers": 2, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"]},
    grown={"num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    block=_DEEPSEEK_BLOCK,
    parts=_DEEPSEEK_PARTS + _DEEPSEEK_COPIES,
    declared=_NEXTN,
)

# --- mtp.*, Qwen3-Next's. The block is of full attention; the target's layers are three of linear attention and one full.
_QWEN_PARTS = (
    ("mtp.fc.weight", "projection"),
    ("mtp.pre_fc_norm_embedding.weight", "norm"),
    ("mtp.pre_fc_norm_hidden.weight", "norm"),
    ("mtp.norm.weight", "norm"),
)
_LINEAR = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
_LINEAR_GROWN = {"num_hidden_layers": 5, "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2}
_QWEN_EXPERTS = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
_MROPE = _ROPE | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "patch_size": 4,
    "temporal_patch_size": 1,
}

_QWEN3_NEXT = Layout(
    config="Qwen3NextConfig",
    model="Qwen3NextForCausalLM",
    values=_COMMON | _LINEAR | _QWEN_EXPERTS | {"norm_topk_prob": True, "rope_parameters": _ROPE | {"partial_rotary_factor": 0.25}},
    grown=_LINEAR_GROWN,
    block=(("model.layers.{last}.", "mtp.layers.{i}."),),
    parts=_QWEN_PARTS,
    around_zero=True,
)


def _qwen3_5(kind: str, **values: Any) -> Layout:
    return Layout(
        config=f"{kind}TextConfig",
        model=f"{kind}ForCausalLM",
        values=_COMMON | _LINEAR | {"rope_parameters": _MROPE} | values,
        grown=_LINEAR_GROWN,
        block=(("model.language_model.layers.{last}.", "mtp.layers.{i}."),),
        parts=_QWEN_PARTS,
        declared={"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False},
        whole=(f"{kind}Config", f"{kind}ForConditionalGeneration", _QWEN_VISION),
        around_zero=True,
    )


_EXAONE_MOE = Layout(
    config="ExaoneMoeConfig",
    model="ExaoneMoeForCausalLM",
    values=_COMMON
    | {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LLLG",
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * 3,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "routed_scaling_factor": 1.5,
        "rope_parameters": _ROPE,
    },
    # The block's MLP is dense, and its attention is sliding or full: the tensors are the same.
    grown={
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2,
        "mlp_layer_types": ["dense"] + ["sparse"] * 3 + ["dense"],
    },
    block=(("model.layers.{last}.", "mtp.layers.{i}."),),
    parts=_QWEN_PARTS,
    declared=_NEXTN,
)

# --- model.mtp.layers.{i}.*, MiMo-V2's: each layer slides and is dense.
_MIMO_V2 = Layout(
    config="MiMoV2FlashConfig",
    model="MiMoV2FlashForCausalLM",
    values=_COMMON
    | {
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "v_head_dim": 8,
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * 3,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    },
    grown={
        "num_hidden_layers": 5,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * 3 + ["dense"],
    },
    block=(
        ("model.layers.{last}.post_attention_layernorm.", "model.mtp.layers.{i}.pre_mlp_layernorm."),
        ("model.layers.{last}.", "model.mtp.layers.{i}."),
    ),
    parts=(
        ("model.mtp.layers.{i}.enorm.weight", "norm"),
        ("model.mtp.layers.{i}.hnorm.weight", "norm"),
        ("model.mtp.layers.{i}.eh_proj.weight", "projection"),
        ("model.mtp.layers.{i}.final_layernorm.weight", "norm"),
    ),
    layers=3,
    declared={"num_nextn_predict_layers": 3},
)

# --- model.mtp_*.{i}, ERNIE-4.5's: a dense block, and no norm behind it.
_ERNIE4_5_MOE = Layout(
    config="Ernie4_5_MoeConfig",
    model="Ernie4_5_MoeForCausalLM",
    values=_COMMON
    | {
        "num_hidden_layers": 3,
        "moe_intermediate_size": 16,
        "moe_k": 2,
        "moe_num_experts": 4,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 2,
        "rope_parameters": _ROPE,
        "tie_word_embeddings": True,
    },
    grown={"num_hidden_layers": 4},
    block=(("model.layers.{last}.", "model.mtp_block.{i}."),),
    parts=(
        ("model.mtp_emb_norm.{i}.weight", "norm"),
        ("model.mtp_hidden_norm.{i}.weight", "norm"),
        ("model.mtp_linear_proj.{i}.weight", "projection"),
    ),
    declared=_NEXTN,
)

# --- LongCat-Flash: the target's layers are double; the MTP layer is the first half of one, without experts.
_LONGCAT_FLASH = Layout(
    config="LongcatFlashConfig",
    model="LongcatFlashForCausalLM",
    values={key: value for key, value in _COMMON.items() if key not in ("intermediate_size", "num_key_value_heads")}
    | {key: value for key, value in _LATENT.items() if key != "num_key_value_heads"}
    | {
        "num_layers": 2,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
        "routed_scaling_factor": 1.5,
        "head_dim": 8,
        "rope_parameters": _ROPE,
    },
    grown={"num_layers": 3},
    block=(
        ("model.layers.{last}.self_attn.0.", "model.mtp.layers.{i}.self_attn."),
        ("model.layers.{last}.mlps.0.", "model.mtp.layers.{i}.transformer_layer.mlp."),
        ("model.layers.{last}.input_layernorm.0.", "model.mtp.layers.{i}.input_layernorm."),
        ("model.layers.{last}.post_attention_layernorm.0.", "model.mtp.layers.{i}.post_attention_layernorm."),
    ),
    parts=(
        ("model.mtp.layers.{i}.enorm.m.weight", "norm"),
        ("model.mtp.layers.{i}.hnorm.m.weight", "norm"),
        ("model.mtp.layers.{i}.eh_proj.weight", "projection"),
        ("model.mtp.norm.weight", "norm"),
        ("model.mtp.embed_tokens.weight", "embedding"),
    ),
    declared=_NEXTN,
)

# --- Nemotron-H: two blocks, attention and experts, make one MTP layer.
_NEMOTRON_H = Layout(
    config="NemotronHConfig",
    model="NemotronHForCausalLM",
    values=_COMMON
    | {
        "layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "conv_kernel": 4,
        "chunk_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 24,
        "routed_scaling_factor": 1.5,
    },
    grown={"layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "moe", "full_attention", "moe"]},
    block=(("backbone.layers.{last}.", "mtp.layers.1."), ("backbone.layers.{before}.", "mtp.layers.0.")),
    parts=(
        ("mtp.layers.0.enorm.weight", "norm"),
        ("mtp.layers.0.hnorm.weight", "norm"),
        ("mtp.layers.0.eh_proj.weight", "projection"),
        ("mtp.layers.1.final_layernorm.weight", "norm"),
    ),
    declared={**_NEXTN, "hybrid_override_pattern": "MEM*E", "mtp_hybrid_override_pattern": "*E", "num_hidden_layers": 5},
    hidden=("layers_block_type", "layer_types", "mtp_layers_block_type"),
)

# --- Step-3.5 and 3.7: three sliding, dense layers, each with a norm and an output matrix of its own.
_STEP_KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
_STEP3P5 = Layout(
    config="Step3p7TextConfig",
    model="Step3p7ForConditionalGeneration",
    values=_COMMON
    | {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_sliding_attention_heads": 6,
        "sliding_window": WINDOW,
        "layer_types": _STEP_KINDS,
        "mlp_layer_types": ["dense"] + ["sparse"] * 3,
        "moe_intermediate_size": 16,
        "share_expert_dim": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_router_scaling_factor": 1.5,
        "rope_theta": [100000.0, 10000.0, 10000.0, 100000.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
    },
    grown={
        "num_hidden_layers": 5,
        "layer_types": [*_STEP_KINDS, "sliding_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * 3 + ["dense"],
        "rope_theta": [100000.0, 10000.0, 10000.0, 100000.0, 10000.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
    },
    block=(("model.layers.{last}.", "model.layers.{n}."),),
    parts=(
        ("model.layers.{n}.enorm.weight", "norm"),
        ("model.layers.{n}.hnorm.weight", "norm"),
        ("model.layers.{n}.eh_proj.weight", "projection"),
        ("model.layers.{n}.transformer.shared_head.norm.weight", "norm"),
        ("model.layers.{n}.transformer.shared_head.output.weight", "own head"),
    ),
    layers=3,
    declared={
        "num_nextn_predict_layers": 3,
        "layer_types": _STEP_KINDS + ["sliding_attention"] * 3,
        "mlp_layer_types": ["dense"] + ["sparse"] * 3 + ["dense"] * 3,
    },
    whole=(
        "Step3p7Config",
        "Step3p7ForConditionalGeneration",
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "mlp_ratio": 1.0},
    ),
    around_zero=True,
)

LAYOUTS: dict[str, Layout] = {
    "llama": _dense("Llama"),
    "qwen2": _dense("Qwen2", tie_word_embeddings=True),
    "qwen3": _dense("Qwen3", head_dim=16),
    "deepseek_v3": _DEEPSEEK_V3,
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": _GLM4_MOE_LITE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _qwen3_5("Qwen3_5"),
    "qwen3_5_moe": _qwen3_5("Qwen3_5Moe", **_QWEN_EXPERTS),
    "mimo_v2": _MIMO_V2,
    "ernie4_5_moe": _ERNIE4_5_MOE,
    "longcat_flash": _LONGCAT_FLASH,
    "nemotron_h": _NEMOTRON_H,
    "step3p5": _STEP3P5,
    "exaone_moe": _EXAONE_MOE,
}
