"""Cholesky and LU of small matrices, column by column: operators of the domain `tilewright`.

Right-looking: step k takes the first row and column of what is left of the matrix, and updates the
rest, one row and column smaller. Golub, Van Loan, "Matrix Computations", sections 3.2 and 4.2. No
rows are exchanged: LU is for matrices that need none, definite or diagonally dominant ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation, Output
from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

DOMAIN = "tilewright"

Buffers = Sequence[Buffer]


def _type(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 1:
        raise op.error(f"{list(shape)} holds no square matrices")
    if op.dtype(0).name not in ("float32", "float64"):
        raise op.error(f"a matrix of {op.dtype(0).name}: float32 or float64 is factorised")
    return [(op.dtype(0), shape)]


def _rest(x: Buffer, k: int) -> Buffer:
    """What is left of the matrix before step k."""
    size = x.shape[-1] - k
    return x if k == 0 else Buffer(f"{x.name}_rest{k}", (*x.shape[:-2], size, size), x.dtype)


def _also(c: Computation, out: Buffer, place: Any) -> Computation:
    """`c` with its value in a second tensor too, at `place(i...)`."""
    (o,) = c.outputs
    second = Output(out, tuple(place(*(d.var for d in c.dims))), o.value)
    return Computation(c.name, c.dims, (o, second), c.reducer)


def _cholesky(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out = inputs[0], outputs[0]
    batch, n = x.shape[:-2], x.shape[-1]
    steps = []
    rest = x
    for k in range(n):
        column = Buffer(f"{op.name}_column{k}", (*batch, n), x.dtype)
        left = rest

        def entry(*i: Expr, k: int = k, left: Buffer = left) -> Expr:
            *b, row = i
            root = call("sqrt", left[(*b, 0, 0)])
            below = Select(row >= k, left[(*b, row - k, 0)], const(0, x.dtype))
            return Select(row >= k, below / root, const(0, x.dtype))

        found = map_(f"{op.name}_pivot{k}", column, entry)
        steps.append(_also(found, out, lambda *i, k=k: (*i, const(k))))
        if k + 1 < n:
            rest = _rest(x, k + 1)

            def update(*i: Expr, k: int = k, left: Buffer = left, column: Buffer = column) -> Expr:
                *b, row, col = i
                product = column[(*b, row + k + 1)] * column[(*b, col + k + 1)]
                return left[(*b, row + 1, col + 1)] - product

            steps.append(map_(f"{op.name}_update{k}", rest, update))
    return steps


def _lu(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out = inputs[0], outputs[0]
    batch, n = x.shape[:-2], x.shape[-1]
    steps = []
    rest = x
    for k in range(n):
        left = rest

        def upper(*i: Expr, left: Buffer = left) -> Expr:
            *b, col = i
            return left[(*b, 0, col)]

        extents = (*batch, n - k)
        steps.append(
            map_(
                f"{op.name}_row{k}",
                out,
                upper,
                extents=extents,
                index=lambda *i, k=k: (*i[:-1], k, i[-1] + k),
            )
        )
        if k + 1 == n:
            break
        column = Buffer(f"{op.name}_column{k}", (*batch, n - k - 1), x.dtype)

        def entry(*i: Expr, left: Buffer = left) -> Expr:
            *b, row = i
            return left[(*b, row + 1, 0)] / left[(*b, 0, 0)]

        found = map_(f"{op.name}_pivot{k}", column, entry)
        steps.append(_also(found, out, lambda *i, k=k: (*i[:-1], i[-1] + k + 1, const(k))))
        rest = _rest(x, k + 1)

        def update(*i: Expr, left: Buffer = left, column: Buffer = column) -> Expr:
            *b, row, col = i
            return left[(*b, row + 1, col + 1)] - column[(*b, row)] * left[(*b, 0, col + 1)]

        steps.append(map_(f"{op.name}_update{k}", rest, update))
    return steps


def _cholesky_arrays(op: OpCall, x: Array) -> list[Array]:
    return [np.linalg.cholesky(np.tril(x) + np.swapaxes(np.tril(x, -1), -1, -2)).astype(x.dtype)]


def _lu_arrays(op: OpCall, x: Array) -> list[Array]:
    found = np.array(x)
    for k in range(x.shape[-1] - 1):
        found[..., k + 1 :, k] /= found[..., k, k, None]
        product = found[..., k + 1 :, k, None] * found[..., k, None, k + 1 :]
        found[..., k + 1 :, k + 1 :] -= product
    return [found]


def _flops(op: OpCall) -> int:
    return op.size(0) * op.shape(0)[-1] // 3


register(
    OpDef(
        "Cholesky",
        _type,
        DOMAIN,
        compute=_cholesky,
        reference=_cholesky_arrays,
        flops=_flops,
    )
)
register(
    OpDef("LU", _type, DOMAIN, compute=_lu, reference=_lu_arrays, flops=lambda op: 2 * _flops(op))
)
