"""A bare ONNX Runtime session on the same weights: how fast rows can be, without any engine around them.

The model is exported once by onnxruntime-genai's model builder (fused attention with a shared buffer for past and present, as its
own generator uses it) and run by ``InferenceSession`` alone: no sampling beyond an argmax, no speculation. Float32 only: the CPU
provider has no bfloat16 kernels for these operators.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from protocol import Handler, NotApplicable, Stamps, options, serve, timed_rows


def exported(folder: Path, cache: Path) -> Path:
    """The exported target, made where it is not there yet."""
    done = cache / "onnx"
    if not (done / "model.onnx").is_file():
        from spanfold.backends.export.sources import write_target
        from spanfold.backends.export.worker import build
        from spanfold.backends.torch.loading import load

        work = cache / "work"
        shutil.rmtree(work, ignore_errors=True)
        loaded = load(folder, device="cpu", dtype="float32", attn_implementation=None, draft=False, revision=None)
        write_target(loaded, folder, work / "source")
        build(work / "source", work / "onnx", "fp32", work / "cache", "model.onnx")
        (work / "onnx").rename(done)
        shutil.rmtree(work)
    return done


class Target:
    """The session and buffers for one sequence of at most ``capacity`` rows."""

    def __init__(self, path: Path, threads: int, layers: int, head_dim: int) -> None:
        import onnxruntime

        given = onnxruntime.SessionOptions()
        given.intra_op_num_threads, given.inter_op_num_threads = threads, 1
        self._ort = onnxruntime
        self._session = onnxruntime.InferenceSession(str(path / "model.onnx"), given, providers=["CPUExecutionProvider"])
        self._inputs = {one.name: one for one in self._session.get_inputs()}
        self._layers, self._head_dim = layers, head_dim
        self.version = onnxruntime.__version__

    def reset(self, capacity: int) -> None:
        import numpy as np

        self._binding = self._session.io_binding()
        for layer in range(self._layers):
            for part in ("key", "value"):
                name = f"past_key_values.{layer}.{part}"
                shape = self._inputs[name].shape
                zeros = np.zeros((1, shape[1], capacity, self._head_dim), np.float32)
                buffer = self._ort.OrtValue.ortvalue_from_numpy(zeros)
                self._binding.bind_ortvalue_input(name, buffer)
                self._binding.bind_ortvalue_output(f"present.{layer}.{part}", buffer)

    def run(self, ids: list[int], past: int) -> list[int]:
        """Feed rows behind ``past`` others; the best token after each."""
        import numpy as np

        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, past + len(ids)), np.int64),
            "position_ids": np.arange(past, past + len(ids), dtype=np.int64)[None],
        }
        for name, value in feeds.items():
            if name in self._inputs:
                self._binding.bind_cpu_input(name, value)
        self._binding.bind_output("logits", "cpu")
        self._session.run_with_iobinding(self._binding)
        logits = self._binding.get_outputs()[-1].numpy()  # outputs are listed as they were bound: the caches first
        return [int(best) for best in logits[0].argmax(-1)]


def start() -> dict[str, Handler]:
    given = options()
    if given["dtype"] != "float32":
        raise NotApplicable(f"{given['dtype']}: ONNX Runtime's CPU provider computes these operators in float32 alone")
    folder = Path(given["model"])
    config = json.loads((folder / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    target = Target(exported(folder, Path(given["cache"])), given["threads"], config["num_hidden_layers"], head_dim)
    eos = config.get("eos_token_id")
    stops = set(eos if isinstance(eos, list) else [] if eos is None else [eos])

    def hello(request: dict[str, Any]) -> dict[str, Any]:
        return {
            "versions": {"onnxruntime": target.version},
            "notes": ["exported by onnxruntime-genai's builder; a bare session, past and present in one buffer, argmax by numpy"],
            "groups": {"session": [{"label": "bare session"}]},
        }

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        prompt: list[int] = request["prompt"]
        target.reset(len(prompt) + request["tokens"])
        stamps = Stamps()
        tokens = [target.run(prompt, 0)[-1]]
        stamps.delivered(1)
        while len(tokens) < request["tokens"] and tokens[-1] not in stops:
            tokens += target.run([tokens[-1]], len(prompt) + len(tokens) - 1)
        return stamps.reply(tokens)

    def rows(request: dict[str, Any]) -> dict[str, Any]:
        past = request["past"]
        target.reset(past + 64)
        target.run([1 + at % 7 for at in range(past)], 0)
        return timed_rows(lambda count: target.run([7] * count, past), request)

    return {"hello": hello, "decode": decode, "rows": rows}


if __name__ == "__main__":
    serve(start)
