"""Reports as plain values: what ``--json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from ..events import EVENT_TYPES

__all__ = ["Plain", "plain"]


def plain(value: object) -> Any:
    """Objects as dicts by field name, tuples as lists, keys as strings; an event says its ``type`` first."""
    if attrs.has(type(value)):
        fields: dict[str, Any] = {field.name.rstrip("_"): plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
        return {"type": type(value).__name__, **fields} if isinstance(value, EVENT_TYPES) else fields
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast(Mapping[object, object], value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[object] | tuple[object, ...]", value)]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return repr(value)


class Plain:
    """A report that can be printed as JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return cast("dict[str, Any]", plain(self))
