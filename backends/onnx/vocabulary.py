"""The draft vocabulary: the ids that the head scores, kept beside it as ``draft_vocab.safetensors`` (one int64 tensor ``ids``).

The head's graph maps its own choice to the target's ids; the file is needed where ids are masked and the choice is made here. The
format is small: eight bytes with the length of a JSON header, the header, the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...engine.errors import ConfigError
from .memory import Array

__all__ = ["DRAFT_VOCAB_FILE", "read_draft_vocab"]

DRAFT_VOCAB_FILE: Final = "draft_vocab.safetensors"
_LONGEST_HEADER: Final = 100_000


def read_draft_vocab(folder: Path, vocabulary: int, name: str) -> Array | None:
    """The ids, sorted, each once, all below ``vocabulary``; None where there is no such file.

    Raises:
        ConfigError: the file is there and cannot be read, or holds something else.
    """
    path = folder / DRAFT_VOCAB_FILE
    if not path.is_file():
        return None
    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        if length > _LONGEST_HEADER:
            raise ValueError("its header is too long")
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        if list(header) != ["ids"] or header["ids"]["dtype"] != "I64" or len(header["ids"]["shape"]) != 1:
            raise ValueError("it must hold one row of int64 numbers named 'ids'")
        start, end = header["ids"]["data_offsets"]
        ids = np.frombuffer(content[8 + length + start : 8 + length + end], np.dtype("<i8")).astype(np.int64)
        if len(ids) != header["ids"]["shape"][0]:
            raise ValueError("it is cut short")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} cannot be read ({error})") from error
    if len(ids) == 0 or bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= vocabulary:
        raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} must hold ids from 0 to {vocabulary - 1}, sorted, each once")
    return ids
