"""What needs a CUDA device: the CPU's tokens, the same drafts in every run, buffers that stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_runtimes import exported
from runtime_loop import decode, draft, forward, numbers, settle, start

from spanfold.backends.onnx import OnnxRuntime
from spanfold.backends.onnx.memory import allocate
from spanfold.backends.onnx.providers import Device
from spanfold.engine.errors import ConfigError

PROMPT = (5, 17, 3, 40, 22, 9)


def cuda(**of: Any) -> OnnxRuntime:
    return OnnxRuntime.from_directory(exported(**of), device="cuda")


def without_cuda() -> str | None:
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "this onnxruntime is built without CUDA"
    try:
        cuda(kind="genai")
    except ConfigError as error:
        return str(error)
    return None


# Asked when the tests are collected, which opens one tiny session.
_REASON = without_cuda()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]


@pytest.mark.parametrize("kind", ["genai", "ordinary"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_tokens_are_those_of_the_cpu_with_spans_and_without(kind: str, precision: str) -> None:
    beside = OnnxRuntime.from_directory(exported(kind=kind, precision=precision), threads=1)
    runtime = cuda(kind=kind, precision=precision)
    assert runtime.info.device == "cuda:0" and "CUDAExecutionProvider" in runtime.providers
    expected = decode(beside, PROMPT, 0, 30).tokens
    for width in range(4):
        found = decode(runtime, PROMPT, width, 30).tokens
        if precision == "float32":
            assert found == expected
        assert found == decode(runtime, PROMPT, width, 30).tokens


@pytest.mark.parametrize("kind", ["genai", "ordinary"])
def test_cases_6_14_and_7_4_a_hundred_runs_give_the_same_drafts(kind: str) -> None:
    runtime = cuda(kind=kind, precision="float16")
    drafts: set[tuple[int, ...]] = set()
    for session in range(100):
        run = start(runtime, PROMPT, session=session)
        drafts.add(draft(runtime, session, run.canonical[-1], 5))
        runtime.drop_session(session)
    assert len(drafts) == 1


@pytest.mark.parametrize("kind", ["genai", "ordinary"])
def test_buffers_grow_and_are_cut_on_the_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = decode(cuda(kind=kind), PROMPT, 3, 70).tokens
    monkeypatch.setattr("spanfold.backends.onnx.caches.BLOCK", 8)
    runtime = cuda(kind=kind)
    assert decode(runtime, PROMPT, 3, 70).tokens == expected
    start(runtime, PROMPT)
    forward(runtime, 0, 6, (1, 2, 3), "all", canonical=False)
    settle(runtime, 0, 6, 3, 7)
    assert numbers(runtime, 0)[0] == 7


def test_memory_of_the_device_is_zeroed_when_made() -> None:
    block = allocate(1000, np.float16, Device("cuda"))
    assert block.pointer and block.nbytes == 2000 and not block.load().any()
