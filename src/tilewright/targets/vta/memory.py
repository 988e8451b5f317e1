"""The on-chip memories while a program is recorded: owners of elements, and overwritten values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Buffer
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.intrinsics import ACC, MEMORIES, elements
from tilewright.targets.vta.pieces import Tiles, touched
from tilewright.targets.vta.tokens import MemoryTouch


class Chip:
    """Buffers one after the other in each memory, as the allocations nest."""

    def __init__(self, config: VTAConfig, where: str) -> None:
        self.where = where
        self.elements = elements(config)
        self._used = dict.fromkeys(MEMORIES, 0)
        # Where the buffers of the virtual thread at work begin.
        self.places: dict[Buffer, int] = {}
        self._spent = {
            scope: np.zeros(e.depth, np.bool_) for scope, e in self.elements.items()
        }

    @contextmanager
    def room(self, b: Buffer, owners: Sequence[dict[Buffer, int]]) -> Iterator[None]:
        """A buffer has a place inside, for each of its owners. Raises CompileError if not."""
        of = self.elements[b.scope]
        used = self._used[b.scope]
        if b.dtype is not of.dtype or b.size % of.lanes:
            raise CompileError(
                f"{b!r} is not made of elements of {of.lanes} {of.dtype}",
                code="TW-VTA-TILE",
                where=self.where,
            )
        size = b.size // of.lanes
        count = size * len(owners)
        if used + count > of.depth:
            raise CompileError(
                f"{b.name} needs {count} elements of {b.scope}, where {used} of {of.depth} are in "
                "use",
                code="TW-VTA-MEMORY",
                where=self.where,
                hint="compute it further in, so that a smaller part is held at a time",
            )
        for number, places in enumerate(owners):
            places[b] = used + number * size
        self._used[b.scope] = used + count
        yield
        self._used[b.scope] = used

    def moved(self, box: Tiles, sides: Mapping[int, Buffer]) -> Tiles:
        """Accesses of buffers on the chip, as ones of their memory."""
        firsts = list(box.firsts)
        for side, b in sides.items():
            firsts[side] += self.places[b]
        return replace(box, firsts=tuple(firsts))

    def touch(
        self, b: Buffer, box: Tiles, side: int, writes: bool, reads: bool = False
    ) -> MemoryTouch:
        """The elements that one access of a piece touches.

        writes: it stores new values (reads: the old ones). Raises CompileError if it reads values
        that an operation in place has overwritten.
        """
        found = touched(box.firsts[side], [(a.extent, a.steps[side]) for a in box.axes])
        if (reads or not writes) and self._spent[b.scope][found].any():
            raise CompileError(
                f"{b.name} is read after a lane operation has computed in its place",
                code="TW-VTA-SPENT",
                where=self.where,
                hint="the ALU computes in place: use each value once, or copy it to another stage",
            )
        if writes:
            self._spent[b.scope][found] = False
        return MemoryTouch(MEMORIES[b.scope], found, writes)

    def spend(self, touch: MemoryTouch) -> None:
        """What these accumulators held is gone: a statement has computed in their place."""
        self._spent[ACC][touch.elements] = True
