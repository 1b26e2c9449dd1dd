"""What the adaptive width reckons with: costs by width, and the choice of one. Pure functions of integers.

The state behind them, and when they are asked, is in adaptive.py.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "COST_MEMORY",
    "FIRST_CHANCE",
    "LOSES",
    "ONE",
    "PAYS",
    "PAYS_WELL",
    "SURE",
    "believed",
    "choice",
    "cost_curve",
    "hopeful_width",
    "smoothed",
    "trusted",
]

ONE: Final = 1 << 16  # a chance of 1
FIRST_CHANCE: Final = ONE * 3 // 4  # of depth 1; of a deeper one: a little less than of the depth before it
DEEPER: Final = 16
FEW: Final = 4  # observations of a depth that weigh as much as what the depth before it lets expect
COST_MEMORY: Final = 16  # rounds that a cost remembers
SURE: Final = 4  # rounds from which on a cost is believed against those of other widths
SWITCH: Final = 64  # another width must be better by one part in so many
HOPE: Final = FIRST_CHANCE  # what a probe hopes for at every depth

#: How well drafting pays by the estimates: it costs time, it gains nothing to speak of, it gains, it gains half as much again.
LOSES, EVEN, PAYS, PAYS_WELL = range(4)


# -- costs -------------------------------------------------------------------------------------------------------------


def smoothed(old: int, sample: int, count: int) -> int:
    """A cost after one more sample, ``count`` of which it rests on already.

    A sample far above moves it by a bounded share: something came between. Nothing makes a round faster than it is, so one far below
    says that the old ones were of a slower time, and counts for half.
    """
    if not count:
        return sample
    if count == 1 and not old <= 2 * sample <= 4 * old:
        return min(old, sample)  # the first of a kind is often slow
    change, bound = sample - old, old >> 2
    if change > bound:
        change = bound
    elif change < -bound:
        return old + change // 2 if count >= SURE else sample
    return old + change // (count + 1 if count < COST_MEMORY else COST_MEMORY)


def believed(old: int, sample: int, count: int) -> int:
    """How many samples a cost rests on after one more. One far above the others is doubted, and if more follow, so are those."""
    return max(count // 2, 2) if count > 2 and 4 * sample > 5 * old else min(count + 1, COST_MEMORY)


def trusted(costs: tuple[int, ...], samples: tuple[int, ...]) -> int:
    """The cost of a serial step that was measured once: no more than that of any span."""
    return min([costs[0], *[cost for cost, count in zip(costs, samples, strict=True) if count > 1]])


def cost_curve(costs: tuple[int, ...], samples: tuple[int, ...], serial: int) -> list[int]:
    """The cost of a round by width, from 0 to twice the widest that was measured.

    Between two measured widths: on a line. Beyond the widest: on with the last slope; with half of it where only one was measured, so
    that a wider one is tried. A width that was measured a few times costs no more than the line between those that were measured
    often: so one that had bad luck is tried again.
    """
    most = len(costs) - 1
    sure = {width: cost for width, cost in enumerate(costs) if width and samples[width] >= SURE}
    line = _through(serial, sure, most)
    known = {width: cost for width, cost in enumerate(costs) if width and samples[width] > 1}
    for width, cost in known.items():
        if width < len(line) and cost > line[width]:
            known[width] = line[width]
    return _through(serial, known, most)


def _through(serial: int, points: dict[int, int], most: int) -> list[int]:
    """A curve from ``serial`` through the points, in order of their widths, and on to twice the last one, ``most`` at most."""
    curve = [serial]
    at = slope = 0
    for width, cost in points.items():
        low, gap = curve[at], width - at
        curve += [low + (cost - low) * step // gap for step in range(1, gap + 1)]
        slope, at = (cost - low) // gap if cost > low else 0, width
    if len(points) == 1:
        slope //= 2
    last = curve[at]
    curve += [last + slope * step for step in range(1, min(most, 2 * at) - at + 1)]
    return curve


# -- choices -----------------------------------------------------------------------------------------------------------


def choice(chosen: int, curve: list[int], chances: tuple[int, ...], seen: tuple[int, ...]) -> tuple[int, int]:
    """The width from 1 on with the most tokens per time, and how well it pays against ``curve[0]``."""
    if len(curve) == 1:
        return chosen, PAYS_WELL
    best, most, least = 0, 0, 1  # a width, its tokens, its cost
    held, spent = 0, 1  # those of the present one
    tokens = reach = ONE
    chance = FIRST_CHANCE
    for width in range(1, len(curve)):
        count = seen[width - 1]
        chance -= chance // DEEPER
        if count:
            chance += (chances[width - 1] - chance) * count // (count + FEW if width > 1 else count)
        reach = reach * chance // ONE
        tokens += reach
        cost = curve[width]
        if tokens * least > most * cost:
            best, most, least = width, tokens, cost
        if width == chosen:
            held, spent = tokens, cost
    if best != chosen and most * spent * SWITCH <= held * least * (SWITCH + 1):
        best = chosen
    won, paid = most * curve[0], least * ONE
    return best, LOSES if won <= paid else EVEN if 16 * won <= 17 * paid else PAYS if 2 * won <= 3 * paid else PAYS_WELL


def hopeful_width(curve: list[int]) -> int:
    """The least width that gains an eighth if every draft has a fair chance; else the one that gains most; 0: nothing is measured."""
    best, most, least = 0, 0, 1
    tokens = reach = ONE
    for width in range(1, len(curve)):
        reach = reach * HOPE // ONE
        tokens += reach
        cost = curve[width]
        if 8 * tokens * curve[0] > 9 * cost * ONE:
            return width
        if tokens * least > most * cost:
            best, most, least = width, tokens, cost
    return best
