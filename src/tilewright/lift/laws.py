"""Properties of combine operators: associative, commutative, neutral elements.

Lift trusts the programmer here; we prove it, or a rule that needs it is refused. An operator on
scalars is looked up or, where it is a polynomial, proved by comparing normal forms (integers wrap
around, which keeps every polynomial identity). On tuples it is proved component by component, on
arrays it must work element by element. Floats are treated as exact, as everywhere in declared
reductions: `--math` says what reassociating them may cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Add, Const, Expr, Mul, Neg, Sub, Var, const
from tilewright.lift import lengths, scalars
from tilewright.lift.lambdas import opened
from tilewright.lift.nodes import (
    AnyMap,
    Apply,
    Builtin,
    DeviceOp,
    Fill,
    Fun,
    Get,
    Lambda,
    Literal,
    Param,
    Term,
    To,
    Tuple,
    UserFun,
    Zip,
    argument,
    free_params,
)
from tilewright.lift.types import Array, Scalar, TupleType, Type

# Built-in operators that are associative and commutative, with the reducer of the same meaning.
REDUCERS = {name: name for name in ("add", "mul", "max", "min", "xor")} | {
    "and_": "and",
    "or_": "or",
}
# The polynomial ones; of the others, a component that mixes several variables proves nothing.
_RING = ("add", "sub", "mul", "neg", "id")

# The value of a term: an expression per scalar, a tuple of values per tuple.
Value = Any


class _Unknown(Exception):
    """The operator is nothing that can be evaluated symbolically."""


def associative(f: Fun, t: Type) -> bool:
    """Whether f(f(a, b), c) is f(a, f(b, c)) for all a, b, c of type `t`."""
    core = _element_wise(f, t)
    if core is None:
        return False
    op, on = core
    if _builtin(op) in REDUCERS:
        return True

    def test(
        a: Value,
        b: Value,
        c: Value,
        call: Callable[..., Value],
    ) -> bool:
        return bool(call(call(a, b), c) == call(a, call(b, c)))

    return _proved(op, on, test)


def commutative(f: Fun, t: Type) -> bool:
    """Whether f(a, b) is f(b, a) for all a and b of type `t`."""
    core = _element_wise(f, t)
    if core is None:
        return False
    op, on = core
    return _builtin(op) in REDUCERS or _proved(
        op, on, lambda a, b, _, call: call(a, b) == call(b, a)
    )


def neutral(z: Term, f: Fun, t: Type) -> bool:
    """Whether f(z, a) and f(a, z) are a for all a of type `t`."""
    core = _element_wise(f, t)
    if core is None:
        return False
    op, on = core
    for _ in range(_depth(t) - _depth(on)):
        if not isinstance(z, Fill):
            return False
        z = z.value
    name = _builtin(op)
    if name in REDUCERS and isinstance(z, Literal) and isinstance(on, Scalar):
        return z.value == reducer(REDUCERS[name], on.dtype).identity[0].value
    try:
        value = _evaluate(z, {})
    except _Unknown:
        return False
    return _proved(
        op, on, lambda a, b, _, call: call(value, a) == a and call(a, value) == a
    )


def neutral_of(f: Fun, t: Type) -> Term | None:
    """The neutral element of f on type `t`; None if none is known."""
    if isinstance(t, Array):
        g = pointwise(f)
        item = None if g is None else neutral_of(g, t.item)
        if item is None:
            return None
        return Fill(item, t.length)
    name = _builtin(f)
    if name in REDUCERS and isinstance(t, Scalar):
        value = reducer(REDUCERS[name], t.dtype).identity[0].value
        assert not isinstance(value, complex)
        return Literal(value, t.dtype)
    return None


def pointwise(f: Fun) -> Fun | None:
    """g where f(a, b) is Map(g) of Zip(a, b), else None."""
    if isinstance(f, DeviceOp):
        return pointwise(f.meaning)
    if isinstance(f, To):
        return pointwise(f.f)
    (a, b), body = opened(f, 2)
    match body:
        case Apply(DeviceOp() | To() as g, args) if args == (a, b):
            return pointwise(g)
        case Apply(AnyMap(g), (Apply(Zip(), args),)) if args == (a, b):
            if free_params(g) & {a, b}:
                return None
            return g
    return None


def _element_wise(f: Fun, t: Type) -> tuple[Fun, Type] | None:
    """The operator on elements and their type, where f works on arrays element by element."""
    while isinstance(t, Array):
        g = pointwise(f)
        if g is None:
            return None
        f = g
        t = t.item
    return f, t


def _depth(t: Type) -> int:
    if isinstance(t, Array):
        return 1 + _depth(t.item)
    return 0


def _builtin(f: Fun) -> str:
    if isinstance(f, Lambda):
        body = f.body
        if isinstance(body, Apply) and body.args == f.params:
            f = body.fun
    return f.name if isinstance(f, Builtin) else ""


def _proved(op: Fun, t: Type, law: Callable[..., bool]) -> bool:
    """Whether the law holds for variables of type `t`, compared in normal form."""
    try:
        a, b, c = (_variables(t, name) for name in "abc")
        return law(a, b, c, lambda x, y: _call(op, (x, y)))
    except _Unknown:
        return False


def _variables(t: Type, name: str) -> Value:
    match t:
        case Scalar():
            return Var(name, INDEX)
        case TupleType(items):
            return tuple(_variables(i, f"{name}{n}") for n, i in enumerate(items))
    raise _Unknown


def _call(f: Fun, args: Sequence[Value]) -> Value:
    match f:
        case Builtin(name) if name in _RING:
            if name != "id":
                return lengths.normal(scalars.body(f, args))
            return args[0]
        case UserFun(_, dtypes, body):
            params = [argument(n, t) for n, t in enumerate(dtypes)]
            return lengths.normal(
                _polynomial(body, dict(zip(params, args, strict=True)))
            )
        case Get(position):
            return args[0][position]
        case Lambda(params, _):
            if len(params) > 1 and len(args) == 1:
                args = args[0]
            return _evaluate(f.body, dict(zip(params, args, strict=True)))
    raise _Unknown


def _polynomial(e: Expr, env: dict[Expr, Expr]) -> Expr:
    """A polynomial body over the arguments' values; exact, so of unbounded integers."""
    match e:
        case Var():
            return env[e]
        case Const(value) if _is_whole(value):
            return const(int(value.real))
        case Add(lhs, rhs) | Sub(lhs, rhs) | Mul(lhs, rhs):
            return type(e)(_polynomial(lhs, env), _polynomial(rhs, env))
        case Neg(value):
            return Neg(_polynomial(value, env))
    raise _Unknown


def _is_whole(value: complex) -> bool:
    return isfinite(value.real) and value == int(value.real)


def _evaluate(term: Term, env: dict[Param, Value]) -> Value:
    match term:
        case Param():
            if term not in env:
                raise _Unknown
            return env[term]
        case Literal(value) if _is_whole(value):
            return const(int(value))
        case Tuple(items):
            return tuple(_evaluate(i, env) for i in items)
        case Apply(f, args):
            return _call(f, [_evaluate(a, env) for a in args])
    raise _Unknown
