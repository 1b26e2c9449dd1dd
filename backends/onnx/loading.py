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

from attrs import frozen

from ...engine.errors import ConfigError
from .memory import Array
from .providers import Device, open_graph
from .signature import HeadSignature, Port, TargetSignature, read_head, read_target
from .vocabulary import DRAFT_VOCAB_FILE, read_draft_vocab

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


class _Facts:
    # The JSON files of a directory; absent ones are empty.
    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.genai = _read(folder / "genai_config.json", name)
        self.model: Mapping[str, Any] = _mapping(self.genai.get("model"))
        self.decoder: Mapping[str, Any] = _mapping(self.model.get("decoder"))
        self.config = _read(folder / "config.json", name)
        self.generation = _read(folder / "generation_config.json", name)
        self.manifest = _read(folder / MANIFEST, name)
        if self.manifest and self.manifest.get("format") != _MANIFEST_FORMAT:
            raise ConfigError(f"{name}: {MANIFEST} has the unknown format {self.manifest.get('format')!r}: export the model again")

    def number(self, what: str, *places: tuple[Mapping[str, Any], str]) -> int:
        for source, key in places:
            value = source.get(key)
            if type(value) is int and value > 0:
                return value
        raise ConfigError(f"{self.name}: nothing says {what}: put config.json of the model beside model.onnx")

    def head_dim(self) -> int:
        heads = self.config.get("num_attention_heads")
        derived = {"head_dim": self.config.get("hidden_size", 0) // heads} if heads else {}
        places = ((self.decoder, "head_size"), (self.config, "head_dim"), (derived, "head_dim"))
        return self.number("the head dimension, which the graph leaves open", *places)

    def kv_heads(self) -> int:
        places = ((self.decoder, "num_key_value_heads"), (self.config, "num_key_value_heads"), (self.config, "num_attention_heads"))
        return self.number("the number of key/value heads, which the graph leaves open", *places)

    def stop_tokens(self) -> tuple[int, ...]:
        for source in (self.generation, self.model, self.config):
            ids = source.get("eos_token_id")
            if isinstance(ids, int):
                return (ids,)
            if isinstance(ids, list):
                return tuple(int(one) for one in ids)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return ()

    def check_rope(self) -> None:
        rope = _mapping(self.config.get("rope_parameters") or self.config.get("rope_scaling"))
        kind = rope.get("rope_type") or rope.get("type")
        if kind in _MOVING_ROPE:
            raise ConfigError(
                f"{self.name} uses rope_type {kind!r}, whose frequencies follow the sequence length: "
                "the onnx backend takes fixed frequencies (default, linear, llama3, yarn)"
            )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _read(path: Path, name: str) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {path.name} cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{name}: {path.name} must hold an object")
    return content  # pyright: ignore[reportUnknownVariableType]


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
    name = os.fspath(model)
    folder = Path(name)
    if not folder.is_dir():
        raise ConfigError(f"{name} is no directory: export a model first (`spanfold export MODEL -o DIR`)")
    facts = _Facts(folder, name)
    facts.check_rope()
    path = folder / str(facts.decoder.get("filename") or "model.onnx")
    if not path.is_file():
        torch = " (it holds weights for the torch backend)" if any(folder.glob("*.safetensors")) else ""
        raise ConfigError(f"{name} holds no {path.name}{torch}: export it with `spanfold export {name} -o DIR`")

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
        share=_mapping(facts.genai.get("search")).get("past_present_share_buffer") is not False,
        head=head,
    )


def _sizes(pasts: Sequence[Port], facts: _Facts) -> tuple[tuple[int, int], ...]:
    return tuple((port.shape[1] or facts.kv_heads(), port.shape[3] or facts.head_dim()) for port in pasts)


def _head(session: Any, folder: Path, facts: _Facts, hidden: int, vocabulary: int, name: str) -> LoadedHead:
    signature = read_head(session, f"{name}: {HEAD_FILE}")
    for port in (signature.hidden, signature.recycled):
        if port.shape[2] not in (None, hidden):
            raise ConfigError(f"{name}: {HEAD_FILE}: {port.name} has {port.shape[2]} columns, the target's hidden_states have {hidden}")
    ids = read_draft_vocab(folder, vocabulary, name)
    scored = signature.logits.shape[2] or (vocabulary if ids is None else len(ids))
    if scored == vocabulary:
        ids = None
    elif ids is None or len(ids) != scored:
        held = "is missing" if ids is None else f"holds {len(ids)}"
        raise ConfigError(f"{name}: {HEAD_FILE} scores {scored} of {vocabulary} ids, and {DRAFT_VOCAB_FILE}, which names them, {held}")
    return LoadedHead(session, signature, _sizes(signature.cache.pasts, facts), scored, ids)


def _dtype(path: Path, signature: TargetSignature, facts: _Facts) -> str:
    """The precision in one word: that of the caches, or ``int4`` where the graph multiplies by quantised weights."""
    told = facts.manifest.get("precision")
    if told == "int4" or (told is None and _mentions(path, b"MatMulNBits")):
        return "int4"
    return "float16" if signature.cache.dtype().itemsize == 2 else "float32"


def _mentions(path: Path, word: bytes) -> bool:
    # The operators' names stand in the file as they are.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
