"""Reading a trace, line by line in constant memory.

A line that was cut by a crash (the last one of the file, or the last one before a later segment) is reported as a torn tail and
loses only itself. Everything else that is not as the format says is an error that names the line: no record is guessed or skipped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

from attrs import define

from ..errors import TraceError
from ..events import Record
from .codec import parse_line, record_from_dict
from .writer import FORMAT, FORMAT_VERSION

__all__ = ["Segment", "TraceReader"]

_FOOTER_KEYS: Final = {"kind", "records", "sha256"}
_HEADER_KEYS: Final = {"kind", "format", "version", "created_unix_ns"}


@define(kw_only=True)
class Segment:
    """What was found of one segment.

    Attributes:
        line: number of its header's line, from 1.
        records: whole records in it so far.
        closed: whether a footer with the right count and digest ends it; a writer that crashed or is still open leaves none.
        torn: why its last line is not a whole record, or None.
    """

    line: int
    records: int = 0
    closed: bool = False
    torn: str | None = None


class TraceReader:
    """Iterate over the records of a trace; ``segments`` then says what was found around them.

    Raises (while iterating):
        TraceError: the file is empty or not a trace, or a line is wrong; the message names the line and the field.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Final = Path(path)
        self.segments: list[Segment] = []

    @property
    def torn(self) -> tuple[str, ...]:
        """The torn tails, one sentence each."""
        return tuple(segment.torn for segment in self.segments if segment.torn is not None)

    def __iter__(self) -> Iterator[Record]:
        """Read the file from its beginning."""
        self.segments = []
        with open(self.path, "rb") as file:
            yield from self._records(file)
        if not self.segments:
            raise TraceError(f"{self.path} is empty: not a trace, and no record of an empty session either")

    def _records(self, file: BinaryIO) -> Iterator[Record]:
        digest = hashlib.sha256()
        broken: tuple[int, TraceError] | None = None
        for number, line in enumerate(file, 1):
            try:
                got = parse_line(line)
            except TraceError as problem:
                if broken is not None:
                    raise TraceError(broken[1].problem, line=broken[0]) from broken[1]
                # Torn if nothing or a new segment follows; that is known only at the next line. (The beginning of an object is never
                # JSON by itself, so a line that can be parsed was not cut.)
                broken = (number, problem)
                continue
            try:
                kind = _kind(got)
                if broken is not None:
                    if kind != "header":
                        raise TraceError(broken[1].problem, line=broken[0]) from broken[1]
                    self._tear(broken[0])
                    broken = None
                if kind == "header":
                    _check_header(got)
                    self.segments.append(Segment(line=number))
                    digest = hashlib.sha256()
                    continue
                segment = self._open_segment(kind)
                if kind == "footer":
                    _check_footer(got, segment, digest.hexdigest())
                    segment.closed = True
                    continue
                record = record_from_dict(got)
            except TraceError as problem:
                if problem.line is not None:
                    raise
                raise TraceError(str(problem), line=number) from problem
            digest.update(line)
            segment.records += 1
            yield record
        if broken is not None:
            if not self.segments:
                raise TraceError(f"not a trace: {broken[1].problem}", line=broken[0]) from broken[1]
            self._tear(broken[0])

    def _open_segment(self, kind: str) -> Segment:
        if not self.segments or self.segments[-1].closed or self.segments[-1].torn is not None:
            raise TraceError(f"a {kind} outside a segment: a trace begins with a header")
        return self.segments[-1]

    def _tear(self, number: int) -> None:
        if not self.segments or self.segments[-1].closed:
            self.segments.append(
                Segment(line=number, torn=f"line {number}, the header of a segment, was cut off; the segment holds nothing")
            )
            return
        segment = self.segments[-1]
        segment.torn = f"line {number} was cut off and is lost, {segment.records} records before it in its segment are whole"


def _kind(got: object) -> Literal["header", "record", "footer"]:
    kind = cast(dict[str, Any], got).get("kind") if isinstance(got, dict) else None
    if kind not in ("header", "record", "footer"):
        raise TraceError("a line must be an object of the kind header, record or footer")
    return kind


def _check_header(got: dict[str, Any]) -> None:
    if got.get("format") != FORMAT:
        raise TraceError(f"not a trace of the format {FORMAT}", path="$.format")
    if type(got.get("version")) is not int or got["version"] != FORMAT_VERSION:
        raise TraceError(
            f"version {got.get('version')!r:.60} is unknown; this version of spanfold reads {FORMAT_VERSION}", path="$.version"
        )
    _same_keys(got, _HEADER_KEYS)


def _check_footer(got: dict[str, Any], segment: Segment, digest: str) -> None:
    _same_keys(got, _FOOTER_KEYS)
    if got["records"] != segment.records or type(got["records"]) is not int:
        raise TraceError(f"the footer counts {got['records']!r:.60} records, the segment holds {segment.records}", path="$.records")
    if got["sha256"] != digest:
        raise TraceError(
            f"the records' digest is {digest}, the footer says {got['sha256']!r:.80}: the segment was changed", path="$.sha256"
        )


def _same_keys(got: dict[str, Any], expected: set[str]) -> None:
    if got.keys() != expected:
        wrong = sorted(got.keys() ^ expected)
        raise TraceError(f"fields are unknown or missing: {', '.join(wrong)}", path="$")
