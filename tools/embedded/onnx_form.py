"""Make the ONNX form of the embedded model: graphs beside its weights, which they read from model.safetensors itself.

    python tools/embedded/onnx_form.py [--python FILE] [--cache DIR]

``spanfold export`` makes the graphs in float32, with a copy of every weight. Here each copy is replaced by how it comes from the
checkpoint: the bfloat16 tensor where it lies in model.safetensors, a Cast, and a Transpose or a Concat where the exporter applied
one. Every replacement is bit-equal to the copy, or there is an error. A session folds these nodes into constants when it loads, so
the values that are computed with are those of the torch backend in float32, and the package holds the weights once. Needs the
packages of ``spanfold[torch,dev]`` and, for the export, pip.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from safetensors.torch import load_file

from spanfold.backends.export import export

FOLDER = Path(__file__).resolve().parents[2] / "backends" / "models" / "pysource"
WEIGHTS = "model.safetensors"
GRAPHS = ("model.onnx", "mtp.onnx")
#: The parts of a fused projection, in the exporter's order.
FUSED = ("q_proj", "k_proj", "v_proj")

#: How a weight comes from the checkpoint: the names of its parts, joined along axis 0, then transposed or not.
Recipe = tuple[tuple[str, ...], bool]


def digest(array: Any) -> tuple[tuple[int, ...], bytes]:
    """Names an array's content in float32."""
    return tuple(array.shape), hashlib.sha256(np.ascontiguousarray(array, np.float32).tobytes()).digest()


def recipes(weights: dict[str, Any]) -> dict[tuple[tuple[int, ...], bytes], Recipe]:
    """Every array that can be made of the checkpoint, by its content."""
    arrays: dict[tuple[str, ...], Any] = {(name,): tensor.float().numpy() for name, tensor in weights.items()}
    for name in weights:
        if FUSED[0] in name:
            names = tuple(name.replace(FUSED[0], part) for part in FUSED)
            arrays[names] = np.concatenate([arrays[(one,)] for one in names])
    found: dict[tuple[tuple[int, ...], bytes], Recipe] = {}
    for names, array in arrays.items():
        found.setdefault(digest(array), (names, False))
        if array.ndim == 2:
            found.setdefault(digest(array.T), (names, True))
    return found


def places(path: Path) -> dict[str, tuple[int, int, list[int]]]:
    """Offset, length and shape of every bfloat16 tensor of a safetensors file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    begin = 8 + size
    return {
        name: (begin + entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0], entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "BF16"
    }


def referring(model: ModelProto, made: dict[tuple[tuple[int, ...], bytes], Recipe], where: dict[str, tuple[int, int, list[int]]]) -> int:
    """Let every weight of a graph be read from the checkpoint; returns how many were. Small tables that are not of it stay."""
    graph, nodes = model.graph, list[NodeProto]()
    sources: dict[str, TensorProto] = {}
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        recipe = made.get(digest(numpy_helper.to_array(tensor))) if tensor.data_type == TensorProto.FLOAT else None
        if recipe is None:
            if len(tensor.raw_data) > 1 << 16:
                raise SystemExit(f"{tensor.name} {list(tensor.dims)} cannot be made of the checkpoint")
            kept.append(tensor)
            continue
        names, turned = recipe
        cast = [f"checkpoint/{name}/float" for name in names]
        for name, output in zip(names, cast, strict=True):
            if name not in sources:
                sources[name] = source(name, where[name])
                nodes.append(helper.make_node("Cast", [f"checkpoint/{name}"], [output], name=f"/checkpoint/{name}", to=TensorProto.FLOAT))
        last = cast[0]
        if len(names) > 1:
            last = f"{tensor.name}/joined" if turned else tensor.name
            nodes.append(helper.make_node("Concat", cast, [last], name=f"/{tensor.name}/Concat", axis=0))
        if turned:
            nodes.append(helper.make_node("Transpose", [last], [tensor.name], name=f"/{tensor.name}/Transpose", perm=[1, 0]))
        elif len(names) == 1:
            nodes.append(helper.make_node("Identity", [last], [tensor.name], name=f"/{tensor.name}/Identity"))
    before = list(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.node.extend([*nodes, *before])
    graph.initializer.extend([*kept, *sources.values()])
    return len(sources)


def source(name: str, place: tuple[int, int, list[int]]) -> TensorProto:
    """A tensor that lies in the checkpoint."""
    offset, length, shape = place
    tensor = TensorProto(name=f"checkpoint/{name}", data_type=TensorProto.BFLOAT16, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", WEIGHTS), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def main() -> None:
    """Export, let the weights be read from the checkpoint, and write the graphs beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="as spanfold export has it")
    parser.add_argument("--cache", help="as spanfold export has it")
    given = parser.parse_args()
    made, where = recipes(load_file(FOLDER / WEIGHTS)), places(FOLDER / WEIGHTS)
    if set(load_file(FOLDER / WEIGHTS)) != set(where):
        raise SystemExit(f"{WEIGHTS} holds tensors that are not bfloat16")
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "out"
        say = lambda text: print(text, file=sys.stderr)  # noqa: E731
        manifest = export(FOLDER, out, precision="fp32", head=True, python=given.python, cache_dir=given.cache, progress=say).manifest
        for name in GRAPHS:
            model = onnx.load(out / name)
            count = referring(model, made, where)
            (FOLDER / name).write_bytes(model.SerializeToString(deterministic=True))
            print(f"{name}: {(FOLDER / name).stat().st_size} bytes, {count} tensors read from {WEIGHTS}")
        shutil.copyfile(out / "genai_config.json", FOLDER / "genai_config.json")
    manifest |= {"source": "pysource-2m"}
    listed = ("config.json", "genai_config.json", "generation_config.json", WEIGHTS, *GRAPHS, "tokenizer.json", "tokenizer_config.json")
    manifest["files"] = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in sorted(listed)}
    (FOLDER / "spanfold.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
