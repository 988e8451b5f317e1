"""What trials have brought, what more of them may bring, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import erfc, inf, isfinite, sqrt
from typing import Final

HORIZON: Final = 64  # trials that an expected gain is about
# Of the time, what an improvement saves where there was none yet.
UNKNOWN_STEP: Final = 0.05


def running_best(seconds: Sequence[float]) -> list[float]:
    """The best so far after each trial; infinite before the first that did not fail."""
    best, found = inf, []
    for taken in seconds:
        best = min(best, taken)
        found.append(best)
    return found


def expected_gain(bests: Sequence[float], horizon: int = HORIZON) -> float:
    """The share of the time (0 to 1) that `horizon` more trials are expected to save.

    bests: the best so far after each trial. Improvements are taken to come as often per trial as in
    the second half of the trials, by Laplace's rule of succession (one more in two more trials),
    and each to save the mean of what those saved; where none came lately, what the last one did. So
    a long time without any brings the number down to 0. It is 1 where nothing was measured yet.
    """
    known = [b for b in bests if b < inf]
    if not known:
        return 1.0
    steps = [0.0, *(1 - after / before for before, after in pairwise(known))]
    late = steps[len(steps) // 2 :]
    found = [step for step in late if step > 0]
    earlier = [step for step in steps if step > 0]
    size = sum(found) / len(found) if found else [UNKNOWN_STEP, *earlier][-1]
    rate = (len(found) + 1) / (len(late) + 2)
    return float(1 - (1 - size) ** (horizon * rate))


def confidence(fast: Sequence[float], slow: Sequence[float]) -> float:
    """How sure it is (0.5 to 1 if the medians say so) that `fast` takes less time than `slow`.

    One minus the one-sided probability, by the test of Mann and Whitney in its normal approximation
    with a correction for continuity, that rounds of equal distributions are as far apart. 0 where
    either has no rounds.
    """
    count = len(fast) * len(slow)
    if not count or not all(map(isfinite, (*fast, *slow))):
        return 0.0
    wins = sum((a < b) + (a == b) / 2 for a in fast for b in slow)
    mean = count / 2
    deviation = sqrt(count * (len(fast) + len(slow) + 1) / 12)
    beyond = wins - mean
    shrunk = max(0.0, abs(beyond) - 0.5) * (1 if beyond > 0 else -1)
    return 1 - erfc(shrunk / deviation / sqrt(2)) / 2
