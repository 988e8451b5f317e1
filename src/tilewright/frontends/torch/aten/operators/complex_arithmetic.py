"""Arithmetic of complex tensors, their parts and their magnitudes."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtypes import DType, float32, float64
from tilewright.frontends.torch.aten.complex_numbers import (
    Complex,
    complex_rule,
    in_pairs,
    in_parts,
)
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.terms import TensorTerm


def _zeros(c: AtenCall, like: Value) -> Value:
    """Zeros in a tensor's shape, whatever it holds."""
    return c.op("Expand", c.number(0, like.dtype), c.op("Shape", like))


def _as_complex(c: AtenCall, x: Any, part: DType) -> Complex:
    """An operand (a complex or real tensor, or a number) as a complex one with such parts."""
    if isinstance(x, Complex):
        return Complex(c.cast(x.real, part), c.cast(x.imag, part))
    if isinstance(x, Value):
        real = c.cast(x, part)
        imag = _zeros(c, real)
        return Complex(real, imag)
    number = complex(x)
    return Complex(c.number(number.real, part), c.number(number.imag, part))


def _operands(c: AtenCall) -> tuple[Complex, Complex]:
    """Both operands with parts of the result's type: a real one may be wider than a complex one."""
    part = _part_of(c)
    return _as_complex(c, c["self"], part), _as_complex(c, c["other"], part)


def _part_of(c: AtenCall) -> DType:
    """The type of the parts of a complex result."""
    import torch

    parts = {torch.complex64: float32, torch.complex128: float64}
    if c.result.dtype not in parts:
        raise c.refuse(f"its result is {c.result.dtype}")
    return parts[c.result.dtype]


@complex_rule("aten._to_copy", "aten.to", "prims.convert_element_type")
def _converted(c: AtenCall) -> Complex | Value:
    """To complex: with a zero imaginary part; to a real type: only the real part."""
    if c.has("self"):
        x = c["self"]
    else:
        x = c["a"]
    if not c.result.dtype.is_complex:
        return c.cast(x.real, c.dtype)
    dtype = _part_of(c)
    if isinstance(x, Complex):
        return Complex(c.cast(x.real, dtype), c.cast(x.imag, dtype))
    real = c.cast(x, dtype)
    imag = _zeros(c, real)
    return Complex(real, imag)


@complex_rule("aten.complex")
def _joined(c: AtenCall) -> Complex:
    real = c.tensor("real")
    imag = c.tensor("imag")
    zero_real = _zeros(c, real)
    zero_imag = _zeros(c, imag)
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


@complex_rule("aten.add", "aten.sub")
def _sum(c: AtenCall) -> Complex:
    a, b = _operands(c)
    if c["alpha"] not in (None, 1):
        raise c.refuse("one of its complex operands is scaled")
    op_type = "Add" if ".add." in f"{c.name}." else "Sub"
    real = c.op(op_type, a.real, b.real)
    imag = c.op(op_type, a.imag, b.imag)
    return Complex(real, imag)


@complex_rule("aten.mul")
def _product(c: AtenCall) -> Complex:
    a, b = _operands(c)

    def mul(x: Value, y: Value) -> Value:
        return c.op("Mul", x, y)

    real = c.op("Sub", mul(a.real, b.real), mul(a.imag, b.imag))
    imag = c.op("Add", mul(a.real, b.imag), mul(a.imag, b.real))
    return Complex(real, imag)


@complex_rule("aten.neg")
def _negated(c: AtenCall) -> Complex:
    x = c["self"]
    real = c.op("Neg", x.real)
    imag = c.op("Neg", x.imag)
    return Complex(real, imag)


@complex_rule("aten._conj", "aten._conj_physical", "aten.conj_physical")
def _conjugated(c: AtenCall) -> Complex:
    imag = c.op("Neg", c["self"].imag)
    return Complex(c["self"].real, imag)


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
    size = TensorTerm(c, _magnitude(c, x))
    divisor = size.equals(0).chosen(1, size).value
    return Complex(c.op("Div", x.real, divisor), c.op("Div", x.imag, divisor))


@complex_rule("aten.abs")
def _size(c: AtenCall) -> Value:
    return _magnitude(c, c["self"])


def _magnitude(c: AtenCall, x: Complex) -> Value:
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
