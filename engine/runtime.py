"""The Runtime protocol: what a backend implements so that the engine can decode on it.

Positions are absolute and count rows. A session's *position* is the number of rows in the target's cache, as the runtime
itself finds it (a true length, never a count kept beside it). With ``base`` the position before a forward of ``rows`` rows:

* after it the position is ``base + rows``; row ``i`` sits at position ``base + i`` and predicts the token with the absolute
  index ``base + i + 1``;
* ``settle(position=base + c)`` keeps the rows below ``base + c`` and drops the others. Only then are rows canonical.

The MTP head has a cache of its own. Its row ``p`` is made from the pair (the target's hidden state of row ``p``,
``canonical[p + 1]``), the prompt's pairs included. After a settle it holds nothing speculative. Right after a draft its
length equals the target's position. Between drafts the runtime keeps the target's hidden rows that the head has not seen
(at most a backlog that it states; beyond that it feeds the pairs whose second half is known).

A call raises ``NotStarted`` when nothing was touched. Any other exception leaves the session in an unknown place until a
``settle`` to a known position succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from attrs import field

from .values import RuntimeInfo, Sampling, flag, text, value

__all__ = [
    "Ask",
    "Draft",
    "Extras",
    "Failure",
    "Forward",
    "Rows",
    "Runtime",
    "Settle",
    "Settled",
    "View",
    "Want",
]

Want: TypeAlias = Literal["none", "last", "all"]


@value
class Extras:
    """What a forward should return besides its predictions; a runtime that cannot give one raises ``NotStarted``."""

    margins: bool = field(default=False, validator=flag())
    logprobs: bool = field(default=False, validator=flag())
    logits: bool = field(default=False, validator=flag())


NO_EXTRAS = Extras()


# The calls below are made by the engine from validated events, several per round: they carry no validators.


@value
class Forward:
    """One target forward.

    Attributes:
        session: whose cache.
        base: the position at which the first row goes; a runtime whose own position differs raises ``NotStarted``.
        tokens: the rows' tokens, at least one.
        want: predictions after no row, the last row, or all rows.
        canonical: the rows are canonical already (a prefill chunk, a serial step): no settle follows. Otherwise the
            runtime keeps what it needs to get back to any position in ``[base, base + rows]`` until settle.
        extras: what else to return.
    """

    session: int
    base: int
    tokens: tuple[int, ...]
    want: Want
    canonical: bool
    extras: Extras = NO_EXTRAS


@value
class Rows:
    """The result of one forward.

    Attributes:
        session: whose.
        predictions: the target's own choice after each wanted row, under the session's Sampling. May be shorter than the
            rows wanted only where an earlier prediction differs from the next row's token.
        position: the cache's true length after the forward.
        cost_ns: device time if the runtime knows it; None: the engine takes the wall time of the call.
        margins: per prediction the difference of its two best scores, where asked for.
        logprobs: per prediction its log probability, where asked for.
        logits: the wanted rows' scores, in the backend's own array type, where asked for.
    """

    session: int
    predictions: tuple[int, ...]
    position: int
    cost_ns: int | None = None
    margins: tuple[float, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    logits: object = None


@value
class Settle:
    """Say which rows stay.

    Attributes:
        session: whose.
        base: position before the rows in question.
        rows: how many there are at most; after a failed forward fewer may be present.
        position: the position to end at. ``base + rows`` retires: every row is canonical, the checkpoint goes. Less trims.
            A position above the true one, or below the floor, raises and changes nothing.
    """

    session: int
    base: int
    rows: int
    position: int


@value
class Settled:
    """The result of a settle: the cache's true length after it, and how many rows had to be computed again (0 for a crop)."""

    session: int
    position: int
    replayed_rows: int = 0
    cost_ns: int | None = None


@value
class Ask:
    """Ask the model's own head for a draft.

    Attributes:
        session: whose.
        current: ``canonical[-1]``; completes the newest pair (hidden state of the last row, current).
        limit: most tokens to draft; 0 only feeds the head.
    """

    session: int
    current: int
    limit: int


@value
class Draft:
    """Drafted tokens to follow current: a function of the canonical tokens, a shorter one the beginning of a longer one.

    May be shorter than asked, also empty. Between a rewind and the next forward the head may have no hidden row to start from: then
    a draft may be shorter than that of a fresh session with the same tokens.
    """

    session: int
    tokens: tuple[int, ...]
    cost_ns: int | None = None


@value
class Failure:
    """One session's failed element in a call with several elements; a raised exception is the whole call's.

    Attributes:
        started: False when nothing of this session was touched (the counterpart of ``NotStarted``).
        error: name of the exception's type.
        message: its text.
        cause: the exception itself, where there is one; not compared, never recorded.
    """

    session: int
    started: bool
    error: str = field(validator=text())
    message: str = field(validator=text())
    cause: BaseException | None = field(default=None, eq=False, repr=False)


@value
class View:
    """A session as the runtime itself finds it: true device-side numbers, not a host count.

    Attributes:
        position: rows in the target's cache.
        head_position: rows in the head's cache; None without a head, or where the session does not draft with it.
        checkpoint: whether a verify checkpoint lives.
        floor: the smallest position that settle can reach now.
    """

    position: int
    head_position: int | None
    checkpoint: bool
    floor: int


@runtime_checkable
class Runtime(Protocol):
    """A backend. Calls on one object are serialized by the engine, also across decoders; sessions interleave between calls.

    A runtime object must be hashable and weakly referenceable (with ``__slots__``: name ``__weakref__`` among them): what decoders
    on one runtime share is kept by it.

    Every call takes and returns one element per session, in the same order; more than one element only where ``info.max_batch > 1``.
    ``spanfold.backends.conformance`` tests whether a runtime keeps this contract.
    No call creates a session by accident: an unknown session raises ``NotStarted``.
    """

    @property
    def info(self) -> RuntimeInfo:
        """Constant facts about the runtime."""
        ...

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None:
        """Make an empty session. ``drafting`` False: the session's head is never asked and need not be fed."""
        ...

    def configure(self, session: int, sampling: Sampling) -> None:
        """Change the sampling of a session for the rows to come (a new turn)."""
        ...

    def drop_session(self, session: int) -> None:
        """Release all that a session holds. Unknown or already dropped: nothing happens."""
        ...

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows | Failure]:
        """Run target forwards."""
        ...

    def settle(self, calls: Sequence[Settle]) -> Sequence[Settled | Failure]:
        """Retire or trim; also rewinds."""
        ...

    def draft(self, calls: Sequence[Ask]) -> Sequence[Draft | Failure]:
        """Feed the head what it has not seen, then draft. Leaves nothing speculative in the head's cache."""
        ...

    def view(self, session: int) -> View | None:
        """The session's true numbers; None for an unknown one."""
        ...

    def close(self) -> None:
        """Release everything. Further calls raise."""
        ...
