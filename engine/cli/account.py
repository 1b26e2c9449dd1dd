"""The account of a generation: the JSON object, and the few lines that people read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from attrs import frozen

from ..replay.rounds import RoundFigures
from ..session import Result
from ..state import DecodeStats

__all__ = ["Comparison", "Run", "as_json", "lines"]

SECOND = 1_000_000_000


@frozen(kw_only=True)
class Run:
    """One finished generation.

    Attributes:
        result: what came of it.
        text: the text of its tokens.
        elapsed_ns: time inside the engine, from before the prefill to the end; writing the text is not in it.
        before: the account at the beginning of that time; that of a resumed session says what was decoded before.
    """

    result: Result
    text: str
    elapsed_ns: int
    before: DecodeStats = DecodeStats()

    @property
    def decoded(self) -> int:
        """Tokens committed in that time."""
        return self.result.stats.tokens - self.before.tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens decoded per second, prefill included; None without a token."""
        return self.decoded * SECOND / self.elapsed_ns if self.decoded and self.elapsed_ns else None


@frozen(kw_only=True)
class Comparison:
    """The same prompt with and without speculation, after a warm-up of both, in the order with, without, without, with.

    Attributes:
        with_runs, without_runs: two runs each; all runs have the same tokens or the comparison is void.
        margin: how far apart the target's two best tokens are at the first difference, decoded without speculation; None where
            there is no difference, or the runtime does not say. A difference with a margin near 0 is rounding, another is a fault.
    """

    with_runs: tuple[Run, ...]
    without_runs: tuple[Run, ...]
    margin: float | None = None

    @property
    def first_difference(self) -> int | None:
        """The first index, counted from 0 in the output, at which some run differs from the first one; None: no difference."""
        first = self.with_runs[0].result.tokens
        places = [_first_difference(first, run.result.tokens) for run in (*self.with_runs, *self.without_runs)]
        return min((place for place in places if place is not None), default=None)

    @property
    def identical(self) -> bool:
        """Whether all runs gave the same tokens for the same reason to finish."""
        reasons = {run.result.finish_reason for run in (*self.with_runs, *self.without_runs)}
        return self.first_difference is None and len(reasons) == 1

    @property
    def serial_tokens_per_second(self) -> float | None:
        """Tokens per second without speculation."""
        return _rate(self.without_runs)

    @property
    def speculative_tokens_per_second(self) -> float | None:
        """Tokens per second with speculation."""
        return _rate(self.with_runs)

    @property
    def speedup(self) -> float | None:
        """How much faster it is with speculation; None where the tokens differ: then it would compare two different things."""
        serial, speculative = self.serial_tokens_per_second, self.speculative_tokens_per_second
        return speculative / serial if self.identical and serial and speculative else None


def _rate(runs: tuple[Run, ...]) -> float | None:
    tokens, elapsed = sum(len(run.result.tokens) for run in runs), sum(run.elapsed_ns for run in runs)
    return tokens * SECOND / elapsed if tokens and elapsed else None


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


def as_json(run: Run, comparison: Comparison | None = None, rounds: RoundFigures | None = None) -> dict[str, Any]:
    """The object of ``--json``; rates are null where nothing was verified, and where a comparison found different tokens."""
    stats = run.result.stats
    void = comparison is not None and not comparison.identical
    shown: dict[str, Any] = {
        "tokens": list(run.result.tokens),
        "text": run.text,
        "finish_reason": run.result.finish_reason,
        "limit": run.result.limit,
        "stats": {
            "prompt_tokens": stats.prompt_tokens,
            "tokens": stats.tokens,
            "forwards": stats.forwards,
            "serial_steps": stats.serial_steps,
            "spans": stats.spans,
            "drafted": stats.drafted,
            "verified": stats.verified,
            "accepted": stats.accepted,
            "accepted_serial": stats.accepted_serial,
            "rejected": stats.rejected,
            "discarded": dict(stats.discarded),
            "pending": stats.pending,
            "saved_forwards": stats.saved_forwards,
            "saved_net": stats.saved_net,
            "replay_forwards": stats.replay_forwards,
            "acceptance_rate": None if void else stats.acceptance_rate,
            "acceptance_length": None if void else stats.acceptance_length,
            "accepted_per_depth": list(stats.accepted_per_depth),
            "verified_per_depth": list(stats.verified_per_depth),
            "tokens_per_second": run.tokens_per_second,
        },
    }
    if rounds is not None:
        shown["rounds"] = rounds.to_json()
    if comparison is not None:
        shown["compare"] = {
            "identical": comparison.identical,
            "first_difference": comparison.first_difference,
            "serial_tokens_per_second": comparison.serial_tokens_per_second,
            "speedup": comparison.speedup,
        }
    return shown


def lines(run: Run, comparison: Comparison | None = None) -> Iterator[str]:
    """The account in a few lines."""
    result, stats = run.result, run.result.stats
    limit = f", {result.limit}" if result.limit else ""
    speed = f", {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    yield f"{_many(run.decoded, 'token')} in {run.elapsed_ns / SECOND:.2f} s{speed} (finished: {result.finish_reason}{limit})"
    whole = f"the whole session: {_many(stats.tokens, 'token')} from " if run.before.prompt_tokens else ""
    replays = f", {_many(stats.replay_forwards, 'replay')} taken off" if stats.replay_forwards else ""
    yield (
        f"{whole}{_many(stats.forwards, 'target forward')}: {_many(stats.prefills, 'prefill')}, {_many(stats.spans, 'span')}, "
        f"{_many(stats.serial_steps, 'serial step')}; {stats.saved_net} net forwards saved{replays}"
    )
    if comparison is None or comparison.identical:
        yield from _drafts(stats)
    yield _times(run)
    if comparison is not None:
        yield _compared(comparison)


def _drafts(stats: DecodeStats) -> Iterator[str]:
    if stats.acceptance_rate is None or stats.acceptance_length is None:
        yield f"drafts: {stats.drafted} drafted, none verified"
        return
    depths = " ".join(f"{accepted / verified:.2f}" for accepted, verified in _depths(stats))
    yield (
        f"drafts: {stats.accepted} of {stats.verified} verified ones accepted, acceptance rate {stats.acceptance_rate:.2f}, "
        f"acceptance length {stats.acceptance_length:.2f} tokens per span, accepted by depth {depths}"
    )


def _depths(stats: DecodeStats) -> Iterator[tuple[int, int]]:
    # Depths that were never accepted may be missing at the end.
    pairs = zip_longest(stats.accepted_per_depth, stats.verified_per_depth, fillvalue=0)
    return ((accepted, verified) for accepted, verified in pairs if verified)


def _times(run: Run) -> str:
    stats, before = run.result.stats, run.before
    backend = (
        ("prefill", stats.prefill_ns - before.prefill_ns),
        ("verify", stats.verify_ns + stats.serial_ns - before.verify_ns - before.serial_ns),
        ("head", stats.draft_ns - before.draft_ns),
        ("settle", stats.settle_ns - before.settle_ns),
    )
    parts = (*backend, ("engine", max(run.elapsed_ns - sum(spent for _, spent in backend), 0)))
    whole = max(run.elapsed_ns, 1)
    return "time: " + ", ".join(f"{name} {spent / SECOND:.3f} s ({100 * spent / whole:.0f}%)" for name, spent in parts)


def _compared(comparison: Comparison) -> str:
    serial, speculative = comparison.serial_tokens_per_second, comparison.speculative_tokens_per_second
    if not comparison.identical:
        where = comparison.first_difference
        place = f"first difference at output token {where}" if where is not None else "they finished for different reasons"
        margin = "" if comparison.margin is None else f", where the two best tokens are {comparison.margin:.3g} apart"
        return f"compared: tokens DIFFER, {place}{margin}; no speed-up is stated for different outputs"
    speeds = f"{speculative:.1f} tokens/s with speculation, {serial:.1f} without" if serial and speculative else "no tokens"
    return f"compared: tokens identical, {speeds}" + (f", speed-up {comparison.speedup:.2f}x" if comparison.speedup else "")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
