"""Writing a file as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress

from ..engine.errors import ConfigError

__all__ = ["write_whole"]


def write_whole(path: str, pieces: Iterable[str], *, read: str) -> None:
    """Write ``pieces`` to ``path`` as UTF-8; whatever goes wrong on the way, what was there stays as it was.

    They are written to a file beside it, which takes its place at the end. What is no regular file, a pipe or a device, has nothing
    that could be kept and is written as it stands.

    Args:
        path: where to; a link is followed.
        pieces: may be read from ``read`` while they are written.
        read: the file that they come from.

    Raises:
        ConfigError: ``path`` and ``read`` are the same file. OSError: it cannot be written.
    """
    if os.path.exists(path) and os.path.exists(read) and os.path.samefile(path, read):
        raise ConfigError(f"{path} is the trace that is read: name another file to write to")
    target = os.path.realpath(path)
    before = os.path.isfile(target)
    if os.path.exists(target) and not before:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(pieces)
        return
    if before:
        open(target, "r+b").close()  # a file that is protected against writing is not to be replaced either
    beside = f"{target}.{os.getpid()}.tmp"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.writelines(pieces)
        if before:
            shutil.copymode(target, beside)
        os.replace(beside, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = path  # the name that the caller knows
        raise
