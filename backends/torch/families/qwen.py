"""The layout of Qwen3-Next and Qwen3.5: ``mtp.fc``, ``mtp.pre_fc_norm_*``, ``mtp.norm``, ``mtp.layers.0.*``.

The one layer is of full attention also where the target's layers are recurrent. Norms are stored around zero (1 + w), which the
target's norm class adds. Qwen3-Next's config says nothing of the layer; there is one.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from .contract import Contract, Names

__all__ = ["EXAONE_MOE", "QWEN3_5", "QWEN3_NEXT"]

_NAMES: Final[Names] = (
    ("mtp.fc.", "eh_proj."),
    ("mtp.pre_fc_norm_embedding.", "enorm."),
    ("mtp.pre_fc_norm_hidden.", "hnorm."),
    ("mtp.norm.", "norm."),
    ("mtp.layers.{i}.", "block."),
    ("mtp.embed_tokens.", "embed_tokens."),
    ("mtp.lm_head.", "head."),
    ("mtp.shared_head.", "head."),
    ("mtp.", "unknown."),
)


def _full_attention(config: Any, layers: int) -> Any:
    made = copy.deepcopy(config)
    made.num_hidden_layers = layers
    made.layer_types = ["full_attention"] * layers
    if getattr(made, "mlp_layer_types", None):
        made.mlp_layer_types = [made.mlp_layer_types[-1]] * layers
    if getattr(made, "mlp_only_layers", None):
        made.mlp_only_layers = []
    if getattr(made, "decoder_sparse_step", None):
        made.decoder_sparse_step = 1
    return made


QWEN3_NEXT: Final = Contract(
    name="Qwen3-Next",
    architectures=("Qwen3NextForCausalLM",),
    checkpoints="Qwen3-Next-80B-A3B",
    source="vLLM qwen3_next_mtp.py; SGLang qwen3_next_mtp.py",
    names=_NAMES,
    count=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    norm_offset=1,
    layer_config=_full_attention,
)

QWEN3_5: Final = Contract(
    name="Qwen3.5",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    text_of=(
        ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
        ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    ),
    checkpoints="Qwen3.5 and Qwen3.6, dense and MoE",
    source="vLLM qwen3_5_mtp.py; SGLang qwen3_5_mtp.py; llama.cpp qwen35.cpp",
    names=_NAMES,
    count=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    norm_offset=1,
    layer_config=_full_attention,
)

EXAONE_MOE: Final = Contract(
    name="EXAONE-MoE",
    architectures=("ExaoneMoeForCausalLM",),
    checkpoints="K-EXAONE",
    source="the names of Qwen3-Next (transformers exaone_moe leaves mtp.* out)",
    names=_NAMES,
    count=("num_nextn_predict_layers", "num_mtp_layers"),
    layer_config=_full_attention,
)
