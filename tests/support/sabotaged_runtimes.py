"""Runtimes that are broken on purpose, each in one way that real ones have been, over the scripted runtime.

Written beside the kit's checks; ``broken_runtimes.py`` holds others, by someone who had not read them.
"""

from __future__ import annotations

import attrs

from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.backends.scripted.device import Device
from spanfold.engine import Draft, Settled


class Sabotaged(ScriptedRuntime):
    """Sessions lie on a device of another class."""

    device: type[Device] = Device

    def open_session(self, session, sampling, drafting):
        super().open_session(session, sampling, drafting)
        self._devices[session].__class__ = self.device


def made(kind, **options):
    options = {"drafts": noisy(5, 0.6), "context_length": 200, "record": False} | options
    return lambda: kind(hash_target(3, 17), **options)


class TrimThatLies(Sabotaged):
    """settle and view say what was asked for; the rows are still there."""

    class device(Device):
        __slots__ = ()

        def cut(self, position, *, restore=True):
            self.claimed[id(self)] = position
            self.checkpoint = None
            del self.head[position:], self.read[position:]
            return 0

        claimed: dict = {}

    def _settle(self, call, fault):
        settled = super()._settle(call, fault)
        return attrs.evolve(settled, position=call.position)

    def inspect(self, session):
        view, device = super().inspect(session), self._devices.get(session)
        claimed = None if device is None else self.device.claimed.get(id(device))
        return view if claimed is None else attrs.evolve(view, position=claimed)

    def _forward(self, call, fault):
        # The new rows go behind the stale ones; the count is the host's.
        device = self._device(call.session)
        claimed = self.device.claimed.pop(id(device), None)
        if claimed is None:
            return super()._forward(call, fault)
        base = len(device.tokens)
        rows = super()._forward(attrs.evolve(call, base=base), fault)
        return attrs.evolve(rows, position=call.base + len(call.tokens))


class KeepsRecurrentState(Sabotaged):
    """Case 1.1: the cache is cut, the running state is not restored."""

    class device(Device):
        __slots__ = ()

        def cut(self, position, *, restore=True):
            kept = self.tokens[self.checkpoint.base : position] if self.checkpoint else ()
            super().cut(position, restore=False)
            return len(kept)


class SharesHiddenRows(Sabotaged):
    """One buffer of hidden rows for all sessions: the head of one is fed what the target wrote for another."""

    class device(Device):
        __slots__ = ()
        buffer: dict = {}

        def write(self, tokens):
            super().write(tokens)
            first = len(self.tokens) - len(tokens)
            self.buffer.update({first + at: state for at, state in enumerate(self.hidden[first:])})

        def feed(self, current, most=None):
            own, self.hidden = self.hidden, [self.buffer.get(at, state) for at, state in enumerate(self.hidden)]
            try:
                return super().feed(current, most)
            finally:
                self.hidden = own


class HeadKeepsItsNewestPair(Sabotaged):
    """Cases 1.8 and 6.9: after a cut the head holds pairs made from rows that were rejected."""

    def _draft(self, call, fault):
        device = self._device(call.session)
        fed = super()._draft(call, fault)
        if fed.tokens:
            device.speculate(fed.tokens[:1])
        return fed

    def inspect(self, session):
        view = super().inspect(session)
        return view and attrs.evolve(view, head_position=view.head_position and min(view.head_position, view.position))


class KeepsWhatWasDropped(Sabotaged):
    """A list somewhere holds every session that ever was; nothing in the protocol shows it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._kept = []

    def drop_session(self, session):
        self._kept.append(self._devices.get(session))
        super().drop_session(session)


class CountsOnTheHost(Sabotaged):
    """The position is what was fed as far as the host remembers, and the host forgets a forward that failed."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._count = {}

    def open_session(self, session, sampling, drafting):
        super().open_session(session, sampling, drafting)
        self._count[session] = 0

    def drop_session(self, session):
        super().drop_session(session)
        self._count.pop(session, None)

    def _forward(self, call, fault):
        device = self._device(call.session)
        if call.base == self._count[call.session]:
            call = attrs.evolve(call, base=len(device.tokens))
        rows = super()._forward(call, fault)
        self._count[call.session] += len(call.tokens)
        return attrs.evolve(rows, position=self._count[call.session])

    def _settle(self, call, fault):
        device = self._device(call.session)
        if call.position == call.base == self._count[call.session]:
            device.retire()  # nothing to take back: the host counts no row above it
            return Settled(session=call.session, position=call.position)
        settled = super()._settle(call, fault)
        self._count[call.session] = settled.position
        return settled

    def inspect(self, session):
        view = super().inspect(session)
        return view and attrs.evolve(view, position=self._count[session])


class ClaimsExactRows(Sabotaged):
    """row_exact is declared, and a row's scores depend on how many rows its forward has."""

    def _forward(self, call, fault):
        rows = super()._forward(call, fault)
        if rows.margins is None or len(call.tokens) == 1:
            return rows
        return attrs.evolve(rows, margins=tuple(margin * (1 + 1e-7) for margin in rows.margins))


class TakesBatchesOfOneOnly(Sabotaged):
    """max_batch 3 is declared; all elements of a call are cut where the first one is (case 1.11)."""

    def settle(self, calls):
        rows = calls[0].position - calls[0].base
        return super().settle([attrs.evolve(call, position=min(call.base + rows, call.base + call.rows)) for call in calls])


class SpansWithoutRollback(Sabotaged):
    """rollback none is declared, and speculative rows are taken."""

    @property
    def info(self):
        return attrs.evolve(super().info, rollback="none")


class DraftsWithoutAHead(Sabotaged):
    """No head is declared, and a draft is answered: with nothing."""

    def _draft(self, call, fault):
        self._device(call.session)
        return Draft(session=call.session, tokens=())


#: name -> (what makes it, a check that must fail for it)
SABOTAGED = {
    "a trim that lies": (made(TrimThatLies), "every_cut_of_a_span_leaves_exactly_the_rows_below_it"),
    "a stale recurrent state": (made(KeepsRecurrentState, rollback="checkpoint"), "rejections_leave_no_trace"),
    "hidden rows shared between sessions": (made(SharesHiddenRows, drafts=noisy(5, 0.6)), "sessions_do_not_see_each_other"),
    "a head that keeps rejected pairs": (made(HeadKeepsItsNewestPair), "a_draft_depends_on_the_canonical_tokens_alone"),
    "a session leak": (made(KeepsWhatWasDropped), "dropped_sessions_leave_nothing_behind"),
    "a host count for the position": (made(CountsOnTheHost), "a_forward_that_failed_half_way_settles_to_its_base"),
    "a false claim: row_exact": (made(ClaimsExactRows), "rows_are_exact_where_that_is_claimed"),
    "a false claim: max_batch": (made(TakesBatchesOfOneOnly, max_batch=3), "elements_of_one_call_are_each_as_alone"),
    "spans without a rollback": (made(SpansWithoutRollback), "spans_are_refused_where_nothing_can_be_rolled_back"),
    "drafts without a head": (made(DraftsWithoutAHead, head=False), "a_model_without_a_head_refuses_to_draft"),
}
