"""Reading a trace, line by line in constant memory.

A line that was cut by a crash (the last one of the file, or the last one before a later segment) is reported as a torn tail and
loses only itself. Everything else that is not as the format says is an error that names the line: no record is guessed or skipped.
"""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from attrs import define, frozen

from ..errors import TraceError
from ..events import Record
from .codec import record_from_dict, same_keys, structure
from .header import FORMAT_VERSION, HEADER_BEGINS, Header
from .inflate import Inflated
from .lines import MAX_LINE_BYTES, parse_line
from .versions import UPCASTS, Upcast, format_version, upcast

__all__ = ["Segment", "TraceReader", "Unknown"]

_FOOTER_KEYS: Final = frozenset({"kind", "records", "sha256"})
_BEGINS: Final = b'{"kind":"'
_SHOWN: Final = 200


@define(kw_only=True)
class Segment:
    """What was found of one segment.

    Attributes:
        line: number of its header's line, from 1.
        header: what it says; None where the header itself was cut off or (lenient reading) is not understood.
        records: whole records in it so far.
        closed: whether a footer with the right count and digest ends it; a writer that crashed or is still open leaves none.
        torn: why its last line is not a whole record, or None.
    """

    line: int
    header: Header | None = None
    records: int = 0
    closed: bool = False
    torn: str | None = None


@frozen
class Unknown:
    """A line that this version does not understand, as lenient reading shows it.

    Attributes:
        line: its number in the file, from 1.
        raw: the JSON value that it holds; where it is no JSON, its first bytes as text.
        problem: why it is not understood, with the path to the field.
    """

    line: int
    raw: Any
    problem: str


class TraceReader:
    """Iterate over the records of a trace; ``segments`` then says what was found around them.

    Args:
        path: the file; compressed if its name ends in ``.gz``.
        max_line_bytes: the longest line that is read; bounds the memory that a hostile file can take.
        upcasts: how older versions are read; the format's own.

    Raises (while iterating):
        TraceError: the file is empty or not a trace, or a line is wrong; the message names the line and the field.
        OSError: it cannot be read.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_line_bytes: int = MAX_LINE_BYTES, upcasts: Mapping[int, Upcast] = UPCASTS
    ) -> None:
        self.path: Final = Path(path)
        self.segments: list[Segment] = []
        self._most = max_line_bytes
        self._upcasts = upcasts

    @property
    def torn(self) -> tuple[str, ...]:
        """The torn tails, one sentence each."""
        return tuple(segment.torn for segment in self.segments if segment.torn is not None)

    def __iter__(self) -> Iterator[Record]:
        """Read the file from its beginning; refuse whatever is not understood."""
        return cast("Iterator[Record]", self._entries(lenient=False))

    def lenient(self) -> Iterator[Record | Unknown]:
        """Read the file from its beginning, to show it: a line that is not understood comes as an ``Unknown``.

        Raises (while iterating):
            TraceError: the file is empty, begins with no trace at all, or cannot be read on (a line too long, damaged compression).
            OSError: it cannot be read.
        """
        return self._entries(lenient=True)

    def _entries(self, *, lenient: bool) -> Iterator[Record | Unknown]:
        self.segments = []
        with open(self.path, "rb") as file:
            if self.path.suffix == ".gz":
                raw = Inflated(file)
                with io.BufferedReader(raw) as inflated:
                    yield from _Scan(self.segments, self._upcasts, lenient, raw).entries(inflated, self._most)
            else:
                yield from _Scan(self.segments, self._upcasts, lenient).entries(file, self._most)
            if not self.segments:
                empty = os.fstat(file.fileno()).st_size == 0
                what = "is empty: not a trace, and no record of an empty session either" if empty else "holds no segment of a trace"
                raise TraceError(f"{self.path} {what}")


class _Scan:
    """One pass over a file. Only ever one line, and one that may prove torn, is held."""

    def __init__(self, segments: list[Segment], upcasts: Mapping[int, Upcast], lenient: bool, inflated: Inflated | None = None) -> None:
        self._segments = segments
        self._upcasts = upcasts
        self._lenient = lenient
        self._inflated = inflated
        self._version: int | None = None
        self._digest = hashlib.sha256()

    def entries(self, file: BinaryIO, most: int) -> Iterator[Record | Unknown]:
        broken: tuple[int, bytes, TraceError] | None = None
        number = 0
        try:
            for number, line in enumerate(iter(partial(file.readline, most + 1), b""), 1):
                if len(line) > most:
                    raise TraceError(f"a line of more than {most} bytes; if it is genuine, read with a larger max_line_bytes", line=number)
                try:
                    got = parse_line(line)
                except TraceError as problem:
                    if broken is not None:
                        yield self._no_line(*broken)
                    # Torn if nothing or a new segment follows; that is known only at the next line. (The beginning of an object is
                    # never JSON by itself, so a line that can be parsed was not cut.)
                    broken = (number, line, problem)
                    continue
                if broken is not None:
                    if self._is_torn(broken[1]) and type(got) is dict and cast(dict[str, Any], got).get("kind") == "header":
                        self._tear(broken[0])
                    else:
                        yield self._no_line(*broken)
                    broken = None
                try:
                    record = self._line(got, line, number)
                except (TraceError, RecursionError) as problem:
                    if isinstance(problem, RecursionError):  # parsed at the edge of what Python allows, and shown beyond it
                        problem = TraceError("nested too deeply")
                    if not self._lenient:
                        raise TraceError(str(problem), line=number) from problem
                    yield Unknown(number, got, str(problem))
                    continue
                if record is not None:
                    yield record
        except zlib.error as problem:
            raise TraceError(f"the compressed stream is damaged: {problem}", line=number + 1) from problem
        if broken is not None:
            self._last(*broken)
        elif self._inflated is not None and self._inflated.cut:
            if not self._segments:
                raise TraceError("not a trace: the compressed stream ends before the first line", line=1)
            self._tear(number + 1)

    def _line(self, got: Any, line: bytes, number: int) -> Record | None:
        if type(got) is not dict:
            raise TraceError("a line must be an object of the kind header, record or footer")
        fields = cast(dict[str, Any], got)
        kind = fields.get("kind")
        if kind == "record":
            segment = self._segment(kind)
            self._digest.update(line)
            segment.records += 1
            return record_from_dict(self._present(fields))
        if kind == "header":
            if not line.startswith(HEADER_BEGINS):
                raise TraceError(f"a header begins with {HEADER_BEGINS.decode()}, without spaces: that is how a trace is recognised")
            segment = Segment(line=number)
            self._segments.append(segment)
            self._digest = hashlib.sha256()
            self._version = None
            self._version = format_version(fields, self._upcasts)
            fields = self._present(fields)
            segment.header = structure({name: field for name, field in fields.items() if name != "kind"}, Header, "$")
        elif kind == "footer":
            segment = self._segment(kind)
            segment.closed = True
            self._check_footer(self._present(fields), segment)
        else:
            if self._segments and not self._segments[-1].closed:
                self._digest.update(line)
                self._segments[-1].records += 1
            raise TraceError("a line must be an object of the kind header, record or footer")
        return None

    def _segment(self, kind: str) -> Segment:
        if not self._segments or self._segments[-1].closed or self._segments[-1].torn is not None:
            raise TraceError(f"a {kind} outside a segment: a trace begins with a header")
        return self._segments[-1]

    def _present(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._version == FORMAT_VERSION:
            return fields
        if self._version is None:
            raise TraceError("a line of a segment whose version is unknown")
        return upcast(fields, self._version, self._upcasts)

    def _check_footer(self, got: dict[str, Any], segment: Segment) -> None:
        same_keys(got, _FOOTER_KEYS)
        if type(got["records"]) is not int or got["records"] != segment.records:
            raise TraceError(f"the footer counts {got['records']!r:.60} records, the segment holds {segment.records}", path="$.records")
        digest = self._digest.hexdigest()
        if got["sha256"] != digest:
            raise TraceError(
                f"the records' digest is {digest}, the footer says {got['sha256']!r:.80}: the segment was changed", path="$.sha256"
            )

    def _no_line(self, number: int, line: bytes, problem: TraceError) -> Unknown:
        """What is said of a line in the middle that is no JSON."""
        if not self._lenient:
            raise TraceError(problem.problem, line=number) from problem
        if self._segments and not self._segments[-1].closed:
            self._digest.update(line)
            self._segments[-1].records += 1
        return Unknown(number, line[:_SHOWN].decode("utf-8", "backslashreplace"), problem.problem)

    def _last(self, number: int, line: bytes, problem: TraceError) -> None:
        """The last line is no JSON: torn, unless somebody ended it."""
        if not self._segments:
            raise TraceError(f"not a trace: {problem.problem}", line=number) from problem
        if line.endswith(b"\n") or not self._is_torn(line):
            raise TraceError(problem.problem, line=number) from problem
        self._tear(number)

    def _is_torn(self, line: bytes) -> bool:
        """Whether this can be what is left of one of our lines: its beginning, or, where a machine died, the space for it alone."""
        body = line.removesuffix(b"\n")
        if self._segments and body and not body.strip(b"\0"):
            return True
        begins = _BEGINS if self._segments and not self._segments[-1].closed and self._segments[-1].torn is None else HEADER_BEGINS
        return body.startswith(begins) or (bool(body) and begins.startswith(body))

    def _tear(self, number: int) -> None:
        if not self._segments or self._segments[-1].closed:
            self._segments.append(
                Segment(line=number, torn=f"line {number}, the header of a segment, was cut off; the segment holds nothing")
            )
            return
        segment = self._segments[-1]
        segment.torn = f"line {number} was cut off and is lost, {segment.records} records before it in its segment are whole"
