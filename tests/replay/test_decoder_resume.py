"""`Decoder.resume` on a path: the shortest way to go on after a crash."""

import pytest

from spanfold.backends.scripted import ScriptedRuntime, hash_target
from spanfold.engine import Decoder
from spanfold.engine.errors import TraceError
from spanfold.engine.trace import TraceWriter

TARGET = hash_target(1, 50)


def recorded(path, sessions=1):
    runtime = ScriptedRuntime(TARGET, vocabulary=50)
    with TraceWriter(path) as writer, Decoder(runtime, policy=2, recorder=writer) as decoder:
        return [decoder.generate([1 + at], max_tokens=12).tokens for at in range(sessions)]


def test_a_path_is_read_to_its_torn_tail_and_gone_on_with(tmp_path):
    path = tmp_path / "run.jsonl"
    (expected,) = recorded(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:9]) + lines[9][:-4])
    with Decoder(ScriptedRuntime(TARGET, vocabulary=50), policy=2) as decoder, decoder.resume(path) as session:
        assert 0 < len(session.result.tokens) < 12, "some were committed before the crash"
        list(session)
        assert session.result.tokens == expected
        assert session.result.finish_reason == "length"


def test_a_trace_of_several_sessions_asks_which(tmp_path):
    path = tmp_path / "run.jsonl"
    recorded(path, sessions=2)
    with Decoder(ScriptedRuntime(TARGET, vocabulary=50)) as decoder, pytest.raises(TraceError, match="several sessions"):
        decoder.resume(path)


def test_an_unknown_option_of_a_resumed_session_is_named(tmp_path):
    path = tmp_path / "run.jsonl"
    recorded(path)
    with Decoder(ScriptedRuntime(TARGET, vocabulary=50)) as decoder, pytest.raises(TypeError, match="'stop'"):
        decoder.resume(path, stop=3)
