"""Which event may come in which phase: the table, as data. The diagram of docs/reference/events.md is drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .events import DraftDiscarded, DraftOffered, Event, Rewound, RuntimeFailed, SessionResumed
from .positions import boundary_position
from .state import Phase, SessionState

__all__ = ["TRANSITIONS", "kind"]

#: phase -> kind of event -> phase. A kind is the event's type, with a qualifier where one field decides where to go.
TRANSITIONS: Final[dict[Phase, dict[str, Phase]]] = {
    "new": {"SessionOpened": "ready"},
    "ready": {
        "Prefilled": "prefilled",
        "DraftOffered": "offered",
        "DraftOffered (empty)": "ready",
        "DraftFailed": "ready",
        "DraftDiscarded": "ready",
        "DraftDiscarded (all)": "ready",
        "SpanRefused": "ready",
        "SpanVerified": "verified",  # of a restored draft
        "SerialDecoded": "serial",
        "Trimmed": "ready",  # a prefill that was cancelled between its chunks
        "Extended": "ready",
        "Rewound": "rewinding",
        "Rewound (nothing to trim)": "ready",
        "SessionFinished": "finished",
    },
    "offered": {"DraftDiscarded": "offered", "DraftDiscarded (all)": "ready", "DraftTaken": "drafted"},
    "drafted": {
        "DraftDiscarded": "drafted",
        "DraftDiscarded (all)": "ready",
        "DraftRestored": "ready",
        "SpanVerified": "verified",
    },
    "prefilled": {"Committed": "ready"},
    "serial": {"DraftDiscarded": "serial", "DraftDiscarded (all)": "serial", "Committed": "ready"},
    "verified": {"Committed": "unsettled", "DraftDiscarded": "verified", "DraftDiscarded (all)": "verified"},
    "unsettled": {
        "DraftDiscarded": "unsettled",
        "DraftDiscarded (all)": "unsettled",
        "Trimmed": "ready",
        "CheckpointRetired": "ready",
    },
    "failing": {"DraftDiscarded": "failing", "DraftDiscarded (all)": "failing", "Trimmed": "ready"},
    "rewinding": {"Trimmed": "ready"},
    "finished": {
        "Extended": "ready",
        "Rewound": "rewinding",
        "Rewound (nothing to trim)": "ready",
    },
    "dropped": {},
}
for _phase, _row in TRANSITIONS.items():
    if _phase not in ("new", "dropped"):
        # A call can fail, a session can be dropped and a log can break off in every phase.
        _row["RuntimeFailed (started)"] = "failing"
        _row["RuntimeFailed (not started)"] = _phase if _phase in ("ready", "drafted", "finished") else "failing"
        _row["SessionDropped"] = "dropped"
    if _phase != "new":
        _row["SessionResumed"] = "ready"
        _row["SessionResumed (finished)"] = "finished"


def _of_failure(state: SessionState, event: RuntimeFailed) -> str:
    return "RuntimeFailed (started)" if event.started else "RuntimeFailed (not started)"


def _of_discard(state: SessionState, event: DraftDiscarded) -> str:
    return "DraftDiscarded (all)" if event.count >= state.stats.pending else "DraftDiscarded"


def _of_offer(state: SessionState, event: DraftOffered) -> str:
    return "DraftOffered" if event.tokens or event.invalid else "DraftOffered (empty)"


def _of_rewind(state: SessionState, event: Rewound) -> str:
    clean = state.position <= boundary_position(len(state.canonical) - event.count)
    return "Rewound (nothing to trim)" if clean else "Rewound"


def _of_resume(state: SessionState, event: SessionResumed) -> str:
    return "SessionResumed (finished)" if state.finish is not None else "SessionResumed"


_QUALIFIED: Final[dict[type[Event], Callable[[SessionState, Any], str]]] = {
    RuntimeFailed: _of_failure,
    DraftDiscarded: _of_discard,
    DraftOffered: _of_offer,
    Rewound: _of_rewind,
    SessionResumed: _of_resume,
}


def kind(state: SessionState, event: Event) -> str:
    """The event's name in the transition table."""
    qualified = _QUALIFIED.get(type(event))
    return type(event).__name__ if qualified is None else qualified(state, event)
