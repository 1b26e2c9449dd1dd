"""Step-3.5 and 3.7: three MTP layers behind the target's, ``model.layers.{N..N+2}.*``, each with an output matrix of its own.

Fed and recycled are the states from *before* the norms (vLLM, SGLang and llama.cpp agree; transformers' generic MTP code feeds
those after). Norms are stored around zero (1 + w), which the target's norm class adds.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' configs carry partial type information.
from __future__ import annotations

from typing import Any, Final

from .contract import Contract

__all__ = ["STEP"]


def _by_transformers(config: Any, layers: int) -> Any:
    made = config.get_mtp_config()
    made.num_hidden_layers = layers
    # Which it leaves out: windowed layers have another number of heads.
    heads = {"num_attention_heads": config.num_sliding_attention_heads}
    made.per_layer_config = {at: heads for at, kind in enumerate(made.layer_types[:layers]) if kind == "sliding_attention"}
    return made


STEP: Final = Contract(
    name="Step-3.5",
    architectures=("Step3p7ForConditionalGeneration",),
    checkpoints="Step-3.5-Flash, Step-3.7-Flash",
    source="vLLM step3p5_mtp.py; SGLang step3p5_mtp.py; llama.cpp step35.cpp",
    names=(
        ("model.layers.{n}.enorm.", "enorm."),
        ("model.layers.{n}.hnorm.", "hnorm."),
        ("model.layers.{n}.eh_proj.", "eh_proj."),
        ("model.layers.{n}.transformer.shared_head.norm.", "norm."),
        ("model.layers.{n}.transformer.shared_head.output.", "head."),
        ("model.layers.{n}.shared_head.norm.", "norm."),
        ("model.layers.{n}.shared_head.output.", "head."),
        ("model.layers.{n}.embed_tokens.", "embed_tokens."),
        ("model.layers.{n}.transformer.", "block."),
        ("model.layers.{n}.", "block."),
    ),
    count=("num_nextn_predict_layers",),
    fed="pre",
    recycled="pre",
    chain="layers",
    own_head=True,
    norm_offset=1,
    layer_config=_by_transformers,
    rotary_by_type=True,
)
