"""Law 10: the codec gives back what it was given, and refuses what it does not know, with the path to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from event_strategies import of_class, records
from hypothesis import given, settings
from hypothesis import strategies as st

from spanfold.engine.errors import TraceError
from spanfold.engine.events import EVENT_TYPES, Extended, Record, SerialDecoded, SessionFinished, SpanVerified, Trimmed
from spanfold.engine.trace import decode_record, encode_record, record_from_dict, record_to_dict
from spanfold.engine.trace.codec import EVENT_TAGS
from spanfold.engine.trace.lines import parse_line
from spanfold.engine.values import Limits, Sampling, Stops

PLAIN = Record(
    seq=3,
    session=1,
    at_ns=2**60,
    event=SpanVerified(base=4, rows=3, predictions=(7, 8), matched=1, observed=7, margins=(0.5, 1.0), cost_ns=9),
)


def same(one: Record, other: Record) -> bool:
    """Equality with the fields that take no part in it."""
    return one == other and one.at_ns == other.at_ns and getattr(one.event, "cost_ns", 0) == getattr(other.event, "cost_ns", 0)


@given(record=records)
@settings(max_examples=400)
def test_law_10_a_record_survives_the_wire(record: Record):
    line = encode_record(record)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert same(decode_record(line), record)
    assert encode_record(decode_record(line)) == line


@pytest.mark.parametrize("cls", EVENT_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_law_10_every_event_type_survives_with_every_field_written(cls: type, data: st.DataObject):
    event = data.draw(of_class(cls))
    shown = record_to_dict(Record(seq=0, session=0, event=event))
    assert shown["type"] == cls.__name__ and EVENT_TAGS[shown["type"]] is cls
    assert shown["event"].keys() == {field.name.rstrip("_") for field in attrs.fields(cls)}
    assert record_from_dict(json.loads(json.dumps(shown))).event == event


@given(record=records)
@settings(max_examples=100)
def test_integers_beyond_2_to_the_53_are_strings_and_nothing_else_is_that_large(record: Record):
    def walk(got: Any) -> None:
        if isinstance(got, dict):
            for item in got.values():
                walk(item)
        elif isinstance(got, list):
            for item in got:
                walk(item)
        elif type(got) is int:
            assert abs(got) < 2**53

    shown = json.loads(encode_record(record))
    walk(shown)
    assert isinstance(shown["at_ns"], str)


def test_the_trailing_underscore_of_python_is_not_written():
    record = Record(seq=0, session=0, event=Trimmed(from_=9, to=5, observed=5, cause="span"))
    assert record_to_dict(record)["event"]["from"] == 9
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda got: got.update(type="SpanDreamt"), r"\$\.type: unknown event type 'SpanDreamt'"),
        (lambda got: got.update(type=None), r"\$\.type: unknown event type None"),
        (lambda got: got["event"].update(extra=1), r"\$\.event: unknown fields: extra"),
        (lambda got: got.update(extra=1), r"\$: unknown fields: extra"),
        (lambda got: got["event"].pop("matched"), r"\$\.event: fields are missing: matched"),
        (lambda got: got["event"].pop("cost_ns"), r"\$\.event: fields are missing: cost_ns"),
        (lambda got: got.pop("seq"), r"\$: fields are missing: seq"),
        (lambda got: got.update(kind="note"), r"\$\.kind: expected a record"),
        (lambda got: got["event"].update(rows="3"), r"\$\.event\.rows: expected an integer, found '3'"),
        (lambda got: got["event"].update(rows=True), r"\$\.event\.rows: expected an integer, found True"),
        (lambda got: got["event"].update(rows=1), r"\$\.event: SpanVerified\.rows must be an integer of at least 2"),
        (lambda got: got["event"].update(base=2**53), r"\$\.event\.base: integers must be below 2\*\*53"),
        (lambda got: got["event"].update(predictions=[1, "2"]), r"\$\.event\.predictions\[1\]: expected an integer, found '2'"),
        (lambda got: got["event"].update(predictions="12"), r"\$\.event\.predictions: expected an array, found '12'"),
        (lambda got: got["event"].update(margins=[None]), r"\$\.event\.margins\[0\]: expected a number, found None"),
        (lambda got: got.update(event=[]), r"\$\.event: expected an object"),
        (lambda got: got.update(at_ns=5), r"\$\.at_ns: expected an integer written as a string, found 5"),
        (lambda got: got.update(at_ns="05"), r"\$\.at_ns: expected an integer written as a string"),
        (lambda got: got.update(at_ns="\N{ARABIC-INDIC DIGIT FIVE}"), r"\$\.at_ns: expected an integer written as a string"),
        (lambda got: got.update(seq=2**53), r"\$\.seq: integers must be below 2\*\*53"),
        (lambda got: got.update(session=-1), r"\$: Record\..*at least 0"),
    ],
)
def test_law_10_case_8_8_what_is_unknown_missing_or_wrong_is_refused_with_its_path(change: Any, message: str):
    got = json.loads(encode_record(PLAIN))
    change(got)
    with pytest.raises(TraceError, match=message):
        record_from_dict(got)


def test_several_problems_are_reported_together():
    got = json.loads(encode_record(PLAIN))
    got["event"].update(rows="3", base=None)
    with pytest.raises(TraceError, match=r"\$\.event\.base.*\$\.event\.rows"):
        record_from_dict(got)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_case_8_6_no_event_holds_a_number_that_json_lacks(number: float):
    with pytest.raises(ValueError, match="finite"):
        SerialDecoded(base=0, prediction=0, verdict="none", observed=1, margin=number)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_case_8_6_numbers_that_are_not_finite_are_refused_on_read(word: str):
    line = encode_record(PLAIN).decode().replace("[0.5,1.0]", f"[{word},1.0]")
    with pytest.raises(TraceError, match="finite"):
        decode_record(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "not JSON"),
        (b'{"kind": "record"', "not JSON"),
        (b"{} {}", "not JSON"),
        (b'\0\0\0{"kind": "record"}', "NUL bytes"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_case_8_3_a_line_is_one_strict_json_object(line: bytes, message: str):
    with pytest.raises(TraceError, match=message):
        parse_line(line)


def test_an_integer_too_large_for_the_format_is_refused_when_written():
    with pytest.raises(TraceError, match=r"\$\.event\.predictions\[1\].*below 2\*\*53"):
        encode_record(Record(seq=0, session=0, event=SpanVerified(base=0, rows=2, predictions=(1, 2**53), matched=0, observed=2)))


def test_a_seed_of_more_digits_than_the_format_has_is_refused_when_written():
    extended = Extended(tokens=(), limits=Limits(), stops=Stops(), sampling=Sampling(seed=10**40), turn=1)
    with pytest.raises(TraceError, match="at most 40 digits"):
        encode_record(Record(seq=0, session=0, event=extended))
    most = attrs.evolve(extended, sampling=Sampling(seed=10**40 - 1))
    assert decode_record(encode_record(Record(seq=0, session=0, event=most))).event == most


def test_the_wire_form_is_the_one_that_was_published():
    """A golden file: traces that users keep stay readable. A change here is a new format version."""
    golden = (Path(__file__).parent / "golden_records.jsonl").read_bytes()
    assert b"".join(map(encode_record, map(decode_record, golden.splitlines()))) == golden
    assert {json.loads(line)["type"] for line in golden.splitlines()} == set(EVENT_TAGS)


def test_a_finish_by_length_keeps_its_limit():
    record = Record(seq=0, session=0, event=SessionFinished(reason="length", limit="context", turn=0))
    assert decode_record(encode_record(record)) == record
