"""The DeepSeek-V3 layout: ``model.layers.{N}.*`` behind the last of N target layers.

DeepSeek's own report chains one module per token; its checkpoints hold one, and engines recycle it. What is recycled: the
state after ``shared_head.norm`` (vLLM ``deepseek_mtp.py``, SGLang, llama.cpp, transformers; vLLM's GLM-4.5 classes return the sum
before it, with lower acceptance: ROCm/ATOM#1764).
"""

from __future__ import annotations

import copy
from typing import Any, Final

from .contract import Contract, Names

__all__ = ["DEEPSEEK"]

_NAMES: Final[Names] = (
    ("model.layers.{n}.enorm.", "enorm."),
    ("model.layers.{n}.hnorm.", "hnorm."),
    ("model.layers.{n}.eh_proj.", "eh_proj."),
    ("model.layers.{n}.shared_head.norm.", "norm."),
    ("model.layers.{n}.shared_head.head.", "head."),
    ("model.layers.{n}.embed_tokens.", "embed_tokens."),
    ("model.layers.{n}.", "block."),
)


def _last_kind(config: Any, layers: int) -> Any:
    """The config for blocks by index 0, 1, ...: of the kind of the target's last layer (with experts, where it has them)."""
    made = copy.deepcopy(config)
    made.num_hidden_layers = layers
    if getattr(made, "first_k_dense_replace", None) is not None:
        made.first_k_dense_replace = 0
    for field in ("layer_types", "mlp_layer_types"):
        kinds = getattr(made, field, None)
        if kinds:
            setattr(made, field, [kinds[-1]] * layers)
    return made


DEEPSEEK: Final = Contract(
    name="DeepSeek-V3",
    architectures=(
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
    ),
    checkpoints="DeepSeek-V3, DeepSeek-R1, Kimi-K2, GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7-Flash; the models that ship with this package",
    source="DeepSeek-V3 report (arXiv 2412.19437); vLLM deepseek_mtp.py, glm4_moe_mtp.py, glm4_moe_lite_mtp.py; transformers MtpModel",
    names=_NAMES,
    count=("num_nextn_predict_layers", "num_mtp_layers"),
    layer_config=_last_kind,
)
