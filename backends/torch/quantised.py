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

from collections.abc import Iterable, Mapping
from typing import Any, Final

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


def taken_from(raw: Mapping[str, Any], config: Any, name: str) -> Quantisation | None:
    """Say how the weights become plain, and make ``config`` that of a model whose weights will be; None: they are plain.

    Args:
        raw: the content of config.json; where a checkpoint has more than text, its text part, ``config``, does not say it.
        config: the target's.
        name: of the checkpoint.

    Raises:
        ConfigError: a method that is not known.
    """
    content: Any = raw.get("quantization_config")
    if content is None:
        return None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: quantization_config must be an object, not {content!r}")
    method, size = content.get("quant_method"), content.get("weight_block_size") or _BLOCK
    if method == _COMPRESSED:
        config.quantization_config = {**content, "dequantize": True}
    elif method == _FP8 and len(size) == 2 and all(type(one) is int and one > 0 for one in size):
        if hasattr(config, "quantization_config"):
            del config.quantization_config
    else:
        raise ConfigError(f"{name} is quantised by {method!r}: the torch backend makes weights plain of {_FP8} in blocks and {_COMPRESSED}")
    return Quantisation(method == _COMPRESSED, (int(size[0]), int(size[1])))


def plain(tensors: Iterable[tuple[str, Tensor, str]], quantisation: Quantisation | None, what: str) -> list[tuple[str, Tensor, str]]:
    """Tensors (name here, tensor, checkpoint key) with plain weights in the place of fp8 ones and their factors.

    Raises:
        ConfigError: one is quantised in a way that is not known, or its factors do not fit. ``what`` is it of.
    """
    if quantisation is None:
        return list(tensors)
    held = {leaf: (tensor, key) for leaf, tensor, key in tensors}
    found: list[tuple[str, Tensor, str]] = []
    for leaf, (tensor, key) in held.items():
        if leaf.endswith(_SCALE) and leaf.removesuffix(_SCALE) in held:
            continue
        if (tensor.ndim > 1 and not tensor.is_floating_point()) or leaf.endswith(_OF_OTHERS):
            raise ConfigError(f"{what} is quantised in a way that is not known ({key}); draft=False loads a target without its MTP layer")
        scale, _ = held.get(leaf + _SCALE, (None, ""))
        if scale is None and tensor.is_floating_point() and tensor.element_size() == 1:
            raise ConfigError(f"{what}: {key} is of {tensor.dtype} and {key}{_SCALE} is missing")
        found.append((leaf, tensor if scale is None else _scaled(tensor, scale, quantisation.block, key, what), key))
    return found


def _scaled(weight: Tensor, scale: Tensor, block: tuple[int, int], key: str, what: str) -> Tensor:
    expected = [-(-weight.shape[at] // block[at]) for at in (0, 1)] if weight.ndim == 2 else None
    if list(scale.shape) != expected or not scale.is_floating_point():
        raise ConfigError(
            f"{what}: {key}{_SCALE} is {scale.dtype} {list(scale.shape)}, expected a float {expected} for blocks of {block[0]} x {block[1]}"
        )
    wide = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return weight.float() * wide[: weight.shape[0], : weight.shape[1]]
