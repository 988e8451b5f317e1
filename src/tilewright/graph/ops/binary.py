"""Elementwise operators of two or more operands, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    And,
    Buffer,
    Const,
    Div,
    Eq,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Or,
    Rem,
    Select,
    Shl,
    Shr,
    Xor,
    call,
    const,
    var,
)
from tilewright.graph.ops.broadcasting import broadcast, operand, wide, widened
from tilewright.graph.ops.derivative import by
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.integer_power import integer_power
from tilewright.graph.ops.registry import Array, Gradient, OpCall, OpDef, Type, register
from tilewright.graph.ops.terms import TensorTerm
from tilewright.graph.ops.traits import COMMUTATIVE, MIXES_TYPES, POINTWISE, Trait

Scalar = Callable[..., Expr]
OnArrays = Callable[..., Any]


def nary(
    name: str,
    scalar: Scalar,
    arrays: OnArrays,
    *,
    result: DType | None = None,
    like: int = 0,
    cost: int = 1,
    since: int = 1,
    traits: Trait = Trait.NONE,
    gradient: Gradient | None = None,
) -> None:
    """Register an elementwise operator on broadcast operands.

    scalar, arrays: the call, then one argument per operand. result: its dtype; by default that of
    operand `like`. traits: in addition to POINTWISE.
    """

    def infer(op: OpCall) -> Sequence[Type]:
        if _start(op) is not None:
            return [(result or op.dtype(like), op.shape(0))]
        shapes = [op.shape(i) for i in range(op.arity) if op.has(i)]
        return [(result or op.dtype(like), broadcast(op, *shapes))]

    def compute(
        op: OpCall,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
    ) -> list[Computation]:
        out = outputs[0]

        def at(*i: Any) -> Expr:
            points = _points(op, inputs, i)
            values = [operand(op, inputs, n, point) for n, point in enumerate(points)]
            args = [wide(value) for value in values]
            found = scalar(op, *args)
            return cast(found, out.dtype)

        return [map_(op.name, out, at)]

    def reference(op: OpCall, *operands: Array) -> list[Any]:
        operands = _aligned(op, operands)
        dtype = operands[like].dtype if result is None else result.numpy
        found = arrays(op, *(widened(a) for a in operands))
        shape = np.broadcast_shapes(*(a.shape for a in operands))
        return [np.broadcast_to(np.asarray(found).astype(dtype), shape)]

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


def _start(op: OpCall) -> int | None:
    """Before version 7: the axis of operand 0 at which operand 1 starts, if set."""
    if op.version >= 7:
        return None
    if op.operation.qualified == "PRelu":
        return 1
    axis: int | None = op.attr("axis")
    return axis


def _axes(start: int, rank: int, count: int) -> slice:
    """The `count` axes from `start` on, of `rank`; the last ones if too few remain."""
    first = min(start % max(rank, 1), rank - count)
    return slice(first, first + count)


def _points(op: OpCall, inputs: Sequence[Buffer], i: Any) -> list[Any]:
    """The point at which each operand is read for point `i` of the result."""
    points = [i] * op.arity
    start = _start(op)
    if start is not None:
        points[1] = i[_axes(start, len(i), len(inputs[1].shape))]
    return points


def _aligned(op: OpCall, operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """The operands, with axes of extent 1 appended to the second one to align it with the first."""
    start = _start(op)
    if start is None:
        return operands
    a, b = operands
    axes = _axes(start, a.ndim, b.ndim)
    behind = a.ndim - axes.stop
    shape = (*b.shape, *(1,) * behind)
    return a, b.reshape(shape)


def _folded(node: Callable[[Expr, Expr], Expr]) -> Scalar:
    return lambda _, *args: reduce(node, args)


def _divide_arrays(_: OpCall, a: Array, b: Array) -> Any:
    if a.dtype.kind in "iu":
        quotient = np.floor_divide(a, np.where(b == 0, 1, b))
        remainder = a - quotient * np.where(b == 0, 1, b)
        toward_zero = quotient + ((remainder != 0) & ((a < 0) != (b < 0)))
        return np.where(b == 0, 0, toward_zero)
    return a / b


def _mod(op: OpCall, a: Expr, b: Expr) -> Expr:
    if op.attr("fmod", 0):
        return Rem(a, b)
    return Mod(a, b)


def _power(_: OpCall, base: Expr, exponent: Expr) -> Expr:
    """base ** exponent in the base's dtype; whole powers of integers are exact and wrap around.

    An integer to a float exponent is computed in float64 and saturates.
    """
    if isinstance(exponent, Const):
        known = float(exponent.value.real)
    else:
        known = None
    if known in (1.0, 2.0, 3.0):
        return reduce(lambda a, b: a * b, [base] * int(known))
    if base.dtype.is_float:
        if known == 0.5:
            return call("sqrt", base)
        if known == -1.0:
            return 1.0 / base
        return call("pow", base, cast(exponent, base.dtype))
    if exponent.dtype.is_int:
        return integer_power(base, exponent)
    whole = call(
        "pow",
        cast(base, dtypes.float64),
        cast(exponent, dtypes.float64),
    )
    return cast(whole, base.dtype)


def _shift(op: OpCall, a: Expr, b: Expr) -> Expr:
    if op.attr("direction") == "LEFT":
        return Shl(a, b)
    return Shr(a, b)


def _shift_arrays(op: OpCall, a: Array, b: Array) -> Any:
    if op.attr("direction") == "LEFT":
        return np.left_shift(a, b)
    return np.right_shift(a, b)


def _power_arrays(_: OpCall, base: Array, exponent: Array) -> Any:
    if base.dtype.kind not in "iu":
        return np.power(base, exponent.astype(base.dtype))
    if exponent.dtype.kind in "iu":
        whole = np.power(base.astype(np.uint64), exponent.astype(np.uint64))
        fraction = (exponent < 0) & (np.abs(base) != 1)
        return np.where(fraction, 0, whole).astype(base.dtype)
    with np.errstate(all="ignore"):
        whole = np.power(base.astype(np.float64), exponent.astype(np.float64))
    # Convert as `_power` does: NumPy's own conversion of values out of range is undefined.
    real = var("real", dtypes.float64)
    return evaluate(cast(real, dtypes.dtype_of(base.dtype)), {real: whole})


def _div_gradient(
    x: Sequence[TensorTerm],
    y: TensorTerm,
    g: TensorTerm,
) -> list[TensorTerm]:
    part = g / x[1]
    return [part, -(part * y)]


def _pow_gradient(
    x: Sequence[TensorTerm],
    y: TensorTerm,
    g: TensorTerm,
) -> list[TensorTerm]:
    """x ** 0 is 1 everywhere, and 0 ** e with e >= 0 has slope 0 along e, not 0 * infinity."""
    base, exponent = x
    none = base.of(0)
    zero = exponent.of(0)
    less = exponent - 1
    slope = base.op("Pow", less) * exponent.op("CastLike", base)
    slope = exponent.equals(zero).chosen(none, slope)
    rise = y * base.op("Log")
    flat = base.equals(none) & (exponent >= zero)
    return [g * slope, g * flat.chosen(none, rise)]


def _mod_gradient(
    x: Sequence[TensorTerm],
    y: TensorTerm,
    g: TensorTerm,
) -> list[TensorTerm]:
    """x - trunc(x / w) * w, with the quotient treated as constant."""
    quotient = (x[0] - y) / x[1]
    return [g, -(g * quotient)]


def _extreme_gradient(
    x: Sequence[TensorTerm],
    y: TensorTerm,
    g: TensorTerm,
) -> list[TensorTerm]:
    """Operands equal to the result share its gradient."""
    chosen = [v.equals(y).op("CastLike", g) for v in x]
    first, *others = chosen
    share = g / first.op("Sum", *others) if others else g
    return [share * c for c in chosen]


nary(
    "Add",
    lambda _, a, b: a + b,
    lambda _, a, b: a + b,
    traits=COMMUTATIVE,
    gradient=by(lambda x, y, g: [g, g]),
)
nary(
    "Sub",
    lambda _, a, b: a - b,
    lambda _, a, b: a - b,
    gradient=by(lambda x, y, g: [g, -g]),
)
nary(
    "Mul",
    lambda _, a, b: a * b,
    lambda _, a, b: a * b,
    traits=COMMUTATIVE,
    gradient=by(lambda x, y, g: [g * x[1], g * x[0]]),
)
nary(
    "Div",
    lambda _, a, b: Div(a, b),
    _divide_arrays,
    gradient=by(_div_gradient),
)
nary(
    "Pow",
    _power,
    _power_arrays,
    cost=8,
    traits=MIXES_TYPES,
    gradient=by(_pow_gradient),
)
nary(
    "Mod",
    _mod,
    lambda op, a, b: np.fmod(a, b) if op.attr("fmod", 0) else np.mod(a, b),
    since=10,
    gradient=by(_mod_gradient),
)
nary(
    "PRelu",
    lambda _, x, slope: Select(x < 0, slope * x, x),
    lambda _, x, slope: np.where(x < 0, slope * x, x),
)
nary(
    "Max",
    _folded(Max),
    lambda _, *a: reduce(np.maximum, a),
    since=6,
    traits=COMMUTATIVE,
    gradient=by(_extreme_gradient),
)
nary(
    "Min",
    _folded(Min),
    lambda _, *a: reduce(np.minimum, a),
    since=6,
    traits=COMMUTATIVE,
    gradient=by(_extreme_gradient),
)
nary(
    "Sum",
    _folded(lambda a, b: a + b),
    lambda _, *a: reduce(np.add, a),
    since=6,
    traits=COMMUTATIVE,
    gradient=by(lambda x, y, g: [g] * len(x)),
)
nary(
    "Mean",
    lambda _, *args: reduce(lambda a, b: a + b, args) / len(args),
    lambda _, *a: reduce(np.add, a) / len(a),
    since=6,
    traits=COMMUTATIVE,
)

_COMPARISONS: tuple[tuple[str, Callable[[Expr, Expr], Expr], Any, Trait], ...] = (
    ("Equal", Eq, np.equal, COMMUTATIVE),
    ("Less", Lt, np.less, Trait.NONE),
    ("LessOrEqual", Le, np.less_equal, Trait.NONE),
    ("Greater", lambda a, b: Lt(b, a), np.greater, Trait.NONE),
    ("GreaterOrEqual", lambda a, b: Le(b, a), np.greater_equal, Trait.NONE),
)
for _name, _node, _arrays, _traits in _COMPARISONS:
    nary(
        _name,
        lambda _, a, b, node=_node: node(a, b),
        lambda _, a, b, f=_arrays: f(a, b),
        result=dtypes.bool_,
        traits=_traits,
    )

_LOGIC: tuple[tuple[str, Callable[[Expr, Expr], Expr], Any], ...] = (
    ("And", And, np.logical_and),
    ("Or", Or, np.logical_or),
    ("Xor", Xor, np.logical_xor),
    ("BitwiseAnd", And, np.bitwise_and),
    ("BitwiseOr", Or, np.bitwise_or),
    ("BitwiseXor", Xor, np.bitwise_xor),
)
for _name, _node, _arrays in _LOGIC:
    nary(
        _name,
        lambda _, a, b, node=_node: node(a, b),
        lambda _, a, b, f=_arrays: f(a, b),
        traits=COMMUTATIVE,
    )
nary("BitShift", _shift, _shift_arrays, since=11)


def _where(
    _: OpCall,
    condition: Expr,
    a: Expr,
    b: Expr,
) -> Expr:
    return Select(condition, a, b)


nary("Where", _where, lambda _, c, a, b: np.where(c, a, b), like=1, since=9)


def _bounds(op: OpCall) -> tuple[float | None, float | None]:
    """The bounds of Clip 6, which are attributes; an infinite one becomes the largest float32."""
    bounded = op.dtype(0) in (dtypes.float32, dtypes.float64)
    most = float(np.finfo(np.float32).max) if bounded else None
    return op.attr("min", most and -most), op.attr("max", most)


def _clip_6(
    op: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    low, high = _bounds(op)

    def at(*i: Any) -> Expr:
        value = wide(x[i])
        if low is not None:
            value = Max(value, const(low, value.dtype))
        if high is not None:
            value = Min(value, const(high, value.dtype))
        return cast(value, out.dtype)

    return [map_(op.name, out, at)]


def _clip_6_arrays(op: OpCall, x: Array) -> list[Any]:
    low, high = _bounds(op)
    if low is None:
        found = x
    else:
        found = np.maximum(x, np.asarray(low, x.dtype))
    return [found if high is None else np.minimum(found, np.asarray(high, x.dtype))]


def _clip(
    op: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]

    def at(*i: Any) -> Expr:
        value = wide(x[i])
        if op.has(1):
            value = Max(value, wide(operand(op, inputs, 1, i)))
        if op.has(2):
            value = Min(value, wide(operand(op, inputs, 2, i)))
        return cast(value, out.dtype)

    return [map_(op.name, out, at)]


def _clip_arrays(
    _: OpCall,
    x: Array,
    low: Array | None = None,
    high: Array | None = None,
) -> list[Any]:
    found = x if low is None else np.maximum(x, low)
    return [found if high is None else np.minimum(found, high)]


register(
    OpDef(
        "Clip",
        same_type,
        since=6,
        until=10,
        compute=_clip_6,
        reference=_clip_6_arrays,
        flops=lambda op: 2 * op.size(0),
        traits=POINTWISE,
    )
)
register(
    OpDef(
        "Clip",
        same_type,
        since=11,
        compute=_clip,
        reference=_clip_arrays,
        flops=lambda op: 2 * op.size(0),
        traits=POINTWISE,
    )
)
