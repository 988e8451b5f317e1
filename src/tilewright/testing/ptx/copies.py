"""The copies that threads of PTX have started with `cp.async` and that have not arrived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilewright.testing.ptx.arithmetic import Array


@dataclass(frozen=True, slots=True)
class CopyInFlight:
    """who: threads. at: destination of each. data: a row of bytes of each."""

    who: Array
    at: Array
    data: Array

    @property
    def width(self) -> int:
        """Bytes of a thread."""
        return int(self.data.shape[1])

    def part(self, which: Array) -> CopyInFlight:
        """The copies of some of the threads."""
        return CopyInFlight(
            self.who[which],
            self.at[which],
            self.data[which],
        )


@dataclass(slots=True)
class CopiesInFlight:
    """Copies in flight, in starting order."""

    waiting: list[CopyInFlight] = field(default_factory=list)

    def start(
        self,
        who: Array,
        at: Array,
        data: Array,
    ) -> None:
        """Bytes of some threads leave."""
        copy = CopyInFlight(who, at, data)
        self.waiting.append(copy)

    def arrived(self, who: Array) -> Iterator[CopyInFlight]:
        """Remove and return all copies that these threads have started."""
        waiting = self.waiting
        self.waiting = []
        for copy in waiting:
            here = np.isin(copy.who, who)
            if here.any():
                yield copy.part(here)
            if not here.all():
                rest = copy.part(~here)
                self.waiting.append(rest)
