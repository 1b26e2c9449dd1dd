"""Older versions of the format, brought up to the present one on read.

Each entry of ``UPCASTS`` turns one parsed line (header, record or footer, a JSON object) of its version into a line of the next
version. Lines pass through all of them, one version at a time, before anything is structured; the digest of a segment is over the
bytes as they were written, so it holds whatever the version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ..errors import TraceError
from .header import FORMAT, FORMAT_VERSION

__all__ = ["UPCASTS", "Upcast", "format_version", "upcast"]

Upcast: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def _from_1(line: dict[str, Any]) -> dict[str, Any]:
    """Version 2 brought the policy ``auto``: ``SessionOpened.prior`` and ``DraftOffered.probe``."""
    if line["kind"] == "header":
        return {**line, "version": 2}
    added = {"SessionOpened": {"prior": None}, "DraftOffered": {"probe": False}}.get(line.get("type", ""))
    if added is None:
        return line
    event = line["event"]
    for name in added:
        if name in event:
            raise ValueError(f"version 1 has no field {name!r} in {line['type']}")
    if event.get("policy", {}).get("kind", "fixed") != "fixed":
        raise ValueError("version 1 knows fixed policies only")
    return {**line, "event": {**event, **added}}


def _from_2(line: dict[str, Any]) -> dict[str, Any]:
    """Version 3 brought ``RuntimeInfo.rollback_note``, of the header's runtime and of those that sessions were opened and resumed with."""
    if line["kind"] == "header":
        runtime = line["runtime"]
        return {**line, "version": 3, "runtime": None if runtime is None else _with_note(runtime)}
    if line.get("type") not in ("SessionOpened", "SessionResumed"):
        return line
    event = line["event"]
    return {**line, "event": {**event, "runtime": _with_note(event["runtime"])}}


def _with_note(runtime: dict[str, Any]) -> dict[str, Any]:
    if "rollback_note" in runtime:
        raise ValueError("version 2 has no field 'rollback_note' in a runtime")
    return {**runtime, "rollback_note": ""}


#: version -> what makes a line of the next version of one of this.
UPCASTS: Final[Mapping[int, Upcast]] = {1: _from_1, 2: _from_2}


def format_version(header: Mapping[str, Any], upcasts: Mapping[int, Upcast]) -> int:
    """The version that a header names.

    Raises:
        TraceError: another format, or a version that cannot be read.
    """
    if header.get("format") != FORMAT:
        raise TraceError(f"not a trace of the format {FORMAT}", path="$.format")
    found = header.get("version")
    readable = (*sorted(upcasts), FORMAT_VERSION)
    if type(found) is not int or found not in readable:
        newer = "; a newer spanfold wrote it: update this one" if type(found) is int and found > FORMAT_VERSION else ""
        raise TraceError(
            f"version {found!r:.60} is unknown; this version of spanfold reads {', '.join(map(str, readable))}{newer}", path="$.version"
        )
    return found


def upcast(line: dict[str, Any], version: int, upcasts: Mapping[int, Upcast]) -> dict[str, Any]:
    """The line as the present version writes it.

    Raises:
        TraceError: it is not what its version says, so that it cannot be brought up.
    """
    for step in range(version, FORMAT_VERSION):
        try:
            line = upcasts[step](line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
            raise TraceError(f"this is no line of version {step}: {type(problem).__name__}: {problem}", path="$") from problem
    return line
