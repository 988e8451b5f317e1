"""Unique: the distinct elements of a tensor, or its distinct slices along an axis.

Slices are compared lexicographically; the first of equal slices represents them. `sorted=0` keeps
them in order of first occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, const
from tilewright.graph.ops.open_extents import DOMAIN, cleared
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.slices import Slices
from tilewright.graph.ops.unique_blocks import UniqueInBlocks
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, While, block
from tilewright.loops.sorting import CounterCell, MergeSort, allocated

Buffers = Sequence[Buffer]


def _type(call: OpCall) -> Sequence[Type]:
    """The types of the slices, first indices, inverse indices and counts."""
    shape = call.shape(0)
    axis = call.own_axis(len(shape), 0)
    extent = (shape[axis],)
    whole = (call.dtype(0), shape)
    return [whole, *[(int64, extent)] * 3, (int64, ())]


@dataclass(frozen=True)
class _Parts:
    """The parts of the Kernel: indices of slices are sorted, and runs of equal ones numbered."""

    call: OpCall
    inputs: Buffers
    outputs: Buffers
    nests: LoopNests

    @cached_property
    def slices(self) -> Slices:
        """Those of the operand."""
        return Slices.of(self.call, self.inputs, self.nests)

    @property
    def extent(self) -> int:
        """The capacity in slices."""
        return self.slices.extent

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

    def setup(self) -> Stmt:
        """Initialize the number of slices."""
        count = self.cells["count"].set(self.slices.count)
        return block(count, self.cells["found"].set(0))

    def along(
        self,
        body: Stmt,
    ) -> Stmt:
        """`body` for every slice that exists; the cell `at` holds its index."""
        at = self.cells["at"]
        count = self.cells["count"]
        step = block(body, at.add())
        return block(at.set(0), While(at.value < count.value, step))

    def order(self) -> Stmt:
        """Find the head of every slice, and number the heads in sorted order."""
        at, first, found = (self.cells[n] for n in ("at", "first", "found"))
        places = self.sorting.places
        here = places[at.value]
        compare = partial(self.slices.compare, self.cells["order"])
        look, before = compare(first.value, here)
        new = block(first.set(here), Store(self.number, (here,), found.value))
        ranked = block(new, found.add())
        rank = block(look, If(before, ranked, None))
        start = If(at.value.eq(0), ranked, rank)
        each = block(start, Store(self.head, (here,), first.value))
        fill = self.along(Store(places, (at.value,), at.value))
        sort = self.sorting.sort(self.cells["count"].value, compare)
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
        of, y = self.slices, self.outputs[0]

        def move(*i: Expr) -> Stmt:
            return Store(y, of.at(target, i), of.x[of.at(source, i)])

        return self.nests.over(of.free, move)


def _compute(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation | Kernel]:
    nests = LoopNests()
    ordered = bool(call.attr("sorted", 1))
    if call.blocks and inputs[0].size:
        slices = Slices.of(call, inputs, nests)
        return UniqueInBlocks(call.name, slices, outputs, ordered).program()
    parts = _Parts(call, inputs, outputs, nests)
    clear = [cleared(nests, b) for b in outputs[:4]]
    steps = [parts.setup(), parts.order()]
    if not ordered:
        steps.append(parts.renumber())
    body = block(*steps, parts.results())
    if not inputs[0].size:
        body = Store(outputs[4], (), const(0))
    room: list[Buffer | CounterCell] = [*parts.cells.values(), parts.head, parts.number]
    whole = block(*clear, parts.sorting.around(allocated(room, body)))
    used = [b for n, b in enumerate(inputs) if call.has(n)]
    return [kernel(call.name, used, outputs, whole)]


register(OpDef("Unique", _type, domain=DOMAIN, compute=_compute))
