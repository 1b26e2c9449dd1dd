"""What a check works with: runtimes to break, the serial reference, prompts, and the comparison of drafts.

The reference is the runtime itself: decoding one row at a time in a fresh session is the simplest thing that a runtime
does, so everything else is held against it. (What the model should say at all is for the backend's own tests.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final, TypeAlias

from attrs import Attribute, field, frozen

from ...engine.errors import ConfigError, NotStarted
from ...engine.runtime import Extras, Runtime
from ...engine.values import DraftInfo, RuntimeInfo, Sampling
from .outcome import NotApplicable, broken
from .session import Driven

__all__ = ["Bench", "Choice", "Fail", "Make", "Options", "Reference"]

#: Makes a new runtime; several of them may share the loaded weights. The kit closes what it makes.
Make: TypeAlias = Callable[[], Runtime]
#: Given a runtime, a context in which its next forward fails half way: some rows are written, then an exception is raised.
Fail: TypeAlias = Callable[[Any], AbstractContextManager[object]]

#: Tokens per prompt, at most.
_LONGEST: Final = 9


def _at_least(low: float) -> Callable[[object, Attribute[Any], Any], None]:
    def check(owner: object, attribute: Attribute[Any], got: Any) -> None:
        if isinstance(got, bool) or not isinstance(got, int | float) or not got >= low:
            raise ConfigError(f"{attribute.name} must be a number of at least {low:g}, not {got!r}")

    return check


@frozen(kw_only=True)
class Options:
    """What the kit must know of a runtime, and how much it should try.

    Attributes:
        make: makes a new runtime each time it is called.
        margin: bound below which the two best scores of a row count as a near tie: a choice may differ there between a forward
            of one row and one of several. Measure it for backend and dtype; 0.0 allows no difference.
        draft_differences: the share of a check's drafts that may differ from the reference's, since a head's near ties cannot
            be seen. 0.0 allows none.
        fail: makes a forward fail half way; None: what happens after a failure is not checked, which is a visible skip.
        context_reach: contexts longer than this are not filled to their end, which is a visible skip.
        rounds: rounds per case where the head could fall behind.
        examples, steps: of the state machine.
        shrink: whether a failure of the state machine is reduced to a short one.
    """

    make: Make
    margin: float = field(default=0.0, validator=_at_least(0))
    draft_differences: float = field(default=0.0, validator=_at_least(0))
    fail: Fail | None = None
    context_reach: int = field(default=2048, validator=_at_least(1))
    rounds: int = field(default=50, validator=_at_least(1))
    examples: int = field(default=20, validator=_at_least(1))
    steps: int = field(default=25, validator=_at_least(1))
    shrink: bool = True


@frozen
class Choice:
    """The token that the target chooses after a prefix, and the margin to the next best (None: the runtime does not say)."""

    token: int
    margin: float | None


class Reference:
    """What the runtime gives one row at a time, and what its head drafts in a fresh session; kept for every prefix asked for.

    It works on a runtime of its own, which `close` closes.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._choices: dict[tuple[int, ...], Choice] = {}
        self._drafts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._session: Driven | None = None
        self._extras: Extras | None = Extras(margins=True) if options.margin else None

    @cached_property
    def runtime(self) -> Runtime:
        """The reference's own runtime."""
        return self._options.make()

    @cached_property
    def info(self) -> RuntimeInfo:
        """What the runtime says of itself."""
        return self.runtime.info

    def choice(self, prefix: Sequence[int]) -> Choice:
        """The choice after the prefix's last row, every row of it computed alone."""
        wanted = tuple(prefix)
        if wanted not in self._choices:
            session, self._session = self._session, None  # not kept where something fails: it would be in an unknown place
            if session is None or tuple(session.rows) != wanted[: len(session.rows)]:
                if session is not None:
                    session.drop()
                session = Driven(self.runtime)
            for token in wanted[len(session.rows) :]:
                rows = self._row(session, token)
                margin = rows.margins[0] if rows.margins else None
                self._choices[tuple(session.rows)] = Choice(rows.predictions[0], margin)
            self._session = session
        return self._choices[wanted]

    def _row(self, session: Driven, token: int) -> Any:
        try:
            return session.forward([token], extras=self._extras, what="a serial step of the reference")
        except NotStarted:
            if self._extras is None:
                raise
            self._extras = None  # a runtime need not know margins; then no difference can be excused by them
            return self._row(session, token)

    def continuation(self, prefix: Sequence[int], count: int) -> list[int]:
        """The next ``count`` tokens, one row at a time."""
        tokens = list(prefix)
        for _ in range(count):
            tokens.append(self.choice(tokens).token)
        return tokens[len(prefix) :]

    def agree(self, prefix: Sequence[int], chosen: int, what: str) -> bool:
        """True if the target chooses ``chosen``, False for a near tie; anything else breaks the contract."""
        expected = self.choice(prefix)
        if chosen == expected.token:
            return True
        bound = self._options.margin
        if expected.margin is not None and expected.margin < bound:
            return False
        known = "unknown" if expected.margin is None else f"{expected.margin:g}"
        allowed = f"its margin is {known}, the bound {bound:g}" if bound else "no difference is allowed (margin=0)"
        broken(f"{what}: after {len(prefix)} tokens the choice is {chosen}; one row at a time it is {expected.token}, and {allowed}")

    def draft(self, canonical: Sequence[int], limit: int) -> tuple[int, ...]:
        """What the head drafts in a fresh session whose prompt are all these tokens but the last."""
        wanted = tuple(canonical)
        if wanted not in self._drafts:
            info = self.info.draft
            assert info is not None
            session = Driven(self.runtime, drafting=True).place(wanted)
            self._drafts[wanted] = session.draft(min(info.depth, _DRAFTED, info.context_length - len(wanted)))
            session.drop()
        return self._drafts[wanted][:limit]

    def close(self) -> None:
        """Close its runtime, if it made one."""
        if "runtime" in self.__dict__:
            self.runtime.close()


#: Most tokens of a draft that is compared.
_DRAFTED: Final = 6


class Bench:
    """One check's view of the runtime.

    Args:
        options: see there.
        reference: shared by the checks of one run.
    """

    def __init__(self, options: Options, reference: Reference) -> None:
        self.options, self.reference = options, reference
        self._made: list[Runtime] = []
        self._compared = 0
        self._differing: list[str] = []

    # Runtimes and sessions

    def make(self) -> Runtime:
        """A new runtime, closed when the check ends."""
        runtime = self.options.make()
        self._made.append(runtime)
        return runtime

    @cached_property
    def runtime(self) -> Runtime:
        """This check's runtime."""
        return self.make()

    @cached_property
    def info(self) -> RuntimeInfo:
        """What the runtime says of itself."""
        return self.runtime.info

    def session(self, *, drafting: bool = False, sampling: Sampling | None = None, judged: bool = True) -> Driven:
        """A new session on this check's runtime; ``judged``: its predictions are held against the reference."""
        return Driven(self.runtime, self.reference if judged else None, drafting=drafting, sampling=sampling)

    def finish(self) -> None:
        """The check has run to its end: judge the drafts that differed."""
        allowed = self.options.draft_differences * self._compared
        if len(self._differing) > allowed:
            broken(
                f"{len(self._differing)} of {self._compared} drafts differ, {int(allowed)} may (draft_differences); the first: "
                + self._differing[0]
            )

    def close(self) -> None:
        """Close what was made."""
        for runtime in self._made:
            runtime.close()

    # What a check needs

    def need_rollback(self) -> None:
        """Skip the check for a runtime that runs no spans."""
        if self.info.rollback == "none":
            raise NotApplicable("rollback is 'none': this runtime runs no spans")

    def need_crop(self) -> None:
        """Skip the check for a runtime that cannot cut canonical rows."""
        if self.info.rollback != "crop":
            raise NotApplicable(f"rollback is {self.info.rollback!r}: canonical rows cannot be cut")

    def need_head(self) -> DraftInfo:
        """Skip the check for a model without an MTP head; else what the head says of itself."""
        if self.info.draft is None:
            raise NotApplicable("draft is None: this model has no MTP head")
        return self.info.draft

    def need_room(self, rows: int) -> None:
        """Skip the check for a context that is too short for it."""
        if self.info.context_length < rows:
            raise NotApplicable(f"context_length is {self.info.context_length}: this check needs {rows}")

    # Tokens

    def prompts(self, count: int, least: int = 1) -> list[tuple[int, ...]]:
        """So many prompts of ids in the vocabulary, of ``least`` to nine tokens; the same in every run."""
        chance = random.Random(20 + least)
        vocabulary = self.info.vocabulary
        return [tuple(chance.randrange(vocabulary) for _ in range(least + at % (_LONGEST - least + 1))) for at in range(count)]

    def other(self, token: int, by: int = 1) -> int:
        """Another id than this one. Skips the check for a vocabulary of one."""
        if self.info.vocabulary < 2:
            raise NotApplicable("the vocabulary holds one id: no draft can be wrong")
        return (token + 1 + (by - 1) % (self.info.vocabulary - 1)) % self.info.vocabulary

    def drafted(self, session: Driven, right: int, wrong: int = 0) -> list[int]:
        """A draft with ``right`` tokens as the target chooses them, then ``wrong`` others."""
        tokens = self.reference.continuation(session.canonical, right + min(wrong, 1))
        if wrong:
            tokens[right] = self.other(tokens[right])
            tokens += [self.other(tokens[right], by) for by in range(1, wrong)]
        return tokens

    # Drafts

    def ask(self, session: Driven, limit: int, what: str = "a draft") -> tuple[int, ...]:
        """A draft of the session, which must be what a fresh session with the same canonical tokens drafts (law 11).

        As the engine does, it asks for no more than fit into the head's context, and beyond it not at all.
        """
        info = session.runtime.info.draft
        room = 0 if info is None else info.context_length - len(session.canonical)
        if room < 1:
            return ()
        limit = min(limit, room, info.depth if info is not None else 0)
        got = session.draft(limit)
        expected = self.reference.draft(session.canonical, limit)
        if limit > _DRAFTED:
            got = got[:_DRAFTED]
        self._compared += 1
        if got != expected and not (session.cut and got == expected[: len(got)]):
            self._differing.append(f"{what} after {len(session.canonical)} tokens is {got}, a fresh session drafts {expected}")
            if not self.options.draft_differences:
                self.finish()
        return got
