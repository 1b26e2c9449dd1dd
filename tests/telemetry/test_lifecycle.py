"""Every turn's span ends once, with the right status and parent, however the turn ends: section 9 of the cases."""

import asyncio
import contextvars
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode
from otel_bench import Otel

from spanfold.backends.scripted import Fault
from spanfold.engine import ConfigError, DecodeFailed, Decoder
from spanfold.telemetry import OTelObserver


@pytest.fixture
def otel():
    return Otel()


@pytest.fixture(autouse=True)
def no_log_noise(caplog):
    """Nothing of OpenTelemetry and no failed observer is logged, whatever the test does."""
    caplog.set_level(logging.WARNING)
    yield
    noise = [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry") or "observer" in record.msg]
    assert not noise


def ended_once(otel):
    """Each span that was started has ended exactly once, inside its turn."""
    ids = [span.context.span_id for span in otel.spans]
    assert len(ids) == len(set(ids))
    for span in otel.spans:
        assert span.end_time >= span.start_time
    for turn in otel.turns:
        for span in otel.spans:
            if span.parent is not None and span.parent.span_id == turn.context.span_id:
                assert turn.start_time <= span.start_time <= span.end_time <= turn.end_time
    return otel.turn


# -- how a turn ends ---------------------------------------------------------------------------------------------------


def test_a_turn_that_reaches_its_limit_is_unset_and_says_so(otel):
    otel.bench().generate(max_tokens=6)
    turn = ended_once(otel)
    assert turn.status.status_code is StatusCode.UNSET
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert (turn.attributes["spanfold.finish.reason"], turn.attributes["spanfold.finish.limit"]) == ("length", "max_tokens")


def test_case_9_1_a_broken_off_loop_ends_the_span_once(otel):
    stream = otel.bench().decoder.stream([1, 2, 3], max_tokens=20)
    for _ in stream:
        break
    assert not otel.turns
    stream.close()
    stream.close()
    turn = ended_once(otel)
    assert turn.attributes["spanfold.finish.reason"] == "closed" and turn.status.status_code is StatusCode.UNSET


def test_case_9_1_a_forgotten_stream_ends_the_span_when_it_is_collected(otel):
    bench = otel.bench()
    stream = bench.decoder.stream([1, 2, 3], max_tokens=20)
    next(stream)
    del stream
    gc.collect()
    assert ended_once(otel).attributes["spanfold.finish.reason"] == "closed"
    assert bench.all_released()


def test_case_9_1_generator_exit_inside_a_callers_generator_leaves_no_context_behind(otel):
    bench = otel.bench()

    def tokens():
        with otel.tracer.start_as_current_span("request"), bench.decoder.stream([1, 2, 3], max_tokens=20) as stream:
            yield from stream

    generator = tokens()
    next(generator)
    generator.close()
    turn = ended_once(otel)
    (request,) = otel.named("request")
    assert turn.parent.span_id == request.context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("how", ["aclose", "aclose in another task", "collected"])
def test_case_9_1_an_async_generator_may_be_left_anyhow(otel, how):
    bench = otel.bench()

    async def tokens():
        with bench.decoder.stream([1, 2, 3], max_tokens=20) as stream:
            for token in stream:
                await asyncio.sleep(0)
                yield token

    async def main():
        with otel.tracer.start_as_current_span("request"):
            generator = tokens()
            await anext(generator)
            if how == "aclose":
                await generator.aclose()
            elif how == "collected":
                del generator
                gc.collect()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        if how == "aclose in another task":
            await asyncio.create_task(generator.aclose())

    asyncio.run(main())
    (request,) = otel.named("request")
    assert ended_once(otel).parent.span_id == request.context.span_id


def test_a_cancelled_task_ends_the_span_of_its_decode(otel):
    bench = otel.bench()

    async def serve():
        with bench.decoder.stream([1, 2, 3], max_tokens=1000, ignore_eos=True) as stream:
            for _ in stream:
                await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(serve())
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended_once(otel).attributes["spanfold.finish.reason"] == "closed"


def test_a_cancel_is_no_error(otel):
    cancel = threading.Event()
    otel.bench().generate(max_tokens=20, cancel=cancel, on_token=lambda token: cancel.set())
    turn = ended_once(otel)
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert turn.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("hook", ["on_token", "stop_when", "cancel"])
def test_case_9_9_an_error_of_a_callback_is_the_spans_error_and_goes_on_unchanged(otel, hook):
    error = ZeroDivisionError("the text of a user")

    def callback(*args):
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        otel.bench().generate(max_tokens=20, **{hook: callback})
    assert caught.value is error
    turn = ended_once(otel)
    assert turn.status.status_code is StatusCode.ERROR
    assert turn.attributes["error.type"] == "ZeroDivisionError"
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("cancelled" if hook == "cancel" else "error",)
    assert "text of a user" not in turn.status.description, "messages may hold text"


def test_an_interrupt_is_the_spans_error(otel):
    def interrupt(token):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        otel.bench().generate(max_tokens=20, on_token=interrupt)
    turn = ended_once(otel)
    assert turn.status.status_code is StatusCode.ERROR and turn.attributes["error.type"] == "KeyboardInterrupt"


@pytest.mark.parametrize("level", ["summary", "rounds", "debug"])
@pytest.mark.parametrize("call", ["forward", "settle"])
def test_a_failing_backend_is_the_error_of_the_round_and_of_the_turn(otel, level, call):
    with pytest.raises(DecodeFailed):
        otel.bench(level, faults=[Fault(call=call, at=2, started=True)]).generate(max_tokens=20)
    turn = ended_once(otel)
    assert turn.status.status_code is StatusCode.ERROR
    assert turn.attributes["error.type"] == "DeviceError"
    assert turn.attributes["spanfold.failure.call"] == {"forward": "span", "settle": "settle"}[call]
    failed = [span for span in otel.spans if span.name == "spanfold.span" and span.status.status_code is StatusCode.ERROR]
    assert len(failed) == (0 if level == "summary" else 1)
    for span in failed:
        assert span.attributes["error.type"] == "DeviceError" and span.attributes["spanfold.failure.started"] is True


def test_a_session_goes_on_after_a_failed_round_and_its_turn_is_no_error(otel):
    bench = otel.bench(faults=[Fault(call="forward", at=2, started=True)])
    with bench.decoder.open([1, 2, 3], max_tokens=8) as session:
        session.step()
        session.step()
        with pytest.raises(DecodeFailed):
            session.step()
        while not session.finished:
            session.step()
    assert ended_once(otel).status.status_code is StatusCode.UNSET
    assert [span.status.status_code for span in otel.spans].count(StatusCode.ERROR) == 1


def test_a_runtime_that_cannot_open_the_session_leaves_an_error_and_no_live_session(otel):
    with pytest.raises(DecodeFailed):
        otel.bench(faults=[Fault(call="open", at=0)]).decoder.open([1, 2, 3])
    turn = ended_once(otel)
    assert turn.attributes["spanfold.finish.reason"] == "dropped" and turn.status.status_code is StatusCode.ERROR
    assert otel.metrics()["spanfold.sessions.live"] == {(): 0}


def test_a_refused_argument_begins_no_span(otel):
    with pytest.raises(ConfigError):
        otel.bench().decoder.generate([])
    assert not otel.spans


def test_messages_are_written_when_asked_for(otel):
    def fail(token):
        raise ValueError("shown")

    with pytest.raises(ValueError):
        otel.bench(observer={"record_messages": True}).generate(max_tokens=20, on_token=fail)
    assert otel.turn.status.description == "ValueError: shown"


def test_a_failing_recorder_is_the_spans_error(otel):
    class Full:
        def write(self, record):
            if record.seq > 6:
                raise OSError("disk full")

        def flush(self):
            pass

    with pytest.raises(Exception, match="disk full"):
        otel.bench(decoder={"recorder": Full()}).decoder.generate([1, 2, 3], max_tokens=20)
    turn = ended_once(otel)
    assert turn.attributes["error.type"] == "OSError" and turn.status.description == "recorder failed: OSError"


# -- parents -----------------------------------------------------------------------------------------------------------


def test_the_callers_span_is_the_parent_where_the_turn_begins(otel):
    bench = otel.bench()
    with otel.tracer.start_as_current_span("first") as first:
        session = bench.decoder.open([1, 2, 3], max_tokens=4)
    list(session)
    with otel.tracer.start_as_current_span("second") as second:
        session.extend([4], max_tokens=4)
    list(session)
    session.close()
    assert [turn.parent.span_id for turn in otel.turns] == [span.get_span_context().span_id for span in (first, second)]
    assert [turn.attributes["spanfold.turn.number"] for turn in otel.turns] == [0, 1]


def test_case_9_5_a_worker_thread_decodes_under_the_callers_span(otel):
    bench = otel.bench()
    with otel.tracer.start_as_current_span("request") as request, ThreadPoolExecutor(1) as pool:
        stream = bench.decoder.stream([1, 2, 3], max_tokens=8)
        pool.submit(list, stream).result()
    assert ended_once(otel).parent.span_id == request.get_span_context().span_id


def test_case_9_5_a_whole_call_in_a_worker_thread_takes_the_context_that_it_is_given(otel):
    with otel.tracer.start_as_current_span("request") as request, ThreadPoolExecutor(1) as pool:
        pool.submit(otel.bench(observer={"parent": contexts.get_current()}).decoder.generate, [1, 2], max_tokens=4).result()
        pool.submit(contextvars.copy_context().run, otel.bench().decoder.generate, [1, 2], max_tokens=4).result()
        pool.submit(otel.bench().decoder.generate, [1, 2], max_tokens=4).result()
    with_parent, copied, plain = otel.turns
    assert with_parent.parent.span_id == copied.parent.span_id == request.get_span_context().span_id
    assert plain.parent is None, "a pool carries no context of itself"


def test_case_9_5_asyncio_to_thread_decodes_under_the_callers_span(otel):
    bench = otel.bench()

    async def main():
        with otel.tracer.start_as_current_span("request") as request:
            await asyncio.to_thread(bench.decoder.generate, [1, 2], max_tokens=4)
            return request.get_span_context().span_id

    assert asyncio.run(main()) == otel.turn.parent.span_id


def test_no_span_is_ever_current_inside_the_decode(otel):
    seen = []
    otel.bench("debug").generate(max_tokens=8, on_token=lambda token: seen.append(trace.get_current_span()))
    assert seen and not any(span.get_span_context().is_valid for span in seen)


# -- sampled and not ---------------------------------------------------------------------------------------------------


def test_an_unsampled_turn_leaves_metrics_and_no_span():
    otel = Otel(sampler=ALWAYS_OFF)
    bench = otel.bench("debug")
    result = bench.generate(max_tokens=12)
    assert not otel.spans
    assert sum(otel.metrics()["spanfold.tokens"].values()) == len(result.tokens)


def raise_it(*args):
    raise ZeroDivisionError


def abandon(bench):
    stream = bench.decoder.stream([1, 2, 3], max_tokens=20)
    next(stream)
    del stream
    gc.collect()


def fail(bench, error, **options):
    with pytest.raises(error):
        bench.generate(**options)


EXITS = {
    "limit": lambda bench: bench.generate(max_tokens=6),
    "cancel": lambda bench: bench.generate(max_tokens=6, cancel=lambda: True),
    "abandoned": abandon,
    "callback": lambda bench: fail(bench, ZeroDivisionError, max_tokens=9, on_token=raise_it),
    "backend": lambda bench: fail(bench, DecodeFailed, max_tokens=90),
}


@pytest.mark.parametrize("way", EXITS)
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "unsampled"])
def test_whichever_way_a_turn_ends_nothing_stays_open_sampled_or_not(way, sampled):
    otel = Otel(sampler=None if sampled else ALWAYS_OFF)
    bench = otel.bench("debug", faults=[Fault(call="settle", at=6, started=True)])
    with otel.tracer.start_as_current_span("request"):
        EXITS[way](bench)
    assert [span.name for span in otel.spans].count("text_completion scripted") == sampled
    assert bool(otel.spans) is sampled
    found = otel.metrics()
    assert found["spanfold.sessions.live"] == {(): 0}
    forwards = sum(found.get("spanfold.target.forwards", {}).values())
    assert forwards == sum(type(event).__name__ in ("Prefilled", "SpanVerified", "SerialDecoded") for event in bench.events())
    assert bench.decoder.observers.errors == [0, 0]


def test_turns_of_one_session_are_sampled_by_themselves():
    """Parent-based: the caller's first span is not sampled, its second is."""
    off, on = Otel(sampler=ALWAYS_OFF), Otel()
    bench = on.bench()
    with off.tracer.start_as_current_span("not sampled"):
        session = bench.decoder.open([1, 2, 3], max_tokens=4)
    list(session)
    with on.tracer.start_as_current_span("sampled"):
        session.extend([4], max_tokens=4)
    list(session)
    session.close()
    assert on.turn.attributes["spanfold.turn.number"] == 1
    assert len(on.spans) > 2


def test_case_9_7_where_nobody_records_no_records_are_made(monkeypatch):
    """Neither tracer nor meter of the API package records: the engine is told to rest, and does not even make envelopes."""
    made = []
    from spanfold.engine import drivers

    real = drivers.Record
    monkeypatch.setattr(drivers, "Record", lambda **fields: made.append(1) or real(**fields))
    otel = Otel()
    runtime = otel.bench().runtime
    with Decoder(runtime, policy=3, observers=[OTelObserver(trace.NoOpTracerProvider())]) as decoder:
        decoder.generate([1, 2, 3], max_tokens=50)
    assert len(made) == 1


def test_case_9_8_no_provider_is_made_or_set():
    before = trace.get_tracer_provider()
    otel = Otel()
    with Decoder(otel.bench().runtime, policy=3, observers=[OTelObserver(level="debug")]) as decoder:
        decoder.generate([1, 2, 3], max_tokens=8)
    assert trace.get_tracer_provider() is before
    assert not otel.spans, "nor are another's written to"


# -- many at once, and what goes wrong in telemetry itself --------------------------------------------------------------


def test_sessions_of_several_threads_and_decoders_keep_their_spans_apart(otel):
    """One observer, two runtimes that count their sessions alike, four threads with a span of their own each."""
    observer = otel.observer("debug")
    decoders = [Decoder(Otel().bench().runtime, policy=3, observers=[observer]) for _ in range(2)]
    start = threading.Barrier(4)

    def work(number):
        start.wait()
        decoder = decoders[number % 2]
        with otel.tracer.start_as_current_span(f"request {number}"), decoder.open([1, 2, number], max_tokens=40 + number) as session:
            list(session)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    parents = {span.context.span_id: span.name for span in otel.spans if span.name.startswith("request")}
    assert {parents[turn.parent.span_id]: turn.attributes["gen_ai.usage.output_tokens"] for turn in otel.turns} == {
        f"request {number}": 40 + number for number in range(4)
    }
    for turn in otel.turns:
        rounds = [span for span in otel.spans if span.parent is not None and span.parent.span_id == turn.context.span_id]
        assert sum(span.attributes["spanfold.committed_tokens"] for span in rounds) == turn.attributes["gen_ai.usage.output_tokens"]
        assert len(rounds) == turn.attributes["spanfold.forwards"]


@pytest.mark.parametrize("name", ["spanfold.span", "spanfold.draft", "text_completion scripted"])
def test_a_processor_that_fails_is_never_felt_and_every_other_span_ends(otel, name, caplog):
    class Failing(SpanProcessor):
        def on_end(self, span):
            if span.name == name:
                raise RuntimeError("the processor is broken")

    plain = Otel().bench().generate(max_tokens=12)
    otel.tracers.add_span_processor(Failing())
    bench = otel.bench("debug")
    result = bench.generate(max_tokens=12)
    assert result.tokens == plain.tokens and result.stats == plain.stats
    turn = ended_once(otel)
    assert turn.attributes["gen_ai.usage.output_tokens"] == 12
    assert sum(bench.decoder.observers.errors) > 0
    assert [record.levelname for record in caplog.records] == ["ERROR"], "told once"
    caplog.clear()


# -- the end of the process --------------------------------------------------------------------------------------------


def test_closing_the_observer_ends_what_is_open_once(otel):
    bench = otel.bench()
    session = bench.decoder.open([1, 2, 3], max_tokens=20)
    session.step()
    otel.watching.close()
    otel.watching.close()
    turn = ended_once(otel)
    assert turn.attributes["spanfold.finish.reason"] == "unfinished" and turn.status.status_code is StatusCode.UNSET
    assert otel.metrics()["spanfold.sessions.live"] == {(): 0}
    session.step()
    session.close()
    assert ended_once(otel) is turn


PROGRAM = """
    import {before}
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    from spanfold.backends.scripted import ScriptedRuntime, hash_target
    from spanfold.engine import Decoder
    from spanfold.telemetry import OTelObserver
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
    decoder = Decoder(ScriptedRuntime(hash_target(1, 100)), policy=3, observers=[OTelObserver(provider)])
    session = decoder.open([1, 2], max_tokens=100)
    session.step()
    {then}
"""


@pytest.mark.parametrize("before", ["os", "os, spanfold.telemetry.observer"], ids=["sdk first", "observer first"])
def test_a_turn_under_way_when_the_process_exits_is_exported_once(before):
    program = textwrap.dedent(PROGRAM.format(before=before, then=""))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "text_completion scripted\n" and done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_case_9_8_a_forked_child_leaves_its_parents_spans_alone():
    then = "if os.fork() == 0: raise SystemExit\n    os.wait()"
    program = textwrap.dedent(PROGRAM.format(before="os, warnings; warnings.simplefilter('ignore')", then=then))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "text_completion scripted\n", done.stdout
