"""The wire form of a record: one line of strict JSON, and back.

The rules of the format:

* the type of an event stands beside it (``"type"``), from a table of its own: events are plain classes and know nothing of it;
* ``at_ns`` and seeds are always strings; every other integer is below 2**53, so that any JSON reader keeps it exactly;
* never NaN or Infinity; text is ASCII with escapes, so that a cut never falls inside a character;
* every field is written and every field is expected: an unknown or a missing one is refused with the path to it;
* a trailing underscore that Python needs is not written (``Trimmed.from_`` is ``from``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, cast

import attrs
from cattrs import Converter, transform_error
from cattrs.errors import ForbiddenExtraKeysError, IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ..errors import ConfigError, TraceError
from ..events import EVENT_TYPES, Event, Record
from ..values import DraftInfo, Limits, Policy, Processor, RuntimeInfo, Sampling, Stops

__all__ = ["EVENT_TAGS", "decode_record", "encode_line", "encode_record", "parse_line", "record_from_dict", "record_to_dict"]

#: tag on the wire -> class. The tag is part of the format: a renamed class keeps its tag.
EVENT_TAGS: Final[Mapping[str, type[Event]]] = {cls.__name__: cls for cls in EVENT_TYPES}
_TAG_OF: Final = {cls: tag for tag, cls in EVENT_TAGS.items()}

_VALUES: Final = (DraftInfo, Limits, Policy, Processor, RuntimeInfo, Sampling, Stops)
_AS_STRINGS: Final = {"seed", "at_ns"}
_LIMIT: Final = 2**53
_RECORD_KEYS: Final = {"kind", "seq", "session", "at_ns", "type", "event"}


class _Wrong(ValueError):
    """A value that is not what the field holds; its message is for people."""


def _integer(got: object, _: object = int) -> int:
    if type(got) is not int:
        raise _Wrong(f"expected an integer, found {got!r:.60}")
    if not -_LIMIT < got < _LIMIT:
        raise _Wrong(f"integers must be below 2**53, found {got}")
    return got


def _long(got: object, _: object = int) -> int:
    # ``isdecimal`` alone would let other scripts' digits through, and "007" is not how this format writes 7.
    if not (isinstance(got, str) and got.isascii() and got.isdecimal() and str(int(got)) == got):
        raise _Wrong(f"expected an integer written as a string, found {got!r:.60}")
    return int(got)


def _float(got: object, _: object = float) -> float:
    if type(got) not in (int, float):
        raise _Wrong(f"expected a number, found {got!r:.60}")
    number = float(cast(float, got))
    if number - number != 0.0:
        raise _Wrong(f"expected a finite number, found {got!r}")
    return number


def _string(got: object, _: object = str) -> str:
    if not isinstance(got, str):
        raise _Wrong(f"expected a string, found {got!r:.60}")
    return got


def _boolean(got: object, _: object = bool) -> bool:
    if not isinstance(got, bool):
        raise _Wrong(f"expected true or false, found {got!r:.60}")
    return got


_Plain: TypeAlias = str | int | float | bool


def _plain(got: object, _: object = None) -> _Plain:
    if isinstance(got, (str, bool)):
        return got
    return _integer(got) if type(got) is int else _float(got)


def _converter() -> Converter:
    made = Converter(forbid_extra_keys=True, detailed_validation=True)
    made.register_structure_hook(int, _integer)
    made.register_structure_hook(float, _float)
    made.register_structure_hook(str, _string)
    made.register_structure_hook(bool, _boolean)
    made.register_structure_hook(_Plain, _plain)
    made.register_unstructure_hook(_Plain, _as_is)
    made.register_structure_hook_factory(_is_tuple, partial(_tuple_hook, made))
    for cls in (*_VALUES, *EVENT_TYPES):
        names: dict[str, Any] = {field.name: override(rename=field.name.rstrip("_")) for field in attrs.fields(cls)}
        for name in _AS_STRINGS & names.keys():
            names[name] = override(unstruct_hook=str, struct_hook=_long)
        made.register_unstructure_hook(cls, make_dict_unstructure_fn(cls, made, **names))
        made.register_structure_hook(cls, _complete(cls, make_dict_structure_fn(cls, made, **names)))
    return made


def _as_is(got: Any) -> Any:
    return got


def _is_tuple(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is tuple


def _tuple_hook(conv: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    """The hook of ``tuple[X, ...]`` and ``tuple[X, Y]``: a JSON array and nothing else (cattrs takes the letters of a string too)."""
    args = kind.__args__
    length = None if args[-1] is Ellipsis else len(args)

    def structure(got: Any, _: Any) -> Any:
        if not isinstance(got, list):
            raise _Wrong(f"expected an array, found {got!r:.60}")
        items = cast(list[Any], got)
        if length is not None and len(items) != length:
            raise _Wrong(f"expected an array of {length}, found {len(items)}")
        made: list[Any] = []
        problems: list[Exception] = []
        for at, item in enumerate(items):
            part = args[0] if length is None else args[at]
            try:
                made.append(conv.structure(item, part))
            except Exception as problem:
                problem.add_note(IterableValidationNote(f"item {at}", at, part))  # cattrs reads the path from its notes
                problems.append(problem)
        if problems:
            raise IterableValidationError("array", problems, kind)  # pyright: ignore[reportCallIssue] - it sees ExceptionGroup's own
        return tuple(made)

    return structure


def _complete(cls: type, structure: Callable[[Mapping[str, Any], Any], Any]) -> Callable[[Any, Any], Any]:
    """Refuse what is no object or lacks a field: a default must not stand in for what was cut out of a trace."""
    expected = {field.name.rstrip("_") for field in attrs.fields(cls)}

    def hook(got: Any, kind: Any) -> Any:
        if not isinstance(got, dict):
            raise _Wrong(f"expected an object, found {got!r:.60}")
        missing = expected - cast(dict[str, Any], got).keys()
        if missing:
            raise _Wrong(f"fields are missing: {', '.join(sorted(missing))}")
        return structure(cast(dict[str, Any], got), kind)

    return hook


_CONVERTER: Final = _converter()


def _described(error: BaseException, _: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown fields: {', '.join(sorted(error.extra_fields))}"
    return str(error)


def _refuse_large(got: Any, path: str) -> None:
    if type(got) is int:
        if not -_LIMIT < got < _LIMIT:
            raise TraceError(f"integers in a trace must be below 2**53, found {got}", path=path)
    elif isinstance(got, dict):
        for key, item in cast(dict[str, Any], got).items():
            _refuse_large(item, f"{path}.{key}")
    elif isinstance(got, (list, tuple)):
        items = cast(list[Any], got)
        if max((item for item in items if type(item) is int), default=0) >= _LIMIT or any(type(item) is not int for item in items):
            for at, item in enumerate(items):
                _refuse_large(item, f"{path}[{at}]")


def record_to_dict(record: Record) -> dict[str, Any]:
    """The JSON object of a record.

    Raises:
        TraceError: an integer does not fit the format.
    """
    event = _CONVERTER.unstructure(record.event)
    _refuse_large(event, "$.event")
    head = {"seq": record.seq, "session": record.session}
    _refuse_large(head, "$")
    return {"kind": "record", **head, "at_ns": str(record.at_ns), "type": _TAG_OF[type(record.event)], "event": event}


def record_from_dict(got: object) -> Record:
    """The record of a JSON object.

    Raises:
        TraceError: an unknown type, a field that is unknown, missing or of the wrong kind; the message holds the path to it.
    """
    if not isinstance(got, dict):
        raise TraceError(f"expected an object, found {got!r:.60}", path="$")
    fields = cast(dict[str, Any], got)
    if fields.get("kind") != "record":
        raise TraceError(f"expected a record, found kind {fields.get('kind')!r:.60}", path="$.kind")
    if fields.keys() != _RECORD_KEYS:
        unknown, missing = sorted(fields.keys() - _RECORD_KEYS), sorted(_RECORD_KEYS - fields.keys())
        raise TraceError(f"unknown fields: {', '.join(unknown)}" if unknown else f"fields are missing: {', '.join(missing)}", path="$")
    tag = fields["type"]
    if not isinstance(tag, str) or tag not in EVENT_TAGS:
        raise TraceError(f"unknown event type {tag!r:.60}; this version knows {', '.join(EVENT_TAGS)}", path="$.type")
    head: dict[str, int] = {}
    for name, hook in (("seq", _integer), ("session", _integer), ("at_ns", _long)):
        try:
            head[name] = hook(fields[name])
        except ValueError as problem:
            raise TraceError(str(problem), path=f"$.{name}") from problem
    try:
        event = _CONVERTER.structure(fields["event"], EVENT_TAGS[tag])
    except Exception as problem:
        # All problems that cattrs collected, each with its path; the validators' own (they name class and field) among them.
        found = transform_error(problem, "$.event", _described)
        raise TraceError("; ".join(": ".join(reversed(one.rsplit(" @ ", 1))) for one in found)) from problem
    try:
        return Record(event=event, **head)
    except ConfigError as problem:
        raise TraceError(str(problem), path="$") from problem


def encode_record(record: Record) -> bytes:
    """One line, newline included. Raises TraceError as :func:`record_to_dict` does."""
    return encode_line(record_to_dict(record))


def encode_line(got: Mapping[str, Any]) -> bytes:
    """A JSON object as one line of a trace, newline included."""
    return json.dumps(got, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def decode_record(line: bytes | str) -> Record:
    """The record of one line. Raises TraceError for anything that is not one whole, known record."""
    return record_from_dict(parse_line(line))


def _no_constant(word: str) -> object:
    raise TraceError(f"{word} is not JSON; numbers in a trace are finite")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise TraceError(f"the field {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return made


def parse_line(line: bytes | str) -> Any:
    """Strict JSON: no NaN or Infinity, no name twice in an object, one value and nothing behind it.

    Raises:
        TraceError: the line is not that.
    """
    try:
        shown = line.decode("utf-8") if isinstance(line, bytes) else line
        return json.loads(shown, parse_constant=_no_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as problem:
        raise TraceError(f"not UTF-8 at byte {problem.start}") from problem
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, TraceError):
            raise
        has_nul = "\0" in (line if isinstance(line, str) else line.decode("utf-8", "replace"))
        raise TraceError(f"not JSON ({problem}){'; the line holds NUL bytes' if has_nul else ''}") from problem
