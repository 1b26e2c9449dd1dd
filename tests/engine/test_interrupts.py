"""Ctrl-C can come between any two steps. Here it comes at the beginning of every function of the engine, once per run.

After each: the session is canonical or dropped, nothing is held by the runtime once the decoder is closed, what was recorded
folds and decides the same again, and the next decode on the runtime is right.
"""

import gc
import sys
from pathlib import Path

import pytest

import spanfold.engine
from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import Decoder, RecorderFailed, fold, redrive, state_violations, view_violations
from spanfold.engine.sharing import share_of

#: An interrupt that comes in a finalizer cannot be raised; what it kept from being released is released later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ENGINE = str(Path(spanfold.engine.__file__).parent)
PROMPT = (1, 2, 3)
TARGET = hash_target(7, 50)


class Interrupt:
    """Raises KeyboardInterrupt where the n-th function of the engine begins, which is where the interpreter looks at signals."""

    def __init__(self, at=None):
        self.at, self.calls, self.where = at, 0, ""

    def _trace(self, frame, event, _):
        # Only the engine's own functions; what the backend does in its calls is another test's (a call that raises).
        if event == "call" and frame.f_code.co_filename.startswith(ENGINE):
            self.calls += 1
            if self.calls == self.at:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_code.co_qualname}"
                raise KeyboardInterrupt
        return None

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)


class Kept:
    """A recorder that keeps records in a list."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def flush(self):
        pass


def _runtime():
    return ScriptedRuntime(TARGET, drafts=noisy(1, 0.6), vocabulary=50)


def _generate(decoder):
    return decoder.generate(PROMPT, max_tokens=8).tokens


def _steps(decoder):
    with decoder.open(PROMPT, max_tokens=6) as session:
        session.step()
        session.step()
        session.rewind(1)
        session.extend((4, 5), max_tokens=3)
        while not session.finished:
            session.step()
        return session.result.tokens


def _calls(work):
    runtime = _runtime()
    with Interrupt() as counting, Decoder(runtime, policy=3, recorder=Kept()) as decoder:
        expected = work(decoder)
    return counting.calls, expected


@pytest.mark.parametrize("work", [_generate, _steps])
def test_an_interrupt_at_any_call_leaves_nothing_behind(work):
    calls, expected = _calls(work)
    assert calls > 300, "the run is traced at all"
    interrupted = 0
    for at in range(1, calls):
        runtime, recorder, interrupt = _runtime(), Kept(), Interrupt(at)
        decoder = Decoder(runtime, policy=3, recorder=recorder)
        try:
            with interrupt:
                assert work(decoder) == expected
        except (KeyboardInterrupt, RecorderFailed):
            interrupted += 1
        try:
            decoder.close()
        except RecorderFailed:
            pass  # the interrupt hit the recorder, which is told once
        if share_of(runtime).live:
            gc.collect()  # what the interrupt kept from being closed is found then
        assert runtime.live_sessions == 0, interrupt.where
        assert share_of(runtime).live == 0, interrupt.where
        for session in {record.session for record in recorder.records}:
            log = [record for record in recorder.records if record.session == session]
            fold(log)
            assert redrive(log) == log, interrupt.where
        if at % 4 == 0:
            with Decoder(runtime, policy=3) as fresh:
                assert work(fresh) == expected, at
    assert interrupted > calls / 2


def test_a_session_goes_on_after_an_interrupt_at_any_call_of_a_step():
    runtime = _runtime()
    with Decoder(runtime, policy=3) as decoder:
        expected = decoder.generate(PROMPT, max_tokens=8).tokens
    with Decoder(_runtime(), policy=3) as decoder, decoder.open(PROMPT, max_tokens=8) as session:
        session.step()
        with Interrupt() as counting:
            session.step()
    went_on = 0
    for at in range(1, counting.calls):
        runtime = _runtime()
        with Decoder(runtime, policy=3) as decoder, decoder.open(PROMPT, max_tokens=8) as session:
            session.step()
            try:
                with Interrupt(at):
                    session.step()
            except KeyboardInterrupt:
                pass
            assert state_violations(session.state) == ()
            assert view_violations(session.state, runtime.inspect(session.runtime_session)) == (), at
            committed = session.state.canonical[len(PROMPT) :]
            assert committed == expected[: len(committed)], at
            if session.state.phase != "dropped":
                went_on += 1
                while not session.finished:
                    session.step()
                assert session.result.tokens == expected, at
    assert went_on > 20, "where nothing was under way, the session is canonical"
