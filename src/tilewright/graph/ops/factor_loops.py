"""Cholesky, LU and triangular solution as loops, for matrices too large to unroll their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.ops.nests import LoopNests, kernel
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.ops.sorting import allocated
from tilewright.loops.nodes import If, Kernel, Stmt, Store, block

Buffers = Sequence[Buffer]


def root(pivot: Expr) -> Expr:
    """The square root of a pivot; NaN if it is not positive."""
    return Select(pivot > 0, call("sqrt", pivot), const(np.nan, pivot.dtype))


class _InPlace:
    """A kernel that changes its result column by column, starting with a copy of an input."""

    def __init__(self, op: OpCall, inputs: Buffers, outputs: Buffers) -> None:
        self.op = op
        self.inputs = inputs
        self.out = outputs[0]
        self.size = inputs[0].shape[-1]
        self.width = self.out.shape[-1]
        self.nests = LoopNests()
        self.held = Buffer("held", (1,), self.out.dtype)
        self.column = Buffer("column", (max(self.size, 1),), self.out.dtype)

    def hold(self, value: Expr) -> Stmt:
        """Keep a number that changes before its last use."""
        return Store(self.held, (const(0),), value)

    def across(self, entry: Any) -> Stmt:
        """A statement for each column of a row."""
        return self.nests.loop(self.width, entry, "vector")

    def kernel(self, source: Buffer, step: Any, end: Any = None) -> list[Kernel]:
        """`step(i, k)` for each column k of each matrix i."""
        nests = self.nests

        def one(*i: Expr) -> Stmt:
            def entry(r: Expr, c: Expr) -> Stmt:
                return Store(self.out, (*i, r, c), source[(*i, r, c)])

            fill = nests.over(self.out.shape[-2:], entry, vector=True)
            steps = nests.loop(self.size, lambda k: step(i, k))
            last = [] if end is None else [end(i)]
            return allocated([self.held, self.column], block(fill, steps, *last))

        work = self.size**2 * self.width
        body = nests.rows(self.out.shape[:-2], work, one)
        made = kernel(self.op.name, self.inputs, [self.out], body, nests.notes)
        return [made]


def cholesky(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    """Column k, and its product with itself subtracted from the rest."""
    p = _InPlace(op, inputs, outputs)
    out, column, pivot = p.out, p.column, p.held[0]

    def step(i: Sequence[Expr], k: Expr) -> Stmt:
        def entry(r: Expr) -> Stmt:
            found = out[(*i, r, k)] / pivot
            below = Select(r > k, found, const(0, out.dtype))
            return Store(column, (r,), below)

        def put(r: Expr) -> Stmt:
            value = Select(r > k, column[r], out[(*i, r, k)])
            return Store(out, (*i, r, k), value)

        def update(r: Expr) -> Stmt:
            def subtract(c: Expr) -> Stmt:
                product = pivot * column[c]
                return Store(out, (*i, r, c), out[(*i, r, c)] - product)

            return If(r > k, block(p.hold(column[r]), p.across(subtract)), None)

        start = p.hold(root(out[(*i, k, k)]))
        diagonal = Store(out, (*i, k, k), pivot)
        loops = [p.nests.loop(p.size, part) for part in (entry, put, update)]
        return block(start, diagonal, *loops)

    def end(i: Sequence[Expr]) -> Stmt:
        def lower(r: Expr, c: Expr) -> Stmt:
            kept = Select(c > r, const(0, out.dtype), out[(*i, r, c)])
            return Store(out, (*i, r, c), kept)

        return p.nests.over((p.size, p.size), lower)

    return p.kernel(inputs[0], step, end)


def lu(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    """Column k of the lower factor, and its product with row k subtracted from the rest."""
    p = _InPlace(op, inputs, outputs)
    out, factor = p.out, p.held[0]

    def step(i: Sequence[Expr], k: Expr) -> Stmt:
        def update(r: Expr) -> Stmt:
            def subtract(c: Expr) -> Stmt:
                rest = out[(*i, r, c)] - factor * out[(*i, k, c)]
                right = Select(c > k, rest, out[(*i, r, c)])
                return Store(out, (*i, r, c), right)

            hold = p.hold(out[(*i, r, k)] / out[(*i, k, k)])
            put = Store(out, (*i, r, k), factor)
            return If(r > k, block(hold, put, p.across(subtract)), None)

        return p.nests.loop(p.size, update)

    return p.kernel(inputs[0], step)


def triangular(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
    entry: Any,
    backward: bool,
    unit: bool,
) -> list[Kernel]:
    """Row k of the solution, subtracted from the rows that follow it.

    entry: the element of the matrix at a point of the batch, a row and a column.
    """
    p = _InPlace(op, inputs, outputs)
    out, factor = p.out, p.held[0]

    def step(i: Sequence[Expr], t: Expr) -> Stmt:
        k = p.size - 1 - t if backward else t

        def divide(c: Expr) -> Stmt:
            return Store(out, (*i, k, c), out[(*i, k, c)] / factor)

        def update(r: Expr) -> Stmt:
            def subtract(c: Expr) -> Stmt:
                product = factor * out[(*i, k, c)]
                return Store(out, (*i, r, c), out[(*i, r, c)] - product)

            follows = r < k if backward else r > k
            hold = p.hold(entry(i, r, k))
            return If(follows, block(hold, p.across(subtract)), None)

        rest = p.nests.loop(p.size, update)
        if unit:
            return rest
        return block(p.hold(entry(i, k, k)), p.across(divide), rest)

    return p.kernel(inputs[1], step)
