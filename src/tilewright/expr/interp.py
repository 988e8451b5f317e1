"""The meaning of expressions: a slow, simple evaluator on NumPy values.

Values are NumPy scalars or arrays of the node's dtype; arrays broadcast, so that one call evaluates
an expression at many points. Floats narrower than float32 are computed in float32 and rounded
once per operation; integers narrower than a byte are computed in int16 and wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import ExecutionError
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import (
    Binary,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
)
from tilewright.ir.node import postorder

LoadFunction = Callable[[Buffer, tuple[Any, ...]], Any]
Operation = Callable[..., Any]


def evaluate(
    e: Expr,
    env: Mapping[Var, Any],
    load: LoadFunction | None = None,
) -> Any:
    """The value of `e`, a NumPy scalar or array of its dtype.

    env: a value (anything NumPy accepts) per variable; arrays broadcast against one another.
    load: returns the elements of a buffer at an index tuple (int64 scalars or arrays); it is called
    only with indices for which the arms of the `Select`s around the load are chosen.
    Raises ExecutionError for a variable without a value or a load without `load`.
    """
    values = {v: _array(x, v.dtype) for v, x in env.items()}
    shape = np.broadcast_shapes(*(np.shape(x) for x in values.values()))
    with np.errstate(all="ignore"):
        return _Evaluation(values.get, shape, load).value(e)


class _Evaluation:
    """One set of points; the arms of a Select are evaluated as their own sets.

    lookup: known values, of a variable or of an expression already evaluated at a superset of the
    points.
    """

    def __init__(
        self,
        lookup: Callable[[Any], Any],
        shape: tuple[int, ...],
        load: LoadFunction | None,
    ) -> None:
        self.lookup = lookup
        self.shape = shape
        self.load = load
        self.done: dict[Expr, Any] = {}

    def value(self, e: Expr) -> Any:
        if e not in self.done:
            found = self.lookup(e)
            self.done[e] = self._value(e) if found is None else found
        return self.done[e]

    def _value(self, e: Expr) -> Any:
        if isinstance(e, Var):
            raise ExecutionError(f"variable {e.name} has no value", code="TW-UNBOUND")
        if isinstance(e, Load):
            if self.load is None:
                raise ExecutionError(
                    f"{e.buffer.name} is read where no buffers are given"
                )
            index = tuple(self.value(i) for i in e.index)
            return self.load(e.buffer, index)
        if isinstance(e, Select):
            return self._select(e)
        children: Any = e.children()
        return operation(e)(*(self.value(c) for c in children))

    def _select(self, e: Select) -> Any:
        condition = self.value(e.condition)
        if np.ndim(condition) == 0:
            return self.value(e.then if condition else e.otherwise)
        if not (_reads(e.then) or _reads(e.otherwise)):
            then = self.value(e.then)
            otherwise = self.value(e.otherwise)
            return np.where(condition, then, otherwise)
        chosen = np.broadcast_to(condition, self.shape)
        result = np.empty(self.shape, e.dtype.numpy)
        for arm, mask in ((e.then, chosen), (e.otherwise, ~chosen)):
            if mask.any():
                result[mask] = self._at(mask).value(arm)
        return result

    def _at(self, mask: Any) -> _Evaluation:
        """The evaluation at the points where `mask` holds, in one dimension."""

        def lookup(e: Expr) -> Any:
            whole = self.done[e] if e in self.done else self.lookup(e)
            if whole is None or np.ndim(whole) == 0:
                return whole
            return np.broadcast_to(whole, self.shape)[mask]

        return _Evaluation(lookup, (int(mask.sum()),), self.load)


def _reads(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in postorder(e))


def _array(x: Any, dtype: DType) -> Any:
    return np.asarray(x).astype(dtype.numpy)[()]


# -- computing form: the dtype in which NumPy does one operation, and the way back


@cache
def _wide_dtype(dtype: DType) -> Any:
    """The NumPy dtype in which operations on `dtype` are computed."""
    if dtype.is_float and dtype.bits < 32:
        return np.dtype(np.float32)
    if dtype.is_sub_byte:
        return np.dtype(np.int16)
    return dtype.numpy


def _wide(x: Any, dtype: DType) -> Any:
    t = _wide_dtype(dtype)
    if getattr(x, "dtype", None) == t:
        return x
    return np.asarray(x).astype(t)[()]


def _narrow(x: Any, dtype: DType) -> Any:
    """A result in computing form as a value of `dtype`: rounded or wrapped once."""
    if dtype.is_int and dtype.is_sub_byte:
        mask = (1 << dtype.bits) - 1
        low = np.asarray(x).astype(np.int64) & mask
        if dtype.is_signed:
            negative = low >> (dtype.bits - 1) != 0
            low = np.where(negative, low - (1 << dtype.bits), low)
        return low.astype(dtype.numpy)[()]
    t = dtype.numpy
    if getattr(x, "dtype", None) == t:
        return x[()]
    return np.asarray(x).astype(t)[()]


# -- integer division and shifts


def _by_zero_is_zero(f: Operation) -> Operation:
    """An integer division made total."""

    def total(a: Any, b: Any) -> Any:
        zero = b == 0
        divisor = np.where(zero, np.ones_like(b), b)
        return np.where(zero, np.zeros_like(a), f(a, divisor))

    return total


def _truncating(a: Any, b: Any) -> Any:
    q = np.floor_divide(a, b)
    negative = (a < 0) != (b < 0)
    inexact = np.not_equal(q * b, a) & negative
    return q + inexact.astype(q.dtype)


def _shift_left(a: Any, b: Any, bits: int) -> Any:
    fits = (b >= 0) & (b < bits)
    amount = np.where(fits, b, np.zeros_like(b))
    shifted = np.left_shift(a, amount)
    return np.where(fits, shifted, np.zeros_like(a))


def _shift_right(a: Any, b: Any, bits: int) -> Any:
    fits = (b >= 0) & (b < bits)
    amount = np.where(fits, b, np.zeros_like(b))
    zero = np.zeros_like(a)
    all_sign_bits = np.where(a < 0, zero - np.ones_like(a), zero)
    shifted = np.right_shift(a, amount)
    return np.where(fits, shifted, all_sign_bits)


_INTEGER: Mapping[type[Expr], Operation] = {
    nodes.Div: _by_zero_is_zero(_truncating),
    nodes.FloorDiv: _by_zero_is_zero(np.floor_divide),
    nodes.Mod: _by_zero_is_zero(np.mod),
    nodes.Rem: _by_zero_is_zero(np.fmod),
}

_PLAIN: Mapping[type[Expr], Operation] = {
    nodes.Add: np.add,
    nodes.Sub: np.subtract,
    nodes.Mul: np.multiply,
    nodes.Div: np.divide,
    nodes.FloorDiv: np.floor_divide,
    nodes.Mod: np.mod,
    nodes.Rem: np.fmod,
    nodes.Min: np.minimum,
    nodes.Overlap: np.minimum,
    nodes.Max: np.maximum,
    nodes.And: np.bitwise_and,
    nodes.Or: np.bitwise_or,
    nodes.Xor: np.bitwise_xor,
    nodes.Lt: np.less,
    nodes.Le: np.less_equal,
    nodes.Eq: np.equal,
    nodes.Ne: np.not_equal,
    nodes.Neg: np.negative,
    nodes.Not: np.invert,
}

_SHIFTS: Mapping[type[Expr], Callable[[Any, Any, int], Any]] = {
    nodes.Shl: _shift_left,
    nodes.Shr: _shift_right,
}


# -- conversions


def _cast(x: Any, source: DType, target: DType) -> Any:
    wide = _wide(x, source)
    if target.is_bool:
        return np.not_equal(wide, 0)
    if source.is_complex and not target.is_complex:
        wide = np.real(wide)
    if target.is_int and (source.is_float or source.is_complex):
        return _narrow(_saturated(wide, target), target)
    if target.is_float and target.bits < 32 and not source.is_float:
        wide = np.asarray(wide).astype(np.float32)
    return _narrow(wide, target)


def _saturated(x: Any, target: DType) -> Any:
    """A float truncated and clamped to the range of an integer dtype; NaN becomes 0."""
    lo = int(target.min)
    hi = int(target.max)
    t = np.trunc(np.asarray(x, np.float64))
    inside = (t > lo) & (t < hi)
    found = np.where(inside, t, 0).astype(_wide_dtype(target))
    kind = found.dtype.type
    found = np.where(t <= lo, kind(lo), found)
    return np.where(t >= hi, kind(hi), found)


def _bitcast(
    x: Any,
    source: DType,
    target: DType,
) -> Any:
    if not source.is_sub_byte:
        whole = np.asarray(x).astype(source.numpy)
        return whole.view(target.numpy)[()]
    if source.is_int:
        bits = x.astype(np.int16)
    else:
        bits = np.asarray(x).view(np.uint8)
    mask = (1 << source.bits) - 1
    low = np.asarray(bits).astype(np.int64) & mask
    if target.is_int:
        return _narrow(low, target)
    return low.astype(np.uint8).view(target.numpy)[()]


def _call(name: str, source: DType) -> Operation:
    reference = FUNCTIONS[name].reference
    if name != "popcount":
        return reference
    mask = (1 << source.bits) - 1
    unsigned = np.dtype(f"uint{max(8, source.bits)}")

    def popcount(x: Any) -> Any:
        bits = np.asarray(x).astype(unsigned)
        return reference(bits & unsigned.type(mask))

    return popcount


# -- one operation per node


def operation(e: Expr) -> Operation:
    """The function from the values of `e.children()` to the value of `e` (no Load, no Select)."""
    if isinstance(e, Const):
        return _constant(e.value, e.dtype)
    if isinstance(e, Cast):
        return _conversion(_cast, e.value.dtype, e.dtype)
    if isinstance(e, Bitcast):
        return _conversion(_bitcast, e.value.dtype, e.dtype)
    if isinstance(e, Call) and FUNCTIONS[e.function].llvm:
        return FUNCTIONS[
            e.function
        ].reference  # whose arguments have dtypes of their own
    if isinstance(e, Call):
        source = e.args[0].dtype
        return _computed(_call(e.function, source), source, e.dtype)
    operand = e.lhs.dtype if isinstance(e, Binary) else e.dtype
    return _node_operation(type(e), operand, e.dtype)


@cache
def _node_operation(
    kind: type[Expr],
    operand: DType,
    result: DType,
) -> Operation:
    if kind in _SHIFTS:
        shift = _SHIFTS[kind]
        bits = operand.bits
        return _computed(lambda a, b: shift(a, b, bits), operand, result)
    plain = _INTEGER.get(kind) if operand.is_int else None
    return _computed(plain or _PLAIN[kind], operand, result)


def _computed(
    f: Operation,
    operand: DType,
    result: DType,
) -> Operation:
    def compute(*args: Any) -> Any:
        wide = [_wide(a, operand) for a in args]
        return _narrow(f(*wide), result)

    return compute


@cache
def _conversion(
    f: Operation,
    source: DType,
    target: DType,
) -> Operation:
    return lambda x: f(x, source, target)


def _constant(value: Any, dtype: DType) -> Operation:
    if dtype is dtypes.bool_:
        return lambda: np.bool_(value)
    return lambda: _array(np.float64(value) if dtype.is_float else value, dtype)
