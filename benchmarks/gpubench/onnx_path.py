"""The ONNX backend on the device: the embedded model's tokens against those of the CPU, and the costs of its calls."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from speedbench.figures import NEAR_TIE, first_difference

from spanfold.backends.models import embedded
from spanfold.engine import ConfigError

from .costs import Work, call_costs, decoded, margin_at

__all__ = ["onnx_checks"]


def onnx_checks(work: Work) -> dict[str, Any]:
    """What differs between device and CPU and is no near tie, and milliseconds by call; or why it was skipped."""
    if find_spec("onnxruntime") is None:
        return {"skipped": "onnxruntime is not installed: pip install 'spanfold[onnx]'"}
    from spanfold.backends.onnx import OnnxRuntime

    try:
        runtime = OnnxRuntime.from_directory(embedded(), device=work.device, name="embedded")
    except ConfigError as error:
        return {"skipped": str(error)}
    beside = OnnxRuntime.from_directory(embedded(), threads=1, name="embedded")
    providers = runtime.providers
    found: dict[str, Any] = {"providers": providers, "dtype": runtime.info.dtype, "row_exact": runtime.info.row_exact, "differ": []}
    found["shares_buffers"] = runtime.shares_buffers
    for seed in range(3):
        prompt = [(seed * 7919 + at * 104729) % runtime.info.vocabulary for at in range(work.prompt // 2)]
        serial = decoded(beside, work, 0, prompt)
        for width in (0, *work.widths):
            run = decoded(runtime, work, width, prompt, serial.tokens)
            where = first_difference(serial.tokens, run.tokens)
            margin = None if where is None else margin_at(beside, prompt, where)
            if where is not None and not (margin is not None and margin < NEAR_TIE["float32"]):
                found["differ"].append({"seed": seed, "width": width, "index": where, "margin": margin})
    found |= call_costs(runtime, work)
    runtime.close()
    beside.close()
    return found
