"""Det: the product of the pivots of Gaussian elimination with row exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.ops.broadcasting import wide_dtype, widened
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, block

Buffers = Sequence[Buffer]


def _type(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise op.error(f"{list(shape)} does not hold square matrices")
    return [(op.dtype(0), shape[:-2])]


class _Elimination:
    """The statements for one matrix, in local buffers."""

    def __init__(self, nests: LoopNests, x: Buffer) -> None:
        self.nests = nests
        self.size = x.shape[-1]
        dtype = wide_dtype(x.dtype)
        self.matrix = Buffer("matrix", (self.size, self.size), dtype)
        self.product = Buffer("product", (1,), dtype)
        self.pivot = Buffer("pivot", (1,), INDEX)
        self.held = Buffer("held", (1,), dtype)
        self.zero = (const(0),)

    def choose(self, k: Expr) -> Stmt:
        """Choose the row from `k` on with the largest entry in column `k`."""
        m = self.matrix
        pivot = self.pivot[0]

        def compare(r: Expr) -> Stmt:
            size = call("abs", m[r, k])
            larger = (r > k) & (size > call("abs", m[pivot, k]))
            return Store(self.pivot, self.zero, Select(larger, r, pivot))

        first = Store(self.pivot, self.zero, k)
        return block(first, self.nests.loop(self.size, compare))

    def exchange(self, k: Expr) -> Stmt:
        """Swap row `k` with the chosen one, which flips the sign of the product."""
        m = self.matrix
        pivot = self.pivot[0]

        def entry(c: Expr) -> Stmt:
            return block(
                Store(self.held, self.zero, m[k, c]),
                Store(m, (k, c), m[pivot, c]),
                Store(m, (pivot, c), self.held[0]),
            )

        turn = Store(self.product, self.zero, -self.product[0])
        swap = self.nests.loop(self.size, entry)
        return If(pivot.ne(k), block(swap, turn), None)

    def eliminate(self, k: Expr) -> Stmt:
        """Clear column `k` below the pivot."""
        m = self.matrix
        pivot = m[k, k]

        def row(r: Expr) -> Stmt:
            def clear(c: Expr) -> Stmt:
                return Store(
                    m,
                    (r, c),
                    m[r, c] - self.held[0] * m[k, c],
                )

            factor = Store(self.held, self.zero, m[r, k] / pivot)
            clear_row = self.nests.loop(self.size, clear, "vector")
            below = (r > k) & pivot.ne(0)
            return If(below, block(factor, clear_row), None)

        times = Store(self.product, self.zero, self.product[0] * pivot)
        return block(self.nests.loop(self.size, row), times)


def _det(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    x = inputs[0]
    out = outputs[0]
    nests = LoopNests()
    e = _Elimination(nests, x)
    work = e.matrix.dtype

    def step(k: Expr) -> Stmt:
        return block(e.choose(k), e.exchange(k), e.eliminate(k))

    def one(*i: Expr) -> Stmt:
        def entry(r: Expr, c: Expr) -> Expr:
            return cast(x[(*i, r, c)], work)

        fill = nests.copy(e.matrix, entry)
        start = Store(e.product, e.zero, const(1, work))
        steps = nests.loop(e.size, step)
        result = Store(out, i, cast(e.product[0], out.dtype))
        body = block(fill, start, steps, result)
        for b in (e.matrix, e.product, e.pivot, e.held):
            body = Alloc(b, body)
        return body

    body = nests.rows(out.shape, e.size**3, one)
    return [kernel(op.name, inputs, outputs, body, nests.notes)]


def _det_arrays(op: OpCall, x: Array) -> list[Array]:
    found = np.asarray(np.linalg.det(widened(x)))
    return [found.astype(x.dtype)]


register(
    OpDef(
        "Det",
        _type,
        since=11,
        compute=_det,
        reference=_det_arrays,
        flops=lambda op: op.size(0) * op.shape(0)[-1] * 2 // 3,
    )
)
