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
_TUPLES = 25
Values = tuple[Any, ...]


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
        raise no_operator()
    lhs = tuple(Var(f"a{k}", c.dtype) for k, c in enumerate(start))
    rhs = tuple(Var(f"b{k}", c.dtype) for k, c in enumerate(start))
    single = len(start) == 1
    found = f(lhs[0] if single else lhs, rhs[0] if single else rhs)
    result = tuple(map(scalar, (found,) if single else found))
    reducer = Reducer("op", lhs, rhs, result, identity)
    commutes = _try_laws(reducer)
    return Reducer("op", lhs, rhs, result, identity, commutes)


def no_operator() -> UnsupportedError:
    """The error for a function that is a fold only."""
    return UnsupportedError(
        "the function of a reduction is no combine operator: its arguments differ in type",
        code="TW-LIFT-FOLD",
        hint="Lower it from ReduceSeq, which may be any fold",
    )


def _try_laws(op: Reducer) -> bool:
    """Whether it commutes on the samples. Raises InputError where another law fails."""
    samples = _tuples(op.dtypes)
    a, b, c = (_column(op, samples, axis) for axis in range(3))
    start = tuple(evaluate(x, {}) for x in op.identity)
    for side in ((start, a), (a, start)):
        bad = _differ(_apply(op, *side), a)
        if bad is not None:
            raise _broken(
                f"its initial value {_show(start)} is not neutral for {_show(samples[bad[0]])}"
            )
    ab = _apply(op, a, b)
    bad = _differ(_apply(op, ab, c), _apply(op, a, _apply(op, b, c)))
    if bad is not None:
        triple = ", ".join(_show(samples[k]) for k in bad)
        raise _broken(f"it is not associative on {triple}")
    return _differ(ab, _apply(op, b, a)) is None


def _tuples(dtypes: Sequence[DType]) -> list[Values]:
    """Small tuples: all of a short list, or an even choice of them."""
    columns = [[np.asarray(v).astype(t.numpy)[()] for v in _SAMPLES] for t in dtypes]
    every = list(product(*columns))
    return every[:: max(1, len(every) // _TUPLES)]


def _column(op: Reducer, samples: Sequence[Values], axis: int) -> Values:
    """The samples along one of three axes, an array per component."""
    shape = [len(samples) if k == axis else 1 for k in range(3)]
    return tuple(
        np.array([s[k] for s in samples], t.numpy).reshape(shape) for k, t in enumerate(op.dtypes)
    )


def _apply(op: Reducer, a: Values, b: Values) -> Values:
    env = dict(zip((*op.lhs, *op.rhs), (*a, *b), strict=True))
    return tuple(evaluate(r, env) for r in op.result)


def _differ(one: Values, other: Values) -> tuple[int, ...] | None:
    """The first place where two results differ; NaNs are equal."""
    for x, y in zip(one, other, strict=True):
        x, y = np.broadcast_arrays(x, y)
        bad = np.argwhere((x != y) & ~((x != x) & (y != y)))
        if len(bad):
            return tuple(int(k) for k in bad[0])
    return None


def _show(a: Values) -> str:
    return f"({', '.join(map(str, a))})"


def _broken(message: str) -> InputError:
    return InputError(
        message,
        code="TW-LIFT-LAW",
        where="function of a reduction",
        hint="Reduce needs an associative function and its neutral element; ReduceSeq any fold",
    )
