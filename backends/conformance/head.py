"""Checks of the MTP head: it is fed every canonical pair and nothing else, so a draft depends on the canonical tokens alone.

A head's rows cannot be seen through the protocol, only their number (view) and what they lead to (drafts). So the drafts of a
session are compared with those of a fresh one that was given the same tokens as its prompt, whatever happened before.
"""

from __future__ import annotations

from ...engine.errors import NotStarted
from ...engine.runtime import Ask, Draft
from .bench import Bench
from .outcome import NotApplicable, expect
from .registry import Checks
from .session import Driven, must_refuse

__all__ = ["HEAD"]

HEAD = Checks()

#: Tokens asked for where a check does not vary them.
_LIMIT = 4
#: More serial steps than any backlog of hidden rows should hold.
_MANY = 70


def _limit(bench: Bench) -> int:
    return min(bench.need_head().depth, _LIMIT)


@HEAD("declared capabilities true: draft; cases 6.2, 6.13")
def a_declared_head_drafts(bench: Bench) -> None:
    """A model that declares a head drafts something after some of eight prompts: ids of the vocabulary, at most as many as asked for."""
    limit = _limit(bench)
    offered = 0
    for prompt in bench.prompts(8, least=2):
        session = bench.session(drafting=True)
        session.prefill(prompt)
        offered += len(bench.ask(session, limit))
        session.drop()
    expect(offered > 0, "info declares a head, and it drafted nothing after any of 8 prompts")


@HEAD("declared capabilities true: draft None")
def a_model_without_a_head_refuses_to_draft(bench: Bench) -> None:
    """Without a head a draft raises NotStarted and the session goes on; view has no head position."""
    if bench.info.draft is not None:
        raise NotApplicable("draft is declared: this model has an MTP head")
    for drafting in (False, True):
        session = bench.session(drafting=drafting)
        session.prefill(bench.prompts(1)[0])
        current = session.current or 0
        call = Ask(session=session.number, current=current, limit=1)
        must_refuse(lambda call=call: bench.runtime.draft([call]), "a draft of a model without a head")
        session.step()


@HEAD("protocol: open_session, drafting")
def a_session_opened_without_drafting_decodes_as_one_with_it(bench: Bench) -> None:
    """drafting=False: view has no head position, and the choices are the same."""
    bench.need_head()
    bench.need_room(40)
    for prompt in bench.prompts(2):
        for drafting in (False, True):
            session = bench.session(drafting=drafting)
            session.prefill(prompt, chunk=3)
            for _ in range(3):
                session.step()
                if bench.info.rollback != "none":
                    session.round(bench.drafted(session, 1, 1))


@HEAD("head filled over the prompt; law 1")
def right_after_a_draft_the_head_holds_every_pair(bench: Bench) -> None:
    """After prompts of any length and chunks of any size a draft, of no tokens too, leaves the head at the target's position."""
    limit = _limit(bench)
    bench.need_room(40)
    long = tuple(token for prompt in bench.prompts(14, least=9) for token in prompt)[: bench.info.context_length - 8]
    for prompt in (*bench.prompts(3, least=2), long):
        for chunk in (1, 4, len(prompt)):
            for first in (0, limit):
                session = bench.session(drafting=True)
                session.prefill(prompt, chunk)
                bench.ask(session, first)
                bench.ask(session, limit)
                session.drop()


@HEAD("law 11: a shorter draft is a prefix of a longer one")
def a_draft_is_the_same_whenever_and_for_how_many_tokens_it_is_asked(bench: Bench) -> None:
    """Asked again for the same place, for more tokens or for fewer, the head gives the same tokens, as many as asked for at most."""
    limit = min(bench.need_head().depth, 6)
    bench.need_room(40)
    for prompt in bench.prompts(3, least=2):
        session = bench.session(drafting=True)
        session.prefill(prompt)
        for _ in range(2):
            for count in (*range(limit, -1, -1), *range(limit + 1), limit, limit):
                bench.ask(session, count)
            session.step()


@HEAD("law 11; head re-fed after a cut; cases 6.6, 6.9, 7.6")
def a_draft_depends_on_the_canonical_tokens_alone(bench: Bench) -> None:
    """However a text came about (prompt, chunks, serial steps, spans right, wrong, cancelled; asked before or not), its draft is one."""
    limit = _limit(bench)
    bench.need_room(60)
    spans = bench.info.rollback != "none"
    for prompt in bench.prompts(2, least=3):
        length = len(prompt) + 12
        for asked in (False, True):
            for way in ("chunks", "serial", "right", "wrong", "partly", "cancelled") if spans else ("chunks", "serial"):
                session = bench.session(drafting=True)
                if way == "chunks":
                    session.prefill([*prompt, *bench.reference.continuation(prompt, 11)], chunk=4)
                else:
                    session.prefill(prompt)
                while len(session.canonical) < length:
                    if asked:
                        bench.ask(session, limit, f"a draft (history: {way})")
                    if way == "serial":
                        session.step()
                    elif way == "cancelled":
                        session.span(bench.drafted(session, 2, 1))
                        session.settle(0)
                        if asked:
                            bench.ask(session, limit, "a draft after a span of which nothing was kept")
                        session.round([])
                    else:
                        right, wrong = {"right": (3, 0), "wrong": (0, 3), "partly": (1, 2)}[way]
                        session.round(bench.drafted(session, right, wrong))
                bench.ask(session, limit, f"a draft (history: {way}, {'asked' if asked else 'not asked'} before)")
                session.drop()


@HEAD("head rows are exactly the canonical pairs; cases 1.8, 6.6, 6.9")
def the_head_does_not_fall_behind_or_run_ahead(bench: Bench) -> None:
    """For k in 1 to 5 and a in 0 to k: after rounds with a of k drafts right the head is at the target's position and drafts as a
    fresh one."""
    bench.need_rollback()
    depth = bench.need_head().depth
    bench.need_room(40)
    prompt = bench.prompts(1, least=4)[0]
    room = min(bench.info.context_length, bench.need_head().context_length) - 8
    for width in range(1, 6):
        for right in range(width + 1):
            session = bench.session(drafting=True)
            session.prefill(prompt)
            for _ in range(bench.options.rounds):
                if len(session.canonical) > room:
                    break
                bench.ask(session, min(width, depth), f"a draft, where {right} of {width} are right in every round,")
                session.round(bench.drafted(session, right, width - right))
            session.drop()


@HEAD("unfed rows are kept, at most a backlog")
def rows_that_were_not_drafted_after_are_fed_later(bench: Bench) -> None:
    """After many serial steps without a draft, and after a long prompt, the next draft is that of a fresh session."""
    limit = _limit(bench)
    bench.need_room(_MANY + 20)
    session = bench.session(drafting=True)
    session.prefill(bench.prompts(1, least=3)[0])
    bench.ask(session, limit)
    for _ in range(_MANY):
        session.step()
    bench.ask(session, limit, f"a draft after {_MANY} serial steps without one")
    session.step()
    bench.ask(session, limit)


@HEAD("the head is rewound too; cases 1.16, 7.6")
def after_a_rewind_the_head_drafts_as_a_fresh_one(bench: Bench) -> None:
    """Right after a rewind a draft may be shorter, also empty, until the next forward; then it is that of a fresh session."""
    limit = _limit(bench)
    bench.need_crop()
    bench.need_room(60)
    for prompt in bench.prompts(2, least=4):
        for back in range(1, len(prompt) + 6):
            for asked in (False, True):
                session = bench.session(drafting=True)
                session.prefill(prompt)
                for _ in range(3):
                    bench.ask(session, limit)
                    session.round(bench.drafted(session, 1, 2))
                if back > len(session.canonical) - 2:
                    break
                session.rewind(len(session.canonical) - back)
                if asked:
                    bench.ask(session, limit, "a draft right after a rewind")
                if back % 2:
                    session.prefill([0, bench.other(0)])
                else:
                    session.step()
                bench.ask(session, limit, "a draft after a rewind and a forward")
                session.round(bench.drafted(session, 1, 1))
                bench.ask(session, limit, "a draft after a rewind and a round")
                session.drop()


@HEAD("declared capabilities true: depth, draft context; cases 6.10, 10.3, 10.6")
def depth_and_context_of_the_head_are_as_declared(bench: Bench) -> None:
    """A draft of depth tokens can be asked for; more gives NotStarted or no more than depth. Up to its context_length the head
    does not fail; beyond it a draft is refused with NotStarted or empty, and the target goes on."""
    info = bench.need_head()
    session = bench.session(drafting=True)
    session.prefill(bench.prompts(1, least=3)[0])
    session.draft(info.depth)
    _refused_or_at_most(session, info.depth + 1, info.depth)
    session.check()
    session.step()
    if info.context_length > bench.options.context_reach:
        raise NotApplicable(
            f"depth holds; the head's context_length {info.context_length} is beyond context_reach {bench.options.context_reach}"
        )
    most = min(info.context_length + 2, bench.info.context_length)
    filler = bench.prompts(1, least=9)[0]
    tokens = (filler * (most // len(filler) + 1))[:most]
    first = max(info.context_length - 2, 2)
    session = bench.session(drafting=True, judged=False).place(tokens[:first], chunk=256)
    for length in range(first, most + 1):
        if length > first:
            session.forward(session.canonical[-1:])
            session.current = tokens[length - 1]
        if length < info.context_length:
            session.draft(1)
        elif length > info.context_length:
            _refused_or_at_most(session, 1, 0)
            session.check()


def _refused_or_at_most(session: Driven, limit: int, most: int) -> None:
    call = Ask(session=session.number, current=session.current or 0, limit=limit)
    try:
        (answer,) = session.runtime.draft([call])
    except NotStarted:
        return
    if isinstance(answer, Draft):
        session.named = len(session.rows)
        expect(
            len(answer.tokens) <= most,
            f"a draft after {len(session.canonical)} tokens holds {len(answer.tokens)}, at most {most} can be had",
        )
    else:
        expect(not answer.started, f"a draft of {limit} tokens failed where NotStarted was due: {answer.error}: {answer.message}")


@HEAD("protocol: draft, NotStarted")
def a_refused_draft_touches_nothing(bench: Bench) -> None:
    """An id outside the vocabulary as current is refused with NotStarted, and the session drafts and decodes on."""
    limit = _limit(bench)
    session = bench.session(drafting=True)
    session.prefill(bench.prompts(1, least=3)[0])
    before = session.check()
    for current in (bench.info.vocabulary, -1):
        call = Ask(session=session.number, current=current, limit=limit)
        must_refuse(lambda call=call: bench.runtime.draft([call]), f"a draft with current {current}")
        expect(session.check() == before, "a refused draft changed the view")
    bench.ask(session, limit)
    session.step()
