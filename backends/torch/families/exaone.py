"""EXAONE-MoE (K-EXAONE): the names of Qwen3-Next's layer; a dense MLP behind full attention, which has no rotary positions here.

vLLM and SGLang agree that the MLP is dense. On the attention sources differ (SGLang reads a sliding window, Megatron's default is full).
The tensors are the same either way, and only acceptance on a published checkpoint can tell.
"""

from __future__ import annotations

from typing import Final

from .contract import Contract, blocks
from .qwen import NAMES

__all__ = ["EXAONE_MOE"]

EXAONE_MOE: Final = Contract(
    name="EXAONE-MoE",
    architectures=("ExaoneMoeForCausalLM",),
    checkpoints="K-EXAONE",
    source="vLLM exaone_moe.py; SGLang; transformers exaone_moe (which leaves mtp.* out)",
    names=NAMES,
    count=("num_nextn_predict_layers", "num_mtp_layers"),
    layer_config=blocks(layer_types="full_attention", mlp_layer_types="dense"),
)
