"""What happens to a session besides its rounds: it opens, resumes, is extended and rewound, finishes and is dropped.

Sans-IO scripts, as ``round.run_round`` is; see there.
"""

from __future__ import annotations

from .events import Extended, Rewound, SessionDropped, SessionFinished, SessionOpened, SessionResumed
from .positions import boundary_position
from .repairs import cut_back, discard_pending, give_up, runtime_failed
from .requests import DROP, OPEN, Configure, Context, Failed, Script
from .rules import Finish, discard_reason, rewound_turn
from .state import SessionState
from .values import Sampling

__all__ = ["conclude", "drop_session", "extend_session", "open_session", "resume_session", "rewind_session"]


def open_session(opened: SessionOpened, ctx: Context) -> Script[SessionState]:
    """Open the session; dropped again if the runtime cannot."""
    state: SessionState = yield opened
    failed: Failed | None = yield OPEN
    if failed is not None:
        return (yield from give_up(state, "open", failed))
    return state


def resume_session(resumed: SessionResumed, state: SessionState, ctx: Context) -> Script[SessionState]:
    """Go on from a folded log, upon an empty runtime session."""
    state = yield resumed
    state = yield from discard_pending(state, "resumed")
    failed: Failed | None = yield OPEN
    if failed is not None:
        return (yield from give_up(state, "open", failed))
    return state


def extend_session(extended: Extended, state: SessionState, ctx: Context) -> Script[SessionState]:
    """Begin a new turn with more tokens."""
    refused = yield from _configure(state, extended.sampling)
    if refused is not None:
        return refused
    state = yield from discard_pending(state, "extended")
    return (yield extended)


def rewind_session(count: int, state: SessionState, ctx: Context) -> Script[SessionState]:
    """Take back the last ``count`` tokens; where the runtime cannot reach that position, empty its session instead.

    The next round prefills whatever is missing.
    """
    length = len(state.canonical) - count
    sampling = rewound_turn(state, length).sampling
    if sampling != state.turn.sampling:  # the turn begins anew, and with it the count of min_tokens
        refused = yield from _configure(state, sampling)
        if refused is not None:
            return refused
    state = yield from discard_pending(state, "rewound")
    state = yield Rewound(count=count, length=length)
    if state.phase != "rewinding":
        return state
    return (yield from cut_back(state, ctx, boundary_position(length), state.position, "rewind"))


def _configure(state: SessionState, sampling: Sampling) -> Script[SessionState | None]:
    """Change the runtime's sampling. None: done; else the state after its failure: as it was, or dropped."""
    failed: Failed | None = yield Configure(sampling)
    if failed is None:
        return None
    if not failed.started:
        return (yield runtime_failed("configure", failed))
    return (yield from give_up(state, "configure", failed))


def drop_session(state: SessionState, reason: str) -> Script[SessionState]:
    """Release the session."""
    state = yield from discard_pending(state, "failed" if state.phase != "finished" else "finished")
    failed: Failed | None = yield DROP
    if failed is not None:
        state = yield runtime_failed("drop", failed)
    return (yield SessionDropped(reason=reason))


def conclude(state: SessionState, finish: Finish) -> Script[SessionState]:
    """End the turn at this boundary."""
    state = yield from discard_pending(state, discard_reason(finish.reason))
    return (yield SessionFinished(reason=finish.reason, limit=finish.limit, detail=finish.detail, turn=state.turn.number))
