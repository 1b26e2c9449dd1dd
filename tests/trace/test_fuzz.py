"""Fuzzing the reader: mutated traces, and every file that once showed something (kept in fuzz/)."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from event_strategies import records
from hypothesis import given, settings
from hypothesis import strategies as st
from mutated import PIECES, check_reading, mutated

from spanfold.engine.errors import TraceError
from spanfold.engine.events import EVENT_TYPES, Record
from spanfold.engine.trace import codec, encode_record
from spanfold.engine.trace.header import Header

KEPT = Path(__file__).parent / "fuzz"


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_what_was_found_before_stays_found(path: Path, tmp_path: Path):
    check_reading(path.read_bytes(), tmp_path / "a.jsonl")


@given(content=mutated())
@settings(max_examples=250)
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    try:
        check_reading(content, path)
    except Exception as error:
        kept = KEPT / f"{hashlib.sha256(content).hexdigest()[:12]}.jsonl"
        error.add_note(f"keep what was found: write these bytes to {kept}: {content!r}")
        raise


@given(content=st.binary(max_size=60))
@settings(max_examples=100)
def test_bytes_that_were_never_a_trace_are_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory):
    check_reading(content, tmp_path_factory.getbasetemp() / "fuzzed.jsonl")


# -- the two converters ----------------------------------------------------------------------------------------------

VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**53,
    2**53 - 1,
    1.5,
    float("inf"),
    "",
    "x",
    "7",
    "none",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    [None],
    [2**60],
)


def spoiled(draw: Any, got: Any) -> Any:
    """A copy with one part of it replaced, left out, doubled or added."""
    got = copy.deepcopy(got)
    parts: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        for key, item in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
            parts.append((part, key))
            walk(item)

    walk(got)
    if not parts:
        return draw(st.sampled_from(VALUES))
    owner, key = draw(st.sampled_from(parts))
    how = draw(st.sampled_from(["replace", "replace", "leave out", "add"]))
    if how == "replace":
        owner[key] = draw(st.sampled_from(VALUES))
    elif how == "leave out":
        del owner[key]
    elif isinstance(owner, dict):
        owner["more"] = draw(st.sampled_from(VALUES))
    else:
        owner.append(draw(st.sampled_from(VALUES)))
    return got


@given(record=records, data=st.data())
@settings(max_examples=600)
def test_the_fast_and_the_detailed_converter_accept_the_same(record: Record, data: st.DataObject):
    got = json.loads(encode_record(record))["event"]
    if data.draw(st.booleans()):
        got = spoiled(data.draw, got)
    cls = data.draw(st.sampled_from([type(record.event)] * 3 + [*EVENT_TYPES, Header]))
    outcomes = []
    for converter in (codec._FAST, codec._DETAILED):
        try:
            outcomes.append(converter.structure(got, cls))
        except Exception:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]
    if outcomes[0] is None:
        with pytest.raises(TraceError, match=r"^\$\.event"):
            codec.structure(got, cls, "$.event")


def test_the_pieces_of_the_fuzzer_are_small():
    assert max(map(len, PIECES)) < 1000 and len(list(KEPT.iterdir())) >= 10
