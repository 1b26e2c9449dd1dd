"""What a directory must hold, and that every lack of it is one line that names it and says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx_models import HEAD_IDS, Shape, export, write_draft_vocab

from spanfold.backends.onnx import OnnxRuntime
from spanfold.engine import Decoder
from spanfold.engine.errors import ConfigError

PROMPT = (5, 17, 3, 40, 22, 9)


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        OnnxRuntime.from_directory(folder, threads=1, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def changed(folder: Path, change: Any, file: str = "model.onnx") -> Path:
    model = onnx.load(folder / file)
    change(model.graph)
    onnx.save(model, folder / file)
    return folder


def without_output(name: str) -> Any:
    def change(graph: Any) -> None:
        for one in list(graph.output):
            if one.name == name:
                graph.output.remove(one)

    return change


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("genai", {"mask": "int32"}),
        ("genai", {"ids": False, "hidden": False, "head": False}),
        ("genai", {"tokens": "int32"}),
        ("ordinary", {"mask": None}),
        ("ordinary", {"mask": "float", "positions": True}),
        ("ordinary", {"mask": "bool"}),
        ("ordinary", {"head_kind": "genai"}),
        ("genai", {"head_kind": "ordinary", "head_positions": True}),
        ("genai", {"vocabulary": HEAD_IDS}),
    ],
)
def test_names_types_and_sizes_are_read_from_the_session(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Every form of one network decodes the same tokens, whatever its inputs are."""
    expected = decoded(export(tmp_path / "plain"))
    assert decoded(export(tmp_path / "form", kind=kind, **options)) == expected


def decoded(folder: Path, policy: int = 3) -> tuple[int, ...]:
    runtime = OnnxRuntime.from_directory(folder, threads=1)
    with Decoder(runtime, policy=policy, source="auto" if runtime.info.draft else "prompt_lookup") as decoder:
        tokens = decoder.generate(PROMPT, max_tokens=30).tokens
    runtime.close()
    return tokens


def test_head_counts_and_dimensions_that_a_graph_leaves_open_come_from_the_configs(tmp_path: Path) -> None:
    def open_dimensions(graph: Any) -> None:
        for one in graph.input:
            if one.name.startswith("past_key_values"):
                for at, name in ((1, "kv"), (3, "dim")):
                    one.type.tensor_type.shape.dim[at].dim_param = name
        for one in graph.output:
            if one.name == "hidden_states" or one.name == "logits":
                one.type.tensor_type.shape.dim[2].dim_param = "wide"

    expected = decoded(export(tmp_path / "closed"))
    folder = changed(export(tmp_path / "open"), open_dimensions)
    assert decoded(folder) == expected
    (folder / "genai_config.json").unlink()
    assert "nothing says the number of key/value heads" in refused(folder)
    rewrite(folder / "config.json", num_attention_heads=4, num_key_value_heads=2)
    rewrite(folder / "config.json", head_dim=16)
    assert decoded(folder) == expected


def test_what_a_directory_lacks_is_named(tmp_path: Path) -> None:
    assert "is no directory: export a model first (`spanfold export MODEL -o DIR`)" in refused(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    for more in ("", "model.safetensors"):
        if more:
            (empty / more).write_bytes(b"")
        message = refused(empty)
        assert "holds no model.onnx, and no checkpoint to export either" in message and str(empty) + " -o" not in message
    (empty / "config.json").write_text("{}")
    assert f"(it holds weights for the torch backend): export it with `spanfold export {empty} -o DIR`" in refused(empty)
    (empty / "config.json").unlink()
    (empty / "model.onnx").write_bytes(b"not a graph")
    assert "model.onnx cannot be loaded" in refused(empty)
    folder = export(tmp_path / "model")
    (folder / "genai_config.json").unlink()
    (folder / "config.json").unlink()
    assert "nothing says how many positions the model has: put config.json" in refused(folder)
    (folder / "config.json").write_text("[]")
    assert "config.json must hold an object" in refused(folder)
    (folder / "config.json").write_text("{")
    assert "config.json cannot be read" in refused(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_output("logits"), "model.onnx has no output logits: export it again with `spanfold export`"),
        (without_output("present.1.value"), "has no output present.1.value"),
        (
            without_output("hidden_states"),
            "has no output hidden_states, which mtp.onnx drafts from: export it with `spanfold export --head`",
        ),
    ],
)
def test_an_output_that_is_missing_is_named(change: Any, words: str, tmp_path: Path) -> None:
    folder = changed(export(tmp_path / "model"), change)
    assert words in refused(folder)


def test_without_a_head_the_hidden_states_are_not_needed(tmp_path: Path) -> None:
    folder = changed(export(tmp_path / "model"), without_output("hidden_states"))
    runtime = OnnxRuntime.from_directory(folder, threads=1, draft=False)
    assert runtime.info.draft is None
    (folder / "mtp.onnx").unlink()
    assert OnnxRuntime.from_directory(folder, threads=1).info.draft is None


def test_an_input_that_is_unknown_is_named(tmp_path: Path) -> None:
    def also(name: str, kind: int = onnx.TensorProto.FLOAT) -> Any:
        return lambda graph: graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [1, 4]))

    folder = changed(export(tmp_path / "state"), also("past_conv.0"))
    assert "has the input past_conv.0, which this backend does not know" in refused(folder)
    folder = changed(export(tmp_path / "merged"), also("use_cache_branch", onnx.TensorProto.BOOL))
    assert "use_cache_branch, a merged decoder" in refused(folder)
    folder = changed(export(tmp_path / "strange"), also("extra", onnx.TensorProto.BFLOAT16))
    assert "extra is tensor(bfloat16), and this backend takes float, float16" in refused(folder)


def test_an_export_without_past_is_refused(tmp_path: Path) -> None:
    folder = export(tmp_path / "model", head=False)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["input_ids"], ["logits"], to=1)],
        "no past",
        [onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, "rows"])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [1, "rows"])],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), folder / "model.onnx")
    assert "has no input past_key_values.0.key: export the variant with past" in refused(folder)


def test_a_graph_that_loads_and_cannot_run_is_refused(tmp_path: Path) -> None:
    """GroupQueryAttention turns heads of a multiple of 16 only, which it says at the first run."""
    folder = export(tmp_path / "model", shape=Shape(dim=8), head=False)
    assert "its graph cannot run" in refused(folder)


def test_a_head_that_scores_some_ids_needs_their_list(tmp_path: Path) -> None:
    folder = export(tmp_path / "model", vocabulary=HEAD_IDS)
    file = folder / "draft_vocab.safetensors"
    good = file.read_bytes()
    for content, words in [
        (b"\x08\0\0\0\0\0\0\0{}", "cannot be read"),
        (b"\xff" * 20, "cannot be read"),
        (good[:-8], "cannot be read"),
        (b"", "cannot be read"),
    ]:
        file.write_bytes(content)
        assert "draft_vocab.safetensors" in (message := refused(folder)) and words in message
    for ids, words in [
        ((5, 3), "sorted, each once"),
        ((), "one row of int64 ids"),
        ((1, 61), "ids from 0 to 60"),
        ((1, 3), "scores 30 of 61 ids, and"),
    ]:
        write_draft_vocab(folder, ids)
        assert words in refused(folder)
    file.unlink()
    assert "which names them, is missing" in refused(folder)


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    folder, other = export(tmp_path / "model"), export(tmp_path / "other", shape=Shape(hidden=64))
    (folder / "mtp.onnx").write_bytes((other / "mtp.onnx").read_bytes())
    assert "hidden has 64 columns, the target's hidden_states have 32" in refused(folder)
    changed(folder, without_output("hidden_out"), "mtp.onnx")
    assert "mtp.onnx has no output hidden_out: export it again with `spanfold export --head`" in refused(folder)


def test_moving_rotary_frequencies_and_unknown_manifests_are_refused(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    rewrite(folder / "config.json", rope_scaling={"rope_type": "dynamic"})
    assert "rope_type 'dynamic', whose frequencies follow the sequence length" in refused(folder)
    rewrite(folder / "config.json", rope_scaling=None)
    (folder / "spanfold.json").write_text(json.dumps({"format": 2}))
    assert "spanfold.json has the unknown format 2" in refused(folder)


def test_end_ids_and_precision_are_found(tmp_path: Path) -> None:
    folder = export(tmp_path / "model", precision="int4")
    rewrite(folder / "config.json", eos_token_id=3)
    assert OnnxRuntime.from_directory(folder, threads=1).info.stop_tokens == (3,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    info = OnnxRuntime.from_directory(folder, threads=1, name="a name").info
    assert (info.stop_tokens, info.dtype, info.model) == ((4, 5), "int4", "a name")
    (folder / "spanfold.json").write_text(json.dumps({"format": 1, "precision": "int4"}))
    assert OnnxRuntime.from_directory(folder, threads=1).info.dtype == "int4"


def test_a_sliding_window_of_the_graph_keeps_every_row_so_any_rewind_is_right(tmp_path: Path) -> None:
    """Cases 7.8 and 1.6: position i stays at offset i, the graph alone leaves out what is too far back."""
    folder = export(tmp_path / "model", window=8)
    assert decoded(folder) != decoded(export(tmp_path / "plain"))
    runtime = OnnxRuntime.from_directory(folder, threads=1)
    with Decoder(runtime, policy=3) as decoder, decoder.open(PROMPT, max_tokens=40) as session:
        list(session)
        session.rewind(36)
        session.extend((7, 8, 9), max_tokens=20)
        again = tuple(session)
        canonical = session.state.canonical
        fresh = decoder.generate(tuple(canonical)[: len(canonical) - 20], max_tokens=20).tokens
    assert again == fresh


BAD_FIELDS = [
    ("generation_config.json", {"eos_token_id": ["a"]}, "generation_config.json: eos_token_id must be a token id"),
    ("generation_config.json", {"eos_token_id": [None]}, "generation_config.json: eos_token_id must be a token id"),
    ("config.json", {"eos_token_id": -1}, "config.json: eos_token_id must be a token id"),
    ("genai_config.json", {"model": {"eos_token_id": "a"}}, "genai_config.json: model: eos_token_id must be a token id"),
    ("config.json", {"num_attention_heads": "a"}, "config.json: num_attention_heads must be a whole number above 0, not 'a'"),
    ("config.json", {"hidden_size": [1]}, "config.json: hidden_size must be a whole number above 0, not [1]"),
    ("config.json", {"num_key_value_heads": 0}, "config.json: num_key_value_heads must be a whole number above 0, not 0"),
    ("config.json", {"max_position_embeddings": True}, "config.json: max_position_embeddings must be a whole number"),
    ("config.json", {"rope_scaling": 5}, "config.json: rope_scaling must be an object, not 5"),
    ("config.json", {"rope_scaling": {"rope_type": 5}}, "config.json: rope_scaling: rope_type must be a word, not 5"),
    ("genai_config.json", {"model": 5}, "genai_config.json: model must be an object, not 5"),
    ("genai_config.json", {"model": {"decoder": []}}, "genai_config.json: model: decoder must be an object, not []"),
    ("genai_config.json", {"model": {"context_length": "a"}}, "genai_config.json: model: context_length must be a whole number"),
    ("genai_config.json", {"model": {"decoder": {"filename": 5}}}, "model: decoder: filename must be a word, not 5"),
    ("genai_config.json", {"model": {"decoder": {"head_size": 0.5}}}, "model: decoder: head_size must be a whole number above 0"),
    ("genai_config.json", {"search": {"past_present_share_buffer": "no"}}, "past_present_share_buffer must be true or false, not 'no'"),
    ("spanfold.json", {"format": 1, "precision": 4}, "spanfold.json: precision must be a word, not 4"),
]


def test_a_field_that_holds_something_else_is_named_with_its_file(tmp_path: Path) -> None:
    def open_dimensions(graph: Any) -> None:
        for one in graph.input:
            if one.name.startswith("past_key_values"):
                for at, name in ((1, "kv"), (3, "dim")):
                    one.type.tensor_type.shape.dim[at].dim_param = name

    folder = changed(export(tmp_path / "model", head=False), open_dimensions)
    (folder / "genai_config.json").unlink()
    rewrite(folder / "config.json", num_attention_heads=2, num_key_value_heads=2)
    assert OnnxRuntime.from_directory(folder, threads=1, draft=False).info.vocabulary == Shape().vocabulary
    for file, content, words in BAD_FIELDS:
        path = folder / file
        before = path.read_text() if path.is_file() else None
        path.write_text(json.dumps((json.loads(before) if before else {}) | content))
        message = refused(folder)
        assert words in message and message.startswith(str(folder)), message
        path.unlink() if before is None else path.write_text(before)
    for content in ("[" * 200_000, "\udcff"):
        (folder / "generation_config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        assert "generation_config.json cannot be read" in refused(folder)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": None}, "device must be 'cpu', 'cuda' or 'cuda:N', not None"),
        ({"device": 0}, "device must be 'cpu', 'cuda' or 'cuda:N', not 0"),
        ({"provider_options": ["x"]}, "provider_options must be a mapping of names to values or None, not ['x']"),
        ({"session_options": {}, "threads": None}, "session_options must be an onnxruntime.SessionOptions or None, not {}"),
        ({"name": 5}, "name must be a string or None, not 5"),
    ],
)
def test_an_argument_of_another_type_is_named(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        OnnxRuntime.from_directory(export(tmp_path / "model", head=False), **({"threads": 1} | options))
    assert words in str(caught.value)


def test_what_is_no_path_is_refused(tmp_path: Path) -> None:
    for model in (None, 5, b"x", ""):
        assert "model must be a directory's path" in refused(model)  # pyright: ignore[reportArgumentType]
    folder = tmp_path / os.fsdecode(b"model-\xff")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")
    assert "is not valid UTF-8: rename the directory" in refused(folder)
