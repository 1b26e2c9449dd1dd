"""What sessions on one runtime share, and what a caller may do while one of them is at work."""

import gc
import threading

import pytest

from spanfold.backends.scripted import ScriptedRuntime, hash_target
from spanfold.engine import ConfigError, Decoder, Draft, DraftInfo, RecorderFailed, TooManySessions
from spanfold.engine.sharing import busy, engine_activity, share_of
from spanfold.engine.trace import TraceWriter

TARGET = hash_target(7, 50)


def _runtime(**options):
    return ScriptedRuntime(TARGET, vocabulary=50, **options)


def test_a_close_from_another_thread_is_never_lost():
    """The closer finds the session in use; whoever is in it closes it on the way out."""
    runtime = _runtime()
    inside, closed = threading.Event(), threading.Event()

    def on_token(_):
        inside.set()
        assert closed.wait(10)

    with Decoder(runtime, policy=2) as decoder:
        session = decoder.open([1], max_tokens=50, on_token=on_token)

        def close():
            assert inside.wait(10)
            session.close()
            closed.set()

        closer = threading.Thread(target=close)
        closer.start()
        session.step()
        closer.join()
        assert session.state.phase == "dropped"
        assert session.finish.reason == "closed"
        assert runtime.live_sessions == 0


def test_an_iterator_that_is_left_and_taken_up_again_loses_no_token():
    with Decoder(_runtime(), policy=3) as decoder:
        expected = decoder.generate([1], max_tokens=12).tokens
        with decoder.open([1], max_tokens=12) as session:
            seen = []
            for _ in range(20):
                for token in session:
                    seen.append(token)
                    break
        assert tuple(seen) == expected


def test_a_resumed_session_is_refused_while_one_with_its_number_lives():
    log = []
    with Decoder(_runtime(), policy=2, observers=[log.append]) as decoder:
        decoder.generate([1], max_tokens=4)
    with Decoder(_runtime(), policy=2) as decoder:
        with decoder.open([2], max_tokens=4) as other:
            with pytest.raises(ConfigError, match="session 0 of the log has the number of a live session"):
                decoder.resume(log[:4])
            other.step()
        with decoder.resume(log[:4]) as session:
            assert session.id == 0
            list(session)


def test_the_bound_counts_sessions_of_all_decoders_and_forgets_dropped_ones():
    runtime = _runtime()
    one, other = Decoder(runtime, max_sessions=2), Decoder(runtime, max_sessions=2)
    first, second = one.open([1]), other.open([1])
    with pytest.raises(TooManySessions, match="max_sessions is 2"):
        one.open([1])
    first.close()
    one.open([1]).close()
    second.close()
    assert share_of(runtime).live == 0


def test_a_session_found_by_the_collector_inside_the_engine_is_released_later():
    runtime = _runtime()
    with Decoder(runtime) as decoder:
        session = decoder.open([1])
        with engine_activity():
            assert busy()
            del session
            gc.collect()
            assert runtime.live_sessions == 1, "not from within"
        assert not busy()
        decoder.generate([2], max_tokens=1)
        assert runtime.live_sessions == 0


def test_a_recorder_that_fails_at_the_very_last_record_is_not_silent():
    class Full:
        def write(self, record):
            if type(record.event).__name__ == "SessionDropped":
                raise OSError("disk full")

        def flush(self):
            pass

    runtime = _runtime()
    with pytest.raises(RecorderFailed, match="disk full") as failed:
        Decoder(runtime, recorder=Full()).generate([1], max_tokens=4)
    assert len(failed.value.partial.tokens) == 4
    assert runtime.live_sessions == 0


def test_an_error_that_waits_behind_tokens_is_raised_when_the_stream_is_closed():
    def stop_when(token, index):
        if index == 1:
            raise ValueError("mine")
        return False

    runtime = _runtime()
    stream = Decoder(runtime, policy=3).stream([1], max_tokens=12, stop_when=stop_when)
    next(stream), next(stream)
    with pytest.raises(ValueError, match="mine"):
        stream.close()
    assert stream.result.finish_reason == "failed"
    assert runtime.live_sessions == 0


def test_a_source_that_tells_a_negative_cost_is_believed_to_be_free():
    class Odd:
        def info(self, runtime):
            return DraftInfo(origin="grammar", layers=0, depth=4, context_length=runtime.context_length)

        def open(self, session, ask_head):
            return self

        def draft(self, canonical, limit):
            return Draft(session=0, tokens=(1,), cost_ns=-5)

    with Decoder(_runtime(), policy=2, source=Odd()) as decoder:
        assert len(decoder.generate([1], max_tokens=6).tokens) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"runtime": None}, "runtime must implement"),
        ({"observers": print}, "observers must be a sequence"),
        ({"observers": [5]}, "an observer must be a function"),
        ({"source": None}, "source must be"),
        ({"extras": 5}, "extras must be"),
        ({"policy": 2.5}, "policy must be"),
        ({"max_sessions": 0}, "max_sessions must be"),
    ],
)
def test_a_decoder_with_a_bad_argument_is_refused_by_name(arguments, said):
    runtime = arguments.pop("runtime", _runtime())
    with pytest.raises(ConfigError, match=said):
        Decoder(runtime, **arguments)


def test_an_exception_without_text_passes_unchanged():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def stop_when(token, index):
        raise Mute

    with pytest.raises(Mute):
        Decoder(_runtime()).generate([1], max_tokens=4, stop_when=stop_when)


def test_an_endless_deadline_is_none():
    assert len(Decoder(_runtime()).generate([1], max_tokens=4, deadline_s=float("inf")).tokens) == 4


def test_a_session_found_by_the_collector_while_its_trace_is_closed_does_not_wait_for_itself(tmp_path):
    """The finalizer would record the session's end through the writer whose lock its own thread holds."""
    runtime = _runtime()
    writer = TraceWriter(tmp_path / "run.jsonl")
    decoder = Decoder(runtime, recorder=writer)
    abandoned = [decoder.open([1])]
    abandoned[0].step()
    finish = writer._sink.finish

    def collect():
        assert busy(), "a finalizer that runs here must be put off"
        abandoned.clear()
        gc.collect()
        finish()

    writer._sink.finish = collect
    writer.close()
    decoder.close()
    assert runtime.live_sessions == 0
