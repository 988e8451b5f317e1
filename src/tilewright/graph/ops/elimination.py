"""Gaussian elimination with row exchanges (partial pivoting), as loops over one matrix.

Golub, Van Loan, "Matrix Computations", section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.nests import LoopNests
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.ops.sorting import allocated
from tilewright.loops.nodes import If, Stmt, Store, block


def square_shape(op: OpCall) -> tuple[int, ...]:
    """The shape of input 0. Raises ModelError unless it holds square matrices."""
    shape = op.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise op.error(f"{list(shape)} does not hold square matrices")
    return shape


class Elimination:
    """The statements for one matrix, in local buffers, with right-hand sides to its right.

    `sign` is that of the row exchanges; the pivots remain on the diagonal of `matrix`.
    """

    def __init__(
        self, nests: LoopNests, x: Buffer, sides: Buffer | None = None
    ) -> None:
        self.nests = nests
        self.inputs = (x, sides)
        self.size = x.shape[-1]
        self.columns = 0 if sides is None else sides.shape[-1]
        self.dtype = wide_dtype(x.dtype)
        width = self.size + self.columns
        shape = (max(self.size, 1), max(width, 1))
        self.matrix = Buffer("matrix", shape, self.dtype)
        self.local = [self.matrix]
        self.sign = self.cell("sign")
        self.held = self.cell("held")
        self.pivot = Buffer("pivot", (1,), INDEX)
        self.local.append(self.pivot)
        self.zero = (const(0),)

    def cell(self, name: str) -> Buffer:
        """A local variable in the type of the matrix."""
        made = Buffer(name, (1,), self.dtype)
        self.local.append(made)
        return made

    def around(self, i: Sequence[Expr], body: Stmt) -> Stmt:
        """The elimination of matrix `i` of the batch, and then `body`."""
        start = Store(self.sign, self.zero, const(1, self.dtype))
        steps = self.nests.loop(self.size, self._step)
        return allocated(self.local, block(self._fill(i), start, steps, body))

    def _fill(self, i: Sequence[Expr]) -> Stmt:
        x, sides = self.inputs

        def copied(source: Buffer, first: int) -> Stmt:
            def entry(r: Expr, c: Expr) -> Stmt:
                value = cast(source[(*i, r, c)], self.dtype)
                return Store(self.matrix, (r, c + first), value)

            return self.nests.over(source.shape[-2:], entry)

        left = copied(x, 0)
        return left if sides is None else block(left, copied(sides, self.size))

    def _step(self, k: Expr) -> Stmt:
        return block(self._choose(k), self._exchange(k), self._eliminate(k))

    def _choose(self, k: Expr) -> Stmt:
        """Choose the row from `k` on with the largest entry in column `k`."""
        m = self.matrix
        pivot = self.pivot[0]

        def compare(r: Expr) -> Stmt:
            size = call("abs", m[r, k])
            larger = (r > k) & (size > call("abs", m[pivot, k]))
            return Store(self.pivot, self.zero, Select(larger, r, pivot))

        first = Store(self.pivot, self.zero, k)
        return block(first, self.nests.loop(self.size, compare))

    def _exchange(self, k: Expr) -> Stmt:
        """Swap row `k` with the chosen one, which flips the sign."""
        m = self.matrix
        pivot = self.pivot[0]

        def entry(c: Expr) -> Stmt:
            return block(
                Store(self.held, self.zero, m[k, c]),
                Store(m, (k, c), m[pivot, c]),
                Store(m, (pivot, c), self.held[0]),
            )

        turn = Store(self.sign, self.zero, -self.sign[0])
        swap = self.nests.loop(self.size + self.columns, entry)
        return If(pivot.ne(k), block(swap, turn), None)

    def _eliminate(self, k: Expr) -> Stmt:
        """Clear column `k` below the pivot."""
        pivot = self.matrix[k, k]

        def row(r: Expr) -> Stmt:
            factor = self.matrix[r, k] / pivot
            clear = self.subtract(r, k, factor, 0)
            return If((r > k) & pivot.ne(0), clear, None)

        return self.nests.loop(self.size, row)

    def subtract(self, r: Expr, k: Expr, factor: Expr, first: int) -> Stmt:
        """From row `r`, subtract a multiple of row `k`, in the columns from `first` on."""
        m = self.matrix

        def entry(c: Expr) -> Stmt:
            at = c + first
            return Store(m, (r, at), m[r, at] - self.held[0] * m[k, at])

        width = self.size + self.columns - first
        hold = Store(self.held, self.zero, factor)
        return block(hold, self.nests.loop(width, entry, "vector"))
