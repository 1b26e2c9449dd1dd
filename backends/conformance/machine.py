"""A state machine over one runtime: sessions opened, fed, stepped, spanned, settled, drafted, rewound, refused and dropped, interleaved.

The rules are what an engine may do, in any order. What must hold is asked by every call itself (`session.Driven`): the runtime's
numbers, choices equal to the reference's, drafts equal to those of a fresh session.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule, run_state_machine_as_test

from ...engine.runtime import Forward, Settle
from . import strategies
from .bench import Bench
from .outcome import broken
from .registry import Checks
from .session import Driven, must_raise, must_refuse

__all__ = ["MACHINE"]

MACHINE = Checks()

#: Most live sessions.
_SESSIONS = 4
#: What is wrong with a call that must be refused.
_REFUSED = ("base", "vocabulary", "room", "session", "beyond", "below")
#: Tokens after which a session is only cut or dropped.
_LONG = 40


@MACHINE("all of the above, in any order")
def any_order_of_calls_keeps_the_contract(bench: Bench) -> None:
    """Whatever an engine does in whatever order, with several sessions interleaved and calls refused in between, all the above holds."""
    bench.need_room(16)
    options = bench.options
    run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType]
        _machine(bench),
        settings=settings(
            max_examples=options.examples,
            stateful_step_count=options.steps,
            derandomize=True,
            deadline=None,
            database=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink) if options.shrink else (Phase.generate,),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )


def _machine(bench: Bench) -> type[RuleBasedStateMachine]:
    info, runtime = bench.info, bench.runtime
    limit = min(_LONG, info.context_length - 8)
    fail = bench.options.fail
    spans, depth = info.rollback != "none", info.draft.depth if info.draft is not None else 0

    class Sessions(RuleBasedStateMachine):
        sessions: Bundle[Driven] = Bundle("sessions")

        def __init__(self) -> None:
            super().__init__()
            self.live: list[Driven] = []

        @rule(target=sessions, prompt=strategies.prompts(info), chunk=strategies.chunks(), drafting=st.booleans())
        def open(self, prompt: list[int], chunk: int, drafting: bool) -> Any:
            session = bench.session(drafting=drafting)
            session.prefill(prompt, chunk)
            self.live.append(session)
            if len(self.live) > _SESSIONS:
                oldest = self.live.pop(0)
                oldest.drop()
                oldest.number = -1
            return session

        def ready(self, session: Driven) -> bool:
            """Whether the session lives, with room to go on; an open span is settled first."""
            if session.number < 0:
                return False
            if session.speculative:
                self.commit(session, 99)
            return len(session.canonical) < limit

        @staticmethod
        def commit(session: Driven, most: int) -> None:
            draft, chosen = session.speculative[1:], session.predictions
            matched = 0
            while matched < len(draft) and matched < len(chosen) and draft[matched] == chosen[matched]:
                matched += 1
            session.settle(min(most, matched + 1))

        @rule(session=sessions, times=st.integers(1, 3))
        def serial(self, session: Driven, times: int) -> None:
            for _ in range(times):
                if self.ready(session):
                    session.step()

        @rule(session=sessions, outlook=strategies.outlooks(info))
        def span(self, session: Driven, outlook: tuple[int, int]) -> None:
            """The span stays open until the session's next turn."""
            if spans and self.ready(session):
                session.span(bench.drafted(session, *outlook))

        @rule(session=sessions, kept=st.integers(0, 6))
        def settle(self, session: Driven, kept: int) -> None:
            if session.number >= 0 and session.speculative:
                self.commit(session, kept)

        @rule(session=sessions, count=st.integers(0, 5))
        def draft(self, session: Driven, count: int) -> None:
            if self.ready(session) and session.has_head and session.rows and len(session.canonical) < bench.need_head().context_length:
                bench.ask(session, min(count, depth))

        @rule(session=sessions, tokens=strategies.prompts(info, 3), chunk=strategies.chunks())
        def extend(self, session: Driven, tokens: list[int], chunk: int) -> None:
            if self.ready(session):
                session.prefill(tokens, chunk)

        @rule(session=sessions, back=st.integers(1, 12))
        def rewind(self, session: Driven, back: int) -> None:
            """As the engine does it: a cut where the runtime reaches so far, else drop, open and prefill."""
            self.ready(session)
            if session.number < 0 or back >= len(session.canonical):
                return
            kept = session.canonical[: len(session.canonical) - back]
            if session.view().floor <= len(kept) - 1:
                session.rewind(len(kept))
            else:
                session.drop()
                session.begin()
                session.prefill(kept)

        @rule(session=consumes(sessions), twice=st.booleans())
        def drop(self, session: Driven, twice: bool) -> None:
            if session.number < 0:
                return
            session.drop()
            if twice:
                session.drop()
            self.live.remove(session)
            session.number = -1

        @rule(session=sessions, kind=st.sampled_from(_REFUSED))
        def refused(self, session: Driven, kind: str) -> None:
            self.ready(session)
            if session.number < 0:
                return
            here = len(session.rows)
            number = 1 << 41 if kind == "session" else session.number
            if kind in ("beyond", "below"):
                position = here + 1 if kind == "beyond" else session.view().floor - 1
                call = Settle(session=number, base=position, rows=max(here - position, 1), position=position)
                must_raise(lambda: runtime.settle([call]), f"a settle at {position} from position {here}")
            else:
                tokens = (info.vocabulary if kind == "vocabulary" else 0,)
                if kind == "room" and info.context_length <= bench.options.context_reach:
                    tokens *= info.context_length - here + 1
                base = here if kind == "vocabulary" or len(tokens) > 1 else here + 1
                wrong = Forward(session=number, base=base, tokens=tokens, want="last", canonical=True)
                must_refuse(lambda: runtime.forward([wrong]), f"a forward with a wrong {kind}")
            session.check()

        @precondition(lambda self: spans and fail is not None)
        @rule(session=sessions, outlook=strategies.outlooks(info))
        def broken_span(self, session: Driven, outlook: tuple[int, int]) -> None:
            """A span that fails half way and is taken back."""
            if not self.ready(session) or fail is None:
                return
            base, fed = len(session.rows), (*session.canonical[-1:], *bench.drafted(session, *outlook))
            call = Forward(session=session.number, base=base, tokens=fed, want="all", canonical=False)
            with fail(runtime):
                must_raise(lambda: runtime.forward([call]), "a forward that fail= breaks")
            session.take_back(base, len(fed))

        @invariant()
        def every_session_is_where_it_was_left(self) -> None:
            for session in self.live:
                session.check()

        def teardown(self) -> None:
            for session in self.live:
                session.drop()
            counted = getattr(runtime, "live_sessions", 0)
            if counted:
                broken(f"live_sessions is {counted} after every session was dropped")

    return Sessions
