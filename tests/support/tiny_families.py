"""Tiny checkpoints of the model families with native MTP layers, randomly initialised, in the key layout of the public ones.

The names of the MTP tensors are written out here, independently of the contracts of the backend. The block's own tensors are those that
transformers saves for a layer of that kind, under the family's prefix.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from attrs import field, frozen
from safetensors.torch import load_file, save_file

__all__ = ["FAMILIES", "write"]

VOCABULARY = 128
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_EXPERTS: dict[str, Any] = {"intermediate_size": 48, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_ROUTED: dict[str, Any] = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
_LINEAR: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}


@frozen
class _Family:
    """How to make one.

    Attributes:
        config, model: names of transformers' classes.
        values: of the config.
        joint: checkpoint name of each tensor beside the block: ``{i}`` the layer, ``{n}`` its number behind the target's.
        block: checkpoint prefix of the block's tensors.
        count: the config's field for the number of MTP layers; None: it has none.
        layers: how many.
        extra: changes of the config for the model whose last layer is the MTP layer's block.
        rename: of the block's names, behind the prefix.
        centred: norms are stored around zero.
    """

    config: str
    model: str
    values: dict[str, Any]
    joint: dict[str, str]
    block: str
    count: str | None = "num_nextn_predict_layers"
    layers: int = 1
    extra: dict[str, Any] = field(factory=dict)
    rename: Callable[[str], str | None] = str
    centred: bool = False


_DEEPSEEK = {
    "enorm": "model.layers.{n}.enorm.weight",
    "hnorm": "model.layers.{n}.hnorm.weight",
    "eh_proj": "model.layers.{n}.eh_proj.weight",
    "norm": "model.layers.{n}.shared_head.norm.weight",
}
_QWEN = {
    "enorm": "mtp.pre_fc_norm_embedding.weight",
    "hnorm": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj": "mtp.fc.weight",
    "norm": "mtp.norm.weight",
}
_MIMO = {
    "enorm": "model.mtp.layers.{i}.enorm.weight",
    "hnorm": "model.mtp.layers.{i}.hnorm.weight",
    "eh_proj": "model.mtp.layers.{i}.eh_proj.weight",
    "norm": "model.mtp.layers.{i}.final_layernorm.weight",
}
_ERNIE = {
    "enorm": "model.mtp_emb_norm.{i}.weight",
    "hnorm": "model.mtp_hidden_norm.{i}.weight",
    "eh_proj": "model.mtp_linear_proj.{i}.weight",
}

_MADE: dict[str, _Family] = {
    "deepseek_v3": _Family("DeepseekV3Config", "DeepseekV3ForCausalLM", _MLA | _EXPERTS | _ROUTED, _DEEPSEEK, "model.layers.{n}."),
    "glm4_moe": _Family(
        "Glm4MoeConfig",
        "Glm4MoeForCausalLM",
        _EXPERTS | _ROUTED | {"head_dim": 16, "use_qk_norm": True, "partial_rotary_factor": 0.5},
        _DEEPSEEK,
        "model.layers.{n}.",
    ),
    "glm4_moe_lite": _Family(
        "Glm4MoeLiteConfig",
        "Glm4MoeLiteForCausalLM",
        _MLA | _EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "mlp_layer_types": None},
        _DEEPSEEK,
        "model.layers.{n}.",
    ),
    "qwen3_next": _Family(
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        _EXPERTS | _LINEAR | {"num_experts": 4, "shared_expert_intermediate_size": 16},
        _QWEN,
        "mtp.layers.0.",
        count=None,
        centred=True,
    ),
    "qwen3_5": _Family(
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        _LINEAR | {"intermediate_size": 48},
        _QWEN,
        "mtp.layers.0.",
        count="mtp_num_hidden_layers",
        centred=True,
    ),
    "qwen3_5_moe": _Family(
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        _EXPERTS | _LINEAR | {"num_experts": 4, "shared_expert_intermediate_size": 16},
        _QWEN,
        "mtp.layers.0.",
        count="mtp_num_hidden_layers",
        centred=True,
    ),
    "exaone_moe": _Family(
        "ExaoneMoeConfig",
        "ExaoneMoeForCausalLM",
        _EXPERTS
        | {
            "head_dim": 16,
            "num_experts": 4,
            "num_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        _QWEN,
        "mtp.layers.0.",
    ),
    "mimo_v2": _Family(
        "MiMoV2FlashConfig",
        "MiMoV2FlashForCausalLM",
        _EXPERTS
        | {
            "head_dim": 16,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        _MIMO,
        "model.mtp.layers.{i}.",
        layers=3,
        extra={
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        },
        rename=lambda name: name.replace("post_attention_layernorm.", "pre_mlp_layernorm."),
    ),
    "ernie4_5_moe": _Family(
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        {
            "intermediate_size": 48,
            "moe_intermediate_size": 16,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
        },
        _ERNIE,
        "model.mtp_block.{i}.",
    ),
}
FAMILIES = tuple(_MADE)


def write(family: str, folder: Path, *, seed: int = 0, shards: bool = False, **changes: Any) -> Path:
    """Save a complete checkpoint. ``shards``: the MTP tensors in a file of their own, named by an index; ``changes``: of the config."""
    made = _MADE[family]
    values = {key: value for key, value in (_COMMON | made.values | changes).items() if value is not None or key.endswith("token_id")}
    config = getattr(transformers, made.config)(**values)
    hidden_layers = config.num_hidden_layers
    target = _saved(made, config, seed)
    head: dict[str, torch.Tensor] = {}
    longer = {key: (value + value[-1:] if isinstance(value, list) else value) for key, value in values.items()}
    deeper = getattr(transformers, made.config)(**(longer | {"num_hidden_layers": hidden_layers + 1} | made.extra))
    for layer in range(made.layers):
        block = _saved(made, deeper, seed + 1 + layer)
        prefix = f"model.layers.{hidden_layers}."
        for key, value in block.items():
            name = made.rename(key.removeprefix(prefix)) if key.startswith(prefix) else None
            if name is not None:
                head[made.block.format(i=layer, n=hidden_layers + layer) + name] = value
        generator = torch.Generator().manual_seed(seed + 100 + layer)
        for part, key in made.joint.items():
            shape = (32, 64) if part == "eh_proj" else (32,)
            noise = torch.randn(shape, generator=generator)
            centre = 0.0 if made.centred else 1.0
            head[key.format(i=layer, n=hidden_layers + layer)] = 0.25 * noise if part == "eh_proj" else centre + 0.3 * noise
    folder.mkdir(parents=True, exist_ok=True)
    saved = config.to_dict() | {"architectures": [made.model], "dtype": "float32"}
    if made.count is not None:
        saved[made.count] = made.layers
        saved.pop("num_mtp_layers", None)
    (folder / "config.json").write_text(json.dumps(saved))
    parts = {"model-00001-of-00002.safetensors": target, "model-00002-of-00002.safetensors": head}
    if not shards:
        parts = {"model.safetensors": target | head}
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    if shards:
        index = {key: name for name, part in parts.items() for key in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def _saved(made: _Family, config: Any, seed: int) -> dict[str, torch.Tensor]:
    """A random model's tensors by the names that transformers saves them under."""
    torch.manual_seed(seed)
    model = getattr(transformers, made.model)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if "embed_tokens" in name:
                parameter.copy_(noise)
            elif parameter.ndim == 1 and "norm" in name:
                centre = 0.0 if made.centred and "linear_attn" not in name else 1.0
                parameter.copy_(centre + 0.3 * noise)
            elif "A_log" in name or "dt_bias" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(0.25 * noise)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")
