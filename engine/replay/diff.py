"""Compare two logs of one prompt: two backends, two versions, two policies. The first difference, then both accounts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final, cast

import attrs
from attrs import frozen

from ..errors import IllegalEvent, TraceError
from ..events import Event, FinishReason, Record, SessionOpened
from .check import Status
from .choices import Choice, ChoiceReader, Verdict, bound_for, judged
from .plain import Plain
from .sessions import SessionKey
from .stats import Account, SessionCounter, account_of

__all__ = ["DiffReport", "EventDifference", "Setting", "Side", "TokenDifference", "diff"]

#: What two runs of one prompt may be made with: told as settings, not as a difference of their decisions.
_SETTINGS: Final = ("policy", "runtime", "draft", "rules", "sampling")
_MEASURED: Final = frozenset(("margin", "margins", "logprob", "logprobs"))


@frozen(kw_only=True)
class Setting(Plain):
    """A setting in which the runs differ, as a path (``runtime.dtype``)."""

    name: str
    a: Any
    b: Any


@frozen(kw_only=True)
class TokenDifference(Plain):
    """The first token that differs; a side that has no token there (it ended, or was rewound elsewhere) is None.

    ``position`` is the absolute index in the session; ``given``: it is one of the prompt or an extension, so the runs were not of
    one input. Margins are those between the two best scores, where recorded.
    """

    position: int
    given: bool
    a: int | None
    b: int | None
    margin_a: float | None
    margin_b: float | None
    seq_a: int | None
    seq_b: int | None


@frozen(kw_only=True)
class EventDifference(Plain):
    """The first event that differs, costs, margins and log probabilities aside; None where a log has ended."""

    seq: int
    a: Event | None
    b: Event | None


@frozen(kw_only=True)
class Side(Plain):
    """One of the two runs."""

    records: int
    finish: FinishReason | None
    account: Account


@frozen(kw_only=True)
class DiffReport(Plain):
    """What differs.

    Attributes:
        status: ``holds`` where tokens and reasons to finish are the same or part at a near tie, else ``violated``.
        verdict: ``equal``, ``near_tie`` (the margin at the first difference is below ``bound``) or ``defect``.
        bound: on the margin; see docs/explanation/numerics.md.
        settings, tokens, events: the differences; events part sooner than tokens where drafts or policies do.
        a, b: both accounts.
        sentence: the outcome in one line.
    """

    status: Status
    verdict: Verdict
    bound: float
    settings: tuple[Setting, ...]
    tokens: TokenDifference | None
    events: EventDifference | None
    a: Side
    b: Side
    sentence: str


def diff(log_a: Iterable[Record], log_b: Iterable[Record], *, bound: float | None = None) -> DiffReport:
    """Compare the logs of two sessions.

    Args:
        log_a: the records of one session, from its first on.
        log_b: those of the other.
        bound: margin below which a differing choice is a near tie; None: the larger of those measured for the two runtimes.

    Raises:
        TraceError: a log is empty, or does not fold.
    """
    one, other = _Reading("the first log", log_a), _Reading("the second log", log_b)
    events, tokens = _first_differences(one, other)
    opened_a, opened_b = one.opened, other.opened
    margin_bound = bound_for((opened_a.runtime, opened_b.runtime), bound)
    a, b = one.side(), other.side()
    verdict: Verdict = "equal"
    sentence = f"the tokens are equal: {a.account.tokens} decoded"
    if tokens is not None:
        verdict = "defect" if tokens.given else judged((tokens.margin_a, tokens.margin_b), margin_bound)
        sentence = _told(tokens, verdict, margin_bound)
    elif a.finish != b.finish:
        verdict = "defect"
        sentence = f"the tokens are equal, the reasons to finish are not: {a.finish} and {b.finish}"
    return DiffReport(
        status="violated" if verdict == "defect" else "holds",
        verdict=verdict,
        bound=margin_bound,
        settings=tuple(_settings(opened_a, opened_b)),
        tokens=tokens,
        events=events,
        a=a,
        b=b,
        sentence=sentence,
    )


class _Reading:
    """One log, read once: its events, its choices, its account."""

    def __init__(self, name: str, records: Iterable[Record]) -> None:
        self._name = name
        self._records = iter(records)
        self._counter = SessionCounter(SessionKey(0, 0))
        self._reader = ChoiceReader()
        self.choices: deque[Choice] = deque()  # those that the other log has no partner for yet
        self.count = 0

    def events(self) -> Iterator[Record]:
        for record in self._records:
            try:
                self._counter.feed(record)
            except IllegalEvent as illegal:
                raise TraceError(f"{self._name} does not fold at record {record.seq} ({illegal}): check it") from illegal
            self.count += 1
            self.choices.extend(self._reader.feed(record.seq, record.event))
            yield record

    @property
    def opened(self) -> SessionOpened:
        opened = self._counter.opened
        if opened is None:
            raise TraceError(f"{self._name} is empty: there is nothing to compare")
        return opened

    def side(self) -> Side:
        state = self._counter.state
        return Side(
            records=self.count,
            finish=state.finish.reason if state.finish is not None else None,
            account=account_of(state.stats, self._counter.lengths),
        )


def _first_differences(one: _Reading, other: _Reading) -> tuple[EventDifference | None, TokenDifference | None]:
    """Read both logs to their ends, side by side, holding no more than lies between them."""
    events: EventDifference | None = None
    tokens: TokenDifference | None = None
    for at, (left, right) in enumerate(zip_longest(one.events(), other.events())):
        if events is None:
            a, b = (None if left is None else left.event), (None if right is None else right.event)
            if not _alike(a, b):
                events = EventDifference(seq=at, a=a, b=b)
        while tokens is None and one.choices and other.choices:
            tokens = _token_difference(one.choices.popleft(), other.choices.popleft())
        if tokens is not None:
            one.choices.clear()
            other.choices.clear()
    if tokens is None and (one.choices or other.choices):
        tokens = _token_difference(one.choices[0] if one.choices else None, other.choices[0] if other.choices else None)
    return events, tokens


def _alike(a: Event | None, b: Event | None) -> bool:
    if a == b:
        return True
    if a is None or type(a) is not type(b):
        return False
    ignored = _MEASURED.union(_SETTINGS) if isinstance(a, SessionOpened) else _MEASURED
    return all(
        getattr(a, field.name) == getattr(b, field.name) for field in attrs.fields(type(a)) if field.eq and field.name not in ignored
    )


def _token_difference(a: Choice | None, b: Choice | None) -> TokenDifference | None:
    if a is not None and b is not None and (a.position, a.token) == (b.position, b.token):
        return None
    position = min(choice.position for choice in (a, b) if choice is not None)
    # Where one was rewound and the other not, only the one that is at the earlier place has a token there.
    left = a if a is not None and a.position == position else None
    right = b if b is not None and b.position == position else None
    return TokenDifference(
        position=position,
        given=any(choice.given for choice in (left, right) if choice is not None),
        a=None if left is None else left.token,
        b=None if right is None else right.token,
        margin_a=None if left is None else left.margin,
        margin_b=None if right is None else right.margin,
        seq_a=None if left is None else left.seq,
        seq_b=None if right is None else right.seq,
    )


def _told(found: TokenDifference, verdict: Verdict, bound: float) -> str:
    where = f"the tokens differ first at position {found.position}: {_token(found.a)} and {_token(found.b)}"
    if found.given:
        return f"{where}, which were given: the runs are not of one input"
    margins = [f"{margin:.3g}" for margin in (found.margin_a, found.margin_b) if margin is not None]
    known = f"margin {' and '.join(margins)}, bound {bound:g}" if margins else "no margin was recorded"
    return f"{where} ({known}): {'a near tie' if verdict == 'near_tie' else 'a defect'}"


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)


def _settings(a: SessionOpened, b: SessionOpened) -> Iterator[Setting]:
    for name in _SETTINGS:
        left, right = getattr(a, name), getattr(b, name)
        if left == right:
            continue
        kind = cast(type[Any], type(left))
        if not attrs.has(kind) or kind is not type(right):
            yield Setting(name=name, a=left, b=right)
            continue
        for field in attrs.fields(kind):
            x, y = getattr(left, field.name), getattr(right, field.name)
            if x != y:
                yield Setting(name=f"{name}.{field.name}", a=x, b=y)
