"""The reducer: ``reduce(state, event) -> state``, the only way a session's state changes.

Two rules: the table (transitions.py) decides *whether* an event may come, and the handlers (on_session.py, on_round.py)
check that what it says agrees with the state. An illegal event raises ``IllegalEvent`` and changes nothing. Redundant fields
(matched, rows, positions, counts) are in the events so that they can be checked here: that is what makes a tampered log
visible.

Theory of operation. A session is at the boundary ``ready``. A round leaves it by a draft (``offered``, ``drafted``) or by a
forward (``prefilled``, ``serial``, ``verified``), commits what the forward chose, and is back: at once after a prefill or a
serial step, whose row is canonical; after ``unsettled`` for a span, whose rows are not canonical before they are trimmed or
the checkpoint retired. A failed call leads to ``failing``, from where a trim to the last canonical position leads back, and
nothing else but ``dropped`` leads on.

Every handler is O(tokens of the event), whatever the session's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from . import on_round, on_session
from .checks import Refused
from .errors import IllegalEvent
from .events import (
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
from .state import NEW, Phase, SessionState
from .transitions import TRANSITIONS, kind

__all__ = ["TRANSITIONS", "fold", "kind", "reduce"]

_Handler: TypeAlias = Callable[[SessionState, Any, Phase], SessionState]

_HANDLERS: Final[dict[type[Event], _Handler]] = {
    SessionOpened: on_session.on_opened,
    Extended: on_session.on_extended,
    SessionResumed: on_session.on_resumed,
    Prefilled: on_round.on_prefilled,
    DraftOffered: on_round.on_offered,
    DraftFailed: on_round.on_draft_failed,
    DraftTaken: on_round.on_taken,
    DraftRestored: on_round.on_restored,
    DraftDiscarded: on_round.on_discarded,
    SpanRefused: on_round.on_span_refused,
    SpanVerified: on_round.on_verified,
    SerialDecoded: on_round.on_serial,
    Committed: on_round.on_committed,
    Trimmed: on_round.on_trimmed,
    CheckpointRetired: on_round.on_retired,
    Rewound: on_session.on_rewound,
    RuntimeFailed: on_session.on_failed,
    SessionFinished: on_session.on_finished,
    SessionDropped: on_session.on_dropped,
}


def reduce(state: SessionState, event: Event) -> SessionState:
    """The state after ``event``.

    Raises:
        IllegalEvent: the phase does not allow it, or one of its fields contradicts the state. Nothing has changed.
    """
    name = kind(state, event)
    to = TRANSITIONS[state.phase].get(name)
    if to is None:
        allowed = ", ".join(sorted(TRANSITIONS[state.phase])) or "nothing"
        raise IllegalEvent(state.phase, name, f"this phase allows {allowed}")
    try:
        return _HANDLERS[type(event)](state, event, to)
    except Refused as refused:
        raise IllegalEvent(state.phase, name, str(refused)) from None


def fold(records: Iterable[Record], state: SessionState = NEW) -> SessionState:
    """The state after the records of one session, in order.

    Raises:
        IllegalEvent: as ``reduce``; also for a gap or a second session in the numbering.
    """
    session: int | None = None
    seq: int | None = None
    for record in records:
        if session is not None and record.session != session:
            raise IllegalEvent(state.phase, type(record.event).__name__, f"record of session {record.session} among those of {session}")
        if seq is not None and record.seq != seq + 1:
            raise IllegalEvent(state.phase, type(record.event).__name__, f"record {record.seq} follows record {seq}")
        session, seq = record.session, record.seq
        state = reduce(state, record.event)
    return state
