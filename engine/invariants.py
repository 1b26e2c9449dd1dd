"""What must hold of every state, and of a runtime at a boundary, as pure functions that return *all* violations.

Used by the tests, by the live driver where ``SPANFOLD_CHECK=1`` is set, and by trace tools. They state the laws of
docs/explanation/laws.md over a snapshot; they do not decide anything.
"""

from __future__ import annotations

from .positions import boundary_position
from .runtime import View
from .state import SessionState

__all__ = ["account_violations", "state_violations", "view_violations"]


def account_violations(state: SessionState) -> tuple[str, ...]:
    """Laws 4 and 5, and the orderings between counters."""
    stats = state.stats
    found: list[str] = []
    explained = stats.accepted + stats.accepted_serial + stats.rejected + sum(stats.discarded_counts) + stats.pending
    if stats.drafted != explained:
        found.append(f"law 4: {stats.drafted} drafted, {explained} explained")
    if stats.pending != len(state.pending) + state.surplus:
        found.append(f"law 4: {stats.pending} counted as pending, {len(state.pending)} + {state.surplus} are")
    if not 0 <= stats.accepted <= stats.matched <= stats.verified <= stats.drafted:
        found.append(
            f"accepted {stats.accepted} <= matched {stats.matched} <= verified {stats.verified} <= drafted {stats.drafted} is broken"
        )
    if sum(stats.accepted_per_depth) != stats.accepted or sum(stats.verified_per_depth) != stats.verified:
        found.append("the counts per depth do not add up to accepted and verified")
    if state.phase in ("ready", "finished", "dropped"):
        left, right = stats.forwards + stats.saved_forwards, stats.tokens + stats.empty_forwards
        if left != right:
            found.append(f"law 5: forwards + saved is {left}, tokens + empty forwards is {right}")
    if state.phase == "finished" and stats.pending:
        found.append(f"law 4: {stats.pending} pending in a finished turn")
    return tuple(found)


def state_violations(state: SessionState) -> tuple[str, ...]:
    """All that a state must satisfy by itself."""
    if state.phase == "new":
        return ()
    found = list(account_violations(state))
    length = len(state.canonical)
    if length < 1:
        found.append("there is no current token")
    if length > state.runtime.context_length:
        found.append(f"law 3: {length} tokens exceed the context of {state.runtime.context_length}")
    limit = state.turn.limits.max_tokens
    if limit is not None and state.decoded > limit:
        found.append(f"law 3: {state.decoded} tokens exceed max_tokens {limit}")
    if state.boundary:
        expected = boundary_position(length)
        if state.primed and state.position != expected:
            found.append(f"law 1: position {state.position} at a boundary, {expected} expected")
        if state.position > expected:
            found.append(f"law 1: position {state.position} beyond {expected}")
        if state.forward is not None or state.committed:
            found.append("law 1: a forward is open at a boundary")
    return tuple(found)


def view_violations(state: SessionState, view: View | None) -> tuple[str, ...]:
    """Law 1 against what the runtime itself reports; the state is at a boundary or dropped."""
    if state.phase == "dropped":
        return () if view is None else ("a dropped session is still held by the runtime",)
    if view is None:
        return ("the runtime does not know the session",)
    found: list[str] = []
    if view.position != state.position:
        found.append(f"law 1: the runtime's position is {view.position}, the state's {state.position}")
    if view.checkpoint:
        found.append("law 1: a checkpoint lives at a boundary")
    if view.head_position is not None and view.head_position > view.position:
        found.append(f"law 1: the head holds {view.head_position} rows beyond position {view.position}")
    return tuple(found)
