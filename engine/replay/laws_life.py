"""The laws at the events of a session's life: opened, extended, resumed, rewound, failed, finished, dropped."""

from __future__ import annotations

from ..events import Extended, Rewound, RuntimeFailed, SessionDropped, SessionFinished, SessionOpened, SessionResumed
from .ledger import PROBES_AT_ONCE, STOPS, Ledger


def on_opened(ledger: Ledger, event: SessionOpened) -> None:
    """The first event."""
    if ledger.runtime is not None:
        ledger.broken("order", "a second SessionOpened")
    ledger.runtime, ledger.length, ledger.adaptive = event.runtime, 0, event.policy.kind == "auto"
    ledger.begin_turn(event.limits, event.stops, event.prompt)
    ledger.within_context("the prompt")


def on_extended(ledger: Ledger, event: Extended) -> None:
    """A new turn."""
    ledger.quiet("Extended")
    ledger.nothing_pending("at Extended")
    ledger.turn += 1
    if event.turn != ledger.turn:
        ledger.broken("order", f"turn {event.turn} after {ledger.turn - 1}")
    ledger.begin_turn(event.limits, event.stops, event.tokens)
    ledger.primed = ledger.finished = False
    ledger.cut = None
    ledger.within_context("the extension")


def on_resumed(ledger: Ledger, event: SessionResumed) -> None:
    """The log goes on upon an empty cache."""
    if ledger.forward is not None or (ledger.span is not None and ledger.span_committed is None):
        ledger.tally.empty += 1
    ledger.runtime, ledger.position = event.runtime, 0
    ledger.forward = ledger.span = ledger.span_committed = ledger.repair = None
    ledger.primed = ledger.dropped = False
    ledger.probes_allowed += PROBES_AT_ONCE


def on_rewound(ledger: Ledger, event: Rewound) -> None:
    """Tokens are taken back; the turn, finished or not, goes on."""
    ledger.quiet("Rewound")
    ledger.nothing_pending("at Rewound")
    if not 0 < event.count < ledger.length:
        ledger.broken("order", f"{event.count} taken of {ledger.length}")
    ledger.length = max(0, ledger.length - event.count)
    if event.length != ledger.length:
        ledger.broken("order", f"length {event.length}, by content {ledger.length}")
    ledger.start = min(ledger.start, ledger.length)
    ledger.cut, ledger.finished = None, False
    if ledger.position < ledger.length - 1:
        ledger.primed = False


def on_failed(ledger: Ledger, event: RuntimeFailed) -> None:
    """A call failed: where it had started, a trim to base or a drop is due."""
    if not event.started and event.call != "settle" and ledger.span is None and ledger.repair is None:
        return
    if event.call in ("prefill", "serial", "span") and ledger.repair is None:
        ledger.repair = ledger.span.base if ledger.span is not None else ledger.position
    elif event.call in ("settle", "reset") or ledger.repair is not None or ledger.span is not None:
        ledger.repair = "nowhere known"


def on_finished(ledger: Ledger, event: SessionFinished) -> None:
    """The turn ends, for a reason that is there."""
    ledger.quiet("SessionFinished")
    ledger.boundary()
    ledger.nothing_pending("when finished")
    if event.turn != ledger.turn:
        ledger.broken("order", f"turn {event.turn} finished in turn {ledger.turn}")
    if ledger.cut in STOPS and event.reason not in (ledger.cut, "closed", "failed"):
        ledger.broken("law 3", f"cut by {ledger.cut}, finished {event.reason}")
    assert ledger.runtime is not None
    decoded, room = ledger.length - ledger.start, ledger.runtime.context_length - ledger.length
    if event.reason == "length":
        if (room != 0) if event.limit == "context" else (decoded != ledger.limits.max_tokens):
            ledger.broken("law 3", f"finished by {event.limit} with {decoded} decoded and room for {room}")
    elif event.reason in STOPS and ledger.cut != event.reason:
        ledger.broken("law 3", f"finished {event.reason}, cut by {ledger.cut}")
    ledger.finished = True


def on_dropped(ledger: Ledger, event: SessionDropped) -> None:
    """The session is gone."""
    ledger.nothing_pending("when dropped")
    if ledger.forward is not None:
        ledger.tally.empty += 1
    ledger.forward = ledger.span = ledger.span_committed = ledger.repair = None
    ledger.dropped = True
