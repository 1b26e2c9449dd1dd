"""Laws 1 to 5 over the records of one session, written from their wording and from nothing else.

Imports the events, and never the engine's rules, reducer or invariants: what is checked here was not computed there.
`violations` returns every breach with the number of its record; `Account` keeps its own tallies from the raw events, to be
compared with the engine's statistics.

Law 1  At every boundary after a turn's first commit ``position == len(canonical) - 1``, before it ``<=``.
Law 2  Every SpanVerified is followed by one Committed and then exactly one of Trimmed(to = base + c) and CheckpointRetired,
       retired iff c == rows; or by RuntimeFailed and a trim to base, or SessionDropped.
Law 3  Committed == predictions[:c]; accepted == min(matched, c); a stopping token ends its turn; decoded <= max_tokens per
       turn; len(canonical) <= context_length.
Law 4  drafted == accepted + accepted_serial + rejected + discarded + pending; pending == 0 when finished.
Law 5  forwards == Prefilled + SerialDecoded + SpanVerified; forwards + saved == tokens + forwards that committed nothing.
"""

from collections import Counter
from typing import NamedTuple

from spanfold.engine import events as ev

STOPS = {"stop_token", "stop_text", "stop_when"}


class Violation(NamedTuple):
    seq: int
    law: str
    what: str

    def __str__(self):
        return f"record {self.seq}: {self.law}: {self.what}"


class Account:
    """Tallies of one log, by its raw events."""

    def __init__(self):
        self.count = Counter()
        self.discarded = Counter()
        self.verified_per_depth = Counter()
        self.accepted_per_depth = Counter()

    def totals(self):
        """The figures that the engine's statistics must equal."""
        count = self.count
        depths = range(1, max(self.verified_per_depth, default=0) + 1)  # the same depths for both, accepted or not
        return {
            **{name: count[name] for name in NAMES},
            "forwards": count["prefills"] + count["serial_steps"] + count["spans"],
            "discarded": dict(self.discarded),
            "pending": count["pending"],
            "acceptance_rate": count["accepted"] / count["verified"] if count["verified"] else None,
            "acceptance_length": count["span_tokens"] / count["spans"] if count["spans"] else None,
            "saved_net": count["saved_forwards"] - count["replay_forwards"],
            "verified_per_depth": tuple(self.verified_per_depth[at] for at in depths),
            "accepted_per_depth": tuple(self.accepted_per_depth[at] for at in depths),
        }


NAMES = (
    *("prompt_tokens", "tokens", "prefills", "serial_steps", "spans", "drafted", "verified", "matched", "accepted"),
    *("accepted_serial", "rejected", "saved_forwards", "replay_forwards", "replayed_rows", "retired", "trims"),
    *("prefill_ns", "verify_ns", "serial_ns", "draft_ns", "settle_ns"),
)


class Checker:
    """Reads records one by one; nothing it knows comes from anywhere but them."""

    def __init__(self):
        self.found = []
        self.account = Account()
        self.seq = -1
        self.session = None
        self.opened = None
        self.canonical = []
        self.position = 0
        self.limits = self.stops = None
        self.turn = 0
        self.start = 0
        self.primed = False  # this turn has committed something upon its prefill
        self.draft = None  # pending drafted tokens that were judged by nothing yet
        self.unusable = 0  # pending ids beyond the usable ones
        self.offer = None
        self.forward = None  # the forward whose commit is awaited
        self.span = None  # the verified span that is not settled: (SpanVerified, c or None)
        self.repair = None  # after a started failure: (base, why) until a trim to base or a drop
        self.cut = None  # what ended the turn from within
        self.finished = self.dropped = False

    # -- helpers

    def broken(self, law, what):
        self.found.append(Violation(self.seq, law, what))

    def require(self, law, holds, what):
        if not holds:
            self.broken(law, what)

    def pending(self):
        return len(self.draft or ()) + self.unusable

    def stop_ids(self):
        stops = set(self.stops.tokens)
        return stops - set(self.opened.runtime.stop_tokens) if self.stops.ignore_eos else stops

    def quiet(self, what):
        """Nothing may be under way when ``what`` happens."""
        self.require("law 2", self.span is None, f"{what} while the span at {self.span and self.span[0].base} is not settled")
        self.require("law 2", self.repair is None, f"{what} before the trim to {self.repair}")
        self.require("law 3", self.forward is None, f"{what} before the commit of {type(self.forward).__name__}")

    def boundary(self):
        """Law 1, with the position as the runtime reported it."""
        wanted = len(self.canonical) - 1
        if self.primed:
            self.require("law 1", self.position == wanted, f"position {self.position} at a boundary, {len(self.canonical)} tokens")
        self.require("law 1", self.position <= wanted, f"position {self.position} beyond {wanted}")
        self.books()

    def books(self):
        """Laws 4 and 5 at a boundary."""
        count = self.account.count
        explained = (
            count["accepted"] + count["accepted_serial"] + count["rejected"] + sum(self.account.discarded.values()) + count["pending"]
        )
        self.require("law 4", count["drafted"] == explained, f"{count['drafted']} drafted, {explained} explained")
        self.require("law 4", count["pending"] == self.pending(), f"{count['pending']} pending by count, {self.pending()} by content")
        self.require("law 4", 0 <= count["accepted"] <= count["verified"] <= count["drafted"], "accepted <= verified <= drafted is broken")
        forwards = count["prefills"] + count["serial_steps"] + count["spans"]
        left, right = forwards + count["saved_forwards"], count["tokens"] + count["empty"]
        self.require("law 5", left == right, f"forwards + saved is {left}, tokens + empty forwards is {right}")

    # -- one record

    COSTS = {
        "Prefilled": "prefill_ns",
        "SpanVerified": "verify_ns",
        "SerialDecoded": "serial_ns",
        "DraftOffered": "draft_ns",
        "Trimmed": "settle_ns",
        "CheckpointRetired": "settle_ns",
    }

    def read(self, record):
        self.require("numbering", record.seq == self.seq + 1, f"record {record.seq} follows {self.seq}")
        self.seq = record.seq
        self.require("numbering", self.session in (None, record.session), f"session {record.session} among {self.session}")
        self.session = record.session
        event = record.event
        name = type(event).__name__
        if self.opened is None and name != "SessionOpened":
            self.broken("order", f"{name} before SessionOpened")
            return
        if self.dropped and name != "SessionResumed":
            self.broken("law 2", f"{name} after SessionDropped")
        if self.repair is not None and name not in ("DraftDiscarded", "Trimmed", "SessionDropped", "SessionResumed", "RuntimeFailed"):
            self.broken("law 2", f"{name} where a trim to {self.repair} or a drop is due")
        if self.cut in STOPS and name in ("Prefilled", "SerialDecoded", "SpanVerified", "Committed", "DraftOffered", "DraftTaken"):
            self.broken("law 3", f"{name} after the turn was ended by {self.cut}")
        if self.finished and name not in ("Extended", "Rewound", "Trimmed", "SessionDropped", "SessionResumed", "RuntimeFailed"):
            self.broken("law 3", f"{name} after SessionFinished")
        if name in self.COSTS:
            self.account.count[self.COSTS[name]] += event.cost_ns
        getattr(self, "on_" + name)(event)
        count = self.account.count
        if name in ("DraftOffered", "DraftDiscarded", "DraftTaken", "DraftRestored", "SerialDecoded"):
            explained = count["accepted"] + count["accepted_serial"] + count["rejected"]
            explained += sum(self.account.discarded.values()) + self.pending()
            self.require("law 4", count["drafted"] == explained, f"{count['drafted']} drafted, {explained} explained after {name}")

    def on_SessionOpened(self, event):
        self.require("order", self.opened is None, "a second SessionOpened")
        self.opened, self.canonical = event, list(event.prompt)
        self.limits, self.stops, self.start = event.limits, event.stops, len(event.prompt)
        self.account.count["prompt_tokens"] += len(event.prompt)
        self.require("law 3", len(self.canonical) <= event.runtime.context_length, "the prompt exceeds the context")

    def on_Extended(self, event):
        self.quiet("Extended")
        self.require("law 4", self.pending() == 0, f"{self.pending()} pending at Extended")
        self.turn += 1
        self.require("order", event.turn == self.turn, f"turn {event.turn} after {self.turn - 1}")
        self.canonical += event.tokens
        self.account.count["prompt_tokens"] += len(event.tokens)
        self.limits, self.stops, self.start = event.limits, event.stops, len(self.canonical)
        self.primed = self.finished = False
        self.cut = None
        self.require("law 3", len(self.canonical) <= self.opened.runtime.context_length, "the extension exceeds the context")

    def on_SessionResumed(self, event):
        if self.forward is not None or (self.span is not None and self.span[1] is None):
            self.account.count["empty"] += 1
        self.position = 0
        self.forward = self.span = self.repair = None
        self.primed = self.dropped = False

    def on_Prefilled(self, event):
        self.quiet("Prefilled")
        self.account.count["prefills"] += 1
        self.require("law 1", event.start == event.reused == self.position, f"prefill from {event.start}, position {self.position}")
        self.require("law 1", event.position == len(self.canonical), f"position {event.position} after a prefill of {len(self.canonical)}")
        self.position, self.forward = event.position, event

    def on_DraftOffered(self, event):
        self.quiet("DraftOffered")
        self.boundary()
        self.require("law 4", self.pending() == 0, f"an offer while {self.pending()} are pending")
        self.require("law 1", self.primed and event.at == len(self.canonical), f"a draft for {event.at} of {len(self.canonical)} tokens")
        self.draft, self.unusable, self.offer = list(event.tokens), event.invalid, event
        self.account.count["drafted"] += self.pending()
        self.account.count["pending"] = self.pending()

    def on_DraftFailed(self, event):
        self.quiet("DraftFailed")

    def on_DraftTaken(self, event):
        taken = list(event.tokens)
        self.require("law 4", self.unusable == 0, "taken with unusable ids pending")
        self.require("law 4", bool(taken) and taken == (self.draft or [])[: len(taken)], "taken tokens are not the offered ones")
        self.require(
            "law 4", event.offered == len(self.draft or ()), f"{event.offered} offered by count, {len(self.draft or ())} by content"
        )
        self.require("law 3", len(taken) <= self.offer.limit, f"{len(taken)} taken, the limit was {self.offer.limit}")
        self.unusable += len(self.draft or ()) - len(taken)
        self.draft = taken

    def on_DraftRestored(self, event):
        self.require("law 4", event.count == self.pending(), f"{event.count} restored, {self.pending()} pending")
        self.repair = None

    def on_DraftDiscarded(self, event):
        self.require("law 4", 1 <= event.count <= self.pending(), f"{event.count} discarded of {self.pending()}")
        surplus = min(self.unusable, event.count)
        self.unusable -= surplus
        rest = len(self.draft or ()) - (event.count - surplus)
        self.draft = (self.draft or [])[: max(rest, 0)]
        self.account.discarded[event.reason] += event.count
        self.account.count["pending"] -= event.count

    def on_SpanRefused(self, event):
        self.quiet("SpanRefused")

    def on_SpanVerified(self, event):
        self.quiet("SpanVerified")
        draft = self.draft or []
        self.boundary()
        self.require("law 1", event.base == self.position, f"a span at {event.base}, position {self.position}")
        self.require("law 2", event.rows == len(draft) + 1, f"{event.rows} rows for {len(draft)} drafts")
        self.require("law 2", event.observed == event.base + event.rows, f"{event.observed} rows after {event.base} + {event.rows}")
        matched = 0
        while matched < min(len(draft), len(event.predictions)) and draft[matched] == event.predictions[matched]:
            matched += 1
        self.require("law 3", event.matched == matched, f"matched {event.matched}, by content {matched}")
        self.require("law 3", matched + 1 <= len(event.predictions) <= event.rows, f"{len(event.predictions)} predictions")
        count = self.account.count
        count["spans"] += 1
        count["verified"] += len(draft)
        count["matched"] += matched
        for depth in range(1, len(draft) + 1):
            self.account.verified_per_depth[depth] += 1
        self.position, self.forward, self.span = event.observed, event, (event, None)

    def on_SerialDecoded(self, event):
        self.quiet("SerialDecoded")
        self.boundary()
        count = self.account.count
        count["serial_steps"] += 1
        self.require("law 1", event.base == self.position, f"a serial step at {event.base}, position {self.position}")
        self.require("law 1", event.observed == event.base + 1, f"{event.observed} rows after a serial step at {event.base}")
        verdict = "none"
        if self.draft:
            verdict = "accepted" if self.draft[0] == event.prediction else "rejected"
            count["accepted_serial" if verdict == "accepted" else "rejected"] += 1
            count["pending"] -= 1
            del self.draft[0]
        self.require("law 4", event.verdict == verdict, f"verdict {event.verdict}, by content {verdict}")
        self.position, self.forward = event.observed, event

    def on_Committed(self, event):
        forward, count = self.forward, self.account.count
        if forward is None:
            self.broken("law 3", "a commit without a forward")
            return
        committed, tokens = len(event.tokens), list(event.tokens)
        if isinstance(forward, ev.SpanVerified):
            source, possible = "span", list(forward.predictions[: forward.matched + 1])
            draft = self.draft or []
            accepted = min(forward.matched, committed)
            rejected = int(committed == forward.matched + 1 and forward.matched < len(draft))
            self.draft = draft[accepted + rejected :]
            count["accepted"] += accepted
            count["rejected"] += rejected
            count["pending"] -= accepted + rejected
            count["span_tokens"] += committed
            count["saved_forwards"] += max(committed - 1, 0)
            count["empty"] += committed == 0
            for depth in range(1, accepted + 1):
                self.account.accepted_per_depth[depth] += 1
            self.span = (forward, committed)
            self.require("law 3", committed or event.cut_by == "cancelled", "only a cancelled span commits nothing")
        else:
            source, possible, accepted = ("serial" if isinstance(forward, ev.SerialDecoded) else "prefill"), [forward.prediction], 0
            self.require("law 3", committed == 1, f"{committed} tokens from one row")
        self.require("law 3", event.source == source, f"source {event.source}, the forward was a {source}")
        self.require("law 3", tokens == possible[:committed] and committed <= len(possible), f"committed {tokens} of {possible}")
        self.require("law 3", event.accepted == accepted, f"accepted {event.accepted}, min(matched, c) is {accepted}")
        stops = self.stop_ids()
        for at, token in enumerate(tokens):
            if token in stops:
                self.require("law 3", at == committed - 1, f"tokens behind the stop token {token}")
                self.require("law 3", event.cut_by == "stop_token", f"the stop token {token} did not end the turn")
                early = len(self.canonical) + at - self.start < self.limits.min_tokens
                self.require("law 3", not early, f"the stop token {token} came before min_tokens")
        if event.cut_by == "stop_token":
            self.require("law 3", bool(tokens) and tokens[-1] in stops, "cut by a stop token that is not there")
        if event.cut_by == "none":
            self.require("law 3", committed == len(possible), f"{committed} of {len(possible)} committed and nothing cut them")
        self.canonical += tokens
        self.require("law 1", event.position == len(self.canonical) - 1, f"position {event.position} for {len(self.canonical)} tokens")
        count["tokens"] += committed
        self.cut = None if event.cut_by == "none" else event.cut_by
        self.forward, self.primed = None, True
        decoded = len(self.canonical) - self.start
        most = self.limits.max_tokens
        self.require("law 3", most is None or decoded <= most, f"{decoded} tokens decoded, max_tokens is {most}")
        self.require("law 3", len(self.canonical) <= self.opened.runtime.context_length, "the commit exceeds the context")
        if source != "span":
            self.boundary()

    def on_Trimmed(self, event):
        self.require("law 2", event.observed == event.to, f"trimmed to {event.observed} where {event.to} was wanted")
        count = self.account.count
        count["trims"] += 1
        count["replayed_rows"] += event.replayed_rows
        count["replay_forwards"] += event.replayed_rows > 0
        if event.cause == "span":
            if self.span is None or self.span[1] is None:
                self.broken("law 2", "a span trim without a committed span")
            else:
                span, committed = self.span
                self.require("law 2", event.to == span.base + committed, f"trimmed to {event.to}, base + c is {span.base + committed}")
                self.require("law 2", committed < span.rows, "every row is canonical and the span was trimmed")
                self.require("law 4", self.pending() == 0, f"{self.pending()} pending after a span")
            self.span = None
        elif event.cause == "failure":
            self.require("law 2", self.repair is not None and event.to == self.repair, f"trimmed to {event.to}, due was {self.repair}")
            if self.forward is not None:
                count["empty"] += 1
            self.forward = self.span = self.repair = None
        else:
            self.quiet("Trimmed")
            self.require("law 1", event.to <= len(self.canonical) - 1, f"a {event.cause} trim to {event.to} of {len(self.canonical)}")
            # What a reset took away is prefilled again before the next commit.
            self.primed = self.primed and event.to == len(self.canonical) - 1
        self.position = event.observed
        self.boundary()

    def on_CheckpointRetired(self, event):
        if self.span is None or self.span[1] is None:
            self.broken("law 2", "a checkpoint retired without a committed span")
        else:
            span, committed = self.span
            self.require("law 2", committed == span.rows, f"retired with {committed} of {span.rows} rows canonical")
            self.require("law 2", (event.base, event.rows) == (span.base, span.rows), "another span was retired")
        self.require("law 2", event.observed == self.position, f"{event.observed} rows after a retire at {self.position}")
        self.require("law 4", self.pending() == 0, f"{self.pending()} pending after a span")
        self.span = None
        self.account.count["retired"] += 1
        self.position = event.observed
        self.boundary()

    def on_Rewound(self, event):
        self.quiet("Rewound")
        self.require("law 4", self.pending() == 0, f"{self.pending()} pending at Rewound")
        self.require("order", 0 < event.count < len(self.canonical), f"{event.count} taken of {len(self.canonical)}")
        del self.canonical[len(self.canonical) - event.count :]
        self.require("order", event.length == len(self.canonical), f"length {event.length}, by content {len(self.canonical)}")
        self.start = min(self.start, len(self.canonical))
        self.cut, self.finished = None, False
        if self.position < len(self.canonical) - 1:
            self.primed = False

    def on_RuntimeFailed(self, event):
        if not event.started and event.call != "settle" and self.span is None and self.repair is None:
            return
        if event.call in ("prefill", "serial", "span") and self.repair is None:
            self.repair = self.span[0].base if self.span is not None else self.position
        elif event.call in ("settle", "reset") or self.repair is not None or self.span is not None:
            self.repair = "drop"

    def on_SessionFinished(self, event):
        self.quiet("SessionFinished")
        self.boundary()
        self.require("law 4", self.pending() == 0, f"{self.pending()} pending when finished")
        self.require("order", event.turn == self.turn, f"turn {event.turn} finished in {self.turn}")
        if self.cut in STOPS:
            self.require("law 3", event.reason in (self.cut, "closed", "failed"), f"cut by {self.cut}, finished {event.reason}")
        decoded, room = len(self.canonical) - self.start, self.opened.runtime.context_length - len(self.canonical)
        if event.reason == "length":
            reached = room == 0 if event.limit == "context" else decoded == self.limits.max_tokens
            self.require("law 3", reached, f"finished by {event.limit} with {decoded} decoded and room for {room}")
        elif event.reason in STOPS:
            self.require("law 3", self.cut == event.reason, f"finished {event.reason}, cut by {self.cut}")
        self.finished = True

    def on_SessionDropped(self, event):
        self.require("law 4", self.pending() == 0, f"{self.pending()} pending when dropped")
        if self.forward is not None:
            self.account.count["empty"] += 1
        self.forward = self.span = self.repair = None
        self.dropped = True


def read(records):
    """A checker that has read all records."""
    checker = Checker()
    for record in records:
        checker.read(record)
    return checker


def violations(records):
    """Every breach of laws 1 to 5 in the records of one session."""
    return read(records).found


def differences(checker, stats):
    """Where the engine's statistics differ from the tallies of the raw events: (name, engine's, tallied)."""
    return [(name, getattr(stats, name), wanted) for name, wanted in checker.account.totals().items() if getattr(stats, name) != wanted]


def account_differences(records, stats):
    """The same, from the records."""
    return differences(read(records), stats)


def committed_tokens(records):
    """All tokens ever committed, in order."""
    return [token for record in records if isinstance(record.event, ev.Committed) for token in record.event.tokens]
