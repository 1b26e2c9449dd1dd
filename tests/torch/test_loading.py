"""Loading checkpoints: strict names and shapes, safetensors only, no code, no noise, no fallback."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save_file
from torch_loop import decode
from torch_models import FAMILIES, LAYERS, head_tensors, save_checkpoint, tiny_head, tiny_model

from spanfold.backends.torch import MtpHead, TorchRuntime, loading
from spanfold.backends.torch.opening import open_model
from spanfold.engine.errors import ConfigError

PREFIX = f"model.layers.{LAYERS}."
LEAVES = sorted(MtpHead.leaf(name) for name in tiny_head(tiny_model("qwen3")).state_dict())


def parts(family: str = "llama") -> tuple[Any, dict[str, torch.Tensor]]:
    model = tiny_model(family)
    return model, head_tensors(tiny_head(model))


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_loaded_as_it_is_and_without_a_word(
    family: str, shards: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, tensors = parts(family)
    runtime = TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors, shards=shards))
    assert capfd.readouterr() == ("", "")
    own = TorchRuntime(model, head=tiny_head(model))
    assert runtime.info.draft == own.info.draft
    assert decode(runtime, (3, 1, 4), 3, 30) == decode(own, (3, 1, 4), 3, 30)
    assert type(runtime._model).__name__ == type(model).__name__  # pyright: ignore[reportPrivateUsage]
    assert "layers" not in str(type(model)._keys_to_ignore_on_load_unexpected)


def test_only_shards_that_hold_the_head_are_opened_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tensors = parts()
    save_checkpoint(tmp_path, model, tensors, shards=True)
    opened: list[str] = []

    def noted(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(path.name)
        return safetensors.safe_open(path, *args, **kwargs)

    monkeypatch.setattr(loading, "safe_open", noted)
    TorchRuntime.from_pretrained(tmp_path)
    assert opened == ["model-00002-of-00002.safetensors"]
    TorchRuntime.from_pretrained(tmp_path, draft=False)
    assert len(opened) == 1


def test_a_checkpoint_without_a_head_has_no_draft(tmp_path: Path) -> None:
    model, _ = parts()
    runtime = TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, None))
    assert runtime.info.draft is None
    assert decode(runtime, (3, 1, 4), 0, 10).tokens == decode(TorchRuntime(model), (3, 1, 4), 0, 10).tokens


def test_draft_false_loads_the_target_alone(tmp_path: Path) -> None:
    model, tensors = parts()
    runtime = TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors), draft=False)
    assert runtime.info.draft is None


@pytest.mark.parametrize("leaf", LEAVES)
def test_case_6_1_a_missing_head_tensor_is_named(leaf: str, tmp_path: Path) -> None:
    model, tensors = parts("qwen3")
    del tensors[PREFIX + leaf]
    with pytest.raises(ConfigError, match=f"lacks the tensor {PREFIX}{leaf}$"):
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors))


@pytest.mark.parametrize("leaf", LEAVES)
def test_case_6_1_a_renamed_head_tensor_is_named_by_both_names(leaf: str, tmp_path: Path) -> None:
    model, tensors = parts("qwen3")
    tensors[f"{PREFIX}other.{leaf}"] = tensors.pop(PREFIX + leaf)
    with pytest.raises(ConfigError, match=f"lacks the tensor {PREFIX}{leaf}; it holds {PREFIX}other.{leaf}, which is unknown"):
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors, shards=True))


@pytest.mark.parametrize("leaf", LEAVES)
def test_case_6_1_a_misshapen_head_tensor_is_named_with_both_shapes(leaf: str, tmp_path: Path) -> None:
    model, tensors = parts("qwen3")
    shape = list(tensors[PREFIX + leaf].shape)
    tensors[PREFIX + leaf] = torch.zeros([shape[0] + 1, *shape[1:]])
    with pytest.raises(ConfigError) as caught:
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors))
    assert f"the tensor {PREFIX}{leaf} has shape {[shape[0] + 1, *shape[1:]]}, expected {shape}" in str(caught.value)


def test_case_6_1_a_surplus_head_tensor_is_named(tmp_path: Path) -> None:
    model, tensors = parts()
    tensors[PREFIX + "self_attn.q_norm.weight"] = torch.ones(8)
    with pytest.raises(ConfigError, match=r"holds the tensor model\.layers\.2\.self_attn\.q_norm\.weight, which is unknown"):
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors))


def test_a_declared_head_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    model, _ = parts()
    for key in ("num_mtp_layers", "num_nextn_predict_layers"):
        declared: dict[str, Any] = {key: 1}
        save_checkpoint(tmp_path / key, model, None, **declared)
        with pytest.raises(ConfigError, match=r"declares an MTP layer and holds no tensor model\.layers\.2\.\*"):
            TorchRuntime.from_pretrained(tmp_path / key)
        assert TorchRuntime.from_pretrained(tmp_path / key, draft=False).info.draft is None


def test_several_mtp_layers_are_refused(tmp_path: Path) -> None:
    model, tensors = parts()
    with pytest.raises(ConfigError, match="declares 3 MTP layers"):
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors, num_nextn_predict_layers=3))


@pytest.mark.parametrize(
    ("leaf", "own"), [("embed_tokens.weight", "model.embed_tokens.weight"), ("shared_head.head.weight", "lm_head.weight")]
)
def test_copies_of_the_targets_tensors_are_taken_if_they_are_copies(leaf: str, own: str, tmp_path: Path) -> None:
    model, tensors = parts()
    tensors[PREFIX + leaf] = model.state_dict()[own].clone()
    TorchRuntime.from_pretrained(save_checkpoint(tmp_path / "same", model, tensors))
    tensors[PREFIX + leaf] += 0.5
    with pytest.raises(ConfigError, match=f"{PREFIX}{leaf} differs from the target's {own}"):
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path / "other", model, tensors))


@pytest.mark.parametrize("change", ["missing", "renamed", "misshapen", "surplus"])
def test_the_targets_own_tensors_are_checked_by_name_too(change: str, tmp_path: Path) -> None:
    """Elsewhere a missing tensor is filled with random numbers and a warning."""
    model, tensors = parts()
    saved = model.state_dict()
    key = "model.layers.1.mlp.up_proj.weight"
    if change == "missing":
        del saved[key]
    elif change == "renamed":
        saved["model.layers.1.mlp.up.weight"] = saved.pop(key)
    elif change == "misshapen":
        saved[key] = torch.zeros(3, 3)
    else:
        key = "model.layers.7.mlp.up_proj.weight"
        saved[key] = torch.zeros(3, 3)
    save_checkpoint(tmp_path, model, tensors)
    save_file(saved | tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=key):
        TorchRuntime.from_pretrained(tmp_path)


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    model, _ = parts()
    save_checkpoint(tmp_path, model, None)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="only safetensors"):
        TorchRuntime.from_pretrained(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    model, tensors = parts()
    save_checkpoint(tmp_path / "torn", model, tensors)
    weights = tmp_path / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        TorchRuntime.from_pretrained(tmp_path / "torn")

    save_checkpoint(tmp_path / "gone", model, tensors, shards=True)
    (tmp_path / "gone" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"the shard model-00002-of-00002\.safetensors"):
        TorchRuntime.from_pretrained(tmp_path / "gone")

    save_checkpoint(tmp_path / "index", model, tensors, shards=True)
    (tmp_path / "index" / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="no readable weight_map"):
        TorchRuntime.from_pretrained(tmp_path / "index")

    save_checkpoint(tmp_path / "wrong", model, tensors, shards=True)
    shutil.copy(tmp_path / "wrong" / "model-00001-of-00002.safetensors", tmp_path / "wrong" / "model-00002-of-00002.safetensors")
    with pytest.raises(ConfigError, match=r"is not in model-00002-of-00002\.safetensors, where the index places it"):
        TorchRuntime.from_pretrained(tmp_path / "wrong")

    save_checkpoint(tmp_path / "config", model, tensors)
    (tmp_path / "config" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="no usable config"):
        TorchRuntime.from_pretrained(tmp_path / "config")


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}, "rope_type 'dynamic'"),
        ("llama", {"architectures": ["MixtralForCausalLM"]}, "is MixtralForCausalLM: the torch backend takes LlamaForCausalLM, Qwen2"),
        ("llama", {"architectures": None}, "is no architecture"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is quantised"),
    ],
)
def test_what_cannot_be_decoded_exactly_is_refused_by_name(family: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, tensors = parts(family)
    with pytest.raises(ConfigError, match=words):
        TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors, **changes))


def test_the_class_counts_where_the_model_type_is_unknown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Kimi-K2 names DeepseekV3ForCausalLM and a model_type that transformers does not know."""
    model, tensors = parts()
    runtime = TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors, model_type="no_such_model"))
    assert runtime.info.draft is not None
    assert capfd.readouterr() == ("", "")


def test_a_sliding_window_that_is_not_in_use_is_none(tmp_path: Path) -> None:
    model, tensors = parts("qwen2")
    TorchRuntime.from_pretrained(save_checkpoint(tmp_path, model, tensors, use_sliding_window=False, sliding_window=16))


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    model, tensors = parts()
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    save_checkpoint(tmp_path, model, tensors, auto_map=names)
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    TorchRuntime.from_pretrained(tmp_path)
    assert not marker.exists()


def test_device_and_dtype_are_what_was_asked_for_or_an_error(tmp_path: Path) -> None:
    model, tensors = parts()
    save_checkpoint(tmp_path, model, tensors)
    for dtype in ("bfloat16", "float16", torch.bfloat16):
        runtime = TorchRuntime.from_pretrained(tmp_path, dtype=dtype)
        assert runtime.info.dtype in str(dtype)
        assert {value.dtype for value in runtime._head.state_dict().values()} == {getattr(torch, runtime.info.dtype)}  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        assert len(decode(runtime, (3, 1, 4), 3, 10).tokens) == 10
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, not 'int8'"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "meta"}, "device must be"),
        ({"attn_implementation": "nonsense"}, "cannot be loaded"),
    ]
    for options, words in cases:
        with pytest.raises(ConfigError, match=words):
            TorchRuntime.from_pretrained(tmp_path, **options)


def test_cuda_that_is_not_there_is_an_error_and_no_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tensors = parts()
    save_checkpoint(tmp_path, model, tensors)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device 'cuda(:1)?' was asked for and torch"):
        TorchRuntime.from_pretrained(tmp_path, device="cuda")
    with pytest.raises(ConfigError, match=r"device 'cuda:1' was asked for and torch"):
        TorchRuntime.from_pretrained(tmp_path, device="cuda:1")


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, ()),
        ({"eos_token_id": 7}, None, (7,)),
        ({"eos_token_id": 7}, {"eos_token_id": [9, 11]}, (9, 11)),
        ({"eos_token_id": [7, 8]}, {}, (7, 8)),
    ],
)
def test_stop_ids_come_from_generation_config_else_config(
    config: dict[str, Any], generation: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    model, tensors = parts()
    save_checkpoint(tmp_path, model, tensors, **config)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert TorchRuntime.from_pretrained(tmp_path).info.stop_tokens == expected


def test_a_name_that_is_neither_a_directory_nor_a_hub_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (str(tmp_path / "nothing"), "nothing", "a/b/c", "./nothing"):
        with pytest.raises(ConfigError, match="neither a directory nor a hub id"):
            TorchRuntime.from_pretrained(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="could not be fetched from the hub"):
        TorchRuntime.from_pretrained("owner/no-such-model-here")


def test_the_command_lines_way_in_tells_its_steps(tmp_path: Path) -> None:
    model, tensors = parts()
    save_checkpoint(tmp_path, model, tensors)
    told: list[str] = []
    opened = open_model(str(tmp_path), progress=told.append)
    assert opened.runtime.info.draft is not None and opened.tokenizer is None
    assert told == [f"loading {tmp_path} on cpu in float32"]
    assert open_model(str(tmp_path), drafting=False, dtype="bfloat16").runtime.info.draft is None
    with pytest.raises(ConfigError, match="not an empty string"):
        open_model("")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("generation_config.json", {"eos_token_id": ["a"]}, "generation_config.json: eos_token_id must be a token id or a list of them"),
        ("generation_config.json", {"eos_token_id": [None]}, "generation_config.json: eos_token_id must be a token id or a list of them"),
        ("config.json", {"num_attention_heads": "a"}, "has no usable config.json: .*num_attention_heads.*not? 'a'|got str"),
        ("config.json", {"architectures": 5}, "config.json: architectures must be a list of names, not 5"),
        ("config.json", {"architectures": [None]}, "config.json: architectures must be a list of names"),
        ("config.json", {"dtype": []}, "has no usable config.json"),
        ("config.json", {"num_nextn_predict_layers": "a"}, "config.json: num_nextn_predict_layers must be a whole number"),
        ("config.json", {"vocab_size": -1}, "cannot be loaded: "),
        ("model.safetensors.index.json", [], "model.safetensors.index.json has no readable weight_map"),
    ],
)
def test_a_field_that_holds_something_else_is_an_error_of_one_line(file: str, content: Any, words: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_model("llama"), None)
    path = tmp_path / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | content if content else content))
    with pytest.raises(ConfigError, match=words) as caught:
        TorchRuntime.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_no_path_is_refused() -> None:
    for model in (None, 5, b"x", ""):
        with pytest.raises(ConfigError, match="model must be a directory's path"):
            TorchRuntime.from_pretrained(model)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="is not valid UTF-8"):
        TorchRuntime.from_pretrained("model-\udcff")


def test_case_6_7_a_head_that_drafts_one_token_whatever_comes_is_told_of_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, tensors = parts()
    key = next(key for key in tensors if key.endswith("eh_proj.weight"))
    (tmp_path / "right").mkdir()
    assert TorchRuntime.from_pretrained(save_checkpoint(tmp_path / "right", model, tensors)).live_sessions == 0
    assert caplog.messages == []
    (tmp_path / "wrong").mkdir()
    folder = save_checkpoint(tmp_path / "wrong", model, {**tensors, key: torch.zeros_like(tensors[key])})
    runtime = TorchRuntime.from_pretrained(folder, name="m")
    assert runtime.live_sessions == 0 and len(caplog.records) == 1
    assert re.match(r"m: the MTP head drafts the token \d+ after each of 8 prompts\. Output will be right", caplog.messages[0])
    caplog.clear()
    TorchRuntime.from_pretrained(folder, draft=False)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))  # a forward raises: whether it decodes is for a session to find out
    assert TorchRuntime.from_pretrained(save_checkpoint(tmp_path / "broken", model, tensors)).live_sessions == 0
    with torch.no_grad():
        model.lm_head.weight.zero_()  # a target that says one token is drafted for rightly
    TorchRuntime.from_pretrained(save_checkpoint(tmp_path / "silent", model, tensors))
    assert caplog.messages == []
