"""TopK: the k largest or smallest along an axis, in order.

A NaN counts as larger than every number; of equal elements the first comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base import dtypes
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.ops.broadcasting import wide
from tilewright.graph.ops.nests import Nests, kernel
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, While, block

Buffers = Sequence[Buffer]


def _k(op: OpCall) -> int:
    k = op.attr("k") if op.version < 10 else int(op.need(1).reshape(-1)[0])
    if k is None or k < 0:
        raise op.error(f"k={k}")
    return int(k)


def _types(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    axis, k = op.axis(op.attr("axis", -1), len(shape)), _k(op)
    if not shape or k > shape[axis]:
        raise op.error(f"k={k} of a tensor {list(shape)} along axis {axis}")
    found = (*shape[:axis], k, *shape[axis + 1 :])
    return [(op.dtype(0), found), (dtypes.int64, found)]


def _before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether element `a` comes before `b`, which has the smaller index."""
    a, b = wide(a), wide(b)
    if a.dtype.is_bool:
        a, b = cast(a, dtypes.uint8), cast(b, dtypes.uint8)
    more = a > b if largest else a < b
    if not a.dtype.is_float:
        return more
    high, low = (a, b) if largest else (b, a)
    return more | (call("isnan", high) & ~call("isnan", low))


def _top_k(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    """Insertion into a sorted list of k elements; most elements lose against its last one."""
    x, nests = inputs[0], Nests()
    axis, k = op.axis(op.attr("axis", -1), len(x.shape)), _k(op)
    extent, largest = x.shape[axis], bool(op.attr("largest", 1))
    best = Buffer("best", (max(k, 1),), x.dtype)
    place = Buffer("place", (max(k, 1),), INDEX)
    hole = Buffer("hole", (1,), INDEX)
    at, above = hole[0], hole[0] - 1

    def row(*i: Expr) -> Stmt:
        def whole(n: Any) -> tuple[Any, ...]:
            return (*i[:axis], n, *i[axis:])

        def insert(n: Expr) -> Stmt:
            element = x[whole(n)]
            sinks = Select(
                at > 0, _before(element, best[above], largest), const(False, _BOOL)
            )
            move = block(
                Store(best, (at,), best[above]),
                Store(place, (at,), place[above]),
                Store(hole, (const(0),), above),
            )
            put = block(Store(best, (at,), element), Store(place, (at,), n))
            start = Store(hole, (const(0),), Select(n < k, n, const(k - 1)))
            enters = (n < k) | _before(element, best[k - 1], largest)
            return If(enters, block(start, While(sinks, move), put), None)

        def flush(n: Expr) -> Stmt:
            stores = [(outputs[0], best), (outputs[1], place)]
            return block(
                *(Store(out, whole(n), b[n]) for out, b in stores if out is not None)
            )

        body = block(nests.loop(extent, insert), nests.loop(k, flush))
        return Alloc(best, Alloc(place, Alloc(hole, body)))

    free = (*x.shape[:axis], *x.shape[axis + 1 :])
    body = nests.rows(free, extent * 8, row) if k else block()
    return [kernel(op.name, inputs[:1], outputs, body, nests.notes)]


_BOOL = dtypes.bool_

register(OpDef("TopK", _types, compute=_top_k, by_value=(1,)))
