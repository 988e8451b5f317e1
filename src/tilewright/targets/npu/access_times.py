"""When elements of the memories were last written and read, without a number for each element.

Elements that all instructions of a program treat alike always have equal times: they are one cell.
Elements that no instruction writes need none, since nothing waits for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.targets.npu.chains import axes
from tilewright.targets.npu.isa import MEMORIES, Instruction

# The first address of a part of a memory, and the one behind its last.
Span = tuple[int, int]


def writes(instruction: Instruction) -> bool:
    """Whether it writes its operand; all others read it."""
    return instruction.op.endswith("_wr")


@dataclass(frozen=True, slots=True)
class Access:
    """What an instruction does with its operand: the cells, and whether it writes them."""

    cells: Sequence[int]
    writes: bool


class AccessTimes:
    """The times of the elements that instructions write, 0 at first.

    accesses: those of the instructions that have an operand, in order.
    """

    def __init__(self, instructions: Iterable[Instruction]) -> None:
        operands = [i for i in instructions if i.memory]
        cells: list[Sequence[int]] = [()] * len(operands)
        count = 0
        for memory in MEMORIES:
            places = [n for n, i in enumerate(operands) if i.memory == memory]
            inside = _inside([operands[n] for n in places])
            bounds = sorted({end for found in inside for span in found for end in span})
            number = {bound: n for n, bound in enumerate(bounds, count)}
            for n, found in zip(places, inside, strict=True):
                ranges = (range(number[low], number[high]) for low, high in found)
                cells[n] = [cell for one in ranges for cell in one]
            count += len(bounds)
        self.accesses = [
            Access(found, writes(i)) for i, found in zip(operands, cells, strict=True)
        ]
        self._written = [0] * count
        self._read = [0] * count

    def ready(self, access: Access) -> int:
        """When its cells may be read, or overwritten."""
        written, read = self._written, self._read
        found = max([written[cell] for cell in access.cells], default=0)
        if not access.writes:
            return found
        return max([found, *(read[cell] for cell in access.cells)])

    def done(self, access: Access, time: int) -> None:
        """Its cells have been read or written at this time."""
        times = self._written if access.writes else self._read
        for cell in access.cells:
            times[cell] = max(times[cell], time)


def _inside(accesses: Sequence[Instruction]) -> list[list[Span]]:
    """The parts of a memory that each instruction accesses, but for those that none writes."""
    written = _merged(span for i in accesses if writes(i) for span in _spans(i))
    starts = [low for low, _ in written]

    def meets(span: Span) -> bool:
        at = bisect_right(starts, span[1] - 1) - 1
        return at >= 0 and written[at][1] > span[0]

    return [
        [span for span in _spans(i) if meets(span)] if meets(_around(i)) else []
        for i in accesses
    ]


def _merged(spans: Iterable[Span]) -> Sequence[Span]:
    """The same elements in few spans that do not touch, in order."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def _around(i: Instruction) -> Span:
    """The smallest span that holds the operand."""
    ends = [(count - 1) * step for count, step in axes(i)]
    low = i.address + sum(min(end, 0) for end in ends)
    return low, low + sum(map(abs, ends)) + 1


def _spans(i: Instruction) -> Iterator[Span]:
    """The operand in few spans."""
    *outer, (count, step) = axes(i)
    starts = [i.address]
    for rows, apart in outer:
        if step == 1 and apart == count:
            count *= rows
        else:
            starts = [i.address + row * apart for row in range(rows)]
    if step in (0, 1):
        yield from ((at, at + (count if step else 1)) for at in starts)
        return
    yield from (
        (at + n * step, at + n * step + 1) for at in starts for n in range(count)
    )
