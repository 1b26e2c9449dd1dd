"""Checks of what is not decoding: what the runtime says of itself, refusals, sessions that come and go, closing."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ...engine.runtime import Ask, Forward, Runtime, Settle
from ...engine.values import RuntimeInfo, Sampling
from .bench import Bench
from .outcome import NotApplicable, expect
from .registry import Checks
from .session import Driven, must_raise, must_refuse

__all__ = ["INTERFACE"]

INTERFACE = Checks()
#: A number that no session of the kit has.
_UNKNOWN = 1 << 40


@INTERFACE("protocol: Runtime")
def it_has_the_calls_of_a_runtime(bench: Bench) -> None:
    """It has every call of the protocol, and its object is hashable and weakly referenceable, by which decoders share it."""
    runtime: Any = bench.runtime
    expect(isinstance(runtime, Runtime), f"{type(runtime).__name__} lacks a call of spanfold.engine.Runtime")
    expect(type(runtime).__hash__ is not None and weakref.ref(runtime)() is runtime, "a runtime must be hashable and weakly referenceable")


@INTERFACE("protocol: info")
def what_it_says_of_itself_is_consistent_and_constant(bench: Bench) -> None:
    """What info says stays the same, stop ids lie in the vocabulary, and the head's context is not longer than the target's."""
    info: Any = bench.runtime.info
    expect(isinstance(info, RuntimeInfo), f"info must be a RuntimeInfo, not {info!r}")
    own = bench.info
    outside = [token for token in own.stop_tokens if token >= own.vocabulary]
    expect(not outside, f"stop_tokens {outside} lie outside the vocabulary of {own.vocabulary}")
    if own.draft is not None:
        expect(own.draft.origin == "mtp", f"the model's own head has the origin 'mtp', not {own.draft.origin!r}")
        expect(
            own.draft.context_length <= own.context_length,
            f"the head drafts up to {own.draft.context_length} tokens, the context holds {own.context_length}",
        )
    session = bench.session()
    session.prefill(bench.prompts(1)[0])
    expect(bench.runtime.info == own, "info changed after a prefill")


@INTERFACE("protocol: vocabulary")
def every_id_of_the_vocabulary_can_be_fed(bench: Bench) -> None:
    """The lowest and the highest id are accepted as rows, at the beginning and later."""
    last = bench.info.vocabulary - 1
    bench.session().prefill([0, last])
    bench.session().prefill([last]).prefill([0, last])


@INTERFACE("protocol: open_session, view")
def a_session_opens_empty_and_once(bench: Bench) -> None:
    """A new session has no rows, an unknown one no view; opening a number twice raises and harms nothing."""
    expect(bench.runtime.view(_UNKNOWN) is None, "view of a session that was never opened must be None")
    session = bench.session()
    session.prefill(bench.prompts(1)[0])
    must_raise(lambda: bench.runtime.open_session(session.number, Sampling(), False), "opening an open session again")
    session.check()
    session.step()


@INTERFACE("protocol: no call creates a session by accident")
def calls_for_an_unknown_session_are_refused(bench: Bench) -> None:
    """forward, settle, draft and configure for a session that is not open raise NotStarted and open none; a drop does nothing."""
    runtime, other = bench.runtime, bench.session()
    other.prefill(bench.prompts(1)[0])
    gone = Driven(runtime)
    gone.drop()
    for number in (_UNKNOWN, gone.number):
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda number=number: runtime.forward([Forward(session=number, base=0, tokens=(0,), want="last", canonical=True)]),
            "settle": lambda number=number: runtime.settle([Settle(session=number, base=0, rows=1, position=0)]),
            "draft": lambda number=number: runtime.draft([Ask(session=number, current=0, limit=1)]),
            "configure": lambda number=number: runtime.configure(number, Sampling()),
        }
        for name, call in calls.items():
            must_refuse(call, f"{name} for a session that is not open")
            expect(runtime.view(number) is None, f"{name} for a session that is not open made one")
        runtime.drop_session(number)
    other.check()
    other.step()


@INTERFACE("protocol: forward, NotStarted; cases 6.11, 10.5")
def a_refused_forward_touches_nothing(bench: Bench) -> None:
    """Another base than the position, no rows, an id outside the vocabulary, more rows than fit: NotStarted, and nothing has moved."""
    session, info = bench.session(), bench.info
    session.prefill(bench.prompts(1, least=3)[0])
    here = len(session.rows)

    def forward(base: int, tokens: tuple[int, ...], canonical: bool) -> Callable[[], Any]:
        call = Forward(session=session.number, base=base, tokens=tokens, want="last", canonical=canonical)
        return lambda: bench.runtime.forward([call])

    wrong: list[tuple[str, int, tuple[int, ...]]] = [
        ("a base below the position", here - 1, (0,)),
        ("a base beyond the position", here + 1, (0,)),
        ("base 0 of a session with rows", 0, (0,)),
        ("no rows", here, ()),
        ("an id outside the vocabulary", here, (info.vocabulary,)),
        ("an id outside the vocabulary behind others", here, (0, 0, info.vocabulary + 7)),
        ("a negative id", here, (0, -1)),
    ]
    if info.context_length <= bench.options.context_reach:
        wrong.append(("more rows than fit into the context", here, (0,) * (info.context_length - here + 1)))
    for what, base, tokens in wrong:
        for canonical in (True, False) if info.rollback != "none" else (True,):
            must_refuse(forward(base, tokens, canonical), f"a forward with {what}")
            session.check()
    session.step()
    session.step()


@INTERFACE("protocol: drop_session, idempotent; cases 5.5, 5.6")
def a_dropped_session_is_gone_and_its_number_can_be_opened_anew(bench: Bench) -> None:
    """After a drop view knows nothing, a second drop does nothing, and the same number opened again is an empty session."""
    prompt = bench.prompts(1, least=3)[0]
    drafting = bench.info.draft is not None
    bystander = bench.session()
    bystander.prefill(prompt)
    session = bench.session(drafting=drafting)
    for _ in range(3):
        session.prefill(prompt)
        session.step()
        if drafting:
            bench.ask(session, 1)
        if bench.info.rollback != "none":
            session.span(bench.drafted(session, 1, 1))  # and is dropped in the middle of it
        session.drop()
        session.drop()
        session.begin()
    bystander.step()


@INTERFACE("live resources back to the start; cases 5.5, 5.6")
def dropped_sessions_leave_nothing_behind(bench: Bench) -> None:
    """live_sessions and nbytes (where the runtime offers them) go back to the start, and what Python holds does not grow by session."""
    runtime: Any = bench.runtime
    prompt = bench.prompts(1, least=4)[0]
    counted = getattr(runtime, "live_sessions", None)
    spans, drafting = bench.info.rollback != "none", bench.info.draft is not None

    def churn(times: int) -> None:
        for turn in range(times):
            session = bench.session(drafting=drafting, judged=False)
            session.prefill(prompt)
            if drafting:
                session.draft(1)
            if spans:
                session.span([0, 0])
                if turn % 2:
                    session.settle(1)
            if counted is not None:
                expect(runtime.live_sessions == counted + 1, f"live_sessions is {runtime.live_sessions}, {counted + 1} are open")
            if hasattr(runtime, "nbytes"):
                expect(runtime.nbytes(session.number) > 0, "nbytes of a session with rows is 0")
            session.drop()
            if counted is not None:
                expect(runtime.live_sessions == counted, f"live_sessions is {runtime.live_sessions} after a drop, {counted} are open")
            if hasattr(runtime, "nbytes"):
                expect(runtime.nbytes(session.number) == 0, "nbytes of a dropped session is not 0")

    churn(8)
    # What grows by chance, or because a cache warms up, does not grow every time; what is kept for each session does.
    grown = min(_until(_TURNS, lambda: _blocks_grown(lambda: churn(_TURNS))))
    expect(
        grown < _TURNS,
        f"Python holds {grown} objects more after every {_TURNS} sessions that were all dropped: something is kept for each "
        "(a log of calls counts: make the runtime without it)",
    )


#: Sessions per measurement, and measurements at most.
_TURNS = 48
_TRIES = 6


def _until(bound: int, measure: Callable[[], int]) -> list[int]:
    found: list[int] = []
    while len(found) < _TRIES and (not found or found[-1] >= bound):
        found.append(measure())
    return found


def _blocks_grown(work: Callable[[], None]) -> int:
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    return sys.getallocatedblocks() - before


@INTERFACE("protocol: one element per call unless declared; case 1.11")
def more_elements_than_declared_are_refused(bench: Bench) -> None:
    """A call with more than max_batch elements raises NotStarted and touches no session."""
    most, prompt = bench.info.max_batch, bench.prompts(1, least=2)[0]
    if most > 64:
        raise NotApplicable(f"max_batch is {most}: a call with more elements is not tried")
    sessions = [bench.session(drafting=bench.info.draft is not None) for _ in range(most + 1)]
    for session in sessions:
        session.prefill(prompt)
    base = len(prompt)
    runtime = bench.runtime
    must_refuse(
        lambda: runtime.forward([Forward(session=one.number, base=base, tokens=(0,), want="last", canonical=True) for one in sessions]),
        f"a forward of {most + 1} elements with max_batch {most}",
    )
    must_refuse(
        lambda: runtime.settle([Settle(session=one.number, base=base, rows=0, position=base) for one in sessions]),
        f"a settle of {most + 1} elements with max_batch {most}",
    )
    if bench.info.draft is not None:
        must_refuse(
            lambda: runtime.draft([Ask(session=one.number, current=0, limit=1) for one in sessions]),
            f"a draft of {most + 1} elements with max_batch {most}",
        )
    for session in sessions:
        session.check()
        session.step()


@INTERFACE("protocol: close")
def closing_ends_everything_and_closing_again_does_nothing(bench: Bench) -> None:
    """After close every call that would work raises; a second close does nothing, and neither does it harm another runtime."""
    other = bench.session()
    other.prefill(bench.prompts(1)[0])
    runtime = bench.make()
    expect(runtime is not bench.runtime, "make must return a new runtime each time (it may share the loaded weights)")
    session = Driven(runtime)
    session.prefill([0])
    runtime.close()
    must_raise(lambda: runtime.open_session(_UNKNOWN, Sampling(), False), "opening a session on a closed runtime")
    call = Forward(session=session.number, base=1, tokens=(0,), want="last", canonical=True)
    must_raise(lambda: runtime.forward([call]), "a forward on a closed runtime")
    runtime.close()
    other.step()
