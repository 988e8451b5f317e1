"""TopK: the k largest or smallest along an axis, in order.

A NaN counts as larger than every number; equal elements keep their order. On a processor, a row is
inserted into a sorted list of its best, or into a heap if there are many; blocks of threads sort
parts of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tilewright.base import dtypes
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import inserted, replaced, wide, without
from tilewright.graph.ops.derivative import Backward, filled
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.heaps import Heap
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, While, block
from tilewright.loops.sorting import ShuffleSort, allocated

Buffers = Sequence[Buffer]
# The value and the place of an element of a row; stores one of the best of a row.
_Read = Callable[[Sequence[Expr], Expr], tuple[Expr, Expr]]
_Flush = Callable[[Sequence[Expr], Expr, Expr, Expr], Stmt]


def _k(op: OpCall) -> int:
    if op.version < 10:
        k = op.attr("k")
    else:
        k = op.int_scalar(1)
    if k is None or k < 0:
        raise op.error(f"k={k}")
    return int(k)


def _types(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    axis = op.own_axis(len(shape), -1)
    k = _k(op)
    if not shape or k > shape[axis]:
        raise op.error(f"k={k} of a tensor {list(shape)} along axis {axis}")
    found = replaced(shape, axis, k)
    return [(op.dtype(0), found), (dtypes.int64, found)]


def _before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether element `a`, which has the smaller index, comes before `b`."""
    a, b = wide(a), wide(b)
    if a.dtype.is_bool:
        a = cast(a, dtypes.uint8)
        b = cast(b, dtypes.uint8)
    more = a > b if largest else a < b
    if not a.dtype.is_float:
        return more
    high, low = (a, b) if largest else (b, a)
    return ~(high <= low) & ~call("isnan", low)


def _both(
    values: Buffer, places: Buffer, at: tuple[Any, ...], value: Expr, place: Expr
) -> Stmt:
    """Stores a value and its place."""
    return block(Store(values, at, value), Store(places, at, place))


SORTED: Final = 1024  # elements that a block of threads sorts together


class _InBlocks:
    """A block of threads sorts up to SORTED elements of a row; the best of all blocks are next.

    candidates: values of the rows and their places in them, along the last dimension.
    """

    def __init__(self, op: OpCall, x: Buffer) -> None:
        self.op = op
        self.x = x
        self.k = _k(op)
        self.largest = bool(op.attr("largest", 1))
        self.axis = op.own_axis(len(x.shape), -1)
        self.free = without(x.shape, self.axis)
        self.extent = x.shape[self.axis]
        self.nests = LoopNests()

    def body(self, outputs: Buffers) -> Stmt:
        """The whole program."""
        count = self.extent
        steps: list[Stmt] = []
        scratch: list[Buffer] = []

        def own(i: Sequence[Expr], n: Expr) -> tuple[Expr, Expr]:
            point = inserted(i, self.axis, n)
            return self.x[point], n

        read: _Read = own
        while count > SORTED and 4 * self.k <= SORTED:
            blocks = -(-count // SORTED)
            shape = (*self.free, blocks * self.k)
            values = Buffer(f"values{len(steps)}", shape, self.x.dtype)
            places = Buffer(f"found{len(steps)}", shape, INDEX)
            scratch += [values, places]
            flush = self.into(values, places)
            steps.append(self.sorted(read, count, blocks, flush))
            read = self.candidates(values, places)
            count = blocks * self.k

        def last(i: Sequence[Expr], n: Expr, value: Expr, place: Expr) -> Stmt:
            point = inserted(i, self.axis, n)
            pairs = zip(outputs, (value, place), strict=True)
            return block(*(Store(b, point, v) for b, v in pairs if b is not None))

        steps.append(self.sorted(read, count, 1, last))
        return allocated(reversed(scratch), block(*steps))

    def into(self, values: Buffer, places: Buffer) -> _Flush:
        """Stores the best of a block as candidates of the next step."""

        def flush(i: Sequence[Expr], n: Expr, value: Expr, place: Expr) -> Stmt:
            *row, at = i
            to = (*row, at * self.k + n)
            return _both(values, places, to, value, place)

        return flush

    @staticmethod
    def candidates(values: Buffer, places: Buffer) -> _Read:
        """Reads a candidate."""
        return lambda i, n: (values[(*i, n)], places[(*i, n)])

    def sorted(self, read: _Read, count: int, blocks: int, flush: _Flush) -> Stmt:
        """Sort the elements of each row in blocks, and flush the best of each.

        Where a row ends within a block, elements with the place `extent` follow, which are none.
        """
        room = count if blocks == 1 else SORTED
        order = ShuffleSort(room, self.nests)
        keys = Buffer("keys", (order.size,), self.x.dtype)
        nests = self.nests
        none = const(0, self.x.dtype)
        last = const(order.size)
        extent = const(self.extent)

        def row(*i: Expr) -> Stmt:
            outer = i if blocks == 1 else i[:-1]

            def at(n: Expr) -> Expr:
                return n if blocks == 1 else i[-1] * SORTED + n

            def fetch(n: Expr) -> Stmt:
                value, place = read(outer, at(n))
                known = Select(place < self.extent, n, last)
                some = _both(keys, order.places, (n,), value, known)
                rest = _both(keys, order.places, (n,), none, last)
                exists = (n < room) & (at(n) < count)
                return If(exists, some, rest)

            def store(n: Expr) -> Stmt:
                best = order.places[n]
                exists = best < last
                _, source = read(outer, at(best))
                value = Select(exists, keys[best], none)
                place = Select(exists, source, extent)
                return flush(i, n, value, place)

            def before(m: Expr, n: Expr) -> tuple[Stmt, Expr]:
                return block(), _before(keys[m], keys[n], self.largest)

            body = block(
                nests.loop(order.size, fetch),
                order.sort(last, before),
                nests.loop(self.k, store),
            )
            return Alloc(keys, order.around(body))

        extents = self.free if blocks == 1 else (*self.free, blocks)
        return nests.rows(extents, order.size * order.bits**2, row)


class _Sorted:
    """A sorted list of a row's k best elements and their indices, built by insertion."""

    def __init__(self, op: OpCall, x: Buffer, nests: LoopNests) -> None:
        self.k = _k(op)
        self.nests = nests
        self.largest = bool(op.attr("largest", 1))
        room = max(self.k, 1)
        self.best = Buffer("best", (room,), x.dtype)
        self.place = Buffer("place", (room,), INDEX)
        self.hole = Buffer("hole", (1,), INDEX)  # where the new element goes

    def insert(self, element: Expr, n: Expr) -> Stmt:
        """Insert element `n` of the row if it is among the best so far."""
        best = self.best
        at = self.hole[0]
        above = at - 1
        before_above = _before(element, best[above], self.largest)
        sinks = Select(at > 0, before_above, const(False, dtypes.bool_))
        down = _both(best, self.place, (at,), best[above], self.place[above])
        move = block(down, Store(self.hole, (const(0),), above))
        put = _both(best, self.place, (at,), element, n)
        last = Select(n < self.k, n, const(self.k - 1))
        start = Store(self.hole, (const(0),), last)
        enters = (n < self.k) | _before(element, best[self.k - 1], self.largest)
        return If(enters, block(start, While(sinks, move), put), None)

    def select(self, read: Callable[[Expr], Expr], extent: int) -> Stmt:
        """The best of a row of `extent` elements into the list."""
        return self.nests.loop(extent, lambda n: self.insert(read(n), n))

    def around(self, body: Stmt) -> Stmt:
        """`body` with the list allocated."""
        return allocated((self.hole, self.place, self.best), body)


# Elements, above which moving those behind a new one costs more than a heap: of 19,200, 32 take as
# long either way, and 300 are found in 0.3 of the time (Zen 5).
MANY: Final = 32


def _top_k(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    """Insertion into a list or a heap of k elements; most elements fail against the last one."""
    x = inputs[0]
    nests = LoopNests()
    axis = op.own_axis(len(x.shape), -1)
    extent = x.shape[axis]
    k = _k(op)
    kept: _Sorted | Heap = _Sorted(op, x, nests)
    if k > MANY:
        before = partial(_before, largest=bool(op.attr("largest", 1)))
        kept = Heap(k, x.dtype, before, nests)
    stores = [(outputs[0], kept.best), (outputs[1], kept.place)]

    def row(*i: Expr) -> Stmt:
        def flush(n: Expr) -> Stmt:
            point = inserted(i, axis, n)
            wanted = [(out, b) for out, b in stores if out is not None]
            return block(*(Store(out, point, b[n]) for out, b in wanted))

        body = block(
            kept.select(lambda n: x[inserted(i, axis, n)], extent),
            nests.loop(kept.k, flush),
        )
        return kept.around(body)

    free = without(x.shape, axis)
    if kept.k and op.blocks:
        parts = _InBlocks(op, x)
        body = parts.body(outputs)
        return [kernel(op.name, inputs[:1], outputs, body, parts.nests.notes)]
    if kept.k:
        body = nests.rows(free, extent * 8, row)
    else:
        body = block()
    return [kernel(op.name, inputs[:1], outputs, body, nests.notes)]


def _gradient(
    f: Fragment,
    op: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    """The gradient of an element is that of the result that it became."""
    call = op.operation
    if op.wants(1):
        place = op.out(1)
    else:
        how = {"version": call.version, **call.attributes}
        _, place = f.ops("TopK", *call.inputs, count=2, **how)
    zeros = filled(f, op.value(0), 0)
    axis = op.attr("axis", -1)
    back = f.op("ScatterElements", zeros, place, g, axis=axis, reduction="add")
    return [back, None]


register(
    OpDef(
        "TopK",
        _types,
        compute=_top_k,
        by_value=(1,),
        gradient=_gradient,
    )
)
