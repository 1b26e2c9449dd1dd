"""The plain-tensor decoder layers against transformers' own, family by family, from the files that ``save_pretrained`` writes.

The plain formulation is what the library's MTP heads are compared with, so it must itself be right: every layer of a tiny target is
computed by both, without a cache and past the window.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import plain_layers
import pytest
import torch
from plain_layers import TRAITS, decoder_layer, norm_eps
from plain_ops import Weights, norm
from plain_targets import CASES, PER_KIND, WINDOW, Case, rope, saved, states_of, target
from torch import Tensor

ROWS = 21


def _layer_prefix(tensors: Mapping[str, Tensor], index: int) -> str:
    text = [name for name in tensors if "vision" not in name]
    found = {match[1] for name in text if (match := re.match(rf"(.*?\blayers\.{index}\.)", name))}
    assert len(found) == 1, found
    return found.pop()


def _silence_second_half(model: Any) -> None:
    """What follows the first attention and the first MLP of LongCat's double layer adds nothing: its MTP layer has these two alone."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn[1].o_proj.weight.zero_()
            layer.self_attn[1].o_proj.bias.zero_()
            layer.mlps[1].down_proj.weight.zero_()
            layer.mlp.experts.down_proj.zero_()


def _as_mtp_layer(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The first half of LongCat's double layer under the names of its MTP layer."""
    renamed = {}
    for name, value in tensors.items():
        leaf = name.removeprefix(prefix)
        leaf = re.sub(r"^mlps\.0\.", "transformer_layer.mlp.", leaf)
        leaf, found = re.subn(r"^(self_attn|input_layernorm|post_attention_layernorm)\.0\.", r"\1.", leaf)
        if found or leaf.startswith("transformer_layer."):
            renamed[prefix + leaf] = value
    return renamed


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_layer_is_that_of_transformers(case: Case, tmp_path: Path) -> None:
    """... and every tensor of the layer in the file is used: one left out would be a convention that nothing tests."""
    model = target(case)
    if case.family == "longcat_flash":
        _silence_second_half(model)
    tensors, states = saved(model, tmp_path), states_of(model, ROWS)
    config = model.config.get_text_config()
    final = next(value for name, value in tensors.items() if re.search(r"(?:^|\.)(?:norm|norm_f)\.weight$", name) and "layers." not in name)
    assert len(states) == len(case.kinds) + 1
    for index, kind in enumerate(case.kinds):
        prefix = _layer_prefix(tensors, index)
        named = _as_mtp_layer(tensors, prefix) if case.family == "longcat_flash" else tensors
        weights = Weights(named, prefix)
        out = decoder_layer(case.family, weights, config, states[index].double(), torch.arange(1, ROWS + 1), kind)
        assert (out - states[index]).abs().max() > 0.1
        if index == len(case.kinds) - 1:
            out = norm(out, final.double(), norm_eps(config), TRAITS[case.family].offset)
        torch.testing.assert_close(out, states[index + 1].double(), rtol=1e-5, atol=1e-5)
        assert {name for name in named if name.startswith(prefix)} == weights.read | _unchosen(named, prefix, weights.read)


def _unchosen(tensors: Mapping[str, Tensor], prefix: str, read: set[str]) -> set[str]:
    """Tensors of the experts that no row chose. Rows must differ in their choice: else nothing would be tested of the router."""
    experts: dict[str, set[str]] = {}
    for name in tensors:
        if name.startswith(prefix) and (found := re.search(r"\.experts\.(\d+)\.", name)):
            experts.setdefault(found[1], set()).add(name)
    chosen = [number for number, names in experts.items() if names <= read]
    assert len(chosen) > 3 or len(experts) <= 3, "all rows chose the same experts"
    return set().union(*(names for number, names in experts.items() if number not in chosen))


# Conventions, each with another value that a careless reading would give it: a field of the config, a trait, or the epsilon of the
# norms inside latent attention.
DEVIATIONS: dict[str, list[tuple[str, Any]]] = {
    "llama": [
        ("rms_norm_eps", 0.01),
        ("rope_parameters", rope(theta=5000.0)),
        ("trait interleaved", True),
        ("trait rotated", ()),
    ],
    "qwen3": [("trait offset", 1.0)],
    "deepseek_v3": [
        ("rope_interleave", False),
        ("n_group", 2),
        ("topk_group", 1),
        ("norm_topk_prob", False),
        ("routed_scaling_factor", 1.0),
        ("latent eps", 0.03),
    ],
    "glm4_moe": [("rope_parameters", rope(0.25)), ("trait interleaved", True)],
    "glm4_moe_lite": [("rope_interleave", False), ("latent eps", 0.03)],
    "qwen3_next": [("trait offset", 0.0), ("rope_parameters", rope(0.5)), ("norm_topk_prob", False)],
    "qwen3_5": [("trait offset", 0.0), ("rope_parameters", rope(0.25))],
    "mimo_v2": [
        ("sliding_window", WINDOW - 1),
        ("sliding_window", WINDOW + 1),
        ("attention_value_scale", None),
        ("rope_parameters", PER_KIND["full_attention"]),
    ],
    "ernie4_5_moe": [("trait interleaved", False), ("moe_k", 2)],
    "longcat_flash": [("hidden_size", 64)],  # only the rescaling of the latents reads it
    "nemotron_h": [("routed_scaling_factor", 1.0), ("topk_group", 1), ("layer_norm_epsilon", 0.01)],
    "step3p5": [
        ("trait offset", 0.0),
        ("sliding_window", WINDOW + 1),
        ("moe_router_scaling_factor", 1.0),
        ("query_pre_attn_scalar", 8),
    ],
    "exaone_moe": [("trait rotated", ("full_attention", "sliding_attention")), ("sliding_window", WINDOW + 1)],
}


@pytest.mark.parametrize(
    ("family", "what", "other"), [(family, *deviation) for family, all_of in DEVIATIONS.items() for deviation in all_of], ids=str
)
def test_another_reading_of_a_convention_would_have_shown(
    family: str, what: str, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case.family == family)
    model = target(case)
    tensors, states, config = saved(model, tmp_path), states_of(model, ROWS), model.config.get_text_config()

    def layers(config: Any) -> Tensor:
        out = []
        for index, kind in enumerate(case.kinds):
            prefix = _layer_prefix(tensors, index)
            named = _as_mtp_layer(tensors, prefix) if family == "longcat_flash" else tensors
            out.append(decoder_layer(family, Weights(named, prefix), config, states[index].double(), torch.arange(1, ROWS + 1), kind))
        return torch.stack(out)

    right = layers(config)
    if what == "latent eps":
        monkeypatch.setattr(plain_layers, "_LATENT_EPS", other)
    elif what.startswith("trait "):
        monkeypatch.setitem(TRAITS, family, replace(TRAITS[family], **{what.removeprefix("trait "): other}))
    else:
        config = copy.deepcopy(config)
        assert getattr(config, what) != other
        setattr(config, what, other)
    assert (layers(config) - right).abs().max() > 1e-2
