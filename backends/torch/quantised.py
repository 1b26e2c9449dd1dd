"""Quantised checkpoints: their weights are made plain while they are loaded, in the dtype that was asked for.

fp8 in blocks is made plain here: ``weight_scale_inv`` holds one factor for each block of a weight (DeepSeek-V3's ``inference/kernel.py``,
``weight_dequant``). The published DeepSeek-V3 and many of its successors are stored so, some with their MTP layer. (transformers
5.24 reckons the blocks' size from the number of factors, which is another where a weight is no multiple of the block.) What
compressed-tensors wrote, transformers makes plain, with that package. A head in plain weights beside a quantised target is what most tools
write, and is read as ever; one that is quantised in another way than fp8 is refused.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' configs carry partial type information.
from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final

import torch
from attrs import frozen
from torch import Tensor

from ...engine.errors import ConfigError

__all__ = ["Quantisation", "plain", "taken_from"]

_FP8: Final = "fp8"
_COMPRESSED: Final = "compressed-tensors"
#: Rows and columns of a block of fp8 weights, where the config does not say.
_BLOCK: Final = (128, 128)
_SCALE: Final = "_scale_inv"
_OF_OTHERS: Final = ("_packed", "_scale", "_shape", "_zero_point", "_g_idx", ".qweight", ".qzeros", ".scales")


@frozen
class Quantisation:
    """What a checkpoint's ``quantization_config`` says.

    Attributes:
        by_transformers: transformers makes the target's weights plain; else this module does.
        block: rows and columns that share a factor.
    """

    by_transformers: bool
    block: tuple[int, int]


def taken_from(raw: Mapping[str, Any], configs: tuple[Any, Any], name: str) -> Quantisation | None:
    """Say how the weights become plain, and make the configs those of a model whose weights will be; None: they are plain.

    Args:
        raw: the content of config.json; where a checkpoint has more than text, its text part may not say it, or it alone.
        configs: the target's, and its text part (for a text model the same).
        name: of the checkpoint.

    Raises:
        ConfigError: a method that is not known.
    """
    inner = raw.get("text_config")
    content: Any = raw.get("quantization_config") or (inner.get("quantization_config") if isinstance(inner, Mapping) else None)
    if content is None:
        return None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: quantization_config must be an object, not {content!r}")
    method = content.get("quant_method")
    if method == _COMPRESSED:
        configs[0].quantization_config = {**content, "dequantize": True}
        return Quantisation(True, _BLOCK)
    if method != _FP8:
        raise ConfigError(f"{name} is quantised by {method!r}: the torch backend makes weights plain of {_FP8} in blocks and {_COMPRESSED}")
    size: Any = content.get("weight_block_size") or _BLOCK
    if not isinstance(size, (list, tuple)) or len(size) != 2 or not all(type(one) is int and one > 0 for one in size):
        raise ConfigError(f"{name}: weight_block_size must be two integers above 0 (rows, columns), not {size!r}")
    for config in configs:
        if hasattr(config, "quantization_config"):
            del config.quantization_config
    return Quantisation(False, (int(size[0]), int(size[1])))


def plain(
    tensors: Iterable[tuple[str, Tensor, str]], quantisation: Quantisation | None, dtype: torch.dtype, what: str, hint: str = ""
) -> Generator[tuple[str, Tensor, str]]:
    """Tensors (name here, tensor, checkpoint key) with plain weights in the place of fp8 ones and their factors.

    One weight at a time is held in float32, and given in ``dtype``; what was plain comes as it is.

    Raises:
        ConfigError: one is quantised in a way that is not known, or its factors do not fit. ``what`` is it of, ``hint`` how to do without.
    """
    held = {leaf: (tensor, key) for leaf, tensor, key in tensors}
    block = _BLOCK if quantisation is None else quantisation.block
    factors = {leaf: held.pop(leaf)[0] for leaf in list(held) if leaf.endswith(_SCALE) and leaf.removesuffix(_SCALE) in held}
    for leaf in list(held):
        tensor, key = held.pop(leaf)
        scale = factors.pop(leaf + _SCALE, None)
        if quantisation is not None and ((tensor.ndim > 1 and not tensor.is_floating_point()) or leaf.endswith(_OF_OTHERS)):
            raise ConfigError(f"{what} is quantised in a way that is not known ({key}){hint}")
        small = tensor.is_floating_point() and tensor.element_size() == 1
        if small != (scale is not None) or (small and quantisation is None):
            wrong = f"and {key}{_SCALE} is missing" if small and scale is None else f"with {_SCALE} beside it"
            wanted = "" if quantisation is not None else ", but config.json has no quantization_config"
            raise ConfigError(f"{what}: {key} is of {tensor.dtype} {wrong}{wanted}{hint}")
        yield leaf, tensor if scale is None else _scaled(tensor, scale, block, key, what).to(dtype), key


def _scaled(weight: Tensor, scale: Tensor, block: tuple[int, int], key: str, what: str) -> Tensor:
    if weight.ndim != 2:
        raise ConfigError(f"{what}: {key} has {weight.ndim} dimensions; of fp8 in blocks matrices alone are read")
    expected = [-(-weight.shape[at] // block[at]) for at in (0, 1)]
    if list(scale.shape) != expected or not scale.is_floating_point():
        raise ConfigError(
            f"{what}: {key}{_SCALE} is {scale.dtype} {list(scale.shape)}, expected a float {expected} for blocks of {block[0]} x {block[1]}"
        )
    made = weight.float()
    for at, row in enumerate(scale.float()):
        made[at * block[0] : (at + 1) * block[0]] *= row.repeat_interleave(block[1])[: weight.shape[1]]
    return made
