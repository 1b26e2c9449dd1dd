"""What both backends for checkpoints are given alike: the path of a model, and the end ids in its JSON files."""

from __future__ import annotations

import os
from typing import Any

from ..engine.errors import ConfigError

__all__ = ["end_ids", "model_path", "one_line"]


def model_path(model: object) -> str:
    """The path or name of a model.

    Raises:
        ConfigError: it is none, or it cannot be written in UTF-8 (it stands in every trace, and goes to libraries that take nothing else).
    """
    path: object = os.fspath(model) if isinstance(model, os.PathLike) else model  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not isinstance(path, str):
        raise ConfigError(f"model must be a directory's path, a string, not {model!r}")
    if not path:
        raise ConfigError("model must be a directory's path, not an empty string")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the model's path {path!a} is not valid UTF-8: rename the directory") from error
    return path


def end_ids(value: Any, where: str) -> tuple[int, ...]:
    """The ids of an ``eos_token_id``: none, one, or a list.

    Args:
        value: the field's content.
        where: the file or object that holds it, for the error.

    Raises:
        ConfigError: it holds something else.
    """
    if value is None:
        return ()
    ids: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]  # pyright: ignore[reportUnknownArgumentType]
    for one in ids:
        if type(one) is not int or one < 0:
            raise ConfigError(f"{where}: eos_token_id must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def one_line(error: BaseException, lines: int = 1) -> str:
    """The first lines of an error's words, in one; its class where it has none."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(said[:lines]) or type(error).__name__
