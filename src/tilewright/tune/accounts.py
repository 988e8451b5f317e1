"""Where the time of tuning goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MEASURE: Final = "measure"
Clock = Callable[[], float]


class Accounts:
    """Seconds by what they were spent on. All but MEASURE, which includes building, is overhead."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.seconds: dict[str, float] = {}
        self._clock: Final = clock

    @contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """The time inside counts for `on`, however it ends."""
        start = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - start
            self.seconds[on] = self.seconds.get(on, 0.0) + spent

    @property
    def total(self) -> float:
        """Seconds, of everything."""
        return sum(self.seconds.values())

    @property
    def overhead(self) -> float:
        """The share of the time that was neither building nor measuring, 0 to 1."""
        if not self.total:
            return 0.0
        return 1 - self.seconds.get(MEASURE, 0.0) / self.total
