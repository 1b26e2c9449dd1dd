"""Whole exports of tiny checkpoints through the export environment. They take a minute together, and are skipped without it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch_models
from safetensors.torch import save_file

from spanfold.backends.export import checking, export
from spanfold.engine.errors import ConfigError

pytestmark = pytest.mark.slow


def checkpoint_of(family: str, folder: Path) -> Path:
    """A tiny checkpoint with a head; llama's drafts from a part of the vocabulary, and heads are as wide as the exported attention asks."""
    model = torch_models.tiny_model(family, head_dim=16)
    torch_models.save_checkpoint(folder, model, torch_models.head_tensors(torch_models.tiny_head(model)))
    if family == "llama":
        save_file({"ids": torch.arange(0, torch_models.VOCABULARY, 3)}, folder / "draft_vocab.safetensors")
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_of("llama", tmp_path_factory.mktemp("llama") / "checkpoint")


@pytest.mark.parametrize("family", torch_models.FAMILIES)
def test_every_family_exports_target_and_head(family: str, exporters: Path, tmp_path: Path):
    done = export(checkpoint_of(family, tmp_path / "checkpoint"), tmp_path / "out", head=True, python=exporters)
    out, manifest = done.folder, done.manifest
    assert json.loads((out / "spanfold.json").read_text(encoding="utf-8")) == manifest
    assert manifest["checked"]["target"]["agreement"] == manifest["checked"]["head"]["agreement"] == 1.0
    assert manifest["files"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir() if path.name != "spanfold.json"
    }
    target = onnx.load(out / "model.onnx", load_external_data=False).graph
    assert {"logits", "hidden_states", "ids"} <= {one.name for one in target.output}
    head = onnx.load(out / "mtp.onnx", load_external_data=False).graph
    assert {one.name for one in head.input} >= {"token", "hidden", "past_key_values.0.key", "past_key_values.0.value"}
    assert {one.name for one in head.output} == {"draft_ids", "logits", "hidden_out", "present.0.key", "present.0.value"}
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "out"}


def test_an_export_is_the_same_bytes_each_time(llama: Path, exporters: Path, tmp_path: Path):
    one, two = (export(llama, tmp_path / name, head=True, python=exporters).manifest for name in ("one", "two"))
    assert one["files"] == two["files"]


def test_a_failed_check_leaves_nothing(llama: Path, exporters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = checking.reference

    def another(*given: Any) -> dict[str, np.ndarray]:
        made = real(*given)
        return made | {"logits": -made["logits"]}

    monkeypatch.setattr(checking, "reference", another)
    with pytest.raises(ConfigError, match="the exported target does not compute what torch does"):
        export(llama, tmp_path / "out", python=exporters)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_a_head_has_none_to_export(exporters: Path, tmp_path: Path):
    torch_models.save_checkpoint(tmp_path / "plain", torch_models.tiny_model("llama", head_dim=16), None)
    with pytest.raises(ConfigError, match="has no MTP layer: leave out --head"):
        export(tmp_path / "plain", tmp_path / "out", head=True, python=exporters)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_heads_that_the_exported_attention_does_not_take_are_refused_before_anything_is_built(exporters: Path, tmp_path: Path):
    torch_models.save_checkpoint(tmp_path / "narrow", torch_models.tiny_model("llama"), None)
    with pytest.raises(ConfigError, match="has heads of 8: the exported attention takes multiples of 16"):
        export(tmp_path / "narrow", tmp_path / "out", python=exporters)
    assert [path.name for path in tmp_path.iterdir()] == ["narrow"]
