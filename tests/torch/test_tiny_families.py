"""The tiny checkpoints are what they claim to be: transformers loads every target tensor, and decodes with its caches as without.

The last part pins what transformers does with each family's caches (cases 1.1, 1.2, 1.5) and MTP tensors, which the backend builds on.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES, class_of, mtp_keys, write
from tiny_layouts import LAYOUTS, WINDOW
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.modeling_layers import MtpModel

PROMPT = torch.tensor([[5, 17, 99, 3, 42, 11, 78, 120, 64, 9, 31, 150]])
TEXT = torch.randint(2, 160, (1, 40), generator=torch.Generator().manual_seed(1))
RECURRENT = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "nemotron_h")
WINDOWED = ("mimo_v2", "step3p5", "exaone_moe")
# Attention sinks: transformers has them in eager attention only.
ATTENTION = [(family, kind) for family in FAMILIES for kind in ("eager", "sdpa") if (family, kind) != ("mimo_v2", "sdpa")]
# Names that must be there: the ends of what is rewritten, each as public checkpoints have it.
TELLING = {
    "llama": ("model.layers.2.shared_head.norm.weight", "model.layers.2.self_attn.q_proj.weight"),
    "qwen2": ("model.layers.2.eh_proj.weight", "model.layers.2.self_attn.q_proj.bias"),
    "qwen3": ("model.layers.2.enorm.weight", "model.layers.2.self_attn.q_norm.weight"),
    "deepseek_v3": (
        "model.layers.2.embed_tokens.weight",
        "model.layers.2.shared_head.head.weight",
        "model.layers.2.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias",
        "model.layers.2.mlp.experts.7.down_proj.weight",
        "model.layers.2.mlp.shared_experts.up_proj.weight",
    ),
    "glm4_moe": ("model.layers.2.self_attn.k_proj.bias", "model.layers.2.mlp.experts.0.gate_proj.weight"),
    "glm4_moe_lite": ("model.layers.2.self_attn.q_a_layernorm.weight", "model.layers.2.mlp.gate.weight"),
    "qwen3_next": ("mtp.fc.weight", "mtp.layers.0.mlp.experts.3.up_proj.weight", "mtp.layers.0.mlp.shared_expert_gate.weight"),
    "qwen3_5": ("mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.mlp.gate_proj.weight"),
    "qwen3_5_moe": ("mtp.pre_fc_norm_embedding.weight", "mtp.layers.0.self_attn.k_norm.weight", "mtp.layers.0.mlp.gate.weight"),
    "mimo_v2": (
        "model.mtp.layers.0.pre_mlp_layernorm.weight",
        "model.mtp.layers.1.self_attn.attention_sink_bias",
        "model.mtp.layers.2.final_layernorm.weight",
        "model.mtp.layers.2.mlp.up_proj.weight",
    ),
    "ernie4_5_moe": (
        "model.mtp_emb_norm.0.weight",
        "model.mtp_hidden_norm.0.weight",
        "model.mtp_linear_proj.0.weight",
        "model.mtp_block.0.mlp.down_proj.weight",
    ),
    "longcat_flash": (
        "model.mtp.embed_tokens.weight",
        "model.mtp.norm.weight",
        "model.mtp.layers.0.enorm.m.weight",
        "model.mtp.layers.0.transformer_layer.mlp.down_proj.weight",
        "model.mtp.layers.0.self_attn.q_a_layernorm.weight",
        "model.mtp.layers.0.input_layernorm.weight",
    ),
    "nemotron_h": (
        "mtp.layers.0.eh_proj.weight",
        "mtp.layers.0.norm.weight",
        "mtp.layers.0.mixer.o_proj.weight",
        "mtp.layers.1.mixer.gate.e_score_correction_bias",
        "mtp.layers.1.mixer.experts.3.up_proj.weight",
        "mtp.layers.1.final_layernorm.weight",
    ),
    "step3p5": (
        "model.layers.4.transformer.shared_head.norm.weight",
        "model.layers.6.transformer.shared_head.output.weight",
        "model.layers.5.self_attn.g_proj.weight",
        "model.layers.6.mlp.up_proj.weight",
    ),
    "exaone_moe": ("mtp.fc.weight", "mtp.layers.0.self_attn.q_norm.weight", "mtp.layers.0.mlp.gate_proj.weight"),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {family: tmp_path_factory.mktemp("tiny") / family for family in FAMILIES}
    for family, folder in made.items():
        write(family, folder)
    return made


def loaded(family: str, folder: Path, **options: Any) -> Any:
    return class_of(family).from_pretrained(folder, **options).eval()


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    return model(ids, **given).logits[0]


def greedy(model: Any, prompt: torch.Tensor = PROMPT, **options: Any) -> list[int]:
    made = model.generate(prompt, max_new_tokens=40, do_sample=False, pad_token_id=0, **options)
    return made[0, prompt.shape[1] :].tolist()


def bits(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_target_tensor_is_loaded_and_nothing_else_but_mtp_tensors_is_left_over(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, report = class_of(family).from_pretrained(folders[family], output_loading_info=True)
    keys = mtp_keys(family)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    # transformers reports experts under the names it has fused them to, so by the beginning.
    assert all(key.startswith("model.layers.2.") for key in report["unexpected_keys"])
    assert not report["unexpected_keys"] or any(key.startswith("model.layers.2.") for key in keys)
    # Loading may set a tensor anew without saying so: written again, every one is bit for bit one of the file's.
    model.save_pretrained(tmp_path)
    target = {bits(value) for key, value in load_file(folders[family] / "model.safetensors").items() if key not in keys}
    assert {bits(value) for value in load_file(tmp_path / "model.safetensors").values()} <= target


@pytest.mark.parametrize("family", FAMILIES)
def test_the_class_that_the_config_names_is_the_one_that_transformers_takes(family: str, folders: dict[str, Path]) -> None:
    if family == "step3p5":
        with pytest.raises(ValueError, match="Unrecognized configuration class"):
            AutoModelForCausalLM.from_pretrained(folders[family])
    else:
        assert type(AutoModelForCausalLM.from_pretrained(folders[family])) is class_of(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_mtp_tensors_have_the_names_of_the_public_checkpoints(family: str, folders: dict[str, Path]) -> None:
    layout, keys = LAYOUTS[family], mtp_keys(family)
    assert set(TELLING[family]) <= keys
    tensors = load_file(folders[family] / "model.safetensors")
    assert keys < tensors.keys()
    embedding = next(value for key, value in tensors.items() if key.endswith(("embed_tokens.weight", "embeddings.weight")))
    for key in keys:
        if key.endswith("embed_tokens.weight"):
            assert torch.equal(tensors[key], embedding)
        if key.endswith("shared_head.head.weight"):
            assert torch.equal(tensors[key], tensors["lm_head.weight"])
    own = [tensors[key] for key in keys if key.endswith("shared_head.output.weight")]
    assert (
        len(own) == (3 if family == "step3p5" else 0)
        and len({bits(value) for value in [*own, tensors.get("lm_head.weight", embedding)]}) == len(own) + 1
    )
    for key in keys:
        if "norm" in key:
            centre = 0.0 if layout.around_zero else 1.0
            assert (tensors[key] - centre).abs().max() <= 0.5 and tensors[key].std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_varies_and_near_ties_are_rare(family: str, folders: dict[str, Path]) -> None:
    model = loaded(family, folders[family])
    for prompt in (PROMPT, PROMPT[:, :5], TEXT[:, :20], torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 97, 93]])):
        tokens = greedy(model, prompt)
        assert len(set(tokens)) >= 10
        top = logits(model, torch.cat([prompt, torch.tensor([tokens])], dim=1)).topk(2).values
        assert ((top[:, 0] - top[:, 1]) > 1e-3).float().mean() > 0.95


def test_the_values_depend_on_the_seed_alone_also_in_a_fresh_process(folders: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import tiny_families as t;"
        "[t.write(f, pathlib.Path(sys.argv[2]) / f) for f in reversed(t.FAMILIES)]"
    )
    support = Path(tiny_families.__file__).parent
    subprocess.run([sys.executable, "-c", code, str(support), str(tmp_path)], check=True, capture_output=True)
    for family in FAMILIES:
        for name in ("config.json", "model.safetensors"):
            assert (tmp_path / family / name).read_bytes() == (folders[family] / name).read_bytes(), (family, name)
    write("llama", tmp_path / "other", seed=1)
    one, other = load_file(folders["llama"] / "model.safetensors"), load_file(tmp_path / "other" / "model.safetensors")
    assert one.keys() == other.keys() and not any(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("family", ("deepseek_v3", "qwen3_5_moe", "nemotron_h"))
def test_in_shards_the_mtp_tensors_lie_in_a_file_of_their_own(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    write(family, tmp_path, shards=True)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    for name in set(index.values()):
        with safe_open(tmp_path / name, "pt") as file:
            assert set(file.keys()) == {key for key, where in index.items() if where == name}
    assert {key for key, where in index.items() if where == "model-00002-of-00002.safetensors"} == mtp_keys(family)
    assert torch.equal(logits(loaded(family, tmp_path), TEXT), logits(loaded(family, folders[family]), TEXT))


def test_fused_experts_are_the_same_model(folders: dict[str, Path], tmp_path: Path) -> None:
    write("qwen3_5_moe", tmp_path, fused=True)
    keys = load_file(tmp_path / "model.safetensors").keys()
    assert {"mtp.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.down_proj"} <= keys
    assert not any("experts.0." in key for key in keys)
    assert torch.equal(logits(loaded("qwen3_5_moe", tmp_path), TEXT), logits(loaded("qwen3_5_moe", folders["qwen3_5_moe"]), TEXT))


def test_fields_of_the_config_can_be_changed_but_not_the_layers(tmp_path: Path) -> None:
    write("qwen3_5", tmp_path, vocab_size=97)
    assert logits(loaded("qwen3_5", tmp_path), TEXT % 97).shape == (40, 97)
    with pytest.raises(ValueError, match="llama: num_hidden_layers cannot be changed here"):
        write("llama", tmp_path, num_hidden_layers=7)


@pytest.mark.parametrize(("family", "attention"), ATTENTION)
def test_cached_rows_are_the_uncached_ones_one_by_one_and_several_at_once(family: str, attention: str, folders: dict[str, Path]) -> None:
    """Cases 1.2 and 1.5: with a filled cache, before and behind the window, while the past is recorded and while not."""
    model = loaded(family, folders[family], attn_implementation=attention)
    config, whole = model.config.get_text_config(), logits(model, TEXT)
    for start in (WINDOW // 2, 2 * WINDOW + 3):
        for widths in ((1,) * 8, (2, 1, 4, 1), (5, 3)):
            for recording in (False, True):
                cache = DynamicCache(config=config)
                if recording:
                    cache.activate_past_recording()
                at = 0
                for width in (start, *widths):
                    rows = logits(model, TEXT[:, at : at + width], cache=cache, use_cache=True)
                    assert torch.allclose(rows, whole[at : at + width], atol=1e-3), (at, width, recording)
                    at += width


@pytest.mark.parametrize("family", FAMILIES)
def test_a_crop_takes_rejected_rows_back_where_no_layer_is_recurrent(family: str, folders: dict[str, Path]) -> None:
    """Case 1.1: behind rejected rows a recurrent state stays as they left it, and ``is_croppable`` says so after the first forward."""
    model = loaded(family, folders[family])
    whole, start = logits(model, TEXT), 2 * WINDOW + 3
    cache = DynamicCache(config=model.config.get_text_config())
    cache.activate_past_recording()
    logits(model, TEXT[:, :start], cache=cache, use_cache=True)
    cache.crop(0)
    rejected = (TEXT[:, start : start + 4] + 7) % 150 + 2
    logits(model, rejected, cache=cache, use_cache=True)
    cache.crop(-4)
    off = (logits(model, TEXT[:, start : start + 6], cache=cache, use_cache=True) - whole[start : start + 6]).abs().max()
    assert cache.is_croppable is (family not in RECURRENT)
    assert off > 0.5 if family in RECURRENT else off < 1e-3


@pytest.mark.parametrize("family", WINDOWED + RECURRENT)
def test_the_window_and_the_recurrent_state_matter(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Else the tests above could not fail: a wider window, or a state begun anew, gives other logits."""
    model = loaded(family, folders[family])
    if family in WINDOWED:
        write(family, tmp_path, sliding_window=64)
        off = logits(loaded(family, tmp_path), TEXT) - logits(model, TEXT)
        assert off[:WINDOW].abs().max() < 1e-3 and off[WINDOW + 1 :].abs().max() > 0.1
    else:
        cache = DynamicCache(config=model.config.get_text_config())
        logits(model, TEXT[:, :20], cache=cache, use_cache=True)
        for layer in cache.layers:
            for state in getattr(layer, "recurrent_states", {}).values():
                state.zero_()
        off = logits(model, TEXT[:, 20:24], cache=cache, use_cache=True) - logits(model, TEXT)[20:24]
        assert off.abs().max() > 0.1


@pytest.mark.parametrize("family", ("deepseek_v3", "glm4_moe"))
def test_transformers_own_mtp_loads_the_head_and_gives_the_same_tokens(
    family: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its classes name the layers of the public models (61; 46 and 92) to find the head by, so a smaller model needs its own."""
    monkeypatch.setattr(class_of(family), "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2\."])
    model = loaded(family, folders[family])
    head, tensors = MtpModel.from_pretrained(model), load_file(folders[family] / "model.safetensors")
    layer = head.layers[0]
    for name, module in {"enorm": layer.enorm, "hnorm": layer.hnorm, "eh_proj": layer.eh_proj, "shared_head.norm": layer.post_norm}.items():
        assert torch.equal(module.weight, tensors[f"model.layers.2.{name}.weight"]), name
    assert torch.equal(layer.mtp_block.self_attn.o_proj.weight, tensors["model.layers.2.self_attn.o_proj.weight"])
    assert torch.equal(layer.mtp_block.mlp.experts.down_proj[3], tensors["model.layers.2.mlp.experts.3.down_proj.weight"])
    assert greedy(model, use_mtp=True) == greedy(model)


def test_transformers_own_mtp_does_not_find_the_norms_of_step(folders: dict[str, Path]) -> None:
    """It knows ``shared_head.norm``, not ``transformer.shared_head.norm``, and has no place for a layer's own output matrix."""
    with pytest.raises(RuntimeError, match=r"weights are missing.*layers\.0\.post_norm\.weight"):
        MtpModel.from_pretrained(loaded("step3p5", folders["step3p5"]))


def test_transformers_wants_weights_of_longcats_zero_experts(folders: dict[str, Path], tmp_path: Path) -> None:
    """A zero expert is the identity; a file that holds none for it is refused: transformers has room for the gate and up of all."""
    tensors = load_file(folders["longcat_flash"] / "model.safetensors")
    routed = {key: value for key, value in tensors.items() if ".experts.4." not in key and ".experts.5." not in key}
    assert len(routed) == len(tensors) - 2 * 2 * 2
    save_file(routed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folders["longcat_flash"] / "config.json").read_bytes())
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        loaded("longcat_flash", tmp_path)
