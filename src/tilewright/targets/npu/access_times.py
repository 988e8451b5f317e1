"""When elements of the memories were last written and read, without a number for each element.

Elements that all instructions of a program treat alike always have equal times: they are one cell.
Elements that no instruction writes need none, since nothing waits for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tilewright.targets.npu.footprint import Footprint, Span, footprint
from tilewright.targets.npu.isa import MEMORIES, NpuInstruction


def writes(instruction: NpuInstruction) -> bool:
    """Whether it writes its operand; all others read it."""
    return instruction.op.endswith("_wr")


class OperandCells(NamedTuple):
    """What an instruction does with its operand: the cells, and whether it writes them."""

    cells: Sequence[slice]
    writes: bool


class AccessTimes:
    """The times of the elements that instructions write, 0 at first.

    accesses: those of the instructions that have an operand, in order.
    """

    def __init__(self, instructions: Iterable[NpuInstruction]) -> None:
        operands = [i for i in instructions if i.memory]
        cells: list[Sequence[slice]] = [()] * len(operands)
        count = 0
        for memory in MEMORIES:
            places = [n for n, i in enumerate(operands) if i.memory == memory]
            inside = _inside([operands[n] for n in places])
            bounds = sorted({end for found in inside for span in found for end in span})
            number = {bound: n for n, bound in enumerate(bounds, count)}
            for n, found in zip(places, inside, strict=True):
                cells[n] = [slice(number[low], number[high]) for low, high in found]
            count += len(bounds)
        self.accesses = [
            OperandCells(found, writes(i))
            for i, found in zip(operands, cells, strict=True)
        ]
        self._written = [0] * count
        self._read = [0] * count

    def ready(self, access: OperandCells) -> int:
        """When its cells may be read, or overwritten."""
        written, read = self._written, self._read
        times = [max(written[cells]) for cells in access.cells]
        if access.writes:
            times += [max(read[cells]) for cells in access.cells]
        return max(times, default=0)

    def done(self, access: OperandCells, time: int) -> None:
        """Its cells have been read or written at this time."""
        times = self._written if access.writes else self._read
        for cells in access.cells:
            times[cells] = [max(known, time) for known in times[cells]]


def _inside(accesses: Sequence[NpuInstruction]) -> list[Sequence[Span]]:
    """The parts of a memory that each instruction accesses, but for those that none writes."""
    places = [footprint(i) for i in accesses]
    written = _merged(
        span
        for i, place in zip(accesses, places, strict=True)
        if writes(i)
        for span in place.spans
    )
    starts = [low for low, _ in written]

    def meets(low: int, high: int) -> bool:
        at = bisect_left(starts, high) - 1
        return at >= 0 and written[at][1] > low

    def found(place: Footprint) -> Sequence[Span]:
        if not meets(place.low, place.high):
            return ()
        if place.dense:
            return place.spans
        return [span for span in place.spans if meets(*span)]

    return [found(place) for place in places]


def _merged(spans: Iterable[Span]) -> Sequence[Span]:
    """The same elements in few spans that do not touch, in order."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found
