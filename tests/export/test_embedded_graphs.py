"""The embedded model's ONNX form: its graphs read their weights from the checkpoint beside them, and compute what torch computes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open

from spanfold.backends.export.checking import reference
from spanfold.backends.models import embedded
from spanfold.backends.torch.loading import load

FOLDER = embedded()
MANIFEST: dict[str, Any] = json.loads((FOLDER / "spanfold.json").read_text(encoding="utf-8"))
TEXT = "def read_lines(path, encoding='utf-8'):\n    with open(path, encoding=encoding) as file:\n        return file.read()\n"


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load(FOLDER, device="cpu", dtype="float32", attn_implementation=None, draft=True, revision=None)


def test_the_manifest_names_the_very_files():
    digests = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in MANIFEST["files"]}
    assert digests == MANIFEST["files"]
    assert {"model.onnx", "mtp.onnx", "model.safetensors", "genai_config.json"} <= set(digests)
    assert (MANIFEST["source"], MANIFEST["precision"], MANIFEST["head"]) == ("pysource-2m", "fp32", True)


@pytest.mark.parametrize("name", ["model.onnx", "mtp.onnx"])
def test_the_weights_lie_once_in_the_package(name: str):
    """Every larger tensor is the checkpoint's own, at its place there."""
    model = onnx.load(FOLDER / name, load_external_data=False)
    with (FOLDER / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
    outside = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            assert len(tensor.raw_data) <= 1 << 16, tensor.name
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        entry = header[tensor.name.removeprefix("checkpoint/")]
        assert place["location"] == "model.safetensors"
        assert [int(place["offset"]) - begin, int(place["offset"]) - begin + int(place["length"])] == entry["data_offsets"]
        outside += 1
    assert outside >= 14


def test_the_graph_computes_in_float32_what_torch_does(loaded: Any):
    tokens = np.array(loaded.tokenizer(TEXT)["input_ids"], np.int64)
    session = onnxruntime.InferenceSession(str(FOLDER / "model.onnx"), providers=["CPUExecutionProvider"])
    feeds = {one.name: np.zeros((1, one.shape[1], 0, 32), np.float32) for one in session.get_inputs() if one.name.startswith("past")}
    feeds |= {"input_ids": tokens[None], "attention_mask": np.ones((1, len(tokens)), np.int64)}
    logits, hidden, ids = session.run(["logits", "hidden_states", "ids"], feeds)
    wanted = reference(loaded, tokens, hidden[0])["logits"]
    np.testing.assert_allclose(logits[0], wanted, atol=1e-4)
    np.testing.assert_array_equal(ids[0], wanted.argmax(-1))


def test_the_heads_graph_drafts_what_the_torch_head_drafts(loaded: Any):
    tokens = np.array(loaded.tokenizer(TEXT)["input_ids"], np.int64)
    with torch.no_grad():
        hidden = loaded.model.model(input_ids=torch.from_numpy(tokens)[None]).last_hidden_state[0].numpy()
    pairs = len(tokens) - 1
    session = onnxruntime.InferenceSession(str(FOLDER / "mtp.onnx"), providers=["CPUExecutionProvider"])
    empty = {one.name: np.zeros((1, one.shape[1], 0, 32), np.float32) for one in session.get_inputs() if one.name.startswith("past")}
    feeds = {"token": tokens[None, 1:], "hidden": hidden[None, :-1], "attention_mask": np.ones((1, pairs), np.int64)} | empty
    names = ["draft_ids", "hidden_out", "present.0.key", "present.0.value"]
    drafts, out, key, value = session.run(names, feeds)
    chained = [drafts[0]]
    for step in range(3):  # on its own output, as a draft of several tokens goes
        feeds = {"token": drafts[:, -1:], "hidden": out[:, -1:], "attention_mask": np.ones((1, pairs + step + 1), np.int64)}
        feeds |= {"past_key_values.0.key": key, "past_key_values.0.value": value}
        drafts, out, key, value = session.run(names, feeds)
        chained.append(drafts[0])
    np.testing.assert_array_equal(np.concatenate(chained), reference(loaded, tokens, hidden)["draft_ids"])


def test_the_graphs_take_every_tensor_of_the_checkpoint():
    used = set()
    for name in ("model.onnx", "mtp.onnx"):
        model = onnx.load(FOLDER / name, load_external_data=False)
        used |= {tensor.name.removeprefix("checkpoint/") for tensor in model.graph.initializer if tensor.external_data}
    with safe_open(Path(FOLDER / "model.safetensors"), framework="pt") as file:
        assert used == set(file.keys())
