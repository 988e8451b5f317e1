"""Unique on targets with blocks of threads: every result finds what it needs by itself.

Slices are sorted; one that differs from the one before begins a run, and a running sum numbers the
runs. A slice finds its run among the sorted ones, and a result its slice in the sums, by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, const
from tilewright.graph.ops.open_extents import running_count
from tilewright.graph.ops.slices import Slices
from tilewright.loops.nests import kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, block
from tilewright.loops.searching import MergePathSort, bisected, first_above
from tilewright.loops.sorting import CounterCell, allocated


class UniqueInBlocks:
    """The steps of the operator, and what they leave for one another.

    in_order: results are sorted, else by first occurrence. By place in order, `order` has the slice
    there, `begins` whether a run does, `runs` their number up to there. By slice, `start` has the
    place where its run begins, `first` whether the run begins with it, `firsts` the number of such
    slices up to it.
    """

    def __init__(
        self, name: str, slices: Slices, outputs: Sequence[Buffer], in_order: bool
    ) -> None:
        self.name, self.slices = name, slices
        self.outputs, self.in_order = outputs, in_order
        names = ("order", "begins", "runs", "start", "first", "firsts")
        made = (Buffer(n, (slices.extent,), INDEX) for n in names)
        self.order, self.begins, self.runs, *rest = made
        self.start, self.first, self.firsts = rest

    def program(self) -> list[Computation | Kernel]:
        """All steps."""
        runs = running_count("runs", self.runs, lambda n: self.begins[n])
        firsts = running_count("firsts", self.firsts, lambda n: self.first[n])
        numbers = [] if self.in_order else [firsts]
        return [self.sort(), runs, self.locate(), *numbers, self.results()]

    def _kernel(
        self, reads: Sequence[Buffer], writes: Sequence[Buffer], body: Stmt
    ) -> Kernel:
        of = self.slices
        return kernel(self.name, [of.x, of.given, *reads], writes, body)

    def sort(self) -> Kernel:
        """Sort the slices, and mark those that begin a run."""
        of, order = self.slices, self.order
        sign = CounterCell("sign", "register")
        before = partial(of.compare, sign)
        sorting = MergePathSort(order, of.nests, before, [sign])

        def mark(n: Expr) -> Stmt:
            look, differs = of.compare(sign, order[Max(n - 1, const(0))], order[n])
            begins = n.eq(0) | differs
            exists = n < of.count
            found = Select(begins & exists, const(1), const(0))
            look = If(exists, look, sign.set(0))
            return allocated([sign], block(look, Store(self.begins, (n,), found)))

        body = block(sorting.sort(of.count), of.nests.loop(of.extent, mark))
        return self._kernel([], [order, self.begins], body)

    def locate(self) -> Kernel:
        """Find the run of each slice, and whether the slice is its first."""
        of, order = self.slices, self.order
        at, sign = (CounterCell(name, "register") for name in ("at", "sign"))

        def look(n: Expr) -> Stmt:
            def before(place: Expr) -> tuple[Stmt, Expr]:
                compare, answer = of.compare(sign, order[place], n)
                return If(place < of.count, compare, sign.set(0)), answer

            is_first = (n < of.count) & order[self.inside(at.value)].eq(n)
            body = block(
                bisected(of.nests, at, of.extent, before),
                Store(self.start, (n,), at.value),
                Store(self.first, (n,), Select(is_first, const(1), const(0))),
            )
            return allocated([at, sign], body)

        found = of.nests.loop(of.extent, look)
        return self._kernel([order], [self.start, self.first], found)

    def inside(self, place: Expr) -> Expr:
        """A place that is not negative; the last one for those beyond."""
        return Min(place, const(self.slices.extent - 1))

    def results(self) -> Kernel:
        """The slices that are results, the number of each, and that of each slice's result."""
        of, nests = self.slices, self.slices.nests
        y, places, inverse, counts, count = self.outputs
        numbers = self.runs if self.in_order else self.firsts
        total = numbers[of.extent - 1]
        zero = const(0)

        def result(k: Expr) -> Stmt:
            at = CounterCell("at", "register")
            head = self.order[self.inside(at.value)] if self.in_order else at.value
            begin = self.start[places[k]]
            there = block(
                first_above(nests, at, numbers, k),
                Store(places, (k,), head),
                first_above(nests, at, self.runs, self.runs[begin]),
                Store(counts, (k,), Min(at.value, of.count) - begin),
            )
            none = block(Store(places, (k,), zero), Store(counts, (k,), zero))
            return allocated([at], If(k < total, there, none))

        def value(k: Expr, *i: Expr) -> Stmt:
            taken = of.x[of.at(places[k], i)]
            found = Select(k < total, taken, const(0, y.dtype))
            return Store(y, of.at(k, i), found)

        def number(n: Expr) -> Stmt:
            place = self.inside(self.start[n])
            found = numbers[place if self.in_order else self.order[place]] - 1
            return Store(inverse, (n,), Select(n < of.count, found, zero))

        body = block(
            nests.loop(of.extent, result),
            nests.over((of.extent, *of.free), value),
            nests.loop(of.extent, number),
            Store(count, (), total),
        )
        reads = [self.order, self.runs, self.start]
        return self._kernel([*reads, numbers], self.outputs, body)
