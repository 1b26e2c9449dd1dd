"""Checks of what a runtime declares or is given: its context, threads, and what is left after a forward that failed half way."""

from __future__ import annotations

import threading

from ...engine.runtime import Forward
from .bench import Bench
from .outcome import NotApplicable, expect
from .registry import Checks
from .session import must_refuse

__all__ = ["CAPABILITY"]

CAPABILITY = Checks()


@CAPABILITY("declared capabilities true: context_length; case 10.5")
def the_context_can_be_filled_to_its_end_and_no_further(bench: Bench) -> None:
    """A session holds context_length rows, the last of them from a span too; one row more is refused and nothing is cut silently."""
    length = bench.info.context_length
    if length > bench.options.context_reach:
        raise NotApplicable(
            f"context_length {length} is beyond context_reach {bench.options.context_reach}: make the runtime with a shorter one"
        )
    bench.need_room(8)
    filler = bench.prompts(1, least=9)[0]
    tokens = (filler * (length // len(filler) + 1))[:length]
    session = bench.session(judged=False).place(tokens[: length - 3], chunk=256)
    if bench.info.rollback != "none":
        call = Forward(session=session.number, base=length - 4, tokens=(0,) * 5, want="all", canonical=False)
        must_refuse(lambda: bench.runtime.forward([call]), "a span over the context's end")
        session.check()
        session.span([0, 0, 0])
        session.settle(1)
    else:
        session.step()
    session.prefill([0, 0])
    expect(len(session.rows) == length, f"the check filled {len(session.rows)} of {length} rows")
    call = Forward(session=session.number, base=length, tokens=(0,), want="last", canonical=True)
    must_refuse(lambda: bench.runtime.forward([call]), "a row behind the context's end")
    session.check()


@CAPABILITY("declared capabilities true: threads")
def any_thread_may_call_where_that_is_declared(bench: Bench) -> None:
    """With threads any a session opened in one thread goes on in another, one call at a time."""
    if bench.info.threads != "any":
        raise NotApplicable(f"threads is {bench.info.threads!r}")
    bench.need_room(40)
    drafting = bench.info.draft is not None
    session = bench.session(drafting=drafting)
    session.prefill(bench.prompts(1, least=3)[0])
    errors: list[BaseException] = []

    def work() -> None:
        try:
            if drafting:
                bench.ask(session, 1)
            if bench.info.rollback != "none":
                session.round(bench.drafted(session, 1, 1))
            session.step()
            other = bench.session(drafting=drafting)
            other.prefill(bench.prompts(2)[1])
            other.drop()
        except BaseException as error:
            errors.append(error)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
    session.step()


@CAPABILITY("position is not a host count; law 8")
def a_forward_that_failed_half_way_settles_to_its_base(bench: Bench) -> None:
    """After a forward that wrote some rows and raised, a settle to its base leaves exactly the base, for the session and beside others."""
    bench.need_rollback()
    bench.need_room(40)
    fail = bench.options.fail
    if fail is None:
        raise NotApplicable("no way to make a forward fail half way was given (fail=)")
    drafting = bench.info.draft is not None
    other = bench.session(drafting=drafting)
    other.prefill(bench.prompts(2, least=3)[1])
    session = bench.session(drafting=drafting)
    session.prefill(bench.prompts(1, least=3)[0])
    # Rows without a checkpoint can be taken back only by a crop.
    kinds = (False, True, False) if bench.info.rollback == "crop" else (False, False)
    for canonical in kinds:
        if drafting:
            bench.ask(session, 1)
        base, fed = len(session.rows), (*session.canonical[-1:], *bench.drafted(session, 1, 1))
        call = Forward(session=session.number, base=base, tokens=fed, want="all", canonical=canonical)
        with fail(bench.runtime):
            try:
                bench.runtime.forward([call])
            except Exception:
                pass
            else:
                raise NotApplicable("fail= did not make the forward raise")
        view = session.view()
        expect(
            base <= view.position <= base + len(fed), f"after a failed forward of {len(fed)} rows from {base} on view says {view.position}"
        )
        session.take_back(base, len(fed))
        other.step()
        session.step()
        session.round(bench.drafted(session, 2))
    if drafting:
        bench.ask(session, 1, "a draft after a failed forward")
    other.step()
