"""The processes that benchmarks/speed.py lets take turns, on a tiny checkpoint: ours and transformers' give the same tokens every way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from speedbench.environments import PEERS, Worker
from torch_models import head_tensors, save_checkpoint, tiny_head, tiny_model

PROMPT = [5, 17, 3, 40, 22, 9]
TOKENS = 24


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Worker]:
    folder = tmp_path / "model"
    model = tiny_model("llama")
    save_checkpoint(folder, model, head_tensors(tiny_head(model)), num_mtp_layers=1)
    options = {"model": str(folder), "dtype": "float32", "threads": 1, "cache": str(tmp_path)}
    worker = Worker("transformers", Path(sys.executable), PEERS / "hf" / "peer.py", options, tmp_path / "hf.log")
    worker.start()
    yield worker
    worker.stop()


def test_transformers_gives_our_tokens_plain_with_prompt_lookup_and_with_the_registered_mtp_layer(hf: Worker, tmp_path: Path):
    from spanfold.backends.torch import TorchRuntime
    from spanfold.engine import Decoder

    with Decoder(TorchRuntime.from_pretrained(tmp_path / "model"), policy=0) as decoder:
        expected = list(decoder.generate(PROMPT, max_tokens=TOKENS, stop_tokens=()).tokens)
    hello = hf.ask("hello")
    assert set(hello["groups"]) == {"generate", "prompt lookup", "use_mtp"}
    assert "registered for LlamaForCausalLM" in hello["notes"][0]
    for settings in hello["groups"].values():
        reply = hf.ask("decode", prompt=PROMPT, tokens=TOKENS, setting=settings[-1])
        assert reply["tokens"] == expected
        assert 1 <= reply["first"] < TOKENS and reply["rest_ns"] > 0
