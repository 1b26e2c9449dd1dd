"""Decodes with the adaptive width under a cost model, and what any fixed width would have taken on the same tokens.

Costs are in units of a thousandth of a serial step. Everything is judged by the model's costs; noise is only in what the engine sees.
"""

import dataclasses

import attrs

from spanfold.backends.scripted import Costs, ScriptedRuntime, hash_target
from spanfold.backends.scripted.targets import mix
from spanfold.engine import Decoder, DraftOffered, SerialDecoded, SpanVerified

SERIAL = 1_000_000
WIDEST = 8
PROMPT = 3  # tokens of the first session's; those of later ones are longer, so that their drafts are others
_MASK = (1 << 64) - 1


def chance(*numbers):
    """A number from 0 to 1, by a hash."""
    folded = 0
    for number in numbers:
        folded = mix((folded ^ (number + 1)) * 0x9E3779B97F4A7C15 & _MASK)
    return (folded & 0xFFFFFFFF) / (1 << 32)


@dataclasses.dataclass(frozen=True)
class Model:
    """What a round costs beyond a serial step of 1: per further row, per head step, and once for a span."""

    row: float
    head: float
    span: float = 0.0

    def cost(self, width):
        """A round of this width, in nanoseconds."""
        return round(SERIAL * (1 + (self.span + (self.row + self.head) * width if width else 0)))


class Clocked(ScriptedRuntime):
    """The scripted runtime with a span surcharge, which `Costs` has not, with noise on what it reports, on a machine of changing pace.

    ``pace(n)`` is how many times slower the forward number n is, and the draft before it.
    """

    def __init__(self, model, drafts, noise, pace):
        row, head = round(SERIAL * model.row), round(SERIAL * model.head)
        costs = Costs(forward=SERIAL - row, row=row, step=head)
        super().__init__(hash_target(5, 997), drafts=drafts, depth=WIDEST, costs=costs, record=False)
        self._surcharge, self._noise, self._calls, self._pace = round(SERIAL * model.span), noise, 0, pace

    def forward(self, calls):
        (rows,) = super().forward(calls)
        cost = rows.cost_ns + (0 if calls[0].canonical else self._surcharge)
        return (attrs.evolve(rows, cost_ns=self._noisy(round(cost * self._pace(self._calls + 1)))),)

    def draft(self, calls):
        (draft,) = super().draft(calls)
        return (attrs.evolve(draft, cost_ns=round(draft.cost_ns * self._pace(self._calls + 1))),)

    def _noisy(self, cost):
        self._calls += 1
        if not self._noise:
            return cost
        factor = 1 - self._noise + 2 * self._noise * chance(self._calls, 1)
        # One forward in 200 is a page fault or a compile.
        return round(cost * factor * (50 if chance(self._calls, 2) < 1 / 200 else 1))


def drafted(acceptance, seed):
    """Drafts that are right with the probability ``acceptance(index, depth)``, decided by a hash of the seed and the index."""

    def draft(head, limit):
        tokens, state = [], head.target.advance(head.hidden, head.current)
        for depth in range(limit):
            token = head.target.choose(state, ())
            if chance(seed, head.rows, depth) >= acceptance(head.rows - PROMPT, depth):
                token = (token + 1) % head.vocabulary
            tokens.append(token)
            state = head.target.advance(state, token)
        return tokens

    return draft


@dataclasses.dataclass(frozen=True)
class Round:
    tokens: int
    width: int
    probe: bool


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One simulated decode.

    speed: of the adaptive width, against the best fixed width in hindsight (0 among them), whose number is ``best``; ``gain`` is
    that one's speed against serial. window: the largest time of any 256 tokens, probes' losses left out, against serial.
    probes: share of the forwards. spent, fixed: the time of the adaptive width, and of each fixed one.
    """

    speed: float
    best: int
    gain: float
    window: float
    probes: float
    spent: int
    fixed: dict
    records: list
    rounds: list


def rounds_of(records):
    rounds, offer = [], None
    for record in records:
        event = record.event
        if isinstance(event, DraftOffered):
            offer = event
        elif isinstance(event, SpanVerified):
            rounds.append(Round(event.matched + 1, event.rows - 1, offer.probe))
        elif isinstance(event, SerialDecoded):
            rounds.append(Round(1, 0, False))
    return rounds


def fixed_time(model, acceptance, seed, tokens, width, prompt=PROMPT):
    """What a fixed width takes: the drafts are a function of the index, so no decode is needed for it."""
    at = spent = 0
    while at < tokens:
        most = min(width, tokens - at - 1)
        matched = 0
        while matched < most and chance(seed, at + prompt, matched) < acceptance(at + prompt - PROMPT, matched):
            matched += 1
        at += matched + 1
        spent += model.cost(most)
    return spent


def worst_window(model, rounds, tokens=256):
    times, counts = [0], [0]
    for one in rounds:
        cost = model.cost(one.width)
        times.append(times[-1] + (min(cost, one.tokens * SERIAL) if one.probe else cost))
        counts.append(counts[-1] + one.tokens)
    worst, end = 0.0, 0
    for begin in range(len(counts)):
        while end < len(counts) and counts[end] - counts[begin] < tokens:
            end += 1
        if end == len(counts):
            break
        worst = max(worst, (times[end] - times[begin]) / ((counts[end] - counts[begin]) * SERIAL))
    return worst


def simulate(model, acceptance, *, tokens, seed=0, noise=0.0, sessions=1, pace=lambda forward: 1):
    """Decode ``tokens`` tokens after the prompt's own, in so many sessions of one decoder."""
    records = []
    runtime = Clocked(model, drafted(acceptance, seed), noise, pace)
    each = tokens // sessions
    with Decoder(runtime, observers=[records.append], clock=runtime.clock) as decoder:
        for session in range(sessions):
            decoder.generate((1,) * (PROMPT + 200 * session), max_tokens=each + 1)  # the first one is the prefill's
    rounds = rounds_of(records)
    spent = sum(model.cost(one.width) for one in rounds)
    prompts = [PROMPT + 200 * session for session in range(sessions)]
    fixed = {width: sum(fixed_time(model, acceptance, seed, each, width, prompt) for prompt in prompts) for width in range(WIDEST + 1)}
    best = min(fixed, key=fixed.get)
    return Outcome(
        speed=fixed[best] / spent,
        best=best,
        gain=fixed[0] / fixed[best],
        window=worst_window(model, rounds),
        probes=sum(one.probe for one in rounds) / len(rounds),
        spent=spent,
        fixed=fixed,
        records=records,
        rounds=rounds,
    )
