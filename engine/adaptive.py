"""The adaptive width: what the rounds so far have cost and accepted, and the width that follows from it.

A ``Pace`` is the part of a session's state that the policy ``auto`` adds. The reducer changes it after each round, by what the round's
events hold: the accepted drafts and ``cost_ns``. So the width of the next draft is a pure function of the log, and since all of it
is integers and ``+ - * //``, a log is decided the same on every machine.

Two questions are answered apart:

* **Which width**: the one with the most expected tokens per time. With ``a_d`` how often depth d is accepted once the depths before
  it are, a round of width k gives ``E(k) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k`` tokens; its cost is that of the head's steps, the
  verify and the settle together, measured by k.
* **Whether at all**: by the *debt*, what drafting has cost beyond the serial steps that it replaced, never below 0. Because gains
  of the past do not count, the debt bounds the loss over every stretch of the session. A large debt stops drafting, a smaller one
  does where the estimates agree. From then on single probes, rare and rarer while they fail, look whether it pays again.

docs/explanation/adaptive-width.md tells what this guarantees and what was simulated.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
from attrs import field

from .errors import ConfigError
from .estimates import (
    COST_MEMORY,
    FIRST_CHANCE,
    LOSES,
    ONE,
    PAYS,
    PAYS_WELL,
    SURE,
    believed,
    choice,
    cost_curve,
    hopeful_width,
    smoothed,
    trusted,
)
from .evolving import evolver
from .values import WIDEST, flag, ids, integer, one_of

__all__ = ["Pace", "after_probe_asked", "after_serial", "after_span", "carried", "first_pace"]

FIRST_WIDTH: Final = 2  # of the spans that find out what a span costs
COST_MOST: Final = 1 << 47  # nanoseconds, more than a day: what is recorded must stay an integer of a trace

# How fast estimates follow.
MEMORY: Final = 32  # observations that a chance remembers
NEW_TEXT: Final = 8  # observations that a chance keeps from one session to the next: another text may be drafted otherwise
BEAT: Final = 8  # rounds from one choice of the width to the next; at first every round is followed by one
FORGET: Final = 128  # rounds after which a width that is not in use is known a little less

# When drafting stops: debts in serial steps.
DEBT_DOUBTED: Final = 4  # where the estimates say that it does not pay
DEBT_YOUNG: Final = 7  # ... and rest on few observations
YOUNG: Final = 8
DEBT_MOST: Final = 9  # whatever they say
HEADROOM: Final = 2  # below that, to begin again
WINDOW: Final = 256  # tokens over which the debt is a bound; so many serial steps later it is forgiven

# When it is tried again, in forwards.
PROBE_SHARE: Final = 50  # per probe, at least
CREDIT: Final = 100  # that may be saved up for probes
COOL_DOWN: Final = 8
COOL_DOWN_MOST: Final = 512
FAILS_MOST: Final = 3  # a cool-down doubles so many times
REPAY: Final = 64  # over which the loss of a failed probe is spread
SETTLED: Final = 32  # of drafting, after which earlier failures do not count

# When the cost of a serial step is measured again, in forwards of drafting.
MEASURE: Final = 128  # where drafting pays well
MEASURE_FIRST: Final = 24  # ... and it was measured once
MEASURE_CLOSE: Final = 3  # else: after 6 forwards, 12, 24, 48, 64
FRESH: Final = 8  # before drafting stops


def _sizes(owner: Any, attribute: object, got: tuple[int, ...]) -> None:
    most = owner.most
    wanted = {"costs": most + 1, "samples": most + 1, "chances": most, "seen": most}
    for name, size in wanted.items():
        if len(getattr(owner, name)) != size:
            raise ConfigError(f"Pace.{name} must hold {size} integers where most is {most}, not {len(getattr(owner, name))}")


@attrs.frozen(kw_only=True, slots=False)
class Pace:
    """What is known of costs and chances, and the width that follows. All times are nanoseconds.

    Attributes:
        most: the widest draft.
        width: tokens that the next draft asks for; 0: a serial step.
        reason: why the width is 0: ``measuring`` (the cost of a serial step), ``not_paying``, or ``cool_down`` (a probe failed).
        probe: whether the next draft is a probe.
        chosen: the width while drafting goes on.
        costs, samples: entry k: the cost of a round with k drafts, and how many rounds it rests on (up to ``COST_MEMORY``). A first
            round is only remembered: its cost counts from the second one on.
        chances, seen: entry d - 1: how often depth d is accepted once those before it are, of ``ONE``, and observations of it.
        serial: the cost of a serial step as far as it can be trusted.
        debt: what drafting has lost lately.
        gain: how well it pays by the estimates, from 0 (it loses) to 3.
        off: whether drafting is stopped.
        fails: stops and failed probes lately.
        resume_at, since, measured: the forward from which on a probe may come, at which drafting was begun or stopped last, and at
            which a serial step was measured last. Forwards count on from session to session.
        forwards: before this session. probes: forwards spent on probes, credit that went by counted as spent.
        draft_ns: the account's ``draft_ns`` at the end of the last round.
        rounds, spent, accepted, judged: what came since the estimates were renewed, all of the chosen width: rounds, their costs, and
            per depth the drafts that were accepted and judged (eight bits each, depth 1 the lowest).
    """

    most: int = field(validator=integer(1, WIDEST))
    width: int = field(default=0, validator=integer(0, WIDEST))
    reason: str = field(default="measuring", validator=one_of("measuring", "not_paying", "cool_down"))
    probe: bool = field(default=False, validator=flag())
    chosen: int = field(validator=integer(1, WIDEST))
    costs: tuple[int, ...] = field(validator=ids)
    samples: tuple[int, ...] = field(validator=ids)
    chances: tuple[int, ...] = field(validator=ids)
    seen: tuple[int, ...] = field(validator=[ids, _sizes])
    serial: int = field(default=0, validator=integer(0))
    debt: int = field(default=0, validator=integer(0))
    gain: int = field(default=PAYS_WELL, validator=integer(LOSES, PAYS_WELL))
    off: bool = field(default=False, validator=flag())
    fails: int = field(default=0, validator=integer(0, FAILS_MOST))
    resume_at: int = field(default=0, validator=integer(0))
    since: int = field(default=0, validator=integer(0))
    measured: int = field(default=0, validator=integer(0))
    forwards: int = field(default=0, validator=integer(0))
    probes: int = field(default=0, validator=integer(0))
    draft_ns: int = field(default=0, validator=integer(0))
    renewed: int = field(default=0, validator=integer(0))
    beat: int = field(default=0, validator=integer(0, BEAT))
    rounds: int = field(default=0, validator=integer(0, BEAT))
    spent: int = field(default=0, validator=integer(0))
    accepted: int = field(default=0, validator=integer(0))
    judged: int = field(default=0, validator=integer(0))

    @property
    def known(self) -> int:
        """How many rounds the costs rest on."""
        return sum(self.samples)

    def __attrs_post_init__(self) -> None:
        if max(self.width, self.chosen) > self.most:
            raise ConfigError(f"Pace.width ({self.width}) and Pace.chosen ({self.chosen}) must not exceed Pace.most ({self.most})")
        if max(self.chances) > ONE or max(self.samples) > COST_MEMORY or max(self.seen) > MEMORY:
            raise ConfigError(f"Pace.chances, .samples and .seen must be at most {ONE}, {COST_MEMORY} and {MEMORY}")
        if any(count and not cost for count, cost in zip(self.samples, self.costs, strict=True)):
            raise ConfigError("Pace.costs must be above 0 where Pace.samples is")
        if self.width and self.off != self.probe:
            raise ConfigError("Pace.probe must be true where drafting is off and the width is not 0")


_evolve = evolver(Pace)

#: _ONCE[n] counts one for each of the depths 1..n, in eight bits each.
_ONCE: Final = tuple(sum(1 << 8 * depth for depth in range(upto)) for upto in range(WIDEST + 1))


# -- between sessions --------------------------------------------------------------------------------------------------


def first_pace(most: int, draft_ns: int = 0) -> Pace:
    """Nothing is known: a serial step is measured first, then spans of two drafts."""
    nothing = (0,) * most
    return Pace(
        most=most,
        chosen=min(FIRST_WIDTH, most),
        costs=(0, *nothing),
        samples=(0, *nothing),
        chances=nothing,
        seen=nothing,
        draft_ns=draft_ns,
    )


def carried(pace: Pace, forwards: int) -> Pace:
    """What a session of ``forwards`` forwards leaves to the next one, which goes on as if it were the same.

    What was collected goes into the estimates: it is recorded as a prior, and packed counts are no integers for a trace. The machine is
    the same, the text may be another: costs are known as before, chances less, and a probe need not wait for what failed before.
    """
    known = _renewed(pace, *_collected(pace), pace.accepted, pace.judged)
    known["seen"] = tuple([min(count, max(NEW_TEXT >> depth, 1)) for depth, count in enumerate(known["seen"])])
    now = pace.forwards + forwards
    return _evolve(pace, forwards=now, draft_ns=0, fails=0, resume_at=min(pace.resume_at, now + COOL_DOWN), **known)


# -- after a round -----------------------------------------------------------------------------------------------------


def after_probe_asked(pace: Pace, forwards: int) -> Pace:
    """A probe's draft was asked for: it is spent, whatever comes of it. ``forwards`` is the account's."""
    now = pace.forwards + forwards
    return _evolve(pace, probes=max(pace.probes + 1, (now - CREDIT) // PROBE_SHARE), resume_at=now + COOL_DOWN)


def after_serial(pace: Pace, cost: int, forwards: int, draft_ns: int) -> Pace:
    """A serial step took ``cost``; ``forwards`` and ``draft_ns`` are the account's after it.

    What drafts have cost since the last round was paid in vain: none of them came to a span.
    """
    now = pace.forwards + forwards
    costs, samples = pace.costs, pace.samples
    count, cost = samples[0], min(cost or 1, COST_MOST)  # where nothing costs anything, all widths cost the same
    vain = min(draft_ns - pace.draft_ns, COST_MOST)
    debt = pace.debt if pace.off else pace.debt + vain
    if not pace.off and count > 1 and debt > DEBT_DOUBTED * pace.serial and 4 * cost > 5 * costs[0]:
        # The debt was counted with a serial step that has become slower meanwhile, and so has all else.
        now_serial = min(cost, 2 * costs[0])
        costs, debt = tuple([one * now_serial // costs[0] for one in costs]), debt // 2
    else:
        costs = (smoothed(costs[0], cost, count), *costs[1:])
    samples = (believed(pace.costs[0], cost, count), *samples[1:])
    serial = costs[0] if count else trusted(costs, samples)
    known = {"costs": costs, "samples": samples, "serial": serial, "measured": now, "draft_ns": draft_ns}
    if not pace.off:
        if vain and debt > DEBT_DOUBTED * serial:
            return _stopped(_evolve(pace, debt=debt, **known), now, vain)
        return _evolve(pace, width=pace.chosen, debt=debt, **known)
    if pace.probe and vain:
        wait = max(COOL_DOWN, REPAY * vain // serial) << pace.fails
        known |= {"fails": min(pace.fails + 1, FAILS_MOST), "resume_at": now + min(wait, COOL_DOWN_MOST), "reason": "cool_down"}
        pace = _evolve(pace, **known)
    if now - pace.since >= WINDOW:
        debt = 0
    width = 0
    if now >= pace.resume_at and PROBE_SHARE * (pace.probes + 1) <= now:
        width = hopeful_width(cost_curve(costs, samples, serial))
    return _evolve(pace, width=width, probe=width > 0, debt=debt, **known)


def after_span(pace: Pace, drafted: int, accepted: int, rejected: bool, committed: int, cost: int, forwards: int, draft_ns: int) -> Pace:
    """A span was settled.

    ``drafted``, ``accepted`` and ``committed`` are tokens; a commit that was cut short has judged no draft beyond it. ``rejected``
    says whether a correction took the place of the next draft. ``cost`` is that of verify and settle; that of the draft is what
    ``draft_ns``, the account's, has grown by. ``forwards`` is the account's too.
    """
    cost = min(cost + draft_ns - pace.draft_ns or 1, COST_MOST)
    serial, count, usual = pace.serial, pace.samples[drafted], pace.costs[drafted]
    # One slow round (a compile, a page fault) must not pass for a loss of its whole length.
    most = 2 * usual if count > 1 else _bound(pace, drafted)
    loss = (cost if cost < most else most) - committed * serial if committed else 0
    debt = pace.debt + loss
    if debt < 0:
        debt = 0
    passed, met = pace.accepted + _ONCE[accepted], pace.judged + _ONCE[accepted + rejected]
    bound = usual >> 2
    ordinary = drafted == pace.chosen and pace.rounds < pace.beat and cost >= usual - bound
    if ordinary and debt <= DEBT_DOUBTED * serial and not pace.probe:
        # Nearly every round: what it says is collected. Costs far above count for a bounded share, as in smoothed.
        return _evolve(
            pace,
            debt=debt,
            draft_ns=draft_ns,
            rounds=pace.rounds + 1,
            spent=pace.spent + (cost if cost < usual + bound else usual + bound),
            accepted=passed,
            judged=met,
        )
    now = pace.forwards + forwards
    known = _learned(pace, drafted, cost, passed, met)
    if pace.probe:
        return _after_probe(_evolve(pace, draft_ns=draft_ns, **known), now, loss)
    return _chosen(_evolve(pace, draft_ns=draft_ns, debt=debt, **known), now, loss)


def _chosen(pace: Pace, now: int, loss: int) -> Pace:
    """Choose how to go on, with all estimates renewed."""
    samples, seen, serial = pace.samples, pace.seen, pace.serial
    if now - pace.renewed >= FORGET:
        samples = (samples[0], *[n - 1 if n and k != pace.chosen else n for k, n in enumerate(samples[1:], 1)])
        seen = (*seen[: pace.chosen], *[n // 2 for n in seen[pace.chosen :]])
        pace = _evolve(pace, samples=samples, seen=seen, renewed=now)
    if samples[0] < 2:
        serial = trusted(pace.costs, samples)
    chosen, gain = choice(pace.chosen, cost_curve(pace.costs, samples, serial), pace.chances, seen)
    known = {"chosen": chosen, "gain": gain, "serial": serial, "beat": _beat(samples[chosen], seen[0])}
    if pace.debt > DEBT_DOUBTED * serial and _stops(pace.debt, serial, gain, seen[0]):
        if now - pace.measured > FRESH:
            return _evolve(pace, width=0, reason="measuring", **known)
        return _stopped(_evolve(pace, **known), now, loss)
    if now - pace.measured >= _interval(samples[0], gain):
        return _evolve(pace, width=0, reason="measuring", **known)
    return _evolve(pace, width=chosen, **known)


def _stopped(pace: Pace, now: int, loss: int) -> Pace:
    """Draft no more for the time being; ``loss`` is that of the last round."""
    fails = pace.fails if now - pace.since < SETTLED else 0
    wait = COOL_DOWN + COOL_DOWN * max(loss, 0) // max(pace.serial, 1) << fails
    return _evolve(
        pace,
        width=0,
        reason="not_paying",
        off=True,
        fails=min(fails + 1, FAILS_MOST),
        since=now,
        resume_at=now + min(wait, COOL_DOWN_MOST),
    )


def _after_probe(pace: Pace, now: int, loss: int) -> Pace:
    """Begin again, or wait longer. What a probe loses is no debt: probes are bounded by their number."""
    serial = max(pace.serial, 1)
    debt = max(pace.debt + min(loss, 0), 0)
    chosen, gain = choice(pace.chosen, cost_curve(pace.costs, pace.samples, serial), pace.chances, pace.seen)
    if loss < 0 and gain >= PAYS and debt < (DEBT_MOST - HEADROOM) * serial:
        beat = _beat(pace.samples[chosen], pace.seen[0])
        return _evolve(pace, width=chosen, chosen=chosen, beat=beat, probe=False, off=False, debt=debt, gain=gain, since=now)
    if loss < 0:
        wait, fails = COOL_DOWN, max(pace.fails - 2, 0)
    else:
        wait, fails = max(COOL_DOWN, REPAY * loss // serial) << pace.fails, min(pace.fails + 1, FAILS_MOST)
    return _evolve(
        pace,
        width=0,
        reason="cool_down",
        probe=False,
        chosen=chosen,
        debt=debt,
        gain=gain,
        fails=fails,
        resume_at=now + min(wait, COOL_DOWN_MOST),
    )


def _stops(debt: int, serial: int, gain: int, seen: int) -> bool:
    if debt > DEBT_MOST * serial:
        return True
    return gain == LOSES and (seen >= YOUNG or debt > DEBT_YOUNG * serial)


def _interval(count: int, gain: int) -> int:
    """Forwards until a serial step is measured again. Where drafting pays well it would be missed, and little depends on it."""
    if gain == PAYS_WELL:
        return MEASURE if count > 1 else MEASURE_FIRST
    return min(MEASURE_CLOSE << count, MEASURE // 2)


# -- estimates ---------------------------------------------------------------------------------------------------------


def _learned(pace: Pace, drafted: int, cost: int, accepted: int, judged: int) -> dict[str, Any]:
    """The estimates after the rounds that were collected and one more, of ``drafted`` drafts; the counts include it."""
    costs, samples = _collected(pace)
    count, old = samples[drafted], costs[drafted]
    curve = cost_curve(pace.costs, pace.samples, pace.serial)
    if drafted < len(curve) and 4 * cost < 3 * curve[drafted]:  # what is known of the others is of a slower time
        samples[1:] = [min(n, SURE - 1) for n in samples[1:]]
    costs[drafted] = smoothed(old, cost, count)
    samples[drafted] = believed(old, cost, count)
    return _renewed(pace, costs, samples, accepted, judged)


def _collected(pace: Pace) -> tuple[list[int], list[int]]:
    """Costs and samples with the rounds that were collected."""
    costs, samples = list(pace.costs), list(pace.samples)
    if pace.rounds:
        usual = costs[pace.chosen]
        costs[pace.chosen] += (pace.spent - pace.rounds * usual) // max(COST_MEMORY, pace.rounds)
        samples[pace.chosen] = min(samples[pace.chosen] + pace.rounds, COST_MEMORY)
    return costs, samples


def _renewed(pace: Pace, costs: list[int], samples: list[int], accepted: int, judged: int) -> dict[str, Any]:
    """The estimates with these costs and the drafts counted in ``accepted`` and ``judged``; nothing is collected any more."""
    chances, seen = list(pace.chances), list(pace.seen)
    before, depth = FIRST_CHANCE, 0
    while judged:
        met, passed, count = judged & 255, accepted & 255, seen[depth]
        chance = chances[depth] if count else before
        weight = met + 1 if pace.probe else min(met + count + 2, max(MEMORY, met))
        before = chances[depth] = chance + (passed * ONE - met * chance) // weight
        seen[depth] = min(count + met, MEMORY)
        judged, accepted, depth = judged >> 8, accepted >> 8, depth + 1
    return {
        "costs": tuple(costs),
        "samples": tuple(samples),
        "chances": tuple(chances),
        "seen": tuple(seen),
        "rounds": 0,
        "spent": 0,
        "accepted": 0,
        "judged": 0,
    }


def _beat(count: int, seen: int) -> int:
    """Rounds of the chosen width to collect before the next choice."""
    if count < 3 or seen < YOUNG:
        return 0
    return BEAT - 1 if count == COST_MEMORY else BEAT // 2 - 1


def _bound(pace: Pace, width: int) -> int:
    """The most that a round of a width that is hardly known can count for."""
    curve = cost_curve(pace.costs, pace.samples, pace.serial)
    return 2 * curve[width] if width < len(curve) else (2 * width + 1) * pace.serial
