"""What a segment begins with: the format, its version, and what wrote it."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from attrs import field

from ..errors import ConfigError
from ..values import RuntimeInfo, flag, instance, integer, text, value

__all__ = ["FORMAT", "FORMAT_VERSION", "HEADER_BEGINS", "Header", "libraries"]

FORMAT: Final = "spanfold-trace"
FORMAT_VERSION: Final = 3
#: How every trace, and every segment, begins, in all versions.
HEADER_BEGINS: Final = b'{"kind":"header"'

#: Their versions are written down where they are installed; none of them is imported for it.
_WATCHED: Final = ("spanfold", "attrs", "cattrs", "torch", "transformers", "onnxruntime", "onnxruntime-gpu")


def _words(owner: object, attribute: object, got: dict[Any, Any]) -> None:
    if type(got) is not dict or not all(isinstance(one, str) for pair in got.items() for one in pair):
        raise ConfigError(f"Header.libraries must map names to versions, not be {got!r:.60}")


@value
class Header:
    """The first line of a segment.

    Attributes:
        format: the name of the format.
        version: of the format; everything else of the segment is read as this version says.
        created_unix_ns: when the segment was begun, by the writer's clock.
        runtime: the runtime that the writer was made for, or None: every SessionOpened names its own.
        libraries: name -> version of Python and of the installed packages that take part in a decode.
        redacted: whether token ids are permuted and texts left out.
    """

    format: str = field(default=FORMAT, validator=text())
    version: int = field(default=FORMAT_VERSION, validator=integer(0))
    created_unix_ns: int = field(validator=integer(0))
    runtime: RuntimeInfo | None = field(default=None, validator=instance(RuntimeInfo, optional=True))
    libraries: dict[str, str] = field(validator=_words)
    redacted: bool = field(default=False, validator=flag())


@cache
def libraries() -> dict[str, str]:
    """The versions of what is installed here, without importing it."""
    found = {"python": platform.python_version()}
    for name in _WATCHED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
