"""What trials have brought, what more of them may bring, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf, log
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


def confidence(fast: Sequence[float], slow: Sequence[float], among: int = 1) -> float:
    """How sure it is (0 to 1) that `fast` takes less time than `slow`, by times taken in pairs.

    One minus the one-sided probability, by Wilcoxon's signed-rank test with its exact distribution,
    that the logarithms of the pairs' ratios are as far below 0 if each could as well have the other
    sign. So what changes slowly, as a processor's clock, and what one pair has in common, as the
    pages that a process got, is no reason to be sure; rounds within a pair are not pairs. 0 where
    there are no pairs, or one has no time. among: so many candidates were compared, of which this
    one is the best: that many probabilities are added (Bonferroni).
    """
    pairs = list(zip(fast, slow, strict=True))
    if not pairs or not all(0 < t < inf for t in (*fast, *slow)):
        return 0.0
    gains = [log(b / a) for a, b in pairs]
    ranks = _doubled_ranks([abs(g) for g in gains])
    observed = sum(r for r, g in zip(ranks, gains) if g > 0)
    ways = {0: 1}  # signs that lead to a sum of the ranks of gains
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
    """Twice the rank of each, from 1 on; equal ones share the mean of theirs, 0 has none."""
    below = [sum(s < size for s in sizes) for size in sizes]
    return [
        2 * b + sizes.count(size) + 1 if size else 0
        for b, size in zip(below, sizes, strict=True)
    ]
