"""Where tuning time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MEASURE: Final = "measure"
Clock = Callable[[], float]


class TimeAccounts:
    """Seconds per activity. Everything except MEASURE, which includes building, is overhead."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.seconds: dict[str, float] = {}
        self._clock: Final = clock

    @contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Charge the time spent inside the context to `on`, even if it raises."""
        start = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - start
            self.seconds[on] = self.seconds.get(on, 0.0) + spent

    @property
    def total(self) -> float:
        """Seconds of all activities together."""
        return sum(self.seconds.values())

    @property
    def overhead(self) -> float:
        """The share of the time (0 to 1) spent neither building nor measuring."""
        if not self.total:
            return 0.0
        return 1 - self.seconds.get(MEASURE, 0.0) / self.total
