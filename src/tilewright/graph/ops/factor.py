"""Cholesky, LU and triangular solution of small matrices: operators of the domain `tilewright`.

Right-looking, column by column: step k takes the final entries from the remaining matrix and
updates the rest, which is one row smaller (for factorizations also one column). Golub, Van Loan,
"Matrix Computations", sections 3.1, 3.2 and 4.2. LU does not pivot, so it is for matrices that need
no pivoting, such as definite or diagonally dominant ones. The columns of small matrices are
unrolled; larger ones take loops, but for LU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, Var, as_expr, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward, extents, turned
from tilewright.graph.ops.elimination import LocalMatrix, Point, root
from tilewright.graph.ops.factor_gradient import by_triangle, lu_gradient
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import (
    Array,
    OpCall,
    OpDef,
    Program,
    Type,
    register,
)
from tilewright.graph.ops.solve import DOMAIN, matrices, right_sides
from tilewright.loops.nodes import Stmt, block

UNROLLED: Final = 16  # rows of the largest matrix whose columns are unrolled

Buffers = Sequence[Buffer]
Batch = tuple[Expr, ...]


class _Steps:
    """The Computations of an operator on matrices, all over the same batch dimensions."""

    def __init__(self, op: OpCall, x: Buffer) -> None:
        self.prefix = op.name
        self.batch = x.shape[:-2]
        self.dtype = x.dtype
        self.made: list[Computation] = []

    def buffer(self, name: str, *shape: int) -> Buffer:
        """An intermediate tensor with one element of this shape per matrix."""
        return Buffer(f"{self.prefix}_{name}", (*self.batch, *shape), self.dtype)

    def add(
        self,
        name: str,
        extents: tuple[int, ...],
        value: Callable[..., Expr],
        *places: tuple[Buffer, Callable[..., tuple[Any, ...]]],
    ) -> None:
        """`tensor[b, place(i...)] = value(b, i...)` for each of the places, for i below extents."""
        batch = len(self.batch)
        dims = tuple(
            Dim(
                Var(f"i{n}", INDEX),
                e,
                CC,
            )
            for n, e in enumerate((*self.batch, *extents))
        )
        point = tuple(d.var for d in dims)
        b = point[:batch]
        rest = point[batch:]
        outputs = tuple(
            Output(
                tensor,
                (*b, *(as_expr(i, INDEX) for i in place(*rest))),
                value(b, *rest),
            )
            for tensor, place in places
        )
        self.made.append(Computation(f"{self.prefix}_{name}", dims, outputs))

    def update(
        self,
        k: int,
        left: Buffer,
        first: tuple[int, int],
        extents: tuple[int, int],
        product: Callable[[Batch, Expr, Expr], Expr],
    ) -> Buffer:
        """The part of `left` from `first` on, minus a product: what remains after step k."""
        rest = self.buffer(f"rest{k}", *extents)
        first_row, first_col = first

        def value(b: Batch, row: Expr, col: Expr) -> Expr:
            entry = left[(*b, row + first_row, col + first_col)]
            return entry - product(b, row, col)

        self.add(f"update{k}", extents, value, (rest, lambda row, col: (row, col)))
        return rest


# (all steps, number of the step, number of steps, remaining matrix, result) -> new remaining matrix
Step = Callable[[_Steps, int, int, Buffer, Buffer], Buffer]


def _factored(
    op: OpCall, inputs: Buffers, outputs: Buffers, step: Step
) -> list[Computation]:
    """Fill the result by one step per column, each leaving a smaller matrix."""
    steps = _Steps(op, inputs[0])
    left = inputs[0]
    n = left.shape[-1]
    for k in range(n):
        left = step(steps, k, n, left, outputs[0])
    return steps.made


def _unrolled(n: int) -> bool:
    return 0 < n <= UNROLLED


def _cholesky(op: OpCall, inputs: Buffers, outputs: Buffers) -> Program:
    x = inputs[0]
    if _unrolled(x.shape[-1]):
        return _factored(op, inputs, outputs, _cholesky_step)
    m = LocalMatrix(x)

    def one(i: Point) -> Stmt:
        def lower(r: Expr, c: Expr) -> Expr:
            found = m.matrix[c, r]
            return Select(c > r, m.zero, found)

        fill = m.fill(i, x, transposed=True)
        result = m.result(i, outputs[0], lower)
        return block(fill, m.cholesky(), result)

    return m.kernel(op, inputs, outputs, one)


def _cholesky_step(steps: _Steps, k: int, n: int, left: Buffer, out: Buffer) -> Buffer:
    """Column k of the factor, with zeros above its diagonal, and the remaining matrix."""
    column = steps.buffer(f"column{k}", n)

    def entry(b: Batch, row: Expr) -> Expr:
        pivot = root(left[(*b, 0, 0)])
        found = left[(*b, row - k, 0)] / pivot
        return Select(
            row >= k,
            found,
            const(0, left.dtype),
        )

    def product(b: Batch, row: Expr, col: Expr) -> Expr:
        down = column[(*b, row + k + 1)]
        across = column[(*b, col + k + 1)]
        return down * across

    places = ((column, lambda row: (row,)), (out, lambda row: (row, k)))
    steps.add(f"pivot{k}", (n,), entry, *places)
    size = n - k - 1
    if size:
        return steps.update(k, left, (1, 1), (size, size), product)
    return left


def _lu_step(steps: _Steps, k: int, n: int, left: Buffer, out: Buffer) -> Buffer:
    """Row k of the upper factor, column k of the lower one, and the remaining matrix."""

    def upper(b: Batch, col: Expr) -> Expr:
        return left[(*b, 0, col)]

    steps.add(f"row{k}", (n - k,), upper, (out, lambda col: (k, col + k)))
    size = n - k - 1
    if not size:
        return left
    column = steps.buffer(f"column{k}", size)

    def entry(b: Batch, row: Expr) -> Expr:
        return left[(*b, row + 1, 0)] / left[(*b, 0, 0)]

    def product(b: Batch, row: Expr, col: Expr) -> Expr:
        return column[(*b, row)] * left[(*b, 0, col + 1)]

    places = (column, lambda row: (row,)), (out, lambda row: (row + k + 1, k))
    steps.add(f"pivot{k}", (size,), entry, *places)
    return steps.update(k, left, (1, 1), (size, size), product)


def _triangular(op: OpCall, inputs: Buffers, outputs: Buffers) -> Program:
    (a, left), (out,) = inputs, outputs
    upper, transposed, unit = _flags(op)
    steps = _Steps(op, a)
    n = a.shape[-1]

    def entry(b: Batch, i: Any, j: Any) -> Expr:
        return a[(*b, j, i) if transposed else (*b, i, j)]

    backward = upper != transposed
    if not _unrolled(n):
        return _substituted(op, inputs, outputs)
    for k in reversed(range(n)) if backward else range(n):
        left = _triangular_step(steps, k, left, out, entry, backward, unit)
    return steps.made


def _substituted(op: OpCall, inputs: Buffers, outputs: Buffers) -> Program:
    """The same in loops."""
    a, b = inputs
    upper, transposed, unit = _flags(op)
    backward = upper != transposed
    m = LocalMatrix(a, b.shape[-1])

    def one(i: Point) -> Stmt:
        def solved(r: Expr, c: Expr) -> Expr:
            return m.matrix[r, c + m.size]

        return block(
            m.fill(i, a, transposed=transposed),
            m.fill(i, b, m.size),
            m.substitute(backward, unit),
            m.result(i, outputs[0], solved),
        )

    return m.kernel(op, inputs, outputs, one)


def _triangular_step(
    steps: _Steps,
    k: int,
    left: Buffer,
    out: Buffer,
    entry: Callable[[Batch, Any, Any], Expr],
    backward: bool,
    unit: bool,
) -> Buffer:
    """Row k of the solution, and the remaining right-hand sides.

    Row k is the first of the remaining rows going forward, the last going backward.
    """
    *_, size, m = left.shape
    solved, first, below = (k, 0, 0) if backward else (0, 1, k + 1)
    row = steps.buffer(f"row{k}", m)

    def solution(b: Batch, col: Expr) -> Expr:
        right = left[(*b, solved, col)]
        return right if unit else right / entry(b, k, k)

    def product(b: Batch, i: Expr, col: Expr) -> Expr:
        return entry(b, i + below, k) * row[(*b, col)]

    steps.add(
        f"solve{k}",
        (m,),
        solution,
        (row, lambda col: (col,)),
        (out, lambda col: (k, col)),
    )
    if size > 1:
        return steps.update(k, left, (first, 0), (size - 1, m), product)
    return left


def _factor_type(op: OpCall) -> Sequence[Type]:
    matrices(op)
    return [(op.dtype(0), op.shape(0))]


def _triangular_type(op: OpCall) -> Sequence[Type]:
    matrices(op)
    _flags(op)
    return [right_sides(op)]


def _flags(op: OpCall) -> tuple[bool, bool, bool]:
    """The attributes `upper`, `transpose` and `unit`; all are 0 by default."""
    found = []
    for name in ("upper", "transpose", "unit"):
        value = op.attr(name, 0)
        if value not in (0, 1):
            raise op.error(f"{name} is {value!r}, expected 0 or 1")
        found.append(bool(value))
    return found[0], found[1], found[2]


def _lu_arrays(op: OpCall, x: Array) -> list[Array]:
    found = np.array(x)
    for k in range(x.shape[-1] - 1):
        found[..., k + 1 :, k] /= found[..., k, k, None]
        product = found[..., k + 1 :, k, None] * found[..., k, None, k + 1 :]
        found[..., k + 1 :, k + 1 :] -= product
    return [found]


def _cholesky_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """Symmetric, for a factorization of symmetric matrices.

    Murray, "Differentiation of the Cholesky decomposition" (2016), equation 10.
    """
    n = extents(y)[-1]
    product = f.term(turned(f, y)).op("MatMul", g)
    kept = np.tri(n) - np.eye(n) / 2
    rows = product * f.constant(kept / 2, y.dtype)
    left = by_triangle(f, y, rows.value, transpose=1)
    half = by_triangle(f, y, turned(f, left), transpose=1)
    both = f.term(half) + turned(f, half)
    return [both.value]


def _triangular_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """By the right-hand sides, the solution of the transposed system."""
    upper, transposed, unit = _flags(call)
    flags = {"upper": int(upper), "unit": int(unit)}
    by_b = by_triangle(f, x[0], g, transpose=int(not transposed), **flags)
    left, right = (y, by_b) if transposed else (by_b, y)
    product = f.term(left).op("MatMul", turned(f, right))
    first = int(unit) if upper else -int(unit)
    start = f.constant(first, int64)
    by_matrix = (-product).op("Trilu", start, upper=int(upper))
    return [by_matrix.value, by_b]


def _flops(op: OpCall) -> int:
    return op.size(0) * op.shape(0)[-1] // 3


def _triangular_flops(op: OpCall) -> int:
    return op.size(1) * op.shape(0)[-1]


_DEFINITIONS = (
    OpDef(
        "Cholesky",
        _factor_type,
        DOMAIN,
        compute=_cholesky,
        flops=_flops,
        gradient=_cholesky_gradient,
    ),
    OpDef(
        "LU",
        _factor_type,
        DOMAIN,
        compute=partial(_factored, step=_lu_step),
        reference=_lu_arrays,
        flops=lambda op: 2 * _flops(op),
        gradient=lu_gradient,
    ),
    OpDef(
        "TriangularSolve",
        _triangular_type,
        DOMAIN,
        compute=_triangular,
        flops=_triangular_flops,
        gradient=_triangular_gradient,
    ),
)

for definition in _DEFINITIONS:
    register(definition)
