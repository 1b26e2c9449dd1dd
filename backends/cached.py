"""What runtimes over attention caches share: when a call is refused, which rows are open, and what the head is handed.

Every call checks its arguments before it touches anything (``NotStarted``), then marks the session *open* for as long as
rows lie in its cache of which it is not known whether they stay: from the start of a forward to its end for canonical
rows, to the settle for a span. While open, the hidden rows of the forward are kept; ``settle`` hands those that stay to
the head. A forward that failed half-way leaves the session open, and a settle to its base leaves exactly the base.

A position is the cache's own number of rows, never a count kept beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from attrs import define, frozen

from ..engine.errors import ConfigError, NotStarted
from ..engine.runtime import Ask, Draft, Failure, Forward, Rows, Settle, Settled, View
from ..engine.values import RuntimeInfo, Sampling
from .pairs import HeadRows

__all__ = ["Array", "CachedRuntime", "CachedSession", "Computed", "Open"]

#: What a backend computes with: torch's tensors, numpy's arrays.
Array: TypeAlias = Any


class Cache(Protocol):
    """The rows of one session."""

    @property
    def rows(self) -> int:
        """How many there are, by the cache itself."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        ...

    def trim_to(self, rows: int) -> None:
        """Keep the first ``rows`` rows."""
        ...


@define
class Open:
    """Rows whose fate is open: where they begin, their tokens, and their hidden states once the model has returned."""

    base: int
    tokens: tuple[int, ...]
    span: bool
    hidden: Array | None = None


@define(kw_only=True)
class CachedSession:
    """One session of a runtime.

    Attributes:
        sampling: how its tokens are chosen.
        masked: its masked ids, where the scores are; None if it has none.
        head_masked: the same as columns of the head's scores.
        cache: the target's rows.
        head: the head's, where it drafts.
        open: rows whose fate is open.
        head_error: what ended its drafting.
    """

    sampling: Sampling
    masked: Array | None
    head_masked: Array | None
    cache: Cache
    head: HeadRows | None
    open: Open | None = None
    head_error: Exception | None = None


@frozen
class Computed:
    """What a forward chose: the wanted rows' ids, and the extras that were asked for."""

    ids: tuple[int, ...] = ()
    margins: tuple[float, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    logits: Array | None = None


_Call = TypeVar("_Call")
S = TypeVar("S", bound=CachedSession)


class CachedRuntime(ABC, Generic[S]):
    """The Runtime protocol, less what a backend does on its device. One element per call."""

    #: Its name in messages.
    backend: ClassVar[str]

    def __init__(self, info: RuntimeInfo) -> None:
        self._info = info
        self._sessions: dict[int, S] = {}
        self._closed = False

    # What a backend does

    @abstractmethod
    def _new_session(self, sampling: Sampling, masked: Array | None, head_masked: Array | None, drafting: bool) -> S:
        """An empty session. Without ``drafting`` it has no head."""

    @abstractmethod
    def _ids(self, ids: list[int]) -> Array:
        """Ids where the scores are."""

    @abstractmethod
    def _head_places(self, masked: Array) -> Array | None:
        """The columns of the head's scores that are masked; None if none is."""

    @abstractmethod
    def _reserve(self, held: S, rows: int) -> None:
        """Make room for ``rows`` rows in all, or raise ``NotStarted`` with the cache as it was."""

    @abstractmethod
    def _compute(self, call: Forward, held: S, opened: Open) -> Computed:
        """Run the rows and choose. Sets ``opened.hidden``, where the session has a head, as soon as the rows are there."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of the model."""

    # What a cache that is not just cut needs; a plain one overrides none of it

    def _floor(self, held: S) -> int:
        """The smallest position that a settle can reach now."""
        return 0

    def _before(self, held: S, rows: int, canonical: bool) -> None:
        """A forward over ``rows`` rows follows: keep what is needed to get back to here, unless they are canonical."""

    def _cut(self, held: S, position: int) -> int:
        """End the target's rows at ``position``, and say how many rows had to be computed again for it."""
        held.cache.trim_to(position)
        return 0

    def _kept(self, held: S) -> None:
        """Every row is canonical now: let go of what was kept for a way back."""

    def _guard(self) -> AbstractContextManager[Any]:
        """In which everything on the device happens; it may belong to the thread."""
        return nullcontext()

    # Facts

    @property
    def info(self) -> RuntimeInfo:
        """Constant facts about the runtime."""
        return self._info

    @property
    def live_sessions(self) -> int:
        """Sessions that hold memory."""
        return len(self._sessions)

    def nbytes(self, session: int) -> int:
        """Bytes of the session's caches, the head's included; 0 for an unknown session."""
        held = self._sessions.get(session)
        if held is None:
            return 0
        return held.cache.nbytes + (held.head.cache.nbytes if held.head is not None else 0)

    # Sessions

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None:
        """Make an empty session. Without ``drafting`` no hidden row is kept and the head is never fed."""
        self._check_open()
        if session in self._sessions:
            raise NotStarted(f"session {session} is open already")
        masked = self._masked(sampling)
        with self._guard():
            self._sessions[session] = self._new_session(sampling, masked, self._head_masked(masked), drafting)

    def configure(self, session: int, sampling: Sampling) -> None:
        """Change the sampling of a session for the rows to come."""
        held = self._held(session)
        masked = self._masked(sampling)
        held.sampling, held.masked, held.head_masked = sampling, masked, self._head_masked(masked)

    def drop_session(self, session: int) -> None:
        """Release the session's caches and hidden rows. Unknown or already dropped: nothing happens."""
        self._sessions.pop(session, None)

    def close(self) -> None:
        """Drop every session and let go of the model. Further calls raise ``NotStarted``; closing again does nothing."""
        self._sessions.clear()
        self._closed = True
        self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise NotStarted("the runtime is closed")

    def _held(self, session: int) -> S:
        self._check_open()
        held = self._sessions.get(session)
        if held is None:
            raise NotStarted(f"session {session} is not open on this runtime")
        return held

    def _settled(self, session: int) -> S:
        held = self._held(session)
        if held.open is not None:
            raise NotStarted(f"session {session} has rows from position {held.open.base} on that were not settled")
        return held

    def _masked(self, sampling: Sampling) -> Array | None:
        if sampling.processors:
            named = ", ".join(processor.name for processor in sampling.processors)
            raise ConfigError(f"Sampling.processors: the {self.backend} backend has none, {named} was asked for")
        known = sorted({token for token in sampling.masked if token < self._info.vocabulary})
        if len(known) == self._info.vocabulary:
            raise ConfigError("Sampling.masked names every id of the vocabulary: no token could be chosen")
        return self._ids(known) if known else None

    def _head_masked(self, masked: Array | None) -> Array | None:
        return None if masked is None else self._head_places(masked)

    def _check_id(self, token: int) -> None:
        # On a device an id outside the embedding is an assertion that its context does not survive; elsewhere a negative one counts
        # from the end and would be answered.
        if not 0 <= token < self._info.vocabulary:
            raise NotStarted(f"token {token} is outside the vocabulary of {self._info.vocabulary}")

    def _only(self, calls: Sequence[_Call]) -> _Call | None:
        if len(calls) > 1:
            raise NotStarted(f"the {self.backend} backend takes one call at a time (max_batch is 1), not {len(calls)}")
        return calls[0] if calls else None

    # Forward

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows | Failure]:
        """Run the target over the rows of one call.

        ``extras.logits`` are the wanted rows' raw scores, the backend's array of shape ``[rows, vocabulary]``; margins and logprobs are
        those of the masked scores that the choice was made from.
        """
        call = self._only(calls)
        if call is None:
            return ()
        held = self._settled(call.session)
        self._check_forward(call, held.cache.rows)
        with self._guard():
            self._reserve(held, call.base + len(call.tokens))
            opened = held.open = Open(call.base, call.tokens, span=not call.canonical)
            self._before(held, len(call.tokens), call.canonical)
            computed = self._compute(call, held, opened)
            if call.canonical:
                self._kept(held)
                self._hand_over(held, opened.hidden, call.tokens)
                held.open = None
        return (
            Rows(
                session=call.session,
                predictions=computed.ids,
                position=held.cache.rows,
                margins=computed.margins,
                logprobs=computed.logprobs,
                logits=computed.logits,
            ),
        )

    def _check_forward(self, call: Forward, position: int) -> None:
        if not call.tokens:
            raise NotStarted("a forward needs at least one token")
        if call.base != position:
            raise NotStarted(f"session {call.session} is at position {position}, the forward's base is {call.base}")
        if call.base + len(call.tokens) > self._info.context_length:
            raise NotStarted(
                f"{len(call.tokens)} rows from position {call.base} on exceed the context length of {self._info.context_length}"
            )
        self._check_id(max(call.tokens))
        self._check_id(min(call.tokens))

    @staticmethod
    def _hand_over(held: CachedSession, hidden: Array | None, tokens: tuple[int, ...]) -> None:
        """Give canonical rows to the head. Its failure ends its drafting, which the next draft says; the rows are unharmed."""
        if held.head is None or hidden is None:
            return
        try:
            held.head.append(hidden, tokens)
        except BaseException as error:
            held.head = None
            if not isinstance(error, Exception):
                held.head_error = RuntimeError(repr(error))
                raise
            held.head_error = error

    # Settle, draft, view

    def settle(self, calls: Sequence[Settle]) -> Sequence[Settled | Failure]:
        """Cut the caches to a position, or keep all rows."""
        call = self._only(calls)
        if call is None:
            return ()
        held = self._held(call.session)
        here = held.cache.rows
        if not call.base <= call.position <= min(call.base + call.rows, here):
            raise ValueError(
                f"session {call.session} is at position {here}: settling {call.rows} rows from {call.base} on cannot end at {call.position}"
            )
        floor = self._floor(held)
        if call.position < floor:
            raise ValueError(f"session {call.session} cannot get back to {call.position}, only to {floor} or further")
        opened = held.open
        kept = 0 if opened is None else max(call.position - opened.base, 0)
        if opened is not None and kept and opened.hidden is None and held.head is not None:
            raise ValueError(f"the forward over {len(opened.tokens)} rows from {opened.base} on failed: none of them can stay")
        with self._guard():
            replayed = self._cut(held, call.position)
            self._kept(held)
            held.open = None
            if held.head is not None:
                held.head.trim_to(call.position)
            if opened is not None and opened.hidden is not None:
                self._hand_over(held, opened.hidden[:kept], opened.tokens[:kept])
        return (Settled(session=call.session, position=held.cache.rows, replayed_rows=replayed),)

    def draft(self, calls: Sequence[Ask]) -> Sequence[Draft | Failure]:
        """Feed the head what it has not seen, then let it draft; shorter than asked at the end of a context or of the depth.

        A failure ends the drafting of the session (its head's rows and waiting rows are released); later calls raise.
        """
        call = self._only(calls)
        if call is None:
            return ()
        held = self._held(call.session)
        if held.head is None:
            if held.head_error is not None:
                raise RuntimeError(f"the head of session {call.session} is off since it failed") from held.head_error
            raise NotStarted(f"session {call.session} has no head to draft with")
        self._settled(call.session)
        self._check_id(call.current)
        try:
            with self._guard():
                tokens = held.head.draft(call.current, self._room(call.limit, held.cache.rows), held.sampling, held.head_masked)
        except BaseException as error:
            held.head = None
            held.head_error = error if isinstance(error, Exception) else RuntimeError(repr(error))
            raise
        return (Draft(session=call.session, tokens=tokens),)

    def _room(self, limit: int, position: int) -> int:
        # position + 1 tokens are canonical; a drafted one must still fit behind them.
        draft = self._info.draft
        if draft is None or position + 1 > draft.context_length:
            return 0
        return max(min(limit, draft.depth, self._info.context_length - position - 1), 0)

    def view(self, session: int) -> View | None:
        """The caches' own numbers of rows. The head's is None without a head, and after the head failed."""
        self._check_open()
        held = self._sessions.get(session)
        if held is None:
            return None
        return View(
            position=held.cache.rows,
            head_position=None if held.head is None else held.head.cache.rows,
            checkpoint=held.open is not None and held.open.span,
            floor=self._floor(held),
        )
