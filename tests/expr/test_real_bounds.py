"""Bounds through floats: what is cast to an integer is inside them, rounded and contracted too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.expr.bounds import bounds
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Add,
    Call,
    Cast,
    Div,
    Expr,
    Lt,
    Max,
    Min,
    Mul,
    Neg,
    Select,
    Sub,
    const,
    var,
)
from tilewright.expr.real_bounds import real_bounds

f32, i32 = dtypes.float32, dtypes.int32
X, Y, P = var("i"), var("j"), var("p", f32)
RANGES = {X: (0, 4), Y: (-2, 3)}
POINTS = [
    {X: i, Y: j, P: p}
    for i in range(5)
    for j in range(-2, 4)
    for p in (0.3, -1e30, math.inf, math.nan)
]
CONSTANTS = st.sampled_from([0.0, 1.0, -1.5, 0.1, 7.3, 1e10, 3e38, math.inf])
LEAVES = (
    st.sampled_from([Cast(X, f32), Cast(Y, f32), Max(Min(P, const(2.5, f32)), const(-1.0, f32)), P])
    | CONSTANTS.map(lambda c: const(c, f32))
)  # fmt: skip


@st.composite
def reals(draw: st.DrawFn, depth: int = 3) -> Expr:
    kind = draw(st.integers(0, 4)) if depth else 0
    if kind == 0:
        return draw(LEAVES)
    inner = reals(depth - 1)
    if kind == 1:
        function = draw(
            st.sampled_from(["abs", "sqrt", "floor", "ceil", "trunc", "round_even"])
        )
        return Call(function, (draw(inner),))
    if kind == 2:
        return Select(Lt(X, Y), draw(inner), Neg(draw(inner)))
    node = draw(st.sampled_from([Add, Sub, Mul, Div, Min, Max]))
    return node(draw(inner), draw(inner))


@settings(max_examples=150, deadline=None)
@given(reals(), st.sampled_from([i32, dtypes.uint8, dtypes.int64]))
def test_every_value_is_inside(e: Expr, dtype: dtypes.DType) -> None:
    lo, hi = bounds(Cast(e, dtype), RANGES)
    with np.errstate(all="ignore"):
        found = [int(evaluate(Cast(e, dtype), p)) for p in POINTS]
    assert lo is not None and hi is not None
    assert lo <= min(found) and max(found) <= hi


def clamp(e: Expr, low: float, high: float) -> Expr:
    return Max(Min(e, const(high, f32)), const(low, f32))


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (clamp(P, 0.0, 1.0) * 10.0, (0, 10)),
        (clamp(P, 0.0, 1.0) * 10.0 + 0.5, (0, 10)),
        (clamp(P, 0.0, 255.0), (0, 255)),
        (clamp(P, 3.0, 4.0), (0, 4)),  # NaN gives 0
        (
            clamp((Cast(X, f32) - 1.0) * (Cast(X, f32) * 3e38), 3.0, 4.0),
            (0, 4),
        ),  # 0 * inf
        (const(math.inf, f32) + 1.0, ((1 << 31) - 1, (1 << 31) - 1)),
        (clamp(Cast(X, f32), 3.0, 9.0), (3, 4)),
        (Call("ceil", ((Cast(X, f32) + 0.5) * 2.0 - 0.5,)), (1, 9)),
        (Cast(X, f32) / 2.0, (0, 2)),
        (Cast(X, f32) / Cast(Y, f32), (-(1 << 31), (1 << 31) - 1)),
        (Call("sin", (P,)), (-(1 << 31), (1 << 31) - 1)),
        (P, (-(1 << 31), (1 << 31) - 1)),
    ],
)
def test_tight(e: Expr, expected: tuple[int, int]) -> None:
    assert bounds(Cast(e, i32), RANGES) == expected


def test_one_rounding_may_be_left_out() -> None:
    """A product and a sum as one operation: `a * b + c` where the product rounds up to c."""
    third = const(float(np.float32(1 / 3)), f32)
    e = third * 3.0 - 1.0
    exact = float(np.float32(1 / 3)) * 3.0 - 1.0
    found = real_bounds(e, lambda x: bounds(x, {}))
    assert exact > 0 and found.lo <= 0.0 and exact <= found.hi


def test_shared_operands_are_visited_once() -> None:
    e = clamp(P, 0.0, 1.0)
    for _ in range(60):
        e = (e + e) * 0.25
    assert bounds(Cast(e, i32), {})[0] == 0
