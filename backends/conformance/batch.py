"""Checks of calls with several elements, for runtimes that declare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...engine.positions import matched_length
from ...engine.runtime import Ask, Draft, Failure, Forward, Rows, Settle, Settled
from .bench import Bench
from .outcome import NotApplicable, expect
from .registry import Checks
from .session import Driven, only

__all__ = ["BATCH"]

BATCH = Checks()
#: A number that no session of the kit has.
_UNKNOWN = 1 << 40


@BATCH("several elements per call, where declared; case 1.11")
def elements_of_one_call_are_each_as_alone(bench: Bench) -> None:
    """Up to max_batch sessions in one call, of different numbers of rows: each has its own rows, position, cut and draft, and is
    answered in its place; one that fails is a Failure and harms no other."""
    most = min(bench.info.max_batch, 3)
    if most < 2:
        raise NotApplicable("max_batch is 1: one element per call")
    bench.need_room(60)
    drafting = bench.info.draft is not None
    sessions = [bench.session(drafting=drafting) for _ in range(most)]
    for session, prompt in zip(sessions, bench.prompts(most, least=3), strict=True):
        session.prefill(prompt)
    for turn in range(4):
        _steps(bench, sessions)
        if drafting:
            _drafts(bench, sessions)
        if bench.info.rollback != "none":
            outlooks = ((0, 3), (2, 1), (3, 0), (1, 0), (0, 1), (2, 2))
            _spans(bench, sessions, [outlooks[(turn + 2 * at) % len(outlooks)] for at in range(most)])
        for session in sessions:
            session.step()
    for place in range(most):
        others = [session for session in sessions if session is not sessions[place]]
        _steps(bench, others, unknown=place)
    for session in sessions:
        session.step()


def _answers(call: Callable[[Sequence[Any]], Sequence[Any]], asked: Sequence[Any]) -> Sequence[Any]:
    answers = call(asked)
    expect(len(answers) == len(asked), f"{len(asked)} elements were answered with {len(answers)}")
    return answers


def _steps(bench: Bench, sessions: Sequence[Driven], unknown: int | None = None) -> None:
    """Serial steps, and a chunk of two rows in the first session; ``unknown``: the place of an element that must fail."""
    fed = [(*session.canonical[-1:], 0) if at == 0 else tuple(session.canonical[-1:]) for at, session in enumerate(sessions)]
    calls = [
        Forward(session=session.number, base=len(session.rows), tokens=tokens, want="last", canonical=True)
        for session, tokens in zip(sessions, fed, strict=True)
    ]
    if unknown is not None:
        calls.insert(unknown, Forward(session=_UNKNOWN, base=0, tokens=(0,), want="last", canonical=True))
    answers = list(_answers(bench.runtime.forward, calls))
    if unknown is not None:
        failure = answers.pop(unknown)
        expect(isinstance(failure, Failure) and not failure.started, f"an element for an unknown session was answered with {failure!r}")
    for session, tokens, answer in zip(sessions, fed, answers, strict=True):
        rows = only([answer], Rows, session.number)
        session.rows += tokens
        session.current = rows.predictions[0]
        expect(rows.position == len(session.rows), f"one forward of several ended at position {rows.position}, not {len(session.rows)}")
        bench.reference.agree(session.rows, rows.predictions[0], "one forward of several")
        session.check()


def _drafts(bench: Bench, sessions: Sequence[Driven]) -> None:
    info = bench.need_head()
    asks = [
        Ask(session=session.number, current=session.canonical[-1], limit=min(1 + at, info.depth)) for at, session in enumerate(sessions)
    ]
    for session, ask, answer in zip(sessions, asks, _answers(bench.runtime.draft, asks), strict=True):
        tokens = only([answer], Draft, session.number).tokens
        expect(len(tokens) <= ask.limit, f"one draft of several holds {len(tokens)} tokens, {ask.limit} were asked for")
        bench.ask(session, ask.limit, "a draft after one of several,")


def _spans(bench: Bench, sessions: Sequence[Driven], outlooks: Sequence[tuple[int, int]]) -> None:
    drafts = [bench.drafted(session, *outlook) for session, outlook in zip(sessions, outlooks, strict=True)]
    calls = [
        Forward(session=one.number, base=len(one.rows), tokens=(*one.canonical[-1:], *draft), want="all", canonical=False)
        for one, draft in zip(sessions, drafts, strict=True)
    ]
    kept: list[int] = []
    for session, draft, call, answer in zip(sessions, drafts, calls, _answers(bench.runtime.forward, calls), strict=True):
        rows = only([answer], Rows, session.number)
        session.speculative, session.predictions = call.tokens, rows.predictions
        expect(rows.position == call.base + len(call.tokens), f"one span of several ended at position {rows.position}")
        count = matched_length(draft, rows.predictions) + 1
        expect(len(rows.predictions) >= count, f"one span of several gave {len(rows.predictions)} predictions, {count} are due")
        for row, chosen in enumerate(rows.predictions[:count]):
            bench.reference.agree([*session.rows, *call.tokens[: row + 1]], chosen, f"one span of several, row {row}")
        kept.append(count)
        session.check()
    settles = [
        Settle(session=one.number, base=len(one.rows), rows=len(one.speculative), position=len(one.rows) + count)
        for one, count in zip(sessions, kept, strict=True)
    ]
    for session, call, count, answer in zip(sessions, settles, kept, _answers(bench.runtime.settle, settles), strict=True):
        settled = only([answer], Settled, session.number)
        expect(settled.position == call.position, f"one settle of several ended at position {settled.position}, not {call.position}")
        session.rows += session.speculative[:count]
        session.current = session.predictions[count - 1]
        session.speculative = session.predictions = ()
        session.check()
