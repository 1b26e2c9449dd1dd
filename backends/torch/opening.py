"""How the command line opens this backend: a runtime and its tokenizer, from a checkpoint or one of the project's own models."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from ..inputs import model_path
from ..models import DEMO, EMBEDDED, assemble, embedded
from .loading import checkpoint_folder
from .runtime import TorchRuntime

__all__ = ["Opened", "locate", "open_model"]


def _silent(message: str) -> None:
    pass


@frozen
class Opened:
    """A runtime, and the tokenizer of its checkpoint (transformers' class; None where the checkpoint has none)."""

    runtime: TorchRuntime
    tokenizer: Any


def locate(model: str | os.PathLike[str] | None, progress: Callable[[str], None]) -> tuple[str, Path]:
    """The name and the directory of a checkpoint; ``open_model`` says what ``model`` may be."""
    if model in (None, EMBEDDED):
        return EMBEDDED, embedded()
    if model == DEMO:
        return DEMO, assemble(progress=progress)
    name = model_path(model)
    return name, checkpoint_folder(name)


def open_model(
    model: str | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    drafting: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Opened:
    """Open a checkpoint, by default the model that ships inside the package.

    Args:
        model: directory or hub id, or the name of one of the project's own models: ``pysource-2m`` (the default) or
            ``smollm2-135m``, which is assembled on first use. A directory of such a name is opened as ``./NAME``.
        device: see ``TorchRuntime.from_pretrained``; None: ``cpu``.
        dtype: see there; None: ``float32``.
        drafting: False: the head is not loaded.
        progress: called with a line of text before each slow part.

    Raises:
        ConfigError: in one line, whatever is wrong.
    """
    say = progress or _silent
    name, folder = locate(model, say)
    device, dtype = device or "cpu", dtype or "float32"
    say(f"loading {name} on {device} in {dtype}")
    runtime = TorchRuntime.from_pretrained(folder, device=device, dtype=dtype, draft=drafting, name=name)
    return Opened(runtime, runtime.tokenizer)
