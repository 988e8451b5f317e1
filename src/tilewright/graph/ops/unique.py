"""Unique: the distinct elements of a tensor, or its distinct slices along an axis.

Slices are compared lexicographically; a NaN comes after every number and equals any other NaN, and
0.0 equals -0.0. The first of equal slices represents them. `sorted=0` keeps them in order of first
occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.ops.broadcasting import inserted, wide, without
from tilewright.graph.ops.open_extents import DOMAIN, cleared
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, While, block
from tilewright.loops.sorting import CounterCell, MergeSort, allocated

Buffers = Sequence[Buffer]
COUNT = 1  # the operand that holds the number of slices


def _type(call: OpCall) -> Sequence[Type]:
    """The types of the slices, first indices, inverse indices and counts."""
    shape = call.shape(0)
    axis = call.own_axis(len(shape), 0)
    extent = (shape[axis],)
    whole = (call.dtype(0), shape)
    return [whole, *[(int64, extent)] * 3, (int64, ())]


def _before(
    a: Expr,
    b: Expr,
) -> Expr:
    a = _ordered(a)
    b = _ordered(b)
    less = a < b
    if not a.dtype.is_float:
        return less
    return less | (apply("isnan", b) & ~apply("isnan", a))


def _ordered(x: Expr) -> Expr:
    x = wide(x)
    return cast(x, dtypes.uint8) if x.dtype.is_bool else x


@dataclass(frozen=True)
class _Slices:
    """The parts of the Kernel: indices of slices are sorted, and runs of equal ones numbered."""

    call: OpCall
    inputs: Buffers
    outputs: Buffers
    nests: LoopNests

    @cached_property
    def axis(self) -> int:
        """The axis of the slices."""
        return self.call.axis(self.call.attr("axis", 0), len(self.inputs[0].shape))

    @cached_property
    def free(self) -> Sequence[int]:
        """The shape of a slice."""
        return without(self.inputs[0].shape, self.axis)

    @cached_property
    def extent(self) -> int:
        """The capacity in slices."""
        return self.inputs[0].shape[self.axis]

    @cached_property
    def sorting(self) -> MergeSort:
        """Sorts the slices."""
        return MergeSort(self.extent)

    @cached_property
    def head(self) -> Buffer:
        """For each slice, the first one equal to it."""
        return Buffer("head", (max(self.extent, 1),), INDEX)

    @cached_property
    def number(self) -> Buffer:
        """For each slice that is the first of its kind, its index among the results."""
        return Buffer("number", (max(self.extent, 1),), INDEX)

    @cached_property
    def cells(self) -> dict[str, CounterCell]:
        """The counters."""
        return {n: CounterCell(n) for n in ("count", "at", "found", "order", "first")}

    def compare(
        self,
        m: Expr,
        n: Expr,
    ) -> tuple[Stmt, Expr]:
        """Whether slice `m` comes before slice `n`, by the first element that differs."""
        x = self.inputs[0]
        order = self.cells["order"]

        def look(*i: Expr) -> Stmt:
            one, other = (x[inserted(i, self.axis, k)] for k in (m, n))
            sign = Select(_before(one, other), const(-1), const(0))
            sign = Select(_before(other, one), const(1), sign)
            return If(order.value.eq(0), order.set(sign), None)

        compare = self.nests.over(self.free, look)
        return block(order.set(0), compare), order.value.eq(-1)

    def setup(self) -> Stmt:
        """Initialize the number of slices."""
        here: Expr = const(self.extent)
        if self.call.has(COUNT):
            given = self.inputs[COUNT]
            count = given[(0,) * len(given.shape)]
            here = Max(Min(count, here), const(0))
        return block(self.cells["count"].set(here), self.cells["found"].set(0))

    def along(
        self,
        body: Stmt,
    ) -> Stmt:
        """`body` for every slice that exists; the cell `at` holds its index."""
        at, count = self.cells["at"], self.cells["count"]
        step = block(body, at.add())
        return block(at.set(0), While(at.value < count.value, step))

    def order(self) -> Stmt:
        """Find the head of every slice, and number the heads in sorted order."""
        at, first, found = (self.cells[n] for n in ("at", "first", "found"))
        places = self.sorting.places
        here = places[at.value]
        look, before = self.compare(first.value, here)
        new = block(first.set(here), Store(self.number, (here,), found.value))
        ranked = block(new, found.add())
        rank = block(look, If(before, ranked, None))
        start = If(at.value.eq(0), ranked, rank)
        each = block(start, Store(self.head, (here,), first.value))
        fill = self.along(Store(places, (at.value,), at.value))
        sort = self.sorting.sort(self.cells["count"].value, self.compare)
        return block(fill, sort, self.along(each))

    def renumber(self) -> Stmt:
        """Number the heads in order of first occurrence."""
        found = self.cells["found"]
        at = self.cells["at"].value
        new = block(Store(self.number, (at,), found.value), found.add())
        is_head = self.head[at].eq(at)
        renumber = self.along(If(is_head, new, None))
        return block(found.set(0), renumber)

    def results(self) -> Stmt:
        """Write the results, slice by slice."""
        at = self.cells["at"].value
        _, places, inverse, counts, count = self.outputs
        head = self.head[at]
        number = self.number[head]
        own = self.number[at]
        first = block(self.take(at, own), Store(places, (own,), at))
        each = block(
            If(head.eq(at), first, None),
            Store(inverse, (at,), number),
            Store(counts, (number,), counts[number] + 1),
        )
        found = Store(count, (), self.cells["found"].value)
        return block(self.along(each), found)

    def take(
        self,
        source: Expr,
        target: Expr,
    ) -> Stmt:
        """Copy slice `source` of the input to slice `target` of the result."""
        x, y = self.inputs[0], self.outputs[0]

        def move(*i: Expr) -> Stmt:
            one, other = (inserted(i, self.axis, k) for k in (source, target))
            return Store(y, other, x[one])

        return self.nests.over(self.free, move)


def _compute(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    nests = LoopNests()
    parts = _Slices(call, inputs, outputs, nests)
    clear = [cleared(nests, b) for b in outputs[:4]]
    steps = [parts.setup(), parts.order()]
    if not call.attr("sorted", 1):
        steps.append(parts.renumber())
    body = block(*steps, parts.results())
    if not inputs[0].size:
        body = Store(outputs[4], (), const(0))
    room: list[Buffer | CounterCell] = [*parts.cells.values(), parts.head, parts.number]
    whole = block(*clear, parts.sorting.around(allocated(room, body)))
    used = [b for n, b in enumerate(inputs) if call.has(n)]
    return [kernel(call.name, used, outputs, whole)]


register(OpDef("Unique", _type, domain=DOMAIN, compute=_compute))
