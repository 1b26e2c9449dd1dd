"""One line of a trace: strict JSON of bounded size, and back.

Nothing here knows what a line means. What is refused: NaN and Infinity, a name twice in one object, anything behind the value, text
that is not UTF-8, a byte order mark, and lines that would cost more memory or time than a line of a trace has reason to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ..errors import TraceError

__all__ = ["MAX_LINE_BYTES", "encode_line", "parse_line"]

#: The longest line that is read, in bytes, newline included. A SessionOpened of a million tokens of seven digits has 8 million.
MAX_LINE_BYTES: Final = 16 * 1024 * 1024

# Empty arrays and objects cost some twenty times their text in memory. Our own lines hold a few dozen of them, whatever their length;
# so a long line that holds more brackets than this (in texts too) is not one of ours.
_LONG: Final = 256 * 1024
_MOST_BRACKETS: Final = 50_000
# Python refuses integers of more than 4300 digits, whose reading takes quadratic time, unless a program has switched that off.
_ENDLESS: Final = re.compile(rb"\d{5000}")

_encode: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode_line(got: Mapping[str, Any]) -> bytes:
    """A JSON object as one line of a trace, newline included. ASCII, so that a cut never falls inside a character."""
    return _encode(got).encode("ascii") + b"\n"


def _no_constant(word: str) -> object:
    raise TraceError(f"{word} is not JSON; numbers in a trace are finite")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise TraceError(f"the field {twice!r:.60} stands twice in one object")
    return made


_decoder: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)


def parse_line(line: bytes | str) -> Any:
    """The value of one line.

    Raises:
        TraceError: the line is not one strict JSON value, or costs more to read than a line of a trace may.
    """
    if len(line) > _LONG:
        _refuse_costly(line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass"))
    try:
        text = line.decode("utf-8") if isinstance(line, bytes) else line
        if text[-1:] == "\n" and text[:1] == "{":
            got, end = _decoder.raw_decode(text)
            if end == len(text) - 1:
                return got
        return _decoder.decode(text)
    except UnicodeDecodeError as problem:
        raise TraceError(f"not UTF-8 at byte {problem.start}{_hint(line)}") from problem
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, TraceError):
            raise
        raise TraceError(f"not JSON ({_short(problem)}){_hint(line)}") from problem


def _refuse_costly(line: bytes) -> None:
    brackets = line.count(b"[") + line.count(b"{")
    if brackets > _MOST_BRACKETS:
        raise TraceError(f"a line of {len(line)} bytes with {brackets} brackets is no line of a trace (at most {_MOST_BRACKETS})")
    if _ENDLESS.search(line):
        raise TraceError("not JSON (an integer of too many digits)")


def _short(problem: Exception) -> str:
    if isinstance(problem, json.JSONDecodeError):
        return f"{problem.msg} at character {problem.pos}"
    return "nested too deeply" if isinstance(problem, RecursionError) else "an integer of too many digits"


def _hint(line: bytes | str) -> str:
    start: bytes = line[:4] if isinstance(line, bytes) else line[:1].encode("utf-8", "surrogatepass")
    if start.startswith(b"\xef\xbb\xbf"):
        return "; the line begins with a byte order mark: save the file without one"
    if start.startswith(b"\x1f\x8b"):
        return "; this looks like gzip: name the file with the suffix .gz"
    return "; the line holds NUL bytes" if (b"\0" in line if isinstance(line, bytes) else "\0" in line) else ""
