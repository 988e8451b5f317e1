"""The value of an expression in float64, with a bound on the rounding of implementations.

A `RoundingBounds` is a value and a bound for the difference that roundings explain. Each operation
on floats adds one unit in the last place of its dtype, twice what IEEE 754 allows it, so that an
order of its own, a fused multiply-add or a reciprocal fits in; functions add what `FUNCTION` says.
Operands' bounds are carried through. Where that decides something (a comparison, a conversion to
integers, a floor), all that it may decide is within the bound. Sums, differences and products of
small numbers of few binary places are exact: there the bound is 0.

The bound follows N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.3 (running
error analysis).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import ExecutionError
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.interp import operation
from tilewright.expr.nodes import (
    Binary,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Select,
    Var,
)
from tilewright.ir.node import postorder

STEPS: Final = 16.0
_SAMPLE: Final = 512  # terms of sums that show whether many are equal
# Units in the last place of a function; `targets/llvm/math` keeps within half of it.
FUNCTION: Final = 8.0
_EXACT: Final = frozenset(
    "floor ceil trunc round_even abs copysign isnan isinf entry popcount".split()
)


@dataclass(frozen=True, slots=True)
class RoundingBounds:
    """Values, floats in float64 and others of their dtype, and bounds for their differences."""

    value: Any
    error: Any = 0.0

    def at(
        self,
        mask: Any,
        shape: tuple[int, ...],
    ) -> RoundingBounds:
        """Those where `mask` holds, in one dimension."""
        return RoundingBounds(
            _chosen(self.value, mask, shape),
            _chosen(self.error, mask, shape),
        )


LoadNear = Callable[[Buffer, tuple[Any, ...]], RoundingBounds]


@dataclass(frozen=True, slots=True)
class Format:
    """A float dtype's unit in the last place of 1, least and greatest number, integers held."""

    unit: float
    least: float
    most: float
    whole: float


@cache
def format_of(dtype: DType) -> Format:
    """The format of a float dtype."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype.numpy)
    unit = float(info.eps)
    return Format(
        unit,
        float(info.smallest_subnormal),
        float(info.max),
        2 / unit,
    )


def near(
    e: Expr,
    env: Mapping[Var, RoundingBounds],
    load: LoadNear | None = None,
    scale: float = 1.0,
) -> RoundingBounds:
    """The value of `e` with its bound.

    env: a Near per variable; arrays broadcast. load: gives a buffer's elements at int64 indices,
    asked for only where the arms of the `Select`s around a load are chosen. scale: multiplies the
    rounding of each operation. Raises ExecutionError as `expr.interp.evaluate` does.
    """
    shape = np.broadcast_shapes(*(np.shape(x.value) for x in env.values()))
    with np.errstate(all="ignore"):
        return _Evaluation(env.get, shape, load, scale).near(e)


class _Evaluation:
    """One set of points; the arms of a Select that read memory are their own sets.

    lookup: what is known already, the value of a variable or of what was evaluated at more points.
    """

    def __init__(
        self,
        lookup: Callable[[Any], RoundingBounds | None],
        shape: tuple[int, ...],
        load: LoadNear | None,
        scale: float,
    ) -> None:
        self.lookup = lookup
        self.shape = shape
        self.load = load
        self.scale = scale
        self.done: dict[Expr, RoundingBounds] = {}

    def near(self, e: Expr) -> RoundingBounds:
        if e not in self.done:
            found = self.lookup(e)
            self.done[e] = self._near(e) if found is None else found
        return self.done[e]

    def _near(self, e: Expr) -> RoundingBounds:
        match e:
            case Var():
                raise ExecutionError(
                    f"variable {e.name} has no value", code="TW-UNBOUND"
                )
            case Load():
                return self._load(e)
            case Select():
                return self._select(e)
            case Const():
                value = operation(e)()
                return RoundingBounds(np.float64(value) if e.dtype.is_float else value)
            case Cast():
                return _cast(self.near(e.value), e.value.dtype, e.dtype, self.scale)
            case Bitcast():
                return _bitcast(self.near(e.value), e)
            case Call():
                return _call(e, [self.near(a) for a in e.args], self.scale)
        children: Any = e.children()
        return _operation(e, [self.near(c) for c in children], self.scale)

    def _load(self, e: Load) -> RoundingBounds:
        if self.load is None:
            raise ExecutionError(f"{e.buffer.name} is read where no buffers are given")
        index = [self.near(i) for i in e.index]
        found = self.load(e.buffer, tuple(i.value for i in index))
        unsure = _any_of(*index)
        if unsure is None:
            return found
        error = np.where(unsure, np.inf, found.error)
        return RoundingBounds(found.value, error)

    def _select(self, e: Select) -> RoundingBounds:
        condition = self.near(e.condition)
        scalar = np.ndim(condition.value) == 0 and np.ndim(condition.error) == 0
        if scalar and not condition.error:
            return self.near(e.then if condition.value else e.otherwise)
        if not (_reads(e.then) or _reads(e.otherwise)):
            then = self.near(e.then)
            otherwise = self.near(e.otherwise)
            return _either(condition, then, otherwise)
        chosen = np.broadcast_to(condition.value, self.shape)
        kind = np.float64 if e.dtype.is_float else e.dtype.numpy
        value = np.empty(self.shape, kind)
        error = np.zeros(self.shape)
        for arm, mask in ((e.then, chosen), (e.otherwise, ~chosen)):
            if mask.any():
                part = self._at(mask).near(arm)
                value[mask] = part.value
                error[mask] = part.error
        # The other arm may read out of bounds: nothing is known.
        unsure = np.broadcast_to(_unsure(condition), self.shape)
        error[unsure] = np.inf
        return RoundingBounds(value, _or_zero(error))

    def _at(self, mask: Any) -> _Evaluation:
        def lookup(e: Expr) -> RoundingBounds | None:
            whole = self.done[e] if e in self.done else self.lookup(e)
            return None if whole is None else whole.at(mask, self.shape)

        return _Evaluation(
            lookup,
            (int(mask.sum()),),
            self.load,
            self.scale,
        )


def _reads(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in postorder(e))


def _chosen(
    x: Any,
    mask: Any,
    shape: tuple[int, ...],
) -> Any:
    if np.ndim(x) == 0:
        return x
    return np.broadcast_to(x, shape)[mask]


def _unsure(x: RoundingBounds) -> Any:
    """Where a bound is not 0."""
    return np.asarray(x.error) > 0


def _or_zero(error: Any) -> Any:
    """A bound, as the number 0 where it is 0 throughout."""
    return error if np.any(error) else 0.0


def _any_of(*values: RoundingBounds) -> Any:
    """Where some bound is not 0; None for nowhere."""
    found = None
    for x in values:
        if np.any(x.error):
            unsure = _unsure(x)
            found = unsure if found is None else found | unsure
    return found


def _either(
    condition: RoundingBounds,
    then: RoundingBounds,
    otherwise: RoundingBounds,
) -> RoundingBounds:
    value = np.where(condition.value, then.value, otherwise.value)
    error = np.where(condition.value, then.error, otherwise.error)
    if np.any(condition.error):
        distance = np.abs(_real(then.value) - _real(otherwise.value))
        both = distance + np.maximum(then.error, otherwise.error)
        error = np.where(_unsure(condition), _known(both, value), error)
    return RoundingBounds(value, _or_zero(error))


def _real(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def _known(error: Any, value: Any) -> Any:
    """A bound that is not a number says nothing, unless the value is certainly infinite or NaN."""
    finite = np.isfinite(_real(value))
    unknown = np.where(finite, np.inf, 0.0)
    return np.where(np.isnan(error), unknown, error)


def _steps(value: Any) -> Any:
    """Where values are multiples of 1 / STEPS: what small integers and their halves make."""
    return np.rint(value * STEPS) == value * STEPS


def rounding_of_sums(terms: Any, dtype: DType, scale: float) -> Any:
    """The bound for the rounding of each row's sum; scale: of a sum of different terms."""
    size = np.abs(terms).sum(1)
    whole = _steps(terms).all(1) & (size <= format_of(dtype).whole / STEPS)
    rounds = ~whole & np.isfinite(size) & (terms.shape[1] > 1)
    found = np.zeros(len(size))
    unit = format_of(dtype).unit * scale
    found[rounds] = unit * size[rounds] * _alike(terms[rounds])
    return found


def _alike(terms: Any) -> Any:
    """By how much equal terms increase the roundings of sums, one for each row; at least 1.

    Of n terms, of which each occurs c times, sqrt(sum of c * c) roundings add up, not sqrt(n).
    Adding 0 rounds nothing.
    """
    rows, n = terms.shape
    flat = terms.reshape(-1)
    some = flat[:: max(1, flat.size // _SAMPLE)]
    some = some[some != 0]
    if len(np.unique(some)) == len(some):
        return np.ones(rows)  # most differ: they need not be sorted
    order = np.sort(terms, 1).reshape(-1)
    changes = np.flatnonzero(np.diff(order, prepend=np.nan))
    starts = np.union1d(changes, np.arange(0, flat.size, n))
    counts = np.diff(starts, append=flat.size)
    counts[order[starts] == 0] = 0
    roundings = np.bincount(starts // n, counts.astype(float) ** 2, rows)
    return np.sqrt(np.maximum(roundings / n, 1))


def rounded(
    value: Any,
    error: Any,
    dtype: DType,
    units: float = 1.0,
    exact: Any = False,
) -> RoundingBounds:
    """A result in float64 as an operation of `dtype` gives it, so many units off.

    exact: where the operation is correctly rounded whatever the order: it adds nothing to small
    numbers of few binary places, which the dtype holds, and carries none over the greatest number
    that is less than half a unit beyond it.
    """
    f = format_of(dtype)
    size = np.abs(value)
    finite = np.isfinite(size)
    rounding = size * (f.unit * units) + f.least * units
    added = np.where(finite, rounding, 0.0)
    most, reach = f.most, np.asarray(error, float)
    if exact:
        held = _steps(value) & (size <= f.whole / STEPS)
        added = np.where(held, 0.0, added)
    error = _known(np.where(finite, reach + added, reach), value)
    if exact and units <= 1:
        most += f.most * (f.unit / 4)
    else:
        reach = error
    over = finite & (size + reach > most)
    if np.any(over):
        certain = size - error > f.most * (1 + f.unit)
        overflow = np.copysign(np.inf, value)
        value = np.where(over & certain, overflow, value)
        beyond = np.where(certain, 0.0, np.inf)
        error = np.where(over, beyond, error)
    return RoundingBounds(value, _or_zero(error))


# -- operations on floats: a bound from operands' values and bounds


def _added(x: RoundingBounds, y: RoundingBounds, value: Any) -> Any:
    error = np.asarray(x.error) + y.error
    return np.where(np.isfinite(value), error, 0.0)


def _may_be_zero(x: RoundingBounds) -> Any:
    """Where a value that is not certain may be 0, or of either sign."""
    return (np.abs(x.value) <= x.error) & _unsure(x)


def _multiplied(x: RoundingBounds, y: RoundingBounds, value: Any) -> Any:
    a = np.abs(x.value)
    b = np.abs(y.value)
    error = a * y.error + b * x.error + np.asarray(x.error) * y.error
    signs = _may_be_zero(x) | _may_be_zero(y)
    beyond = np.where(signs, np.inf, 0.0)
    return np.where(np.isfinite(value), error, beyond)


def _divided(x: RoundingBounds, y: RoundingBounds, value: Any) -> Any:
    a = np.abs(x.value)
    b = np.abs(y.value)
    numerator = np.asarray(x.error) + a / b * y.error
    error = numerator / (b - y.error)
    error = np.where(np.isfinite(value), error, 0.0)
    return np.where(_may_be_zero(y), np.inf, error)


def _larger(x: RoundingBounds, y: RoundingBounds, value: Any) -> Any:
    error = np.maximum(x.error, y.error)
    return np.where(np.isfinite(value), error, 0.0)


def _floored(x: RoundingBounds, y: RoundingBounds, value: Any) -> Any:
    """Of a quotient rounded down: none, unless another integer is near."""
    quotient = np.asarray(x.value / y.value)
    error = _divided(x, y, quotient)
    jumps = np.floor(quotient - error) != np.floor(quotient + error)
    return np.where(jumps & (error > 0), np.inf, 0.0)


def _remainder(x: RoundingBounds, y: RoundingBounds, value: Any) -> Any:
    quotient = np.abs(np.floor(x.value / y.value))
    moved = np.asarray(x.error) + quotient * y.error
    jumps = _floored(x, y, value) > 0
    return np.where(jumps, np.inf, _known(moved, value))


_FLOATS: Final[
    Mapping[
        type[Expr],
        tuple[Callable[[RoundingBounds, RoundingBounds, Any], Any], float, bool],
    ]
] = {
    nodes.Add: (_added, 1.0, True),
    nodes.Sub: (_added, 1.0, True),
    nodes.Mul: (_multiplied, 1.0, True),
    nodes.Div: (_divided, 2.0, False),
    nodes.FloorDiv: (_floored, 2.0, True),
    nodes.Mod: (_remainder, 2.0, True),
    nodes.Rem: (_remainder, 2.0, True),
    nodes.Min: (_larger, 0.0, True),
    nodes.Max: (_larger, 0.0, True),
}
# What they do to the bounds of integers; others say nothing about operands that are not certain.
_INTEGERS: Final[
    Mapping[type[Expr], Callable[[RoundingBounds, RoundingBounds, Any], Any]]
] = {
    nodes.Add: _added,
    nodes.Sub: _added,
    nodes.Mul: _multiplied,
    nodes.Min: _larger,
    nodes.Max: _larger,
}


def _operation(
    e: Expr,
    args: list[RoundingBounds],
    scale: float,
) -> RoundingBounds:
    if isinstance(e, Compare):
        return _compared(e, *args)
    values = [a.value for a in args]
    if isinstance(e, Binary) and e.dtype.is_float:
        bound, units, exact = _FLOATS[type(e)]
        value = _in_float64(type(e))(*values)
        error = bound(args[0], args[1], value)
        return rounded(value, error, e.dtype, units * scale, exact)
    if isinstance(e, nodes.Neg) and e.dtype.is_float:
        return RoundingBounds(-args[0].value, args[0].error)
    value = operation(e)(*values)
    unsure = _any_of(*args)
    if unsure is None:
        return RoundingBounds(value)
    if len(args) == 1:
        return RoundingBounds(value, args[0].error)
    if e.dtype.is_bool:
        return RoundingBounds(value, _logical(e, args[0], args[1]))
    rule = _INTEGERS.get(type(e))
    if rule is None:
        return RoundingBounds(value, np.where(unsure, np.inf, 0.0))
    x, y = (RoundingBounds(_real(a.value), a.error) for a in args)
    return RoundingBounds(value, rule(x, y, _real(value)))


def _logical(e: Expr, x: RoundingBounds, y: RoundingBounds) -> Any:
    error = np.maximum(x.error, y.error)
    if isinstance(e, nodes.Xor):
        return error
    decisive = isinstance(e, nodes.Or)
    settled: Any = False
    for operand in (x, y):
        certain = np.asarray(operand.error) == 0
        settled = settled | ((operand.value == decisive) & certain)
    return np.where(settled, 0.0, error)


def _compared(e: Compare, x: RoundingBounds, y: RoundingBounds) -> RoundingBounds:
    kind = type(e)
    if e.lhs.dtype.is_float:
        value = _in_float64(kind)(x.value, y.value)
    else:
        value = operation(e)(x.value, y.value)
    if _any_of(x, y) is None:
        return RoundingBounds(value)
    slack = np.asarray(x.error) + y.error
    distance = np.abs(_real(x.value) - _real(y.value))
    close = (distance <= slack) & (slack > 0)
    return RoundingBounds(value, np.where(close, 1.0, 0.0))


@cache
def _in_float64(kind: type[Expr]) -> Callable[..., Any]:
    make: Any = kind
    return operation(make(Var("x", dtypes.float64), Var("y", dtypes.float64)))


# -- functions and conversions


def _call(
    e: Call,
    args: list[RoundingBounds],
    scale: float,
) -> RoundingBounds:
    if not e.args[0].dtype.is_float:
        value = operation(e)(*(a.value for a in args))
        unsure = _any_of(*args)
        if unsure is None:
            return RoundingBounds(value)
        return RoundingBounds(value, np.where(unsure, np.inf, 0.0))
    f = FUNCTIONS[e.function].reference
    values = [np.asarray(a.value) for a in args]
    value = f(*values)
    error: Any = 0.0
    for n, a in enumerate(args):
        if np.any(a.error):
            error = error + _moved(f, values, n, a.error, value)
    if not e.dtype.is_float:
        if not np.any(error):
            return RoundingBounds(value)
        return RoundingBounds(value, np.where(np.isinf(error), 1.0, 0.0))
    if e.function in _EXACT:
        return RoundingBounds(value, error)
    return rounded(value, error, e.dtype, FUNCTION * scale)


def _moved(
    f: Callable[..., Any],
    values: list[Any],
    n: int,
    error: Any,
    value: Any,
) -> Any:
    """How far `f` goes where its n-th argument goes as far as its bound."""
    most: Any = 0.0
    reach = np.where(np.isfinite(error), error, 0.0)
    for moved in (values[n] - reach, values[n] + reach):
        operands = [*values[:n], moved, *values[n + 1 :]]
        result = _real(f(*operands))
        both_nan = np.isnan(result) & np.isnan(value)
        same = (result == value) | both_nan
        distance = np.where(same, 0.0, np.abs(result - value))
        most = np.maximum(most, distance)
    unknown = np.isnan(most) | np.isinf(error)
    return np.where(unknown, np.inf, most)


def _cast(
    x: RoundingBounds,
    source: DType,
    target: DType,
    scale: float,
) -> RoundingBounds:
    if target.is_float:
        value = _real(x.value)
        if source.is_float and format_of(source).unit >= format_of(target).unit:
            return RoundingBounds(value, x.error)
        return rounded(value, x.error, target, scale, exact=True)
    kind = dtypes.float64 if source.is_float else source
    convert = operation(Cast(Var("x", kind), target))
    value = convert(x.value)
    if not np.any(x.error):
        return RoundingBounds(value)
    if target.is_bool:
        size = np.abs(_real(x.value))
        close = (size <= x.error) & _unsure(x)
        return RoundingBounds(value, np.where(close, 1.0, 0.0))
    if not source.is_float:
        return RoundingBounds(value, x.error)
    reach = np.asarray(x.error)
    lowest = _real(convert(x.value - reach))
    highest = _real(convert(x.value + reach))
    error = np.maximum(
        np.abs(lowest - _real(value)),
        np.abs(highest - _real(value)),
    )
    error = np.where(np.isinf(x.error), np.inf, error)
    return RoundingBounds(value, error)


def _bitcast(x: RoundingBounds, e: Bitcast) -> RoundingBounds:
    source = e.value.dtype
    operand = np.asarray(x.value).astype(source.numpy)[()]
    value = operation(e)(operand)
    if e.dtype.is_float and np.ndim(value) == 0:
        value = np.float64(value)
    value = _real(value) if e.dtype.is_float else value
    if not np.any(x.error):
        return RoundingBounds(value)
    return RoundingBounds(value, np.where(_unsure(x), np.inf, 0.0))
