"""Searches and sorts whose results are independent, for hand-written Kernels on many threads.

Where one thread would count positions and write element i to place p(i), the thread of place p
looks for i by bisection: no two threads write one element, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, const
from tilewright.loops.nests import LoopNests
from tilewright.loops.nodes import If, Stmt, Store, block
from tilewright.loops.sorting import Before, CounterCell, allocated

# Whether a condition holds at a place: statements that compute it, and the answer.
Holds = Callable[[Expr], tuple[Stmt, Expr]]


def bisected(nests: LoopNests, cell: CounterCell, room: int, holds: Holds) -> Stmt:
    """Set `cell` to the number of places below `room` where `holds`, which are the first ones."""
    levels = room.bit_length()

    def step(n: Expr) -> Stmt:
        after = cell.value + (const(1 << (levels - 1)) >> n)
        look, answer = holds(Max(Min(after, const(room)), const(1)) - 1)
        taken = If(answer, cell.set(after), None)
        return If(after <= room, block(look, taken), None)

    return block(cell.set(0), nests.loop(levels, step))


def first_above(nests: LoopNests, cell: CounterCell, sums: Buffer, n: Expr) -> Stmt:
    """Set `cell` to the first place where ascending numbers exceed `n`, or to how many there are.

    So where `sums` counts elements, number `n` of these is there.
    """
    return bisected(nests, cell, sums.shape[0], lambda at: (block(), sums[at] <= n))


IN_BLOCK: Final = (
    10  # levels of a sort by one block of threads, in its own memory; even
)


class MergePathSort:
    """Sorts indices by the elements that they index; the sort is stable.

    Bottom up: runs of 1, 2, 4, ... are merged. The thread of a place finds by bisection how many of
    the left run are before it (Green, McColl, Bader: "GPU merge path"), so the places of a level
    are independent. Blocks of threads sort the runs of the first levels.
    """

    def __init__(
        self,
        places: Buffer,
        nests: LoopNests,
        before: Before,
        cells: Sequence[CounterCell] = (),
    ) -> None:
        """before: a strict order. cells: that it uses, one of each for a thread."""
        self.places, self.nests = places, nests
        self.before, self.cells = before, cells
        self.other = Buffer("merged", places.shape, INDEX)
        levels = (places.size - 1).bit_length()
        self.in_block = min(levels + levels % 2, IN_BLOCK)

    def sort(self, count: Expr) -> Stmt:
        """The statement that stores the first `count` indices in order."""
        room, width = self.places.size, 1 << self.in_block
        widths = []
        while width < room:
            widths.append(width)
            width *= 2
        source, target = self.places, self.other
        if len(widths) % 2:
            source, target = target, source
        steps = [self._runs(source, count)]
        for width in widths:
            merge = partial(self._place, (source, target), const(width), width, count)
            steps.append(self.nests.loop(room, merge))
            source, target = target, source
        return allocated([self.other] if widths else [], block(*steps))

    def _runs(self, target: Buffer, count: Expr) -> Stmt:
        """Sort runs of the elements that a block sorts."""
        nests, size = self.nests, 1 << self.in_block
        runs = -(-target.size // size)
        mine = [Buffer(name, (size,), INDEX) for name in ("mine", "dealt")]
        here, there = mine

        def run(r: Expr) -> Stmt:
            first = r * size
            own = Min(count - first, const(size))

            def turn(n: Expr) -> Stmt:
                pairs = ((here, there), n * 2), ((there, here), n * 2 + 1)
                return block(
                    *(
                        nests.loop(
                            size,
                            partial(self._place, pair, const(1) << level, size, own),
                        )
                        for pair, level in pairs
                    )
                )

            def leave(n: Expr) -> Stmt:
                return If(n < own, Store(target, (first + n,), here[n]), None)

            start = nests.loop(size, lambda n: Store(here, (n,), first + n))
            turns = nests.loop(self.in_block // 2, turn)
            return allocated(mine, block(start, turns, nests.loop(size, leave)))

        return nests.loop(runs, run)

    def _place(
        self,
        pair: tuple[Buffer, Buffer],
        width: Expr,
        most: int,
        count: Expr,
        n: Expr,
    ) -> Stmt:
        """Store what is at place `n` when pairs of runs of `width` are merged.

        pair: from where to where. most: the largest width. count: of the places that are used.
        """
        source, target = pair
        names = ("start", "middle", "end", "left", "right", "lefts", "taken")
        cells = {name: CounterCell(name, "register") for name in names}
        start, middle, end, left, right, lefts, taken = cells.values()
        offset = n - start.value

        def compare(i: Expr, j: Expr) -> Stmt:
            """Set `taken` to whether the left run's `i`-th comes before the right run's `j`-th."""
            look, later = self.before(source[right.value], source[left.value])
            answer = taken.set(Select(later, const(0), const(1)))
            both = If(right.value < end.value, block(look, answer), None)
            there = block(taken.set(1), both)
            known = If(left.value < middle.value, there, taken.set(0))
            return block(left.set(start.value + i), right.set(middle.value + j), known)

        def is_before(i: Expr) -> tuple[Stmt, Expr]:
            here = If(i < offset, compare(i, offset - 1 - i), taken.set(0))
            return here, taken.value.eq(1)

        one, other = (Store(target, (n,), source[c.value]) for c in (left, right))
        body = block(
            start.set(n // (width * 2) * (width * 2)),
            middle.set(Min(start.value + width, count)),
            end.set(Min(start.value + width * 2, count)),
            bisected(self.nests, lefts, most, is_before),
            compare(lefts.value, offset - lefts.value),
            If(taken.value.eq(1), one, other),
        )
        own = (*cells.values(), *self.cells)
        return If(n < count, allocated(own, body), None)
