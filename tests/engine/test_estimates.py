"""The estimates behind the adaptive width at their edges, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from spanfold.engine.estimates import (
    LOSES,
    ONE,
    PAYS,
    PAYS_WELL,
    believed,
    choice,
    cost_curve,
    hopeful_width,
    smoothed,
    trusted,
)

EVEN = 1
SEEN = (32, 32, 32)


@pytest.mark.parametrize(
    ("old", "sample", "count", "after"),
    [
        (0, 7, 0, 7),  # the first one
        (100, 200, 1, 112),  # the second, not more than twice: by a quarter at most, halved
        (100, 201, 1, 100),  # the first of a kind, or this one, was slow
        (100, 50, 1, 50),
        (100, 49, 1, 49),
        (40, 100, 1, 40),
        (100, 300, 2, 108),  # far above: by a quarter at most
        (100, 125, 2, 108),
        (100, 124, 2, 108),
        (100, 80, 3, 95),
        (100, 75, 3, 93),
        (100, 74, 3, 74),  # far below, and not sure: the old ones were of a slower time
        (100, 74, 4, 87),  # ... and sure: by half
        (1000, 1240, 14, 1016),
        (1000, 1240, 15, 1015),
        (1000, 1240, 16, 1015),  # never less than by a sixteenth
    ],
)
def test_a_cost_follows_its_samples(old: int, sample: int, count: int, after: int):
    assert smoothed(old, sample, count) == after


@pytest.mark.parametrize(
    ("sample", "count", "after"),
    [(125, 8, 9), (126, 8, 4), (126, 2, 3), (126, 3, 2), (126, 4, 2), (126, 6, 3), (126, 16, 8), (100, 0, 1), (100, 15, 16), (100, 16, 16)],
)
def test_a_cost_that_jumped_is_believed_half(sample: int, count: int, after: int):
    assert believed(100, sample, count) == after


def test_a_serial_step_costs_no_more_than_a_span_that_was_measured_twice():
    assert trusted((10, 8, 9), (1, 2, 1)) == 8
    assert trusted((10, 8, 9), (1, 1, 2)) == 9
    assert trusted((10, 18, 9), (1, 2, 1)) == 10


@pytest.mark.parametrize(
    ("costs", "samples", "curve"),
    [
        ((100, 0, 0, 0, 0), (5, 0, 0, 0, 0), [100]),
        ((100, 150, 0, 0, 0), (5, 1, 0, 0, 0), [100]),  # measured once is not known
        ((100, 150, 0, 0, 0), (5, 2, 0, 0, 0), [100, 150, 175]),  # one alone: on with half its slope, to twice its width
        ((100, 0, 160, 0, 0), (5, 0, 2, 0, 0), [100, 130, 160, 175, 190]),
        ((100, 150, 0, 190, 0, 0, 0), (9, 5, 0, 5, 0, 0, 0), [100, 150, 170, 190, 210, 230, 250]),
        ((100, 150, 0, 190, 0), (9, 5, 0, 5, 0), [100, 150, 170, 190, 210]),  # and no wider than the widest
        ((100, 200, 140, 0, 0), (9, 2, 4, 0, 0), [100, 120, 140, 160, 180]),  # bad luck: no more than the line of the sure ones
        ((100, 110, 140, 0, 0), (9, 2, 4, 0, 0), [100, 110, 140, 170, 200]),  # good luck stays
        ((100, 200, 140, 0, 0), (9, 4, 4, 0, 0), [100, 200, 140, 140, 140]),  # sure itself
        ((100, 90, 0, 0, 0), (9, 5, 0, 0, 0), [100, 90, 90]),
    ],
)
def test_costs_between_and_beyond_the_measured_widths(costs: tuple[int, ...], samples: tuple[int, ...], curve: list[int]):
    assert cost_curve(costs, samples, 100) == curve


@pytest.mark.parametrize(
    ("serial", "cost", "gain"),
    [(100, 200, LOSES), (101, 200, EVEN), (1700, 3200, EVEN), (1701, 3200, PAYS), (300, 400, PAYS), (301, 400, PAYS_WELL)],
)
def test_how_well_it_pays(serial: int, cost: int, gain: int):
    """Two tokens for the cost of a span, against one for that of a serial step."""
    assert choice(1, [serial, cost], (ONE,), (32,)) == (1, gain)


def test_the_narrower_of_two_equal_widths_and_another_only_if_it_is_better_by_a_64th():
    chances, two, three = (ONE, 61440, 0), 2 * ONE, 2 * ONE + 61440  # tokens of widths 1 and 2; chances as the depth before lets expect
    assert choice(3, [10**6, two, three, 10**9], chances, SEEN)[0] == 1
    assert choice(1, [10**6, 65 * two, 64 * three], chances, SEEN)[0] == 1
    assert choice(1, [10**6, 65 * two + 1, 64 * three], chances, SEEN)[0] == 2
    assert choice(5, [10**6], chances, SEEN) == (5, PAYS_WELL)  # nothing is measured: as it is


def test_a_chance_that_was_never_seen_is_a_little_less_than_the_one_before():
    # Never seen: 3/4 less a sixteenth, 46080 of 65536. At depth 2 less another sixteenth of it, 43200; reach 46080 * 43200 // 65536.
    tokens = ONE + 46080
    wider = tokens + 46080 * 43200 // ONE
    assert choice(3, [10**6, tokens, wider - 1, 10**12], (0, 0, 0), (0, 0, 0))[0] == 2
    assert choice(3, [10**6, tokens, wider, 10**12], (0, 0, 0), (0, 0, 0))[0] == 1


def test_few_observations_of_a_deeper_one_weigh_as_four_expected_ones():
    # Depth 1 always: ONE. Depth 2: 61440 expected, 4 observations of 0 halve it: 30720.
    wider = 2 * ONE + 30720
    assert choice(3, [10**6, 2 * ONE, wider - 1, 10**12], (ONE, 0, 0), (32, 4, 0))[0] == 2
    assert choice(3, [10**6, 2 * ONE, wider, 10**12], (ONE, 0, 0), (32, 4, 0))[0] == 1


def test_a_probe_takes_the_least_width_that_may_gain_an_eighth():
    assert hopeful_width([900, 1399, 1849]) == 1  # 1.75 tokens: below 1400 an eighth is gained
    assert hopeful_width([900, 1400, 1849]) == 2  # 2.3125 tokens: below 1850
    assert hopeful_width([900, 1400, 1850]) == 1  # neither; equal, the narrower one
    assert hopeful_width([900, 1401, 1850]) == 2
    assert hopeful_width([900]) == 0
