"""Cases 4.x that concern the engine, and 5.x: cancels, errors, resources."""

import threading

import pytest
from harness import Bench

from spanfold.backends.scripted import DeviceError, Fault, adversarial, hash_target, noisy, oracle
from spanfold.engine import (
    Committed,
    DecodeFailed,
    DraftOffered,
    Extras,
    Policy,
    Processor,
    RecorderFailed,
    SerialDecoded,
    SpanRefused,
    SpanVerified,
    fold,
    redrive,
)
from spanfold.engine.rules import Serial, plan
from spanfold.engine.sharing import share_of
from spanfold.engine.state import evolve_state

PROMPT = (1, 2, 3)


def serial_tokens(count):
    return Bench(policy=0).generate(PROMPT, max_tokens=count).tokens


def ready_state():
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=20)
    session.step()
    return session.state


def with_processors(state, *processors):
    import attrs

    sampling = attrs.evolve(state.turn.sampling, processors=processors)
    return evolve_state(state, turn=attrs.evolve(state.turn, sampling=sampling))


@pytest.mark.parametrize(
    "processor",
    [Processor(name="repetition_penalty", pure=False), Processor(name="of my own", params=(("x", 1.5),), pure=True)],
    ids=["declared impure", "unknown"],
)
def test_case_4_5_a_processor_that_is_not_known_to_be_pure_makes_every_round_serial_with_the_reason(processor):
    state = ready_state()
    assert type(plan(state)).__name__ == "DraftUpTo"
    assert plan(with_processors(state, processor)) == Serial(f"processor {processor.name}")


def test_case_4_8_logprobs_and_margins_of_a_span_are_the_serial_ones_one_per_committed_token():
    def figures(policy):
        bench = Bench(hash_target(3, 17), policy=policy, drafts=noisy(5, 0.7), decoder={"extras": Extras(logprobs=True, margins=True)})
        result = bench.generate(PROMPT, max_tokens=25)
        logprobs, margins, forward = [], [], None
        for event in bench.events():
            if isinstance(event, Committed):
                if isinstance(forward, SpanVerified):
                    logprobs += forward.logprobs[: len(event.tokens)]
                    margins += forward.margins[: len(event.tokens)]
                else:
                    logprobs.append(forward.logprob)
                    margins.append(forward.margin)
            elif hasattr(event, "prediction") or isinstance(event, SpanVerified):
                forward = event
        assert len(logprobs) == len(margins) == len(result.tokens)
        return logprobs, margins

    assert figures(0) == figures(3)
    assert 0.0 not in figures(3)[0]


@pytest.mark.parametrize("drafts", [adversarial(), oracle(), noisy(1, 0.5)])
def test_case_4_11_a_draft_never_decides_a_token(drafts):
    assert Bench(drafts=drafts).generate(PROMPT, max_tokens=40).tokens == serial_tokens(40)


@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
@pytest.mark.parametrize("done", [0, 1, 2, None])
def test_case_5_3_an_error_during_verify_leaves_the_session_at_base_and_a_retry_is_right(rollback, done):
    bench = Bench(rollback=rollback, faults=[Fault(call="forward", at=2, started=True, done=done, exception=ZeroDivisionError)])
    session = bench.decoder.open(PROMPT, max_tokens=12)
    session.step()
    session.step()
    base = session.state.position
    with pytest.raises(DecodeFailed) as caught:
        session.step()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert session.state.position == bench.runtime.inspect(session.runtime_session).position == base
    bench.audit(session)
    list(session)
    assert session.state.canonical[3:] == serial_tokens(12)


def test_case_5_3_a_serial_step_that_failed_where_nothing_can_be_restored_drops_the_session():
    bench = Bench(rollback="checkpoint", policy=0, faults=[Fault(call="forward", at=2, started=True, done=None)])
    session = bench.decoder.open(PROMPT, max_tokens=12)
    with pytest.raises(DecodeFailed, match="dropped"):
        list(session)
    assert session.state.phase == "dropped" and session.state.canonical[3:] == serial_tokens(2)
    assert bench.all_released()
    bench.audit_logs()


def test_case_5_4_a_cancel_before_the_first_emission_leaves_as_many_rows_as_are_recorded():
    cancel = threading.Event()
    bench = Bench(policy=3)
    session = bench.decoder.open(PROMPT, cancel=cancel)
    cancel.set()
    assert session.step() == ()
    assert session.finish.reason == "cancelled"
    assert bench.runtime.inspect(session.runtime_session).position == session.state.position == 0

    # A prefill that returned always commits its token: its row has no checkpoint.
    polls = []
    bench = Bench()
    session = bench.decoder.open(PROMPT, cancel=lambda: len(polls) >= 1 or polls.append(1))
    assert len(session.step()) == 1
    assert session.step() == () and session.finish.reason == "cancelled"
    assert bench.runtime.inspect(session.runtime_session).position == session.state.position == 3
    bench.audit(session)


def interrupted_by(reason):
    """A turn that ends for this reason, on a bench of its own accord."""
    options = {"max_tokens": 6}
    if reason == "stop_token":
        options["stop_tokens"] = [serial_tokens(6)[3]]
    if reason == "stop_when":
        options["stop_when"] = lambda token, index: index == 2
    if reason == "cancelled":
        polls = iter(range(100))
        options["cancel"] = lambda: next(polls) > 5
    return options


@pytest.mark.parametrize("reason", ["length", "stop_token", "stop_when", "cancelled", "closed", "failed"])
def test_case_5_5_short_generations_give_every_row_back(reason):
    bench = Bench(faults=[Fault(call="forward", at=1, times=10**6, started=True)] if reason == "failed" else ())
    for _ in range(200):
        options = interrupted_by(reason)
        if reason == "failed":
            with pytest.raises(DecodeFailed):
                for _ in bench.decoder.stream(PROMPT, **options):
                    pass
        elif reason == "closed":
            stream = bench.decoder.stream(PROMPT, **options)
            next(stream)
            stream.close()
            assert stream.result.finish_reason == "closed"
        else:
            assert bench.decoder.generate(PROMPT, **options).finish_reason == reason
        assert bench.all_released() and share_of(bench.runtime).live == 0
    bench.audit_logs()


def test_case_5_6_the_heads_rows_go_with_each_session():
    bench = Bench()
    for _ in range(3):
        session = bench.decoder.open(PROMPT, max_tokens=10)
        list(session)
        assert len(bench.runtime.head_rows(session.runtime_session)) > 0
        session.close()
        assert bench.all_released()


@pytest.mark.parametrize("at", [0, 3])
def test_case_5_7_an_error_of_the_backend_reaches_the_consumer_and_the_next_request_works(at):
    bench = Bench(faults=[Fault(call="forward", at=at, started=True)])
    got = []
    with pytest.raises(DecodeFailed) as caught:
        for token in bench.decoder.stream(PROMPT, max_tokens=20):
            got.append(token)
    assert isinstance(caught.value.__cause__, DeviceError)
    assert tuple(got) == caught.value.partial.tokens == serial_tokens(20)[: len(got)]
    assert caught.value.partial.finish_reason == "failed"
    assert bench.decoder.generate(PROMPT, max_tokens=20).tokens == serial_tokens(20)
    assert bench.all_released()


def test_case_5_8_an_abandoned_stream_computes_nothing_more():
    bench = Bench()
    stream = bench.decoder.stream(PROMPT, max_tokens=100)
    for _, _token in zip(range(4), stream, strict=False):
        pass
    forwards = bench.runtime.count("forward")
    stream.close()
    stream.close()
    assert list(stream) == []
    assert bench.runtime.count("forward") == forwards
    assert stream.result.finish_reason == "closed" and bench.all_released()
    bench.audit_logs()


def test_case_5_8_a_stream_that_is_forgotten_is_released():
    bench = Bench()
    stream = bench.decoder.stream(PROMPT, max_tokens=100)
    next(stream)
    del stream
    bench.decoder.generate(PROMPT, max_tokens=1)
    assert bench.all_released() and share_of(bench.runtime).live == 0


# The same from callbacks, recorders and interrupts: the kind of fault is "somebody raises in the middle".


@pytest.mark.parametrize("index", range(8))
def test_an_exception_of_stop_when_commits_through_its_token_and_comes_out_unchanged(index):
    class Mine(Exception):
        pass

    mine = Mine("stop here")

    def stop_when(token, at):
        if at == index and raising:
            raise mine
        return False

    raising = True
    bench = Bench(drafts=oracle())
    session = bench.decoder.open(PROMPT, max_tokens=12, stop_when=stop_when)
    with pytest.raises(Mine) as caught:
        list(session)
    assert caught.value is mine
    assert session.state.canonical[3:] == serial_tokens(12)[: index + 1]
    assert bench.of(Committed)[-1].cut_by == "stop_when_error"
    bench.audit(session)
    raising = False
    list(session)
    assert session.state.canonical[3:] == serial_tokens(12)


@pytest.mark.parametrize("index", range(6))
def test_an_exception_of_on_token_comes_after_the_repair_and_takes_no_token_back(index):
    seen = []

    def on_token(token):
        seen.append(token)
        if len(seen) == index + 1:
            raise LookupError("consumer")

    bench = Bench(drafts=oracle())
    session = bench.decoder.open(PROMPT, max_tokens=9, on_token=on_token)
    with pytest.raises(LookupError, match="consumer"):
        list(session)
    bench.audit(session)
    list(session)
    assert session.state.canonical[3:] == serial_tokens(9)


@pytest.mark.parametrize("call", ["forward", "settle", "draft"])
@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupt_inside_a_call_propagates_and_leaves_a_canonical_or_dropped_session(call, at):
    bench = Bench(faults=[Fault(call=call, at=at, started=True, done=None, exception=KeyboardInterrupt)])
    session = bench.decoder.open(PROMPT, max_tokens=12)
    with pytest.raises(KeyboardInterrupt):
        list(session)
    bench.audit(session)
    if session.state.phase != "dropped":
        list(session)
        assert session.state.canonical[3:] == serial_tokens(12)
    session.close()
    assert bench.all_released()
    bench.audit_logs()


def test_a_recorder_that_cannot_write_ends_the_turn_failed_with_the_partial_result():
    class Recorder:
        def __init__(self):
            self.kept = []

        def write(self, record):
            if len(self.kept) == 9:
                raise OSError("disk full")
            self.kept.append(record)

        def flush(self):
            pass

    recorder = Recorder()
    bench = Bench(decoder={"recorder": recorder})
    with pytest.raises(RecorderFailed, match="disk full") as caught:
        bench.decoder.generate(PROMPT, max_tokens=30)
    assert caught.value.partial.finish_reason == "failed"
    assert isinstance(caught.value.__cause__, OSError)
    assert fold(recorder.kept) is not None and bench.all_released()
    bench.audit_logs()


def test_the_first_error_is_the_one_that_is_told_even_if_the_repair_fails_too():
    bench = Bench(faults=[Fault(call="forward", at=1, started=True, done=1), Fault(call="settle", started=True, exception=OSError)])
    session = bench.decoder.open(PROMPT, max_tokens=12)
    session.step()
    with pytest.raises(DecodeFailed, match="dropped") as caught:
        session.step()
    assert isinstance(caught.value.__cause__, DeviceError)
    assert session.state.canonical[3:] == serial_tokens(1)
    assert bench.all_released()


def test_a_span_that_was_not_started_costs_a_serial_step_and_its_draft_is_judged_there():
    bench = Bench(drafts=oracle(), faults=[Fault(call="forward", at=1)])
    session = bench.decoder.open(PROMPT, max_tokens=12)
    session.step()
    with pytest.raises(DecodeFailed):
        session.step()
    assert session.stats.pending == 3
    session.step()
    assert bench.of(SerialDecoded)[-1].verdict == "accepted"
    assert (session.stats.accepted_serial, session.stats.pending) == (1, 2)
    assert [event.reason for event in bench.of(SpanRefused)] == ["not_started"]
    list(session)
    assert session.state.canonical[3:] == serial_tokens(12)
    assert len(bench.of(DraftOffered)) < len(bench.of(SpanVerified)) + 1  # the rest of the restored draft was verified
    bench.audit(session)


@pytest.mark.parametrize("policy", [0, 3])
@pytest.mark.parametrize("chunk", [1, 512])
def test_an_interrupt_at_any_moment_between_two_calls_leaves_a_canonical_or_dropped_session(policy, chunk):
    """A signal can come anywhere; the clock is read between any two things that the engine does, so it stands for one."""
    for moment in range(200):
        ticks = iter(range(10**6))

        def clock(ticks=ticks, moment=moment):
            tick = next(ticks)
            if tick == moment:
                raise KeyboardInterrupt
            return tick

        bench = Bench(policy=Policy(width=policy, prefill_chunk=chunk), decoder={"clock": clock})
        try:
            session = bench.decoder.open(PROMPT, max_tokens=6)
        except KeyboardInterrupt:
            assert bench.all_released(), f"moment {moment}"
            continue
        interrupted = False
        try:
            list(session)
        except KeyboardInterrupt:
            interrupted = True
            bench.audit(session)
        if session.state.phase != "dropped":
            list(session)
            assert session.state.canonical[3:] == serial_tokens(6)
        else:
            assert interrupted and session.state.canonical[3:] == serial_tokens(6)[: len(session.state.canonical) - 3]
        try:
            session.close()
        except KeyboardInterrupt:
            interrupted = True
            session.close()
        assert bench.all_released(), f"moment {moment}"
        bench.audit_logs()
        for log in bench.logs.values():
            assert redrive(log) == log
        if not interrupted:
            break
    assert moment > 20 and not interrupted
