"""A Llama model out of a GGUF file: tensors under their Hugging Face names, as float32.

GGUF keeps the rows of the query and key projections in another order (pairs of rotated channels lie side by side); they
are put back into the half-and-half order that transformers' rotary embedding expects. Nothing else is changed, and
float32 holds every dequantised value exactly as the formula of its format gives it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# gguf has no type information.
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...engine.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["dequantised"]

_OUTER: Final = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _name(gguf_name: str) -> str:
    if gguf_name in _OUTER:
        return _OUTER[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"
    raise ConfigError(f"the GGUF file holds a tensor that no Llama model has: {gguf_name}")


def _half_and_half(rows: Any, heads: int) -> Any:
    # [heads * (dim/2 pairs of 2), hidden] -> [heads * (2 halves of dim/2), hidden]
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def dequantised(path: Path, heads: int, kv_heads: int) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor of the file, dequantised to float32, in the shapes transformers' Llama classes use."""
    import numpy as np
    from gguf import GGUFReader, dequantize

    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in GGUFReader(str(path)).tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if ".attn_q." in tensor.name:
            values = _half_and_half(values, heads)
        elif ".attn_k." in tensor.name:
            values = _half_and_half(values, kv_heads)
        tensors[_name(tensor.name)] = np.ascontiguousarray(values)
    return tensors
