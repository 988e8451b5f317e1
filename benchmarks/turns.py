"""Calls timed in interleaved rounds, in this process; a file that loads nothing."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

Call = Callable[[], object]
Clock = Callable[[], float]  # seconds
Timed = Callable[[], float]  # seconds of what it did
Key = TypeVar("Key")
ROUND: Final = 0.05  # seconds that one round of one of two programs takes at least


def clock_of(threads: int) -> Clock:
    """The clock for calls on so many threads: of one, the time for which this thread computes, in
    which other work on the machine does not show."""
    return time.thread_time if threads == 1 else time.perf_counter


def stopwatch(call: Call, clock: Clock = time.perf_counter, calls: int = 1) -> Timed:
    """A function that calls `call` so many times and returns the seconds of one."""

    def timed() -> float:
        start = clock()
        for _ in range(calls):
            call()
        return (clock() - start) / calls

    return timed


def batch_seconds(call: Call, least: float) -> float:
    """Seconds of a call: the mean of as many, but at least one, as take `least` seconds."""
    start, calls = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < least or not calls:
        call()
        calls += 1
    return taken / calls


def by_turns(
    timed: Mapping[Key, Timed], rounds: int, *, swapped: bool = False
) -> dict[Key, list[float]]:
    """What each returns, by round: in every round one after another.

    swapped: whether every second round goes the other way, so that none always comes first.
    """
    found: dict[Key, list[float]] = {key: [] for key in timed}
    for number in range(rounds):
        names = list(timed)
        for key in reversed(names) if swapped and number % 2 == 0 else names:
            found[key].append(timed[key]())
    return found


def pair(
    mine: Call, other: Call, rounds: int, clock: Clock, once: Sequence[float]
) -> dict[str, Any]:
    """Two calls in rounds of ROUND seconds: `ms` of both, and the `ratio` of their times.

    once: seconds of a call of each, by which as many fill a round.
    """
    calls = [max(1, math.ceil(ROUND / seconds)) for seconds in once]
    first = stopwatch(mine, clock, calls[0])
    second = stopwatch(other, clock, calls[1])
    found = by_turns({"mine": first, "other": second}, rounds, swapped=True)
    ratios = (o / m for m, o in zip(found["mine"], found["other"], strict=True))
    return {
        "ms": [statistics.median(s) * 1e3 for s in found.values()],
        "ratio": statistics.median(ratios),
    }
