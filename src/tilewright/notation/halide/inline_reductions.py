"""sum, product, maximum, minimum, argmax, argmin over an RDom, as an expression.

Each makes a Func of its own, over the Vars that its argument uses, and gives its value.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tilewright.base import dtypes
from tilewright.base.errors import InputError
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr import nodes
from tilewright.ir.node import postorder
from tilewright.notation.halide.domain import RDom, Var, domain_of
from tilewright.notation.halide.expr import (
    Expr,
    as_expr,
    as_value,
    unique,
)
from tilewright.notation.halide.func import Func, Tuple

_F = TypeVar("_F", bound=Func)


def _free(e: Expr) -> tuple[Var, ...]:
    found = [n for n in postorder(e.node) if isinstance(n, nodes.Var) and domain_of(n) is None]
    return tuple(Var(n.name) for n in dict.fromkeys(found))


def _made(
    func: type[_F], name: str, e: Expr, op: Reducer, values: tuple[Expr, ...]
) -> tuple[_F, tuple[Var, ...]]:
    f, args = func(name), _free(e)
    f[args] = Tuple(*(Expr(i) for i in op.identity))
    place = tuple(a.node for a in reversed(args))
    f.add_update(place, tuple(as_value(v) for v in values), op)
    return f, args


def reduced(op: str, value: Any, func: type[Func] = Func, name: str | None = None) -> Expr:
    """`value` reduced by `op` over the RDom it uses; InputError if it uses none."""
    e = as_expr(value)
    if all(domain_of(n) is None for n in postorder(e.node) if isinstance(n, nodes.Var)):
        raise InputError(f"{op} of {e!r} uses no variable of an RDom", hint="use r.x in it")
    f, args = _made(func, unique(name or op), e, reducer(op, e.type()), (e,))
    return f[args]


def arg_reduced(op: str, r: RDom, value: Any, func: type[Func] = Func) -> Tuple:
    """The coordinates of the first extreme `value` over `r`, in order, and that value last.

    Of an RDom of one dimension: (position, value). Raises InputError for more dimensions.
    """
    if r.dimensions() != 1:
        raise InputError(
            f"{op} over {r.dimensions()} dimensions",
            where=f"RDom {r.name}",
            hint="reduce over one dimension: index it with r.x // width and r.x % width",
        )
    e = as_expr(value)
    combine = arg_reducer(op, e.type(), dtypes.int32)
    f, args = _made(func, unique(op), e, combine, (e, r[0]))
    ref = f[args]
    return Tuple(ref[1], ref[0])
