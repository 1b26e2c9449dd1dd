"""The plain-tensor MTP heads against transformers' own MTP modules, where it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plain_mtp
import pytest
import torch
import transformers
from plain_mtp import LAYOUTS, head_logits
from plain_targets import CASES, saved, scatter, target
from safetensors.torch import save_file
from torch import Tensor
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

IDS = [7, 31, 5, 64, 12, 80, 3, 44, 9, 27, 50, 18]


def _case(family: str) -> Any:
    return next(case for case in CASES if case.family == family)


def _write(family: str, layers: int, folder: Path) -> dict[str, Tensor]:
    """A tiny checkpoint of a DeepSeek layout with MTP layers that are copies of no target layer; its tensors by name."""
    torch.manual_seed(0)
    model = target(_case(family))
    config = model.config.get_text_config()
    config.num_nextn_predict_layers = layers
    tensors = saved(model, folder)
    last, width = config.num_hidden_layers - 1, config.hidden_size
    for i in range(layers):
        layout, n = LAYOUTS[family], config.num_hidden_layers + i
        scatter(model, offset=plain_mtp.TRAITS[family].offset, seed=200 + i)
        block = {key: value for key, value in saved(model, folder / f"block{i}").items() if f"model.layers.{last}." in key}
        tensors |= {key.replace(f"model.layers.{last}.", f"model.layers.{n}."): value for key, value in block.items()}
        for name in (layout.e, layout.h, layout.last):
            assert name is not None
            tensors[name.format(n=n)] = 1 - plain_mtp.TRAITS[family].offset + 0.4 * torch.randn(width)
        tensors[layout.projection.format(n=n) + "weight"] = 1.3 * torch.randn(width, 2 * width) / (2 * width) ** 0.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


@torch.no_grad()
def _theirs(family: str, layers: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Tensor]:
    """transformers' config and MTP model of the checkpoint in ``folder``, and the target's states behind its final norm."""
    # It finds a family's MTP tensors by the number of layers of the public checkpoints.
    where = [rf"model\.layers\.{n}\..*" for n in range(2, 2 + layers)]
    monkeypatch.setattr(getattr(transformers, f"{_case(family).name}ForCausalLM"), "_keys_to_ignore_on_load_unexpected", where)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    hidden = model.model(input_ids=torch.tensor([IDS[:-1]]), use_cache=False).last_hidden_state
    return model.config, MtpModel.from_pretrained(model).eval(), hidden


HEADS = [("deepseek_v3", 1), ("deepseek_v3", 2), ("deepseek_v3", 3), ("glm4_moe", 1), ("glm4_moe", 2)]


@pytest.mark.parametrize(("family", "layers"), HEADS)
@torch.no_grad()
def test_a_step_per_layer_is_that_of_transformers(family: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It chains distinct layers and recycles none; fed and recycled are the states from behind the norms."""
    tensors = _write(family, layers, tmp_path)
    config, heads, hidden = _theirs(family, layers, tmp_path, monkeypatch)
    drafted, theirs, _ = heads(
        input_ids=torch.tensor([IDS[1:]]),
        last_hidden_states=hidden,
        attention_mask=None,
        position_ids=torch.arange(1, len(IDS))[None],
        mtp_cache=MtpCache(config=heads.config),
    )
    ours = head_logits(family, tensors, config, IDS, hidden[0], layers)
    torch.testing.assert_close(torch.stack([step[-1] for step in ours]), theirs[0].double(), rtol=1e-5, atol=2e-5)
    assert [int(step[-1].argmax()) for step in ours] == drafted[0].tolist()


@pytest.mark.parametrize(("family", "layers"), HEADS)
@torch.no_grad()
def test_recycling_adds_a_row_to_the_last_layer(family: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' modules run step by step with a cache give what the whole sequence gives without one."""
    tensors = _write(family, layers, tmp_path)
    config, heads, state = _theirs(family, layers, tmp_path, monkeypatch)
    ours = head_logits(family, tensors, config, IDS, state[0], layers + 3)
    drafts = [int(step[-1].argmax()) for step in ours]
    stream, cache = torch.tensor([*IDS, *drafts]), MtpCache(config=heads.config)
    for step in range(layers + 3):
        recycled = step >= layers
        state = state[:, -1:] if recycled else state
        first = step + (len(IDS) - 1 if recycled else 1)
        positions = torch.arange(first, first + state.shape[1])[None]
        state = heads.forward_layer(min(step, layers - 1), state, positions, cache, input_ids=stream[positions])
        torch.testing.assert_close(ours[step][-1], heads.shared_head(state[0, -1]).double(), rtol=1e-5, atol=2e-5)
    assert len(set(drafts)) > 1, "drafts that are all alike cannot show which of them was fed"


def test_the_other_stage_is_another_head(tmp_path: Path) -> None:
    """The first step does not depend on what is recycled, each later one does."""
    tensors = _write("deepseek_v3", 1, tmp_path)
    config, hidden = _case("deepseek_v3").config(), torch.randn(len(IDS) - 1, 32)
    post, pre = (head_logits("deepseek_v3", tensors, config, IDS, hidden, 3, recycled=stage) for stage in ("post", "pre"))
    assert torch.equal(post[0], pre[0])
    assert all((a[-1] - b[-1]).abs().max() > 0.1 for a, b in zip(post[1:], pre[1:], strict=True))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = _write("deepseek_v3", 1, tmp_path)
    config, hidden = _case("deepseek_v3").config(), torch.zeros(len(IDS) - 1, 32)
    without = {key: value for key, value in tensors.items() if key != "model.layers.2.self_attn.kv_a_layernorm.weight"}
    with pytest.raises(KeyError, match=r"model\.layers\.2\.self_attn\.kv_a_layernorm\.weight"):
        head_logits("deepseek_v3", without, config, IDS, hidden, 1)
    target_alone = {key: value for key, value in tensors.items() if "layers.2." not in key}
    with pytest.raises(ValueError, match=r"no MTP layer in the tensors, model\.layers\.2\.eh_proj\.weight is missing"):
        head_logits("deepseek_v3", target_alone, config, IDS, hidden, 1)
    with pytest.raises(ValueError, match="12 tokens and 12 states"):
        head_logits("deepseek_v3", tensors, config, IDS, torch.zeros(len(IDS), 32), 1)
