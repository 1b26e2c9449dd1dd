"""Runtimes with a mistake in getting back: trims, recurrent states and their checkpoints."""

import attrs
from broken_base import Careless

from spanfold.backends.scripted.device import Device
from spanfold.engine.runtime import Settled

# Trims. The simulated device keeps one state that the next row starts from: what attention over the cache would find.


class _StateStays(Device):
    def cut(self, position, *, restore=True):
        stale = self.state
        replayed = super().cut(position, restore=restore)
        self.state = stale
        return replayed


class TrimNoOp(Careless):
    """A trim moves the length that is reported, and the next rows attend to the rejected rows all the same (1.7)."""

    device = _StateStays


class StaleRecurrentState(Careless):
    """A trim cuts the rows and replays them, but the recurrent state after the whole span stays (1.1)."""

    origin = "checkpoint"
    device = _StateStays


class _SkipsOneRow(Device):
    def cut(self, position, *, restore=True):
        stale = self.state if len(self.tokens) - position == 1 else None
        replayed = super().cut(position, restore=restore)
        if stale is not None:
            self.state = stale
        return replayed


class TrimSkipsOneRow(Careless):
    """A trim by exactly one row is taken for nothing to do (``excess > 1``)."""

    device = _SkipsOneRow


class _OneTooMany(Device):
    def cut(self, position, *, restore=True):
        replayed = super().cut(position, restore=restore)
        self.state = self.hidden[-2] if len(self.hidden) > 1 else self.target.start()
        return replayed


class TrimOneTooMany(Careless):
    """A trim loses the last row that should stay; the length says that it is there (1.3)."""

    device = _OneTooMany


class _OneTooFew(Device):
    def cut(self, position, *, restore=True):
        rejected = self.hidden[position]
        replayed = super().cut(position, restore=restore)
        self.state = rejected
        return replayed


class TrimOneTooFew(Careless):
    """A trim leaves one rejected row visible; the length says that it is gone (1.3)."""

    device = _OneTooFew


class _NotToZero(Device):
    def cut(self, position, *, restore=True):
        if not position:
            self.checkpoint = None
            return 0
        return super().cut(position, restore=restore)


class TrimToZeroIgnored(Careless):
    """A trim to position 0 is taken for "no position given" and keeps everything (1.3)."""

    device = _NotToZero


class _KeepsFirstRow(Device):
    def cut(self, position, *, restore=True):
        span = self.checkpoint
        first = self.hidden[span.base] if span is not None and span.base == position else None
        replayed = super().cut(position, restore=restore)
        if first is not None:
            self.state = first
        return replayed


class TrimKeepsFirstRow(Careless):
    """A span always commits something, the author thought: a trim back to base leaves the row of current visible."""

    device = _KeepsFirstRow


class TrimsRelatively(Careless):
    """A settle drops ``base + rows - position`` rows off the end, however many there are: too many where fewer are present."""

    def _settle(self, call, fault):
        device = self._device(call.session)
        to = max(len(device.tokens) - (call.base + call.rows - call.position), 0)
        if to < call.position <= len(device.tokens):
            device.cut(to)
            return Settled(session=call.session, position=len(device.tokens))
        return super()._settle(call, fault)


# Recurrent states and their checkpoints.


class _WithoutReplay(Device):
    def cut(self, position, *, restore=True):
        before = self.checkpoint.state
        replayed = super().cut(position, restore=restore)
        self.state = before
        return replayed


class RestoreWithoutReplay(Careless):
    """A trim restores the checkpoint's state and forgets to feed the kept rows to it again (1.1)."""

    origin = "checkpoint"
    device = _WithoutReplay


class _MarkedLate(Device):
    def cut(self, position, *, restore=True):
        base = self.checkpoint.base
        state, kept = self.hidden[base], self.tokens[base:position]
        replayed = super().cut(position, restore=restore)
        for token in kept:
            state = self.target.advance(state, token)
        self.state = state
        return replayed


class CheckpointTakenLate(Careless):
    """The checkpoint is taken after the row of current ran, so a trim counts that row twice."""

    origin = "checkpoint"
    device = _MarkedLate


class _NotRenewed(Device):
    kept = None

    def mark(self, rows):
        super().mark(rows)
        if self.kept is None:
            self.kept = self.state

    def cut(self, position, *, restore=True):
        rows = self.tokens[self.checkpoint.base : position]
        replayed = super().cut(position, restore=restore)
        state, self.kept = self.kept, None
        for token in rows:
            state = self.target.advance(state, token)
        self.state = state
        return replayed


class CheckpointNotRenewed(Careless):
    """A retire keeps the snapshot and the next span does not overwrite it: a rejection after a full accept restores an old one."""

    origin = "checkpoint"
    device = _NotRenewed


class _SharedSnapshot(Device):
    snapshots: dict

    def mark(self, rows):
        super().mark(rows)
        self.snapshots["newest"] = self.state

    def cut(self, position, *, restore=True):
        self.checkpoint = attrs.evolve(self.checkpoint, state=self.snapshots["newest"])
        return super().cut(position, restore=restore)


class SnapshotShared(Careless):
    """One snapshot buffer for all sessions: a span of another session before the settle overwrites it."""

    origin = "checkpoint"
    device = _SharedSnapshot

    def __init__(self):
        super().__init__()
        self._snapshots = {}

    def make_device(self, sampling, drafting):
        device = super().make_device(sampling, drafting)
        device.snapshots = self._snapshots
        return device


class SlotNotCleared(Careless):
    """A new session gets the slot of a dropped one, with the recurrent state that lies in it."""

    origin = "checkpoint"

    def __init__(self):
        super().__init__()
        self._free = []

    def make_device(self, sampling, drafting):
        device = super().make_device(sampling, drafting)
        if self._free:
            device.state = self._free.pop()
        return device

    def drop_session(self, session):
        device = self._devices.get(session)
        super().drop_session(session)
        if device is not None:
            self._free.append(device.state)


class _StartsFromZero(Device):
    def write(self, tokens):
        if len(tokens) > 1:
            self.state = self.target.start()
        super().write(tokens)


class ZeroStateMultiToken(Careless):
    """A forward of more than one row starts from the zero state, as if the cache were empty (1.2)."""

    origin = "checkpoint"
    device = _StartsFromZero


class SerialKeepsCheckpoint(Careless):
    """A canonical forward takes a checkpoint too, which nothing settles: it stays with the session until the next span."""

    origin = "checkpoint"

    def __init__(self):
        super().__init__()
        self._kept = {}

    def _forward(self, call, fault):
        rows = super()._forward(call, fault)
        self._kept[call.session] = call.base if call.canonical else None
        return rows

    def _settle(self, call, fault):
        settled = super()._settle(call, fault)
        self._kept[call.session] = None
        return settled

    def inspect(self, session):
        view, base = super().inspect(session), self._kept.get(session)
        return view if view is None or base is None else attrs.evolve(view, checkpoint=True, floor=base)
