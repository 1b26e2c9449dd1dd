"""Tiny checkpoints of every family, under the names of its public checkpoints; ``tiny_layouts`` has the names.

Weights are such that a wrong convention shows: norms away from one, biases and router corrections away from zero, decays slow enough
that a recurrent state remembers its past, logits spread so that greedy text varies and near ties are rare. A tensor's values depend
on the seed, its name and its shape alone.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_layout import Layout
from tiny_layouts import LAYOUTS
from torch import Tensor

__all__ = ["FAMILIES", "class_of", "mtp_keys", "write"]

FAMILIES: tuple[str, ...] = tuple(LAYOUTS)

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def write(family: str, folder: Path, *, seed: int = 0, shards: bool = False, fused: bool = False, **changes: Any) -> Path:
    """Write config.json and the tensors of a tiny checkpoint into ``folder``, which is made.

    Args:
        family: one of ``FAMILIES``.
        folder: where; files of that name there are replaced.
        seed: of all values.
        shards: two files and an index; the MTP tensors lie in the second, alone.
        fused: gated experts as one tensor for all (``experts.gate_up_proj``, ``experts.down_proj``), as Qwen3.5's bf16 files have them.
        changes: of fields of the target's text config. Those that the layers are laid out by cannot be changed.

    Returns:
        ``folder``.
    """
    layout = LAYOUTS[family]
    fixed = sorted(changes.keys() & (layout.grown.keys() | layout.declared.keys()))
    if fixed:
        raise ValueError(f"{family}: {', '.join(fixed)} cannot be changed here: the layers are laid out by it")
    folder.mkdir(parents=True, exist_ok=True)
    target, mtp = _tensors(layout, seed, changes)
    if fused:
        target, mtp = _fused(target), _fused(mtp)
    # Sorted: transformers fills some of its dicts from sets, in an order that differs from process to process.
    (folder / "config.json").write_text(json.dumps(_config(layout, changes), indent=1, sort_keys=True))
    if not shards:
        save_file(target | mtp, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    parts = {"model-00001-of-00002.safetensors": target, "model-00002-of-00002.safetensors": mtp}
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    index = {key: name for name, part in parts.items() for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=1))
    return folder


def mtp_keys(family: str) -> frozenset[str]:
    """The names of a family's MTP tensors in the file that ``write`` makes by default."""
    return frozenset(_tensors(LAYOUTS[family], 0, {})[1])


def class_of(family: str) -> Any:
    """transformers' class that loads a family's text."""
    return getattr(transformers, LAYOUTS[family].model)


def _config(layout: Layout, changes: dict[str, Any]) -> dict[str, Any]:
    text = _made(layout, changes).to_dict()
    for name in layout.hidden:
        text.pop(name, None)
    text |= layout.declared
    name = layout.whole[1] if layout.whole else layout.model
    said = {"architectures": [name], "dtype": "float32"}
    if layout.whole is None:
        return text | said
    return _whole(layout, text).to_dict() | said | {"text_config": text}


def _made(layout: Layout, changes: dict[str, Any]) -> Any:
    return getattr(transformers, layout.config)(**(layout.values | changes))


def _whole(layout: Layout, text: dict[str, Any]) -> Any:
    assert layout.whole is not None
    tied = {"tie_word_embeddings": text["tie_word_embeddings"]}
    return getattr(transformers, layout.whole[0])(text_config=dict(text), vision_config=dict(layout.whole[2]), **tied)


def _tensors(layout: Layout, seed: int, changes: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The target's tensors and those of the MTP layers, by their names on disk."""
    saved = _shapes(layout, changes)
    last = max(int(found[1]) for key in saved if (found := _LAYER.search(key)))
    added = {last, last - 1} if any("{before}" in key for key, _ in layout.block) else {last}
    target: dict[str, Tensor] = {}
    block: dict[str, torch.Size] = {}
    for key, shape in saved.items():
        found = _LAYER.search(key)
        if found is None or int(found[1]) not in added:
            target[key] = _values(key, shape, layout, seed)
        else:
            block[key] = shape
    mtp: dict[str, Tensor] = {}
    for i in range(layout.layers):
        where = {"i": i, "n": min(added) + i, "last": last, "before": last - 1}
        for key, shape in block.items():
            renamed = _renamed(key, layout, where)
            if renamed is not None:
                mtp[renamed] = _values(renamed, shape, layout, seed)
        for template, what in layout.parts:
            key = template.format(**where)
            mtp[key] = _part(key, what, target, layout, seed)
    return target, mtp


def _shapes(layout: Layout, changes: dict[str, Any]) -> dict[str, torch.Size]:
    """Names on disk and shapes of the target with the MTP block as one more layer."""
    config = _made(layout, changes | layout.grown)
    if layout.whole is not None:
        config = _whole(layout, config.to_dict())
    model = getattr(transformers, layout.model if layout.whole is None else layout.whole[1])(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {key: value.shape for key, value in load_file(Path(folder) / "model.safetensors").items()}


def _renamed(key: str, layout: Layout, where: dict[str, int]) -> str | None:
    for before, after in layout.block:
        beginning = before.format(**where)
        if key.startswith(beginning):
            return after.format(**where) + key.removeprefix(beginning)
    return None


def _part(key: str, what: str, target: dict[str, Tensor], layout: Layout, seed: int) -> Tensor:
    embedding = next(value for name, value in target.items() if name.endswith(("embed_tokens.weight", "embeddings.weight")))
    vocabulary, hidden = embedding.shape
    if what == "embedding":
        return embedding.clone()
    if what == "head":
        return target.get("lm_head.weight", embedding).clone()
    shapes = {"norm": (hidden,), "projection": (hidden, 2 * hidden), "own head": (vocabulary, hidden)}
    return _values(key, torch.Size(shapes[what]), layout, seed)


def _values(key: str, shape: torch.Size, layout: Layout, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {key}".encode()))
    normal, uniform = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    leaf = key.rsplit(".", 2)[-2:]
    if key.endswith("A_log"):
        return (0.02 + 0.2 * uniform).log()
    if key.endswith("mixer.D"):
        return 0.5 + uniform
    if key.endswith(("e_score_correction_bias", "router_bias")):
        return 0.2 * normal
    if key.endswith(("bias", "sinks")):  # of projections, of convolutions, dt_bias, attention_sink_bias
        return 0.3 * normal
    if len(shape) == 1:
        gated = "linear_attn." in key  # Qwen's gated norm is stored as it is
        return uniform - 0.5 if layout.around_zero and not gated else uniform + 0.5
    if leaf[0] in ("embed_tokens", "embeddings"):
        # Small where it is the output matrix too: else a token's largest score would be its own.
        return 0.12 * normal if layout.values["tie_word_embeddings"] else normal
    if leaf[0] in ("lm_head", "output"):
        return 0.5 * normal
    if "conv1d" in key:
        return 0.5 * normal
    return 1.8 * normal / shape[-1] ** 0.5


def _fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    experts: dict[str, dict[tuple[str, int], Tensor]] = {}
    for key, value in tensors.items():
        found = _EXPERT.fullmatch(key)
        if found is None:
            kept[key] = value
        else:
            experts.setdefault(found[1], {})[found[3], int(found[2])] = value
    for prefix, of in experts.items():
        stacks = {kind: torch.stack([of[kind, e] for e in range(len(of) // 3)]) for kind in ("gate", "up", "down")}
        kept[f"{prefix}.gate_up_proj"] = torch.cat([stacks["gate"], stacks["up"]], dim=1)
        kept[f"{prefix}.down_proj"] = stacks["down"]
    return kept
