"""How often a program is timed: until its median is accurate, or it has clearly lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.tune.measure.options import Timing

_LOST: Final = 3  # rounds before a program may be considered worse than the best
_NORMAL: Final = 1.96  # the 97.5th percentile of the normal distribution
_AGAIN: Final = 2  # factor on the seconds and rounds, on a disturbed machine


@dataclass(slots=True)
class Rounds:
    """Seconds per call in each round, and the anchor's time around it, relative to its best.

    kept: rounds on a quiet machine; disturbed: the others.
    """

    kept: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    anchors: list[float] = field(default_factory=list)

    def seconds(self, fewest: int) -> tuple[float, ...]:
        """The quiet rounds; if there are too few, the faster half of all rounds.

        Disturbances only make rounds slower.
        """
        if len(self.kept) >= min(fewest, _LOST):
            return tuple(self.kept)
        both = sorted(self.kept + self.disturbed)
        return tuple(both[: max(fewest, len(both) // 2)])

    @property
    def noise(self) -> float:
        """The median of the anchor's times, relative to its best."""
        return statistics.median(self.anchors)


@dataclass(frozen=True, slots=True)
class RaceClock:
    """The clocks of a race. call: seconds of `n` calls. anchor: seconds of the anchor, `floor` its
    best. switches: number of involuntary context switches of this process. now: any clock, in
    seconds."""

    call: Callable[[int], float]
    anchor: Callable[[], float]
    floor: float
    switches: Callable[[], int]
    now: Callable[[], float]


def race(clock: RaceClock, calls: int, timing: Timing, best: float) -> Rounds:
    """Time rounds of `calls` calls each. best: seconds of the best program so far, may be infinite.

    A round is disturbed if the process was preempted during it, or the anchor is slow before or
    after it. Disturbed rounds are repeated, for up to twice the time.
    """
    found = Rounds()
    start, before = clock.now(), clock.anchor() / clock.floor
    while not _ended(found, timing, clock.now() - start, best):
        switches = clock.switches()
        seconds = clock.call(calls) / calls
        after = clock.anchor() / clock.floor
        quiet = max(before, after) <= timing.quiet and clock.switches() == switches
        (found.kept if quiet else found.disturbed).append(seconds)
        found.anchors.append(max(before, after))
        before = after
    return found


def _ended(found: Rounds, timing: Timing, passed: float, best: float) -> bool:
    kept, made = found.kept, len(found.kept) + len(found.disturbed)
    if not made:
        return False
    if made >= _LOST and min(kept + found.disturbed) > timing.worse * best:
        return True
    if passed >= _AGAIN * timing.seconds or made >= _AGAIN * timing.most:
        return True
    if len(kept) < timing.fewest:
        return False
    certain = half_width(kept) <= timing.tight
    return certain or len(kept) >= timing.most or passed >= timing.seconds


def half_width(seconds: Sequence[float]) -> float:
    """The half-width of the median's interval of about 95%, relative to the median.

    The interval is bounded by two order statistics, without assumptions on the distribution; for
    five values it spans all of them.
    """
    ordered, n = sorted(seconds), len(seconds)
    low = max(0, math.floor((n - _NORMAL * math.sqrt(n)) / 2))
    return (ordered[n - 1 - low] - ordered[low]) / 2 / statistics.median(ordered)
