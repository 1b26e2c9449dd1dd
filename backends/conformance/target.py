"""Checks of the target: rows, positions, spans, what a settle keeps, and sessions that do not see each other."""

from __future__ import annotations

from ...engine.errors import NotStarted
from ...engine.runtime import Extras, Forward, Rows, Settle
from ...engine.values import Sampling
from .bench import Bench
from .outcome import NotApplicable, broken, expect
from .registry import Checks
from .session import must_raise, must_refuse

__all__ = ["TARGET"]

TARGET = Checks()

#: Drafted tokens per span.
_WIDTHS = (1, 2, 3, 4, 5, 8, 13)


@TARGET("true device-side positions; law 1; case 6.11")
def positions_are_those_of_the_rows_that_were_fed(bench: Bench) -> None:
    """After every chunk, serial step, span and settle the answer's position and view's are base + rows, then base + c."""
    bench.need_room(60)
    for at, prompt in enumerate(bench.prompts(6, least=2)):
        session = bench.session()
        session.prefill(prompt, chunk=at % 3 + 1)
        for kept in range(4):
            session.step()
            if bench.info.rollback != "none":
                session.span(bench.drafted(session, 2))
                session.settle(kept)
        session.drop()


@TARGET("protocol: Forward.want; case 6.13")
def predictions_come_for_the_rows_that_were_wanted(bench: Bench) -> None:
    """A forward with want none, last or all gives none, the last and all predictions, of the same tokens; without any optional argument."""
    for prompt in bench.prompts(3, least=4):
        none, last, every = (bench.session() for _ in range(3))
        none.forward(prompt, want="none")
        one = last.forward(prompt, want="last").predictions
        all_rows = every.forward(prompt, want="all").predictions
        if len(all_rows) == len(prompt) and one[0] != all_rows[-1]:
            bench.reference.agree(prompt, one[0], "want='last'")
            bench.reference.agree(prompt, all_rows[-1], "want='all'")
        none.current = one[0]
        none.step()


@TARGET("prefill in chunks")
def chunks_of_a_prompt_give_what_its_rows_give_one_by_one(bench: Bench) -> None:
    """However a prompt is cut into chunks, the choice after it, and after the next serial steps, is that of single rows."""
    bench.need_room(60)
    long = tuple(token for prompt in bench.prompts(4, least=9) for token in prompt)
    for prompt in (*bench.prompts(3), long):
        for chunk in (1, 2, 3, len(prompt) - 1 or 1, len(prompt)):
            session = bench.session()
            session.prefill(prompt, chunk)
            session.step()
            session.step()
            session.drop()


@TARGET("a k-row verify equals k serial steps; cases 1.2, 7.13")
def a_verify_chooses_in_every_row_what_serial_steps_choose(bench: Bench) -> None:
    """Behind the rows in the cache, row i of a forward of k + 1 rows chooses what the i-th of k + 1 serial steps chooses, whatever
    was drafted."""
    bench.need_room(40)
    spans = bench.info.rollback != "none"
    for at, prompt in enumerate(bench.prompts(3, least=4)):
        for width in _WIDTHS:
            for right in {width, 0, width // 2}:
                session = bench.session()
                session.prefill(prompt, chunk=at + 2)
                draft = bench.drafted(session, right, width - right)
                if spans:
                    session.span(draft, every=True)
                    session.settle(0)
                else:
                    session.forward([*session.canonical[-1:], *draft], want="all", every=True)
                session.drop()


@TARGET("the bonus token")
def a_fully_matched_span_has_a_prediction_behind_its_last_row(bench: Bench) -> None:
    """A span whose k drafts are all right gives k + 1 predictions; the last is the bonus token, and all its rows may stay."""
    bench.need_rollback()
    bench.need_room(60)
    for width in _WIDTHS:
        session = bench.session()
        session.prefill(bench.prompts(1, least=3)[0])
        for _ in range(3):
            if len(session.rows) + width + 1 < bench.info.context_length:
                draft = bench.drafted(session, width)
                session.round(draft)
                session.step()
        session.drop()


@TARGET("settle; law 2; cases 1.1, 1.7, 1.10")
def every_cut_of_a_span_leaves_exactly_the_rows_below_it(bench: Bench) -> None:
    """Settled at any c from 0 to k + 1, whatever matched, the session goes on as one that was never fed the rows above."""
    bench.need_rollback()
    bench.need_room(40)
    prompt = bench.prompts(1, least=5)[0]
    for width in range(1, 6):
        for right in range(width + 1):
            for kept in range(right + 2):
                session = bench.session()
                session.prefill(prompt)
                matched = session.span(bench.drafted(session, right, width - right))
                session.settle(min(kept, matched + 1))
                session.step()
                session.round(bench.drafted(session, 1, 1))
                session.step()
                session.drop()


@TARGET("recurrent state restored; case 1.1")
def rejections_leave_no_trace(bench: Bench) -> None:
    """Histories of rejected drafts that commit the same text leave the same choices: rejected rows are in no state of the target."""
    bench.need_rollback()
    bench.need_room(70)
    for prompt in bench.prompts(2, least=3):
        text = bench.reference.continuation(prompt, 25)
        for right, wrong in ((0, 1), (0, 4), (1, 3), (2, 1), (3, 2)):
            session = bench.session()
            session.prefill(prompt)
            while len(session.canonical) < len(prompt) + len(text):
                session.span(bench.drafted(session, right, wrong + 1))
                session.settle(0)  # cancelled before its first token
                session.round(bench.drafted(session, right, wrong))
            session.step()
            session.drop()


@TARGET("generate, trim, regenerate; cases 1.3, 1.16, 7.7")
def a_rewind_to_anywhere_and_the_same_again_gives_the_same(bench: Bench) -> None:
    """Cut to any position, 0 included, and fed on with the same or with other tokens, the session is as a fresh one."""
    bench.need_crop()
    bench.need_room(40)
    for prompt in bench.prompts(2, least=4):
        for length in range(1, len(prompt) + 9):
            session = bench.session()
            session.prefill(prompt)
            for _ in range(2):
                session.round(bench.drafted(session, 2, 1))
            session.step()
            if length > len(session.canonical):
                break
            session.rewind(length)
            session.step()
            session.round(bench.drafted(session, 1, 2))
            session.rewind(length)
            session.prefill([bench.other(session.canonical[-1]), 0])
            session.step()
            session.drop()


@TARGET("the way back where settle cannot reach")
def a_session_dropped_and_fed_again_gives_the_same(bench: Bench) -> None:
    """Dropped, opened under its number and fed its tokens, it goes on as before: that is how the engine rewinds what cannot be cut."""
    bench.need_room(40)
    session = bench.session()
    session.prefill(bench.prompts(1, least=4)[0])
    for _ in range(4):
        session.step()
        if bench.info.rollback != "none":
            session.round(bench.drafted(session, 1, 1))
        kept = session.canonical[: 3 + len(session.canonical) // 2]
        session.drop()
        session.begin()
        session.prefill(kept)


@TARGET("settle below the floor or beyond raises and changes nothing; cases 1.3, 7.8")
def a_settle_that_cannot_be_raises_and_changes_nothing(bench: Bench) -> None:
    """A position above the true one, below the floor or below 0 raises; position, rows and an open span are as before."""
    bench.need_room(40)
    session = bench.session()
    session.prefill(bench.prompts(1, least=4)[0])

    def refuse(base: int, rows: int, position: int) -> None:
        call = Settle(session=session.number, base=base, rows=rows, position=position)
        must_raise(lambda: bench.runtime.settle([call]), f"a settle at {position} from position {session.view().position}")
        session.check()

    for _ in range(2):
        here = len(session.rows)
        refuse(here, 1, here + 1)
        refuse(here - 1, 4, here + 3)
        refuse(-1, here + 1, -1)
        for position in range(session.view().floor):
            refuse(position, here - position, position)
        session.step()
        here += 1
        if bench.info.rollback == "none":
            continue
        session.span(bench.drafted(session, 1, 2))
        refuse(here, 4, here + 5)
        refuse(here, 7, here + 5)
        for position in range(session.view().floor):
            refuse(position, here + 4 - position, position)
        session.settle(2)
        session.step()


@TARGET("declared capabilities true: rollback none; case 1.1")
def spans_are_refused_where_nothing_can_be_rolled_back(bench: Bench) -> None:
    """With rollback none a forward that is not canonical raises NotStarted, before anything is touched."""
    if bench.info.rollback != "none":
        raise NotApplicable(f"rollback is {bench.info.rollback!r}: spans can be run")
    session = bench.session()
    session.prefill(bench.prompts(1)[0])
    call = Forward(session=session.number, base=len(session.rows), tokens=(0, 0), want="all", canonical=False)
    must_refuse(lambda: bench.runtime.forward([call]), "a speculative forward with rollback 'none'")
    session.check()
    session.step()


@TARGET("Settle.rows: how many there are at most; law 8")
def a_settle_of_rows_that_are_not_there_keeps_those_that_are(bench: Bench) -> None:
    """After a forward that failed before it wrote a row the engine settles its rows to its base: what is below stays."""
    bench.need_room(30)
    session = bench.session()
    session.prefill(bench.prompts(1, least=4)[0])
    for rows in (1, 3):
        session.take_back(len(session.rows), rows)
        session.step()


@TARGET("several sessions interleaved; law 8")
def sessions_do_not_see_each_other(bench: Bench) -> None:
    """Prefills, spans, settles, drafts and drops of several sessions, in turn, give each what it gets alone."""
    bench.need_room(60)
    prompts = bench.prompts(4, least=3)
    drafting = bench.info.draft is not None
    sessions = [bench.session(drafting=drafting) for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.prefill(prompt, chunk=2)
    for turn in range(6):
        if bench.info.rollback != "none":
            # All spans are open at once, and are settled in another order.
            kept: list[int] = []
            for at, session in enumerate(sessions):
                if drafting:
                    bench.ask(session, 1 + turn % 2)
                kept.append(session.span(bench.drafted(session, (turn + at) % 3, at % 2)) + 1)
            for session, count in reversed(list(zip(sessions, kept, strict=True))):
                session.settle(count)
        for session in sessions:
            session.step()
        if turn == 3:
            sessions.pop(1).drop()
            sessions.append(bench.session(drafting=drafting))
            sessions[-1].prefill(prompts[0], chunk=2)


@TARGET("protocol: Sampling.masked")
def masked_ids_are_not_chosen_below_their_index_and_may_be_from_it_on(bench: Bench) -> None:
    """The row at position p chooses for index p + 1; a masked id is out below mask_until, row by row, in spans, chunks and serial steps."""
    bench.need_room(40)
    kinds = ("serial", "chunk", "span") if bench.info.rollback != "none" else ("serial", "chunk")
    for prompt in bench.prompts(3, least=3):
        text = [*prompt, *bench.reference.continuation(prompt, 4)]
        for index in range(len(prompt) + 1, len(text)):
            bench.other(text[index])
            for until in (index, index + 1):
                for kind in kinds:
                    session = bench.session(sampling=Sampling(masked=(text[index],), mask_until=until), judged=False)
                    session.place(text[: index - 1])
                    fed = text[index - 2 : index + 1]  # its rows choose for index - 1, index and index + 1
                    if kind == "serial":
                        chosen = [session.forward([token]).predictions[0] for token in fed]
                    else:
                        chosen = session.forward(fed, want="all", canonical=kind == "chunk").predictions
                    for at, token in enumerate(chosen, index - 1):
                        if at < until and bench.reference.choice(text[:at]).token == text[index]:
                            expect(token != text[index], f"id {token} was chosen for index {at} ({kind}) and is masked below {until}")
                        else:
                            bench.reference.agree(text[:at], token, f"a row for index {at} ({kind}), id {text[index]} masked below {until}")
                    session.drop()


@TARGET("protocol: configure")
def another_sampling_holds_for_the_rows_to_come(bench: Bench) -> None:
    """A session that is configured anew chooses by the new sampling from the next row on; other sessions do not."""
    bench.need_room(30)
    prompt = bench.prompts(1, least=3)[0]
    session, other = bench.session(), bench.session()
    for one in (session, other):
        one.prefill(prompt)
    token = bench.reference.choice(session.canonical).token
    bench.other(token)
    bench.runtime.configure(session.number, Sampling(masked=(token,), mask_until=1 << 40))
    session.check()
    other.step()
    session.judge, judge = None, session.judge
    chosen = session.step().predictions[0]
    expect(chosen != token, f"id {token} was chosen though configure had masked it")
    bench.runtime.configure(session.number, Sampling())
    session.judge = judge
    session.step()
    session.step()


@TARGET("protocol: Extras; case 4.8")
def extras_come_one_per_prediction_and_change_none(bench: Bench) -> None:
    """Margins and log probabilities, where the runtime has them, are finite, one per prediction, and the predictions stay the same."""
    bench.need_room(30)
    prompt = bench.prompts(1, least=4)[0]
    given = 0
    for margins, logprobs in ((True, False), (False, True), (True, True)):
        session = bench.session()
        session.prefill(prompt)
        extras = Extras(margins=margins, logprobs=logprobs)
        try:
            answers = [session.step(extras)]
        except NotStarted:
            session.check()
            session.step()
            continue
        given += 1
        if bench.info.rollback != "none":
            session.span(bench.drafted(session, 1, 1))
            session.settle(0)
            draft = bench.drafted(session, 2)
            answers.append(session.forward([*session.canonical[-1:], *draft], want="all", canonical=False, extras=extras, what="a span"))
        for rows in answers:
            _check_extras(rows, margins, logprobs)
    if not given:
        raise NotApplicable("margins and logprobs are refused with NotStarted: the runtime has no extras")


def _check_extras(rows: Rows, margins: bool, logprobs: bool) -> None:
    for name, asked, values in (("margins", margins, rows.margins), ("logprobs", logprobs, rows.logprobs)):
        if not asked:
            continue
        if values is None:
            broken(f"{name} were asked for and did not come (a runtime without them raises NotStarted)")
        expect(len(values) == len(rows.predictions), f"{len(values)} {name} came for {len(rows.predictions)} predictions")
        expect(all(one - one == 0.0 for one in values), f"{name} must be finite, not {values}")
        right = all(one >= 0 for one in values) if name == "margins" else all(one <= 1e-4 for one in values)
        expect(right, f"{name} must be {'at least' if name == 'margins' else 'at most'} 0, not {values}")


@TARGET("declared capabilities true: row_exact; case 4.1")
def rows_are_exact_where_that_is_claimed(bench: Bench) -> None:
    """With row_exact True the choices of a span, and their margins and log probabilities, equal those of serial steps to the bit."""
    if not bench.info.row_exact:
        raise NotApplicable(f"row_exact is {bench.info.row_exact}: not claimed")
    bench.need_rollback()
    bench.need_room(40)
    extras: Extras | None = Extras(margins=True, logprobs=True)
    for prompt in bench.prompts(3, least=4):
        for width in (1, 2, 3, 5, 8):
            # The same way to the same rows, so that nothing but the width differs.
            serial, spanned = bench.session(judged=False), bench.session(judged=False)
            serial.prefill(prompt)
            spanned.prefill(prompt)
            alone: list[Rows] = []
            current = spanned.current
            for _ in range(width + 1):
                try:
                    alone.append(serial.step(extras))
                except NotStarted:
                    extras = None
                    alone.append(serial.step())
            draft = [rows.predictions[0] for rows in alone[:-1]]
            assert current is not None
            rows = spanned.forward([current, *draft], want="all", canonical=False, extras=extras, what="a span")
            expect(
                rows.predictions == tuple(one.predictions[0] for one in alone),
                f"row_exact is claimed; a span chooses {rows.predictions}, serial steps {[one.predictions[0] for one in alone]}",
            )
            for name, values, single in (
                ("margins", rows.margins, [one.margins for one in alone]),
                ("logprobs", rows.logprobs, [one.logprobs for one in alone]),
            ):
                if values is not None:
                    expect(
                        list(values) == [one[0] for one in single if one],
                        f"row_exact is claimed; the {name} of a span of {width + 1} rows are {values}, of serial steps {single}",
                    )
            serial.drop()
            spanned.drop()
