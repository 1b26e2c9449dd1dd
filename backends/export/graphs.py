"""What is added to the builder's graphs: the best id beside the logits, and the joint in front of the head's layer.

Runs in the export environment alone: it needs the package onnx, and onnxruntime's quantiser for int4.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# onnx's messages are typed in parts, and the quantiser is there in the export environment only.
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, external_data_helper, helper, numpy_helper

__all__ = ["BLOCK_SIZE", "add_ids", "join_head", "load", "save"]

#: Weights per scale in int4, as the builder has it by default.
BLOCK_SIZE: Final = 32

_ALIGNED: Final = 4096
_INLINE: Final = 1024


def load(path: Path) -> ModelProto:
    """A graph with its own weights in memory; those that lie in another file stay where they are."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if _place(tensor).get("location") == _data(path).name:
            external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            _inline(tensor)
    return model


def save(model: ModelProto, path: Path) -> None:
    """Write a graph, and its weights beside it (``model.onnx.data``), each at an aligned place, so that they can be mapped."""
    data = _data(path)
    written = 0
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL or len(tensor.raw_data) < _INLINE:
                continue
            written += file.write(b"\0" * (-written % _ALIGNED))
            raw = tensor.raw_data
            external_data_helper.set_external_data(tensor, data.name, offset=written, length=len(raw))
            tensor.ClearField("raw_data")
            written += file.write(raw)
    if not written:
        data.unlink()
    path.write_bytes(model.SerializeToString(deterministic=True))


def _data(path: Path) -> Path:
    return path.with_name(path.name + ".data")


def _place(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _inline(tensor: TensorProto) -> None:
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def add_ids(model: ModelProto, table: np.ndarray[Any, Any] | None = None, name: str = "ids") -> None:
    """An int64 output ``[1, rows]``: the id of each row's highest logit, the lowest id at a tie.

    Args:
        model: has an output ``logits``.
        table: ``[ids]`` int64, the id that each column of the logits stands for; None: its own number.
        name: of the output.
    """
    best = name if table is None else f"{name}/place"
    nodes = [helper.make_node("ArgMax", ["logits"], [best], name=f"/{name}/ArgMax", axis=-1, keepdims=0, select_last_index=0)]
    if table is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(table, np.int64), f"{name}/table"))
        nodes.append(helper.make_node("Gather", [f"{name}/table", best], [name], name=f"/{name}/Gather", axis=0))
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", "sequence_length"]))


def join_head(
    head: ModelProto, target: ModelProto, joint: dict[str, np.ndarray[Any, Any]], epsilon: float, precision: str, folder: Path
) -> None:
    """Turn the builder's graph of the head's layer into the head: from (token, hidden) to (draft id, logits, hidden).

    Args:
        head: the layer, with inputs ``inputs_embeds`` and ``attention_mask`` and outputs ``hidden_states`` and ``logits``.
        target: the graph of the target; its embedding is used, by reference to where its weights lie.
        joint: ``enorm.weight`` and ``hnorm.weight`` ``[hidden]``, ``eh_proj.weight`` ``[hidden, 2 * hidden]``, maybe ``ids``.
        epsilon: of both norms.
        precision: ``int4`` quantises ``eh_proj`` as the builder does the other matrices.
        folder: where the target's weights lie, and the head's will.
    """
    graph = head.graph
    entry = next(one for one in graph.input if one.name == "inputs_embeds")
    kind = entry.type.tensor_type.elem_type
    width = joint["enorm.weight"].shape[0]
    _turn_one_further(head)
    _refer_to_equal(head, target, folder)
    _rename(graph.node, "hidden_states", "hidden_out")
    next(one for one in graph.output if one.name == "hidden_states").name = "hidden_out"

    as_kind = helper.tensor_dtype_to_np_dtype(kind)
    nodes, embedded = _embedding(head, target)
    norm = (("axis", -1), ("epsilon", epsilon), ("stash_type", 1))
    for name, given, made in (("enorm", embedded, "joint/e"), ("hnorm", "hidden", "joint/h")):
        graph.initializer.append(numpy_helper.from_array(joint[f"{name}.weight"].astype(as_kind), f"joint.{name}.weight"))
        made_by = helper.make_node("SimplifiedLayerNormalization", [given, f"joint.{name}.weight"], [made], name=f"/joint/{name}")
        made_by.attribute.extend(helper.make_attribute(key, value) for key, value in norm)
        nodes.append(made_by)
    nodes.append(helper.make_node("Concat", ["joint/e", "joint/h"], ["joint/both"], name="/joint/Concat", axis=-1))
    projection, weights = _projection(joint["eh_proj.weight"].T.astype(as_kind), precision)
    graph.initializer.extend(weights)
    nodes.append(projection)

    before = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *before])
    graph.input.remove(entry)
    rows = ["batch_size", "sequence_length"]
    first = [
        helper.make_tensor_value_info("token", TensorProto.INT64, rows),
        helper.make_tensor_value_info("hidden", kind, [*rows, width]),
    ]
    others = list(graph.input)
    del graph.input[:]
    graph.input.extend([*first, *others])
    add_ids(head, joint.get("ids"), "draft_ids")


def _turn_one_further(head: ModelProto) -> None:
    """Let row p be rotated as position p + 1: a pair has the position of its token, and the attention counts rows from 0."""
    tables = [tensor for tensor in head.graph.initializer if tensor.name in ("cos_cache", "sin_cache")]
    if len(tables) != 2:
        raise ValueError(f"the builder's graph has {len(tables)} rotary tables named cos_cache and sin_cache instead of both")
    for tensor in tables:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[1:].copy(), tensor.name))


def _refer_to_equal(head: ModelProto, target: ModelProto, folder: Path) -> None:
    """Use the target's output matrix where the head's is the same one, instead of a second copy."""
    theirs = {tensor.name: tensor for tensor in target.graph.initializer if tensor.name.startswith("lm_head.")}
    for tensor in head.graph.initializer:
        other = theirs.get(tensor.name)
        if other is not None and other.dims == tensor.dims and _bytes(other, folder) == tensor.raw_data:
            tensor.CopyFrom(other)


def _bytes(tensor: TensorProto, folder: Path) -> bytes:
    place = _place(tensor)
    if not place:
        return tensor.raw_data
    with (folder / place["location"]).open("rb") as file:
        file.seek(int(place["offset"]))
        return file.read(int(place["length"]))


def _embedding(head: ModelProto, target: ModelProto) -> tuple[list[NodeProto], str]:
    """The target's nodes from ``input_ids`` to the embedding, with ``token`` for input, and the name of what they make."""
    makers = {output: node for node in target.graph.node for output in node.output}
    weights = {tensor.name: tensor for tensor in target.graph.initializer}
    last = next((node for node in target.graph.node if "input_ids" in node.input and node.op_type.startswith("Gather")), None)
    if last is None:
        raise ValueError("the builder's graph of the target has no Gather on input_ids")
    source = makers.get(last.input[0])
    if last.op_type == "Gather" and source is not None and source.op_type == "Transpose" and source.input[0] in weights:
        # The transposed copy that a session makes of it would be as large as the matrix: take columns instead.
        matrix = _borrowed(head, weights[source.input[0]])
        columns = helper.make_node("Gather", [matrix, "token"], ["embed/columns"], name="/embed/Gather", axis=1)
        rows = helper.make_node("Transpose", ["embed/columns"], ["embed/rows"], name="/embed/Transpose", perm=[1, 2, 0])
        return [columns, rows], "embed/rows"
    nodes: list[NodeProto] = []

    def take(node: NodeProto) -> None:
        copy = NodeProto()
        copy.CopyFrom(node)
        for at, name in enumerate(node.input):
            if name in makers:
                take(makers[name])
            copy.input[at] = (
                "token" if name == "input_ids" else _borrowed(head, weights[name]) if name in weights else f"embed/{name}" if name else ""
            )
        copy.name = f"/embed{node.name}"
        copy.output[0] = f"embed/{node.output[0]}"
        nodes.append(copy)

    take(last)
    return nodes, f"embed/{last.output[0]}"


def _borrowed(head: ModelProto, tensor: TensorProto) -> str:
    """Let the head's graph use a weight of the target's, where that one lies; its name there."""
    name = f"target.{tensor.name}"
    if not any(one.name == name for one in head.graph.initializer):
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.name = name
        head.graph.initializer.append(copy)
    return name


def _rename(nodes: Iterable[NodeProto], before: str, after: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == before:
                    names[at] = after


def _projection(weight: np.ndarray[Any, Any], precision: str) -> tuple[NodeProto, list[TensorProto]]:
    """The node ``joint/both`` times ``weight`` ``[2 * hidden, hidden]``, and its weights."""
    tensor = numpy_helper.from_array(np.ascontiguousarray(weight), "joint.eh_proj.MatMul.weight")
    node = helper.make_node("MatMul", ["joint/both", tensor.name], ["inputs_embeds"], name="/joint/eh_proj/MatMul")
    if precision != "int4":
        return node, [tensor]
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    rows, kind = ["batch_size", "sequence_length"], tensor.data_type
    given = helper.make_tensor_value_info("joint/both", kind, [*rows, weight.shape[0]])
    made = helper.make_tensor_value_info("inputs_embeds", kind, [*rows, weight.shape[1]])
    model = helper.make_model(helper.make_graph([node], "projection", [given], [made], [tensor]))
    quantiser: Any = MatMulNBitsQuantizer(model, block_size=BLOCK_SIZE, is_symmetric=True, accuracy_level=4)
    quantiser.process()
    graph = quantiser.model.model.graph
    return graph.node[0], list(graph.initializer)
