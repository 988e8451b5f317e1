"""Arithmetic on sizes known only at run time: Python functions on scalars, integers or floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Final

from tilewright.base.dtypes import bool_, float64, int64
from tilewright.frontends.torch.aten.operators.arithmetic import (
    floor_divided,
    remainder_of,
)
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

_ARITHMETIC: Final = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "pow": "Pow",
}
_COMPARISONS: Final = {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}


def _operands(c: AtenCall) -> list[Value]:
    """Integers, unless one of them is a float: then all are, as in Python."""
    given = list(c.arguments.values())
    floats = [
        x.dtype is not None and x.dtype.is_float
        if isinstance(x, Value)
        else isinstance(x, float)
        for x in given
    ]
    return [c.value(x, float64 if any(floats) else int64) for x in given]


def _function(op_type: str) -> Callable[[AtenCall], Value]:
    return lambda c: c.op(op_type, *_operands(c))


for _name, _op in {**_ARITHMETIC, **_COMPARISONS}.items():
    rule(f"operator.{_name}")(_function(_op))
for _name, _op in {"sym_max": "Max", "sym_min": "Min"}.items():
    rule(f"torch.{_name}")(_function(_op))


@rule("torch.sym_sum")
def _sum(c: AtenCall) -> Value:
    """Of a sequence of integers."""
    (parts,) = c.arguments.values()
    return reduce(partial(c.op, "Add"), [c.value(x, int64) for x in parts])


@rule("operator.floordiv")
def _floordiv(c: AtenCall) -> Value:
    a, b = (TensorTerm(c, x) for x in _operands(c))
    return floor_divided(a, b).value


@rule("operator.mod")
def _mod(c: AtenCall) -> Value:
    """With the sign of the divisor."""
    a, b = (TensorTerm(c, x) for x in _operands(c))
    return remainder_of(a, b).value


@rule("operator.truediv")
def _truediv(c: AtenCall) -> Value:
    a, b = (c.cast(x, float64) for x in _operands(c))
    return c.op("Div", a, b)


@rule("operator.neg")
def _neg(c: AtenCall) -> Value:
    return c.op("Neg", *_operands(c))


@rule("operator.ne")
def _ne(c: AtenCall) -> Value:
    return c.op("Not", c.op("Equal", *_operands(c)))


@rule("torch.sym_not")
def _not(c: AtenCall) -> Value:
    (x,) = c.arguments.values()
    return c.op("Not", c.value(x, bool_))


@rule("torch.sym_float")
def _float(c: AtenCall) -> Value:
    (x,) = c.arguments.values()
    return c.cast(c.value(x), float64)


@rule("torch.sym_int", "math.trunc")
def _int(c: AtenCall) -> Value:
    (x,) = c.arguments.values()
    return c.cast(c.value(x), int64)


@rule("math.floor", "math.ceil")
def _rounded(c: AtenCall) -> Value:
    (x,) = c.arguments.values()
    op_type = "Floor" if c.name.endswith("floor") else "Ceil"
    return c.cast(c.op(op_type, c.value(x, float64)), int64)


@rule("torch.sym_ite")
def _choice(c: AtenCall) -> Value:
    condition, then, otherwise = c.arguments.values()
    return c.op("Where", c.value(condition, bool_), c.value(then), c.value(otherwise))
