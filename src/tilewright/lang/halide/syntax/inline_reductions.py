"""sum, product, maximum, minimum, argmax, argmin over an RDom, as an expression.

Each creates a Func over the Vars that its argument uses, and returns its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tilewright.base import dtypes
from tilewright.base.errors import InputError
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr import nodes
from tilewright.ir.node import postorder, substitute
from tilewright.lang.halide.syntax.domain import RDom, Var, domain_of
from tilewright.lang.halide.syntax.expr import (
    Expr,
    as_expr,
    as_value,
    unique,
)
from tilewright.lang.halide.syntax.func import Func, FuncRef
from tilewright.lang.halide.syntax.image import last_coordinate
from tilewright.lang.halide.syntax.intrinsics import select
from tilewright.lang.halide.syntax.values import Tuple

_F = TypeVar("_F", bound=Func)


def _made(
    func: type[_F], name: str, domain: RDom, op: Reducer, values: tuple[Expr, ...]
) -> FuncRef:
    """The value of a new Func over all used variables except those of the domain.

    That is, variables used by the values or by the conditions of the domain.
    """
    # An argument for each variable that is used and is not the domain's.
    args: dict[nodes.Var, Var] = {}
    for root in (*values, *domain.conditions):
        for n in postorder(root.node):
            if not isinstance(n, nodes.Var) or n in args:
                continue
            if last_coordinate(n) is not None:
                continue
            owner = domain_of(n)
            if owner is not domain:
                args[n] = Var(n.name if owner is None else unique("v"))
    env: dict[Any, Any] = {n: a.node for n, a in args.items()}
    f = func(name)
    f[tuple(args.values())] = Tuple(*(Expr(i) for i in op.identity))
    parts = tuple(substitute(as_value(v), env) for v in values)
    conditions = []
    for c in domain.conditions:
        conditions.append(Expr(substitute(c.node, env), c.dtype))
    over = domain.under(conditions)
    place = tuple(a.node for a in reversed(args.values()))
    f.add_update(place, parts, op, over)
    return f[tuple(Expr(n) for n in args)]


def reduced(
    op: str,
    args: Sequence[Any],
    func: type[Func],
    name: str,
) -> Expr:
    """`args` is ([domain,] value): the value reduced by `op` over that RDom, or the one it uses.

    func, name: of the Func that is made. Raises InputError if it uses no RDom, or several.
    """
    domain, e = _asked(op, args)
    return _made(func, name, domain, reducer(op, e.dtype), (e,))


def _asked(op: str, args: Sequence[Any]) -> tuple[RDom, Expr]:
    """The domain and the value of ([domain,] value)."""
    if not 1 <= len(args) <= 2:
        raise InputError(f"{op} takes [an RDom and] a value, not {len(args)} arguments")
    e = as_expr(args[-1])
    used = (domain_of(n) for n in postorder(e.node) if isinstance(n, nodes.Var))
    domains = set(args[:-1]) or {d for d in used if d is not None}
    if len(domains) != 1 or not all(isinstance(d, RDom) for d in domains):
        raise InputError(
            f"{op} of {e!r} is over {len(domains) or 'no'} RDom{'s' if domains else ''}",
            hint="use the variables of one RDom in it, r.x, or name the RDom first",
        )
    return domains.pop(), e


def arg_reduced(
    op: str,
    args: Sequence[Any],
    func: type[Func],
    name: str,
) -> Tuple:
    """Arguments as of `reduced`: the coordinates of the first extreme value, and the value last.

    As in Halide, of integers no coordinate is found, 0, where all are the least extreme.
    """
    r, e = _asked(op, args)
    position: Expr = r[0]
    if r.dimensions() > 1:
        position = as_expr(0)
        for v in reversed(r.vars):
            position = position * v.extent + (v - v.min)
    combine = arg_reducer(op, e.dtype, dtypes.int32)
    found = _made(func, name, r, combine, (e, position))
    value = found[0]
    at = found[1]
    coordinates = []
    for n, v in enumerate(r.vars if r.dimensions() > 1 else ()):
        last = n == r.dimensions() - 1
        coordinates.append((at if last else at % v.extent) + v.min)
        at = at // v.extent
    coordinates = coordinates or [at]
    if not e.dtype.is_float:
        none = Expr(combine.identity[0], e.dtype)
        coordinates = [select(value != none, c, 0) for c in coordinates]
    return Tuple(*coordinates, value)
