"""User-defined combine operators: their Reducer, and the laws that it must satisfy.

An operator is tried on all triples of a few sample values per component, at once, in NumPy. That
refutes; it proves nothing about other values.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.compute.reducer import Reducer
from tilewright.expr.interp import evaluate

Operand = tuple[Any, ...]
Samples = Sequence[Sequence[Any]]
MAX_OPERANDS = 40  # sample values of the whole tuple; triples of them are compared


def takes(f: Any, count: int, where: str) -> None:
    """Raise InputError unless `f` can be called with `count` arguments by position."""
    if not callable(f):
        raise _refusal(
            f"{f!r} is not a function", where, f"expected one of {count} operands"
        )
    try:
        parameters = inspect.signature(f)
        parameters.bind(*(None,) * count)
    except TypeError:
        found = f"found the parameters {parameters}"
        raise _refusal(f"expected a function of {count} operands, {found}", where,
                       "as in lambda lhs, rhs: lhs + rhs") from None  # fmt: skip
    except ValueError:
        return  # a built-in function without a signature: calling it will tell


@dataclass(frozen=True)
class _Law:
    """What is wrong where two sides differ, and the operands to show then."""

    broken: str
    one: Operand
    two: Operand
    operands: Sequence[Operand]


def checked(
    op: Reducer,
    commutative: bool | None = None,
    samples: Samples | None = None,
    hint: str = "give an associative operator and its neutral element",
) -> Reducer:
    """`op`, with its commutativity as stated, or as found where None.

    samples: values per component (the default: small numbers of each dtype); none: nothing is
    tried. Raises InputError (TW-OPERATOR), with operands that show it, where the operator is not
    associative, its identity not neutral, or it does not commute as stated.
    """
    if samples is not None and not samples:
        return replace(op, commutative=bool(commutative))
    points = _points(op, samples)
    count = len(points[0])
    triples = np.indices((count, count, count)).reshape(3, -1)
    a, b, c = (tuple(p[n] for p in points) for n in triples)
    swapped = _Law(
        "it does not commute",
        _apply(op, a, b),
        _apply(op, b, a),
        (a, b),
    )
    laws = list(_laws(op, points, a, b, c))
    if commutative:
        laws.append(swapped)
    for law in laws:
        at = _first_difference(law.one, law.two)
        if at is not None:
            shown = ", ".join(_show(operand, at) for operand in law.operands)
            results = f"{_show(law.one, at)} and {_show(law.two, at)}"
            message = f"{law.broken}, at {shown}: {results}"
            raise _refusal(message, f"operator {op}", hint)
    if commutative is None:
        commutative = _first_difference(swapped.one, swapped.two) is None
    return replace(op, commutative=commutative)


def _refusal(
    message: str,
    where: str,
    hint: str,
) -> InputError:
    return InputError(
        message,
        code="TW-OPERATOR",
        where=where,
        hint=hint,
    )


def _points(op: Reducer, samples: Samples | None) -> Operand:
    """One array of sample values per component: every combination, or a fixed draw of them."""
    values = samples
    if values is None:
        values = [_values(t) for t in op.dtypes]
    if len(values) != len(op.dtypes):
        raise _refusal(
            f"samples of {len(values)} component(s) given, it has {len(op.dtypes)}",
            f"operator {op}",
            "give one sequence of values per component",
        )
    every = list(product(*values))
    if len(every) > MAX_OPERANDS:
        chosen = np.random.default_rng(0).choice(
            len(every), MAX_OPERANDS, replace=False
        )
        every = [every[n] for n in sorted(chosen)]
    columns = zip(*every, strict=True)
    return tuple(
        np.asarray(c).astype(t.numpy) for c, t in zip(columns, op.dtypes, strict=True)
    )


def _values(dtype: DType) -> Sequence[Any]:
    if dtype.is_bool:
        return (False, True)
    if dtype.is_float or dtype.is_complex:
        return (-2.5, -1.0, 0.0, 0.5, 1.0, 3.0)
    if dtype.is_signed:
        return (-3, -1, 0, 1, 2, 5)
    return (0, 1, 2, 3, 5, 7)


def _laws(
    op: Reducer,
    points: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
) -> Iterator[_Law]:
    """The laws of every reducer, on its points and on triples of them."""
    count = len(points[0])
    start = tuple(np.asarray([evaluate(e, {})] * count) for e in op.identity)
    neutral = f"its identity {_show(start, 0)} is not neutral"
    yield _Law(neutral, _apply(op, points, start), points, (points,))
    yield _Law(neutral, _apply(op, start, points), points, (points,))
    yield _Law(
        "it is not associative",
        _apply(op, _apply(op, a, b), c),
        _apply(op, a, _apply(op, b, c)),
        (a, b, c),
    )


def _apply(
    op: Reducer,
    lhs: Operand,
    rhs: Operand,
) -> Operand:
    variables = (*op.lhs, *op.rhs)
    env = dict(zip(variables, (*lhs, *rhs), strict=True))
    shape = np.shape(lhs[0])
    return tuple(np.broadcast_to(evaluate(r, env), shape) for r in op.result)


def _first_difference(one: Operand, two: Operand) -> int | None:
    differs = np.zeros(np.shape(one[0]), bool)
    for x, y in zip(one, two, strict=True):
        if x.dtype.kind in "iub":
            differs |= x != y
        else:
            near = (
                1e-2 if x.itemsize < 4 else 1e-5
            )  # results may cancel: absolutely too
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            x = x.astype(wide)
            y = y.astype(wide)
            differs |= ~np.isclose(x, y, rtol=near, atol=near, equal_nan=True)
    if differs.any():
        return int(np.argmax(differs))
    return None


def _show(operand: Operand, at: int) -> str:
    parts = [str(component[at]) for component in operand]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
