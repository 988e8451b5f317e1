"""TopK: the k largest or smallest along an axis, in order.

A NaN counts as larger than every number; equal elements keep their order. On a processor, a row is
inserted into a sorted list of its best; if there are many, they are selected by the bits of their
elements; blocks of threads sort parts of a row.

`tilewright::TopK` has one operand more, the number of elements that a row has: those from there on
are `last_value`, whatever the tensor holds, so that a processor need not look at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast
from tilewright.expr.nodes import (
    INDEX,
    Bitcast,
    Buffer,
    Expr,
    Max,
    Min,
    Select,
    call,
    const,
)
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import (
    inserted,
    replaced,
    wide,
    widened,
    without,
)
from tilewright.graph.ops.derivative import Backward, filled
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, While, block
from tilewright.loops.selection import KeySelection
from tilewright.loops.sorting import CounterCell, ShuffleSort, allocated

Buffers = Sequence[Buffer]
COUNT: Final = 2  # the operand with the number of elements of a row
# The value and the place of an element of a row; stores one of the best of a row.
_Read = Callable[[Sequence[Expr], Expr], tuple[Expr, Expr]]
_Flush = Callable[[Sequence[Expr], Expr, Expr, Expr], Stmt]


def _k(op: OpCall) -> int:
    k = op.int_scalar(1) if op.has(1) else op.attr("k")
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


def last_value(dtype: DType, largest: bool) -> float | int | bool:
    """A value that sorts last, if only by position: for the smallest, NaN is above all numbers."""
    if dtype.is_bool:
        return not largest
    if dtype.is_float:
        return -np.inf if largest else np.nan
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if largest else limits.max)


class _Rows:
    """The elements of the operand by row and place, and how many of them count."""

    def __init__(self, op: OpCall, inputs: Buffers) -> None:
        self.x = x = inputs[0]
        self.axis = op.own_axis(len(x.shape), -1)
        self.extent = x.shape[self.axis]
        self.free = without(x.shape, self.axis)
        self.k = _k(op)
        self.largest = bool(op.attr("largest", 1))
        self.operands = [x]
        self.count: Expr | None = None
        if op.has(COUNT):
            given = inputs[COUNT]
            self.operands.append(given)
            self.count = given[(0,) * len(given.shape)]

    @property
    def seen(self) -> Expr:
        """How many elements have to be looked at: at least k, at most the extent."""
        if self.count is None:
            return const(self.extent)
        return Max(Min(self.count, const(self.extent)), const(self.k))

    def element(self, i: Sequence[Expr], n: Expr) -> Expr:
        """Element `n` of a row."""
        found: Expr = self.x[inserted(i, self.axis, n)]
        if self.count is None:
            return found
        last = last_value(self.x.dtype, self.largest)
        return Select(n < self.count, found, const(last, self.x.dtype))

    def key(self, i: Sequence[Expr], n: Expr) -> Expr:
        """A number without a sign whose order is that of the elements."""
        return _key(self.element(i, n), self.largest)

    def before(self, a: Expr, b: Expr) -> Expr:
        """The order of the row, of an element and another one behind it."""
        return _before(a, b, self.largest)


def _key_type(dtype: DType) -> DType:
    """The type of the keys of elements of a type."""
    return dtypes.uint64 if dtype.bits > dtypes.uint32.bits else dtypes.uint32


def _key(value: Expr, largest: bool) -> Expr:
    """A number without a sign whose order is that of `_before`."""
    v = wide(value)
    kind = _key_type(v.dtype)
    top = const(1 << (kind.bits - 1), kind)
    ones = const((1 << kind.bits) - 1, kind)
    if v.dtype.is_float:
        zero = const(0, v.dtype)  # also for that with a sign
        bits = Bitcast(Select(v.eq(zero), zero, v), kind)
        ordered = Select(bits >= top, bits ^ ones, bits ^ top)
        key: Expr = Select(call("isnan", v), ones, ordered)
    elif v.dtype.is_signed:
        key = cast(v, kind) ^ top
    else:
        key = cast(v, kind)
    return key ^ ones if largest else key


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

    def __init__(self, rows: _Rows, nests: LoopNests) -> None:
        self.rows = rows
        self.x = rows.x
        self.k = rows.k
        self.axis = rows.axis
        self.free = rows.free
        self.extent = rows.extent
        self.nests = nests

    def body(self, outputs: Buffers) -> Stmt:
        """The whole program."""
        count = self.extent
        steps: list[Stmt] = []
        scratch: list[Buffer] = []

        def own(i: Sequence[Expr], n: Expr) -> tuple[Expr, Expr]:
            return self.rows.element(i, n), n

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
                return block(), self.rows.before(keys[m], keys[n])

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

    def __init__(self, rows: _Rows) -> None:
        self.k = rows.k
        self.before = rows.before
        room = max(self.k, 1)
        self.best = Buffer("best", (room,), rows.x.dtype)
        self.places = Buffer("place", (room,), INDEX)
        self.hole = Buffer("hole", (1,), INDEX)  # where the new element goes
        self.at = CounterCell("at")

    def insert(self, element: Expr, n: Expr) -> Stmt:
        """Insert element `n` of the row if it is among the best so far."""
        best = self.best
        at = self.hole[0]
        above = at - 1
        before_above = self.before(element, best[above])
        sinks = Select(at > 0, before_above, const(False, dtypes.bool_))
        down = _both(best, self.places, (at,), best[above], self.places[above])
        move = block(down, Store(self.hole, (const(0),), above))
        put = _both(best, self.places, (at,), element, n)
        last = Select(n < self.k, n, const(self.k - 1))
        start = Store(self.hole, (const(0),), last)
        enters = (n < self.k) | self.before(element, best[self.k - 1])
        return If(enters, block(start, While(sinks, move), put), None)

    def select(self, read: Callable[[Expr], Expr], count: Expr) -> Stmt:
        """The best of a row of `count` elements into the list."""
        at = self.at
        step = block(self.insert(read(at.value), at.value), at.add())
        return block(at.set(0), While(at.value < count, step))

    def around(self, body: Stmt) -> Stmt:
        """`body` with the list allocated."""
        return allocated((self.at, self.hole, self.places, self.best), body)


# Results or elements, above which a selection takes less time than insertion: of 20 or 32 results
# of 19,200 elements 0.8 of it, of 4 of 8000 still 1.3 times as much (Zen 5).
MANY: Final = 32
LONG: Final = 16_384


def _top_k(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    """Blocks of threads sort; else rows on threads, each by insertion or by selection."""
    rows = _Rows(op, inputs)
    nests = LoopNests()
    found: _Sorted | KeySelection = _Sorted(rows)
    read = rows.element
    if rows.k > MANY or rows.extent > LONG:
        found = KeySelection(rows.k, rows.extent, _key_type(rows.x.dtype), nests)
        read = rows.key

    def row(*i: Expr) -> Stmt:
        def result(n: Expr) -> Stmt:
            place = found.places[n]
            values = (rows.element(i, place), place)
            point = inserted(i, rows.axis, n)
            pairs = zip(outputs, values, strict=True)
            return block(*(Store(b, point, v) for b, v in pairs if b is not None))

        select = found.select(lambda n: read(i, n), rows.seen)
        return found.around(block(select, nests.loop(rows.k, result)))

    if not rows.k:
        body = block()
    elif op.blocks:
        body = _InBlocks(rows, nests).body(outputs)
    else:
        body = nests.rows(rows.free, rows.extent * 8, row)
    return [kernel(op.name, rows.operands, outputs, body, nests.notes)]


def _counted_arrays(op: OpCall, x: Array, k: Array, count: Array) -> Sequence[Array]:
    """Of the definition: the elements that count, behind them `last_value`, by `_before`."""
    axis = op.own_axis(x.ndim, -1)
    largest = bool(op.attr("largest", 1))
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    there = np.arange(x.shape[axis]).reshape(shape) < count
    last = last_value(op.dtype(0), largest)
    filled_up = np.where(there, x, np.array(last, x.dtype))
    _, ranks = np.unique(widened(filled_up), return_inverse=True)
    ranks = ranks.reshape(x.shape)
    order = np.argsort(-ranks if largest else ranks, axis, kind="stable")
    places = np.take(order, range(int(k.reshape(()))), axis)
    return [np.take_along_axis(filled_up, places, axis), places]


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
register(
    OpDef(
        "TopK",
        _types,
        domain=DOMAIN,
        compute=_top_k,
        reference=_counted_arrays,
        by_value=(1,),
    )
)
