"""What the law checker knows of a session so far, and the breaches that it has found."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attrs import frozen

from ..events import Prefilled, SerialDecoded, SpanVerified
from ..values import Limits, RuntimeInfo, Stops
from .tally import Tally

__all__ = ["STOPS", "Law", "Ledger", "Violation"]

Law: TypeAlias = Literal["numbering", "order", "law 1", "law 2", "law 3", "law 4", "law 5", "fold", "account", "digest"]

#: The cuts by which a turn ends from within.
STOPS: Final = ("stop_token", "stop_text", "stop_when")


#: Probes that a session may have saved up in earlier ones; a resumption begins anew.
PROBES_AT_ONCE: Final = 3


@frozen
class Violation:
    """One breach.

    Attributes:
        law: which law, or what else was broken: the numbering, the order of events, the fold, the account, the digest.
        seq: the number of the record in its session at which it shows; None where it is about no single record.
        sentence: what was found.
    """

    law: Law
    seq: int | None
    sentence: str

    def __str__(self) -> str:
        return f"{self.law}: {self.sentence}" if self.seq is None else f"record {self.seq}: {self.law}: {self.sentence}"


class Ledger:
    """Counts and the newest draft; nothing that grows with the session.

    Attributes:
        length, position: canonical tokens, and rows in the cache as the runtime reported them.
        start, turn: ``length`` when the turn began, and its number.
        primed: the turn has committed something upon its prefill.
        draft, unusable: pending drafted tokens, and pending ids beyond the usable ones.
        forward: the forward whose commit is awaited.
        span, span_committed: the span that is not settled, and ``c`` once its commit was seen.
        repair: after a started failure the position that a trim is due to, or words where only a drop is left.
        cut: what ended the turn from within.
        adaptive, probes, probes_allowed: whether the policy is ``auto``; drafts that were asked for as probes, and how many may be
            beyond one in fifty forwards.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.found: list[Violation] = []
        self.seq = -1
        self.session: int | None = None
        self.runtime: RuntimeInfo | None = None  # None: not opened yet
        self.limits = Limits()
        self.stop_ids: frozenset[int] = frozenset()
        self.stop_texts: tuple[str, ...] = ()
        self.length = 0
        self.position = 0
        self.turn = 0
        self.start = 0
        self.primed = False
        self.draft: tuple[int, ...] = ()
        self.unusable = 0
        self.offer_limit = 0
        self.adaptive = False
        self.probes = 0
        self.probes_allowed = PROBES_AT_ONCE
        self.forward: Prefilled | SerialDecoded | SpanVerified | None = None
        self.span: SpanVerified | None = None
        self.span_committed: int | None = None
        self.repair: int | str | None = None
        self.cut: str | None = None
        self.finished = False
        self.dropped = False

    def broken(self, law: Law, sentence: str) -> None:
        """Note a breach at this record."""
        self.found.append(Violation(law, self.seq, sentence))

    @property
    def pending(self) -> int:
        """Pending tokens by content."""
        return len(self.draft) + self.unusable

    def quiet(self, what: str) -> None:
        """Nothing may be under way when ``what`` happens."""
        if self.span is not None:
            self.broken("law 2", f"{what} while the span at {self.span.base} is not settled")
        if self.repair is not None:
            self.broken("law 2", f"{what} before the trim to {self.repair}")
        if self.forward is not None:
            self.broken("law 3", f"{what} before the commit of {type(self.forward).__name__}")

    def boundary(self) -> None:
        """Law 1, with the position as the runtime reported it; laws 4 and 5."""
        wanted = self.length - 1
        if self.primed and self.position != wanted:
            self.broken("law 1", f"position {self.position} at a boundary, {self.length} tokens")
        if self.position > wanted:
            self.broken("law 1", f"position {self.position} beyond {wanted}")
        tally = self.tally
        self.explained("")
        if tally.pending != self.pending:
            self.broken("law 4", f"{tally.pending} pending by count, {self.pending} by content")
        if not 0 <= tally.accepted <= tally.verified <= tally.drafted:
            self.broken("law 4", f"accepted {tally.accepted} <= verified {tally.verified} <= drafted {tally.drafted} is broken")
        left, right = tally.forwards + tally.saved_forwards, tally.tokens + tally.empty
        if left != right:
            self.broken("law 5", f"forwards + saved is {left}, tokens + empty forwards is {right}")

    def explained(self, after: str) -> None:
        """Law 4, by the content of what is pending."""
        drafted, explained = self.tally.drafted, self.tally.judged_or_discarded + self.pending
        if drafted != explained:
            self.broken("law 4", f"{drafted} drafted, {explained} explained{after}")

    def nothing_pending(self, when: str) -> None:
        """Law 4 where nothing may be pending."""
        if self.pending:
            self.broken("law 4", f"{self.pending} pending {when}")

    def within_context(self, what: str) -> None:
        """Law 3, the context."""
        if self.runtime is not None and self.length > self.runtime.context_length:
            self.broken("law 3", f"{what} exceeds the context: {self.length} tokens")

    def begin_turn(self, limits: Limits, stops: Stops, given: tuple[int, ...]) -> None:
        """Take over what a turn is opened with."""
        assert self.runtime is not None
        self.limits, self.stop_ids, self.stop_texts = limits, frozenset(stops.tokens), stops.texts
        if stops.ignore_eos:
            self.stop_ids -= frozenset(self.runtime.stop_tokens)
        self.length += len(given)
        self.start = self.length
        self.tally.prompt_tokens += len(given)
