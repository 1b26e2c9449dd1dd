"""The checkpoint's tokenizer, where it has one. The runtime works on ids; only who shows text needs it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# transformers carries partial type information.
from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer

from ...engine.errors import ConfigError
from ..inputs import one_line

__all__ = ["load_tokenizer"]

_FILES: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load_tokenizer(folder: Path, name: str) -> Any:
    """The tokenizer of the checkpoint in ``folder``, or None where no tokenizer lies there.

    Raises:
        ConfigError: there is one, and it cannot be loaded.
    """
    if not any((folder / file).is_file() for file in _FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # what a file of another form leads to, is any error
        raise ConfigError(f"the tokenizer of {name} cannot be loaded: {one_line(error)}") from error
