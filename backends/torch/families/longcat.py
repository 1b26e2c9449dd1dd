"""LongCat-Flash: ``model.mtp.layers.0.*``, ``model.mtp.norm``, ``model.mtp.embed_tokens``.

The target's layers are double (two attentions, two MLPs, experts beside them); the MTP layer is a single one: one latent attention, one
dense MLP, from the target's own modules.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

import copy
from typing import Any, Final

from torch import Tensor, nn

from .contract import Contract

__all__ = ["LONGCAT"]


class _Single(nn.Module):
    # The names are the checkpoint's, behind the renaming below.
    def __init__(self, model: Any, config: Any, index: int) -> None:
        super().__init__()
        double = model.get_decoder().layers[-1]
        norm: Any = type(double.input_layernorm[0])
        eps = double.input_layernorm[0].variance_epsilon
        self.self_attn = type(double.self_attn[0])(config=config, layer_idx=index)
        self.mlp = type(double.mlps[0])(config)
        self.input_layernorm = norm(config.hidden_size, eps=eps)
        self.post_attention_layernorm = norm(config.hidden_size, eps=eps)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **given)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def _single(config: Any, layers: int) -> Any:
    made = copy.deepcopy(config)
    made.num_layers = layers  # transformers counts two attentions for each; the cache has the one
    made.layer_types = ["full_attention"] * layers
    return made


LONGCAT: Final = Contract(
    name="LongCat-Flash",
    architectures=("LongcatFlashForCausalLM",),
    checkpoints="LongCat-Flash-Chat",
    source="vLLM longcat_flash_mtp.py; SGLang longcat_flash_nextn.py",
    names=(
        ("model.mtp.layers.{i}.enorm.m.", "enorm."),
        ("model.mtp.layers.{i}.hnorm.m.", "hnorm."),
        ("model.mtp.layers.{i}.eh_proj.", "eh_proj."),
        ("model.mtp.layers.{i}.transformer_layer.", "block."),
        ("model.mtp.layers.{i}.", "block."),
        ("model.mtp.norm.", "norm."),
        ("model.mtp.embed_tokens.", "embed_tokens."),
        ("model.mtp.", "unknown."),
    ),
    count=("num_nextn_predict_layers", "num_mtp_layers"),
    layer_config=_single,
    block=_Single,
)
