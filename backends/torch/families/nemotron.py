"""Nemotron-H: one MTP layer of two blocks, ``mtp.layers.0.*`` (attention) and ``mtp.layers.1.*`` (experts), by the config's pattern.

Each block has its own norm and residual; there is no rotary table in this family.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

import copy
from typing import Any, Final

from torch import Tensor, nn

from ....engine.errors import ConfigError
from .contract import Contract

__all__ = ["NEMOTRON_H"]


class _Blocks(nn.ModuleList):
    def __init__(self, model: Any, config: Any, index: int) -> None:
        kind: Any = type(model.get_decoder().layers[-1])
        super().__init__(kind(config, at) for at in range(len(config.layers_block_type)))
        self._kinds = tuple(config.layers_block_type)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, **given: Any) -> Tensor:
        for kind, block in zip(self._kinds, self, strict=True):
            hidden_states = block(hidden_states, attention_mask=attention_mask if kind == "full_attention" else None, **given)
        return hidden_states


def _pattern(config: Any, layers: int) -> Any:
    made, kinds = copy.deepcopy(config), list(config.mtp_layers_block_type)
    if kinds[:1] != ["full_attention"] or not set(kinds[1:]) <= {"moe", "mlp"}:
        raise ConfigError(f"an MTP layer of the blocks {', '.join(kinds)} is not supported: attention first, then moe or mlp")
    made.layer_types = kinds
    made.num_hidden_layers = len(kinds)
    return made


NEMOTRON_H: Final = Contract(
    name="Nemotron-H",
    architectures=("NemotronHForCausalLM",),
    checkpoints="Nemotron-3 Nano and Super",
    source="vLLM nemotron_h_mtp.py; SGLang nemotron_h_mtp.py",
    norm="norm_f",
    names=(
        ("mtp.layers.0.enorm.", "enorm."),
        ("mtp.layers.0.hnorm.", "hnorm."),
        ("mtp.layers.0.eh_proj.", "eh_proj."),
        ("mtp.layers.1.final_layernorm.", "norm."),
        ("mtp.layers.", "block."),
        ("mtp.", "unknown."),
    ),
    count=("num_nextn_predict_layers",),
    layer_config=_pattern,
    block=_Blocks,
)
