"""Sines, hyperbolic functions and products along an axis, of complex tensors."""

from __future__ import annotations

import math

from tilewright.frontends.torch.aten.complex_numbers import (
    Complex,
    ComplexResult,
    complex_rule,
)
from tilewright.frontends.torch.aten.operators.arithmetic import is_negative
from tilewright.frontends.torch.aten.operators.complex_arithmetic import (
    as_complex,
    operands,
    plus,
    times,
)
from tilewright.frontends.torch.aten.operators.complex_functions import inverse, raised
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm


@complex_rule("aten.sin")
def _sine(c: AtenCall) -> Complex:
    return _waves(c, c["self"], ("Sin", "Cosh"), ("Cos", "Sinh"))


@complex_rule("aten.cos")
def _cosine(c: AtenCall) -> Complex:
    found = _waves(c, c["self"], ("Cos", "Cosh"), ("Sin", "Sinh"))
    return Complex(found.real, c.op("Neg", found.imag))


@complex_rule("aten.sinh")
def _hyperbolic_sine(c: AtenCall) -> Complex:
    return _waves(c, c["self"], ("Sinh", "Cos"), ("Cosh", "Sin"))


@complex_rule("aten.cosh")
def _hyperbolic_cosine(c: AtenCall) -> Complex:
    return _waves(c, c["self"], ("Cosh", "Cos"), ("Sinh", "Sin"))


def _waves(
    c: AtenCall, x: Complex, real: tuple[str, str], imag: tuple[str, str]
) -> Complex:
    """For each part the product of a function of the real part and one of the imaginary part."""

    def product(of_real: str, of_imag: str) -> Value:
        a = c.op(of_real, x.real)
        b = c.op(of_imag, x.imag)
        return c.op("Mul", a, b)

    return Complex(
        product(*real),
        product(*imag),
    )


@complex_rule("aten.tanh")
def _hyperbolic_tangent(c: AtenCall) -> Complex:
    return _tanh(c, c["self"])


@complex_rule("aten.tan")
def _tangent(c: AtenCall) -> Complex:
    """`-i tanh(iz)`."""
    x: Complex = c["self"]
    turned = _tanh(c, Complex(c.op("Neg", x.imag), x.real))
    return Complex(turned.imag, c.op("Neg", turned.real))


def _tanh(c: AtenCall, x: Complex) -> Complex:
    """sinh over cosh, both times a power of e that keeps them finite.

    With e = exp(-2 |re|): `(1 - e)(1 + e)` and `4 e sin cos` over `(1 - e)^2 + 4 e cos^2`.
    """
    re = TensorTerm(c, x.real)
    im = TensorTerm(c, x.imag)
    size = abs(re) * -2
    e = size.op("Exp")
    less = _less_one(c, size)  # 1 - e, also of small numbers
    across = im.op("Cos")
    divisor = less * less + e * 4 * across * across
    real = less * (e + 1) / divisor
    imag = e * 4 * im.op("Sin") * across / divisor
    return Complex(is_negative(re).chosen(-real, real).value, imag.value)


def _less_one(c: AtenCall, x: TensorTerm) -> TensorTerm:
    """`1 - exp(x)` of numbers up to zero, by the tangent of half of them."""
    half = (x * 0.5).op("Tanh")
    return half * -2 / (half * -1 + 1)


@complex_rule("aten.sigmoid")
def _sigmoid(c: AtenCall) -> Complex:
    return _logistic(c, c["self"])


@complex_rule("aten.silu")
def _silu(c: AtenCall) -> Complex:
    x: Complex = c["self"]
    return times(c, x, _logistic(c, x))


def _logistic(c: AtenCall, x: Complex) -> Complex:
    minus = Complex(c.op("Neg", x.real), c.op("Neg", x.imag))
    one = as_complex(c, 1, c.dtype)
    power = raised(c, minus)
    both = plus(c, one, power)
    return inverse(c, both)


@complex_rule("aten.tanh_backward")
def _tanh_gradient(c: AtenCall) -> Complex:
    flow, y = operands(c, "grad_output", "output")
    square = times(c, y, y)
    return _times_conjugate(c, flow, _one_less(c, square))


@complex_rule("aten.sigmoid_backward")
def _sigmoid_gradient(c: AtenCall) -> Complex:
    flow, y = operands(c, "grad_output", "output")
    slope = times(c, y, _one_less(c, y))
    return _times_conjugate(c, flow, slope)


def _one_less(c: AtenCall, x: Complex) -> Complex:
    one = c.number(1)
    real = c.op("Sub", one, x.real)
    imag = c.op("Neg", x.imag)
    return Complex(real, imag)


def _times_conjugate(c: AtenCall, flow: Complex, slope: Complex) -> Complex:
    minus = c.op("Neg", slope.imag)
    return times(c, flow, Complex(slope.real, minus))


@complex_rule("aten.exp2")
def _power_of_two(c: AtenCall) -> Complex:
    x: Complex = c["self"]
    log = c.number(math.log(2))
    real = c.op("Mul", x.real, log)
    imag = c.op("Mul", x.imag, log)
    return raised(c, Complex(real, imag))


# -- products along an axis: few steps of whole tensors, as no operator takes pairs in turn


@complex_rule("aten.prod")
def _product(c: AtenCall) -> Complex:
    """Halves of the axis multiply each other until one element is left."""
    (x,) = operands(c, "self")
    if not c.has("dim"):
        x = Complex(c.reshape(x.real, [-1]), c.reshape(x.imag, [-1]))
        axis = 0
        extent = _number(c, c.of("self").numel())
    else:
        axis = c.axis()
        extent = _number(c, c.of("self").shape[axis] if c.rank() else 1)
        if not c.rank():
            return x
    while extent > 1:
        half = extent // 2
        a = _part(c, x, axis, 0, half)
        b = _part(c, x, axis, half, 2 * half)
        rest = _part(c, x, axis, 2 * half, extent)
        x = times(c, a, b)
        if extent % 2:
            x = _joined(c, x, rest, axis)
        extent = half + extent % 2
    if extent == 0:
        raise c.refuse("it multiplies no complex numbers")
    if c["keepdim"]:
        return x
    real = c.squeeze(x.real, axis)
    imag = c.squeeze(x.imag, axis)
    return Complex(real, imag)


@complex_rule("aten.cumprod")
def _running_product(c: AtenCall) -> Complex:
    """Each element times the one 1, 2, 4, .. places before it."""
    (x,) = operands(c, "self")
    if not c.rank():
        return x
    axis = c.axis()
    extent = _number(c, c.of("self").shape[axis])
    step = 1
    while step < extent:
        first = _part(c, x, axis, 0, step)
        before = _part(c, x, axis, 0, extent - step)
        after = _part(c, x, axis, step, extent)
        x = _joined(c, first, times(c, after, before), axis)
        step *= 2
    return x


def _number(c: AtenCall, extent: int) -> int:
    if type(extent) is not int:
        raise c.refuse("its extents are known only at run time")
    return extent


def _part(c: AtenCall, x: Complex, axis: int, start: int, stop: int) -> Complex:
    def cut(v: Value) -> Value:
        return c.op("Slice", v, c.ints(start), c.ints(stop), c.ints(axis))

    return Complex(cut(x.real), cut(x.imag))


def _joined(c: AtenCall, a: Complex, b: Complex, axis: int) -> Complex:
    return Complex(
        c.op("Concat", a.real, b.real, axis=axis),
        c.op("Concat", a.imag, b.imag, axis=axis),
    )


# -- whether they are zero


@complex_rule("aten.logical_not")
def _is_zero(c: AtenCall) -> Value:
    return c.op("Not", _truth(c, "self"))


@complex_rule("aten.logical_and", "aten.logical_or", "aten.logical_xor")
def _logic(c: AtenCall) -> ComplexResult:
    name = c.name.split(".")[1].removeprefix("logical_").capitalize()
    return c.op(name, _truth(c, "self"), _truth(c, "other"))


def _truth(c: AtenCall, name: str) -> Value:
    """Whether a part is not zero."""
    held = c[name]
    parts = [held.real, held.imag] if isinstance(held, Complex) else [held]
    found = []
    for part in parts:
        none = TensorTerm(c, part).equals(0).value
        found.append(c.op("Not", none))
    return c.op("Or", *found) if len(found) == 2 else found[0]
