"""What a graph takes and gives, read from its session: names, element types and shapes. Nothing is assumed from a file's name or origin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from attrs import frozen

from ...engine.errors import ConfigError

__all__ = ["CacheNames", "HeadSignature", "Port", "TargetSignature", "read_head", "read_target"]

_TYPES: Final[dict[str, Any]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
_PAST: Final = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_HOW: Final = "export it again with `spanfold export`, or with onnxruntime-genai's model builder"


class _Arg(Protocol):
    name: str
    type: str
    shape: list[int | str | None]


@frozen
class Port:
    """One input or output: its name, numpy type, and shape with None where a dimension is free."""

    name: str
    dtype: Any
    shape: tuple[int | None, ...]


@frozen
class CacheNames:
    """The caches: pasts and presents, a key and a value per layer in the same order."""

    pasts: tuple[Port, ...]
    presents: tuple[Port, ...]

    @property
    def dtype(self) -> Any:
        """The one element type of all."""
        return self.pasts[0].dtype


@frozen
class TargetSignature:
    """The target's graph; None where it has no such input or output."""

    tokens: Port
    mask: Port | None
    positions: Port | None
    logits: Port
    ids: Port | None
    hidden: Port | None
    cache: CacheNames


@frozen
class HeadSignature:
    """The head's graph. ``ids`` are the drafted ids, already those of the target; ``recycled`` is what takes the place of ``hidden``."""

    tokens: Port
    hidden: Port
    mask: Port | None
    positions: Port | None
    logits: Port
    ids: Port
    recycled: Port
    cache: CacheNames


def _ports(args: Sequence[_Arg], name: str) -> dict[str, Port]:
    found: dict[str, Port] = {}
    for one in args:
        if one.type not in _TYPES:
            known = ", ".join(kind.removeprefix("tensor(")[:-1] for kind in _TYPES)
            raise ConfigError(f"{name}: {one.name} is {one.type}, and this backend takes {known}: {_HOW}")
        found[one.name] = Port(one.name, _TYPES[one.type], tuple(dim if isinstance(dim, int) else None for dim in one.shape))
    return found


def _take(ports: dict[str, Port], name: str, what: str, where: str, how: str, kinds: Sequence[Any], rank: int) -> Port:
    port = ports.pop(what, None)
    if port is None:
        raise ConfigError(f"{where} has no {name} {what}: {how}")
    return _checked(port, where, kinds, rank)


def _checked(port: Port, where: str, kinds: Sequence[Any], rank: int) -> Port:
    if port.dtype not in kinds or len(port.shape) != rank:
        words = " or ".join(np.dtype(kind).name for kind in kinds)
        shown = f"{np.dtype(port.dtype).name} of {len(port.shape)} dimensions"
        raise ConfigError(f"{where}: {port.name} must be {words} of {rank} dimensions, it is {shown}: {_HOW}")
    return port


_WHOLE: Final = (np.int64, np.int32)
_FLOAT: Final = (np.float32, np.float16)


def _optional(ports: dict[str, Port], what: str, where: str, kinds: Sequence[Any], rank: int) -> Port | None:
    port = ports.pop(what, None)
    return None if port is None else _checked(port, where, kinds, rank)


def _cache(inputs: dict[str, Port], outputs: dict[str, Port], where: str) -> CacheNames:
    found = sorted((int(match[1]), match[2]) for match in map(_PAST.fullmatch, inputs) if match)
    if not found:
        how = "export the variant with past (optimum: --task text-generation-with-past), or use `spanfold export`"
        raise ConfigError(f"{where} has no input past_key_values.0.key: {how}")
    layers = found[-1][0] + 1
    pasts: list[Port] = []
    presents: list[Port] = []
    for layer in range(layers):
        for part in ("key", "value"):
            pasts.append(_take(inputs, "input", f"past_key_values.{layer}.{part}", where, _HOW, _FLOAT, 4))
            presents.append(_take(outputs, "output", f"present.{layer}.{part}", where, _HOW, _FLOAT, 4))
    kinds = {port.dtype for port in (*pasts, *presents)}
    if len(kinds) > 1:
        raise ConfigError(f"{where}: its caches are of several element types: {_HOW}")
    return CacheNames(tuple(pasts), tuple(presents))


def _nothing_left(inputs: dict[str, Port], where: str) -> None:
    for port in sorted(inputs):
        if port == "use_cache_branch":
            raise ConfigError(
                f"{where} has the input use_cache_branch, a merged decoder: export it with one graph (optimum: --no-post-process)"
            )
        raise ConfigError(
            f"{where} has the input {port}, which this backend does not know: it takes decoders with key/value caches alone; {_HOW}"
        )


_MASKS: Final = (np.int64, np.int32, np.float32, np.float16, np.bool_)


def read_target(session: Any, where: str) -> TargetSignature:
    """The target's signature.

    Raises:
        ConfigError: something is missing, unknown or of another type; the message names it and how to export it.
    """
    inputs, outputs = _ports(session.get_inputs(), where), _ports(session.get_outputs(), where)
    cache = _cache(inputs, outputs, where)
    signature = TargetSignature(
        tokens=_take(inputs, "input", "input_ids", where, _HOW, _WHOLE, 2),
        mask=_optional(inputs, "attention_mask", where, _MASKS, 2),
        positions=_optional(inputs, "position_ids", where, _WHOLE, 2),
        logits=_take(outputs, "output", "logits", where, _HOW, _FLOAT, 3),
        ids=_optional(outputs, "ids", where, _WHOLE, 2),
        hidden=_optional(outputs, "hidden_states", where, _FLOAT, 3),
        cache=cache,
    )
    _nothing_left(inputs, where)
    return signature


def read_head(session: Any, where: str) -> HeadSignature:
    """The head's signature; errors as of ``read_target``."""
    how = "export it again with `spanfold export --head`"
    inputs, outputs = _ports(session.get_inputs(), where), _ports(session.get_outputs(), where)
    cache = _cache(inputs, outputs, where)
    signature = HeadSignature(
        tokens=_take(inputs, "input", "token", where, how, _WHOLE, 2),
        hidden=_take(inputs, "input", "hidden", where, how, _FLOAT, 3),
        mask=_optional(inputs, "attention_mask", where, _MASKS, 2),
        positions=_optional(inputs, "position_ids", where, _WHOLE, 2),
        logits=_take(outputs, "output", "logits", where, how, _FLOAT, 3),
        ids=_take(outputs, "output", "draft_ids", where, how, _WHOLE, 2),
        recycled=_take(outputs, "output", "hidden_out", where, how, _FLOAT, 3),
        cache=cache,
    )
    _nothing_left(inputs, where)
    return signature
