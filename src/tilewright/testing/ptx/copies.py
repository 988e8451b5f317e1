"""The copies that threads of PTX have started with `cp.async` and that have not arrived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.ptx.arithmetic import Array


@dataclass(frozen=True, slots=True)
class CopyInFlight:
    """who: threads. at: destination of each. data: a row of bytes of each. group: of each, counted
    from its first one on."""

    who: Array
    at: Array
    data: Array
    group: Array

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
            self.group[which],
        )


@dataclass(slots=True)
class CopiesInFlight:
    """Copies in flight, in starting order. groups: how many each thread has ended."""

    groups: Array
    waiting: list[CopyInFlight] = field(default_factory=list)

    def start(
        self,
        who: Array,
        at: Array,
        data: Array,
    ) -> None:
        """Bytes of some threads leave."""
        copy = CopyInFlight(who, at, data, self.groups[who])
        self.waiting.append(copy)

    def commit(self, who: Array) -> None:
        """What these threads have started since the last time is a group of each."""
        self.groups[who] += 1

    def arrived(self, who: Array, pending: int | None) -> Iterator[CopyInFlight]:
        """Remove and return all copies that these threads have started; pending: but for those in
        their latest groups, and in none yet."""
        waiting = self.waiting
        self.waiting = []
        for copy in waiting:
            here = np.isin(copy.who, who)
            if pending is not None:
                here &= copy.group < self.groups[copy.who] - pending
            if here.any():
                yield copy.part(here)
            if not here.all():
                rest = copy.part(~here)
                self.waiting.append(rest)
