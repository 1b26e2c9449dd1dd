"""Handlers of the reducer for the events of a session's life: opened, extended, resumed, rewound, failed, finished, dropped."""

from __future__ import annotations

from .adaptive import Pace, first_pace
from .checks import broken_off, check_vocabulary, expect, refuse
from .events import Extended, Rewound, RuntimeFailed, SessionDropped, SessionFinished, SessionOpened, SessionResumed, SpanVerified
from .positions import boundary_position
from .rules import AUTO_SINCE, finish_due, masking, new_turn, rewound_turn
from .state import Phase, SessionState, evolve_state, evolve_stats
from .tokens import TokenLog
from .values import DraftInfo, Policy


def on_opened(state: SessionState, event: SessionOpened, to: Phase) -> SessionState:
    """The first event: everything that stays the same."""
    length = len(event.prompt)
    if not length:
        refuse("the prompt is empty")
    if length > event.runtime.context_length:
        refuse(f"the prompt of {length} tokens is longer than the context of {event.runtime.context_length}")
    expect("sampling", event.sampling, masking(event.sampling, event.stops, event.limits, event.runtime, length))
    state = evolve_state(
        state,
        phase=to,
        runtime=event.runtime,
        draft=event.draft,
        policy=event.policy,
        turn=new_turn(0, length, event.limits, event.stops, event.sampling, event.runtime),
        pace=_pace(event.policy, event.draft, event.prior, event.rules),
        canonical=TokenLog(event.prompt),
        stats=evolve_stats(state.stats, prompt_tokens=length),
    )
    check_vocabulary(state, event.prompt, "prompt token")
    return state


def _pace(policy: Policy, draft: DraftInfo | None, prior: Pace | None, rules: int) -> Pace | None:
    """Where a policy ``auto`` begins."""
    if policy.kind == "auto" and rules < AUTO_SINCE:
        refuse(f"the policy 'auto' of rules version {rules} is not known here, that of version {AUTO_SINCE} is")
    if policy.kind != "auto" or draft is None:
        if prior is not None:
            refuse("a prior is for a policy 'auto' that drafts")
        return None
    most = min(policy.width, draft.depth)
    if prior is None:
        return first_pace(most)
    expect("prior.most", prior.most, most)
    for name in ("draft_ns", "rounds", "spent", "accepted", "judged"):  # what a session collects is not handed on
        expect(f"prior.{name}", getattr(prior, name), 0)
    return prior


def on_extended(state: SessionState, event: Extended, to: Phase) -> SessionState:
    """A new turn."""
    expect("pending", state.stats.pending, 0)
    expect("turn", event.turn, state.turn.number + 1)
    check_vocabulary(state, event.tokens, "token")
    length = len(state.canonical) + len(event.tokens)
    if length > state.runtime.context_length:
        refuse(f"{length} tokens are more than the context of {state.runtime.context_length}")
    expect("sampling", event.sampling, masking(event.sampling, event.stops, event.limits, state.runtime, length))
    return evolve_state(
        state,
        phase=to,
        turn=new_turn(event.turn, length, event.limits, event.stops, event.sampling, state.runtime),
        canonical=state.canonical.append(event.tokens),
        primed=False,
        cut="none",
        cut_detail=None,
        failed=None,
        finish=None,
        held=False,
        stats=evolve_stats(state.stats, prompt_tokens=state.stats.prompt_tokens + len(event.tokens)),
    )


def on_resumed(state: SessionState, event: SessionResumed, to: Phase) -> SessionState:
    """The log goes on upon an empty runtime session."""
    if event.runtime.vocabulary != state.runtime.vocabulary:
        refuse(f"vocabulary {event.runtime.vocabulary} is not the recorded {state.runtime.vocabulary}")
    if len(state.canonical) > event.runtime.context_length:
        refuse(f"{len(state.canonical)} tokens are more than the context of {event.runtime.context_length}")
    return evolve_state(
        state,
        phase=to,
        runtime=event.runtime,
        draft=event.draft,
        position=0,
        primed=False,
        forward=None,
        committed=0,
        failed=None,
        refused=None,
        drafting_off=False,
        held=False,
        # The runtime may be another one: what the old one cost says nothing.
        pace=None
        if state.policy.kind != "auto" or event.draft is None
        else first_pace(min(state.policy.width, event.draft.depth), state.stats.draft_ns),
        stats=broken_off(state) if state.phase in ("prefilled", "serial", "verified", "failing") else state.stats,
    )


def on_rewound(state: SessionState, event: Rewound, to: Phase) -> SessionState:
    """Tokens are taken back; the turn, finished or not, goes on."""
    expect("pending", state.stats.pending, 0)
    length = len(state.canonical) - event.count
    if length < 1:
        refuse(f"{event.count} tokens cannot be taken from {len(state.canonical)}: one must remain")
    expect("length", event.length, length)
    return evolve_state(
        state,
        phase=to,
        canonical=state.canonical.shortened(event.count),
        turn=rewound_turn(state, length),
        cut="none",
        cut_detail=None,
        finish=None,
        held=False,
        primed=state.primed and length > 1 and state.position >= boundary_position(length),
    )


def on_failed(state: SessionState, event: RuntimeFailed, to: Phase) -> SessionState:
    """A call failed: at rest if nothing was touched, else on the way back to the last canonical position."""
    position = state.position
    forward = state.forward
    if to == "failing":
        if forward is not None and state.committed == 0 and state.phase == "verified":
            # The verified rows are speculative and will never be committed: back to where the span began.
            position = forward.base if isinstance(forward, SpanVerified) else position
        elif state.phase != "failing":
            forward = None
    held = state.held or (to == "ready" and bool(state.pending))  # a restored draft was refused again
    return evolve_state(state, phase=to, failed=event, position=position, forward=forward, held=held)


def on_finished(state: SessionState, event: SessionFinished, to: Phase) -> SessionState:
    """The turn ends for a reason that the state can have."""
    expect("pending", state.stats.pending, 0)
    expect("turn", event.turn, state.turn.number)
    if event.reason in ("stop_token", "stop_text", "stop_when"):
        expect("cut", state.cut, event.reason)
    elif event.reason == "length":
        due = finish_due(state)
        expect("reason", event.reason, due.reason if due else None)
        expect("limit", event.limit, due.limit if due else None)
    elif event.reason == "cancelled":
        due = finish_due(state)
        expect("reason", event.reason, due.reason if due else "cancelled")
    return evolve_state(state, phase=to, finish=event)


def on_dropped(state: SessionState, event: SessionDropped, to: Phase) -> SessionState:
    """The runtime holds nothing any more; tokens and account stay."""
    expect("pending", state.stats.pending, 0)
    broken = state.phase in ("prefilled", "serial", "verified", "failing")
    return evolve_state(
        state,
        phase=to,
        position=0,
        primed=False,
        forward=None,
        committed=0,
        stats=broken_off(state) if broken else state.stats,
    )
