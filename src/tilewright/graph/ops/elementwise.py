"""Unary elementwise operators, one row each.

A row gives the scalar function as an expression and, for the reference, on NumPy arrays. Floats
narrower than float32 are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, float64, int64
from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Max, Min, Select, call, const
from tilewright.graph.ops.broadcasting import wide, widened
from tilewright.graph.ops.derivative import by, no_derivative
from tilewright.graph.ops.registry import Array, Gradient, OpCall, OpDef, Type, register
from tilewright.graph.ops.terms import TensorTerm
from tilewright.graph.ops.traits import IDEMPOTENT, MOVES_DATA, POINTWISE, Trait

Scalar = Callable[[OpCall, Expr], Expr]
OnArrays = Callable[[OpCall, Array], Any]

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


def same_type(op: OpCall) -> Sequence[Type]:
    """The type of input 0."""
    return op.result(op.shape(0))


def unary(
    name: str,
    scalar: Scalar,
    arrays: OnArrays,
    *,
    result: DType | None = None,
    cost: int = 1,
    since: int = 1,
    traits: Trait = Trait.NONE,
    gradient: Gradient | None = None,
) -> None:
    """Register an operator of one operand. result: its dtype, if it is not the operand's.

    traits: in addition to POINTWISE.
    """

    def infer(op: OpCall) -> Sequence[Type]:
        return [(result or op.dtype(0), op.shape(0))]

    def compute(
        op: OpCall,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
    ) -> list[Computation]:
        x = inputs[0]
        out = outputs[0]
        return [map_(op.name, out, lambda *i: cast(scalar(op, wide(x[i])), out.dtype))]

    def reference(op: OpCall, x: Any) -> list[Any] | None:
        if not isinstance(x, np.ndarray):
            return None
        dtype = x.dtype if result is None else result.numpy
        return [np.asarray(arrays(op, widened(x))).astype(dtype)]

    register(
        OpDef(
            name,
            infer,
            since=since,
            compute=compute,
            reference=reference,
            flops=lambda op: cost * op.size_out(0),
            traits=POINTWISE | traits,
            gradient=gradient,
        )
    )


def _function(name: str) -> Scalar:
    return lambda _, x: call(name, x)


def _ufunc(f: Callable[[Any], Any]) -> OnArrays:
    return lambda _, x: f(x)


def erf(x: Array) -> Array:
    """The error function, element by element."""
    found: Array = np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x
    return found


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _softplus(x: Expr) -> Expr:
    return Max(x, const(0, x.dtype)) + call("log1p", call("exp", -call("abs", x)))


def _sign(x: Expr) -> Expr:
    zero = const(0, x.dtype)
    negative = x
    if x.dtype.is_signed:
        negative = Select(x < zero, const(-1, x.dtype), x)
    return Select(x > zero, const(1, x.dtype), negative)


def _expm1_below(x: Expr, scale: Expr | float) -> Expr:
    """x for positive x, scale * (exp(x) - 1) otherwise."""
    return Select(x < 0, call("expm1", x) * scale, x)


def gelu(x: Expr, approximate: str) -> Expr:
    """Gaussian error linear unit; approximate: "none" or "tanh"."""
    if approximate == "tanh":
        inner = (x + 0.044715 * (x * x * x)) * math.sqrt(2 / math.pi)
        return 0.5 * x * (1.0 + call("tanh", inner))
    return 0.5 * x * (1.0 + call("erf", x * math.sqrt(0.5)))


def _gelu_arrays(op: OpCall, x: Array) -> Any:
    if op.attr("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _hard_sigmoid(
    op: OpCall,
    x: Expr,
    alpha: float,
    beta: float,
) -> Expr:
    return Max(
        const(0, x.dtype),
        Min(const(1, x.dtype), x * alpha + beta),
    )


def _elu(op: OpCall, x: Expr) -> Expr:
    return _expm1_below(x, const(op.attr("alpha", 1.0), x.dtype))


def _selu(op: OpCall, x: Expr) -> Expr:
    alpha = op.attr("alpha", SELU_ALPHA)
    gamma = op.attr("gamma", SELU_GAMMA)
    return _expm1_below(x, const(alpha, x.dtype)) * const(gamma, x.dtype)


def _celu(op: OpCall, x: Expr) -> Expr:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)): NaN above 0 too, where alpha is 0."""
    zero = const(0, x.dtype)
    alpha = op.attr("alpha", 1.0)
    below = alpha * call("expm1", x / alpha)
    return Select(zero < x, x + Min(zero, below), below)


def _shrink(op: OpCall, x: Expr) -> Expr:
    """Integers use float64 to keep fractions exact; the result is truncated and wraps."""
    bias = op.attr("bias", 0.0)
    lambd = op.attr("lambd", 0.5)
    if x.dtype.is_int:
        real = cast(x, float64)
        none = const(0.0, float64)
        bent = Select(
            real < -lambd, real + bias, Select(real > lambd, real - bias, none)
        )
        return cast(cast(bent, int64), x.dtype)
    return Select(
        x < -lambd,
        x + bias,
        Select(x > lambd, x - bias, const(0, x.dtype)),
    )


def _isinf(op: OpCall, x: Expr) -> Expr:
    found: Expr = call("isinf", x)
    if not op.attr("detect_positive", 1):
        found = found & (x < 0)
    if not op.attr("detect_negative", 1):
        found = found & (x > 0)
    return found


def _isinf_arrays(op: OpCall, x: Array) -> Any:
    positive = np.isposinf(x) & bool(op.attr("detect_positive", 1))
    return positive | (np.isneginf(x) & bool(op.attr("detect_negative", 1)))


# (the operand, the result, the gradient of the result) -> the gradient of the operand
Slope = Callable[[TensorTerm, TensorTerm, TensorTerm], TensorTerm]


def _by(slope: Slope) -> Gradient:
    return by(lambda x, y, g: [slope(x[0], y, g)])


def _relu_gradient(_: TensorTerm, y: TensorTerm, g: TensorTerm) -> TensorTerm:
    zero = y.of(0)
    return (y > zero).chosen(g, zero)


def _abs_gradient(x: TensorTerm, _: TensorTerm, g: TensorTerm) -> TensorTerm:
    """Without a sign, which has no derivative, so that this one has."""
    zero = x.of(0)
    return (x > zero).chosen(g, (x < zero).chosen(-g, zero))


def _sigmoid_gradient(_: TensorTerm, y: TensorTerm, g: TensorTerm) -> TensorTerm:
    """g * y * (1 - y)"""
    flow = g * y
    return flow - flow * y


def _mish_gradient(x: TensorTerm, y: TensorTerm, g: TensorTerm) -> TensorTerm:
    """t + s * (1 - t * t) with t = tanh(softplus(x)) and s = x * sigmoid(x).

    The brackets keep t from being lost next to a large s.
    """
    t = x.op("Softplus").op("Tanh")
    bent = x * x.op("Sigmoid")
    slope = t + (bent - bent * (t * t))
    return g * slope


_SMOOTH: tuple[tuple[str, str, Any, Slope], ...] = (
    # ONNX's name, function of an expression, NumPy's, the derivative
    ("Exp", "exp", np.exp, lambda x, y, g: g * y),
    ("Log", "log", np.log, lambda x, y, g: g / x),
    ("Sqrt", "sqrt", np.sqrt, lambda x, y, g: g / (y + y)),
    ("Sin", "sin", np.sin, lambda x, y, g: g * x.op("Cos")),
    ("Cos", "cos", np.cos, lambda x, y, g: -(g * x.op("Sin"))),
    ("Tanh", "tanh", np.tanh, lambda x, y, g: g - g * (y * y)),
    ("Sigmoid", "sigmoid", sigmoid, _sigmoid_gradient),
)
for _name, _scalar, _arrays, _formula in _SMOOTH:
    unary(
        _name,
        _function(_scalar),
        _ufunc(_arrays),
        gradient=_by(_formula),
    )

_SIMPLE = (
    ("Tan", "tan", np.tan),
    ("Asin", "arcsin", np.arcsin),
    ("Acos", "arccos", np.arccos),
    ("Atan", "arctan", np.arctan),
    ("Sinh", "sinh", np.sinh),
    ("Cosh", "cosh", np.cosh),
    ("Asinh", "arcsinh", np.arcsinh),
    ("Acosh", "arccosh", np.arccosh),
    ("Atanh", "arctanh", np.arctanh),
    ("Erf", "erf", erf),
)
for _name, _scalar, _arrays in _SIMPLE:
    unary(_name, _function(_scalar), _ufunc(_arrays), cost=1)

_STEPS = "it is piecewise constant"
_WHOLE = (
    ("Floor", "floor", np.floor),
    ("Ceil", "ceil", np.ceil),
    ("Round", "round_even", np.rint),
)
for _name, _scalar, _arrays in _WHOLE:
    unary(
        _name,
        _function(_scalar),
        _ufunc(_arrays),
        traits=IDEMPOTENT,
        gradient=no_derivative(_STEPS),
    )

unary(
    "Identity",
    lambda _, x: x,
    lambda _, x: x,
    cost=0,
    traits=IDEMPOTENT | MOVES_DATA,
    gradient=_by(lambda x, y, g: g),
)
unary(
    "Abs",
    lambda _, x: call("abs", x) if x.dtype.is_signed else x,
    _ufunc(np.abs),
    traits=IDEMPOTENT,
    gradient=_by(_abs_gradient),
)
unary(
    "Neg",
    lambda _, x: -x,
    _ufunc(np.negative),
    gradient=_by(lambda x, y, g: -g),
)
unary(
    "Reciprocal",
    lambda _, x: 1.0 / x,
    lambda _, x: 1 / x,
    gradient=_by(lambda x, y, g: -(g * (y * y))),
)
unary(
    "Sign",
    lambda _, x: _sign(x),
    _ufunc(np.sign),
    traits=IDEMPOTENT,
    gradient=no_derivative(_STEPS),
)
unary("Not", lambda _, x: ~x, _ufunc(np.logical_not))
unary("BitwiseNot", lambda _, x: ~x, _ufunc(np.bitwise_not))
unary(
    "IsNaN",
    _function("isnan"),
    _ufunc(np.isnan),
    result=dtypes.bool_,
)
unary("IsInf", _isinf, _isinf_arrays, result=dtypes.bool_)
unary(
    "Relu",
    lambda _, x: Max(x, const(0, x.dtype)),
    lambda _, x: np.maximum(x, 0),
    traits=IDEMPOTENT,
    gradient=_by(_relu_gradient),
)
unary(
    "Softplus",
    lambda _, x: _softplus(x),
    lambda _, x: np.logaddexp(x, np.zeros_like(x)),
    cost=3,
    gradient=_by(lambda x, y, g: g * x.op("Sigmoid")),
)
unary(
    "Softsign",
    lambda _, x: x / (1.0 + call("abs", x)),
    lambda _, x: x / (1 + np.abs(x)),
    cost=2,
)
unary(
    "LeakyRelu",
    lambda op, x: Select(x < 0, op.attr("alpha", 0.01) * x, x),
    lambda op, x: np.where(x < 0, op.attr("alpha", 0.01) * x, x),
)
unary(
    "ThresholdedRelu",
    lambda op, x: Select(x > op.attr("alpha", 1.0), x, const(0, x.dtype)),
    lambda op, x: np.where(x > op.attr("alpha", 1.0), x, 0),
)
unary(
    "Elu",
    _elu,
    lambda op, x: np.where(x < 0, op.attr("alpha", 1.0) * np.expm1(x), x),
    cost=2,
)
unary(
    "Selu",
    _selu,
    lambda op, x: (
        op.attr("gamma", SELU_GAMMA)
        * np.where(x < 0, op.attr("alpha", SELU_ALPHA) * np.expm1(x), x)
    ),
    cost=3,
)
unary(
    "Celu",
    _celu,
    lambda op, x: (
        np.maximum(0, x)
        + np.minimum(0, op.attr("alpha", 1.0) * np.expm1(x / op.attr("alpha", 1.0)))
    ),
    cost=4,
)
unary(
    "HardSigmoid",
    lambda op, x: _hard_sigmoid(op, x, op.attr("alpha", 0.2), op.attr("beta", 0.5)),
    lambda op, x: np.clip(x * op.attr("alpha", 0.2) + op.attr("beta", 0.5), 0, 1),
    cost=4,
)
unary(
    "HardSwish",
    lambda op, x: x * _hard_sigmoid(op, x, 1 / 6, 0.5),
    lambda _, x: x * np.clip(x / 6 + 0.5, 0, 1),
    cost=5,
)
unary(
    "Mish",
    lambda _, x: x * call("tanh", _softplus(x)),
    lambda _, x: x * np.tanh(np.logaddexp(x, np.zeros_like(x))),
    cost=5,
    gradient=_by(_mish_gradient),
)
unary(
    "Gelu",
    lambda op, x: gelu(x, op.attr("approximate", "none")),
    _gelu_arrays,
    cost=5,
    since=20,
)
unary(
    "Swish",
    lambda op, x: x * call("sigmoid", op.attr("alpha", 1.0) * x),
    lambda op, x: x * sigmoid(op.attr("alpha", 1.0) * x),
    cost=3,
    since=24,
)
unary(
    "Shrink",
    _shrink,
    lambda op, x: np.where(
        x < -op.attr("lambd", 0.5),
        x + op.attr("bias", 0.0),
        np.where(x > op.attr("lambd", 0.5), x - op.attr("bias", 0.0), 0),
    ),
    since=9,
)
