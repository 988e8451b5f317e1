"""LU factors with row exchanges, and their order; operators of the domain `tilewright`.

`PivotedLU` gives both factors in one matrix of any shape, the row with which each row was
exchanged, counted from 1 as in LAPACK, and the number of the first pivot that is zero, counted from
1, or 0. `PivotOrder` gives the order in which such exchanges leave the rows, of which there may be
more than exchanges (`rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import int32, int64
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, const
from tilewright.graph.ops.elimination import Elimination, Point
from tilewright.graph.ops.factor_gradient import pivoted_lu_gradient
from tilewright.graph.ops.orthogonal import Outputs, all_results, rectangles
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.solve import DOMAIN
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Kernel, Stmt, Store, block
from tilewright.loops.sorting import allocated

Buffers = Sequence[Buffer]


def _types(op: OpCall) -> Sequence[Type]:
    batch, rows, columns = rectangles(op)
    return [
        (op.dtype(0), op.shape(0)),
        (int32, (*batch, min(rows, columns))),
        (int32, batch),
    ]


def _factored(op: OpCall, inputs: Buffers, outputs: Outputs) -> list[Kernel]:
    (x,) = inputs
    factors, pivots, info = all_results(outputs, 3)
    _, rows, columns = rectangles(op)
    count = min(rows, columns)
    e = Elimination(x, columns - rows)
    singular = e.cell("singular")
    number = singular[0]

    def look(t: Expr) -> Stmt:
        """From the last pivot to the first one."""
        k = count - 1 - t
        counted = cast(k + 1, e.dtype)
        zero = e.matrix[k, k].eq(0)
        return e.set(singular, Select(zero, counted, number))

    def one(i: Point) -> Stmt:
        def chosen(k: Expr) -> Stmt:
            if pivots is None:
                return block()
            return Store(pivots, (*i, k), cast(e.pivot[0] + 1, int32))

        def value(r: Expr, c: Expr) -> Expr:
            return e.matrix[r, c]

        steps = [e.fill(i, x), e.eliminate(chosen, count)]
        if factors is not None:
            steps.append(e.result(i, factors, value))
        if info is not None:
            zeros = e.nests.loop(count, look)
            steps += [e.set(singular, e.zero), zeros]
            steps.append(Store(info, i, cast(number, int32)))
        return block(*steps)

    return e.kernel(op, inputs, outputs, one)


def _order_type(op: OpCall) -> Sequence[Type]:
    if op.dtype(0) is not int32 or not op.shape(0):
        raise op.error(f"pivots of {op.dtype(0).name}, expected rows of int32")
    *batch, count = op.shape(0)
    rows = op.attr("rows", count)
    if rows < count:
        raise op.error(f"{rows} rows, fewer than the {count} exchanges")
    return [(int64, (*batch, rows))]


def _ordered(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    (pivots,) = inputs
    (order,) = outputs
    *batch, count = pivots.shape
    size = order.shape[-1]
    nests = LoopNests()
    other = Buffer("other", (1,), INDEX)
    held = Buffer("held", (1,), int64)

    def one(*i: Expr) -> Stmt:
        def start(k: Expr) -> Stmt:
            return Store(order, (*i, k), cast(k, int64))

        def exchange(k: Expr) -> Stmt:
            given = cast(pivots[(*i, k)], INDEX) - 1
            inside = Min(Max(given, const(0)), const(size - 1))
            here = (*i, k)
            there = (*i, other[0])
            return block(
                Store(other, (const(0),), inside),
                Store(held, (const(0),), order[here]),
                Store(order, here, order[there]),
                Store(order, there, held[0]),
            )

        return block(nests.loop(size, start), nests.loop(count, exchange))

    def each(*i: Expr) -> Stmt:
        return allocated([other, held], one(*i))

    whole = nests.rows(batch, size, each)
    return [kernel(op.name, inputs, outputs, whole, nests.notes)]


_DEFINITIONS = (
    OpDef(
        "PivotedLU",
        _types,
        DOMAIN,
        compute=_factored,
        flops=lambda op: op.size(0) * min(op.shape(0)[-2:]) * 2 // 3,
        gradient=pivoted_lu_gradient,
    ),
    OpDef(
        "PivotOrder",
        _order_type,
        DOMAIN,
        compute=_ordered,
    ),
)

for definition in _DEFINITIONS:
    register(definition)
