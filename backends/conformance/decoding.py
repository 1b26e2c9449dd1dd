"""Checks through the engine's Decoder: what the runtime is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from attrs import frozen

from ...engine.decoder import Decoder
from ...engine.drafting import Drafter, DraftSource
from ...engine.invariants import state_violations, view_violations
from ...engine.runtime import Draft, Runtime
from ...engine.session import Session
from ...engine.tokens import TokenLog
from ...engine.values import DraftInfo, Policy, RuntimeInfo
from .bench import Bench
from .outcome import expect
from .registry import Checks

__all__ = ["DECODING"]

DECODING = Checks()

_TOKENS = 20
_POLICIES: tuple[Policy, ...] = (
    *(Policy(width=width) for width in (1, 2, 3, 5)),
    Policy(kind="auto", width=4),
    Policy(width=2, prefill_chunk=2),
)


@frozen
class _Scheduled:
    """Drafts what serial decoding gave, wrong at every ``period``-th index; feeds the head, if there is one, as the head's source does."""

    tokens: tuple[int, ...]
    period: int
    vocabulary: int
    depth: int
    head: bool

    def info(self, runtime: RuntimeInfo) -> DraftInfo:
        if runtime.draft is not None and self.head:
            return runtime.draft
        return DraftInfo(origin="grammar", layers=0, depth=self.depth, context_length=runtime.context_length)

    def open(self, session: int, ask_head: Callable[[TokenLog, int], Draft]) -> Drafter:
        return _OneSchedule(self, session, ask_head)


@frozen
class _OneSchedule:
    schedule: _Scheduled
    session: int
    ask_head: Callable[[TokenLog, int], Draft]

    def draft(self, canonical: TokenLog, limit: int) -> Draft:
        schedule, at = self.schedule, len(canonical)
        if schedule.head and at % 3:  # not every time: then more rows wait for the head
            self.ask_head(canonical, 0)
        true = schedule.tokens[at : at + limit]
        wrong = [schedule.period > 0 and (at + n) % schedule.period == 0 for n in range(limit)]
        drafted = tuple((token + off) % schedule.vocabulary for token, off in zip(true, wrong, strict=False))
        return Draft(session=self.session, tokens=drafted)


def _schedule(bench: Bench, text: Sequence[int], period: int) -> _Scheduled:
    own = bench.info.draft
    depth = own.depth if own is not None else 16
    return _Scheduled(tuple(text), period, bench.info.vocabulary, depth, own is not None)


def _same(bench: Bench, prompt: Sequence[int], got: Sequence[int], expected: Sequence[int], what: str) -> None:
    """Equal up to the first near tie; what follows a near tie is another text."""
    for at, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            for token in (one, other):
                bench.reference.agree([*prompt, *expected[:at]], token, f"{what}, token {at}")
            return
    expect(len(got) == len(expected), f"{what} gave {len(got)} tokens, {len(expected)} were expected")


def _audit(session: Session, runtime: Runtime) -> None:
    found = (*state_violations(session.state), *view_violations(session.state, runtime.view(session.runtime_session)))
    expect(not found, "; ".join(found))
    expect(not session.state.drafting_off, "the head failed in the middle of a decode")


@DECODING("laws 1 and 6; I4")
def speculation_changes_no_token(bench: Bench) -> None:
    """Through the engine's Decoder every source of drafts and every policy gives the tokens that it gives without speculation, and
    after every round the runtime's numbers are the engine's."""
    bench.need_room(9 + _TOKENS)
    runtime = bench.runtime
    for prompt, policies in zip(bench.prompts(2, least=3), (_POLICIES, _POLICIES[2:5]), strict=True):
        with Decoder(runtime, source="none") as decoder:
            serial = decoder.generate(prompt, max_tokens=_TOKENS, stop_tokens=()).tokens
        _same(bench, prompt, serial, bench.reference.continuation(prompt, _TOKENS), "decoding serially")
        sources: dict[str, DraftSource | Literal["mtp", "prompt_lookup"]] = {"prompt_lookup": "prompt_lookup"}
        if bench.info.draft is not None:
            sources["mtp"] = "mtp"
        for period in (0, 1, 2, 4):
            sources[f"wrong at every {period}th index" if period else "right"] = _schedule(bench, (*prompt, *serial), period)
        for name, source in sources.items():
            depth = bench.info.draft.depth if bench.info.draft is not None else 16
            for policy in policies:
                if policy.width <= depth:
                    with (
                        Decoder(runtime, source=source, policy=policy) as decoder,
                        decoder.open(prompt, max_tokens=_TOKENS, stop_tokens=()) as session,
                    ):
                        while not session.finished:
                            session.step()
                            _audit(session, runtime)
                        _same(bench, prompt, session.result.tokens, serial, f"decoding with drafts {name!r} and {policy}")


@DECODING("cases 2.1, 2.8, 1.10")
def a_stop_ends_a_turn_in_the_same_place_wherever_it_falls_in_a_span(bench: Bench) -> None:
    """Each produced token, declared a stop, ends the turn where serial decoding ends it, and the next turn goes on from there."""
    bench.need_room(9 + _TOKENS)
    prompt = bench.prompts(1, least=4)[0]
    runtime = bench.runtime
    with Decoder(runtime, source="none") as decoder:
        free = decoder.generate(prompt, max_tokens=10, stop_tokens=()).tokens
    schedule = _schedule(bench, (*prompt, *free), 0)
    width = min(schedule.depth, 4)
    for stop in dict.fromkeys(free):
        expected = free[: free.index(stop) + 1]
        sources: tuple[DraftSource | Literal["none"], ...] = ("none", schedule)
        for source in sources:
            with (
                Decoder(runtime, source=source, policy=width if source is schedule else 0) as decoder,
                decoder.open(prompt, max_tokens=10, stop_tokens=(stop,)) as session,
            ):
                tokens = tuple(session)
                _audit(session, runtime)
                _same(bench, prompt, tokens, expected, f"decoding up to the stop {stop}")
                given = [*prompt, *tokens, 0]
                session.extend((0,), max_tokens=4, stop_tokens=())
                _same(bench, given, tuple(session), bench.reference.continuation(given, 4), "the turn after a stop")
                _audit(session, runtime)


@DECODING("cases 1.16, 7.6, 7.7")
def turns_and_rewinds_give_what_a_fresh_session_gives(bench: Bench) -> None:
    """Rewound into the output or the prompt and extended, a session decodes what one decodes that was opened with the same tokens."""
    bench.need_room(80)
    runtime = bench.runtime
    prompt = bench.prompts(1, least=5)[0]
    depth = bench.info.draft.depth if bench.info.draft is not None else 3
    for width in (0, min(depth, 3)):
        with Decoder(runtime, policy=width) as decoder, decoder.open(prompt, max_tokens=9, stop_tokens=()) as session:
            list(session)
            for back, more in ((3, (0, 1)), (1, ()), (12, (0,)), (2, (1, 0, 1)), (6, ())):
                session.rewind(back)
                session.extend([token % bench.info.vocabulary for token in more], max_tokens=8, stop_tokens=())
                given = session.state.canonical[:]
                _same(bench, given, tuple(session), bench.reference.continuation(given, 8), f"after a rewind by {back}")
                _audit(session, runtime)
