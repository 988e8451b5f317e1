"""Derivatives of scalar expressions by what they load, each with its conditions.

A derivative is in float32 or a wider type: products of factors that were rounded to a narrow type
would lose what the value itself, computed in float32, has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tilewright.base.dtypes import DType, float32
from tilewright.base.errors import UnsupportedError
from tilewright.expr.nodes import (
    Add,
    Binary,
    Call,
    Cast,
    Div,
    Eq,
    Expr,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Mul,
    Neg,
    Not,
    Select,
    Sub,
    call,
    const,
)
from tilewright.ir.node import postorder

# Its value under conditions that all hold, outermost first.
Cases = dict[tuple[Expr, ...], Expr]

_HALF_ROOT_PI: Final = 2 / math.sqrt(math.pi)


def _over(
    x: Expr,
    y: Expr,
) -> Expr:
    return call("sqrt", 1.0 - x * x)


def _sign(x: Expr) -> Expr:
    """1, -1, or x itself where that is 0 or NaN."""
    none, one = const(0.0, x.dtype), const(1.0, x.dtype)
    negative = Select(Lt(x, none), const(-1.0, x.dtype), x)
    return Select(Lt(none, x), one, negative)


# The derivative of each function of one argument by x, where y is its value.
_FUNCTIONS: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * math.log(2),
    "expm1": lambda x, y: y + 1.0,
    "log": lambda x, y: 1.0 / x,
    "log2": lambda x, y: 1.0 / (x * math.log(2)),
    "log1p": lambda x, y: 1.0 / (x + 1.0),
    "sqrt": lambda x, y: 0.5 / y,
    "sin": lambda x, y: call("cos", x),
    "cos": lambda x, y: -call("sin", x),
    "tan": lambda x, y: 1.0 + y * y,
    "arcsin": lambda x, y: 1.0 / _over(x, y),
    "arccos": lambda x, y: -1.0 / _over(x, y),
    "arctan": lambda x, y: 1.0 / (1.0 + x * x),
    "sinh": lambda x, y: call("cosh", x),
    "cosh": lambda x, y: call("sinh", x),
    "tanh": lambda x, y: 1.0 - y * y,
    "arcsinh": lambda x, y: 1.0 / call("sqrt", x * x + 1.0),
    "arccosh": lambda x, y: 1.0 / call("sqrt", x * x - 1.0),
    "arctanh": lambda x, y: 1.0 / (1.0 - x * x),
    "erf": lambda x, y: call("exp", -(x * x)) * _HALF_ROOT_PI,
    "sigmoid": lambda x, y: y * (1.0 - y),
    "abs": lambda x, y: _sign(x),
    **dict.fromkeys(
        ("floor", "ceil", "trunc", "round_even"), lambda x, y: const(0.0, x.dtype)
    ),
}


def partials(
    value: Expr,
    load: Load,
) -> Cases:
    """The derivative of `value` by one element that it loads, all others being constants.

    Where none of the cases holds it is 0; where several do, their sum. Raises UnsupportedError for
    a function without a derivative here.
    """
    done: dict[Expr, Cases] = {load: {(): const(1.0, accumulator(load.dtype))}}
    for node in postorder(value):
        if isinstance(node, Expr) and node not in done:
            done[node] = _cases(node, done) if node.dtype.is_float else {}
    return done[value]


def _cases(
    e: Expr,
    done: dict[Expr, Cases],
) -> Cases:
    match e:
        case Add(a, b):
            return _sum(done[a], done[b])
        case Sub(a, b):
            by_b = _times(done[b], Neg)
            return _sum(done[a], by_b)
        case Mul(a, b):
            by_a = times(done[a], b)
            by_b = times(done[b], a)
            return _sum(by_a, by_b)
        case Div(a, b):
            by_a = _times(done[a], lambda p: p / _as(b, p))
            by_b = _times(done[b], lambda p: -(p * _as(e, p) / _as(b, p)))
            return _sum(by_a, by_b)
        case Neg(a):
            return _times(done[a], Neg)
        case Max(a, b):
            first = _when(Le(b, a), done[a])
            second = _when(Lt(a, b), done[b])
            return _sum(first, second)
        case Min(a, b):
            first = _when(Le(a, b), done[a])
            second = _when(Lt(b, a), done[b])
            return _sum(first, second)
        case Select(c, a, b):
            first = _when(c, done[a])
            second = _when(Not(c), done[b])
            return _sum(first, second)
        case Cast(a, dtype):
            return _times(done[a], lambda p: _at_least(p, dtype))
        case Call():
            return _called(e, done)
    if isinstance(e, Binary) and (done[e.lhs] or done[e.rhs]):
        _refuse(type(e).__name__)
    return {}


def _called(
    e: Call,
    done: dict[Expr, Cases],
) -> Cases:
    args = [a for a in e.args if done[a]]
    if not args:
        return {}
    if e.function == "pow":
        a, b = e.args
        slope = b * call("pow", a, b - 1.0)
        rise = e * call("log", a)
        by_a = times(done[a], slope)
        by_b = times(done[b], rise)
        return _sum(by_a, by_b)
    if e.function == "fma":
        a, b, c = e.args
        by_a = times(done[a], b)
        by_b = times(done[b], a)
        of_product = _sum(by_a, by_b)
        return _sum(of_product, done[c])
    if e.function not in _FUNCTIONS:
        _refuse(e.function)
    [x] = e.args
    slope = _FUNCTIONS[e.function](x, e)
    return times(done[x], slope)


def accumulator(dtype: DType) -> DType:
    """The type in which derivatives with respect to values of `dtype` are computed and added."""
    return dtype if dtype.bits >= float32.bits else float32


def _as(
    e: Expr,
    p: Expr,
) -> Expr:
    """`e` in the type of the derivative `p`."""
    return e if e.dtype is p.dtype else Cast(e, p.dtype)


def _at_least(
    p: Expr,
    dtype: DType,
) -> Expr:
    return Cast(p, dtype) if dtype.bits > p.dtype.bits else p


def _product(
    p: Expr,
    factor: Expr,
) -> Expr:
    factor = _as(factor, p)
    return factor if p is const(1.0, p.dtype) else p * factor


def _refuse(name: str) -> None:
    raise UnsupportedError(
        f"{name} has no derivative here",
        where="gradient",
        hint="write it by functions that have one: + - * / exp log sqrt tanh erf pow max ...",
    )


def _times(
    cases: Cases,
    by: Callable[[Expr], Expr],
) -> Cases:
    return {conditions: by(p) for conditions, p in cases.items()}


def _when(
    condition: Expr,
    cases: Cases,
) -> Cases:
    return {(condition, *conditions): p for conditions, p in cases.items()}


def _sum(
    a: Cases,
    b: Cases,
) -> Cases:
    found = dict(a)
    for conditions, p in b.items():
        if conditions in found:
            q = _at_least(found[conditions], p.dtype)
            p = q + _as(p, q)
        found[conditions] = p
    return found


def times(
    cases: Cases,
    factor: Expr,
) -> Cases:
    """The cases, each times a factor."""
    return _times(cases, lambda p: _product(p, factor))


def where_equal(
    cases: Cases,
    value: Expr,
    extreme: Expr,
) -> Cases:
    """The cases where a value is the extreme one."""
    return _when(Eq(value, extreme), cases)
