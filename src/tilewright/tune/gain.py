"""How much trials have gained, how much more they may gain, and how certain that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf, log
from typing import Final

HORIZON: Final = 64  # trials that an expected gain covers
# The assumed share of the time that an improvement saves, before the first one.
UNKNOWN_STEP: Final = 0.05


def running_best(seconds: Sequence[float]) -> list[float]:
    """The best time after each trial; infinite before the first success."""
    best, found = inf, []
    for taken in seconds:
        best = min(best, taken)
        found.append(best)
    return found


def expected_gain(bests: Sequence[float], horizon: int = HORIZON) -> float:
    """The share of the time (0 to 1) that `horizon` more trials are expected to save.

    bests: the best time after each trial. The rate of improvements is estimated from the second
    half of the trials by Laplace's rule of succession (one more success in two more trials), and
    each is assumed to save the mean of those in that half, or as much as the last one if that half
    has none. So the estimate falls toward 0 while nothing improves. It is 1 before the first
    success.
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


def confidence(fast: Sequence[float], slow: Sequence[float], among: int = 1) -> float:
    """The confidence (0 to 1) that `fast` takes less time than `slow`, from times taken in pairs.

    One minus the one-sided p-value of Wilcoxon's signed-rank test, with its exact distribution, on
    the logarithms of the pairs' ratios. Slow drift, such as the processor's clock, and effects
    common to a pair, such as a process's memory pages, therefore add no confidence; rounds within a
    pair are not independent pairs. 0 if there are no pairs, or one has no valid time. among: the
    number of candidates of which this is the best; the p-value is multiplied by it (Bonferroni).
    """
    pairs = list(zip(fast, slow, strict=True))
    if not pairs or not all(0 < t < inf for t in (*fast, *slow)):
        return 0.0
    gains = [log(b / a) for a, b in pairs]
    ranks = _doubled_ranks([abs(g) for g in gains])
    observed = sum(r for r, g in zip(ranks, gains) if g > 0)
    ways = {0: 1}  # number of sign assignments by their sum of ranks of gains
    for rank in ranks:
        more = Counter(ways)
        for total, count in ways.items():
            more[total + rank] += count
        ways = more
    as_far = sum(count for total, count in ways.items() if total >= observed)
    return max(0.0, 1 - among * as_far / (1 << len(pairs)))


def is_ahead(fast: Sequence[float], slow: Sequence[float]) -> bool:
    """Whether `fast` took less time in more than half of the pairs."""
    return 2 * sum(a < b for a, b in zip(fast, slow, strict=True)) > len(fast)


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Twice the rank of each size, from 1; equal sizes share their mean rank, zeros get none."""
    below = [sum(s < size for s in sizes) for size in sizes]
    return [
        2 * b + sizes.count(size) + 1 if size else 0
        for b, size in zip(below, sizes, strict=True)
    ]
