"""The processes that benchmarks/onnx_speed.py lets take turns give the same tokens on the same directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from speedbench.environments import PEERS, Worker

from spanfold.backends.export.environments import EXPORTERS
from spanfold.backends.models import embedded

TEXT = "def read_lines(path):\n"
TOKENS = 24


def decoded(worker: Worker, prompt: list[int], way: str) -> list[int]:
    (setting,) = worker.ask("hello")["groups"][way]
    return worker.ask("decode", prompt=prompt, tokens=TOKENS, setting=setting)["tokens"]


def started(name: str, python: Path, tmp_path: Path) -> Worker:
    given = {"model": str(embedded()), "dtype": "float32", "threads": 1, "cache": str(tmp_path), "backend": "onnx"}
    worker = Worker(name, python, PEERS / name / "peer.py", given, tmp_path / f"{name}.log")
    worker.start()
    return worker


def test_the_peer_needs_what_an_export_needs():
    """So one environment serves both."""
    assert (PEERS / "genai" / "requirements.txt").read_text(encoding="utf-8").split() == list(EXPORTERS)


@pytest.mark.slow
def test_the_generator_of_genai_gives_our_tokens_on_the_embedded_directory(exporters: Path, tmp_path: Path):
    own, genai = started("own", Path(sys.executable), tmp_path), started("genai", exporters, tmp_path)
    try:
        prompt = own.ask("encode", text=TEXT)["ids"]
        assert "onnxruntime" in own.ask("hello")["versions"]
        serial = decoded(own, prompt, "serial")
        assert serial == decoded(own, prompt, "k=2") == decoded(genai, prompt, "Generator")
        assert len(serial) == TOKENS
    finally:
        own.stop()
        genai.stop()
