"""The layout of Qwen3-Next and Qwen3.5: ``mtp.fc``, ``mtp.pre_fc_norm_*``, ``mtp.norm``, ``mtp.layers.0.*``.

The one layer is of full attention also where the target's layers are recurrent, with experts where the target has them. Norms are
stored around zero (1 + w), which the target's norm class adds. Qwen3-Next's config says nothing of the layer; there is one.
"""

from __future__ import annotations

from typing import Final

from .contract import Contract, Names, blocks

__all__ = ["NAMES", "QWEN"]

NAMES: Final[Names] = (
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

QWEN: Final = Contract(
    name="Qwen3-Next and Qwen3.5",
    architectures=("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    text_of=(
        ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
        ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    ),
    checkpoints="Qwen3-Next-80B-A3B; Qwen3.5 and Qwen3.6, dense and MoE",
    source="vLLM and SGLang qwen3_next_mtp.py, qwen3_5_mtp.py; llama.cpp qwen35.cpp",
    names=NAMES,
    count=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    norm_offset=1,
    layer_config=blocks(layer_types="full_attention", mlp_only_layers=[], decoder_sparse_step=1),
)
