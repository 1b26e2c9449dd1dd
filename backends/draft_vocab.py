"""The file of a draft vocabulary, beside the head's weights: ``draft_vocab.safetensors``, one int64 tensor ``ids``, sorted, each once.

A drafted token is checked by the target, so leaving rare ids out changes no output. It makes a head step cheaper, of which the
product with the output matrix is the largest part, and costs the drafts of tokens that are not in it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# safetensors carries partial type information.
from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from ..engine.errors import ConfigError

__all__ = ["DRAFT_VOCAB_FILE", "read_draft_vocab"]

DRAFT_VOCAB_FILE: Final = "draft_vocab.safetensors"
_TENSOR: Final = "ids"


def read_draft_vocab(folder: Path, name: str) -> Any | None:
    """The tensor that a checkpoint or an export brings, as numpy's array, or None. What it holds is not checked here.

    Raises:
        ConfigError: the file is there and cannot be read, or holds another tensor.
    """
    path = folder / DRAFT_VOCAB_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            names = sorted(file.keys())
            if names != [_TENSOR]:
                raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} must hold one tensor {_TENSOR!r}, not {', '.join(names) or 'none'}")
            return file.get_tensor(_TENSOR)
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: a dtype that numpy has not
        raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} cannot be read ({error})") from error
