"""Operator arithmetic: rounded as the machine rounds, or exact with an error bound.

Rounding. Every operator takes operands in the machine's format, computes in Float32, and its result
is rounded to the format; so results do not depend on which operators share a chain.

Bounds. `Bounded` carries (v, e): the exact value of the program on its exact inputs, and a bound on
the distance of what the machine has. u is the format's unit roundoff and t half its smallest step,
w = 2^-24 that of Float32. An operator on (a, da), (b, db) has, before it is rounded, at most

    add, sub   da + db                     mul       |a| db + |b| da + da db
    max, relu  max(da, db)                 tanh      da  (slope at most 1)
    sigmoid    da / 4                      exp       exp(a) (exp(da) - 1)
    recip      da / (|a| (|a| - da))       sum of n  sum of da
    max of n   the larger of max(a + da) - max(a) and max(a) - max(a - da)
    dot of n   sum of |a| db + |b| da + da db, and with blocks also db, da grown by the block's step

plus what Float32 adds: g (sum of the magnitudes of the terms), g = n w / (1 - n w) for n terms
(Higham 2002, section 4.2: any order of summation), 4 w relative for a function. At last its own
rounding adds u (|v| + e) + t, and saturation what is beyond the largest number. Inputs are
rounded once. An infinite constant is exact; where the format saturates, the largest number takes
its place in both. All of it is done in float64, whose own rounding is 2^-29 of Float32's and is
covered by making every bound larger by 2^-20 of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.numbers import BlockFloat, Float32, NumberFormat

Values = NDArray[Any]


class Arithmetic(Protocol):
    """Values have a first axis of `parts`; the rest is a vector or a matrix."""

    @property
    def parts(self) -> int:
        """How many arrays a value is."""
        ...

    def enter(self, x: Values) -> Values:
        """Values from outside, as the memory holds them."""
        ...

    def apply(self, op: str, x: Values, operand: Values | None) -> Values:
        """What the opcode makes of the chain's value and its operand."""
        ...


def _sigmoid(x: Values) -> Values:
    return 0.5 * (1 + np.tanh(0.5 * x))


_UNARY: Mapping[str, Callable[[Values], Values]] = {
    "v_relu": lambda a: np.maximum(a, 0),
    "v_tanh": np.tanh,
    "v_sigm": _sigmoid,
    "v_exp": np.exp,
    "v_recip": lambda a: 1 / a,
    "v_sum": lambda a: a.sum(keepdims=True),
    "v_top": lambda a: a.max(keepdims=True),
}
_BINARY: Mapping[str, Callable[[Values, Values], Values]] = {
    "vv_add": np.add,
    "vv_sub": np.subtract,
    "vv_mul": np.multiply,
    "vv_max": np.maximum,
    "mv_add": np.add,
    "mv_mul": lambda v, m: m @ v,
    "mm_mul": np.matmul,
}


def _value(op: str, a: Values, b: Values | None) -> Values:
    with np.errstate(all="ignore"):
        if b is None:
            return _UNARY[op](a)
        return _BINARY[op](a, b)


@dataclass(frozen=True, slots=True)
class RoundedArithmetic:
    """The machine's own numbers."""

    number: NumberFormat
    block: BlockFloat | None = None
    parts: int = 1

    def enter(self, x: Values) -> Values:
        """Rounded to the format."""
        return self.number.round(x.astype(np.float32))[None]

    def apply(self, op: str, x: Values, operand: Values | None) -> Values:
        """In Float32, then rounded."""
        a = x[0]
        b = None if operand is None else operand[0]
        if self.block is not None and b is not None and op in ("mv_mul", "mm_mul"):
            a, b = self.block.round(a), _rows(op, self.block.round, b)
        return self.number.round(_value(op, a, b))[None]


def _rows(op: str, f: Callable[[Values], Values], matrix: Values) -> Values:
    """`f` along the axis that a product sums over."""
    if op == "mv_mul":
        return f(matrix)
    return f(matrix.T).T


@dataclass(frozen=True, slots=True)
class Bounded:
    """The exact value and a bound on the error, see above."""

    number: NumberFormat
    block: BlockFloat | None = None
    parts: int = 2

    def enter(self, x: Values) -> Values:
        """Exact values, with the error of rounding them; none for infinities."""
        n, x = self.number, x.astype(np.float64)
        infinite = np.isinf(x)
        if n.saturates:
            x = np.where(infinite, np.copysign(n.largest, x), x)
        value, error = self._rounded(x, np.zeros(x.shape))
        return np.stack([value, np.where(infinite, 0.0, error)])

    def apply(self, op: str, x: Values, operand: Values | None) -> Values:
        """The rule of the operator, then its rounding."""
        a, da = x
        b, db = (None, None) if operand is None else operand
        v = _value(op, a, b)
        if op in ("mv_mul", "mm_mul"):
            assert b is not None and db is not None
            return self._rounded(v, self._product(op, a, da, b, db))
        with np.errstate(all="ignore"):
            return self._rounded(
                v, np.nan_to_num(_ERRORS[op](a, da, b, db), nan=np.inf)
            )

    def _product(self, op: str, a: Values, da: Values, b: Values, db: Values) -> Values:
        if self.block is not None:
            da = da + self.block.errors(np.abs(a) + da)
            db = db + _rows(op, self.block.errors, np.abs(b) + db)
        times = _BINARY[op]
        a, b = np.abs(a), np.abs(b)
        error = times(a, db) + times(da, b) + times(da, db)
        return error + _gamma(a.shape[-1]) * times(a + da, b + db)

    def _rounded(self, v: Values, error: Values) -> Values:
        n = self.number
        with np.errstate(all="ignore"):
            size = np.abs(v) + error
            error = error + n.unit * size + n.tiny
            beyond = np.maximum(size * (1 + n.unit) - n.largest, 0)
            error = error + (beyond if n.saturates else np.where(beyond > 0, np.inf, 0))
        return np.stack([v, error * (1 + 2.0**-20)])


_W = Float32.unit


def _gamma(n: int) -> float:
    return n * _W / (1 - n * _W)


def _function(slope: float, f: str) -> Callable[..., Values]:
    """A function whose slope is nowhere larger."""
    return lambda a, da, b, db: (
        slope * da + 4 * _W * (np.abs(_value(f, a, None)) + slope * da)
    )


def _exp(a: Values, da: Values, b: Values, db: Values) -> Values:
    return np.asarray(np.exp(a) * np.expm1(da) + 4 * _W * np.exp(a + da))


def _recip(a: Values, da: Values, b: Values, db: Values) -> Values:
    far = np.abs(a) - da
    return np.asarray(np.where(far > 0, da / (np.abs(a) * far) + 4 * _W / far, np.inf))


def _sum(a: Values, da: Values, b: Values, db: Values) -> Values:
    return np.asarray([da.sum() + _gamma(a.size) * (np.abs(a) + da).sum()])


def _top(a: Values, da: Values, b: Values, db: Values) -> Values:
    top = a.max()
    return np.asarray([max((a + da).max() - top, top - (a - da).max())])


def _plus(a: Values, da: Values, b: Values, db: Values) -> Values:
    return da + db + _W * (np.abs(a) + np.abs(b) + da + db)


def _times(a: Values, da: Values, b: Values, db: Values) -> Values:
    a, b = np.abs(a), np.abs(b)
    return np.asarray(a * db + b * da + da * db + _W * (a + da) * (b + db))


_ERRORS: Mapping[str, Callable[..., Values]] = {
    **dict.fromkeys(("vv_add", "vv_sub", "mv_add"), _plus),
    "vv_mul": _times,
    "vv_max": lambda a, da, b, db: np.maximum(da, db),
    "v_relu": lambda a, da, b, db: da,
    "v_top": _top,
    "v_tanh": _function(1.0, "v_tanh"),
    "v_sigm": _function(0.25, "v_sigm"),
    "v_exp": _exp,
    "v_recip": _recip,
    "v_sum": _sum,
}
