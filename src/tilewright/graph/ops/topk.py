"""TopK: the k largest or smallest along an axis, in order.

A NaN counts as larger than every number; equal elements keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base import dtypes
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import replaced, wide
from tilewright.graph.ops.derivative import Backward, filled
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.nests import LoopNests, kernel
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, While, block

Buffers = Sequence[Buffer]


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
    axis = op.axis(op.attr("axis", -1), len(shape))
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
    return more | (call("isnan", high) & ~call("isnan", low))


class _Sorted:
    """A sorted list of a row's k best elements and their indices, built by insertion."""

    def __init__(self, op: OpCall, x: Buffer) -> None:
        self.k = _k(op)
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
        move = block(
            Store(best, (at,), best[above]),
            Store(self.place, (at,), self.place[above]),
            Store(self.hole, (const(0),), above),
        )
        put = block(
            Store(best, (at,), element),
            Store(self.place, (at,), n),
        )
        last = Select(n < self.k, n, const(self.k - 1))
        start = Store(self.hole, (const(0),), last)
        enters = (n < self.k) | _before(element, best[self.k - 1], self.largest)
        return If(enters, block(start, While(sinks, move), put), None)

    def around(self, body: Stmt) -> Stmt:
        """`body` with the list allocated."""
        return Alloc(self.best, Alloc(self.place, Alloc(self.hole, body)))


def _top_k(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    """Insertion into a sorted list of k elements; most elements fail against its last one."""
    x = inputs[0]
    nests = LoopNests()
    axis = op.axis(op.attr("axis", -1), len(x.shape))
    extent = x.shape[axis]
    kept = _Sorted(op, x)
    stores = [(outputs[0], kept.best), (outputs[1], kept.place)]

    def row(*i: Expr) -> Stmt:
        def point(n: Any) -> tuple[Any, ...]:
            return (*i[:axis], n, *i[axis:])

        def insert(n: Expr) -> Stmt:
            return kept.insert(x[point(n)], n)

        def flush(n: Expr) -> Stmt:
            wanted = [(out, b) for out, b in stores if out is not None]
            return block(*(Store(out, point(n), b[n]) for out, b in wanted))

        body = block(
            nests.loop(extent, insert),
            nests.loop(kept.k, flush),
        )
        return kept.around(body)

    free = (*x.shape[:axis], *x.shape[axis + 1 :])
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
    place = op.operation.outputs[1] if op.wants(1) else None
    if place is None:
        call = op.operation
        _, place = f.ops(
            "TopK", *call.inputs, version=call.version, count=2, **call.attributes
        )
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
