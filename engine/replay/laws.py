"""Laws 1 to 5 over the records of one session, written from their wording and from nothing else.

Imports the events, and never the engine's rules, reducer or invariants: what is checked here was not computed there. Every
breach is reported with the number of its record; ``LawChecker.tally`` is an account of its own, drawn up from the raw events.

Law 1  At every boundary after a turn's first commit ``position == len(canonical) - 1``, before it ``<=``.
Law 2  Every SpanVerified is followed by one Committed and then exactly one of Trimmed(to = base + c) and CheckpointRetired,
       retired iff c == rows; or by RuntimeFailed and a trim to base, or SessionDropped.
Law 3  Committed == predictions[:c]; accepted == min(matched, c); a stopping token ends its turn; decoded <= max_tokens per
       turn; len(canonical) <= context_length.
Law 4  drafted == accepted + accepted_serial + rejected + discarded + pending; pending == 0 when finished.
Law 5  forwards == Prefilled + SerialDecoded + SpanVerified; forwards + saved == tokens + forwards that committed nothing;
       probes of a policy ``auto`` are at most one in 50 forwards and 3 more (saved up before), a fixed policy has none.

A checker takes one record at a time, in time and memory that do not grow with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ..events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    DraftTaken,
    Event,
    Extended,
    Prefilled,
    Record,
    Rewound,
    RuntimeFailed,
    SerialDecoded,
    SessionDropped,
    SessionFinished,
    SessionOpened,
    SessionResumed,
    SpanRefused,
    SpanVerified,
    Trimmed,
)
from . import laws_life, laws_round
from .ledger import STOPS, Law, Ledger, Violation
from .tally import Tally

__all__ = ["Law", "LawChecker", "Violation", "law_violations"]

_ENDED_BY_CUT: Final = (Prefilled, SerialDecoded, SpanVerified, Committed, DraftOffered, DraftTaken)
_AFTER_FINISH: Final = (Extended, Rewound, Trimmed, SessionDropped, SessionResumed, RuntimeFailed)
_IN_REPAIR: Final = (DraftDiscarded, Trimmed, SessionDropped, SessionResumed, RuntimeFailed)
_MOVES_DRAFTS: Final = (DraftOffered, DraftDiscarded, DraftTaken, DraftRestored, SerialDecoded)

_HANDLERS: Final[dict[type[Event], Callable[[Ledger, Any], None]]] = {
    SessionOpened: laws_life.on_opened,
    Extended: laws_life.on_extended,
    SessionResumed: laws_life.on_resumed,
    Rewound: laws_life.on_rewound,
    RuntimeFailed: laws_life.on_failed,
    SessionFinished: laws_life.on_finished,
    SessionDropped: laws_life.on_dropped,
    DraftOffered: laws_round.on_offered,
    DraftFailed: laws_round.on_draft_failed,
    DraftTaken: laws_round.on_taken,
    DraftRestored: laws_round.on_restored,
    DraftDiscarded: laws_round.on_discarded,
    SpanRefused: laws_round.on_span_refused,
    Prefilled: laws_round.on_prefilled,
    SpanVerified: laws_round.on_verified,
    SerialDecoded: laws_round.on_serial,
    Committed: laws_round.on_committed,
    Trimmed: laws_round.on_trimmed,
    CheckpointRetired: laws_round.on_retired,
}


class LawChecker:
    """Reads the records of one session one by one; nothing it knows comes from anywhere but them."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    @property
    def tally(self) -> Tally:
        """The account so far."""
        return self._ledger.tally

    def feed(self, record: Record) -> tuple[Violation, ...]:
        """Read the next record; what it breaks, if anything."""
        ledger, event = self._ledger, record.event
        before = ledger.seq
        ledger.seq = record.seq
        if record.seq != before + 1:
            ledger.broken(
                "numbering", f"record {record.seq} follows record {before}" if before >= 0 else "the log does not begin at record 0"
            )
        if ledger.session is None:
            ledger.session = record.session
        elif record.session != ledger.session:
            ledger.broken("numbering", f"a record of session {record.session} among those of session {ledger.session}")
        if ledger.runtime is None and type(event) is not SessionOpened:
            ledger.broken("order", f"{type(event).__name__} before SessionOpened")
        else:
            _check_place(ledger, event)
            _HANDLERS[type(event)](ledger, event)
            if isinstance(event, _MOVES_DRAFTS):
                ledger.explained(f" after {type(event).__name__}")
        if not ledger.found:
            return ()
        found, ledger.found = tuple(ledger.found), []
        return found


def _check_place(ledger: Ledger, event: Event) -> None:
    """What may come at all after what came before."""
    if ledger.dropped and not isinstance(event, SessionResumed):
        ledger.broken("law 2", f"{type(event).__name__} after SessionDropped")
    if ledger.repair is not None and not isinstance(event, _IN_REPAIR):
        ledger.broken("law 2", f"{type(event).__name__} where a trim to {ledger.repair} or a drop is due")
    if ledger.cut in STOPS and isinstance(event, _ENDED_BY_CUT):
        ledger.broken("law 3", f"{type(event).__name__} after the turn was ended by {ledger.cut}")
    if ledger.finished and not isinstance(event, _AFTER_FINISH):
        ledger.broken("law 3", f"{type(event).__name__} after SessionFinished")


def law_violations(records: Iterable[Record]) -> tuple[Violation, ...]:
    """Every breach of laws 1 to 5 in the records of one session."""
    checker = LawChecker()
    return tuple(violation for record in records for violation in checker.feed(record))
