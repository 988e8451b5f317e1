"""PyTorch's primitives, into which it decomposes operators that have no rule of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tilewright.base.dtypes import bool_, int64
from tilewright.frontends.torch.aten.operators.reductions import reduced
from tilewright.frontends.torch.aten.operators.shapes import transposed
from tilewright.frontends.torch.aten.rules import AtenCall, Rule, rule, rule_named
from tilewright.graph.nodes import Value

# Primitives with the meaning of the ATen operator of the same name, and the same arguments.
_SAME: Final = (
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "clone",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fmax",
    "fmin",
    "fmod",
    "ge",
    "gt",
    "le",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "ne",
    "neg",
    "reciprocal",
    "remainder",
    "round",
    "rsqrt",
    "scalar_tensor",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "trunc",
)
# Those of another name.
_OTHERS: Final = {
    "erf_inv": "erfinv",
    "erfcx": "special_erfcx",
    "ndtri": "special_ndtri",
    "shift_left": "bitwise_left_shift",
    "shift_right_arithmetic": "bitwise_right_shift",
}
_REDUCTIONS: Final = {
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
    "sum": "ReduceSum",
}


def _like(name: str) -> Rule:
    return lambda c: rule_named(f"aten.{name}")(c)


for _name, _other in {**{n: n for n in _SAME}, **_OTHERS}.items():
    rule(f"prims.{_name}")(_like(_other))


def _reduction(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        axes = [int(n) for n in c["dims"]]
        if not axes:
            return c.tensor("inp", c.dtype)
        return reduced(c, op_type, c.tensor("inp", c.dtype), axes, keep=False)

    return apply


for _name, _op in _REDUCTIONS.items():
    rule(f"prims.{_name}")(_reduction(_op))


@rule("prims.where")
def _where(c: AtenCall) -> Value:
    condition = c.tensor("pred", bool_)
    return c.op("Where", condition, c.tensor("a", c.dtype), c.tensor("b", c.dtype))


@rule("prims.fma")
def _product_and_sum(c: AtenCall) -> Value:
    product = c.op("Mul", c.tensor("a", c.dtype), c.tensor("b", c.dtype))
    return c.op("Add", product, c.tensor("c", c.dtype))


@rule("prims.pow")
def _power(c: AtenCall) -> Value:
    return c.op("Pow", c.tensor("self", c.dtype), c.tensor("other", c.dtype))


@rule("prims.isfinite")
def _is_finite(c: AtenCall) -> Value:
    x = c.tensor()
    if x.dtype is not None and not x.dtype.is_float:
        return c.op("Equal", x, x)
    return c.op("Not", c.op("Or", c.op("IsNaN", x), c.op("IsInf", x)))


@rule("prims.view_of")
def _same(c: AtenCall) -> Value:
    return c.tensor("a")


@rule("prims.transpose")
def _transposed(c: AtenCall) -> Value:
    return transposed(c, c.tensor("a"), [int(n) for n in c["permutation"]])


@rule("prims.broadcast_in_dim")
def _broadcast(c: AtenCall) -> Value:
    """Axis n of the operand becomes axis `broadcast_dimensions[n]` of the result."""
    kept = [int(n) for n in c["broadcast_dimensions"]]
    x = c.tensor("a")
    new = [n for n in range(len(c.result.shape)) if n not in kept]
    if new:
        x = c.unsqueeze(x, *new)
    return c.op("Expand", x, c.sizes(c["shape"]))


@rule("prims.iota")
def _iota(c: AtenCall) -> Value:
    given = [c[n] for n in ("length", "start", "step")]
    if all(isinstance(n, int) for n in given):
        length, start, step = given
        return c.build.constant(
            (start + step * np.arange(length)).astype(c.dtype.numpy)
        )
    length, start, step = (c.value(n, int64) for n in given)
    end = c.op("Add", start, c.op("Mul", length, step))
    return c.cast(c.op("Range", start, end, step), c.dtype)


@rule("prims.rev")
def _reversed(c: AtenCall) -> Value:
    return rule_named("aten.flip")(c)  # type: ignore[return-value]


@rule("prims.cat")
def _joined(c: AtenCall) -> Value:
    return c.op(
        "Concat", *(c.cast(v, c.dtype) for v in c["tensors"]), axis=int(c["dim"])
    )
