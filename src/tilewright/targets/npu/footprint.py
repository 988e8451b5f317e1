"""The part of a memory that an instruction reads or writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.npu.isa import FORMS, NpuInstruction

# The first address of a part of a memory, and the one after its last.
Span = tuple[int, int]


class Footprint(NamedTuple):
    """The elements of an operand: counts and steps of its dimensions, outer ones first.

    low, high: the smallest span that holds them. size: how many there are, repeated ones each time.
    dense: whether they are all of that span.
    """

    start: int
    axes: tuple[tuple[int, int], ...]
    low: int
    high: int
    size: int
    dense: bool

    @property
    def addresses(self) -> NDArray[np.int64]:
        """One by one, with the dimensions of the operand."""
        found = np.array(self.start)
        for count, step in self.axes:
            found = np.add.outer(found, step * np.arange(count))
        return found

    @property
    def spans(self) -> Sequence[Span]:
        """The elements in few spans."""
        if self.dense:
            return [(self.low, self.high)]
        *outer, (count, step) = self.axes
        starts = [self.start]
        for rows, apart in outer:
            starts = [self.start + row * apart for row in range(rows)]
        if step == 1:
            return [(at, at + count) for at in starts]
        places = [at + n * step for at in starts for n in range(count)]
        return [(at, at + 1) for at in places]


@lru_cache(maxsize=1 << 16)
def footprint(i: NpuInstruction) -> Footprint:
    """What an instruction with an operand reads or writes; counts below 1 are not refused here."""
    if "n" in FORMS[i.op].fields:
        axes: tuple[tuple[int, int], ...] = ((i.n, i.step),)
        dense = i.step in (0, 1)
    else:
        if i.op == "m_rd":
            step = i.step
        else:
            step = i.columns
        axes = ((i.rows, step), (i.columns, i.across))
        dense = i.across == 1 and step == i.columns
    ends = [(count - 1) * step for count, step in axes]
    low = i.address + sum(min(end, 0) for end in ends)
    high = i.address + sum(max(end, 0) for end in ends) + 1
    return Footprint(i.address, axes, low, high, prod(n for n, _ in axes), dense)
