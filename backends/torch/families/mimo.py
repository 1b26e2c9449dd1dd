"""MiMo-V2: three MTP layers ``model.mtp.layers.{0,1,2}.*``, each of sliding-window attention and a dense MLP.

Sources disagree on the hidden stage: vLLM feeds and recycles states after the norms and uses the first layer only; llama.cpp and
SGLang feed states from before them and chain the layers. Here as SGLang and llama.cpp do it. Only acceptance can tell on a
real checkpoint; ``attrs.evolve`` of the contract makes the other to try.
"""

from __future__ import annotations

from typing import Final

from .contract import Contract, blocks

__all__ = ["MIMO_V2"]

MIMO_V2: Final = Contract(
    name="MiMo-V2",
    architectures=("MiMoV2FlashForCausalLM",),
    checkpoints="MiMo-V2-Flash",
    source="SGLang mimo_v2_nextn.py; llama.cpp mimo2.cpp; vLLM mimo_v2_mtp.py disagrees on fed, recycled and chain",
    names=(
        ("model.mtp.layers.{i}.enorm.", "enorm."),
        ("model.mtp.layers.{i}.hnorm.", "hnorm."),
        ("model.mtp.layers.{i}.eh_proj.", "eh_proj."),
        ("model.mtp.layers.{i}.final_layernorm.", "norm."),
        ("model.mtp.layers.{i}.pre_mlp_layernorm.", "block.post_attention_layernorm."),
        ("model.mtp.layers.{i}.", "block."),
        ("model.mtp.", "unknown."),
    ),
    count=("num_nextn_predict_layers", "num_mtp_layers"),
    fed="pre",
    recycled="pre",
    chain="layers",
    layer_config=blocks(layer_types="sliding_attention", mlp_layer_types="dense"),
    rotary_by_type=True,
)
