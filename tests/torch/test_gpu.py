"""What needs a CUDA device: the same tokens as on it without speculation, the same drafts in every run, no transfer between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_loop import assert_same, decode, draft, greedy, start
from torch_models import FAMILIES, head_tensors, save_checkpoint, tiny_head, tiny_model

from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.choice import choose
from spanfold.backends.torch.config import DTYPES
from spanfold.engine import Decoder
from spanfold.engine.errors import ConfigError
from spanfold.engine.runtime import Extras

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPT = (5, 17, 3, 40, 22, 9)
#: Bounds on the margin of a near tie on CUDA, until they are measured there; see docs/explanation/numerics.md.
BOUNDS = {"float32": 1e-2, "bfloat16": 1.0, "float16": 0.25}


def loaded(family: str, dtype: str, folder: Path, modules: bool | None = None) -> TorchRuntime:
    model = tiny_model(family)
    save_checkpoint(folder, model, head_tensors(tiny_head(model)))
    return TorchRuntime.from_pretrained(folder, device="cuda", dtype=dtype, modules=modules)


@pytest.mark.parametrize("modules", [None, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_equal_transformers_own_greedy_generate(family: str, dtype: str, modules: bool | None, tmp_path: Path) -> None:
    """Also on the decode path, which is not the default there until it was measured."""
    runtime = loaded(family, dtype, tmp_path, modules)
    assert runtime.info.device == "cuda:0" and runtime.info.dtype == dtype
    model: Any = runtime._model  # pyright: ignore[reportPrivateUsage]
    expected = greedy(model, PROMPT, 40)
    for width in range(6):
        with Decoder(runtime, policy=width) as decoder:
            assert_same(model, PROMPT, decoder.generate(PROMPT, max_tokens=40).tokens, expected, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tie_is_broken_by_the_lowest_id(dtype: str) -> None:
    for width in (7, 1000, 49152, 151936):
        scores = torch.zeros(4, width, dtype=DTYPES[dtype], device="cuda")
        scores[:, [3, width // 2, width - 1]] = 2.0
        assert choose(scores, Extras(margins=True)).ids == (3, 3, 3, 3)
        assert scores.argmax(dim=-1).tolist() == [3, 3, 3, 3]


def test_case_6_14_a_hundred_runs_give_the_same_drafts(tmp_path: Path) -> None:
    runtime = loaded("llama", "float32", tmp_path)
    drafts: set[tuple[int, ...]] = set()
    for session in range(100):
        run = start(runtime, PROMPT, session=session)
        drafts.add(draft(runtime, session, run.canonical[-1], 5))
        runtime.drop_session(session)
    assert len(drafts) == 1


def test_a_draft_waits_for_the_device_once(tmp_path: Path) -> None:
    """No value comes to the host before the last step is enqueued: torch would raise at the first hidden wait."""
    runtime = loaded("llama", "float32", tmp_path)
    run = start(runtime, PROMPT)
    draft(runtime, 0, run.canonical[-1], 5)
    head: Any = runtime._head  # pyright: ignore[reportPrivateUsage]
    original, steps = head.forward, 0

    def strict(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        torch.cuda.set_sync_debug_mode("error")
        try:
            return original(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    head.forward = strict
    draft(runtime, 0, run.canonical[-1], 5)
    assert steps == 5


def test_sessions_release_the_devices_memory(tmp_path: Path) -> None:
    runtime = loaded("qwen3", "bfloat16", tmp_path)
    decode(runtime, PROMPT, 3, 30)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        decode(runtime, PROMPT, 3, 30)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_a_device_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    model = tiny_model("llama")
    save_checkpoint(tmp_path, model, None)
    with pytest.raises(ConfigError, match="counted from 0"):
        TorchRuntime.from_pretrained(tmp_path, device=f"cuda:{torch.cuda.device_count()}")
