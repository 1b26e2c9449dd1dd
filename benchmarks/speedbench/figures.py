"""The arithmetic: what may be compared, what a round costs, which speed-up that predicts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

#: An output is dull, and left out of acceptance and speed-up, where fewer of its 8-grams than this share are distinct.
DULL: Final = 0.5
NGRAM: Final = 8
#: Margins below which a first difference is a near tie, by dtype (docs/explanation/numerics.md).
NEAR_TIE: Final = {"float32": 1e-3, "bfloat16": 1.0, "float16": 0.25, "int4": 1.0}


def distinct_share(tokens: Sequence[int], n: int = NGRAM) -> float:
    """Distinct n-grams / n-grams; 1 for an output that is shorter than one."""
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index at which the outputs differ; the shorter one's length where it is a beginning of the other."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))


@frozen(kw_only=True)
class Run:
    """One decode of one prompt.

    Attributes:
        prompt, turn: which prompt, and in which turn over the prompts.
        tokens: the output.
        first: tokens of the first delivery, whose time is prefill and set-up.
        rest_ns: time of the tokens after it.
        verdict: ``same`` tokens as the serial decode, ``tie`` (they part where its two best scores are nearly equal) or ``differs``.
        raw: the peer's whole reply.
    """

    prompt: int
    turn: int
    tokens: tuple[int, ...]
    first: int
    rest_ns: int
    verdict: str
    raw: Mapping[str, Any] = field(factory=dict, eq=False, repr=False)

    @property
    def dull(self) -> bool:
        """Whether the output repeats itself too much to count."""
        return distinct_share(self.tokens) < DULL

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds per token after the first delivery; None where nothing came after it."""
        count = len(self.tokens) - self.first
        return self.rest_ns / count / 1e6 if count > 0 else None


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


def ratio(slower: Sequence[Run], faster: Sequence[Run], allowed: frozenset[str]) -> tuple[float | None, int]:
    """How many times faster: the median over prompts and turns of pairs that were measured next to each other.

    Pairs with a dull output, or where a verdict is not in ``allowed``, are left out: they compare different things. Returns the
    median, None where no pair is left, and the number of pairs.
    """
    others = {(run.prompt, run.turn): run for run in slower if run.verdict in allowed and not run.dull}
    found: list[float] = []
    for run in faster:
        other = others.get((run.prompt, run.turn))
        if other is None or run.verdict not in allowed or run.dull:
            continue
        mine, theirs = run.ms_per_token, other.ms_per_token
        if mine and theirs:
            found.append(theirs / mine)
    return median(found), len(found)


@frozen(kw_only=True)
class RoundCost:
    """Median milliseconds of the parts of a round with drafts of k tokens (k = 0: a serial step)."""

    draft: float
    verify: float
    settle: float
    engine: float

    @property
    def total(self) -> float:
        """The whole round."""
        return self.draft + self.verify + self.settle + self.engine


def engine_ms(runs: Sequence[Run]) -> float | None:
    """Median milliseconds per round that passed outside the runtime's calls, over the runs."""
    found: list[float] = []
    for run in runs:
        costs = run.raw["costs"]
        verify = [cost for some in costs["verify"].values() for cost in some]
        drafts = [cost for some in costs["draft"].values() for cost in some]
        rounds = len(verify) + len(costs["serial"])
        spent = sum(verify) + sum(drafts) + sum(costs["serial"]) + sum(costs["settle"])
        if rounds:
            found.append((run.rest_ns - spent) / rounds / 1e6)
    return median(found)


def round_cost(runs: Sequence[Run], k: int) -> RoundCost | None:
    """The parts of a round with drafts of k tokens, as medians of the recorded costs; None where no such round was run."""

    def pooled(name: str, key: str | None = None) -> list[int]:
        return [cost for run in runs for cost in (run.raw["costs"][name] if key is None else run.raw["costs"][name].get(key, []))]

    verify = pooled("serial") if k == 0 else pooled("verify", str(k + 1))
    engine = engine_ms(runs)
    if not verify or engine is None:
        return None
    return RoundCost(
        draft=0.0 if k == 0 else (median(pooled("draft", str(k))) or 0.0) / 1e6,
        verify=statistics.median(verify) / 1e6,
        settle=0.0 if k == 0 else (median(pooled("settle")) or 0.0) / 1e6,
        engine=engine,
    )


def tokens_per_span(runs: Sequence[Run]) -> float | None:
    """Committed tokens per span, bonus and correction included, over the runs whose output is not dull."""
    spans = sum(run.raw["stats"]["spans"] for run in runs if not run.dull)
    return sum(run.raw["stats"]["span_tokens"] for run in runs if not run.dull) / spans if spans else None


def acceptance_by_depth(runs: Sequence[Run]) -> list[float]:
    """Accepted / verified at each depth, over the runs whose output is not dull."""
    accepted: list[int] = []
    verified: list[int] = []
    for run in runs:
        if run.dull:
            continue
        for sums, name in ((accepted, "accepted_per_depth"), (verified, "verified_per_depth")):
            one = run.raw["stats"][name]
            sums.extend([0] * (len(one) - len(sums)))
            for at, count in enumerate(one):
                sums[at] += count
    return [a / v for a, v in zip(accepted, verified, strict=False) if v]


def predicted(tokens: float, span: RoundCost, serial: RoundCost) -> float:
    """The speed-up of spans: tokens per span x time of a serial round / time of a span's round."""
    return tokens * serial.total / span.total


def step_cost(drafts: Mapping[int, float]) -> tuple[float, float] | None:
    """Milliseconds of one head step and of the part that every draft has, by least squares of draft time over k; None below two k."""
    if len(drafts) < 2:
        return None
    line = statistics.linear_regression(list(drafts.keys()), list(drafts.values()))
    return line.slope, line.intercept
