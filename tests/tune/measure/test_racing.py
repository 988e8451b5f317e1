"""How many rounds are timed, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, cycle, repeat

import pytest

from tilewright.tune.measure.anchor import anchor, best_of
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.racing import RaceClock, Rounds, half_width, race

TIMING = Timing(fewest=5, most=40, seconds=1.0, tight=0.01, worse=1.3, quiet=1.05)
NEVER = float("inf")


def raced(
    times: Iterator[float],
    anchors: Iterator[float] = repeat(1.0),
    switches: Callable[[], int] = lambda: 0,
    timing: Timing = TIMING,
    best: float = NEVER,
) -> Rounds:
    """A race in which a call takes the next of `times`, and the anchor the next of `anchors`."""
    passed = 0.0

    def call(count: int) -> float:
        nonlocal passed
        seconds = next(times) * count
        passed += seconds
        return seconds

    clock = RaceClock(call, lambda: next(anchors), 1.0, switches, lambda: passed)
    return race(clock, 10, timing, best)


def test_rounds_end_when_the_median_is_certain() -> None:
    found = raced(repeat(1e-3))
    assert found.seconds(5) == (pytest.approx(1e-3),) * 5
    assert (found.disturbed, found.noise) == ([], 1.0)


def test_more_rounds_are_made_where_they_differ() -> None:
    differing = raced(cycle([1.0e-3, 1.1e-3]))
    assert len(differing.kept) == 40
    nearly = raced(chain([1.1e-3], repeat(1e-3)))
    assert 5 < len(nearly.kept) < 20


def test_no_round_begins_when_the_time_is_over() -> None:
    found = raced(cycle([0.02, 0.03]))
    assert len(found.kept) == 5  # of ten calls each: more than a second
    assert len(raced(repeat(1.0)).kept) == 1


def test_what_is_clearly_worse_than_the_best_has_three_rounds() -> None:
    times = [1.31e-3, 1.5e-3]
    assert len(raced(cycle(times), best=1e-3).kept) == 3
    assert len(raced(cycle([1.29e-3, 1.5e-3]), best=1e-3).kept) == 40
    disturbed = raced(cycle(times), repeat(2.0), best=1e-3)
    assert len(disturbed.disturbed) == 3


def test_disturbed_rounds_are_made_again() -> None:
    # The anchor is slow at the second and at the third reading: three rounds are beside these.
    anchors = chain([1.0, 1.2, 1.3], repeat(1.0))
    found = raced(chain([2e-3, 3e-3, 2e-3], repeat(1e-3)), anchors)
    assert found.disturbed == [pytest.approx(t) for t in (2e-3, 3e-3, 2e-3)]
    assert found.seconds(5) == (pytest.approx(1e-3),) * 5


def test_a_round_that_lost_its_processor_is_disturbed() -> None:
    readings = iter([0, 1, 1, 1, *[1] * 100])  # before and after each round
    found = raced(repeat(1e-3), switches=lambda: next(readings))
    assert (len(found.disturbed), len(found.kept)) == (1, 5)


def test_on_a_machine_that_is_never_quiet_rounds_end_all_the_same() -> None:
    found = raced(repeat(1e-3), repeat(1.5))
    assert (len(found.disturbed), found.noise) == (80, 1.5)


def test_of_disturbed_rounds_the_faster_half_counts() -> None:
    found = raced(cycle([1e-3, 9e-3, 1e-3]), repeat(1.5))
    assert found.seconds(5) == (pytest.approx(1e-3),) * (len(found.disturbed) // 2)


def test_one_quiet_round_does_not_stand_for_all() -> None:
    found = Rounds([1.0], [2.0, 3.0], [1.0])
    assert found.seconds(5) == (1.0, 2.0, 3.0)
    assert replace(found, kept=[1.0] * 3).seconds(5) == (1.0,) * 3


def test_the_interval_of_the_median() -> None:
    # By the binomial distribution: of 20 values the 6th to the 15th; here from 105 to 114.
    values = [100.0 + n for n in range(20)]
    assert half_width(values) == (114 - 105) / 2 / 109.5
    assert half_width([1.0, 2.0, 9.0]) == (9 - 1) / 2 / 2


def test_the_anchor_takes_as_many_steps_as_it_says() -> None:
    run = anchor()
    assert 0 < best_of(run, 3) < 1
