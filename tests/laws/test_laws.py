"""The laws as properties over worlds that Hypothesis draws. Every log is audited by laws.py, which shares nothing with the engine."""

import laws
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import worlds

from spanfold.backends.scripted import DeviceError, Fault
from spanfold.engine import Committed, DecodeFailed, DraftOffered, Policy, RecorderFailed, SessionFinished, fold, redrive
from spanfold.engine.runtime import Ask, Forward
from spanfold.engine.sharing import share_of
from spanfold.engine.values import Sampling


def finish(log):
    (event,) = [record.event for record in log if isinstance(record.event, SessionFinished)]
    return event.reason, event.limit


@given(worlds())
@settings(max_examples=400)
def test_law_6_tokens_and_finish_reason_are_the_serial_ones_whatever_is_drafted(world):
    bench = world.bench()
    result = bench.generate(world.prompt, **world.turn)
    assert (list(result.tokens), result.finish_reason, result.limit) == world.serial()
    assert list(result.tokens) == laws.committed_tokens(bench.logs[0])
    assert bench.all_released()


@given(worlds(), st.data())
@settings(max_examples=200)
def test_law_6_under_a_cancel_at_any_poll_the_tokens_are_a_prefix_and_the_finish_is_clean(world, data):
    left = data.draw(st.integers(0, 25))

    def cancel():
        nonlocal left
        left -= 1
        return left < 0

    bench = world.bench()
    result = bench.generate(world.prompt, cancel=cancel, **world.turn)
    tokens, reason, limit = world.serial()
    assert list(result.tokens) == tokens[: len(result.tokens)]
    if result.finish_reason == "cancelled":
        assert result.limit is None
    else:
        assert (list(result.tokens), result.finish_reason, result.limit) == (tokens, reason, limit)
    assert bench.all_released()


@given(worlds(), st.data())
@settings(max_examples=300)
def test_law_8_after_any_failure_the_session_is_canonical_or_dropped_and_nothing_is_lost(world, data):
    call = data.draw(st.sampled_from(["open", "forward", "forward", "forward", "settle", "settle", "draft"]))
    wrong = {
        "forward": ["short", "long", "vocabulary", "masked", "position", "lost_row"],
        "settle": ["position", "trim_noop", "trim_off_by_one"],
    }.get(call, [])
    fault = Fault(
        call=call,
        at=data.draw(st.integers(0, 6)),
        times=data.draw(st.integers(1, 2)),
        started=data.draw(st.booleans()),
        done=data.draw(st.sampled_from([0, 1, 2, None])),
        wrong=data.draw(st.sampled_from([None, None, *wrong])),
    )
    bench = world.bench(faults=[fault])
    tokens, reason, limit = world.serial()
    try:
        session = bench.decoder.open(world.prompt, **world.turn)
    except DecodeFailed:
        assert call == "open"
    else:
        failures = 0
        while not session.finished:
            try:
                session.step()
            except DecodeFailed as error:
                failures += 1
                assert failures <= 2
                assert isinstance(error.__cause__, Exception)
            bench.audit(session)
        committed = list(session.state.canonical[len(world.prompt) :])
        if session.state.phase == "dropped":
            assert committed == tokens[: len(committed)]
        else:
            assert (committed, session.finish.reason, session.finish.limit) == (tokens, reason, limit)
        session.close()
    assert bench.all_released() and share_of(bench.runtime).live == 0
    bench.audit_logs()
    assert all(redrive(log) == log for log in bench.logs.values())


@given(worlds(), st.integers(0, 8))
def test_law_8_generate_raises_with_the_partial_result_and_releases(world, at):
    bench = world.bench(faults=[Fault(call="forward", at=at, times=100, started=True)])
    tokens, reason, _ = world.serial()
    try:
        result = bench.generate(world.prompt, **world.turn)
    except DecodeFailed as error:
        assert isinstance(error.__cause__, DeviceError)
        assert error.partial.finish_reason in ("failed", None)
        assert list(error.partial.tokens) == tokens[: len(error.partial.tokens)]
    else:
        assert (list(result.tokens), result.finish_reason) == (tokens, reason)
    assert bench.all_released()
    bench.audit_logs()


@given(worlds())
@settings(max_examples=150)
def test_law_7_the_state_is_the_fold_and_the_same_inputs_are_decided_the_same(world):
    bench = world.bench()
    result = bench.generate(world.prompt, **world.turn)
    log = bench.logs[0]
    assert fold(log) == result.session
    assert redrive(log) == log
    for cut in range(1, len(log)):
        assert redrive(log[:cut]) == log[:cut]


@given(worlds())
@settings(max_examples=40)
def test_law_7_a_session_resumed_from_any_prefix_gives_the_same_tokens_and_finish_reason(world):
    bench = world.bench()
    bench.generate(world.prompt, **world.turn)
    log = bench.logs[0]
    tokens, reason, limit = world.serial()
    for cut in range(1, len(log)):
        if any(isinstance(record.event, SessionFinished) for record in log[:cut]):
            break
        again = world.bench()
        again.logs[0] = list(log[:cut])
        session = again.decoder.resume(log[:cut])
        while not session.finished:
            session.step()
            again.audit(session)
        assert list(session.state.canonical[len(world.prompt) :]) == tokens
        assert (session.finish.reason, session.finish.limit) == (reason, limit)
        session.close()
        again.audit_logs()
        assert redrive(again.logs[0]) == again.logs[0]
        assert again.all_released()


@given(worlds(), st.data())
def test_law_9_observers_that_raise_change_no_event_and_no_token(world, data):
    calls = []

    def raising(record):
        calls.append(record)
        raise ZeroDivisionError

    plain, noisy = world.bench(), world.bench(decoder={"observers": (raising,)})
    assert plain.generate(world.prompt, **world.turn) == noisy.generate(world.prompt, **world.turn)
    assert plain.logs == noisy.logs
    assert calls == plain.logs[0]
    assert noisy.decoder.observers.errors == [0, len(calls)]


class FailingRecorder:
    """Keeps ``capacity`` records, then fails at every write (or at every flush)."""

    def __init__(self, capacity, at_flush):
        self.kept, self.capacity, self.at_flush = [], capacity, at_flush

    def write(self, record):
        if len(self.kept) >= self.capacity and not self.at_flush:
            raise OSError("disk full")
        self.kept.append(record)

    def flush(self):
        if len(self.kept) >= self.capacity:
            raise OSError("disk full")

    def close(self):
        pass


@given(worlds(), st.integers(0, 30), st.booleans())
@settings(max_examples=200)
def test_law_9_a_failing_recorder_ends_the_session_at_a_boundary_and_nothing_unrecorded_is_delivered(world, capacity, at_flush):
    recorder = FailingRecorder(capacity, at_flush)
    delivered = []
    bench = world.bench(decoder={"recorder": recorder})
    tokens, reason, _ = world.serial()
    try:
        result = bench.generate(world.prompt, on_token=delivered.append, **world.turn)
    except RecorderFailed as error:
        assert isinstance(error.__cause__, OSError)
        if error.partial is not None:
            assert error.partial.finish_reason is not None
    else:
        assert (list(result.tokens), result.finish_reason) == (tokens, reason)
    assert delivered == tokens[: len(delivered)]
    recorded = laws.committed_tokens(recorder.kept)
    assert delivered == recorded[: len(delivered)], "a token was delivered whose record was not kept"
    assert bench.all_released()
    bench.audit_logs()


def fresh_draft(bench, canonical, limit):
    """What a head that saw nothing but ``canonical`` drafts."""
    runtime = bench.runtime
    runtime.open_session(10**6, Sampling(), True)
    try:
        runtime.forward([Forward(session=10**6, base=0, tokens=tuple(canonical[:-1]), want="none", canonical=True)])
        return tuple(runtime.draft([Ask(session=10**6, current=canonical[-1], limit=limit)])[0].tokens)
    finally:
        runtime.drop_session(10**6)


def offers(log):
    """(canonical prefix, limit, usable tokens) of every offer of the head."""
    canonical, found = [], []
    for record in log:
        event = record.event
        match type(event).__name__:
            case "SessionOpened":
                canonical = list(event.prompt)
            case "Extended" | "Committed":
                canonical += event.tokens
            case "Rewound":
                del canonical[event.length :]
            case "DraftOffered" if event.origin == "mtp":
                found.append((tuple(canonical), event.limit, event.tokens))
    return found


def law_11_breaches(bench, log, vocabulary):
    breaches = []
    for canonical, limit, tokens in offers(log):
        wanted = fresh_draft(bench, canonical, limit)
        usable = wanted[: next((at for at, token in enumerate(wanted) if not 0 <= token < vocabulary), len(wanted))]
        if tokens != usable:
            breaches.append((canonical, limit, tokens, usable))
        for shorter in range(limit):
            if fresh_draft(bench, canonical, shorter)[:shorter] != wanted[:shorter]:
                breaches.append((canonical, shorter, wanted))
    return breaches


@given(worlds(), st.data())
@settings(max_examples=150)
def test_law_11_a_draft_is_a_function_of_the_canonical_prefix_alone(world, data):
    world.turn["min_tokens"] = 0  # so that the fresh head samples as the session's head does
    bench = world.bench()
    session = bench.decoder.open(world.prompt, **world.turn)
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(1, 6))):
            session.step()
            bench.audit(session)
        length = len(session.state.canonical)
        if length > 1 and data.draw(st.booleans()):
            session.rewind(data.draw(st.integers(1, length - 1)))
            bench.audit(session)
        more = data.draw(st.lists(st.integers(0, world.vocabulary - 1), max_size=2))
        if len(session.state.canonical) + len(more) <= world.context and data.draw(st.booleans()):
            session.extend(more, **world.turn)
            bench.audit(session)
    assert law_11_breaches(bench, bench.logs[session.id], world.vocabulary) == []
    bench.audit_logs()


@pytest.mark.parametrize("wrong", ["stale", "unfed"])
def test_law_11_catches_a_head_with_stale_or_unfed_rows(wrong):
    from harness import Bench

    bench = Bench(faults=[Fault(call="draft", at=1, wrong=wrong)])
    session = bench.decoder.open((1, 2, 3), max_tokens=20)
    for _ in session:
        pass
    assert law_11_breaches(bench, bench.logs[session.id], 17)


@given(worlds(), st.integers(0, 5))
def test_the_width_the_source_and_the_rollback_change_no_token(world, width):
    results = set()
    for rollback in ("crop", "checkpoint", "none"):
        for policy in (0, min(width, world.runtime["depth"])):
            bench = world.bench(rollback=rollback, policy=Policy(width=policy))
            result = bench.generate(world.prompt, **world.turn)
            results.add((result.tokens, result.finish_reason, result.limit))
    assert len(results) == 1


def test_offers_and_commits_were_seen():
    """The properties above are not empty: a plain run has spans that are accepted, cut and trimmed."""
    from harness import Bench

    bench = Bench()
    bench.generate(max_tokens=40)
    names = {type(event).__name__ for event in bench.events()}
    assert {"DraftOffered", "DraftTaken", "SpanVerified", "Committed", "Trimmed", "CheckpointRetired", "DraftDiscarded"} <= names
    assert any(event.accepted for event in bench.of(Committed)) and bench.of(DraftOffered)
