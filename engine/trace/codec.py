"""The wire form of a record: one JSON object, and back.

The rules of the format:

* the type of an event stands beside it (``"type"``), from a table of its own: events are plain classes and know nothing of it;
* ``at_ns``, ``created_unix_ns`` and seeds are always strings; every other integer is below 2**53, so that any JSON reader keeps it exactly;
* never NaN or Infinity;
* every field is written and every field is expected: an unknown or a missing one is refused with the path to it;
* a trailing underscore that Python needs is not written (``Trimmed.from_`` is ``from``).

Two converters read: a fast one that only says yes or no, and, after a no, a detailed one that says where and why. They accept the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
from cattrs import Converter, transform_error
from cattrs.errors import ForbiddenExtraKeysError, IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ..adaptive import Pace
from ..errors import ConfigError, TraceError
from ..events import EVENT_TYPES, Event, Record
from ..values import DraftInfo, Limits, Policy, Processor, RuntimeInfo, Sampling, Stops
from .header import Header
from .lines import encode_line, parse_line

__all__ = ["EVENT_TAGS", "RECORD_KEYS", "decode_record", "encode_record", "record_from_dict", "record_to_dict", "structure", "unstructure"]

#: tag on the wire -> class. The tag is part of the format: a renamed class keeps its tag.
EVENT_TAGS: Final[Mapping[str, type[Event]]] = {cls.__name__: cls for cls in EVENT_TYPES}
_TAG_OF: Final = {cls: tag for tag, cls in EVENT_TAGS.items()}

#: Fields that are written as strings whatever their size.
AS_STRINGS: Final = frozenset({"seed", "at_ns", "created_unix_ns"})
RECORD_KEYS: Final = frozenset({"kind", "seq", "session", "at_ns", "type", "event"})

_VALUES: Final = (Pace, DraftInfo, Limits, Policy, Processor, RuntimeInfo, Sampling, Stops, Header)
_LIMIT: Final = 2**53
_LONGEST: Final = 40  # digits of an integer that is written as a string: 128 bits, and Python's own limit is never met

_T = TypeVar("_T")


class _Wrong(ValueError):
    """A value that is not what the field holds; its message is for people."""


def _integer(got: object, _: object = int) -> int:
    if type(got) is not int:
        raise _Wrong(f"expected an integer, found {got!r:.60}")
    if not -_LIMIT < got < _LIMIT:
        raise _Wrong(f"integers must be below 2**53, found one of {got.bit_length()} bits")
    return got


def _long(got: object, _: object = int) -> int:
    # ``isdecimal`` alone would let other scripts' digits through, and "007" is not how this format writes 7.
    if not (isinstance(got, str) and len(got) <= _LONGEST and got.isascii() and got.isdecimal() and (got[0] != "0" or got == "0")):
        raise _Wrong(f"expected an integer written as a string, found {got!r:.60}")
    return int(got)


def _long_text(got: int) -> str:
    shown = str(got)
    if len(shown) > _LONGEST:
        raise TraceError(f"integers in a trace have at most {_LONGEST} digits, found one of {len(shown)}")
    return shown


def _float(got: object, _: object = float) -> float:
    if type(got) is float:
        number = got
    elif type(got) is int:
        number = float(_integer(got))
    else:
        raise _Wrong(f"expected a number, found {got!r:.60}")
    if number - number != 0.0:
        raise _Wrong(f"expected a finite number, found {got!r}")
    return number


def _string(got: object, _: object = str) -> str:
    if type(got) is not str:
        raise _Wrong(f"expected a string, found {got!r:.60}")
    return got


def _boolean(got: object, _: object = bool) -> bool:
    if type(got) is not bool:
        raise _Wrong(f"expected true or false, found {got!r:.60}")
    return got


_Plain: TypeAlias = str | int | float | bool


def _plain(got: object, _: object = None) -> _Plain:
    if isinstance(got, (str, bool)):
        return got
    return _integer(got) if type(got) is int else _float(got)


def _words(got: object, _: object = None) -> dict[str, str]:
    if type(got) is not dict:
        raise _Wrong(f"expected an object, found {got!r:.60}")
    return {name: _string(word) for name, word in cast(dict[str, object], got).items()}


def _converter(*, detailed: bool) -> Converter:
    made = Converter(forbid_extra_keys=detailed, detailed_validation=detailed)
    made.register_structure_hook(int, _integer)
    made.register_structure_hook(float, _float)
    made.register_structure_hook(str, _string)
    made.register_structure_hook(bool, _boolean)
    made.register_structure_hook(_Plain, _plain)
    made.register_structure_hook_func(lambda kind: kind == dict[str, str], _words)
    made.register_unstructure_hook(_Plain, _as_is)
    made.register_unstructure_hook_func(_is_plain_tuple, _as_is)  # JSON writes tuples as arrays
    made.register_structure_hook_factory(_is_tuple, partial(_detailed_tuple if detailed else _fast_tuple, made))
    for cls in (*_VALUES, *EVENT_TYPES):
        names: dict[str, Any] = {field.name: override(rename=field.name.rstrip("_")) for field in attrs.fields(cls)}
        for name in AS_STRINGS & names.keys():
            names[name] = override(unstruct_hook=_long_text, struct_hook=_long)
        made.register_unstructure_hook(cls, make_dict_unstructure_fn(cls, made, **names))
        complete = _complete if detailed else _exact
        made.register_structure_hook(cls, complete(cls, make_dict_structure_fn(cls, made, **names)))
    return made


def _as_is(got: Any) -> Any:
    return got


def _is_tuple(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is tuple


def _is_plain_tuple(kind: Any) -> bool:
    return _is_tuple(kind) and set(kind.__args__) <= {int, float, str, Ellipsis}


def _detailed_tuple(conv: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    """The hook of ``tuple[X, ...]`` and ``tuple[X, Y]``: a JSON array and nothing else (cattrs takes the letters of a string too)."""
    args = kind.__args__
    length = None if args[-1] is Ellipsis else len(args)

    def structure(got: Any, _: Any) -> Any:
        items = _array(got, length)
        made: list[Any] = []
        problems: list[Exception] = []
        for at, item in enumerate(items):
            part = args[0] if length is None else args[at]
            try:
                made.append(conv.structure(item, part))
            except Exception as problem:
                problem.add_note(IterableValidationNote(f"item {at}", at, part))  # cattrs reads the path from its notes
                problems.append(problem)
                if len(problems) == _MOST_PROBLEMS:
                    break
        if problems:
            raise IterableValidationError("array", problems, kind)  # pyright: ignore[reportCallIssue] - it sees ExceptionGroup's own
        return tuple(made)

    return structure


#: A hostile array of a million wrong items is told of by its first few.
_MOST_PROBLEMS: Final = 8


def _fast_tuple(conv: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    args = kind.__args__
    if args == (int, ...):
        return _integers
    length = None if args[-1] is Ellipsis else len(args)
    hooks = [conv.get_structure_hook(part) for part in args if part is not Ellipsis]

    def structure(got: Any, _: Any) -> Any:
        items = _array(got, length)
        if length is None:
            hook = hooks[0]
            return tuple([hook(item, args[0]) for item in items])
        return tuple([hook(item, part) for hook, item, part in zip(hooks, items, args, strict=True)])

    return structure


def _integers(got: Any, _: Any) -> tuple[int, ...]:
    items = _array(got, None)
    for item in items:
        if type(item) is not int:
            raise _Wrong("not an integer")
    if items and not (max(items) < _LIMIT and min(items) > -_LIMIT):
        raise _Wrong("too large")
    return tuple(items)


def _array(got: object, length: int | None) -> list[Any]:
    if type(got) is not list:
        raise _Wrong(f"expected an array, found {got!r:.60}")
    items = cast(list[Any], got)
    if length is not None and len(items) != length:
        raise _Wrong(f"expected an array of {length}, found {len(items)}")
    return items


def _complete(cls: type, structure: Callable[[Mapping[str, Any], Any], Any]) -> Callable[[Any, Any], Any]:
    """Refuse what is no object or lacks a field: a default must not stand in for what was cut out of a trace."""
    expected = {field.name.rstrip("_") for field in attrs.fields(cls)}

    def hook(got: Any, kind: Any) -> Any:
        if type(got) is not dict:
            raise _Wrong(f"expected an object, found {got!r:.60}")
        missing = expected - cast(dict[str, Any], got).keys()
        if missing:
            raise _Wrong(f"fields are missing: {', '.join(sorted(missing))}")
        return structure(cast(dict[str, Any], got), kind)

    return hook


def _exact(cls: type, structure: Callable[[Mapping[str, Any], Any], Any]) -> Callable[[Any, Any], Any]:
    expected = {field.name.rstrip("_") for field in attrs.fields(cls)}

    def hook(got: Any, kind: Any) -> Any:
        if type(got) is not dict or cast(dict[str, Any], got).keys() != expected:
            raise _Wrong("not an object with these fields")
        return structure(cast(dict[str, Any], got), kind)

    return hook


_DETAILED: Final = _converter(detailed=True)
_FAST: Final = _converter(detailed=False)
_READERS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {cls: _FAST.get_structure_hook(cls) for cls in (*EVENT_TYPES, Header)}
_WRITERS: Final[Mapping[type, Callable[[Any], dict[str, Any]]]] = {cls: _FAST.get_unstructure_hook(cls) for cls in (*EVENT_TYPES, Header)}


def _described(error: BaseException, _: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        names = sorted(error.extra_fields)
        more = f" and {len(names) - _MOST_PROBLEMS} more" if len(names) > _MOST_PROBLEMS else ""
        return f"unknown fields: {', '.join(name[:60] for name in names[:_MOST_PROBLEMS])}{more}"
    return str(error)


def structure(got: object, cls: type[_T], path: str) -> _T:
    """The value of a class of the format.

    Raises:
        TraceError: with every problem that was found, each behind the path to it.
    """
    try:
        return _READERS[cls](got, cls)
    except Exception:
        try:
            _DETAILED.structure(got, cls)
        except Exception as problem:
            # All problems that cattrs collected, each with its path; the validators' own (they name class and field) among them.
            found = transform_error(problem, path, _described)[:_MOST_PROBLEMS]
            raise TraceError("; ".join(": ".join(reversed(one.rsplit(" @ ", 1))) for one in found)) from problem
        raise  # the two converters disagree: a fault of this module


def unstructure(got: object) -> dict[str, Any]:
    """The JSON object of a value of the format."""
    return _WRITERS[type(got)](got)


def _refuse_large(got: Any, path: str) -> None:
    if type(got) is int:
        if not -_LIMIT < got < _LIMIT:
            raise TraceError(f"integers in a trace must be below 2**53, found {got}", path=path)
    elif isinstance(got, dict):
        for key, item in cast(dict[str, Any], got).items():
            _refuse_large(item, f"{path}.{key}")
    elif isinstance(got, (list, tuple)):
        for at, item in enumerate(cast(list[Any], got)):
            _refuse_large(item, f"{path}[{at}]")


def record_to_dict(record: Record) -> dict[str, Any]:
    """The JSON object of a record.

    Raises:
        TraceError: an integer does not fit the format.
    """
    got = _record_to_dict(record)
    _refuse_large(got, "$")
    return got


def _record_to_dict(record: Record) -> dict[str, Any]:
    kind = type(record.event)
    return {
        "kind": "record",
        "seq": record.seq,
        "session": record.session,
        "at_ns": _long_text(record.at_ns),
        "type": _TAG_OF[kind],
        "event": _WRITERS[kind](record.event),
    }


def record_from_dict(got: object) -> Record:
    """The record of a JSON object.

    Raises:
        TraceError: an unknown type, a field that is unknown, missing or of the wrong kind; the message holds the path to it.
    """
    try:
        # The fast way; whatever is wrong is found again, and told, by the slow one.
        fields = cast(dict[str, Any], got)
        if fields.keys() == RECORD_KEYS and fields["kind"] == "record":  # pyright: ignore[reportUnnecessaryComparison]
            cls = EVENT_TAGS[fields["type"]]
            event = _READERS[cls](fields["event"], cls)
            return Record(
                seq=_integer(fields["seq"]), session=_integer(fields["session"]), at_ns=_long(fields["at_ns"]), event=cast(Event, event)
            )
    except Exception:
        pass
    try:
        return _detailed_record(got)
    except RecursionError as problem:  # parsed at the edge of what Python allows, and shown beyond it
        raise TraceError("nested too deeply") from problem


def _detailed_record(got: object) -> Record:
    if type(got) is not dict:
        raise TraceError(f"expected an object, found {got!r:.60}", path="$")
    fields = cast(dict[str, Any], got)
    if fields.get("kind") != "record":
        raise TraceError(f"expected a record, found kind {fields.get('kind')!r:.60}", path="$.kind")
    same_keys(fields, RECORD_KEYS)
    tag = fields["type"]
    if not isinstance(tag, str) or tag not in EVENT_TAGS:
        raise TraceError(f"unknown event type {tag!r:.60}; this version knows {', '.join(EVENT_TAGS)}", path="$.type")
    head: dict[str, int] = {}
    for name, hook in (("seq", _integer), ("session", _integer), ("at_ns", _long)):
        try:
            head[name] = hook(fields[name])
        except ValueError as problem:
            raise TraceError(str(problem), path=f"$.{name}") from problem
    event = structure(fields["event"], EVENT_TAGS[tag], "$.event")
    try:
        return Record(event=event, **head)
    except ConfigError as problem:
        raise TraceError(str(problem), path="$") from problem


def same_keys(fields: Mapping[str, Any], expected: frozenset[str]) -> None:
    """Refuse an object whose fields are not exactly these."""
    if fields.keys() ^ expected:
        unknown, missing = sorted(fields.keys() - expected), sorted(expected - fields.keys())
        named = ", ".join(name[:60] for name in (unknown or missing)[:_MOST_PROBLEMS])
        raise TraceError(f"unknown fields: {named}" if unknown else f"fields are missing: {named}", path="$")


#: What could be an integer of 2**53 or more (16 digits) outside of quotes. Floats and texts can match too; the exact test decides.
_SUSPECT: Final = re.compile(rb"[:\[,]-?\d{16}")


def encode_record(record: Record) -> bytes:
    """One line, newline included.

    Raises:
        TraceError: an integer does not fit the format.
    """
    got = _record_to_dict(record)
    line = encode_line(got)
    if _SUSPECT.search(line):
        _refuse_large(got, "$")
    return line


def decode_record(line: bytes | str) -> Record:
    """The record of one line. Raises TraceError for anything that is not one whole, known record."""
    return record_from_dict(parse_line(line))
