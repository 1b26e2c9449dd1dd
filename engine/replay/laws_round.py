"""The laws at the events of a round: drafts, forwards, commits, settles."""

from __future__ import annotations

from ..events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    DraftTaken,
    Prefilled,
    SerialDecoded,
    SpanRefused,
    SpanVerified,
    Trimmed,
)
from .ledger import Ledger


def on_offered(ledger: Ledger, event: DraftOffered) -> None:
    """Offered tokens are drafted and pending."""
    ledger.quiet("DraftOffered")
    ledger.boundary()
    ledger.nothing_pending("when a draft is offered")
    if not ledger.primed or event.at != ledger.length:
        ledger.broken("law 1", f"a draft for {event.at} of {ledger.length} tokens")
    if event.probe and not ledger.adaptive:
        ledger.broken("law 5", "a probe where the width is fixed")
    ledger.probes += event.probe
    if 50 * (ledger.probes - ledger.probes_allowed) > ledger.tally.forwards:
        ledger.broken("law 5", f"{ledger.probes} probes in {ledger.tally.forwards} forwards")
    ledger.draft, ledger.unusable, ledger.offer_limit = event.tokens, event.invalid, event.limit
    ledger.tally.draft_ns += event.cost_ns
    ledger.tally.drafted += ledger.pending
    ledger.tally.pending = ledger.pending


def on_draft_failed(ledger: Ledger, event: DraftFailed) -> None:
    """A source raised, at a boundary."""
    ledger.quiet("DraftFailed")


def on_span_refused(ledger: Ledger, event: SpanRefused) -> None:
    """Rounds are serial from here on."""
    ledger.quiet("SpanRefused")


def on_taken(ledger: Ledger, event: DraftTaken) -> None:
    """The first of the offered tokens go into a span."""
    taken = event.tokens
    if ledger.unusable:
        ledger.broken("law 4", "taken with unusable ids pending")
    if not taken or taken != ledger.draft[: len(taken)]:
        ledger.broken("law 4", "the taken tokens are not the offered ones")
    if event.offered != len(ledger.draft):
        ledger.broken("law 4", f"{event.offered} offered by count, {len(ledger.draft)} by content")
    if len(taken) > ledger.offer_limit:
        ledger.broken("law 3", f"{len(taken)} taken, the limit was {ledger.offer_limit}")
    ledger.unusable += max(0, len(ledger.draft) - len(taken))
    ledger.draft = taken


def on_restored(ledger: Ledger, event: DraftRestored) -> None:
    """The span did not run."""
    if event.count != ledger.pending:
        ledger.broken("law 4", f"{event.count} restored, {ledger.pending} pending")
    ledger.repair = None


def on_discarded(ledger: Ledger, event: DraftDiscarded) -> None:
    """Pending tokens leave from the end: the unusable ones first."""
    if not 1 <= event.count <= ledger.pending:
        ledger.broken("law 4", f"{event.count} discarded of {ledger.pending}")
    surplus = min(ledger.unusable, event.count)
    ledger.unusable -= surplus
    ledger.draft = ledger.draft[: max(len(ledger.draft) - (event.count - surplus), 0)]
    ledger.tally.discarded[event.reason] += event.count
    ledger.tally.discarded_in_all += event.count
    ledger.tally.pending -= event.count


def on_prefilled(ledger: Ledger, event: Prefilled) -> None:
    """All of the canonical tokens lie in the cache."""
    ledger.quiet("Prefilled")
    ledger.tally.prefills += 1
    ledger.tally.prefill_ns += event.cost_ns
    if not event.start == event.reused == ledger.position:
        ledger.broken("law 1", f"a prefill from {event.start} with {event.reused} rows reused, position {ledger.position}")
    if event.position != ledger.length:
        ledger.broken("law 1", f"position {event.position} after a prefill of {ledger.length}")
    ledger.position, ledger.forward = event.position, event


def on_verified(ledger: Ledger, event: SpanVerified) -> None:
    """A span ran upon the pending draft."""
    ledger.quiet("SpanVerified")
    ledger.boundary()
    draft, predictions = ledger.draft, event.predictions
    if event.base != ledger.position:
        ledger.broken("law 1", f"a span at {event.base}, position {ledger.position}")
    if event.rows != len(draft) + 1:
        ledger.broken("law 2", f"{event.rows} rows for {len(draft)} drafts")
    if event.observed != event.base + event.rows:
        ledger.broken("law 2", f"{event.observed} rows after {event.base} + {event.rows}")
    matched = 0
    while matched < len(draft) and matched < len(predictions) and draft[matched] == predictions[matched]:
        matched += 1
    if event.matched != matched:
        ledger.broken("law 3", f"matched {event.matched}, by content {matched}")
    if not matched + 1 <= len(predictions) <= event.rows:
        ledger.broken("law 3", f"{len(predictions)} predictions for {event.rows} rows, {matched} matched")
    tally = ledger.tally
    tally.spans += 1
    tally.verify_ns += event.cost_ns
    tally.verified += len(draft)
    tally.matched += matched
    tally.verified_by_length[len(draft)] += 1
    ledger.position, ledger.forward, ledger.span, ledger.span_committed = event.observed, event, event, None


def on_serial(ledger: Ledger, event: SerialDecoded) -> None:
    """One canonical row; it judges a pending draft."""
    ledger.quiet("SerialDecoded")
    ledger.boundary()
    tally = ledger.tally
    tally.serial_steps += 1
    tally.serial_ns += event.cost_ns
    if event.base != ledger.position:
        ledger.broken("law 1", f"a serial step at {event.base}, position {ledger.position}")
    if event.observed != event.base + 1:
        ledger.broken("law 1", f"{event.observed} rows after a serial step at {event.base}")
    verdict = "none"
    if ledger.draft:
        verdict = "accepted" if ledger.draft[0] == event.prediction else "rejected"
        tally.accepted_serial += verdict == "accepted"
        tally.rejected += verdict == "rejected"
        tally.pending -= 1
        ledger.draft = ledger.draft[1:]
    if event.verdict != verdict:
        ledger.broken("law 4", f"verdict {event.verdict}, by content {verdict}")
    ledger.position, ledger.forward = event.observed, event


def on_committed(ledger: Ledger, event: Committed) -> None:
    """Predictions become canonical (law 3)."""
    forward = ledger.forward
    if forward is None:
        ledger.broken("law 3", "a commit without a forward")
        return
    count = len(event.tokens)
    if isinstance(forward, SpanVerified):
        source, possible, accepted = "span", forward.predictions[: forward.matched + 1], _account_span(ledger, forward, event)
    else:
        source, possible, accepted = ("serial" if isinstance(forward, SerialDecoded) else "prefill"), (forward.prediction,), 0
        if count != 1:
            ledger.broken("law 3", f"{count} tokens from one row")
    if event.source != source:
        ledger.broken("law 3", f"source {event.source}, the forward was a {source}")
    if event.tokens != possible[:count]:
        ledger.broken("law 3", f"committed {event.tokens} of {possible}")
    if event.accepted != accepted:
        ledger.broken("law 3", f"accepted {event.accepted}, min(matched, c) is {accepted}")
    _check_stops(ledger, event, len(possible))
    ledger.length += count
    if event.position != ledger.length - 1:
        ledger.broken("law 1", f"position {event.position} for {ledger.length} tokens")
    ledger.tally.tokens += count
    ledger.cut = None if event.cut_by == "none" else event.cut_by
    ledger.forward, ledger.primed = None, True
    decoded, most = ledger.length - ledger.start, ledger.limits.max_tokens
    if most is not None and decoded > most:
        ledger.broken("law 3", f"{decoded} tokens decoded, max_tokens is {most}")
    ledger.within_context("the commit")
    if source != "span":
        ledger.boundary()


def _account_span(ledger: Ledger, forward: SpanVerified, event: Committed) -> int:
    count, draft, tally = len(event.tokens), ledger.draft, ledger.tally
    accepted = min(forward.matched, count)
    rejected = int(count == forward.matched + 1 and forward.matched < len(draft))
    ledger.draft = draft[accepted + rejected :]
    tally.accepted += accepted
    tally.rejected += rejected
    tally.pending -= accepted + rejected
    tally.span_tokens += count
    tally.saved_forwards += max(count - 1, 0)
    tally.empty += count == 0
    if accepted:
        tally.accepted_by_length[accepted] += 1
    ledger.span_committed = count
    if not count and event.cut_by != "cancelled":
        ledger.broken("law 3", "only a cancelled span commits nothing")
    return accepted


def _check_stops(ledger: Ledger, event: Committed, possible: int) -> None:
    count, stops, cut = len(event.tokens), ledger.stop_ids, event.cut_by
    for at, token in enumerate(event.tokens):
        if token in stops:
            if at != count - 1:
                ledger.broken("law 3", f"tokens behind the stop token {token}")
            if cut != "stop_token":
                ledger.broken("law 3", f"the stop token {token} did not end the turn")
            if ledger.length + at - ledger.start < ledger.limits.min_tokens:
                ledger.broken("law 3", f"the stop token {token} came before min_tokens")
    if cut == "stop_token" and (not count or event.tokens[-1] not in stops):
        ledger.broken("law 3", "cut by a stop token that is not there")
    if cut == "stop_text" and event.detail not in ledger.stop_texts:
        ledger.broken("law 3", f"cut by {event.detail!r}, which is no stop text of the turn")
    if cut == "none" and count != possible:
        ledger.broken("law 3", f"{count} of {possible} committed and nothing cut them")


def on_trimmed(ledger: Ledger, event: Trimmed) -> None:
    """The cache was cut back (law 2)."""
    if event.observed != event.to:
        ledger.broken("law 2", f"trimmed to {event.observed} where {event.to} was wanted")
    tally = ledger.tally
    tally.trims += 1
    tally.settle_ns += event.cost_ns
    tally.replayed_rows += event.replayed_rows
    tally.replay_forwards += event.replayed_rows > 0
    if event.cause == "span":
        span, committed = ledger.span, ledger.span_committed
        if span is None or committed is None:
            ledger.broken("law 2", "a span trim without a committed span")
        else:
            if event.to != span.base + committed:
                ledger.broken("law 2", f"trimmed to {event.to}, base + c is {span.base + committed}")
            if committed >= span.rows:
                ledger.broken("law 2", "every row is canonical and the span was trimmed")
            ledger.nothing_pending("after a span")
        ledger.span = ledger.span_committed = None
    elif event.cause == "failure":
        if event.to != ledger.repair:
            ledger.broken("law 2", f"trimmed to {event.to}, due was {ledger.repair}")
        if ledger.forward is not None:
            tally.empty += 1
        ledger.forward = ledger.span = ledger.span_committed = ledger.repair = None
    else:
        ledger.quiet("Trimmed")
        if event.to > ledger.length - 1:
            ledger.broken("law 1", f"a {event.cause} trim to {event.to} of {ledger.length}")
        # What a reset took away is prefilled again before the next commit.
        ledger.primed = ledger.primed and event.to == ledger.length - 1
    ledger.position = event.observed
    ledger.boundary()


def on_retired(ledger: Ledger, event: CheckpointRetired) -> None:
    """Every row of the span is canonical (law 2)."""
    span, committed = ledger.span, ledger.span_committed
    if span is None or committed is None:
        ledger.broken("law 2", "a checkpoint retired without a committed span")
    else:
        if committed != span.rows:
            ledger.broken("law 2", f"retired with {committed} of {span.rows} rows canonical")
        if (event.base, event.rows) != (span.base, span.rows):
            ledger.broken("law 2", "another span was retired")
    if event.observed != ledger.position:
        ledger.broken("law 2", f"{event.observed} rows after a retire at {ledger.position}")
    ledger.nothing_pending("after a span")
    ledger.span = ledger.span_committed = None
    ledger.tally.retired += 1
    ledger.tally.settle_ns += event.cost_ns
    ledger.position = event.observed
    ledger.boundary()
