"""A checkpoint from disk: the target through transformers, the MTP layer's tensors by their own names.

Strict on both sides. transformers fills a missing tensor with random numbers and a warning; here that is an error. The
head's tensors are read only from the shards that the index names for them, and every expected name must be there, in the
expected shape, with none besides: a head that is half there would not change the output, only lower acceptance silently.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers and safetensors carry partial type information.
from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from ...engine.errors import ConfigError
from ..draft_vocab import read_draft_vocab
from ..inputs import model_path, one_line
from .families import architecture, check_config, mtp_layers, parse_device, parse_dtype
from .head import MtpHead
from .text import load_tokenizer

__all__ = ["Loaded", "checkpoint_folder", "load"]

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_HUB_FILES: Final = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
# Copies of the target's own tensors that some checkpoints carry in the MTP layer.
_COPIES: Final = {"embed_tokens.weight": "model.embed_tokens", "shared_head.head.weight": "lm_head"}
# Left in old checkpoints, computed from the config since.
_DERIVED: Final = re.compile(r"rotary_emb\.inv_freq$")


@frozen
class Loaded:
    """What a checkpoint holds; ``head`` is None if it has none or none was asked for, ``draft_vocab`` and ``tokenizer`` if it has none."""

    model: Any
    head: MtpHead | None
    draft_vocab: Tensor | None
    tokenizer: Any


def load(
    model: str | os.PathLike[str],
    *,
    device: str | torch.device,
    dtype: str | torch.dtype,
    attn_implementation: str | None,
    draft: bool,
    revision: str | None,
) -> Loaded:
    """Load a checkpoint; ``TorchRuntime.from_pretrained`` has the arguments and errors."""
    name = model_path(model)
    on, as_type = parse_device(device), parse_dtype(dtype)
    folder = checkpoint_folder(name, revision)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # what a field of another type leads to, is any error
        raise ConfigError(f"{name} has no usable config.json: {one_line(error, 2)}") from error
    kind = architecture(config, name)
    check_config(config, name)
    places = _places(folder, name)
    prefix = f"model.layers.{config.num_hidden_layers}."
    leaves = {key.removeprefix(prefix): shard for key, shard in places.items() if key.startswith(prefix)}

    wanted = draft and _has_head(config, prefix, leaves, name)
    with _quiet():
        target = _target(kind, folder, name, prefix, as_type, attn_implementation)
        head = _head(target, prefix, leaves, as_type, name) if wanted else None
    target.to(on)
    if head is not None:
        head.to(on)
    ids = read_draft_vocab(folder, name) if wanted else None
    return Loaded(target, head, None if ids is None else torch.from_numpy(ids), load_tokenizer(folder, name))


def checkpoint_folder(name: str, revision: str | None = None) -> Path:
    """The directory of that name, or the hub's checkpoint of that id in the local cache, fetched if need be."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute() or name.startswith(".") or name.count("/") != 1:
        raise ConfigError(f"{name} is neither a directory nor a hub id of the form owner/name")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, revision=revision, allow_patterns=list(_HUB_FILES), ignore_patterns=["*/*"])
    except Exception as error:  # the client's own errors and those of the HTTP library below it
        raise ConfigError(
            f"{name} is not a directory here and could not be fetched from the hub ({type(error).__name__}: {one_line(error)})"
        ) from error
    return Path(found)


def _places(folder: Path, name: str) -> dict[str, Path]:
    """Every tensor name and the shard that holds it."""
    index = folder / _INDEX
    if index.is_file():
        try:
            content: Any = json.loads(index.read_text(encoding="utf-8"))
            places = {str(key): folder / str(shard) for key, shard in content["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{name}: {_INDEX} has no readable weight_map ({one_line(error)})") from error
        for shard in sorted(set(places.values())):
            if not shard.is_file():
                raise ConfigError(f"{name}: the shard {shard.name} that {_INDEX} names is missing")
        return places
    single = folder / _SINGLE
    if not single.is_file():
        raise ConfigError(f"{name} holds neither {_INDEX} nor {_SINGLE}: only safetensors are loaded, no pickled weights")
    with _opened(single, name) as file:
        return dict.fromkeys(file.keys(), single)


@contextmanager
def _opened(shard: Path, name: str) -> Generator[Any]:
    try:
        with safe_open(shard, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{name}: {shard.name} cannot be read ({one_line(error)})") from error


def _has_head(config: Any, prefix: str, leaves: Mapping[str, Path], name: str) -> bool:
    declared = mtp_layers(config, name)
    if declared is not None and declared > 1:
        raise ConfigError(f"{name} declares {declared} MTP layers: the torch backend takes one (draft=False loads the target alone)")
    if declared and not leaves:
        raise ConfigError(f"{name} declares an MTP layer and holds no tensor {prefix}* (draft=False loads the target alone)")
    return bool(leaves)


@contextmanager
def _quiet() -> Generator[None]:
    # What transformers reports of a load is checked here, by name; its bars and tables would only repeat it.
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _target(kind: str, folder: Path, name: str, prefix: str, dtype: torch.dtype, attention: str | None) -> Any:
    known: Any = getattr(transformers, kind)
    # A subclass for this load alone: the MTP layer's tensors are no concern of the target, and the public class stays as it is.
    ignored = [*(known._keys_to_ignore_on_load_unexpected or ()), "^" + re.escape(prefix)]
    private: Any = type(kind, (known,), {"_keys_to_ignore_on_load_unexpected": ignored, "__module__": known.__module__})
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    try:
        model, report = private.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are reported by name, below
            **options,
        )
    except Exception as error:  # sizes that no module can have come back as torch's own errors
        raise ConfigError(f"{name} cannot be loaded: {one_line(error, 2)}") from error
    for what, found in (("is missing", "missing_keys"), ("has another shape than the config says", "mismatched_keys")):
        for key in sorted(report[found], key=str):
            raise ConfigError(f"{name}: the tensor {key if isinstance(key, str) else key[0]} {what}")
    for key in sorted(report["unexpected_keys"]):
        if not _DERIVED.search(key):
            raise ConfigError(f"{name}: the tensor {key} belongs to no part of a {kind} of this config")
    return model


def _head(target: Any, prefix: str, leaves: Mapping[str, Path], dtype: torch.dtype, name: str) -> MtpHead:
    with torch.device("meta"):
        head = MtpHead(target)
    shapes = {MtpHead.leaf(key): tuple(value.shape) for key, value in head.state_dict().items()}
    missing = sorted(shapes.keys() - leaves.keys())
    surplus = sorted(leaves.keys() - shapes.keys() - _COPIES.keys())
    if missing:
        renamed = f"; it holds {prefix}{surplus[0]}, which is unknown: renamed?" if surplus else ""
        raise ConfigError(f"{name}: the MTP layer lacks the tensor {prefix}{missing[0]}{renamed}")
    if surplus:
        raise ConfigError(f"{name}: the MTP layer holds the tensor {prefix}{surplus[0]}, which is unknown")

    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(leaves.values())):
        with _opened(shard, name) as file:
            held = set(file.keys())
            for leaf in sorted(key for key, place in leaves.items() if place == shard):
                if prefix + leaf not in held:
                    raise ConfigError(f"{name}: the tensor {prefix}{leaf} is not in {shard.name}, where the index places it")
                tensors[leaf] = file.get_tensor(prefix + leaf)
    for leaf, shape in shapes.items():
        if tuple(tensors[leaf].shape) != shape:
            raise ConfigError(f"{name}: the tensor {prefix}{leaf} has shape {list(tensors[leaf].shape)}, expected {list(shape)}")
    for leaf, module in _COPIES.items():
        if leaf in tensors and not torch.equal(tensors.pop(leaf).to(dtype), target.get_submodule(module).weight):
            raise ConfigError(f"{name}: {prefix}{leaf} differs from the target's {module}.weight; a head with its own is not supported")
    head.load_leaves({leaf: tensor.to(dtype) for leaf, tensor in tensors.items()})
    return head
