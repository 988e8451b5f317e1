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
from tilewright.graph.ops.orthogonal import (
    ONE,
    ZERO,
    LocalColumns,
    Outputs,
    Point,
    Reflections,
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

    def __init__(
        self,
        x: Buffer,
    ) -> None:
        super().__init__(x)
        self.vectors = self.buffer(
            "vectors",
            self.count,
            self.count,
        )
        self.lengths = self.buffer("lengths", self.count)
        self.sine = self.cell("sine")
        self.cosine = self.cell("cosine")
        self.product = self.cell("product")
        self.finite = self.cell("finite")  # 0, or NaN
        self.best = Buffer(
            "best",
            (1,),
            INDEX,
        )
        self.sweep = Buffer(
            "sweep",
            (1,),
            INDEX,
        )
        self.rotated = Buffer(
            "rotated",
            (1,),
            INDEX,
        )
        self.local += [self.best, self.sweep, self.rotated]

    def start(
        self,
        i: Point,
        x: Buffer,
    ) -> Stmt:
        """Fill the columns and no rotation; look for entries that are not finite."""

        def unit(
            c: Expr,
            r: Expr,
        ) -> Stmt:
            return Store(
                self.vectors,
                (c, r),
                Select(
                    c.eq(r),
                    ONE,
                    ZERO,
                ),
            )

        def look(
            r: Expr,
            c: Expr,
        ) -> Stmt:
            lost = cast(x[(*i, r, c)], float64) * ZERO
            return self.set(self.finite, self.finite[0] + lost)

        return block(
            self.fill(i, x),
            self.nests.over(self.vectors.shape, unit),
            self.set(self.finite, ZERO),
            self.nests.over((self.rows, self.count), look),
        )

    def sweeps(
        self,
        pair: Callable[[Expr, Expr], Stmt],
    ) -> Stmt:
        """All pairs of columns in turn, until `pair` rotates none of them."""

        def one(
            p: Expr,
            q: Expr,
        ) -> Stmt:
            return If(
                q > p,
                pair(p, q),
                None,
            )

        again = both(self.rotated[0] > 0, self.sweep[0] < SWEEPS)
        every = block(
            Store(
                self.rotated,
                (const(0),),
                const(0),
            ),
            Store(
                self.sweep,
                (const(0),),
                self.sweep[0] + 1,
            ),
            self.nests.over((self.count, self.count), one),
        )
        return block(
            Store(
                self.rotated,
                (const(0),),
                const(1),
            ),
            Store(
                self.sweep,
                (const(0),),
                const(0),
            ),
            While(again, every),
        )

    def rotation(
        self,
        p: Expr,
        q: Expr,
        product: Expr,
    ) -> Stmt:
        """The sine and cosine by which a product of two columns becomes 0. p, q: of one with
        itself."""
        slope = (q - p) / (product * 2.0)
        size = call("abs", slope) + call("sqrt", slope * slope + ONE)
        tangent = (
            Select(
                slope < 0,
                -ONE,
                ONE,
            )
            / size
        )
        held = self.held[0]
        return block(
            Store(
                self.rotated,
                (const(0),),
                const(1),
            ),
            self.set(self.held, tangent),
            self.set(self.cosine, ONE / call("sqrt", held * held + ONE)),
            self.set(self.sine, self.cosine[0] * held),
        )

    def rotate(
        self,
        target: Buffer,
        p: Expr,
        q: Expr,
        along: int = 1,
    ) -> Stmt:
        """Rotate two rows of `target`, or two columns (`along` 0), of an array of columns."""
        sine, cosine, held = self.sine[0], self.cosine[0], self.held[0]

        def entry(n: Expr) -> Stmt:
            first, second = ((k, n) if along else (n, k) for k in (p, q))
            return block(
                self.set(self.held, target[first]),
                Store(
                    target,
                    first,
                    cosine * held - sine * target[second],
                ),
                Store(
                    target,
                    second,
                    sine * held + cosine * target[second],
                ),
            )

        return self.nests.loop(target.shape[along], entry)

    def sort(self, falling: bool, *moved: Buffer) -> Stmt:
        """Sort the lengths, and rows of arrays of columns with them; equal ones may change."""
        lengths, best, nests = self.lengths, self.best[0], self.nests

        def step(k: Expr) -> Stmt:
            def compare(c: Expr) -> Stmt:
                pair = (lengths[c], lengths[best])
                better = pair[0] > pair[1] if falling else pair[0] < pair[1]
                chosen = Select(
                    (c > k) & better,
                    c,
                    best,
                )
                return Store(
                    self.best,
                    (const(0),),
                    chosen,
                )

            swaps = [
                nests.loop(
                    b.shape[1],
                    lambda n, b=b: self._swap(
                        b,
                        (k, n),
                        (best, n),
                    ),
                )
                for b in moved
            ]
            swap = block(
                self._swap(
                    lengths,
                    (k,),
                    (best,),
                ),
                *swaps,
            )
            first = Store(
                self.best,
                (const(0),),
                k,
            )
            return block(
                first,
                nests.loop(self.count, compare),
                swap,
            )

        return nests.loop(self.count, step)

    def values(
        self,
        i: Point,
        out: Buffer | None,
    ) -> Stmt:
        """Write the lengths in the scale of the matrix, if they are wanted; NaN if it is lost."""
        if out is None:
            return block()

        def value(k: Expr) -> Stmt:
            found = self.lengths[k] * self.scale[0] + self.finite[0]
            return Store(
                out,
                (*i, k),
                cast(found, out.dtype),
            )

        return self.nests.loop(self.count, value)

    def _swap(
        self,
        target: Buffer,
        a: Point,
        b: Point,
    ) -> Stmt:
        return block(
            self.set(self.held, target[a]),
            Store(
                target,
                a,
                target[b],
            ),
            Store(
                target,
                b,
                self.held[0],
            ),
        )


def _orthogonalized(m: JacobiColumns) -> Stmt:
    """Rotate the columns until all are orthogonal, and sort them by falling lengths."""
    columns = m.columns
    p_length, q_length, product = m.held[0], m.other[0], m.product[0]
    smallest = const(_EPSILON * max(m.rows, 1) ** 0.5, float64)

    def dot(
        cell: Buffer,
        a: Expr,
        b: Expr,
    ) -> Stmt:
        return m.sum(cell, m.rows, lambda r: columns[a, r] * columns[b, r])

    def pair(
        p: Expr,
        q: Expr,
    ) -> Stmt:
        lengths = call("sqrt", p_length) * call("sqrt", q_length)
        rotation = block(
            m.rotation(p_length, q_length, product),
            m.rotate(columns, p, q),
            m.rotate(m.vectors, p, q),
        )
        return block(
            dot(m.held, p, p),
            dot(m.other, q, q),
            dot(m.product, p, q),
            If(call("abs", product) > smallest * lengths, rotation, None),
        )

    def length(c: Expr) -> Stmt:
        found = call("sqrt", m.held[0])
        return block(dot(m.held, c, c), Store(m.lengths, (c,), found))

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


def _svd(
    op: OpCall,
    inputs: Buffers,
    outputs: Outputs,
) -> list[Kernel]:
    """The left vectors by columns, the singular values, and the right vectors by rows."""
    (x,) = inputs
    left, values, right = outputs
    m = JacobiColumns(x)
    h = Reflections(m, m.rows if flag(op, "full") else m.count)
    lost = m.finite[0]

    def keep(k: Expr) -> Stmt:
        """The signs of the reflected columns."""
        return Store(m.lengths, (k,), Select(m.columns[k, k] < 0, -ONE, ONE))

    def signed(
        r: Expr,
        c: Expr,
    ) -> Expr:
        behind = c >= m.count
        within = Select(behind, const(0), c)
        sign = Select(behind, ONE, m.lengths[within])
        return h.turned[c, r] * sign + lost

    def one(i: Point) -> Stmt:
        steps = [m.start(i, x), _orthogonalized(m), m.values(i, values)]
        steps.append(m.result(i, right, lambda r, c: m.vectors[r, c] + lost))
        if left is not None:
            steps += [h.reflect(), m.nests.loop(m.count, keep), h.orthogonal()]
            steps.append(m.result(i, left, signed))
        return block(*steps)

    return m.kernel(op, inputs, outputs, one)


def _eigen_types(op: OpCall) -> Sequence[Type]:
    matrices(op)
    return [(op.dtype(0), op.shape(0)[:-1]), (op.dtype(0), op.shape(0))]


def _eigen(
    op: OpCall,
    inputs: Buffers,
    outputs: Outputs,
) -> list[Kernel]:
    """The eigenvalues, rising, and the vectors by columns."""
    (x,) = inputs
    values, vectors = outputs
    m = JacobiColumns(x)
    a, lost = m.columns, m.finite[0]
    smallest = const(_EPSILON / 4, float64)  # of entries that are at most 1

    def pair(
        p: Expr,
        q: Expr,
    ) -> Stmt:
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

    def one(i: Point) -> Stmt:
        steps = [
            m.start(i, x),
            m.sweeps(pair),
            m.nests.loop(m.count, length),
            m.sort(False, m.vectors),
        ]
        steps.append(m.values(i, values))
        steps.append(m.result(i, vectors, lambda r, c: m.vectors[c, r] + lost))
        return block(*steps)

    return m.kernel(op, inputs, outputs, one)


def _flops(op: OpCall) -> int:
    """Of 8 sweeps, with 6 sums or products for each entry of a pair."""
    _, rows, columns = rectangles(op)
    return 8 * 6 * op.size(0) * (columns + rows) // 2


_DEFINITIONS = (
    OpDef("SVD", _svd_types, DOMAIN, compute=_svd, flops=_flops),
    OpDef("SymmetricEigen", _eigen_types, DOMAIN, compute=_eigen, flops=_flops),
)

for definition in _DEFINITIONS:
    register(definition)
