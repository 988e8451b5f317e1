"""How a runner measures, and the limits of a trial."""

from __future__ import annotations

from typing import Literal

from tilewright.base.dataclass import dataclass

Caches = Literal["hot", "network"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one trial; exceeding them ends its process.

    seconds: wall time since the start of its process. memory: bytes that it allocates.
    """

    seconds: float = 10.0
    memory: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Timing:
    """How a program is timed.

    caches: "hot" repeats the same call; "network" imitates the rest of a network: before each call
    other data is read and the inputs are written, and the extra time to read the results, compared
    with reading them from the nearest caches, is added.
    between: bytes of that other data: the footprint of the rest of the network. A cache keeps what
    still fits, so the weights of a small network stay in the last-level cache between runs. At most
    the size of the last-level cache is read, which is also the meaning of None.
    round_seconds: the minimum duration of a round of calls. fewest, most: number of rounds.
    seconds: no round starts later, unless there are too few.
    tight: timing ends when the half-width of the median's 95% interval, relative to the median, is
    at most this.
    worse: timing ends after three rounds if the fastest takes this many times the best program's
    time.
    hopeless: no round is timed if the first calls, for the duration of a round, all take this many
    times that time.
    quiet: an anchor slower than this many times its best shows a disturbed machine; such rounds are
    repeated.
    realtime: programs run with real-time priority, so that other programs do not interrupt them;
    see `priority`.
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
    realtime: bool = False
