"""How the command line opens this backend: a runtime and its tokenizer, from a directory or the model that ships."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import frozen

from ...engine.errors import ConfigError
from ..models import EMBEDDED, embedded
from .runtime import OnnxRuntime
from .text import FileTokenizer

__all__ = ["Opened", "open_model"]

#: What ``info.dtype`` says, and what the option ``--precision`` of ``spanfold export`` calls it.
PRECISIONS: Final = {"float32": "fp32", "float16": "fp16", "int4": "int4"}


def _silent(message: str) -> None:
    pass


@frozen
class Opened:
    """A runtime, and the tokenizer of its directory (None where it has none)."""

    runtime: OnnxRuntime
    tokenizer: FileTokenizer | None


def open_model(
    model: str | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    drafting: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Opened:
    """Open a directory, by default the model that ships inside the package.

    Args:
        model: a directory, or ``pysource-2m`` (the default). A directory of this name is opened as ``./pysource-2m``.
        device: see ``OnnxRuntime.from_directory``; None: ``cpu``.
        dtype: the precision that the directory must have; None: whatever it has. An export's precision cannot be changed.
        drafting: False: the head is not loaded.
        progress: called with a line of text before each slow part.

    Raises:
        ConfigError: in one line, whatever is wrong.
    """
    say = progress or _silent
    name = model
    if model in (None, EMBEDDED):
        name, model = EMBEDDED, str(embedded())
    if not model:
        raise ConfigError("model must be a directory, not an empty string")
    if dtype is not None and dtype not in PRECISIONS:
        raise ConfigError(f"dtype must be one of {', '.join(PRECISIONS)} for the onnx backend, not {dtype!r}")
    say(f"loading {name} on {device or 'cpu'} with ONNX Runtime")
    runtime = OnnxRuntime.from_directory(model, device=device or "cpu", draft=drafting, name=name)
    if dtype is not None and dtype != runtime.info.dtype:
        found = runtime.info.dtype
        runtime.close()
        raise ConfigError(
            f"{name} is {found}, not {dtype}: an export has one precision; leave out the dtype, "
            f"or export the checkpoint with `spanfold export --precision {PRECISIONS[dtype]}`"
        )
    return Opened(runtime, runtime.tokenizer)
