"""How often a program is timed: until its median is certain, or it has clearly lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tilewright.tune.measure.options import Timing

_LOST: Final = 3  # rounds before a program may be called worse than the best
_NORMAL: Final = 1.96  # of the normal distribution, 95% lie within
_AGAIN: Final = 2  # times the seconds and rounds, where the machine is disturbed


@dataclass(slots=True)
class Rounds:
    """Seconds of a call in each round, and what the anchor took around it in parts of its best.

    kept: rounds of a quiet machine; disturbed: the others.
    """

    kept: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    anchors: list[float] = field(default_factory=list)

    def seconds(self, fewest: int) -> tuple[float, ...]:
        """The quiet rounds; where those are too few, the faster half of all.

        What disturbs only makes rounds longer.
        """
        if len(self.kept) >= min(fewest, _LOST):
            return tuple(self.kept)
        both = sorted(self.kept + self.disturbed)
        return tuple(both[: max(fewest, len(both) // 2)])

    @property
    def noise(self) -> float:
        """What the anchor took in the middle, in parts of its best."""
        return statistics.median(self.anchors)


@dataclass(frozen=True, slots=True)
class Clock:
    """What a race reads. call: seconds of so many calls. anchor: seconds of the anchor, `floor` its
    best. switches: how often this process had to leave a processor. now: any clock, in seconds."""

    call: Callable[[int], float]
    anchor: Callable[[], float]
    floor: float
    switches: Callable[[], int]
    now: Callable[[], float]


def race(clock: Clock, calls: int, timing: Timing, best: float) -> Rounds:
    """Rounds of `calls` calls each; best: seconds of the best program so far, may be infinite.

    A round is disturbed if the process lost a processor meanwhile, or the anchor is slow before or
    after it. Disturbed rounds are made again, for up to twice the time.
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
    """How far the median may be off, in parts of it: half of its interval of about 95%.

    The interval is between two of the sorted values, which presumes nothing of how they are
    distributed; of five values it is all of them.
    """
    ordered, n = sorted(seconds), len(seconds)
    low = max(0, math.floor((n - _NORMAL * math.sqrt(n)) / 2))
    return (ordered[n - 1 - low] - ordered[low]) / 2 / statistics.median(ordered)
