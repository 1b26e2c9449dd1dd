"""Writing to a terminal: colour where it is wanted, progress that does not mix with the output."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Terminal"]

Style = Literal["plain", "dim", "bold"]


class Terminal:
    """Standard output and standard error.

    Output is UTF-8 whatever the locale says, since a generated text may hold any character. Colour needs a terminal, the package
    rich, and an environment without NO_COLOR.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out: TextIO = _utf8(sys.stdout if out is None else out)
        # A process may be started without standard error: then there is nobody to tell.
        self.err: TextIO = _utf8(err or sys.stderr or io.StringIO())
        self._console = _console(self.out)
        self._err_is_terminal = self.err.isatty()
        self._status = 0

    def write(self, text: str) -> None:
        """Text to standard output at once."""
        if text:
            self.clear_status()
            self.out.write(text)
            self.out.flush()

    def line(self, text: str = "", style: Style = "plain") -> None:
        """A line to standard output."""
        self.clear_status()
        if self._console is not None and style != "plain":
            self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        else:
            self.out.write(text + "\n")
            self.out.flush()

    def note(self, text: str) -> None:
        """A line to standard error."""
        self.clear_status()
        self.err.write(text + "\n")
        self.err.flush()

    def progress(self, text: str) -> None:
        """What is being done now: on a terminal one line that the next one replaces, elsewhere a line of its own."""
        if self._err_is_terminal:
            shown = text[: _width(self.err) - 1]
            self.err.write("\r" + shown + " " * max(self._status - len(shown), 0))
            self._status = len(shown)
            self.err.flush()
        else:
            self.note(text)

    def clear_status(self) -> None:
        """Remove the progress line, if one is shown."""
        if self._status:
            self.err.write("\r" + " " * self._status + "\r")
            self.err.flush()
            self._status = 0


def _utf8(stream: TextIO) -> TextIO:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="replace")
    return stream


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def _console(stream: TextIO) -> Console | None:
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
