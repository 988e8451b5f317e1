"""How a runner measures, and what a trial may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Caches = Literal["hot", "network"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one trial may take; more of it ends its process.

    seconds: of the wall clock, from the start of its process. memory: bytes that it allocates.
    """

    seconds: float = 10.0
    memory: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Timing:
    """How a program is timed.

    caches: "hot": the same call again and again; "network": before each call other data is read and
    then the inputs are written, and what reading the results takes longer than from the nearest
    caches counts, as the rest of a network does it.
    between: bytes of that other data: what the rest of the network touches. What a cache holds
    besides it stays: weights of a small network are in the last cache at each run. At most as much
    is read as the last cache holds, which is also what None stands for.
    round_seconds: a round's calls take at least so long together. fewest, most: rounds.
    seconds: no round begins later, unless there are too few.
    tight: timing ends where the 95% interval of the median is at most so far from it to both
    sides, in parts of it.
    worse: it ends after three rounds where the fastest takes so many times the best program's time.
    hopeless: no round is timed where the first calls, a round's time of them, all take so many
    times that time.
    quiet: an anchor that takes so many times its best says that the machine is disturbed; such
    rounds are repeated.
    """

    caches: Caches = "hot"
    between: int | None = None
    round_seconds: float = 1e-3
    fewest: int = 5
    most: int = 40
    seconds: float = 0.25
    tight: float = 0.01
    worse: float = 1.3
    hopeless: float = 10.0
    quiet: float = 1.05
