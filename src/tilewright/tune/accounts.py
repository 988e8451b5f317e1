"""Where tuning time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MEASURE: Final = "measure"
Clock = Callable[[], float]


class TimeAccounts:
    """Seconds per activity. Everything except MEASURE, which includes building, is overhead.

    longest: the most seconds that each activity took at once.
    """

    def __init__(
        self, clock: Clock = time.monotonic, whole: TimeAccounts | None = None
    ) -> None:
        """whole: accounts that are charged as well."""
        self.seconds: dict[str, float] = {}
        self.longest: dict[str, float] = {}
        self._clock: Final = clock
        self._whole: Final = whole

    def part(self) -> TimeAccounts:
        """Accounts of a part of the work, such as one task; these are charged as well."""
        return TimeAccounts(self._clock, self)

    @contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Charge the time spent inside the context to `on`, even if it raises."""
        start = self._clock()
        try:
            yield
        finally:
            self._charge(on, self._clock() - start)

    def _charge(self, on: str, seconds: float) -> None:
        self.seconds[on] = self.seconds.get(on, 0.0) + seconds
        self.longest[on] = max(seconds, self.longest.get(on, 0.0))
        if self._whole is not None:
            self._whole._charge(on, seconds)

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
