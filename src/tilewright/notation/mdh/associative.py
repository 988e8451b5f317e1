"""Whether a custom operator is what it says: associative, neutral at its identity, commutative.

All triples of a few sample values per component are tried, at once, in NumPy. That refutes; it
proves nothing about other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import VerifyError
from tilewright.compute.reducer import Reducer
from tilewright.expr.interp import evaluate

Operand = tuple[Any, ...]
MAX_OPERANDS = 40  # sample values of the whole tuple; triples of them are compared


def check_operator(
    op: Reducer, commutative: bool | None, samples: Sequence[Sequence[Any]] | None
) -> Reducer:
    """`op`, with its commutativity as stated, or as found where None.

    samples: values per component; none: nothing is tried. Raises VerifyError (TW-OPERATOR)
    where a law fails.
    """
    if samples is not None and not samples:
        return replace(op, commutative=bool(commutative))
    points = _points(op, samples)
    start = tuple(np.asarray([evaluate(e, {})] * len(points[0])) for e in op.identity)
    _expect(op, "its identity is not neutral", _apply(op, points, start), points, (points,))
    _expect(op, "its identity is not neutral", _apply(op, start, points), points, (points,))
    count = len(points[0])
    triple = np.indices((count, count, count)).reshape(3, -1)
    a, b, c = (tuple(p[n] for p in points) for n in triple)
    left = _apply(op, _apply(op, a, b), c)
    right = _apply(op, a, _apply(op, b, c))
    _expect(op, "it is not associative", left, right, (a, b, c))
    swapped = (_apply(op, a, b), _apply(op, b, a))
    if commutative:
        _expect(op, "it does not commute", *swapped, (a, b))
    found = _first_difference(*swapped) is None if commutative is None else commutative
    return replace(op, commutative=found)


def _points(op: Reducer, samples: Sequence[Sequence[Any]] | None) -> Operand:
    """One array of sample values per component: every combination, or a fixed draw of them."""
    values = [_values(t) for t in op.dtypes] if samples is None else samples
    if len(values) != len(op.dtypes):
        raise VerifyError(
            f"{op}: samples of {len(values)} component(s) given, it has {len(op.dtypes)}",
            code="TW-OPERATOR",
        )
    every = list(product(*values))
    if len(every) > MAX_OPERANDS:
        chosen = np.random.default_rng(0).choice(len(every), MAX_OPERANDS, replace=False)
        every = [every[n] for n in sorted(chosen)]
    columns = zip(*every, strict=True)
    return tuple(np.asarray(c, t.numpy) for c, t in zip(columns, op.dtypes, strict=True))


def _values(dtype: DType) -> Sequence[Any]:
    if dtype.is_bool:
        return (False, True)
    if dtype.is_float or dtype.is_complex:
        return (-2.5, -1.0, 0.0, 0.5, 1.0, 3.0)
    return (-3, -1, 0, 1, 2, 5) if dtype.is_signed else (0, 1, 2, 3, 5, 7)


def _apply(op: Reducer, lhs: Operand, rhs: Operand) -> Operand:
    env = dict(zip(op.lhs, lhs, strict=True)) | dict(zip(op.rhs, rhs, strict=True))
    shape = np.shape(lhs[0])
    return tuple(np.broadcast_to(evaluate(r, env), shape) for r in op.result)


def _first_difference(one: Operand, two: Operand) -> int | None:
    differs = np.zeros(np.shape(one[0]), bool)
    for x, y in zip(one, two, strict=True):
        if x.dtype.kind in "iub":
            differs |= x != y
        else:
            near = 1e-2 if x.itemsize < 4 else 1e-5  # results may cancel: absolutely too
            differs |= ~np.isclose(x, y, rtol=near, atol=near, equal_nan=True)
    return int(np.argmax(differs)) if differs.any() else None


def _expect(
    op: Reducer, what: str, one: Operand, two: Operand, operands: tuple[Operand, ...]
) -> None:
    at = _first_difference(one, two)
    if at is None:
        return
    shown = ", ".join(_show(operand, at) for operand in operands)
    raise VerifyError(
        f"{op} combines no homomorphism: {what}, at {shown}: {_show(one, at)} and {_show(two, at)}",
        code="TW-OPERATOR",
        hint="Give `samples` if it is so on the values that occur",
    )


def _show(operand: Operand, at: int) -> str:
    parts = [str(component[at]) for component in operand]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
