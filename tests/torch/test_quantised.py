"""Quantised checkpoints: what is decoded is the model of the plain weights that they stand for, with its head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file
from torch_loop import decode, draft, start

from spanfold.backends.torch import TorchRuntime
from spanfold.engine.errors import ConfigError

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
BLOCK = (16, 24)  # of which no tiny weight is a multiple in both directions
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)}


def _in_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """fp8 weight, a factor per block, and the plain weight that they stand for."""
    factors = torch.zeros(-(-weight.shape[0] // BLOCK[0]), -(-weight.shape[1] // BLOCK[1]))
    packed, meant = torch.zeros_like(weight, dtype=torch.float8_e4m3fn), torch.zeros_like(weight)
    for i in range(factors.shape[0]):
        for j in range(factors.shape[1]):
            place = (slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1]))
            factors[i, j] = weight[place].abs().max() / 448
            packed[place] = (weight[place] / factors[i, j]).to(torch.float8_e4m3fn)
            meant[place] = packed[place].float() * factors[i, j]
    return packed, factors, meant


def _configured(folder: Path, quantisation: Any) -> None:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantisation
    (folder / "config.json").write_text(json.dumps(config))


def fp8_pair(family: str, folder: Path, *, head: bool) -> tuple[Path, Path]:
    """A checkpoint in fp8, its head too or not, and one of the plain weights that it stands for."""
    quantised, meant = tiny_families.write(family, folder / "fp8"), tiny_families.write(family, folder / "plain")
    tensors = load_file(quantised / "model.safetensors")
    mtp = tiny_families.mtp_keys(family)
    left, right = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for key, tensor in tensors.items():
        if tensor.ndim == 2 and "_proj" in key and "eh_proj" not in key and (head or key not in mtp):
            left[key], left[f"{key}_scale_inv"], right[key] = _in_blocks(tensor)
        else:
            left[key] = right[key] = tensor
    assert sum(key.endswith("_scale_inv") for key in left) > 10
    save_file(left, quantised / "model.safetensors", metadata={"format": "pt"})
    save_file(right, meant / "model.safetensors", metadata={"format": "pt"})
    _configured(quantised, FP8)
    return quantised, meant


def _same(quantised: TorchRuntime, meant: TorchRuntime, dtype: str = "float32") -> None:
    """Every parameter, the tokens with spans and without, and drafts."""
    for one, other in ((quantised._model, meant._model), (quantised._head, meant._head)):  # pyright: ignore[reportPrivateUsage]
        left, right = one.state_dict(), other.state_dict()  # pyright: ignore[reportOptionalMemberAccess]
        assert list(left) == list(right)
        assert [key for key in left if left[key].dtype != right[key].dtype or not torch.equal(left[key], right[key])] == []
    assert quantised.info == evolve(meant.info, model=quantised.info.model) and quantised.info.dtype == dtype
    for width in (0, 3):
        tokens = decode(meant, PROMPT, width, 20).tokens[:20]
        assert decode(quantised, PROMPT, width, 20).tokens[:20] == tokens
    drafts: list[tuple[int, ...]] = []
    for runtime in (quantised, meant):
        start(runtime, PROMPT)
        drafts.append(draft(runtime, 0, tokens[0], 4))
    assert drafts[0] == drafts[1] and len(drafts[0]) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "exaone_moe", "qwen3_5", "qwen3_5_moe"])
def test_fp8_in_blocks_is_made_plain_with_a_plain_head_and_with_one_in_fp8(family: str, head: bool, dtype: str, tmp_path: Path) -> None:
    """Published so: DeepSeek-V3 with its head in fp8, others with the head in plain weights beside. Routers stay in float32."""
    quantised, meant = fp8_pair(family, tmp_path, head=head)
    _same(TorchRuntime.from_pretrained(quantised, dtype=dtype), TorchRuntime.from_pretrained(meant, dtype=dtype), dtype)


@pytest.mark.parametrize(("format_of", "bits"), [("pack-quantized", 4), ("int-quantized", 8)])
def test_compressed_tensors_are_made_plain_beside_a_plain_head(format_of: str, bits: int, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors", reason="pip install 'spanfold[compressed-tensors]'")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    whole = tiny_families.write("llama", tmp_path / "whole")
    tensors = load_file(whole / "model.safetensors")
    mtp = tiny_families.mtp_keys("llama")
    model: Any = tiny_families.class_of("llama").from_pretrained(whole)
    scheme = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}}
    config: Any = QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"], format=format_of, quantization_status="initialized")  # pyright: ignore[reportArgumentType]
    apply_quantization_config(model, config)
    meant: dict[str, torch.Tensor] = dict(tensors)
    for name, module in model.named_modules():
        if hasattr(module, "weight_scale"):
            scale = module.weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            module.weight_scale.data = scale
            meant[f"{name}.weight"] = (module.weight / scale).round() * scale
    compressor: Any = ModelCompressor.from_pretrained_model(model, quantization_format=format_of)
    compressor.compress_model(model)
    folder = tmp_path / "quantised"
    model.save_pretrained(folder)
    compressor.update_config(folder)
    (folder / "config.json").write_text(
        json.dumps(json.loads((whole / "config.json").read_text()) | {"quantization_config": _quantisation_of(folder)})
    )
    held = load_file(folder / "model.safetensors") | {key: tensors[key] for key in mtp}
    assert any(key.endswith(("weight_packed", "weight_scale")) for key in held)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(meant, whole / "model.safetensors", metadata={"format": "pt"})
    _same(TorchRuntime.from_pretrained(folder), TorchRuntime.from_pretrained(whole))


def _quantisation_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


def test_a_head_that_is_quantised_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    quantised, _ = fp8_pair("deepseek_v3", tmp_path, head=True)
    tensors = load_file(quantised / "model.safetensors")
    key = next(key for key in sorted(tiny_families.mtp_keys("deepseek_v3")) if key.endswith("o_proj.weight"))
    wrong = dict(tensors)
    wrong[f"{key}_scale_inv"] = torch.ones(1, 9)
    save_file(wrong, quantised / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"{key}_scale_inv is torch.float32 \[1, 9\], expected a float .* for blocks of 16 x 24"):
        TorchRuntime.from_pretrained(quantised)
    del wrong[f"{key}_scale_inv"]
    wrong[key] = wrong[key].float().to(torch.int8)
    save_file(wrong, quantised / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"its MTP layer is quantised in a way that is not known \({key}\)"):
        TorchRuntime.from_pretrained(quantised)
    assert TorchRuntime.from_pretrained(quantised, draft=False).info.draft is None


def test_an_unknown_method_a_lost_factor_and_a_config_that_is_none_are_named(tmp_path: Path) -> None:
    quantised, _ = fp8_pair("qwen3_5", tmp_path, head=False)
    tensors = load_file(quantised / "model.safetensors")
    key = next(key for key in sorted(tensors) if key.endswith("weight_scale_inv"))
    save_file({name: tensor for name, tensor in tensors.items() if name != key}, quantised / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"{key.removesuffix('_scale_inv')} is of torch.float8_e4m3fn and {key} is missing"):
        TorchRuntime.from_pretrained(quantised)
    for given, words in (
        ({"quant_method": "awq"}, "is quantised by 'awq': the torch backend makes weights plain of fp8 in blocks and compressed-tensors"),
        ({"quant_method": "fp8", "weight_block_size": [0, 16]}, r"weight_block_size must be two integers above 0 .* not \[0, 16\]"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size must be two integers above 0 .* not 128"),
        ("fp8", "quantization_config must be an object, not 'fp8'"),
    ):
        _configured(quantised, given)
        with pytest.raises(ConfigError, match=words):
            TorchRuntime.from_pretrained(quantised)


def test_factors_without_fp8_fp8_without_a_config_and_stacked_weights_are_named(tmp_path: Path) -> None:
    quantised, _ = fp8_pair("llama", tmp_path, head=True)
    tensors = load_file(quantised / "model.safetensors")

    def written(changes: dict[str, torch.Tensor]) -> Path:
        save_file(tensors | changes, quantised / "model.safetensors", metadata={"format": "pt"})
        return quantised

    mtp = tiny_families.mtp_keys("llama")
    for key in ("model.layers.0.mlp.up_proj.weight", next(key for key in sorted(mtp) if key.endswith("up_proj.weight"))):
        with pytest.raises(ConfigError, match=f"{key} is of torch.bfloat16 with _scale_inv beside it"):
            TorchRuntime.from_pretrained(written({key: tensors[key].to(torch.bfloat16)}))
        with pytest.raises(ConfigError, match=f"{key} has 3 dimensions; of fp8 in blocks matrices alone are read"):
            TorchRuntime.from_pretrained(written({key: tensors[key][None]}))
    config: dict[str, Any] = json.loads((written({}) / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps({key: one for key, one in config.items() if key != "quantization_config"}))
    plain = {key: tensor.to(torch.float32) for key, tensor in tensors.items() if key not in mtp and not key.endswith("_scale_inv")}
    save_file(plain | {key: tensors[key] for key in mtp}, quantised / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="is of torch.float8_e4m3fn and .* is missing, but config.json has no quantization_config"):
        TorchRuntime.from_pretrained(quantised)


@pytest.mark.parametrize("family", ["qwen3_5", "step3p5"])
def test_a_quantisation_that_the_text_part_alone_tells_of_is_taken_too(family: str, tmp_path: Path) -> None:
    quantised, meant = fp8_pair(family, tmp_path, head=False)
    config: dict[str, Any] = json.loads((quantised / "config.json").read_text())
    inner = config.setdefault("text_config", {key: one for key, one in config.items() if key != "quantization_config"})
    inner["quantization_config"] = config.pop("quantization_config")
    (quantised / "config.json").write_text(json.dumps(config))
    _same(TorchRuntime.from_pretrained(quantised), TorchRuntime.from_pretrained(meant))


def test_end_ids_come_from_the_generation_config_as_ever(tmp_path: Path) -> None:
    for folder in fp8_pair("llama", tmp_path, head=True):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
        assert TorchRuntime.from_pretrained(folder).info.stop_tokens == (5, 7)
        (folder / "generation_config.json").write_text("{")  # transformers passes over one that cannot be read
        assert TorchRuntime.from_pretrained(folder).info.stop_tokens != (5, 7)
