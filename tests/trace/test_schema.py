"""The published JSON Schema: current, and it takes and refuses lines as the reader does."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from event_strategies import records
from hypothesis import given, settings

from spanfold.engine.errors import TraceError
from spanfold.engine.events import Record
from spanfold.engine.trace import TraceReader, decode_record, encode_record

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "reference" / "trace.schema.json").read_text(encoding="utf-8"))
KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def valid(got: Any, schema: dict[str, Any]) -> bool:
    """The keywords that the schema uses, and no others: an unknown one fails the test."""
    schema = {name: one for name, one in schema.items() if name not in ("$schema", "$defs", "title", "description")}
    for keyword, value in schema.items():
        match keyword:
            case "$ref":
                good = valid(got, SCHEMA["$defs"][value.rsplit("/", 1)[1]])
            case "oneOf":
                good = sum(valid(got, one) for one in value) == 1
            case "anyOf":
                good = any(valid(got, one) for one in value)
            case "const":
                good = type(got) is type(value) and got == value
            case "enum":
                good = got in value
            case "type" if value in KINDS:
                good = type(got) is KINDS[value]
            case "type":
                good = type(got) is int or (value == "number" and type(got) is float)
            case "minimum":
                good = type(got) in (int, float) and got >= value
            case "maximum":
                good = type(got) in (int, float) and got <= value
            case "pattern":
                good = isinstance(got, str) and re.search(value, got) is not None
            case "properties":
                good = all(valid(got[name], one) for name, one in value.items() if name in got)
            case "required":
                good = all(name in got for name in value)
            case "additionalProperties" if value is False:
                good = got.keys() <= schema["properties"].keys()
            case "additionalProperties":
                good = all(valid(one, value) for one in got.values())
            case "items":
                good = all(valid(one, value) for one in got)
            case "prefixItems":
                good = all(valid(one, part) for one, part in zip(got, value, strict=False))
            case "minItems":
                good = len(got) >= value
            case "maxItems":
                good = len(got) <= value
            case _:
                raise AssertionError(f"the schema uses {keyword}")
        if not good:
            return False
    return True


def test_the_published_schema_is_current():
    spec = importlib.util.spec_from_file_location("trace_schema", ROOT / "tools" / "trace_schema.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PATH.read_text(encoding="utf-8") == module.rendered(), "python tools/trace_schema.py"


@pytest.mark.parametrize("name", ["accepted", "adaptive", "interleaved", "resumed", "redacted"])
def test_every_line_of_a_golden_trace_is_valid(name: str):
    path = Path(__file__).parent / "golden-3" / f"{name}.jsonl"
    for line in path.read_bytes().splitlines():
        assert valid(json.loads(line), SCHEMA), line
    assert list(TraceReader(path))


@given(record=records)
@settings(max_examples=60)
def test_every_record_is_valid(record: Record):
    assert valid(json.loads(encode_record(record)), SCHEMA)


def changes(got: Any) -> list[Any]:
    """The object with one part of it replaced, left out or added."""
    made: list[Any] = []

    def walk(part: Any, put: Any) -> None:
        for other in (None, True, 7, 1.5, "x", [], {}, [None]):
            if not (type(part) is type(other) and part == other):
                put(other)
        if isinstance(part, dict):
            for name in part:
                walk(part[name], lambda one, name=name: put({**part, name: one}))
                put({key: one for key, one in part.items() if key != name})
            put({**part, "more": 1})

    walk(got, lambda one: made.append(copy.deepcopy(one)))
    return made


@pytest.mark.parametrize("line", (Path(__file__).parent / "golden_records.jsonl").read_bytes().splitlines(), ids=lambda line: line[60:90])
def test_the_schema_refuses_nothing_that_is_read(line: bytes):
    refused = 0
    for changed in changes(json.loads(line)):
        try:
            decode_record(json.dumps(changed))
        except TraceError:
            refused += not valid(changed, SCHEMA)
            continue
        assert valid(changed, SCHEMA), changed
    assert refused > 20
