"""Loops over one matrix in local memory: elimination with row exchanges, substitution, Cholesky.

Golub, Van Loan, "Matrix Computations", sections 3.1, 3.4 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.registry import OpCall
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, block
from tilewright.loops.sorting import allocated

Point = tuple[Expr, ...]


def root(pivot: Expr) -> Expr:
    """The square root of a pivot; NaN if it is not positive."""
    nan = const(np.nan, pivot.dtype)
    found = call("sqrt", pivot)
    return Select(pivot > 0, found, nan)


class LocalMatrix:
    """One matrix with right-hand sides to its right, for each matrix of a batch.

    columns: of the right-hand sides; fewer than 0 for a matrix with more rows than columns.
    """

    def __init__(self, x: Buffer, columns: int = 0) -> None:
        self.nests = LoopNests()
        self.batch = x.shape[:-2]
        self.size = x.shape[-2]
        self.columns = columns
        self.width = self.size + columns
        self.dtype = wide_dtype(x.dtype)
        self.zero = const(0, self.dtype)
        rows = max(self.size, 1)
        shape = (rows, max(self.width, 1))
        self.matrix = Buffer("matrix", shape, self.dtype)
        self.local = [self.matrix]
        self.held = self.cell("held")

    def cell(self, name: str) -> Buffer:
        """A local variable in the type of the matrix."""
        made = Buffer(name, (1,), self.dtype)
        self.local.append(made)
        return made

    def set(self, cell: Buffer, value: Expr) -> Stmt:
        """Assign a local variable."""
        return Store(cell, (const(0),), value)

    def kernel(
        self,
        op: OpCall,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer | None],
        one: Callable[[Point], Stmt],
    ) -> list[Kernel]:
        """The kernel that runs `one` for each matrix of the batch."""
        work = self.size**2 * max(self.width, 1)

        def each(*i: Expr) -> Stmt:
            body = one(i)
            return allocated(self.local, body)

        whole = self.nests.rows(self.batch, work, each)
        notes = self.nests.notes
        return [kernel(op.name, inputs, outputs, whole, notes)]

    def fill(
        self,
        i: Point,
        x: Buffer,
        first: int = 0,
        transposed: bool = False,
    ) -> Stmt:
        """Copy matrix `i` of `x` to the columns from `first` on."""

        def entry(r: Expr, c: Expr) -> Stmt:
            place = (r, c + first)
            source = (c, r) if transposed else (r, c)
            given = x[(*i, *source)]
            value = cast(given, self.dtype)
            return Store(self.matrix, place, value)

        extents = x.shape[-2:]
        return self.nests.over(extents, entry)

    def result(
        self,
        i: Point,
        out: Buffer,
        value: Callable[[Expr, Expr], Expr],
    ) -> Stmt:
        """Write matrix `i` of `out`."""

        def entry(r: Expr, c: Expr) -> Stmt:
            place = (*i, r, c)
            return Store(out, place, value(r, c))

        extents = out.shape[-2:]
        return self.nests.over(extents, entry)

    def change(
        self,
        r: Expr,
        first: int,
        factor: Expr,
        value: Callable[[Expr], Expr],
    ) -> Stmt:
        """Change row `r` in the columns from `first` on, with `factor` in `held`."""

        def entry(c: Expr) -> Stmt:
            at = c + first
            place = (r, at)
            return Store(self.matrix, place, value(at))

        count = self.width - first
        hold = self.set(self.held, factor)
        row = self.nests.loop(count, entry, "vector")
        return block(hold, row)

    def clear(
        self,
        k: Expr,
        factor: Callable[[Expr], Expr],
        first: int = 0,
        backward: bool = False,
        keep: bool = False,
    ) -> Stmt:
        """Subtract multiples of row `k` from the rows behind it, or from those before it.

        keep: leave the columns before `k`, and put the factors in column `k`.
        """
        m = self.matrix
        held = self.held[0]

        def row(r: Expr) -> Stmt:
            def rest(at: Expr) -> Expr:
                product = held * m[k, at]
                less = m[r, at] - product
                if not keep:
                    return less
                before = Select(at < k, m[r, at], held)
                return Select(at > k, less, before)

            follows = r < k if backward else r > k
            changed = self.change(r, first, factor(r), rest)
            return If(follows, changed, None)

        return self.nests.loop(self.size, row)

    def divide(self, k: Expr, divisor: Expr, first: int = 0) -> Stmt:
        """Divide row `k`, in the columns from `first` on."""
        held = self.held[0]

        def quotient(at: Expr) -> Expr:
            return self.matrix[k, at] / held

        return self.change(k, first, divisor, quotient)

    def substitute(self, backward: bool, unit: bool = False) -> Stmt:
        """Solve for the right-hand sides by the lower triangle, or backward by the upper one."""
        m = self.matrix
        first = self.size
        last = first - 1

        def step(t: Expr) -> Stmt:
            k = last - t if backward else t

            def factor(r: Expr) -> Expr:
                return m[r, k]

            rest = self.clear(k, factor, first, backward)
            if unit:
                return rest
            pivot = m[k, k]
            solved = self.divide(k, pivot, first)
            return block(solved, rest)

        return self.nests.loop(self.size, step)

    def cholesky(self) -> Stmt:
        """The upper factor of a symmetric matrix of which the upper triangle counts."""
        m = self.matrix

        def step(k: Expr) -> Stmt:
            def factor(r: Expr) -> Expr:
                return m[k, r]

            pivot = root(m[k, k])
            row = self.divide(k, pivot)
            rest = self.clear(k, factor)
            return block(row, rest)

        return self.nests.loop(self.size, step)


class Elimination(LocalMatrix):
    """Gaussian elimination with partial pivoting.

    `sign` is that of the row exchanges; the pivots remain on the diagonal of `matrix`.
    """

    def __init__(self, x: Buffer, columns: int = 0) -> None:
        super().__init__(x, columns)
        self.sign = self.cell("sign")
        self.pivot = Buffer("pivot", (1,), INDEX)
        self.local.append(self.pivot)

    def eliminate(
        self,
        chosen: Callable[[Expr], Stmt] | None = None,
        count: int | None = None,
    ) -> Stmt:
        """Clear what is below the diagonal.

        chosen: what to do with the pivot of a step. Then the factors of rows are kept below the
        diagonal, where they are those of the lower triangle. count: of the pivots, by default one
        for each row.
        """
        m = self.matrix
        one = const(1, self.dtype)

        def step(k: Expr) -> Stmt:
            pivot = m[k, k]

            def factor(r: Expr) -> Expr:
                quotient = m[r, k] / pivot
                zero = pivot.eq(0)  # then the column is clear
                return Select(zero, self.zero, quotient)

            choose = self._choose(k)
            exchange = self._exchange(k)
            clear = self.clear(k, factor, keep=chosen is not None)
            if chosen is None:
                return block(choose, exchange, clear)
            return block(choose, chosen(k), exchange, clear)

        start = self.set(self.sign, one)
        steps = self.nests.loop(self.size if count is None else count, step)
        return block(start, steps)

    def _choose(self, k: Expr) -> Stmt:
        """Choose the row from `k` on with the largest entry in column `k`."""
        m = self.matrix
        pivot = self.pivot[0]

        def compare(r: Expr) -> Stmt:
            size = call("abs", m[r, k])
            largest = call("abs", m[pivot, k])
            larger = (r > k) & (size > largest)
            better = Select(larger, r, pivot)
            return self.set(self.pivot, better)

        first = self.set(self.pivot, k)
        others = self.nests.loop(self.size, compare)
        return block(first, others)

    def _exchange(self, k: Expr) -> Stmt:
        """Swap row `k` with the chosen one, which flips the sign."""
        m = self.matrix
        pivot = self.pivot[0]

        def entry(c: Expr) -> Stmt:
            upper = (k, c)
            lower = (pivot, c)
            hold = self.set(self.held, m[upper])
            up = Store(m, upper, m[lower])
            down = Store(m, lower, self.held[0])
            return block(hold, up, down)

        sign = self.sign[0]
        turn = self.set(self.sign, -sign)
        swap = self.nests.loop(self.width, entry)
        both = block(swap, turn)
        return If(pivot.ne(k), both, None)
