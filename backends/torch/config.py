"""Which models this backend takes (``families``), and what must hold of their configs. Everything else is refused by name.

A model qualifies if a row depends on nothing but the rows before it: causal layers, and rotary frequencies that do not change with the
length. Whether its cache can be rolled back is measured (``rollback``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from ...engine.errors import ConfigError
from ..inputs import end_ids, one_line
from .families import ARCHITECTURES, PLAIN, Contract

if TYPE_CHECKING:
    from .head import MtpHead

__all__ = [
    "DTYPES",
    "architecture",
    "check_class",
    "check_config",
    "context_length",
    "is_plain",
    "mtp_layers",
    "parse_device",
    "parse_dtype",
    "raw_config",
    "stop_tokens",
    "whereabouts",
]

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Frequencies that follow the length of the sequence: a row would then depend on how many rows run beside it.
_MOVING_ROPE: Final = ("dynamic", "longrope")


def raw_config(folder: Path, name: str) -> dict[str, Any]:
    """The checkpoint's config.json as it is."""
    try:
        found: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} has no usable config.json: {one_line(error, 2)}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} has no usable config.json: it holds a {type(found).__name__}, not an object")
    return cast("dict[str, Any]", found)


def architecture(raw: dict[str, Any], name: str) -> str:
    """The class of transformers to load a checkpoint as; ConfigError where its architecture is not one of ``ARCHITECTURES``."""
    given: Any = raw.get("architectures") or []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(f"{name}: config.json: architectures must be a list of names, not {given!r}")
    found = cast("list[str]", given)
    kind = next((one for one in found if one in ARCHITECTURES), ", ".join(found))
    check_class(kind or f"no architecture (model_type {raw.get('model_type')!r})", name)
    return ARCHITECTURES[kind]


def check_class(kind: str, name: str) -> None:
    """Refuse a model class that is not one of ``ARCHITECTURES``."""
    if kind not in ARCHITECTURES:
        raise ConfigError(f"{name} is {kind}: the torch backend takes {', '.join(ARCHITECTURES)}")


def check_config(config: Any, name: str) -> None:
    """Refuse what would make a row depend on more than its prefix, or what cannot be loaded as it is."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    by_type = [cast("dict[str, Any]", one) for one in rope.values() if isinstance(one, dict)]
    moving = [one["rope_type"] for one in (rope, *by_type) if one.get("rope_type") in _MOVING_ROPE]
    if moving:
        raise ConfigError(
            f"{name} uses rope_type {moving[0]!r}, whose frequencies follow the sequence length: "
            "the torch backend takes fixed frequencies (default, linear, llama3, yarn)"
        )


def check_unquantised(config: Any, name: str) -> None:
    """Refuse a model whose modules compute on quantised weights."""
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigError(f"{name} is quantised (quantization_config): the torch backend takes plain weights; from_pretrained makes them")


def is_plain(model: Any) -> bool:
    """Whether keys and values are alike in all layers and every layer sees all rows: then a ``RowCache`` holds them."""
    config = model.config
    kinds: Iterable[str] = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    windowed = window is not None and getattr(config, "use_sliding_window", True)
    return type(model).__name__ in PLAIN and not (set(kinds) - {"full_attention"}) and not windowed


def context_length(config: Any, asked: int | None, name: str, field: str = "context_length") -> int:
    """The context length to use: the model's own, or a smaller one that was asked for."""
    own = int(config.max_position_embeddings)
    if asked is None:
        return own
    if type(asked) is not int or not 1 <= asked <= own:
        raise ConfigError(f"{field} must be an integer from 1 to {own} (max_position_embeddings of {name}), not {asked!r}")
    return asked


def mtp_layers(contract: Contract, config: Any, name: str) -> int | None:
    """How many MTP layers the config declares; None where it says nothing."""
    for key in contract.count:
        count: Any = getattr(config, key, None)
        if count is not None:
            if type(count) is not int or count < 0:
                raise ConfigError(f"{name}: config.json: {key} must be a whole number of at least 0, not {count!r}")
            return count
    return None


def parse_device(device: str | torch.device) -> torch.device:
    """The device asked for; ConfigError where this machine does not have it (there is no fallback)."""
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:N', not {device!r}") from error
    if parsed.type == "cpu":
        return torch.device("cpu")
    if parsed.type != "cuda":
        raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:N', not {device!r}")
    if not torch.cuda.is_available():
        build = "is a CPU build" if torch.version.cuda is None else "finds no usable CUDA device"
        raise ConfigError(
            f"device {str(device)!r} was asked for and torch {torch.__version__} {build}: install what is missing, or use 'cpu'"
        )
    count = torch.cuda.device_count()
    index = parsed.index if ":" in str(parsed) else torch.cuda.current_device()
    if index >= count:
        raise ConfigError(f"device {str(device)!r} was asked for and this machine has {count} CUDA device(s), counted from 0")
    return torch.device("cuda", index)


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """One of ``DTYPES``, by name or as torch's own value."""
    for name, value in DTYPES.items():
        if dtype in (name, value):
            return value
    raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")


def whereabouts(model: Any, head: MtpHead | None, name: str) -> tuple[torch.device, torch.dtype]:
    """The one device and the one dtype of a model in memory; ConfigError where there are several, or the head is another's."""
    if head is not None and not head.belongs_to(model):
        raise ConfigError(f"{name}: the head was made for another model")
    parts = [*model.parameters(), *(head.parameters() if head is not None else ())]
    devices = {part.device for part in parts}
    dtype = model.get_input_embeddings().weight.dtype
    # Some families keep their routers in float32: their embedding says what states they pass on.
    dtypes = {part.dtype for part in parts} if type(model).__name__ in PLAIN else {dtype}
    if len(devices) > 1 or len(dtypes) > 1:
        spread = ", ".join(sorted(map(str, devices if len(devices) > 1 else dtypes)))
        raise ConfigError(f"{name}: the torch backend takes a model on one device and in one dtype, this one is spread over {spread}")
    parse_dtype(dtype)
    return parts[0].device, dtype


def stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The model's own end ids: generation config, else config, else tokenizer; ConfigError where they are no ids."""
    generation = getattr(model, "generation_config", None)
    for where, owner in (("generation_config.json", generation), ("config.json", model.config), ("tokenizer", tokenizer)):
        ids = getattr(owner, "eos_token_id", None)
        if ids is not None:
            return end_ids(ids, where)
    return ()
