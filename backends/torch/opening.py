"""How the command line opens this backend: a runtime and its tokenizer, from a checkpoint or one of the project's own models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from ...engine.errors import ConfigError
from ..models import DEMO, EMBEDDED, assemble, embedded
from .runtime import TorchRuntime

__all__ = ["Opened", "open_model"]


def _silent(message: str) -> None:
    pass


@frozen
class Opened:
    """A runtime, and the tokenizer of its checkpoint (transformers' class; None where the checkpoint has none)."""

    runtime: TorchRuntime
    tokenizer: Any


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
    name = model
    if model in (None, EMBEDDED):
        name, model = EMBEDDED, str(embedded())
    elif model == DEMO:
        model = str(assemble(progress=say))
    if not model:
        raise ConfigError("model must be a directory or a hub id, not an empty string")
    device, dtype = device or "cpu", dtype or "float32"
    say(f"loading {name} on {device} in {dtype}")
    runtime = TorchRuntime.from_pretrained(model, device=device, dtype=dtype, draft=drafting, name=name)
    return Opened(runtime, runtime.tokenizer)
