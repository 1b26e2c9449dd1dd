"""What runs in the export environment: the builder, the additions to its graphs, and the sessions of the check.

It is given a folder with ``job.json`` and what ``sources.py`` wrote, and leaves the exported files in its folder ``out``. Standard
output and errors go to a log, as the builder writes a line per tensor.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# onnxruntime is there in the export environment only.
from __future__ import annotations

import json
import runpy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from . import graphs

__all__ = ["build", "main"]

_BUILDER: Final = "onnxruntime_genai.models.builder"
#: fp16 graphs are the builder's for CUDA: its CPU form splits the attention into pieces. The CPU provider runs them, slowly.
_PROVIDER: Final = {"fp32": "cpu", "int4": "cpu", "fp16": "cuda"}
_VERSIONS: Final = ("onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "transformers", "torch")


def main(work: Path) -> None:
    """Carry out the job in the folder."""
    job: dict[str, Any] = json.loads((work / "job.json").read_text(encoding="utf-8"))
    out = work / "out"
    build(work / "target", out, job["precision"], work / "cache", "model.onnx")
    target = graphs.load(out / "model.onnx")
    graphs.add_ids(target)
    graphs.save(target, out / "model.onnx")
    if job["head"]:
        from safetensors.numpy import load_file

        built = work / "head-out"
        build(work / "head", built, job["precision"], work / "cache", "mtp.onnx", exclude_embeds="true")
        head = graphs.load(built / "mtp.onnx")
        joint = load_file(work / "head" / "joint.safetensors")
        graphs.join_head(head, target, joint, job["epsilon"], job["precision"], out)
        graphs.save(head, out / "mtp.onnx")
    results: dict[str, Any] = {}
    with np.load(work / "prompts.npz") as prompts:
        target_run = _Target(out / "model.onnx")
        head_run = _Head(out / "mtp.onnx") if job["head"] else None
        for name, tokens in prompts.items():
            made = target_run(tokens, job["prompt_tokens"])
            if head_run is not None:
                made = made | head_run(made["hidden"], tokens, job["prompt_tokens"], job["chain"])
            results |= {f"{name}/{key}": value for key, value in made.items()}
    np.savez(work / "results.npz", **results)
    (work / "versions.json").write_text(json.dumps({name: version(name) for name in _VERSIONS}), encoding="utf-8")


def build(source: Path, out: Path, precision: str, cache: Path, filename: str, **options: str) -> None:
    """Run the model builder by its command line, in this process: it sees what was put behind this environment's packages.

    Args:
        source: a checkpoint that ``sources.py`` wrote.
        out: the folder to write.
        precision: ``fp32``, ``fp16`` or ``int4``.
        cache: for its working files.
        filename: of the graph.
        options: the builder's extra options.
    """
    given = {"include_hidden_states": "true", "filename": filename, **options}
    before = sys.argv
    sys.argv = [_BUILDER, "-i", str(source), "-o", str(out), "-p", precision, "-e", _PROVIDER[precision], "-c", str(cache)]
    sys.argv += ["--extra_options", *(f"{key}={value}" for key, value in given.items())]
    try:
        runpy.run_module(_BUILDER, run_name="__main__")
    finally:
        sys.argv = before


class _Session:
    # One sequence in a session on the CPU, its caches handed from run to run.
    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._pasts = {one.name: one for one in self._session.get_inputs() if one.name.startswith("past_key_values.")}
        self._presents = [name.replace("past_key_values", "present") for name in self._pasts]
        self.kind: Any = np.float16 if "float16" in next(iter(self._pasts.values())).type else np.float32

    def start(self, head_dim: int) -> None:
        self._held = {name: np.zeros((1, one.shape[1], 0, head_dim), self.kind) for name, one in self._pasts.items()}
        self._rows = 0

    def run(self, wanted: list[str], feeds: dict[str, Any], rows: int) -> list[Any]:
        self._rows += rows
        feeds |= {"attention_mask": np.ones((1, self._rows), np.int64)} | self._held
        made: list[Any] = self._session.run([*wanted, *self._presents], feeds)
        self._held = dict(zip(self._pasts, made[len(wanted) :], strict=True))
        return [one[0] for one in made[: len(wanted)]]


def _pieces(total: int, first: int) -> list[tuple[int, int]]:
    """The rows of one sequence as a decode feeds them: the prompt, then one row, four, one, four, and so on."""
    ends, step = [min(first, total)], 1
    while ends[-1] < total:
        ends.append(min(ends[-1] + step, total))
        step = 5 - step
    return list(zip([0, *ends[:-1]], ends, strict=True))


class _Target:
    def __init__(self, path: Path) -> None:
        config = json.loads((path.parent / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
        self._head_dim: int = config["head_size"]
        self._session = _Session(path)

    def __call__(self, tokens: np.ndarray[Any, Any], prompt: int) -> dict[str, np.ndarray[Any, Any]]:
        self._session.start(self._head_dim)
        names = ["logits", "hidden_states", "ids"]
        parts = [self._session.run(names, {"input_ids": tokens[None, a:b]}, b - a) for a, b in _pieces(len(tokens), prompt)]
        logits, hidden, ids = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {"logits": logits.astype(np.float32), "hidden": hidden.astype(np.float32), "ids": ids}


class _Head:
    def __init__(self, path: Path) -> None:
        config = json.loads((path.parent / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
        self._head_dim: int = config["head_size"]
        self._session = _Session(path)

    def __call__(self, hidden: np.ndarray[Any, Any], tokens: np.ndarray[Any, Any], prompt: int, chain: int) -> dict[str, Any]:
        """Pairs (hidden row p, token p + 1) for all p, then ``chain`` steps on what the head itself made."""
        self._session.start(self._head_dim)
        names = ["logits", "draft_ids", "hidden_out"]
        hidden, following = hidden.astype(self._session.kind), tokens[1:]
        parts: list[list[Any]] = []
        for a, b in _pieces(len(following), prompt):
            parts.append(self._session.run(names, {"token": following[None, a:b], "hidden": hidden[None, a:b]}, b - a))
        for _ in range(chain):
            _, best, made = parts[-1]
            parts.append(self._session.run(names, {"token": best[None, -1:], "hidden": made[None, -1:]}, 1))
        scores, best, _ = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {"head_logits": scores.astype(np.float32), "draft_ids": best}
