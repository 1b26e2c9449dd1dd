"""The event log for people: one line per record, tokens shown as text where a vocabulary is at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

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
from ..text import TextSource, TokenText
from ..values import Limits, Stops

__all__ = ["EventLog"]

_SHOWN = 12


class EventLog:
    """Turns records into lines.

    Args:
        text: the vocabulary; None: token ids are shown.
        costs: whether lines end with how long the work took (a log without them is the same in every run).
    """

    def __init__(self, text: TextSource | None = None, *, costs: bool = True) -> None:
        self._text = text
        self._costs = costs

    def line(self, record: Record) -> str:
        """One line, without a newline: number, type, what happened."""
        cost = getattr(record.event, "cost_ns", 0) if self._costs else 0
        spent = f"  {cost / 1e6:.2f} ms" if cost else ""
        return f"{record.seq:5d}  {type(record.event).__name__:<17}  {self.described(record.event)}{spent}".rstrip()

    def described(self, event: Event) -> str:
        """What an event says, in words."""
        match event:
            case SessionOpened():
                width = "" if event.draft is None else f"at most {min(event.policy.width, event.draft.depth)}"
                width += ", as many as pay" if event.policy.kind == "auto" else ""
                drafts = f"drafts: {event.draft.origin}, {width}" if event.draft else "no drafts"
                model = f"{event.runtime.backend}:{event.runtime.model}"
                return f"prompt of {_count(event.prompt)}, {_terms(event.limits, event.stops)}, {drafts}, model {model}"
            case Extended():
                return f"{_count(event.tokens)} more, {_terms(event.limits, event.stops)}, turn {event.turn}"
            case SessionResumed():
                return f"on {event.runtime.backend}:{event.runtime.model}"
            case Prefilled():
                reused = f", {event.reused} rows reused" if event.reused else ""
                rows = f"rows {event.start}..{event.position - 1} in {_many(event.chunks, 'chunk')}{reused}"
                return f"{rows}, predicts {self._shown((event.prediction,))}"
            case DraftOffered():
                wrong = f", {event.invalid} outside the vocabulary" if event.invalid else ""
                probe = ", a probe" if event.probe else ""
                return f"{event.origin}: {len(event.tokens)} of {event.limit} asked{probe} {self._shown(event.tokens)}{wrong}"
            case DraftFailed():
                return f"{event.origin}: {event.error}: {event.message}"
            case DraftTaken():
                return f"{len(event.tokens)} of {event.offered} offered"
            case DraftRestored():
                return f"{event.count} pending again: {event.reason}"
            case DraftDiscarded():
                return f"{event.count}: {event.reason}"
            case SpanRefused():
                return event.reason
            case SpanVerified():
                rows = f"rows {event.base}..{event.base + event.rows - 1}"
                return f"{rows}, {event.matched} of {event.rows - 1} match {self._shown(event.predictions)}"
            case SerialDecoded():
                verdict = f", draft {event.verdict}" if event.verdict != "none" else ""
                return f"row {event.base}, predicts {self._shown((event.prediction,))}{verdict}"
            case Committed():
                cut = f", cut by {event.cut_by}" + (f" ({event.detail})" if event.detail else "") if event.cut_by != "none" else ""
                drafted = f", {event.accepted} of them drafted" if event.source == "span" else ""
                return f"{_count(event.tokens)} {self._shown(event.tokens)}{drafted}{cut}"
            case Trimmed():
                replayed = f", {_many(event.replayed_rows, 'row')} computed again" if event.replayed_rows else ""
                return f"{event.from_} -> {event.observed} rows ({event.cause}){replayed}"
            case CheckpointRetired():
                return f"all {event.rows} rows stay, {event.observed} now"
            case Rewound():
                return f"{event.count} taken back, {event.length} remain"
            case RuntimeFailed():
                return f"{event.call} {'failed' if event.started else 'did not start'}: {event.error}: {event.message}"
            case SessionFinished():
                limit = f" ({event.limit})" if event.limit else ""
                return f"{event.reason}{limit}" + (f": {event.detail}" if event.detail else "")
            case SessionDropped():
                return event.reason
            case _:
                assert_never(event)

    def _shown(self, tokens: Sequence[int]) -> str:
        if not tokens:
            return "[]"
        head, more = tokens[:_SHOWN], len(tokens) - _SHOWN
        ids = " ".join(map(str, head)) + (f" and {more} more" if more > 0 else "")
        if self._text is None:
            return f"[{ids}]"
        return " ".join(self._quoted(token) for token in head) + (f" and {more} more" if more > 0 else "")

    def _quoted(self, token: int) -> str:
        text = self._text
        if isinstance(text, TokenText):
            raw = text.token_bytes(token)
            try:
                words = repr(raw.decode("utf-8"))
            except UnicodeDecodeError:
                words = repr(raw)[1:]
            # A token that shows nothing (the end of text) and a part of a character are shown as their id and their bytes.
            return words if raw else f"<{token}>"
        decode: Callable[[Sequence[int]], str] | None = text
        words = decode((token,)) if decode is not None else ""
        return repr(words) if words else f"<{token}>"


def _terms(limits: Limits, stops: Stops) -> str:
    most = "up to the context's end" if limits.max_tokens is None else f"at most {limits.max_tokens}"
    stopping = len(stops.tokens) + len(stops.texts)
    return f"{most}, {_many(stopping, 'stop')}" + (", end of text ignored" if stops.ignore_eos else "")


def _count(tokens: Sequence[int]) -> str:
    return _many(len(tokens), "token")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
