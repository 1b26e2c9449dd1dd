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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import torch
import transformers
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from ...engine.errors import ConfigError
from ..draft_vocab import read_draft_vocab
from ..inputs import model_path, one_line
from .config import architecture, check_config, mtp_layers, parse_device, parse_dtype, raw_config
from .families import Contract, contract_for
from .head import MtpHead
from .quantised import Quantisation, plain, taken_from
from .text import load_tokenizer

__all__ = ["Loaded", "checkpoint_folder", "load"]

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_WITHOUT: Final = " (draft=False loads the target alone)"
_HUB_FILES: Final = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_LOOKS_LIKE_MTP: Final = re.compile(r"mtp|nextn|eh_proj|enorm|hnorm")
_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")
# Keys of an unknown layout that an error shows.
_SHOWN: Final = 6
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
    raw = raw_config(folder, name)
    kind = architecture(raw, name)
    known: Any = getattr(transformers, kind)
    try:
        with _quiet():  # the class is what counts: some checkpoints (Kimi-K2) name a model_type that transformers does not know
            config: Any = known.config_class.from_pretrained(folder, local_files_only=True)
        text: Any = config.get_text_config(decoder=True)
    except Exception as error:  # what a field of another type leads to, is any error
        raise ConfigError(f"{name} has no usable config.json: {one_line(error, 2)}") from error
    quantisation = taken_from(raw, (config, text), name)
    for part in (config, text):
        check_config(part, name)
    places = _places(folder, name)
    hidden_layers = int(text.num_hidden_layers)
    contract, found = contract_for(kind, places, hidden_layers)
    declared = mtp_layers(contract, text, name)
    found = {key: leaf for key, leaf in found.items() if int(leaf.split(".")[1]) < max(declared or 1, 1)}
    layers = _layers(contract, declared, found, places, hidden_layers, name) if draft else 0

    with _quiet():
        begins = sorted({key.format(n=hidden_layers + i, i=i) for key, _ in contract.names for i in range(max(declared or 1, 1))})
        ignored = begins if found else []
        weights = _plain_weights(places, ignored, quantisation, as_type, name)
        target = _target(known, config, folder, name, ignored, as_type, attn_implementation, weights)
        kept = {key: (found[key], places[key]) for key in found}
        head = _head(target, contract, layers, kept, as_type, quantisation, name) if layers else None
    target.to(on)
    if head is not None:
        head.to(on)
    ids = read_draft_vocab(folder, name) if layers else None
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


def _layers(
    contract: Contract, declared: int | None, found: Mapping[str, str], places: Mapping[str, Path], hidden_layers: int, name: str
) -> int:
    """How many MTP layers to load; 0: none."""
    held = len({leaf.split(".")[1] for leaf in found.values()})
    if contract.chain == "recycle" and declared is not None and declared > 1:
        raise ConfigError(
            f"{name} declares {declared} MTP layers: the {contract.name} contract takes one (draft=False loads the target alone)"
        )
    if declared and not held:
        looks = sorted(key for key in places if _LOOKS_LIKE_MTP.search(key) or _layer_of(key) >= hidden_layers)
        if looks:
            shown = ", ".join(looks[:_SHOWN]) + (f" and {len(looks) - _SHOWN} more" if len(looks) > _SHOWN else "")
            raise ConfigError(
                f"{name}: its MTP layer has a layout that is unknown for {contract.name}; "
                f"it holds {shown} (draft=False loads the target alone)"
            )
        first = contract.names[0][0].format(n=hidden_layers, i=0)
        beginning = f"model.layers.{hidden_layers}." if first.startswith("model.layers.") else first
        raise ConfigError(f"{name} declares an MTP layer and holds no tensor {beginning}* (draft=False loads the target alone)")
    return held


def _layer_of(key: str) -> int:
    match = _LAYER.search(key)
    return -1 if match is None else int(match.group(1))


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


def _plain_weights(
    places: Mapping[str, Path], head: list[str], quantisation: Quantisation | None, dtype: torch.dtype, name: str
) -> dict[str, Tensor] | None:
    """The target's weights where they must be made plain here; None: transformers reads the files."""
    if quantisation is None or quantisation.by_transformers:
        return None
    kept = {key: (f"layers.0.{key}", shard) for key, shard in places.items() if not key.startswith(tuple(head) or "\0")}
    return {key: tensor for _, tensor, key in plain(_tensors(kept, 1, name), quantisation, dtype, name)}


def _target(
    known: Any,
    config: Any,
    folder: Path,
    name: str,
    head: list[str],
    dtype: torch.dtype,
    attention: str | None,
    weights: dict[str, Tensor] | None,
) -> Any:
    # ``head``: what the keys of MTP tensors begin with; they are no concern of the target. ``weights``: instead of the files'.
    # A subclass for this load alone: the public class stays as it is.
    usual = known._keys_to_ignore_on_load_unexpected or ()
    ignored = [*(one for one in usual if not any(re.search(one, key) for key in head)), *("^" + re.escape(key) for key in head)]
    private: Any = type(known.__name__, (known,), {"_keys_to_ignore_on_load_unexpected": ignored, "__module__": known.__module__})
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    if weights is not None:
        options["state_dict"] = weights
    try:
        model, report = private.from_pretrained(
            folder if weights is None else None,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are reported by name, below
            **options,
        )
        if weights is not None:
            with suppress(OSError):  # as transformers does where it reads a folder: none, or one that is none
                model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # sizes that no module can have come back as torch's own errors
        raise ConfigError(f"{name} cannot be loaded: {one_line(error, 2)}") from error
    for what, found in (("is missing", "missing_keys"), ("has another shape than the config says", "mismatched_keys")):
        for key in sorted(report[found], key=str):
            raise ConfigError(f"{name}: the tensor {key if isinstance(key, str) else key[0]} {what}")
    for key in sorted(report["unexpected_keys"]):
        if not _DERIVED.search(key):
            raise ConfigError(f"{name}: the tensor {key} belongs to no part of a {known.__name__} of this config")
    return model


def _head(
    target: Any,
    contract: Contract,
    layers: int,
    found: Mapping[str, tuple[str, Path]],
    dtype: torch.dtype,
    quantisation: Quantisation | None,
    name: str,
) -> MtpHead:
    """The head of a checkpoint. ``found``: checkpoint key -> (name here, shard)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):  # nothing is made up: every tensor comes from the checkpoint
            head = MtpHead(target, contract, layers)
    finally:
        torch.set_default_dtype(before)
    shapes = {leaf: tuple(value.shape) for leaf, value in head.state_dict().items()}
    keys = {leaf: key for key, (leaf, _) in found.items()}
    given: dict[str, Tensor] = {}
    for leaf, tensor, key in plain(_tensors(found, layers, name), quantisation, dtype, f"{name}: its MTP layer", _WITHOUT):
        own = shapes.get(leaf)
        if own is not None and tuple(tensor.shape) != own:
            raise ConfigError(f"{name}: the tensor {key} has shape {list(tensor.shape)}, expected {list(own)}")
        copied = _copied(leaf, contract)
        if copied is None:
            given[leaf] = tensor
        elif not torch.equal(tensor.to(dtype), _of_target(target, copied).to("cpu", dtype)):
            raise ConfigError(f"{name}: {key} differs from the target's {copied}.weight; a head with its own is not supported")
    info, _ = convert_and_load_state_dict_in_model(
        cast("Any", head),
        given,
        LoadStateDictConfig(weight_mapping=list(getattr(target, "_weight_conversions", None) or ()), dtype=dtype),
    )
    missing, surplus = sorted(info.missing_keys), sorted(info.unexpected_keys)
    if missing:
        lost = _checkpoint_key(missing[0], contract, int(target.config.get_text_config(decoder=True).num_hidden_layers))
        renamed = f"; it holds {keys.get(surplus[0], surplus[0])}, which is unknown: renamed?" if surplus else ""
        raise ConfigError(f"{name}: the MTP layer lacks the tensor {lost}{renamed}")
    if surplus:
        raise ConfigError(f"{name}: the MTP layer holds the tensor {keys.get(surplus[0], surplus[0])}, which is unknown")
    problems = [*info.mismatched_keys, *info.error_msgs, *info.conversion_errors.values()]
    if problems:
        raise ConfigError(f"{name}: the MTP layer cannot be loaded: {one_line(RuntimeError(problems[0]), 2)}")
    return head.eval().requires_grad_(False)


def _tensors(found: Mapping[str, tuple[str, Path]], layers: int, name: str) -> Generator[tuple[str, Tensor, str]]:
    # (name here, tensor, checkpoint key) of the layers that are loaded, shard by shard.
    for shard in sorted({place for _, place in found.values()}):
        with _opened(shard, name) as file:
            held = set(file.keys())
            for key in sorted(key for key, (_, place) in found.items() if place == shard):
                leaf = found[key][0]
                if int(leaf.split(".")[1]) >= layers:
                    continue
                if key not in held:
                    raise ConfigError(f"{name}: the tensor {key} is not in {shard.name}, where the index places it")
                yield leaf, file.get_tensor(key), key


def _copied(leaf: str, contract: Contract) -> str | None:
    """Which of the target's modules a tensor is a copy of, unless the contract gives the layer its own."""
    part = leaf.split(".", 2)[2]
    if part == "embed_tokens.weight":
        return "model.embed_tokens"
    return "lm_head" if part == "head.weight" and not contract.own_head else None


def _of_target(target: Any, copied: str) -> Tensor:
    return (target.get_output_embeddings() if copied == "lm_head" else target.get_input_embeddings()).weight


def _checkpoint_key(leaf: str, contract: Contract, hidden_layers: int) -> str:
    """What a parameter of the head is called in a checkpoint of the family."""
    _, index, part = leaf.split(".", 2)
    for key, here in contract.names:
        if part.startswith(here):
            return key.format(n=hidden_layers + int(index), i=index) + part.removeprefix(here)
    return leaf
