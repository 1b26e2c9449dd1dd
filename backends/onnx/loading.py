"""A model directory from disk: its graphs as sessions, and the facts that stand beside them in JSON.

What a graph says itself (names, element types, shapes) is taken from its session; only what it leaves open (a symbolic head dimension, the
context length, the end ids) is read from ``genai_config.json``, ``config.json`` and ``generation_config.json``, in this order.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from attrs import frozen

from ...engine.errors import ConfigError
from ..draft_vocab import DRAFT_VOCAB_FILE, read_draft_vocab
from ..inputs import end_ids, model_path, one_line
from .memory import Array
from .providers import Device, open_graph
from .signature import HeadSignature, Port, TargetSignature, read_head, read_target

__all__ = ["HEAD_FILE", "MANIFEST", "Loaded", "LoadedHead", "load"]

HEAD_FILE: Final = "mtp.onnx"
MANIFEST: Final = "spanfold.json"
_MANIFEST_FORMAT: Final = 1
# Frequencies that follow the length of the sequence: a row would then depend on how many rows run beside it.
_MOVING_ROPE: Final = ("dynamic", "longrope")


@frozen
class LoadedHead:
    """The head's session; ``scored``: how many ids it scores, ``vocabulary``: which, where not all."""

    session: Any
    signature: HeadSignature
    sizes: tuple[tuple[int, int], ...]
    scored: int
    vocabulary: Array | None


@frozen
class Loaded:
    """What a directory holds; ``head`` is None if it has none or none was asked for.

    Attributes:
        session, signature: of the target.
        sizes: heads and head dimension of each past.
        vocabulary: ids that the target scores.
        hidden: size of a hidden row; 0 if the graph gives none.
        context_length: positions that the model has.
        stop_tokens: its end ids.
        dtype: ``float32``, ``float16``, or ``int4`` where weights are quantised.
        share: False where the directory asks that past and present be kept apart.
    """

    session: Any
    signature: TargetSignature
    sizes: tuple[tuple[int, int], ...]
    vocabulary: int
    hidden: int
    context_length: int
    stop_tokens: tuple[int, ...]
    dtype: str
    share: bool
    head: LoadedHead | None


@frozen
class _Object:
    """A JSON object and where it stands, so that an error can name file and field."""

    where: str
    content: Mapping[str, Any]

    def object(self, key: str) -> _Object:
        """The object in a field; an empty one if the field is absent or null."""
        value: Any = self.content.get(key)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{self.where}: {key} must be an object, not {value!r}")
        return _Object(f"{self.where}: {key}", value or {})  # pyright: ignore[reportUnknownArgumentType]

    def number(self, key: str) -> int | None:
        """The number in a field, above 0; None if the field is absent or null."""
        value = self.content.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{self.where}: {key} must be a whole number above 0, not {value!r}")
        return value

    def word(self, key: str) -> str | None:
        """The text in a field; None if the field is absent or null."""
        value = self.content.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{self.where}: {key} must be a word, not {value!r}")
        return value


class _Facts:
    # The JSON files of a directory; absent ones are empty.
    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.genai = _read(folder / "genai_config.json", name)
        self.model = self.genai.object("model")
        self.decoder = self.model.object("decoder")
        self.config = _read(folder / "config.json", name)
        self.generation = _read(folder / "generation_config.json", name)
        self.manifest = _read(folder / MANIFEST, name)
        known = self.manifest.content.get("format")
        if self.manifest.content and known != _MANIFEST_FORMAT:
            raise ConfigError(f"{name}: {MANIFEST} has the unknown format {known!r}: export the model again")

    def number(self, what: str, *places: tuple[_Object, str]) -> int:
        for source, key in places:
            value = source.number(key)
            if value is not None:
                return value
        raise ConfigError(f"{self.name}: nothing says {what}: put config.json of the model beside model.onnx")

    def head_dim(self) -> int:
        what = "the head dimension, which the graph leaves open"
        places = ((self.decoder, "head_size"), (self.config, "head_dim"))
        heads, hidden = self.config.number("num_attention_heads"), self.config.number("hidden_size")
        if heads and hidden and all(source.number(key) is None for source, key in places):
            return hidden // heads
        return self.number(what, *places)

    def kv_heads(self) -> int:
        places = ((self.decoder, "num_key_value_heads"), (self.config, "num_key_value_heads"), (self.config, "num_attention_heads"))
        return self.number("the number of key/value heads, which the graph leaves open", *places)

    def stop_tokens(self) -> tuple[int, ...]:
        for source in (self.generation, self.model, self.config):
            ids = source.content.get("eos_token_id")
            if ids is not None:
                return end_ids(ids, source.where)
        return ()

    def share(self) -> bool:
        search = self.genai.object("search")
        value = search.content.get("past_present_share_buffer", True)
        if not isinstance(value, bool):
            raise ConfigError(f"{search.where}: past_present_share_buffer must be true or false, not {value!r}")
        return value

    def check_rope(self) -> None:
        given, older = self.config.object("rope_parameters"), self.config.object("rope_scaling")
        rope = given if given.content else older
        kind = rope.word("rope_type") or rope.word("type")
        if kind in _MOVING_ROPE:
            raise ConfigError(
                f"{self.name} uses rope_type {kind!r}, whose frequencies follow the sequence length: "
                "the onnx backend takes fixed frequencies (default, linear, llama3, yarn)"
            )


def _read(path: Path, name: str) -> _Object:
    where = f"{name}: {path.name}"
    if not path.is_file():
        return _Object(where, {})
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} cannot be read ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{where} must hold an object")
    return _Object(where, content)  # pyright: ignore[reportUnknownArgumentType]


def load(
    model: str | os.PathLike[str],
    *,
    device: Device,
    draft: bool,
    provider_options: Mapping[str, str] | None,
    threads: int | None,
    session_options: Any,
) -> Loaded:
    """Open a directory; ``OnnxRuntime.from_directory`` has the arguments and errors."""
    name = model_path(model)
    folder = Path(name)
    if not folder.is_dir():
        raise ConfigError(f"{name} is no directory: export a model first (`spanfold export MODEL -o DIR`)")
    facts = _Facts(folder, name)
    facts.check_rope()
    path = folder / (facts.decoder.word("filename") or "model.onnx")
    if not path.is_file():
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            how = f" (it holds weights for the torch backend): export it with `spanfold export {name} -o DIR`"
        else:
            how = ", and no checkpoint to export either: name a directory that `spanfold export` wrote, or one like it"
        raise ConfigError(f"{name} holds no {path.name}{how}")

    def opened(file: Path) -> Any:
        return open_graph(file, device, provider_options=provider_options, threads=threads, session_options=session_options, name=name)

    session = opened(path)
    signature = read_target(session, f"{name}: {path.name}")
    sizes = _sizes(signature.cache.pasts, facts)
    vocabulary = signature.logits.shape[2] or facts.number(
        "the size of the vocabulary, which the graph leaves open", (facts.model, "vocab_size"), (facts.config, "vocab_size")
    )
    hidden = 0
    if signature.hidden is not None:
        places = ((facts.decoder, "hidden_size"), (facts.config, "hidden_size"))
        hidden = signature.hidden.shape[2] or facts.number("the hidden size, which the graph leaves open", *places)
    head = None
    if draft and (folder / HEAD_FILE).is_file():
        if signature.hidden is None:
            raise ConfigError(
                f"{name}: {path.name} has no output hidden_states, which {HEAD_FILE} drafts from: "
                "export it with `spanfold export --head` (or load it with draft=False)"
            )
        head = _head(opened(folder / HEAD_FILE), folder, facts, hidden, vocabulary, name)
    return Loaded(
        session=session,
        signature=signature,
        sizes=sizes,
        vocabulary=vocabulary,
        hidden=hidden,
        context_length=facts.number(
            "how many positions the model has", (facts.model, "context_length"), (facts.config, "max_position_embeddings")
        ),
        stop_tokens=facts.stop_tokens(),
        dtype=_dtype(path, signature, facts),
        share=facts.share(),
        head=head,
    )


def _sizes(pasts: Sequence[Port], facts: _Facts) -> tuple[tuple[int, int], ...]:
    return tuple((port.shape[1] or facts.kv_heads(), port.shape[3] or facts.head_dim()) for port in pasts)


def _head(session: Any, folder: Path, facts: _Facts, hidden: int, vocabulary: int, name: str) -> LoadedHead:
    signature = read_head(session, f"{name}: {HEAD_FILE}")
    for port in (signature.hidden, signature.recycled):
        if port.shape[2] not in (None, hidden):
            raise ConfigError(f"{name}: {HEAD_FILE}: {port.name} has {port.shape[2]} columns, the target's hidden_states have {hidden}")
    ids: Array | None = read_draft_vocab(folder, name)
    if ids is not None and not _sorted_ids(ids, vocabulary):
        raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} must hold one row of int64 ids from 0 to {vocabulary - 1}, sorted, each once")
    scored = signature.logits.shape[2] or (vocabulary if ids is None else len(ids))
    if scored == vocabulary:
        ids = None
    elif ids is None or len(ids) != scored:
        held = "is missing" if ids is None else f"holds {len(ids)}"
        raise ConfigError(f"{name}: {HEAD_FILE} scores {scored} of {vocabulary} ids, and {DRAFT_VOCAB_FILE}, which names them, {held}")
    return LoadedHead(session, signature, _sizes(signature.cache.pasts, facts), scored, ids)


def _sorted_ids(ids: Array, vocabulary: int) -> bool:
    if ids.ndim != 1 or ids.dtype != np.int64 or not len(ids):
        return False
    return bool((ids[1:] > ids[:-1]).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocabulary


def _dtype(path: Path, signature: TargetSignature, facts: _Facts) -> str:
    """The precision in one word: that of the caches, or ``int4`` where the graph multiplies by quantised weights."""
    told = facts.manifest.word("precision")
    if told == "int4" or (told is None and _mentions(path, b"MatMulNBits")):
        return "int4"
    return "float16" if signature.cache.dtype().itemsize == 2 else "float32"


def _mentions(path: Path, word: bytes) -> bool:
    # The operators' names stand in the file as they are.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
