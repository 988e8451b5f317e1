"""Solve: systems of linear equations by Gaussian elimination; an operator of `tilewright`.

Results: the solution of `a @ x = b`, which is NaN if `a` is singular, and the number of the first
pivot that is zero, counted from 1, or 0 if there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.base.dtypes import int32
from tilewright.compute.build import cast
from tilewright.expr.nodes import Buffer, Expr, Select, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward, extents, turned
from tilewright.graph.ops.elimination import Elimination, Point
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nodes import Kernel, Stmt, Store, block

DOMAIN: Final = "tilewright"

Buffers = Sequence[Buffer]


def square_shape(op: OpCall) -> tuple[int, ...]:
    """The shape of input 0. Raises ModelError unless it holds square matrices."""
    shape = op.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise op.error(f"{list(shape)} does not hold square matrices")
    return shape


def matrices(op: OpCall) -> None:
    """Raise ModelError unless input 0 holds square matrices of float32 or float64."""
    square_shape(op)
    if op.dtype(0).name not in ("float32", "float64"):
        raise op.error(
            f"a matrix of {op.dtype(0).name}: only float32 and float64 are supported"
        )


def right_sides(op: OpCall) -> Type:
    """The type of input 1. Raises ModelError unless it fits the matrices in input 0."""
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
    return op.dtype(1), b


def _type(op: OpCall) -> Sequence[Type]:
    matrices(op)
    return [right_sides(op), (int32, op.shape(0)[:-2])]


def _solve(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    a, b = inputs
    e = Elimination(a, b.shape[-1])
    singular = e.cell("singular")
    number = singular[0]
    nan = const(np.nan, e.dtype)

    def look(t: Expr) -> Stmt:
        """From the last pivot to the first one."""
        k = e.size - 1 - t
        counted = cast(k + 1, e.dtype)
        zero = e.matrix[k, k].eq(0)
        return e.set(singular, Select(zero, counted, number))

    def one(i: Point) -> Stmt:
        def value(r: Expr, c: Expr) -> Expr:
            found = e.matrix[r, c + e.size]
            return Select(number > 0, nan, found)

        steps = [
            e.fill(i, a),
            e.fill(i, b, e.size),
            e.eliminate(),
            e.set(singular, e.zero),
            e.nests.loop(e.size, look),
            e.substitute(backward=True),
            e.result(i, outputs[0], value),
        ]
        for info in outputs[1:]:
            if info is not None:
                steps.append(Store(info, i, cast(number, int32)))
        return block(*steps)

    return e.kernel(op, inputs, outputs, one)


def _gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """By b, the solution of the transposed system; by a, minus its product with x."""
    by_b = solution(f, turned(f, x[0]), g)
    product = f.term(by_b).op("MatMul", turned(f, y))
    by_a = -product
    return [by_a.value, by_b]


def solution(f: Fragment, a: Value, b: Value) -> Value:
    """The solution x of `a @ x = b`."""
    return f.ops("Solve", a, b, domain=DOMAIN, count=1)[0]


def inverse_transposed(f: Fragment, a: Value) -> Value:
    """The inverse of the transposed `a`."""
    unit = np.broadcast_to(np.eye(extents(a)[-1]), extents(a))
    return solution(f, turned(f, a), f.constant(unit, a.dtype))


def _flops(op: OpCall) -> int:
    n = op.shape(0)[-1]
    return op.size(0) * n * 2 // 3 + 2 * op.size(1) * n


register(
    OpDef(
        "Solve",
        _type,
        DOMAIN,
        compute=_solve,
        flops=_flops,
        gradient=_gradient,
    )
)
