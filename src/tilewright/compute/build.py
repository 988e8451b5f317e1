"""Constructors of Computations for operator authors: maps, reductions, scans by a lambda.

map_("square", out, lambda *i: x[i] * x[i])
reduce_("matmul", out, (k,), "add", lambda i, j, k: a[i, k] * b[k, j])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Cast,
    Expr,
    Extent,
    Select,
    Var,
    as_expr,
    const,
)

_NAMES = "ijklmnpqrstuvwxyz"


def _dims(
    extents: Sequence[Extent],
    combine: str,
    names: Sequence[str],
) -> tuple[Dim, ...]:
    return tuple(
        Dim(Var(name, INDEX), n if isinstance(n, Expr) else int(n), combine)
        for n, name in zip(extents, names, strict=True)
    )


def _names(
    count: int,
    f: Callable[..., Any],
    skip: int = 0,
) -> list[str]:
    """The lambda's own parameter names where it has them, else i, j, k, ..."""
    given = list(_positional(f)[skip : skip + count])
    if len(given) == count:
        return given
    letters = [
        _NAMES[n] if n < len(_NAMES) else f"d{n}" for n in range(skip, skip + count)
    ]
    return letters


def _positional(f: Callable[..., Any]) -> Sequence[str]:
    """The names of the parameters that a function takes by position or by name."""
    if isinstance(f, FunctionType):  # nearly always, and its code has them
        code = f.__code__
        return code.co_varnames[code.co_posonlyargcount : code.co_argcount]
    return [
        p.name
        for p in inspect.signature(f).parameters.values()
        if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]


def map_(
    name: str,
    out: Buffer,
    f: Callable[..., Any],
    *,
    extents: Sequence[Extent] | None = None,
    index: Callable[..., tuple[Any, ...]] | None = None,
) -> Computation:
    """`out[index(i...)] = f(i...)` for every point of `extents` (default: the shape of `out`)."""
    shape = tuple(out.extents if extents is None else extents)
    dims = _dims(shape, CC, _names(len(shape), f))
    point = tuple(d.var for d in dims)
    place: tuple[Expr, ...] = point
    if index is not None:
        place = tuple(as_expr(i, INDEX) for i in index(*point))
    value = as_expr(f(*point), out.dtype)
    return Computation(name, dims, (Output(out, place, value),))


def reduce_(
    name: str,
    out: Buffer | Sequence[Buffer],
    over: Sequence[int],
    op: str | Reducer,
    f: Callable[..., Any],
    *,
    extents: Sequence[Extent] | None = None,
    index: Callable[..., tuple[Any, ...]] | None = None,
    combine: str = PW,
) -> Computation:
    """`out[index(i...)] = op over r... of f(i..., r...)`; `over` are the extents of r.

    out: one buffer per component of the reducer. op: a name for `reducer` (its accumulator is the
    dtype of f's value) or a Reducer. extents: of the cc dimensions (default: the shape of `out`).
    combine: "pw", or "ps" for a scan, whose index map also sees r.
    """
    outs = (out,) if isinstance(out, Buffer) else tuple(out)
    shape = tuple(outs[0].extents if extents is None else extents)
    free = _dims(shape, CC, _names(len(shape), f))
    names = _names(len(over), f, skip=len(shape))
    bound = _dims(over, combine, names)
    free_point = tuple(d.var for d in free)
    point = (*free_point, *(d.var for d in bound))
    seen = point if combine == PS else free_point
    place: tuple[Expr, ...] = seen
    if index is not None:
        place = tuple(as_expr(i, INDEX) for i in index(*seen))
    value = f(*point)
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(op, str):
        op = reducer(op, values[0].dtype)
    results = zip(outs, values, strict=True)
    outputs = tuple(Output(o, place, v) for o, v in results)
    return Computation(name, free + bound, outputs, op)


def cast(value: Expr, dtype: Any) -> Expr:
    """`value` in `dtype`; itself if it has that dtype already."""
    return value if value.dtype is dtype else Cast(value, dtype)


def padded(
    x: Buffer,
    index: Sequence[Any],
    outside: Any,
) -> Expr:
    """`x[index]` where the index is inside `x`, else the constant `outside`."""
    guard: Expr | None = None
    point = tuple(as_expr(i, INDEX) for i in index)
    for i, extent in zip(point, x.shape, strict=True):
        if isinstance(i, Var):
            continue
        inside = (const(0) <= i) & (i < extent)
        guard = inside if guard is None else guard & inside
    load = x[point]
    if guard is None:
        return load
    return Select(guard, load, as_expr(outside, x.dtype))
