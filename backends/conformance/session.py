"""One session on a runtime, driven by the words of the protocol; every answer is held against the numbers that it must have.

A `Driven` session knows the tokens that it has fed and which of them are canonical, nothing else: it is the model that the
checks and the state machine compare the runtime with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from ...engine.errors import NotStarted
from ...engine.positions import matched_length
from ...engine.runtime import Ask, Draft, Extras, Failure, Forward, Rows, Runtime, Settle, Settled, View, Want
from ...engine.values import Sampling
from .outcome import ContractBroken, expect

__all__ = ["Driven", "Judge", "must_raise", "must_refuse", "only"]

#: Numbers are never reused, also where two checks share one runtime object.
_NUMBERS: Final = count()

_T = TypeVar("_T", Rows, Settled, Draft)


class Judge(Protocol):
    """Knows what the target chooses after a prefix when it decodes one row at a time."""

    def agree(self, prefix: Sequence[int], chosen: int, what: str) -> bool:
        """True if ``chosen`` is that token, False for a near tie; raises ContractBroken for anything else."""
        ...


def only(answers: Sequence[_T | Failure], kind: type[_T], session: int) -> _T:
    """The one element of an answer to one call."""
    expect(len(answers) == 1, f"one call was answered with {len(answers)} elements")
    answer = answers[0]
    if isinstance(answer, Failure):
        raise ContractBroken(f"the call failed: {answer.error}: {answer.message}") from answer.cause
    expect(isinstance(answer, kind), f"a {kind.__name__} was expected, the answer is {answer!r}")
    expect(answer.session == session, f"a call for session {session} was answered for session {answer.session}")
    return answer


def must_refuse(call: Callable[[], Any], what: str) -> None:
    """The call raises ``NotStarted``, or answers with one Failure that was not started."""
    try:
        answer = call()
    except NotStarted:
        return
    except Exception as error:
        raise ContractBroken(f"{what} must raise NotStarted, it raised {type(error).__name__}: {error}") from error
    refused = isinstance(answer, Sequence) and len(answer) == 1 and isinstance(answer[0], Failure) and not answer[0].started  # pyright: ignore[reportUnknownArgumentType]
    expect(refused, f"{what} must raise NotStarted, it was answered with {answer!r}")


def must_raise(call: Callable[[], Any], what: str) -> None:
    """The call raises some exception, or answers with one Failure."""
    try:
        answer = call()
    except Exception:
        return
    failed = isinstance(answer, Sequence) and len(answer) == 1 and isinstance(answer[0], Failure)  # pyright: ignore[reportUnknownArgumentType]
    expect(failed, f"{what} must raise, it was answered with {answer!r}")


class Driven:
    """Opens a session and drives it.

    Args:
        runtime: where.
        judge: every prediction is held against it; None: none is.
        drafting: whether the session's head is used.
        sampling: the session's.
        number: the session's number; None: a new one.

    Attributes:
        rows: tokens of the canonical rows in the target's cache.
        current: the newest canonical token, which has no row yet; None before the first prediction.
        speculative: tokens of the rows of a span that was not settled.
        predictions: those of the open span.
        named: rows of which a draft, or what a cut took back, has named the token that follows.
        cut: rows were taken back since the newest forward: a head may have nothing to start from, its drafts may be short.
    """

    def __init__(
        self,
        runtime: Runtime,
        judge: Judge | None = None,
        *,
        drafting: bool = False,
        sampling: Sampling | None = None,
        number: int | None = None,
    ) -> None:
        self.runtime, self.judge, self.drafting = runtime, judge, drafting
        self.sampling = Sampling() if sampling is None else sampling
        self.number = next(_NUMBERS) if number is None else number
        self.begin()

    def begin(self) -> None:
        """Open the runtime's session; it must be empty."""
        self.rows: list[int] = []
        self.current: int | None = None
        self.speculative: tuple[int, ...] = ()
        self.predictions: tuple[int, ...] = ()
        self.cut = False
        self.named = 0
        self.runtime.open_session(self.number, self.sampling, self.drafting)
        self.check()

    @property
    def canonical(self) -> list[int]:
        """The canonical tokens, current included."""
        return self.rows if self.current is None else [*self.rows, self.current]

    @property
    def has_head(self) -> bool:
        """Whether the session has a head that drafts."""
        return self.drafting and self.runtime.info.draft is not None

    # What must hold after every call.

    def view(self) -> View:
        """The runtime's numbers."""
        view = self.runtime.view(self.number)
        if view is None:
            raise ContractBroken(f"view does not know session {self.number}, which is open")
        return view

    def check(self) -> View:
        """The runtime's numbers, which must be those of the tokens that were fed."""
        view, base = self.view(), len(self.rows)
        position = base + len(self.speculative)
        expect(view.position == position, f"view says position {view.position}, {position} rows were fed and kept")
        expect(0 <= view.floor <= position, f"view says floor {view.floor} at position {position}")
        if self.runtime.info.rollback == "crop":
            expect(view.floor == 0, f"rollback is 'crop', so settle reaches every position, and view says floor {view.floor}")
        if self.speculative:
            expect(view.floor <= base, f"a span of {len(self.speculative)} rows from {base} on is open, and view says floor {view.floor}")
        else:
            expect(not view.checkpoint, f"view says that a checkpoint lives at position {position}, where nothing is speculative")
        if not self.has_head:
            expect(view.head_position is None, f"view says head position {view.head_position} for a session that does not draft")
            return view
        head = view.head_position
        if head is None:
            raise ContractBroken("view says head position None for a session that drafts with the head")
        # The pair of the newest row is known once a draft has named current, or where a cut left its second half behind.
        most = max(base - 1, self.named, 0)
        expect(0 <= head <= most, f"view says head position {head} at the target's position {position}, where {most} pairs are canonical")
        return view

    # The calls.

    def forward(
        self,
        tokens: Sequence[int],
        *,
        want: Want = "last",
        canonical: bool = True,
        extras: Extras | None = None,
        every: bool = False,
        what: str = "a forward",
    ) -> Rows:
        """Feed rows, check the answer's numbers, and hold its predictions against the judge.

        ``every``: also those behind the first that differs from the next row's token. They are never committed, and a reference for
        them is costly: each belongs to another text.
        """
        fed, base = tuple(tokens), len(self.rows)
        # Without extras the argument is left out (case 6.13): a call must work with all that is optional absent.
        given = {} if extras is None else {"extras": extras}
        call = Forward(session=self.number, base=base, tokens=fed, want=want, canonical=canonical, **given)
        rows = only(self.runtime.forward([call]), Rows, self.number)
        expect(rows.position == base + len(fed), f"{what} of {len(fed)} rows from {base} on ended at position {rows.position}")
        self._check_predictions(rows, fed, want, every, what)
        if canonical:
            self.rows += fed
        else:
            self.speculative = fed
        self.cut = False
        self.check()
        return rows

    def _check_predictions(self, rows: Rows, fed: tuple[int, ...], want: Want, every: bool, what: str) -> None:
        predictions, vocabulary = rows.predictions, self.runtime.info.vocabulary
        wanted = {"none": 0, "last": 1, "all": len(fed)}[want]
        # They may end early only behind a prediction that differs from the next row's token.
        least = min(wanted, matched_length(fed[1:], predictions) + 1) if want == "all" else wanted
        expect(
            least <= len(predictions) <= wanted,
            f"{what} of {len(fed)} rows (want={want!r}) gave {len(predictions)} predictions, "
            f"{wanted} were wanted and {least} at least are due",
        )
        for row, token in enumerate(predictions):
            expect(0 <= token < vocabulary, f"{what}: prediction {row} is {token}, outside the vocabulary of {vocabulary}")
        if self.judge is not None:
            first = len(fed) - 1 if want == "last" else 0
            for row, token in enumerate(predictions[: None if every else least], first):
                self.judge.agree([*self.rows, *fed[: row + 1]], token, f"{what}, row {row} of {len(fed)}")

    def settle(self, kept: int) -> Settled:
        """Settle the open span: its first ``kept`` rows stay. Kept rows must be canonical, or kept on purpose."""
        base, span, chosen = len(self.rows), self.speculative, self.predictions
        answer = self._settle(base, len(span), base + kept)
        self.rows += span[:kept]
        self.speculative = self.predictions = ()
        if kept:
            self.current = chosen[kept - 1] if kept <= len(chosen) else None
        self.check()
        return answer

    def rewind(self, length: int) -> None:
        """Take back canonical tokens until ``length`` (at least 1) are left; needs rollback ``crop``."""
        tokens = self.canonical
        position = length - 1
        if position < len(self.rows):
            self._settle(position, len(self.rows) - position, position)
            self.cut = True
        self.current = tokens[position]
        del self.rows[position:]
        self.named = len(self.rows)
        self.check()

    def take_back(self, base: int, rows: int) -> None:
        """Settle to the base of a forward that failed."""
        self._settle(base, rows, base)
        self.check()

    def _settle(self, base: int, rows: int, position: int) -> Settled:
        call = Settle(session=self.number, base=base, rows=rows, position=position)
        answer = only(self.runtime.settle([call]), Settled, self.number)
        expect(
            answer.position == position, f"a settle of {rows} rows from {base} on at {position} answered with position {answer.position}"
        )
        expect(answer.replayed_rows >= 0, f"a settle answered with {answer.replayed_rows} replayed rows")
        return answer

    def draft(self, limit: int) -> tuple[int, ...]:
        """Ask the head for tokens to follow current, and check the answer's numbers."""
        info = self.runtime.info.draft
        assert info is not None and self.current is not None
        call = Ask(session=self.number, current=self.current, limit=limit)
        tokens = only(self.runtime.draft([call]), Draft, self.number).tokens
        expect(len(tokens) <= limit, f"at most {limit} tokens were asked for, the draft holds {len(tokens)}")
        for token in tokens:
            expect(0 <= token < self.runtime.info.vocabulary, f"the draft holds {token}, outside the vocabulary")
        self.named = len(self.rows)
        view = self.check()
        if len(self.rows) + 1 <= info.context_length and (tokens or not self.cut):
            expect(
                view.head_position == view.position,
                f"right after a draft the head holds {view.head_position} rows, the target {view.position}: pairs are missing",
            )
        return tokens

    def drop(self) -> None:
        """Release the session; it must be gone."""
        self.runtime.drop_session(self.number)
        expect(self.runtime.view(self.number) is None, f"session {self.number} was dropped and view still knows it")

    # Several calls in a row, as the engine makes them.

    def prefill(self, tokens: Sequence[int], chunk: int | None = None) -> Driven:
        """Feed canonical tokens (current first, if there is one) in chunks; the last row's prediction becomes current."""
        todo = [*([] if self.current is None else [self.current]), *tokens]
        self.current = None
        size = len(todo) if chunk is None else chunk
        for start in range(0, len(todo), size):
            part = todo[start : start + size]
            last = start + len(part) == len(todo)
            rows = self.forward(part, want="last" if last else "none", what="a prefill chunk")
            if last:
                self.current = rows.predictions[0]
        return self

    def place(self, tokens: Sequence[int], chunk: int | None = None) -> Driven:
        """Feed tokens so that exactly these are canonical: all but the last get rows, the last becomes current."""
        if len(tokens) > 1:
            self.prefill(tokens[:-1], chunk)
        self.current = tokens[-1]
        return self

    def step(self, extras: Extras | None = None) -> Rows:
        """A serial step."""
        assert self.current is not None
        rows = self.forward([self.current], extras=extras, what="a serial step")
        self.current = rows.predictions[0]
        return rows

    def span(self, draft: Sequence[int], *, every: bool = False) -> int:
        """A verify forward, left open; returns how many tokens of the draft matched."""
        assert self.current is not None
        rows = self.forward([self.current, *draft], want="all", canonical=False, every=every, what="a span")
        self.predictions = rows.predictions
        return matched_length(draft, rows.predictions)

    def round(self, draft: Sequence[int]) -> int:
        """A span and the settle of all that may be committed; returns how many tokens matched."""
        matched = self.span(draft)
        self.settle(matched + 1)
        return matched
