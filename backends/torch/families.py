"""Which models this backend takes, and what must hold of their configs. Everything else is refused by name.

A model qualifies if a row depends on nothing but the rows before it: full causal attention, and rotary frequencies that do
not change with the length. Then a trim of the cache is a complete rollback, and a row computed beside others is the row
computed alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from ...engine.errors import ConfigError
from ..inputs import end_ids

if TYPE_CHECKING:
    from .head import MtpHead

__all__ = [
    "DTYPES",
    "FAMILIES",
    "architecture",
    "check_class",
    "check_config",
    "context_length",
    "mtp_layers",
    "parse_device",
    "parse_dtype",
    "stop_tokens",
    "whereabouts",
]

#: Architecture names (``config.architectures``), each a class of transformers.
FAMILIES: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Frequencies that follow the length of the sequence: a row would then depend on how many rows run beside it.
_MOVING_ROPE: Final = ("dynamic", "longrope")
_COUNTS: Final = ("num_nextn_predict_layers", "num_mtp_layers")


def architecture(config: Any, name: str) -> str:
    """The checkpoint's architecture; ConfigError where it is not one of ``FAMILIES``."""
    given: Any = getattr(config, "architectures", None) or []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(f"{name}: config.json: architectures must be a list of names, not {given!r}")
    found = cast("list[str]", given)
    kind = next((one for one in found if one in FAMILIES), ", ".join(found))
    check_class(kind or f"no architecture (model_type {getattr(config, 'model_type', None)!r})", name)
    return kind


def check_class(kind: str, name: str) -> None:
    """Refuse a model class that is not one of ``FAMILIES``."""
    if kind not in FAMILIES:
        raise ConfigError(f"{name} is {kind}: the torch backend takes {', '.join(FAMILIES)}")


def check_config(config: Any, name: str) -> None:
    """Refuse what would make a row depend on more than its prefix, or what cannot be loaded as it is."""
    kinds: Iterable[str] = getattr(config, "layer_types", None) or ()
    others = sorted(set(kinds) - {"full_attention"})
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in others or (window is not None and getattr(config, "use_sliding_window", True)):
        raise ConfigError(f"{name} uses a sliding window (sliding_window = {window}): the torch backend takes full attention only")
    if others:
        raise ConfigError(f"{name} has layers of type {', '.join(others)}: the torch backend takes full_attention only")
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        raise ConfigError(
            f"{name} uses rope_type {rope['rope_type']!r}, whose frequencies follow the sequence length: "
            "the torch backend takes fixed frequencies (default, linear, llama3, yarn)"
        )
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        raise ConfigError(f"{name} is quantised (quantization_config): the torch backend takes plain weights")


def context_length(config: Any, asked: int | None, name: str, field: str = "context_length") -> int:
    """The context length to use: the model's own, or a smaller one that was asked for."""
    own = int(config.max_position_embeddings)
    if asked is None:
        return own
    if type(asked) is not int or not 1 <= asked <= own:
        raise ConfigError(f"{field} must be an integer from 1 to {own} (max_position_embeddings of {name}), not {asked!r}")
    return asked


def mtp_layers(config: Any, name: str) -> int | None:
    """How many MTP layers the config declares; None where it says nothing."""
    for key in _COUNTS:
        count = getattr(config, key, None)
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
    devices, dtypes = {part.device for part in parts}, {part.dtype for part in parts}
    if len(devices) > 1 or len(dtypes) > 1:
        spread = ", ".join(sorted(map(str, devices if len(devices) > 1 else dtypes)))
        raise ConfigError(f"{name}: the torch backend takes a model on one device and in one dtype, this one is spread over {spread}")
    (dtype,) = dtypes
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
