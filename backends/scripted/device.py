"""What the simulated device holds for one session: the target's cache, a recurrent state, and the head's cache.

Nothing here is believed: a row holds the token that was fed, its state is folded from the rows below it *as they lie in the
cache*, and the head's pairs are made from those states. A wrong trim, a missed restore or an unfed head therefore shows in
later tokens and drafts, as on a real device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from ...engine.values import Rollback, Sampling
from .drafts import HeadView
from .targets import State, Target

__all__ = ["Device"]

_MASK = (1 << 64) - 1
_NOTHING: frozenset[int] = frozenset()


@attrs.frozen
class _Checkpoint:
    base: int
    rows: int
    state: State


class Device:
    """One session's caches. All lengths are the lengths of real lists."""

    __slots__ = (
        "astray",
        "backlog",
        "checkpoint",
        "drafting",
        "head",
        "head_room",
        "hidden",
        "masked",
        "read",
        "rollback",
        "sampling",
        "state",
        "target",
        "tokens",
    )

    def __init__(self, target: Target, sampling: Sampling, *, rollback: Rollback, drafting: bool, head_room: int, backlog: int) -> None:
        self.target = target
        self.rollback = rollback
        self.drafting = drafting
        self.head_room = head_room
        self.backlog = backlog
        self.tokens: list[int] = []
        self.hidden: list[State] = []
        self.state: State = target.start()
        self.checkpoint: _Checkpoint | None = None
        self.astray = False
        self.head: list[tuple[State, int]] = []
        self.read: list[tuple[int, bool]] = []
        self.configure(sampling)

    def configure(self, sampling: Sampling) -> None:
        """Another sampling for the rows to come."""
        self.sampling = sampling
        self.masked = frozenset(sampling.masked) if sampling.mask_until > 0 else _NOTHING

    def banned(self, index: int) -> Collection[int]:
        """The ids that may not be chosen for an absolute index."""
        return self.masked if index < self.sampling.mask_until else _NOTHING

    @property
    def floor(self) -> int:
        """The smallest position that a settle can reach now."""
        if self.rollback == "crop":
            return 0
        return self.checkpoint.base if self.checkpoint is not None else len(self.tokens)

    def mark(self, rows: int) -> None:
        """Keep what it takes to get back to the present position: called before speculative rows are written."""
        self.checkpoint = _Checkpoint(len(self.tokens), rows, self.state)

    def write(self, tokens: Sequence[int]) -> None:
        """Put rows into the cache."""
        advance, state = self.target.advance, self.state
        for token in tokens:
            state = advance(state, token)
            self.tokens.append(token)
            self.hidden.append(state)
        self.state = state

    def predict(self, first: int) -> tuple[int, ...]:
        """The target's choice after each row from ``first`` on."""
        choose, banned = self.target.choose, self.banned
        if not self.masked:
            return tuple([choose(state, _NOTHING) for state in self.hidden[first:]])
        return tuple([choose(state, banned(first + 1 + at)) for at, state in enumerate(self.hidden[first:])])

    def retire(self) -> None:
        """Every row is canonical."""
        self.checkpoint = None

    def cut(self, position: int, *, restore: bool = True) -> int:
        """Cut back to ``position``; returns the rows computed again for it.

        A crop runtime's rows each hold their own state, so cutting is all. A checkpoint runtime has one recurrent state: it
        must be restored to the checkpoint's and the kept rows fed again. ``restore=False`` is the fault of leaving it.
        """
        replayed = 0
        if self.rollback == "crop":
            del self.tokens[position:], self.hidden[position:]
            self.state = self.hidden[-1] if self.hidden else self.target.start()
        elif position < len(self.tokens) and restore:
            checkpoint = self.checkpoint
            assert checkpoint is not None, "the floor was checked"
            kept = self.tokens[checkpoint.base : position]
            del self.tokens[checkpoint.base :], self.hidden[checkpoint.base :]
            self.state = checkpoint.state
            self.write(kept)
            replayed = len(kept)
        else:
            del self.tokens[position:], self.hidden[position:]
        self.checkpoint = None
        del self.head[position:], self.read[position:]
        return replayed

    def feed(self, current: int | None, most: int | None = None) -> int:
        """Feed the head every pair whose two halves are known and that it has room for; returns how many.

        Args:
            current: the token that completes the newest pair; None leaves that pair for later.
            most: feed no more than so many.
        """
        hidden, tokens, head = self.hidden, self.tokens, self.head
        start, rows = len(head), len(tokens)
        end = min(rows, self.head_room) if most is None else min(rows, self.head_room, start + most)
        last = min(end, rows - 1)
        if start < last:
            head.extend(zip(hidden[start:last], tokens[start + 1 : last + 1], strict=True))
        if current is not None and end == rows and len(head) < rows:
            head.append((hidden[-1], current))
        return len(head) - start

    def keep_backlog(self) -> int:
        """After rows became canonical: feed the head if more pairs wait than the backlog holds; returns how many were fed."""
        if not self.drafting or len(self.tokens) - len(self.head) <= self.backlog:
            return 0
        return self.feed(None)

    def speculate(self, tokens: Sequence[int]) -> None:
        """The fault of a head that keeps what it drafted: pairs of rows that nothing verified."""
        self.astray = True
        state, token = self.head[-1]
        for drafted in tokens:
            state = self.target.advance(state, token)
            self.head.append((state, drafted))
            token = drafted

    def attend(self) -> tuple[int, bool]:
        """What an attention over all pairs would find: a hash of them, and whether each follows from the one before it.

        Read as far as it was read before, so that a draft costs O(1); a cut forgets with the pairs.
        """
        head, read = self.head, self.read
        folded, sound = read[-1] if read else (0, True)
        for at in range(len(read), len(head)):
            hidden, token = head[at]
            sound = sound and (at == 0 or hidden == self.target.advance(*head[at - 1]))
            folded = ((folded ^ (hash(hidden) & _MASK)) * 0x9E3779B97F4A7C15 + token + 1) & _MASK
            read.append((folded, sound))
        return folded, sound

    def see_head(self, vocabulary: int) -> HeadView:
        """The head's cache as a draft model sees it; there is at least one pair."""
        hidden, current = self.head[-1]
        return HeadView(len(self.head), hidden, current, self.target, vocabulary, self.banned, self.attend)
