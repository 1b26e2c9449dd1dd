"""Runtimes with a mistake in the draft head. None changes a token of the output: they only draft worse, or seem to."""

import random

import attrs
from broken_base import VOCABULARY, Careless

from spanfold.backends.scripted.device import Device
from spanfold.backends.scripted.targets import mix

#: A pair that was never fed: the zeros that the head's buffer was made with.
ZERO = (0, 0)

# Rows that are missing.


class _SkipsPrompt(Device):
    def feed(self, current, most=None):
        if not self.head:
            self.head.extend([ZERO] * min(len(self.tokens) - 1, self.head_room))
        return super().feed(current, most)


class HeadSkipsPrompt(Careless):
    """The head's cache is not filled over the prompt: its length is set to the prompt's, its rows stay zeros."""

    device = _SkipsPrompt


class _LastForwardOnly(Device):
    def write(self, tokens):
        if len(tokens) > 1:
            self.head.extend([ZERO] * (min(len(self.tokens) - 1, self.head_room) - len(self.head)))
        super().write(tokens)


class HeadSeesLastChunkOnly(Careless):
    """The hidden rows that wait for the head are those of the newest forward: chunks of a prompt before the last one are lost."""

    device = _LastForwardOnly


class _BacklogOverflows(Device):
    def keep_backlog(self):
        if self.drafting:
            self.head.extend([ZERO] * (len(self.tokens) - len(self.head) - self.backlog))
        return 0


class HeadBacklogOverflows(Careless):
    """Hidden rows wait for the head in a ring: where many wait (serial steps without a draft) the oldest are overwritten unfed."""

    device = _BacklogOverflows


class _GapAfterFullAccept(Device):
    gap = None

    def retire(self):
        if self.checkpoint is not None and self.checkpoint.rows > 1:
            self.gap = len(self.tokens) - 2
        super().retire()

    def feed(self, current, most=None):
        fed = super().feed(current, most)
        if self.gap is not None and self.gap < len(self.head):
            if self.gap >= len(self.head) - fed:
                self.head[self.gap] = ZERO
            self.gap = None
        return fed


class HeadGapAfterFullAccept(Careless):
    """The last token of a fully accepted draft never gets its row in the head, whose length counts it all the same (6.6)."""

    device = _GapAfterFullAccept


class _FallsBehind(Device):
    lost = 0

    def cut(self, position, *, restore=True):
        replayed = super().cut(position, restore=restore)
        del self.head[max(position - self.lost, 0) :]
        if len(self.head) > 1:
            self.head.pop()
            self.lost += 1
        self.read.clear()
        return replayed

    def feed(self, current, most=None):
        rows, start = len(self.tokens), len(self.head) + self.lost
        following = [*self.tokens[start + 1 :], *([] if current is None else [current])]
        pairs = list(zip(self.hidden[start:rows], following, strict=False))[:most]
        self.head.extend(pairs)
        return len(pairs)


class HeadFallsBehind(Careless):
    """Every trim takes one row too many off the head, which is never fed again: it falls behind for ever (1.8)."""

    device = _FallsBehind


class LimitZeroFeedsNothing(Careless):
    """An ask for no token returns at once, before the head is fed."""

    def _draft(self, call, fault):
        if call.limit:
            return super()._draft(call, fault)
        view = self.inspect(call.session)
        draft = super()._draft(call, fault)
        del self._device(call.session).head[view.head_position :]
        return draft


# Rows that should not be there.


class _Recycled(Device):
    drafted: dict = {}

    def feed(self, current, most=None):
        fed = super().feed(current, most)
        for at in range(len(self.head) - fed, len(self.head)):
            if at in self.drafted and self.drafted[at][1] == self.head[at][1]:
                self.head[at] = self.drafted[at]
        return fed


class HeadKeepsDraftedRows(Careless):
    """Rows that the head wrote while it drafted stay where the draft was accepted, made from its own hidden states (6.9)."""

    device = _Recycled

    def _draft(self, call, fault):
        draft = super()._draft(call, fault)
        device = self._device(call.session)
        base = len(device.tokens)
        device.drafted = {base + at: (mix(base + at), token) for at, token in enumerate(draft.tokens[:-1])}
        return draft


class _NotRewound(Device):
    def cut(self, position, *, restore=True):
        rewind = self.checkpoint is None
        kept = list(self.head)
        replayed = super().cut(position, restore=restore)
        if rewind:
            self.head[:] = kept
            self.astray = True
        return replayed

    def feed(self, current, most=None):
        rows = len(self.tokens)
        if len(self.head) < rows:
            return super().feed(current, most)
        if current is not None:
            self.head[rows - 1 :] = [(self.hidden[-1], current)]
            del self.read[rows - 1 :]
        return 1


class HeadNotRewound(Careless):
    """A rewind cuts the target only: the head's rows of the old text stay below what is fed next (1.16)."""

    device = _NotRewound

    def inspect(self, session):
        view = super().inspect(session)
        if view is None or view.head_position is None:
            return view
        return attrs.evolve(view, head_position=min(view.head_position, view.position))


class _SharedHead(Device):
    rows: dict

    def feed(self, current, most=None):
        fed = super().feed(current, most)
        for at in range(len(self.head) - fed, len(self.head)):
            self.rows[at] = self.head[at]
        for at in range(len(self.head)):
            self.head[at] = self.rows[at]
        self.read.clear()
        return fed


class HeadShared(Careless):
    """One cache of the head for all sessions; only its lengths are kept per session."""

    device = _SharedHead

    def __init__(self):
        super().__init__()
        self._rows = {}

    def make_device(self, sampling, drafting):
        device = super().make_device(sampling, drafting)
        device.rows = self._rows
        return device


# Views of a head that are not true.


class HeadPositionIsTheTargets(Careless):
    """`view` answers the target's position for the head's, before the head was fed too."""

    def view(self, session):
        view = super().view(session)
        return view if view is None or view.head_position is None else attrs.evolve(view, head_position=view.position)


# Drafts that are no pure function of the canonical prefix (law 11).


class _Redraws(Careless):
    """Changes the drafted tokens behind the first one by ``salt``."""

    def salt(self, call):
        raise NotImplementedError

    def _draft(self, call, fault):
        draft = super()._draft(call, fault)
        salt = self.salt(call)
        return attrs.evolve(draft, tokens=draft.tokens[:1] + tuple((token + salt) % VOCABULARY for token in draft.tokens[1:]))


class DraftRemembersRejected(_Redraws):
    """An n-gram booster of the head learns from every row that was run, those that were trimmed included."""

    def __init__(self):
        super().__init__()
        self._learned = {}

    def salt(self, call):
        return self._learned.get(call.session, 0)

    def _settle(self, call, fault):
        rejected = self._device(call.session).tokens[call.position :]
        settled = super()._settle(call, fault)
        self._learned[call.session] = self._learned.get(call.session, 0) + sum(token + 1 for token in rejected)
        return settled


class DraftDependsOnLimit(_Redraws):
    """The head chooses the best block of exactly ``limit`` tokens: a shorter draft is not the prefix of a longer one."""

    def salt(self, call):
        return call.limit


class DraftUsesAGenerator(_Redraws):
    """The head samples with a generator of its own, so two asks at one prefix differ."""

    def __init__(self):
        super().__init__()
        self._random = random.Random(0)

    def salt(self, call):
        return self._random.randrange(VOCABULARY)


class DraftIgnoresLimit(Careless):
    """The head runs as a graph of fixed depth, and all of its tokens are handed out however few were asked for."""

    def _draft(self, call, fault):
        return super()._draft(attrs.evolve(call, limit=self._info.draft.depth), fault)
