"""Quotients, powers, exponentials, comparisons and matrix products of complex tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilewright.frontends.torch.aten.complex_numbers import Complex, complex_rule, zeros
from tilewright.frontends.torch.aten.operators.arithmetic import is_negative
from tilewright.frontends.torch.aten.operators.complex_arithmetic import (
    as_complex,
    magnitude,
    operands,
    plus,
    times,
)
from tilewright.frontends.torch.aten.rules import AtenCall, rule_named
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

_PRODUCTS: Final = 8  # the greatest integer exponent by which powers are products


@complex_rule("aten.mm", "aten.bmm", "aten.matmul", "aten.mv", "aten.dot")
def _matrix_product(c: AtenCall) -> Complex:
    (other,) = [n for n in ("other", "mat2", "vec", "tensor") if c.has(n)]
    a, b = operands(c, "self", other)
    return times(c, a, b, "MatMul")


@complex_rule("aten.addmm", "aten.baddbmm", "aten.addmv")
def _matrix_sum(c: AtenCall) -> Complex:
    names = [n for n in ("mat", "mat1", "batch1", "mat2", "batch2", "vec") if c.has(n)]
    a, b = operands(c, *names)
    product = times(c, a, b, "MatMul")
    whole, alpha, beta = operands(c, "self", "alpha", "beta")
    product = times(c, alpha, product)
    if c["beta"] == 0:  # also where the sum is infinite or not a number
        return product
    scaled = times(c, beta, whole)
    return plus(c, scaled, product)


@complex_rule("aten.addcmul")
def _product_added(c: AtenCall) -> Complex:
    whole, a, b, value = operands(c, "self", "tensor1", "tensor2", "value")
    product = times(c, a, b)
    scaled = times(c, value, product)
    return plus(c, whole, scaled)


@complex_rule("aten.lerp")
def _between(c: AtenCall) -> Complex:
    """By the nearer end, as for real numbers."""
    start, end, weight = operands(c, "self", "end", "weight")
    gap = plus(c, end, _negative(c, start))
    size = TensorTerm(c, magnitude(c, weight))
    near = size < 0.5
    way = times(c, weight, gap)
    left = plus(c, start, way)
    minus_one = as_complex(c, -1, c.dtype)
    rest = plus(c, weight, minus_one)
    way_back = times(c, rest, gap)
    right = plus(c, end, way_back)
    real = near.chosen(left.real, right.real)
    imag = near.chosen(left.imag, right.imag)
    return Complex(
        real.value,
        imag.value,
    )


def _negative(c: AtenCall, x: Complex) -> Complex:
    return Complex(
        c.op("Neg", x.real),
        c.op("Neg", x.imag),
    )


@complex_rule("aten.ones", "aten.ones_like", "aten.new_ones")
def _ones(c: AtenCall) -> Complex:
    x = c["self"]
    if isinstance(x, Complex):
        x = x.real
    arguments = {**c.arguments, "self": x}
    name = c.name.rpartition(".")[0]
    real = _real_rule(c, name, arguments)
    none = zeros(c, real)
    return Complex(real, none)


@complex_rule("aten.linalg_vector_norm", "aten.norm")
def _norm(c: AtenCall) -> Value:
    """That of the magnitudes."""
    sizes = magnitude(c, c["self"])
    arguments = {**c.arguments, "self": sizes}
    return _real_rule(c, "aten.linalg_vector_norm", arguments)


def _real_rule(c: AtenCall, name: str, arguments: Mapping[str, Any]) -> Value:
    """The result of an operator's rule for real tensors."""
    apply = rule_named(name)
    found = apply(
        AtenCall(
            c.build,
            c.node,
            c.target,
            arguments,
            c.given,
        )
    )
    assert isinstance(found, Value)
    return found


@complex_rule("aten.isnan", "aten.isinf")
def _special(c: AtenCall) -> Value:
    """Whether one of the parts is not a number, or infinite."""
    x = c["self"]
    op_type = "IsNaN" if "isnan" in c.name else "IsInf"
    real = c.op(op_type, x.real)
    imag = c.op(op_type, x.imag)
    return c.op("Or", real, imag)


@complex_rule("aten.eq")
def _equal(c: AtenCall) -> Value:
    return _same(c)


@complex_rule("aten.ne")
def _unequal(c: AtenCall) -> Value:
    return c.op("Not", _same(c))


def _same(c: AtenCall) -> Value:
    part = c.promoted("self", "other")
    a = as_complex(c, c["self"], part)
    b = as_complex(c, c["other"], part)
    real = c.op("Equal", a.real, b.real)
    imag = c.op("Equal", a.imag, b.imag)
    return c.op("And", real, imag)


@complex_rule("aten.div", "aten.true_divide")
def _quotient(c: AtenCall) -> Complex:
    a, b = operands(c, "self", "other")
    if isinstance(c["other"], Complex | complex):
        return _divided(c, a, b)
    return Complex(
        c.op("Div", a.real, b.real),
        c.op("Div", a.imag, b.real),
    )


@complex_rule("aten.reciprocal")
def _reciprocal(c: AtenCall) -> Complex:
    return inverse(c, c["self"])


def inverse(c: AtenCall, x: Complex) -> Complex:
    one = as_complex(c, 1, c.dtype)
    return _divided(c, one, x)


def _divided(c: AtenCall, a: Complex, b: Complex) -> Complex:
    """By Smith's method: scaled by the larger part of the divisor, whose square may overflow."""
    re = TensorTerm(c, b.real)
    im = TensorTerm(c, b.imag)
    top = TensorTerm(c, a.real)
    other = TensorTerm(c, a.imag)
    wide = abs(re) >= abs(im)
    large = wide.chosen(re, im)
    small = wide.chosen(im, re)
    none = large.equals(0)
    ratio = none.chosen(0, small / large)
    divisor = none.chosen(0, large + small * ratio)
    real = wide.chosen(
        top + other * ratio,
        top * ratio + other,
    )
    imag = wide.chosen(
        other - top * ratio,
        other * ratio - top,
    )
    return Complex(
        (real / divisor).value,
        (imag / divisor).value,
    )


@complex_rule("aten.angle")
def _angle(c: AtenCall) -> Value:
    return _argument(c, c["self"])


def _argument(c: AtenCall, x: Complex) -> Value:
    """The angle from the positive real axis, in (-pi, pi]."""
    arguments = {
        "self": x.imag,
        "other": x.real,
    }
    return _real_rule(c, "aten.atan2", arguments)


@complex_rule("aten.exp")
def _exponential(c: AtenCall) -> Complex:
    return raised(c, c["self"])


def raised(c: AtenCall, x: Complex) -> Complex:
    """e to the power of x. Of infinite parts as in C99, annex G: if the angle is unknown, a size
    of 0 or infinity is still known, and a result without an angle is real."""
    re = TensorTerm(c, x.real)
    im = TensorTerm(c, x.imag)
    size = re.op("Exp")
    turning = im.op("IsInf") | im.op("IsNaN")
    unknown = re.op("IsInf") & turning
    across = unknown.chosen(1, im.op("Cos"))
    up = (unknown & (re < 0)).chosen(1, im.op("Sin"))
    imag = im.equals(0).chosen(im, size * up)
    return Complex((size * across).value, imag.value)


@complex_rule("aten.log")
def _logarithm(c: AtenCall) -> Complex:
    return _principal_log(c, c["self"])


def _principal_log(c: AtenCall, x: Complex) -> Complex:
    size = magnitude(c, x)
    return Complex(
        c.op("Log", size),
        _argument(c, x),
    )


@complex_rule("aten.log1p")
def _logarithm_of_next(c: AtenCall) -> Complex:
    """Near zero by log1p of |1 + x|^2 - 1, whose terms are small: 1 + x would round them away."""
    x = c["self"]
    re = TensorTerm(c, x.real)
    im = TensorTerm(c, x.imag)
    square = im * im
    beyond = re * (re + 2) + square
    arguments = {"self": beyond.value}
    double = _real_rule(c, "aten.log1p", arguments)
    near = TensorTerm(c, double) * 0.5
    none = near.equals(0)
    near = none.chosen(re * 0, near)  # the sign of re, which need not be small
    following = re + 1
    shifted = Complex(
        following.value,
        x.imag,
    )
    found = _principal_log(c, shifted)
    far = TensorTerm(c, found.real)
    size = TensorTerm(c, magnitude(c, x))
    real = (size < 0.5).chosen(near, far)
    return Complex(
        real.value,
        found.imag,
    )


@complex_rule("aten.sqrt")
def _square_root(c: AtenCall) -> Complex:
    return _root(c, c["self"])


@complex_rule("aten.rsqrt")
def _reciprocal_root(c: AtenCall) -> Complex:
    return inverse(c, _root(c, c["self"]))


def _root(c: AtenCall, x: Complex) -> Complex:
    """The root with a real part that is not negative, without a difference of near numbers."""
    re = TensorTerm(c, x.real)
    im = TensorTerm(c, x.imag)
    size = TensorTerm(c, magnitude(c, x))
    middle = (abs(re) + size) * 0.5
    large = middle.op("Sqrt")
    none = large.equals(0)
    small = none.chosen(0, abs(im) / (large * 2))
    right = re >= 0
    height = right.chosen(small, large)
    up = im.op("IsInf")  # infinite in both parts, even if the real one is NaN
    imag = up.chosen(im, is_negative(im).chosen(-height, height))
    real = up.chosen(abs(im), right.chosen(large, small))
    return Complex(
        real.value,
        imag.value,
    )


@complex_rule("aten.pow")
def _power(c: AtenCall) -> Complex:
    """Products for small integers, else by the logarithm, which of zero is infinite."""
    base, exponent = operands(c, "self", "exponent")
    count = _whole(c["exponent"])
    if count is not None:
        found = _repeated(c, base, abs(count))
        return inverse(c, found) if count < 0 else found
    log = _principal_log(c, base)
    return raised(c, times(c, exponent, log))


def _whole(exponent: Any) -> int | None:
    """A number that is a small integer; None for others and tensors."""
    if not isinstance(exponent, int | float) or not abs(exponent) <= _PRODUCTS:
        return None  # infinity and NaN have no integer
    return int(exponent) if exponent == int(exponent) else None


def _repeated(c: AtenCall, base: Complex, count: int) -> Complex:
    if count == 0:
        none = zeros(c, base.real)
        one = c.number(1)
        return Complex(
            c.op("Add", none, one),
            none,
        )
    found = base
    for _ in range(count - 1):
        found = times(c, found, base)
    return found
