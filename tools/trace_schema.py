"""Write the JSON Schema of a line of a trace, from the codec's own table and the declared fields, or check that it is current.

    python tools/trace_schema.py            # writes docs/reference/trace.schema.json
    python tools/trace_schema.py --check

The schema says what a line looks like. That the fields agree with each other and with the lines before is checked by reading and folding.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union

import attrs

from spanfold.engine.trace.codec import AS_STRINGS, EVENT_TAGS
from spanfold.engine.trace.header import FORMAT, FORMAT_VERSION, Header

PATH = Path(__file__).resolve().parents[1] / "docs" / "reference" / "trace.schema.json"
LARGEST = 2**53 - 1
PLAIN: dict[object, dict[str, Any]] = {
    int: {"type": "integer", "minimum": -LARGEST, "maximum": LARGEST},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict[str, str]: {"type": "object", "additionalProperties": {"type": "string"}},
}
DIGITS = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,39})$"}


class Schema:
    """Collects the definitions of the classes that are met."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def of_type(self, kind: Any) -> dict[str, Any]:
        """The schema of a declared type."""
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if kind in PLAIN:
            return PLAIN[kind]
        if origin is Literal:
            return {"enum": list(args)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of_type(one) for one in args]}
        if origin is tuple and args[-1] is Ellipsis:
            return {"type": "array", "items": self.of_type(args[0])}
        if origin is tuple:
            return {"type": "array", "prefixItems": [self.of_type(one) for one in args], "minItems": len(args), "maxItems": len(args)}
        return self.of_class(kind)

    def of_class(self, cls: type[attrs.AttrsInstance]) -> dict[str, Any]:
        """A reference to the definition of a class."""
        if cls.__name__ not in self.definitions:
            hints = typing.get_type_hints(cls)
            properties = {
                field.name.rstrip("_"): DIGITS if field.name in AS_STRINGS else self.of_type(hints[field.name])
                for field in attrs.fields(cls)
            }
            summary = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].replace("``", "").split())
            self.definitions[cls.__name__] = {"description": summary, **closed(properties)}
        return {"$ref": f"#/$defs/{cls.__name__}"}


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these fields."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def schema() -> dict[str, Any]:
    """The schema of one line."""
    made = Schema()
    count = {"type": "integer", "minimum": 0, "maximum": LARGEST}
    made.of_class(Header)
    header = made.definitions.pop("Header")
    fields = {"kind": {"const": "header"}, **header["properties"], "format": {"const": FORMAT}, "version": {"const": FORMAT_VERSION}}
    envelope = {"kind": {"const": "record"}, "seq": count, "session": count, "at_ns": DIGITS}
    records = [
        closed({**envelope, "type": {"const": tag}, "event": made.of_class(typing.cast(type[attrs.AttrsInstance], cls))})
        for tag, cls in EVENT_TAGS.items()
    ]
    footer = closed({"kind": {"const": "footer"}, "records": count, "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a spanfold trace, format version {FORMAT_VERSION}",
        "oneOf": [{"$ref": "#/$defs/header"}, {"$ref": "#/$defs/record"}, {"$ref": "#/$defs/footer"}],
        "$defs": {
            "header": {"description": header["description"], **closed(fields)},
            "record": {"description": "The envelope of an event.", "oneOf": records},
            "footer": {"description": "The last line of a segment.", **footer},
            **dict(sorted(made.definitions.items())),
        },
    }


def rendered() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2) + "\n"


def main() -> int:
    """Write or check."""
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    args.add_argument("--check", action="store_true", help="change nothing; exit 1 if it is out of date")
    if args.parse_args().check:
        current = PATH.exists() and PATH.read_text(encoding="utf-8") == rendered()
        if not current:
            print(f"{PATH.name} is out of date: python tools/trace_schema.py")
        return 0 if current else 1
    PATH.write_text(rendered(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
