"""The model that ships inside the package: a small Llama that continues Python source, with an MTP layer trained beside it.

``pysource/README.md`` is its model card: text, training, figures. It is there so that the first run needs no download.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...engine.errors import ConfigError

__all__ = ["EMBEDDED", "embedded"]

#: Its name on the command line and in ``open_model``.
EMBEDDED: Final = "pysource-2m"

_FOLDER: Final = Path(__file__).parent / "pysource"
_FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    # Its ONNX form: graphs whose weights lie in model.safetensors.
    "genai_config.json",
    "model.onnx",
    "mtp.onnx",
    "spanfold.json",
)


def embedded() -> Path:
    """The embedded model's directory, an ordinary Hugging Face one: ``TorchRuntime.from_pretrained(embedded())``.

    It is an ONNX model directory as well: ``model.onnx`` and ``mtp.onnx`` read their weights from ``model.safetensors``.

    Raises:
        ConfigError: the installation lacks one of its files.
    """
    for name in _FILES:
        if not (_FOLDER / name).is_file():
            raise ConfigError(f"this installation lacks {name} of the model {EMBEDDED}: install spanfold again")
    return _FOLDER
