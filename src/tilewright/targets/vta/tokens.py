"""Inserting dependence tokens, derived from each instruction's reads and writes.

An instruction waits for another stage's instruction if they touch the same element and one of them
writes it, unless earlier waits imply this already. So every pushed token is popped, none is pushed
in advance, and virtual threads overlap as far as their buffers are disjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.dram import DramBuffer
from tilewright.targets.vta.stages import VtaModule

Elements = NDArray[np.int64]
# Stage -> the last of its instructions that is known to have ended.
Clock = Mapping[VtaModule, int]
_START: Clock = dict.fromkeys(VtaModule, -1)


@dataclass(frozen=True, slots=True)
class MemoryTouch:
    """Elements of a memory on the chip; or a DRAM buffer, as a whole."""

    place: Any
    elements: Elements
    writes: bool

    @staticmethod
    def of_dram(buffer: DramBuffer, writes: bool) -> MemoryTouch:
        """A transfer's side in DRAM."""
        return MemoryTouch(buffer, np.zeros(1, np.int64), writes)


class Tokens:
    """Records instructions in `commands`, each ordered after those that it depends on."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        # (place, stage, whether it writes) -> the last such instruction for every element
        self._last: dict[tuple[Any, VtaModule, bool], Elements] = {}
        self._known: dict[VtaModule, Clock] = dict.fromkeys(VtaModule, _START)
        self._clocks: dict[int, Clock] = {}

    def record(
        self, at: VtaModule, touched: Sequence[MemoryTouch], emit: Callable[[], None]
    ) -> None:
        """`emit` records one or more instructions of a stage, which touch these elements."""
        for giver in VtaModule:
            if giver is not at:
                self._wait(at, giver, self._needed(giver, touched))
        emit()
        index = self.commands.last(at)
        self._clocks[index] = {**self._known[at], at: index}
        for t in touched:
            self._table(t.place, at, t.writes)[t.elements] = index

    def _needed(self, giver: VtaModule, touched: Sequence[MemoryTouch]) -> int:
        """The last instruction of a stage that conflicts with one that touches these, or -1."""
        kinds = (True, False)
        found = (
            int(self._table(t.place, giver, writes)[t.elements].max(initial=-1))
            for t in touched
            for writes in kinds
            if writes or t.writes
        )
        return max(found, default=-1)

    def _wait(self, taker: VtaModule, giver: VtaModule, index: int) -> None:
        if index <= self._known[taker][giver]:
            return
        if VtaModule.COMPUTE not in (taker, giver):
            # Load and store are not neighbors: an empty instruction passes the token on.
            self._wait(VtaModule.COMPUTE, giver, index)
            between = self.commands.nothing(VtaModule.COMPUTE)
            self._clocks[between] = {
                **self._known[VtaModule.COMPUTE],
                VtaModule.COMPUTE: between,
            }
            giver, index = VtaModule.COMPUTE, between
        self.commands.wait(taker, index)
        other = self._clocks[index]
        self._known[taker] = {
            s: max(self._known[taker][s], other[s]) for s in VtaModule
        }

    def _table(self, place: Any, stage: VtaModule, writes: bool) -> Elements:
        key = place, stage, writes
        if key not in self._last:
            spaces = self.commands.config.spaces
            depth = spaces[place].depth if place in spaces else 1
            self._last[key] = np.full(depth, -1, np.int64)
        return self._last[key]
