"""Cholesky, LU and triangular solution of small matrices: operators of the domain `tilewright`.

Right-looking, column by column: step k takes the final entries from the remaining matrix and
updates the rest, which is one row smaller (for factorizations also one column). Golub, Van Loan,
"Matrix Computations", sections 3.1, 3.2 and 4.2. LU does not pivot, so it is for matrices that need
no pivoting, such as definite or diagonally dominant ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, Var, as_expr, call, const
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

DOMAIN = "tilewright"

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


def _cholesky_step(steps: _Steps, k: int, n: int, left: Buffer, out: Buffer) -> Buffer:
    """Column k of the factor, with zeros above its diagonal, and the remaining matrix."""
    column = steps.buffer(f"column{k}", n)

    def entry(b: Batch, row: Expr) -> Expr:
        pivot = call("sqrt", left[(*b, 0, 0)])
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


def _triangular(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    (a, left), (out,) = inputs, outputs
    upper, transposed, unit = _flags(op)
    steps = _Steps(op, a)
    n = a.shape[-1]

    def entry(b: Batch, i: Any, j: Any) -> Expr:
        return a[(*b, j, i) if transposed else (*b, i, j)]

    backward = upper != transposed
    for k in reversed(range(n)) if backward else range(n):
        left = _triangular_step(steps, k, left, out, entry, backward, unit)
    return steps.made


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


def _square(op: OpCall) -> None:
    shape = op.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 1:
        raise op.error(f"{list(shape)} does not hold square matrices")
    if op.dtype(0).name not in ("float32", "float64"):
        raise op.error(
            f"a matrix of {op.dtype(0).name}: only float32 and float64 are supported"
        )


def _factor_type(op: OpCall) -> Sequence[Type]:
    _square(op)
    return [(op.dtype(0), op.shape(0))]


def _triangular_type(op: OpCall) -> Sequence[Type]:
    _square(op)
    _flags(op)
    a = op.shape(0)
    b = op.shape(1)
    if len(b) != len(a) or b[:-1] != a[:-1]:
        expected = ", ".join(map(str, a[:-1]))
        raise op.error(
            f"right-hand sides {list(b)} for matrices {list(a)}: expected [{expected}, m]"
        )
    if op.dtype(1) is not op.dtype(0):
        raise op.error(
            f"right-hand sides of {op.dtype(1).name}, a matrix of {op.dtype(0).name}"
        )
    return [(op.dtype(1), b)]


def _flags(op: OpCall) -> tuple[bool, bool, bool]:
    """The attributes `upper`, `transpose` and `unit`; all are 0 by default."""
    found = []
    for name in ("upper", "transpose", "unit"):
        value = op.attr(name, 0)
        if value not in (0, 1):
            raise op.error(f"{name} is {value!r}, expected 0 or 1")
        found.append(bool(value))
    return found[0], found[1], found[2]


def _cholesky_arrays(op: OpCall, x: Array) -> list[Array]:
    return [
        np.linalg.cholesky(
            np.tril(x)
            + np.swapaxes(
                np.tril(x, -1),
                -1,
                -2,
            )
        ).astype(x.dtype)
    ]


def _lu_arrays(op: OpCall, x: Array) -> list[Array]:
    found = np.array(x)
    for k in range(x.shape[-1] - 1):
        found[..., k + 1 :, k] /= found[..., k, k, None]
        product = found[..., k + 1 :, k, None] * found[..., k, None, k + 1 :]
        found[..., k + 1 :, k + 1 :] -= product
    return [found]


def _triangular_arrays(op: OpCall, a: Array, b: Array) -> list[Array]:
    upper, transposed, unit = _flags(op)
    if upper:
        kept = np.triu(a, int(unit))
    else:
        kept = np.tril(a, -int(unit))
    if unit:
        kept = kept + np.eye(a.shape[-1], dtype=a.dtype)
    if transposed:
        kept = np.swapaxes(kept, -1, -2)
    return [np.linalg.solve(kept, b).astype(b.dtype)]


def _flops(op: OpCall) -> int:
    return op.size(0) * op.shape(0)[-1] // 3


def _triangular_flops(op: OpCall) -> int:
    return op.size(1) * op.shape(0)[-1]


_DEFINITIONS = (
    OpDef(
        "Cholesky",
        _factor_type,
        DOMAIN,
        compute=partial(_factored, step=_cholesky_step),
        reference=_cholesky_arrays,
        flops=_flops,
    ),
    OpDef(
        "LU",
        _factor_type,
        DOMAIN,
        compute=partial(_factored, step=_lu_step),
        reference=_lu_arrays,
        flops=lambda op: 2 * _flops(op),
    ),
    OpDef(
        "TriangularSolve",
        _triangular_type,
        DOMAIN,
        compute=_triangular,
        reference=_triangular_arrays,
        flops=_triangular_flops,
    ),
)

for definition in _DEFINITIONS:
    register(definition)
