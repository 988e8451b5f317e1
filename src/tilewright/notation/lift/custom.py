"""Combine operators that users write, and the laws they must keep, tried on small values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.compute.reducer import Reducer
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Const, Expr, Var
from tilewright.notation.lift.views import View, scalar

_SAMPLES = (0, 1, -1, 2, 3)
_TUPLES = 6


def custom_reducer(
    f: Callable[..., View], init: Sequence[View], element: Sequence[Expr]
) -> Reducer:
    """The operator `f` on tuples of scalars, with the neutral element `init`.

    Raises UnsupportedError where its two arguments differ in type or `init` is no constant,
    InputError (TW-LIFT-LAW) where a small example shows that `f` is not associative or `init` not
    neutral. Whether it commutes is tried in the same way.
    """
    start = tuple(map(scalar, init))
    identity = tuple(c for c in start if isinstance(c, Const))
    if len(identity) != len(start) or [c.dtype for c in start] != [x.dtype for x in element]:
        raise UnsupportedError(
            "the function of a reduction is no combine operator: accumulator and element differ",
            code="TW-LIFT-FOLD",
            hint="Lower it from ReduceSeq, which may be any fold",
        )
    lhs = tuple(Var(f"a{k}", c.dtype) for k, c in enumerate(start))
    rhs = tuple(Var(f"b{k}", c.dtype) for k, c in enumerate(start))
    single = len(start) == 1
    found = f(lhs[0] if single else lhs, rhs[0] if single else rhs)
    result = tuple(map(scalar, (found,) if single else found))
    reducer = Reducer("op", lhs, rhs, result, identity)
    commutes = _try_laws(reducer)
    return Reducer("op", lhs, rhs, result, identity, commutes)


def _try_laws(op: Reducer) -> bool:
    """Whether it commutes on the samples. Raises InputError where another law fails."""
    samples = _tuples(op.dtypes)
    start = tuple(evaluate(c, {}) for c in op.identity)
    commutes = True
    for a in samples:
        if not (_same(_apply(op, start, a), a) and _same(_apply(op, a, start), a)):
            raise _broken(f"its initial value {_show(start)} is not neutral for {_show(a)}")
        for b in samples:
            ab = _apply(op, a, b)
            commutes = commutes and _same(ab, _apply(op, b, a))
            for c in samples:
                if not _same(_apply(op, ab, c), _apply(op, a, _apply(op, b, c))):
                    raise _broken(f"it is not associative on {_show(a)}, {_show(b)}, {_show(c)}")
    return commutes


def _tuples(dtypes: Sequence[DType]) -> list[tuple[Any, ...]]:
    """Small tuples: all of a short list, or an even choice of them."""
    columns = [[np.asarray(v).astype(t.numpy)[()] for v in _SAMPLES] for t in dtypes]
    every = list(product(*columns))
    return every[:: max(1, len(every) // _TUPLES)]


def _apply(op: Reducer, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    env = dict(zip((*op.lhs, *op.rhs), (*a, *b), strict=True))
    return tuple(evaluate(r, env)[()] for r in op.result)


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


def _show(a: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, a))})"


def _broken(message: str) -> InputError:
    return InputError(
        message,
        code="TW-LIFT-LAW",
        where="function of a reduction",
        hint="Reduce needs an associative function and its neutral element; ReduceSeq any fold",
    )
