"""Tiny exports for the ONNX backend's tests, made with the ``onnx`` package from fixed seeds.

Two kinds of one network (a Llama of two layers with an MTP head): ``genai`` as onnxruntime-genai's model builder writes it, with
GroupQueryAttention, and ``ordinary`` as the usual exporters do, with Concat, MatMul and Softmax. Weights are a dict of numpy arrays under
their Hugging Face names, so that one of the torch backend's tiny models can be exported too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

VOCABULARY = 61
CONTEXT = 96
HEAD_IDS = tuple(range(1, 61, 2))

_FLOAT = {"float32": np.float32, "float16": np.float16, "int4": np.float32}
_PROTO = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}
_MASKS = {"int64": TensorProto.INT64, "int32": TensorProto.INT32, "float": TensorProto.FLOAT, "bool": TensorProto.BOOL}


@frozen
class Shape:
    hidden: int = 32
    inner: int = 64
    layers: int = 2
    heads: int = 4
    kv: int = 2
    dim: int = 16
    vocabulary: int = VOCABULARY
    context: int = CONTEXT
    eps: float = 1e-5
    theta: float = 10000.0


SHAPE = Shape()


def weights(seed: int = 0, shape: Shape = SHAPE) -> dict[str, Any]:
    """Random weights, wide enough for margins far above rounding; the head's under ``model.layers.{N}.``."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 0.25) -> Any:
        return (scale * rng.standard_normal((rows, columns))).astype(np.float32)

    def norm(size: int) -> Any:
        return (1 + 0.3 * rng.standard_normal(size)).astype(np.float32)

    found = {
        "model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden, 1.0),
        "model.norm.weight": norm(shape.hidden),
        "lm_head.weight": matrix(shape.vocabulary, shape.hidden),
    }
    for layer in range(shape.layers + 1):
        at = f"model.layers.{layer}."
        found |= {
            at + "input_layernorm.weight": norm(shape.hidden),
            at + "post_attention_layernorm.weight": norm(shape.hidden),
            at + "self_attn.q_proj.weight": matrix(shape.heads * shape.dim, shape.hidden),
            at + "self_attn.k_proj.weight": matrix(shape.kv * shape.dim, shape.hidden),
            at + "self_attn.v_proj.weight": matrix(shape.kv * shape.dim, shape.hidden),
            at + "self_attn.o_proj.weight": matrix(shape.hidden, shape.heads * shape.dim),
            at + "mlp.gate_proj.weight": matrix(shape.inner, shape.hidden),
            at + "mlp.up_proj.weight": matrix(shape.inner, shape.hidden),
            at + "mlp.down_proj.weight": matrix(shape.hidden, shape.inner),
        }
    at = f"model.layers.{shape.layers}."
    found |= {
        at + "enorm.weight": norm(shape.hidden),
        at + "hnorm.weight": norm(shape.hidden),
        at + "eh_proj.weight": matrix(shape.hidden, 2 * shape.hidden),
        at + "shared_head.norm.weight": norm(shape.hidden),
    }
    return found


class _Graph:
    """A graph under construction. Values are named by counting; all floats are of one type."""

    def __init__(self, kind: str, precision: str, shape: Shape) -> None:
        self.kind, self.shape, self.precision = kind, shape, precision
        self.float: Any = _FLOAT[precision]
        self.proto = _PROTO[self.float]
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def add(self, op: str, *inputs: str, out: str | None = None, count: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [out or f"v{len(self.nodes)}", *(f"v{len(self.nodes)}_{more}" for more in range(1, count))]
        self.nodes.append(helper.make_node(op, list(inputs), names, domain=domain, **attributes))
        return names[0] if count == 1 else names

    def constant(self, value: Any, name: str | None = None) -> str:
        name = name or f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def floats(self, value: Any, name: str | None = None) -> str:
        return self.constant(np.asarray(value).astype(self.float), name)

    def matmul(self, x: str, weight: Any) -> str:
        """``x @ weight.T``; with int4, by quantised weights."""
        if self.precision != "int4":
            return self.add("MatMul", x, self.floats(weight.T))
        rows, columns = weight.shape
        blocks = -(-columns // 32)
        padded = np.zeros((rows, blocks * 32), np.float32)
        padded[:, :columns] = weight
        grouped = padded.reshape(rows, blocks, 32)
        scale = np.maximum(np.abs(grouped).max(-1, keepdims=True) / 7, 1e-6)
        quantised = (np.clip(np.rint(grouped / scale), -8, 7) + 8).astype(np.uint8)
        packed = self.constant(quantised[..., 0::2] | (quantised[..., 1::2] << 4))
        scales = self.constant(scale.reshape(-1).astype(np.float32))
        return self.add("MatMulNBits", x, packed, scales, domain="com.microsoft", K=columns, N=rows, bits=4, block_size=32)

    def norm(self, x: str, weight: Any) -> str:
        wide = self.add("Cast", x, to=TensorProto.FLOAT)
        mean = self.add("ReduceMean", self.add("Mul", wide, wide), self.numbers(-1), keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.constant(np.float32(self.shape.eps))))
        return self.add("Mul", self.add("Cast", self.add("Div", wide, root), to=self.proto), self.floats(weight))

    def input(self, name: str, kind: int, dims: list[Any]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, name: str, kind: int, dims: list[Any]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))

    def caches(self, layers: int) -> None:
        for layer in range(layers):
            for part in ("key", "value"):
                dims = [1, self.shape.kv, "past", self.shape.dim]
                self.input(f"past_key_values.{layer}.{part}", self.proto, dims)
                self.output(f"present.{layer}.{part}", self.proto, [1, self.shape.kv, "total", self.shape.dim])

    def rotary(self, shift: int) -> tuple[Any, Any]:
        rates = 1.0 / self.shape.theta ** (np.arange(0, self.shape.dim, 2) / self.shape.dim)
        # What an ordinary exporter writes computes its angles; only GroupQueryAttention has a table that ends.
        end = self.shape.context + (shift if self.kind == "genai" else 16)
        angles = np.outer(np.arange(shift, end), rates)
        return np.cos(angles), np.sin(angles)

    def save(self, path: Path) -> None:
        tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, tensors)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.save(model, path)


class _Decoder(_Graph):
    """The layers of one graph over its caches."""

    def begin(self, tokens: str, mask: str | None, positions: bool, shift: int) -> None:
        """``shift``: position id less place in the cache, of the rotary table (genai) or of the positions made here."""
        self.cos, self.sin = (self.floats(table) for table in self.rotary(shift if self.kind == "genai" else 0))
        self.rows = self.add("Gather", self.add("Shape", tokens), self.numbers(1))
        past = self.add("Gather", self.add("Shape", "past_key_values.0.key"), self.numbers(2))
        self.total = self.add("Add", past, self.rows)
        if mask is not None:
            self.input("attention_mask", _MASKS[mask], [1, "total"])
        if self.kind == "genai":
            counted = self.add("Cast", self.add("ReduceSum", self._mask_as(TensorProto.INT64), self.numbers(1)), to=TensorProto.INT32)
            self.last = self.add("Sub", counted, self.constant(np.array([[1]], np.int32)))
            length = self.add("Gather", self.add("Shape", "attention_mask"), self.constant(np.int64(1)))
            self.length = self.add("Cast", length, to=TensorProto.INT32)
            return
        places = self.add("Range", self._scalar(past), self._scalar(self.total), self.constant(np.int64(1)))
        keys = self.add("Range", self.constant(np.int64(0)), self._scalar(self.total), self.constant(np.int64(1)))
        if positions:
            self.input("position_ids", TensorProto.INT64, [1, "rows"])
            self.places = self.add("Squeeze", "position_ids", self.numbers(0))
        else:
            self.places = self.add("Add", places, self.numbers(shift))
        seen = self.add("LessOrEqual", self.add("Unsqueeze", keys, self.numbers(0)), self.add("Unsqueeze", places, self.numbers(1)))
        if mask is not None:
            seen = self.add("And", seen, self._mask_as(TensorProto.BOOL))
        self.bias = self.add("Where", seen, self.floats(0.0), self.floats(-1e4))

    def _mask_as(self, kind: int) -> str:
        return self.add("Cast", "attention_mask", to=kind)

    def _scalar(self, one: str) -> str:
        return self.add("Squeeze", one, self.numbers(0))

    def layer(self, x: str, given: dict[str, Any], index: int, at: str, window: int = -1) -> str:
        part = {name: given[f"{at}{name}.weight"] for name in _LAYER}
        normed = self.norm(x, part["input_layernorm"])
        q, k, v = (self.matmul(normed, part[f"self_attn.{one}_proj"]) for one in "qkv")
        attend = self._grouped if self.kind == "genai" else self._plain
        x = self.add("Add", x, self.matmul(attend(q, k, v, index, window), part["self_attn.o_proj"]))
        normed = self.norm(x, part["post_attention_layernorm"])
        gate = self.matmul(normed, part["mlp.gate_proj"])
        gated = self.add("Mul", self.add("Mul", gate, self.add("Sigmoid", gate)), self.matmul(normed, part["mlp.up_proj"]))
        return self.add("Add", x, self.matmul(gated, part["mlp.down_proj"]))

    def _grouped(self, q: str, k: str, v: str, index: int, window: int) -> str:
        past = [f"past_key_values.{index}.{one}" for one in ("key", "value")]
        names = [f"a{index}", f"present.{index}.key", f"present.{index}.value"]
        node = helper.make_node(
            "GroupQueryAttention",
            [q, k, v, *past, self.last, self.length, self.cos, self.sin],
            names,
            domain="com.microsoft",
            num_heads=self.shape.heads,
            kv_num_heads=self.shape.kv,
            scale=self.shape.dim**-0.5,
            do_rotary=1,
            local_window_size=window,
        )
        self.nodes.append(node)
        return names[0]

    def _plain(self, q: str, k: str, v: str, index: int, window: int) -> str:
        shape = self.shape

        def heads(x: str, count: int) -> str:  # [1, rows, count * dim] -> [1, count, rows, dim]
            return self.add("Transpose", self.add("Reshape", x, self.numbers(0, 0, count, shape.dim)), perm=[0, 2, 1, 3])

        def turned(x: str) -> str:
            cos = self.add("Gather", self.cos, self.places)
            sin = self.add("Gather", self.sin, self.places)
            one, two = self.add("Split", x, axis=3, num_outputs=2, count=2)
            left = self.add("Sub", self.add("Mul", one, cos), self.add("Mul", two, sin))
            right = self.add("Add", self.add("Mul", two, cos), self.add("Mul", one, sin))
            return self.add("Concat", left, right, axis=3)

        query, key, value = turned(heads(q, shape.heads)), turned(heads(k, shape.kv)), heads(v, shape.kv)
        keys = self.add("Concat", f"past_key_values.{index}.key", key, axis=2, out=f"present.{index}.key")
        values = self.add("Concat", f"past_key_values.{index}.value", value, axis=2, out=f"present.{index}.value")
        groups = self.numbers(*(head * shape.kv // shape.heads for head in range(shape.heads)))
        keys, values = self.add("Gather", keys, groups, axis=1), self.add("Gather", values, groups, axis=1)
        scores = self.add("MatMul", query, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.add("Add", self.add("Mul", scores, self.floats(shape.dim**-0.5)), self.bias)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), values)
        return self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), self.numbers(0, 0, shape.heads * shape.dim))


_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{one}_proj" for one in "qkvo"),
    *(f"mlp.{one}_proj" for one in ("gate", "up", "down")),
)


def export_target(
    path: Path,
    given: dict[str, Any],
    *,
    kind: str = "genai",
    precision: str = "float32",
    shape: Shape = SHAPE,
    mask: str | None = "int64",
    positions: bool = False,
    hidden: bool = True,
    ids: bool = True,
    window: int = -1,
    tokens: str = "int64",
) -> None:
    graph = _Decoder(kind, precision, shape)
    graph.input("input_ids", _MASKS[tokens], [1, "rows"])
    graph.caches(shape.layers)
    graph.begin("input_ids", mask, positions, 0)
    x = graph.add("Gather", graph.floats(given["model.embed_tokens.weight"]), "input_ids")
    for layer in range(shape.layers):
        x = graph.layer(x, given, layer, f"model.layers.{layer}.", window)
    x = graph.norm(x, given["model.norm.weight"])
    if hidden:
        graph.add("Identity", x, out="hidden_states")
        graph.output("hidden_states", graph.proto, [1, "rows", shape.hidden])
    graph.add("Identity", graph.matmul(x, given["lm_head.weight"]), out="logits")
    graph.output("logits", graph.proto, [1, "rows", shape.vocabulary])
    if ids:
        graph.add("ArgMax", "logits", axis=-1, keepdims=0, out="ids")
        graph.output("ids", TensorProto.INT64, [1, "rows"])
    graph.save(path)


def export_head(
    path: Path,
    given: dict[str, Any],
    *,
    kind: str = "genai",
    precision: str = "float32",
    shape: Shape = SHAPE,
    positions: bool = False,
    vocabulary: tuple[int, ...] | None = None,
) -> None:
    graph = _Decoder(kind, precision, shape)
    at = f"model.layers.{shape.layers}."
    graph.input("token", TensorProto.INT64, [1, "rows"])
    graph.input("hidden", graph.proto, [1, "rows", shape.hidden])
    graph.caches(1)
    graph.begin("token", "int64" if kind == "genai" else None, positions, 1)
    embedded = graph.add("Gather", graph.floats(given["model.embed_tokens.weight"]), "token")
    pair = [graph.norm(embedded, given[at + "enorm.weight"]), graph.norm("hidden", given[at + "hnorm.weight"])]
    x = graph.layer(graph.matmul(graph.add("Concat", *pair, axis=2), given[at + "eh_proj.weight"]), given, 0, at)
    graph.add("Identity", graph.norm(x, given[at + "shared_head.norm.weight"]), out="hidden_out")
    output = given["lm_head.weight"] if vocabulary is None else given["lm_head.weight"][list(vocabulary)]
    graph.add("Identity", graph.matmul("hidden_out", output), out="logits")
    best = graph.add("ArgMax", "logits", axis=-1, keepdims=0)
    if vocabulary is not None:
        best = graph.add("Gather", graph.constant(np.array(vocabulary)), best)
    graph.add("Identity", best, out="draft_ids")
    graph.output("draft_ids", TensorProto.INT64, [1, "rows"])
    graph.output("logits", graph.proto, [1, "rows", output.shape[0]])
    graph.output("hidden_out", graph.proto, [1, "rows", shape.hidden])
    graph.save(path)


def export(
    folder: Path,
    given: dict[str, Any] | None = None,
    *,
    kind: str = "genai",
    precision: str = "float32",
    head: bool = True,
    head_kind: str | None = None,
    head_positions: bool = False,
    vocabulary: tuple[int, ...] | None = None,
    shape: Shape = SHAPE,
    share: bool = True,
    **options: Any,
) -> Path:
    """Write a model directory; its target and head by ``options`` of ``export_target`` and those here."""
    folder.mkdir(parents=True, exist_ok=True)
    given = weights(0, shape) if given is None else given
    export_target(folder / "model.onnx", given, kind=kind, precision=precision, shape=shape, **options)
    if head:
        kinds = {"kind": head_kind or kind, "precision": precision, "positions": head_positions}
        export_head(folder / "mtp.onnx", given, shape=shape, vocabulary=vocabulary, **kinds)
        if vocabulary is not None:
            write_draft_vocab(folder, vocabulary)
    config = {"max_position_embeddings": shape.context, "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "genai":
        decoder = {"filename": "model.onnx", "head_size": shape.dim, "hidden_size": shape.hidden, "num_key_value_heads": shape.kv}
        model = {"context_length": shape.context, "vocab_size": shape.vocabulary, "decoder": decoder}
        genai = {"model": model, "search": {"past_present_share_buffer": share}}
        (folder / "genai_config.json").write_text(json.dumps(genai))
    return folder


def write_draft_vocab(folder: Path, ids: tuple[int, ...]) -> None:
    save_file({"ids": np.array(ids, np.int64)}, folder / "draft_vocab.safetensors")
