"""Singular values and vectors, and eigenvalues of symmetric matrices; operators of `tilewright`.

`SVD` rotates pairs of columns until all are orthogonal (one-sided Jacobi: Golub, Van Loan, "Matrix
Computations", section 8.6.3); their lengths are the singular values, and reflections give the left
vectors, of zero columns as well. `SymmetricEigen` rotates rows and columns until nothing is left
beside the diagonal (section 8.5). Both work in float64. A vector's sign is arbitrary. If an entry
is not finite, all results are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tilewright.base.dtypes import float64
from tilewright.compute.build import cast
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, call, const
from tilewright.graph.ops.factor_gradient import eigen_gradient, svd_gradient
from tilewright.graph.ops.orthogonal import (
    ONE,
    ZERO,
    LocalColumns,
    Outputs,
    Point,
    Reflections,
    all_results,
    flag,
    rectangles,
)
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.solve import DOMAIN, matrices
from tilewright.loops.nodes import If, Kernel, Stmt, Store, While, block
from tilewright.loops.sorting import both

Buffers = Sequence[Buffer]

SWEEPS: Final = 30  # over all pairs, at most, as in LAPACK's gesvj; 6 to 10 are usual
_EPSILON: Final = float(np.finfo(np.float64).eps)


class JacobiColumns(LocalColumns):
    """Columns that are rotated in pairs, with the product of all rotations, by columns."""

    def __init__(self, x: Buffer) -> None:
        super().__init__(x)
        self.vectors = self.buffer("vectors", self.count, self.count)
        self.lengths = self.buffer("lengths", self.count)
        self.sine = self.cell("sine")
        self.cosine = self.cell("cosine")
        self.product = self.cell("product")
        self.finite = self.cell("finite")  # 0, or NaN
        self.best = self.index("best")
        self.sweep = self.index("sweep")
        self.rotated = self.index("rotated")

    def index(self, name: str) -> Buffer:
        """A local variable that counts."""
        made = Buffer(name, (1,), INDEX)
        self.local.append(made)
        return made

    def start(self, i: Point, x: Buffer) -> Stmt:
        """Fill the columns and no rotation; look for entries that are not finite."""

        def look(r: Expr, c: Expr) -> Stmt:
            lost = cast(x[(*i, r, c)], float64) * ZERO
            return self.set(self.finite, self.finite[0] + lost)

        return block(
            self.fill(i, x),
            self.unit(self.vectors, self.vectors.shape),
            self.set(self.finite, ZERO),
            self.nests.over((self.rows, self.count), look),
        )

    def sweeps(self, pair: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """All pairs of columns in turn, until `pair` rotates none of them."""

        def one(p: Expr, q: Expr) -> Stmt:
            return If(q > p, pair(p, q), None)

        again = both(self.rotated[0] > 0, self.sweep[0] < SWEEPS)
        every = block(
            self.set(self.rotated, const(0)),
            self.set(self.sweep, self.sweep[0] + 1),
            self.nests.over((self.count, self.count), one),
        )
        return block(
            self.set(self.rotated, const(1)),
            self.set(self.sweep, const(0)),
            While(again, every),
        )

    def rotation(self, p: Expr, q: Expr, product: Expr) -> Stmt:
        """The sine and cosine by which a product of two columns becomes 0. p, q: of one with
        itself."""
        slope = (q - p) / (product * 2.0)
        size = call("abs", slope) + _hypotenuse(slope)
        held = self.held[0]
        return block(
            self.set(self.rotated, const(1)),
            self.set(self.held, _sign(slope) / size),
            self.set(self.cosine, ONE / _hypotenuse(held)),
            self.set(self.sine, self.cosine[0] * held),
        )

    def rotate(self, target: Buffer, p: Expr, q: Expr, along: int = 1) -> Stmt:
        """Rotate two rows of `target`, or two columns (`along` 0), of an array of columns."""
        sine = self.sine[0]
        cosine = self.cosine[0]
        held = self.held[0]

        def entry(n: Expr) -> Stmt:
            first = (p, n) if along else (n, p)
            second = (q, n) if along else (n, q)
            other = target[second]
            return block(
                self.set(self.held, target[first]),
                Store(target, first, cosine * held - sine * other),
                Store(target, second, sine * held + cosine * other),
            )

        return self.nests.loop(target.shape[along], entry)

    def sort(self, falling: bool, *moved: Buffer) -> Stmt:
        """Sort the lengths, and rows of arrays of columns with them; equal ones may change."""
        lengths = self.lengths
        best = self.best[0]

        def step(k: Expr) -> Stmt:
            def compare(c: Expr) -> Stmt:
                this = lengths[c]
                that = lengths[best]
                better = this > that if falling else this < that
                chosen = Select((c > k) & better, c, best)
                return self.set(self.best, chosen)

            swaps = [self._swap_rows(target, k, best) for target in moved]
            return block(
                self.set(self.best, k),
                self.nests.loop(self.count, compare),
                self._swap(lengths, (k,), (best,)),
                *swaps,
            )

        return self.nests.loop(self.count, step)

    def values(self, i: Point, out: Buffer | None) -> Stmt:
        """Write the lengths in the scale of the matrix, if they are wanted; NaN if it is lost."""
        if out is None:
            return block()

        def value(k: Expr) -> Stmt:
            found = self.lengths[k] * self.scale[0] + self.finite[0]
            rounded = cast(found, out.dtype)
            return Store(out, (*i, k), rounded)

        return self.nests.loop(self.count, value)

    def _swap_rows(self, target: Buffer, a: Expr, b: Expr) -> Stmt:
        def entry(n: Expr) -> Stmt:
            return self._swap(target, (a, n), (b, n))

        return self.nests.loop(target.shape[1], entry)

    def _swap(self, target: Buffer, a: Point, b: Point) -> Stmt:
        return block(
            self.set(self.held, target[a]),
            Store(target, a, target[b]),
            Store(target, b, self.held[0]),
        )


def _sign(x: Expr) -> Expr:
    """-1 or 1."""
    return Select(x < 0, -ONE, ONE)


def _hypotenuse(x: Expr) -> Expr:
    """Of the right triangle with legs `x` and 1."""
    return call("sqrt", x * x + ONE)


def _orthogonalized(m: JacobiColumns) -> Stmt:
    """Rotate the columns until all are orthogonal, and sort them by falling lengths."""
    columns = m.columns
    p_length = m.held[0]
    q_length = m.other[0]
    product = m.product[0]
    smallest = const(_EPSILON * max(m.rows, 1) ** 0.5, float64)

    def dot(cell: Buffer, a: Expr, b: Expr) -> Stmt:
        def term(r: Expr) -> Expr:
            return columns[a, r] * columns[b, r]

        return m.sum(cell, m.rows, term)

    def pair(p: Expr, q: Expr) -> Stmt:
        lengths = call("sqrt", p_length) * call("sqrt", q_length)
        rotation = block(
            m.rotation(p_length, q_length, product),
            m.rotate(columns, p, q),
            m.rotate(m.vectors, p, q),
        )
        is_large = call("abs", product) > smallest * lengths
        return block(
            dot(m.held, p, p),
            dot(m.other, q, q),
            dot(m.product, p, q),
            If(is_large, rotation, None),
        )

    def length(c: Expr) -> Stmt:
        square = dot(m.held, c, c)
        found = call("sqrt", m.held[0])
        return block(square, Store(m.lengths, (c,), found))

    return block(
        m.sweeps(pair),
        m.nests.loop(m.count, length),
        m.sort(True, columns, m.vectors),
    )


def _svd_types(op: OpCall) -> Sequence[Type]:
    batch, rows, columns = rectangles(op)
    if rows < columns:
        raise op.error(f"{rows} rows for {columns} columns: transpose the matrices")
    dtype = op.dtype(0)
    width = rows if flag(op, "full") else columns
    return [
        (dtype, (*batch, rows, width)),
        (dtype, (*batch, columns)),
        (dtype, (*batch, columns, columns)),
    ]


def _svd(op: OpCall, inputs: Buffers, outputs: Outputs) -> list[Kernel]:
    """The left vectors by columns, the singular values, and the right vectors by rows."""
    (x,) = inputs
    left, values, right = all_results(outputs, 3)
    m = JacobiColumns(x)
    h = Reflections(m, m.rows if flag(op, "full") else m.count)
    lost = m.finite[0]

    def keep(k: Expr) -> Stmt:
        """The signs of the reflected columns."""
        sign = _sign(m.columns[k, k])
        return Store(m.lengths, (k,), sign)

    def signed(r: Expr, c: Expr) -> Expr:
        behind = c >= m.count
        within = Select(behind, const(0), c)
        sign = Select(behind, ONE, m.lengths[within])
        return h.turned[c, r] * sign + lost

    def by_rows(r: Expr, c: Expr) -> Expr:
        return m.vectors[r, c] + lost

    def one(i: Point) -> Stmt:
        steps = [
            m.start(i, x),
            _orthogonalized(m),
            m.values(i, values),
            m.result(i, right, by_rows),
        ]
        if left is not None:
            steps += [
                h.reflect(),
                m.nests.loop(m.count, keep),
                h.orthogonal(),
                m.result(i, left, signed),
            ]
        return block(*steps)

    return m.kernel(op, inputs, outputs, one)


def _eigen_types(op: OpCall) -> Sequence[Type]:
    matrices(op)
    dtype = op.dtype(0)
    shape = op.shape(0)
    return [(dtype, shape[:-1]), (dtype, shape)]


def _eigen(op: OpCall, inputs: Buffers, outputs: Outputs) -> list[Kernel]:
    """The eigenvalues, rising, and the vectors by columns."""
    (x,) = inputs
    values, vectors = all_results(outputs, 2)
    m = JacobiColumns(x)
    a = m.columns
    smallest = const(_EPSILON / 4, float64)  # of entries that are at most 1

    def pair(p: Expr, q: Expr) -> Stmt:
        rotation = block(
            m.rotation(a[p, p], a[q, q], a[p, q]),
            m.rotate(a, p, q),
            m.rotate(a, p, q, along=0),
            m.rotate(m.vectors, p, q),
            Store(a, (p, q), ZERO),
            Store(a, (q, p), ZERO),
        )
        return If(call("abs", a[p, q]) > smallest, rotation, None)

    def length(c: Expr) -> Stmt:
        return Store(m.lengths, (c,), a[c, c])

    def by_columns(r: Expr, c: Expr) -> Expr:
        return m.vectors[c, r] + m.finite[0]

    def one(i: Point) -> Stmt:
        return block(
            m.start(i, x),
            m.sweeps(pair),
            m.nests.loop(m.count, length),
            m.sort(False, m.vectors),
            m.values(i, values),
            m.result(i, vectors, by_columns),
        )

    return m.kernel(op, inputs, outputs, one)


def _flops(op: OpCall) -> int:
    """Of 8 sweeps, with 6 sums or products for each entry of a pair."""
    _, rows, columns = rectangles(op)
    return 8 * 6 * op.size(0) * (columns + rows) // 2


_DEFINITIONS = (
    OpDef(
        "SVD",
        _svd_types,
        DOMAIN,
        compute=_svd,
        flops=_flops,
        gradient=svd_gradient,
    ),
    OpDef(
        "SymmetricEigen",
        _eigen_types,
        DOMAIN,
        compute=_eigen,
        flops=_flops,
        gradient=eigen_gradient,
    ),
)

for definition in _DEFINITIONS:
    register(definition)
