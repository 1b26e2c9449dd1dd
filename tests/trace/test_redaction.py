"""Redaction: nothing of tokens or texts is left, and every decision still comes out the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import corpus
import pytest
from event_strategies import of_class
from hypothesis import given, settings
from hypothesis import strategies as st

from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import EVENT_TYPES, Decoder, Record, SessionState, fold, redrive, state_violations
from spanfold.engine.adaptive import Pace
from spanfold.engine.errors import ConfigError, TraceError
from spanfold.engine.events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftRestored,
    Rewound,
    SessionFinished,
    SessionOpened,
    SpanRefused,
    Trimmed,
)
from spanfold.engine.trace import Redactor, TraceReader, TraceWriter
from spanfold.engine.trace.permutation import Permutation
from spanfold.engine.values import Limits, Policy, Processor, RuntimeInfo, Sampling, Stops

KEY = b"a key of the tests, and no secret"
LOGS = corpus.logs()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000, 4099])
def test_the_permutation_is_one_and_its_inverse_undoes_it(size: int):
    permutation = Permutation(KEY, size)
    there = [permutation(number) for number in range(size)]
    assert sorted(there) == list(range(size))
    assert [permutation.inverse(number) for number in there] == list(range(size))
    for outside in (-1, size):
        with pytest.raises(ValueError, match="range"):
            permutation(outside)


@given(size=st.integers(1, 2**40), data=st.data())
@settings(max_examples=60)
def test_the_permutation_stays_in_a_range_of_any_size(size: int, data: st.DataObject):
    number = data.draw(st.integers(0, size - 1))
    permutation = Permutation(KEY, size)
    assert 0 <= permutation(number) < size and permutation.inverse(permutation(number)) == number


def test_key_and_size_each_give_another_permutation():
    def of(key: bytes, size: int) -> list[int]:
        permutation = Permutation(key, size)
        return [permutation(number) for number in range(1000)]

    plain = of(KEY, 50_000)
    assert plain != list(range(1000)) and sum(a == b for a, b in enumerate(plain)) < 5
    assert sum(a == b for a, b in zip(plain, of(KEY + b"!", 50_000), strict=True)) < 5
    assert sum(a == b for a, b in zip(plain, of(KEY, 50_001), strict=True)) < 5


def redacted(log: list[Record], key: bytes = KEY) -> list[Record]:
    redactor = Redactor(key)
    return [redactor.record(record) for record in log]


def shape(state: SessionState) -> Any:
    """What of a state has nothing to do with ids and texts."""
    finish = state.finish and (state.finish.reason, state.finish.limit)
    return state.phase, state.position, len(state.canonical), state.stats, state.cut, finish, state.limit


@pytest.mark.parametrize("name", LOGS)
def test_a_redacted_log_folds_and_redrives_as_the_log_does(name: str):
    log = LOGS[name]
    shown = redacted(log)
    assert [(record.seq, record.session, record.at_ns, type(record.event)) for record in shown] == [
        (record.seq, record.session, record.at_ns, type(record.event)) for record in log
    ]
    state, plain = fold(shown), fold(log)
    assert shape(state) == shape(plain)
    assert not state.boundary or state_violations(state) == ()
    redactor = Redactor(KEY)
    vocabulary = plain.runtime.vocabulary
    assert list(state.canonical) == [redactor.token(token, vocabulary) for token in plain.canonical]
    assert [redactor.original(token, vocabulary) for token in state.canonical] == list(plain.canonical)
    assert list(redrive(shown)) == shown


SECRET_ID, SECRET_TEXT = 47_111, "the patient's name"


def holds(got: Any) -> bool:
    """Whether the secret id, or the secret text, is anywhere in a value."""
    if isinstance(got, str):
        return SECRET_TEXT in got or str(SECRET_ID) in got
    if isinstance(got, tuple):
        return any(map(holds, got))
    if attrs.has(type(got)):
        return any(holds(getattr(got, field.name)) for field in attrs.fields(type(got)))
    return got == SECRET_ID


#: Integers that are counts and positions, never ids: with the secret in them they would show what a count shows.
COUNTS = (
    {"limit", "at", "invalid", "offered", "count", "base", "rows", "matched", "observed", "start", "position", "reused", "chunks"}
    | {"from_", "to", "replayed_rows", "length", "turn", "rules", "accepted", "cost_ns", "max_tokens", "min_tokens", "mask_until", "seed"}
    | {"width", "min_draft", "prefill_chunk", "give_up_after", "vocabulary", "context_length", "max_batch", "depth", "layers"}
)


def planted(value: Any, name: str) -> Any:
    """The value with the secret wherever an id or a text can stand."""
    if isinstance(value, bool) or value is None or name in COUNTS:
        return SECRET_TEXT if name == "detail" else value
    if isinstance(value, tuple):
        if name == "params":
            return (("id", SECRET_ID), ("text", SECRET_TEXT), (SECRET_TEXT, 1))
        if name == "processors":
            return (Processor(name=SECRET_TEXT, params=planted((), "params"), pure=True),)
        return (SECRET_TEXT,) if name == "texts" else (SECRET_ID, 5) if name in ID_TUPLES else ()
    if isinstance(value, Pace):  # counts and times, which stay in a redacted trace
        return value
    if attrs.has(type(value)):
        if isinstance(value, RuntimeInfo):
            value = attrs.evolve(value, vocabulary=50_000)
        return attrs.evolve(value, **{one.name: planted(getattr(value, one.name), one.name) for one in attrs.fields(type(value))})
    if isinstance(value, str):
        try:
            return SECRET_TEXT if name in TEXTS else value
        except ConfigError:
            return value
    return SECRET_ID if name == "prediction" else value


ID_TUPLES = {"tokens", "prompt", "predictions", "stop_tokens", "masked"}
TEXTS = {"error", "message", "detail", "model", "backend", "device", "dtype", "name", "rollback_note"}
PLAIN = (DraftRestored, DraftDiscarded, Trimmed, CheckpointRetired, Rewound)  # neither ids nor texts in them
OPENING = SessionOpened(
    prompt=(1,),
    limits=Limits(),
    stops=Stops(),
    sampling=Sampling(),
    policy=Policy(),
    runtime=RuntimeInfo(backend="torch", model="m", vocabulary=50_000, context_length=100, rollback="crop"),
    rules=1,
)


@pytest.mark.parametrize("cls", EVENT_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=25)
def test_no_field_of_any_event_lets_an_id_or_a_text_through(cls: type, data: st.DataObject):
    event = planted(data.draw(of_class(cls)), "")
    if hasattr(event, "reason") and cls.__name__ in ("SessionDropped", "SpanRefused"):
        prefix = data.draw(st.sampled_from(["", "settle failed: ", "interrupted: ", "processor ", "cancel raised "]))
        event = attrs.evolve(event, reason=prefix + SECRET_TEXT)
    assert holds(event) or cls in PLAIN
    redactor = Redactor(KEY)
    redactor.record(Record(seq=0, session=0, event=OPENING))
    shown = redactor.record(Record(seq=1, session=0, event=event)).event
    assert type(shown) is cls and not holds(shown), shown


@pytest.mark.parametrize(
    ("cut", "detail", "shown"),
    [
        ("cancelled", "cancel", "cancel"),
        ("cancelled", "deadline", "deadline"),
        ("cancelled", "cancel raised KeyError", "cancel raised KeyError"),
        ("stop_when", "token 4", "token 4"),
        ("stop_when_error", f"ValueError: {SECRET_TEXT}", "ValueError"),
        ("stop_token", "7", str(Redactor(KEY).token(7, 50_000))),
        ("none", None, None),
    ],
)
def test_the_engines_own_words_stay(cut: Any, detail: str | None, shown: str | None):
    redactor = Redactor(KEY)
    redactor.record(Record(seq=0, session=0, event=OPENING))
    event = Committed(tokens=(7,), accepted=0, source="serial", cut_by=cut, detail=detail, position=3)
    got = redactor.record(Record(seq=1, session=0, event=event)).event
    assert isinstance(got, Committed) and got.detail == shown


def test_two_processors_stay_two_and_two_equal_texts_stay_equal():
    redactor = Redactor(KEY)
    redactor.record(Record(seq=0, session=0, event=OPENING))

    def shown(reason: str) -> str:
        got = redactor.record(Record(seq=1, session=0, event=SpanRefused(reason=reason))).event
        assert isinstance(got, SpanRefused)
        return got.reason

    assert shown("budget") == "budget" and shown("processor a").startswith("processor redacted-")
    assert shown("processor a") == shown("processor a") != shown("processor b")


def test_the_writer_redacts_the_header_too_and_says_so(tmp_path: Path):
    runtime = ScriptedRuntime(hash_target(3, 17), drafts=noisy(5, 0.7), model="/srv/models/somebody", stop_tokens=(3,))
    for name, key in (("a", KEY), ("b", KEY), ("c", None)):
        path = tmp_path / name
        with (
            TraceWriter(path, redact=True, key=key, runtime=runtime.info) as writer,
            Decoder(runtime, recorder=writer, clock=lambda: 0) as decoder,
        ):
            result = decoder.generate((1, 2, 3), max_tokens=30)
        assert b"somebody" not in path.read_bytes()
    readers = [TraceReader(tmp_path / name) for name in "abc"]
    logs = [list(reader) for reader in readers]
    assert all(segment.header is not None and segment.header.redacted for reader in readers for segment in reader.segments)
    events = [[record.event for record in log if not isinstance(record.event, SessionFinished)] for log in logs]
    tokens = [[event.tokens for event in log if isinstance(event, Committed)] for log in events]
    assert tokens[0] == tokens[1] != tokens[2], "one key is one permutation, and a random one is another"
    redactor = Redactor(KEY)
    assert [redactor.original(token, runtime.info.vocabulary) for one in tokens[0] for token in one] == list(result.tokens)


def test_a_session_cannot_be_redacted_from_its_middle_on():
    with pytest.raises(TraceError, match="session 0 cannot be redacted from its middle on"):
        Redactor(KEY).record(LOGS["plain"][3])


def test_what_was_resumed_is_gone_on_with_under_the_same_key(tmp_path: Path):
    log = LOGS["resumed 5"]
    cut = next(at for at, record in enumerate(log) if type(record.event).__name__ == "SessionResumed")
    for part in (log[:cut], log[cut:]):
        with TraceWriter(tmp_path / "a.jsonl", redact=True, key=KEY) as writer:
            for record in part:
                writer.write(record)
    shown = list(TraceReader(tmp_path / "a.jsonl"))
    assert shown == redacted(log) and list(redrive(shown)) == shown
