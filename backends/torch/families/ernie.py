"""ERNIE-4.5-MoE: ``model.mtp_emb_norm.0``, ``model.mtp_hidden_norm.0``, ``model.mtp_linear_proj.0``, ``model.mtp_block.0.*``.

No norm follows the block: its output is recycled and scored as it is. The block is dense.
"""

from __future__ import annotations

from typing import Final

from .contract import Contract, blocks

__all__ = ["ERNIE"]

ERNIE: Final = Contract(
    name="ERNIE-4.5",
    architectures=("Ernie4_5_MoeForCausalLM",),
    checkpoints="ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B",
    source="vLLM ernie_mtp.py; SGLang ernie4_eagle.py",
    names=(
        ("model.mtp_emb_norm.{i}.", "enorm."),
        ("model.mtp_hidden_norm.{i}.", "hnorm."),
        ("model.mtp_linear_proj.{i}.", "eh_proj."),
        ("model.mtp_block.{i}.", "block."),
        ("model.mtp_", "unknown."),
    ),
    count=("num_nextn_predict_layers", "num_mtp_layers"),
    final_norm=False,
    layer_config=blocks(moe_layer_start_index=1),
)
