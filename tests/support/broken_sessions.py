"""Runtimes with a mistake in what their calls answer, refuse and release."""

import attrs
from broken_base import Careless

from spanfold.engine.errors import NotStarted
from spanfold.engine.runtime import Failure
from spanfold.engine.values import Sampling

# Rows and positions.


class PredictionsRotated(Careless):
    """Rows are padded to an even number on the left and the answers are cut off on the right: odd spans come rotated."""

    def _forward(self, call, fault):
        rows = super()._forward(call, fault)
        if len(call.tokens) % 2 and call.want == "all":
            return attrs.evolve(rows, predictions=rows.predictions[-1:] + rows.predictions[:-1])
        return rows


class BonusMissing(Careless):
    """Predictions are compared with the draft and end with it: after a full match the row of the bonus token is missing."""

    origin = "early_exit"

    def _forward(self, call, fault):
        rows = super()._forward(call, fault)
        if call.want == "all" and len(call.tokens) > 1 and rows.predictions[:-1] == call.tokens[1:]:
            return attrs.evolve(rows, predictions=rows.predictions[:-1])
        return rows


class PrefillAnswersLastOnly(Careless):
    """A canonical forward answers after its last row only, also where all rows are wanted."""

    def _forward(self, call, fault):
        return super()._forward(attrs.evolve(call, want="last") if call.canonical and call.want == "all" else call, fault)


class PositionNotAdvanced(Careless):
    """The position that a span reports was read before its rows were written."""

    def _forward(self, call, fault):
        rows = super()._forward(call, fault)
        return rows if call.canonical else attrs.evolve(rows, position=call.base)


class ViewCountsOnTheHost(Careless):
    """`view` answers a count that is kept beside the cache and moved as a forward is asked for, also where it is refused."""

    def __init__(self):
        super().__init__()
        self._counts = {}

    def _forward(self, call, fault):
        self._counts[call.session] = call.base + len(call.tokens)
        return super()._forward(call, fault)

    def _settle(self, call, fault):
        settled = super()._settle(call, fault)
        self._counts[call.session] = call.position
        return settled

    def view(self, session):
        view = super().view(session)
        return view if view is None else attrs.evolve(view, position=self._counts.get(session, 0))


class BaseIgnored(Careless):
    """A forward is appended wherever the cache ends; a base that differs is not looked at."""

    def _forward(self, call, fault):
        return super()._forward(attrs.evolve(call, base=len(self._device(call.session).tokens)), fault)


class RefusesAfterTouching(Careless):
    """Rows are checked one by one as they are written: ``NotStarted`` comes when the ones before are in the cache already."""

    def _forward(self, call, fault):
        device = self._device(call.session)
        room = self._info.context_length - len(device.tokens)
        bad = [at for at, token in enumerate(call.tokens) if at >= room or not 0 <= token < self._info.vocabulary]
        if bad and call.base == len(device.tokens) and device.checkpoint is None:
            device.write(call.tokens[: bad[0]])
            raise NotStarted(f"row {bad[0]} cannot be run")
        return super()._forward(call, fault)


# Settles that should have been refused.


class SettleChecksLate(Careless):
    """The checkpoint is taken off the session before the position is checked: a refused settle has lost it."""

    origin = "checkpoint"

    def _settle(self, call, fault):
        try:
            return super()._settle(call, fault)
        except ValueError:
            self._device(call.session).retire()
            raise


class SettleCutsThenRaises(Careless):
    """A settle below the floor goes back as far as it can and raises then."""

    origin = "checkpoint"

    def _settle(self, call, fault):
        device = self._device(call.session)
        if call.position < device.floor < len(device.tokens):
            device.cut(device.floor)
        return super()._settle(call, fault)


class FloorIsAlwaysZero(Careless):
    """`view` answers 0 for the floor, where only the newest span can be gone back over."""

    origin = "checkpoint"

    def view(self, session):
        view = super().view(session)
        return view if view is None else attrs.evolve(view, floor=0)


class SettleClampsAbove(Careless):
    """A settle above the true position is clamped in silence instead of refused."""

    def _settle(self, call, fault):
        return super()._settle(attrs.evolve(call, position=min(call.position, len(self._device(call.session).tokens))), fault)


class SettleClampsAtFloor(Careless):
    """A settle below the floor ends at the floor in silence instead of being refused."""

    origin = "checkpoint"

    def _settle(self, call, fault):
        return super()._settle(attrs.evolve(call, position=max(call.position, self._device(call.session).floor)), fault)


# Sessions, and several elements per call.


class DropLeavesAnEmptySession(Careless):
    """A drop puts an empty session in the place of the dropped one, to free its memory."""

    def drop_session(self, session):
        known = session in self._devices
        super().drop_session(session)
        if known:
            self._devices[session] = self.make_device(Sampling(), True)


class DropCreatesTheUnknown(Careless):
    """A drop looks the session up in a table that makes what is missing (``defaultdict``)."""

    def drop_session(self, session):
        if session in self._devices:
            super().drop_session(session)
        else:
            self._devices[session] = self.make_device(Sampling(), True)


class DropInASpanLeaks(Careless):
    """A drop between a span and its settle does not give the slot back; there are eight."""

    slots = 8

    def open_session(self, session, sampling, drafting):
        if len(self._devices) >= self.slots:
            raise MemoryError(f"all {self.slots} slots are taken")
        super().open_session(session, sampling, drafting)

    def drop_session(self, session):
        device = self._devices.get(session)
        leaks = device is not None and device.checkpoint is not None
        super().drop_session(session)
        self.slots -= leaks


class ForwardCreatesTheUnknown(Careless):
    """A forward of a session that was never opened, or was dropped, opens it."""

    def _forward(self, call, fault):
        if call.session not in self._devices:
            self._devices[call.session] = self.make_device(Sampling(), True)
        return super()._forward(call, fault)


class CloseKeepsServing(Careless):
    """After `close` new sessions can be opened and run as before."""

    def close(self):
        self._devices.clear()


class ElementsSorted(Careless):
    """Elements are sorted by their number of rows for the device, and the answers are not put back in order."""

    origin = "batch"

    def forward(self, calls):
        return super().forward(sorted(calls, key=lambda call: -len(call.tokens)))


class PaddingEntersTheState(Careless):
    """The rows that pad an element to the longest one of its call run through its state (1.11)."""

    origin = "batch"

    def forward(self, calls):
        answers = super().forward(calls)
        longest = max(len(call.tokens) for call in calls)
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, Failure):
                device = self._device(call.session)
                for _ in range(longest - len(call.tokens)):
                    device.state = device.target.advance(device.state, 0)
        return answers


class OneRefusalRaisesForAll(Careless):
    """One refused element raises ``NotStarted`` for the whole call, when the other elements have run."""

    origin = "batch"

    def forward(self, calls):
        answers = super().forward(calls)
        for answer in answers:
            if isinstance(answer, Failure):
                raise answer.cause
        return answers


class ExtraElementsIgnored(Careless):
    """Of several elements only the first is run, without a word, where one at a time is declared."""

    def forward(self, calls):
        return super().forward(calls[:1])
