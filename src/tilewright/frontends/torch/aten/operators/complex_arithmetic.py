"""Arithmetic of complex tensors, their parts and their magnitudes."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.frontends.torch.aten.complex_numbers import (
    Complex,
    complex_rule,
    in_pairs,
    in_parts,
    zeros,
)
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.terms import TensorTerm


def as_complex(c: AtenCall, x: Any, part: DType) -> Complex:
    """An operand (a complex or real tensor, or a number) as a complex one with such parts."""
    if isinstance(x, Complex):
        return Complex(c.cast(x.real, part), c.cast(x.imag, part))
    if isinstance(x, Value):
        real = c.cast(x, part)
        imag = zeros(c, real)
        return Complex(real, imag)
    number = complex(x)
    return Complex(
        c.number(number.real, part),
        c.number(number.imag, part),
    )


def operands(c: AtenCall, *names: str) -> list[Complex]:
    """Operands with parts of the result's type: a real one may be wider than a complex one."""
    return [as_complex(c, c[name], c.dtype) for name in names]


@complex_rule("aten._to_copy", "aten.to", "prims.convert_element_type")
def _converted(c: AtenCall) -> Complex | Value:
    """To complex: with a zero imaginary part; to a real type: only the real part."""
    if c.has("self"):
        x = c["self"]
    else:
        x = c["a"]
    if not c.result.dtype.is_complex:
        return c.cast(x.real, c.dtype)
    dtype = c.dtype
    if isinstance(x, Complex):
        return Complex(c.cast(x.real, dtype), c.cast(x.imag, dtype))
    real = c.cast(x, dtype)
    imag = zeros(c, real)
    return Complex(real, imag)


@complex_rule("aten.complex")
def _joined(c: AtenCall) -> Complex:
    real = c.tensor("real")
    imag = c.tensor("imag")
    zero_real = zeros(c, real)
    zero_imag = zeros(c, imag)
    # Broadcast each part to the common shape; adding zeros would lose signs.
    shape = c.op("Shape", c.op("Add", zero_real, zero_imag))
    return Complex(c.op("Expand", real, shape), c.op("Expand", imag, shape))


@complex_rule("aten.polar")
def _polar(c: AtenCall) -> Complex:
    size = c.tensor("abs")
    angle = c.tensor("angle")
    parts = (c.op(name, angle) for name in ("Cos", "Sin"))
    real, imag = (c.op("Mul", size, part) for part in parts)
    return Complex(real, imag)


@complex_rule("aten.view_as_complex")
def _paired(c: AtenCall) -> Complex:
    pairs = c.tensor()
    return in_parts(c, pairs)


@complex_rule("aten.view_as_real")
def _as_pairs(c: AtenCall) -> Value:
    return in_pairs(c, c["self"])


@complex_rule("aten.add", "aten.sub", "aten.rsub")
def _sum(c: AtenCall) -> Complex:
    a, b = operands(c, "self", "other")
    packet = c.name.rpartition(".")[0]
    if packet == "aten.rsub":
        a, b = b, a
    if c["alpha"] not in (None, 1):
        (alpha,) = operands(c, "alpha")
        b = times(c, b, alpha)
    op_type = "Add" if packet == "aten.add" else "Sub"
    real = c.op(op_type, a.real, b.real)
    imag = c.op(op_type, a.imag, b.imag)
    return Complex(real, imag)


def plus(c: AtenCall, a: Complex, b: Complex) -> Complex:
    return Complex(
        c.op("Add", a.real, b.real),
        c.op("Add", a.imag, b.imag),
    )


@complex_rule("aten.mul")
def _product(c: AtenCall) -> Complex:
    a, b = operands(c, "self", "other")
    return times(c, a, b)


def times(c: AtenCall, a: Complex, b: Complex, op_type: str = "Mul") -> Complex:
    """The product by an operator that is linear in both."""

    def mul(x: Value, y: Value) -> Value:
        return c.op(op_type, x, y)

    real_parts = mul(a.real, b.real)
    imag_parts = mul(a.imag, b.imag)
    right = mul(a.real, b.imag)
    left = mul(a.imag, b.real)
    return Complex(
        c.op("Sub", real_parts, imag_parts),
        c.op("Add", right, left),
    )


@complex_rule("aten.neg")
def _negated(c: AtenCall) -> Complex:
    (x,) = operands(c, "self")
    real = c.op("Neg", x.real)
    imag = c.op("Neg", x.imag)
    return Complex(real, imag)


@complex_rule("aten._conj", "aten._conj_physical", "aten.conj_physical")
def _conjugated(c: AtenCall) -> Complex:
    (x,) = operands(c, "self")
    return Complex(x.real, c.op("Neg", x.imag))


@complex_rule("aten.resolve_conj", "aten.resolve_neg")
def _resolved(c: AtenCall) -> Complex:
    found: Complex = c["self"]
    return found


@complex_rule("aten.real")
def _real(c: AtenCall) -> Value:
    found: Value = c["self"].real
    return found


@complex_rule("aten.imag")
def _imaginary(c: AtenCall) -> Value:
    found: Value = c["self"].imag
    return found


@complex_rule("aten.sgn")
def _direction(c: AtenCall) -> Complex:
    """The number over its size; zero of zero."""
    x = c["self"]
    size = TensorTerm(c, magnitude(c, x))
    divisor = size.equals(0).chosen(1, size).value
    return Complex(c.op("Div", x.real, divisor), c.op("Div", x.imag, divisor))


@complex_rule("aten.abs")
def _size(c: AtenCall) -> Value:
    return magnitude(c, c["self"])


def magnitude(c: AtenCall, x: Complex) -> Value:
    """Scaled by the larger part, so that squares do not overflow."""
    pairs = in_pairs(c, x)
    sizes = c.op("Abs", pairs)
    axes = c.ints(-1)
    most = TensorTerm(c, c.op("ReduceMax", sizes, axes, keepdims=1))
    divisor = most.equals(0).chosen(1, most)
    scaled = (TensorTerm(c, pairs) / divisor).value
    shares = c.op("ReduceL2", scaled, axes, keepdims=0)
    found = c.op("Mul", shares, c.squeeze(divisor.value, -1))
    # If a part is infinite, the magnitude is infinite, whatever the other part is.
    ends = c.op("Cast", c.op("IsInf", pairs), to=number_of("int32"))
    infinite = c.op(
        "Cast", c.op("ReduceMax", ends, c.ints(-1), keepdims=0), to=number_of("bool")
    )
    return c.op("Where", infinite, c.number(math.inf, pairs.dtype), found)
