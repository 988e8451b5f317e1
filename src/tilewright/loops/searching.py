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
        half = const(1 << (levels - 1)) >> n
        after = cell.value + half
        inside = Max(Min(after, const(room)), const(1))
        look, answer = holds(inside - 1)
        taken = If(answer, cell.set(after), None)
        return If(after <= room, block(look, taken), None)

    return block(cell.set(0), nests.loop(levels, step))


def first_above(nests: LoopNests, cell: CounterCell, sums: Buffer, n: Expr) -> Stmt:
    """Set `cell` to the first place where ascending numbers exceed `n`, or to how many there are.

    So where `sums` counts elements, number `n` of these is there.
    """

    def holds(at: Expr) -> tuple[Stmt, Expr]:
        return block(), sums[at] <= n

    return bisected(nests, cell, sums.shape[0], holds)


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
        self.places = places
        self.nests = nests
        self.before = before
        self.cells = cells
        self.other = Buffer("merged", places.shape, INDEX)
        levels = (places.size - 1).bit_length()
        self.in_block = min(levels + levels % 2, IN_BLOCK)

    def sort(self, count: Expr) -> Stmt:
        """The statement that stores the first `count` indices in order."""
        room = self.places.size
        width = 1 << self.in_block
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
        made = [self.other] if widths else []
        return allocated(made, block(*steps))

    def _runs(self, target: Buffer, count: Expr) -> Stmt:
        """Sort runs of the elements that a block sorts."""
        nests = self.nests
        size = 1 << self.in_block
        runs = -(-target.size // size)
        mine = [Buffer(name, (size,), INDEX) for name in ("mine", "dealt")]
        here, there = mine

        def run(r: Expr) -> Stmt:
            first = r * size
            own = Min(count - first, const(size))

            def turn(n: Expr) -> Stmt:
                forth, back = (here, there), (there, here)
                steps = []
                for pair, level in ((forth, n * 2), (back, n * 2 + 1)):
                    width = const(1) << level
                    place = partial(self._place, pair, width, size, own)
                    steps.append(nests.loop(size, place))
                return block(*steps)

            def leave(n: Expr) -> Stmt:
                return If(n < own, Store(target, (first + n,), here[n]), None)

            start = nests.loop(size, lambda n: Store(here, (n,), first + n))
            turns = nests.loop(self.in_block // 2, turn)
            end = nests.loop(size, leave)
            return allocated(mine, block(start, turns, end))

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
            one = source[left.value]
            two = source[right.value]
            look, later = self.before(two, one)
            first = Select(later, const(0), const(1))
            answer = taken.set(first)
            both = If(right.value < end.value, block(look, answer), None)
            there = block(taken.set(1), both)
            known = If(left.value < middle.value, there, taken.set(0))
            at_left = left.set(start.value + i)
            at_right = right.set(middle.value + j)
            return block(at_left, at_right, known)

        def is_before(i: Expr) -> tuple[Stmt, Expr]:
            here = If(i < offset, compare(i, offset - 1 - i), taken.set(0))
            return here, taken.value.eq(1)

        one = Store(target, (n,), source[left.value])
        other = Store(target, (n,), source[right.value])
        two = width * 2
        body = block(
            start.set(n // two * two),
            middle.set(Min(start.value + width, count)),
            end.set(Min(start.value + two, count)),
            bisected(self.nests, lefts, most, is_before),
            compare(lefts.value, offset - lefts.value),
            If(taken.value.eq(1), one, other),
        )
        own = (*cells.values(), *self.cells)
        here = allocated(own, body)
        return If(n < count, here, None)
