"""How sure it is that one program is faster: by simulated machines of which the truth is known."""

from itertools import product
from math import exp, inf
from random import Random

import pytest

from tilewright.tune.gain import confidence, is_ahead

SURE = 0.95


def exact(gains):
    """The probability by all ways to give the ranks signs, one after the other."""
    ranks = {g: n + 1 for n, g in enumerate(sorted(gains, key=abs))}
    observed = sum(r for g, r in ranks.items() if g > 0)
    sums = [
        sum(r for r, s in zip(ranks.values(), signs) if s)
        for signs in product((0, 1), repeat=len(gains))
    ]
    return sum(s >= observed for s in sums) / len(sums)


def test_it_is_the_exact_distribution():
    r = Random(0)
    for count in (1, 2, 5, 9):
        for _ in range(20):
            gains = [r.gauss(0.3, 1) for _ in range(count)]
            found = confidence([exp(-g) for g in gains], [1.0] * count)
            assert found == pytest.approx(1 - exact(gains))


def test_numbers_of_pairs():
    assert confidence([1] * 5, [2] * 5) == 1 - 1 / 32
    assert confidence([2] * 5, [1] * 5) == 0
    assert confidence([1] * 4, [2] * 4) < SURE  # four pairs are too few
    assert confidence([1] * 8, [1] * 8) == 0  # there is no difference at all
    assert confidence([1] * 8, [2] * 8, among=2) == 1 - 2 / 256
    assert confidence([], []) == confidence([1, 1], [2, inf]) == 0
    assert confidence([0, 1], [1, 2]) == confidence([1, 1], [2, 0]) == 0
    with pytest.raises(ValueError, match="zip"):
        confidence([1], [1, 2])


def test_scale_is_of_no_matter():
    """Half as fast in one pair and twice as fast in the next is no difference."""
    assert confidence([1, 2, 1, 2], [2, 1, 2, 1]) < 0.7


def machine(r, passes, gain, rounds=9):
    """Medians of two programs in passes: a clock that drifts, and pages that a process got.

    Rounds of a process are alike, as on a real machine: they differ by a tenth of what processes
    do.
    """
    drift, found = 0.0, ([], [])
    for n in range(passes):
        for side in (0, 1) if n % 2 else (1, 0):
            drift = 0.9 * drift + r.gauss(0, 0.01)
            pages = r.gauss(0, 0.02)
            times = sorted(
                exp(drift + pages + r.gauss(0, 0.002)) / (gain if side == 0 else 1)
                for _ in range(rounds)
            )
            found[side].append(times)
    return found


def medians(side):
    return [times[len(times) // 2] for times in side]


def share_of_sure(gain, passes=8, count=1500):
    r = Random(1)
    sure = 0
    for _ in range(count):
        fast, slow = machine(r, passes, gain)
        sure += confidence(medians(fast), medians(slow)) >= SURE
    return sure / count


def test_equal_programs_are_rarely_called_different():
    """Of 1,500 pairs at most 5% and three standard deviations more."""
    assert share_of_sure(1.0) <= 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


def test_what_is_faster_is_found():
    assert share_of_sure(1.05, count=400) > 0.9


def test_rounds_of_one_process_are_no_pairs():
    """The same equal programs, where each round is counted as if it were a pair of its own."""
    r = Random(1)
    wrong = 0
    for _ in range(300):
        fast, slow = machine(r, 2, 1.0)
        alike = (
            [t for times in fast for t in times],
            [t for times in slow for t in times],
        )
        wrong += confidence(*alike) >= SURE
    assert wrong / 300 > 0.2


def test_the_best_of_several_equals_is_rarely_called_faster():
    r = Random(2)
    wrong = 0
    for _ in range(1000):
        slow, *others = ([r.gauss(1, 0.02) for _ in range(8)] for _ in range(3))
        best = min(others, key=sum)
        wrong += confidence(best, slow, among=2) >= SURE
    assert wrong / 1000 <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5


def test_being_ahead_is_more_than_half_of_the_pairs():
    assert is_ahead([1, 1, 3], [2, 2, 2])
    assert not is_ahead([1, 3], [2, 2])
    assert not is_ahead([2, 2], [2, 2])
