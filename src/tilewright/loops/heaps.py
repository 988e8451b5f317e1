"""A heap of the first elements of a row in some order, for hand-written Kernels."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import INDEX, Buffer, Expr, Min, Select, const
from tilewright.loops.nests import LoopNests
from tilewright.loops.nodes import If, Stmt, Store, While, block
from tilewright.loops.sorting import CounterCell, allocated

Read = Callable[[Expr], Expr]
Before = Callable[[Expr, Expr], Expr]


class Heap:
    """The first k elements of a row in an order, and their places in it.

    The last of them is on top. A new one that comes before it takes its place and sinks, in log2(k)
    steps. When all are in, the top is taken off again and again, which sorts them (Williams 1964).
    before: the order of two elements, strict; of equal ones, that with the smaller place is first.
    """

    def __init__(
        self,
        k: int,
        dtype: DType,
        before: Before,
        nests: LoopNests,
    ) -> None:
        self.k = k
        self.before = before
        self.nests = nests
        self.best = Buffer("best", (k,), dtype)
        self.place = Buffer("place", (k,), INDEX)
        self.element = Buffer("element", (1,), dtype)  # what sinks
        self.at = CounterCell("at")  # the element that may enter
        self.own = CounterCell("own")  # its place in the row
        self.hole = CounterCell("hole")  # where it would go
        self.child = CounterCell("child")  # the later one of the two below
        self.sinks = CounterCell("sinks")

    def put(
        self,
        at: Expr,
        value: Expr,
        place: Expr,
    ) -> Stmt:
        """Store an element and its place."""
        first = Store(self.best, (at,), value)
        second = Store(self.place, (at,), place)
        return block(first, second)

    def take(
        self,
        element: Expr,
        place: Expr,
    ) -> Stmt:
        """Make an element the one that sinks."""
        first = Store(self.element, (const(0),), element)
        second = self.own.set(place)
        return block(first, second)

    def is_after(
        self,
        child: Expr,
        element: Expr,
        place: Expr,
    ) -> Expr:
        """Whether the element in the heap comes after another."""
        mine = self.best[child]
        behind = self.place[child] > place
        equal = ~self.before(mine, element) & behind
        return self.before(element, mine) | equal

    def sink(
        self,
        hole: Expr,
        size: Expr,
    ) -> Stmt:
        """Put the element that sinks into a heap of `size` elements, which has a hole there."""
        child = self.child.value
        at = self.hole.value
        left = at * 2 + 1
        right = Min(left + 1, size - 1)
        later = self.is_after(right, self.best[left], self.place[left])
        # No branch: neither answer could be predicted.
        one = Select(later, const(1), const(0))
        choose = self.child.set(left + one)
        below = self.is_after(child, self.element[0], self.own.value)
        move = self.put(at, self.best[child], self.place[child])
        up = block(move, self.hole.set(child))
        step = If(below, up, self.sinks.set(0))
        more = (self.sinks.value > 0) & (left < size)
        loop = While(more, block(choose, step))
        start = self.hole.set(hole)
        last = self.put(at, self.element[0], self.own.value)
        return block(start, self.sinks.set(1), loop, last)

    def select(
        self,
        read: Read,
        count: Expr,
    ) -> Stmt:
        """The first k of the row's `count` elements, in order. requires: k <= count."""
        k = self.k
        size = const(k)
        top = const(0)

        def fill(n: Expr) -> Stmt:
            return self.put(n, read(n), n)

        def order(n: Expr) -> Stmt:
            at = const(k // 2 - 1) - n
            start = self.take(self.best[at], self.place[at])
            return block(start, self.sink(at, size))

        def enter(place: Expr) -> Stmt:
            element = read(place)
            start = self.take(element, place)
            add = block(start, self.sink(top, size))
            enters = self.before(element, self.best[0])
            return If(enters, add, None)

        at = self.at
        rest = While(at.value < count, block(enter(at.value), at.add()))

        def sort(n: Expr) -> Stmt:
            end = const(k - 1) - n
            start = self.take(self.best[end], self.place[end])
            last = self.put(end, self.best[0], self.place[0])
            return block(start, last, self.sink(top, end))

        return block(
            self.nests.loop(k, fill),
            self.nests.loop(k // 2, order),
            at.set(k),
            rest,
            self.nests.loop(k - 1, sort),
        )

    def around(
        self,
        body: Stmt,
    ) -> Stmt:
        """`body` with the heap allocated."""
        cells = (self.at, self.own, self.hole, self.child, self.sinks)
        return allocated(
            (*cells, self.element, self.place, self.best),
            body,
        )
