"""Differences of expressions that are built alike contain every value, and are tight."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.expr.bounds import bounds
from tilewright.expr.difference import difference
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Add,
    Call,
    Cast,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Overlap,
    Sub,
    const,
    var,
)
from tilewright.ir.node import substitute

f32, i32 = dtypes.float32, dtypes.int32
X, Y = var("i"), var("j")
RANGES = {X: (0, 40), Y: (0, 3)}
POINTS = [{X: i, Y: j} for i in (0, 1, 2, 5, 20, 39, 40) for j in range(4)]


def whole(e: Expr) -> tuple[int | None, int | None]:
    return bounds(e, RANGES)


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> Expr:
    kind = draw(st.integers(0, 4)) if depth else 0
    if kind == 0:
        return draw(st.sampled_from([X, Y, X + Y, X * 2 - 3, const(5)]))
    inner = indices(depth - 1)
    if kind == 1:
        divisor = const(draw(st.integers(1, 5)))
        return draw(st.sampled_from([FloorDiv, Mod]))(draw(inner), divisor)
    if kind == 2:
        scale = draw(st.sampled_from([0.5, 2.0, 1 / 3, -0.7]))
        real = (Cast(draw(inner), f32) + 0.5) * scale - 0.5
        real = draw(
            st.sampled_from([real, Call("ceil", (real,)), Call("floor", (real,))])
        )
        return Cast(Cast(real, i32), dtypes.int64)
    node = draw(st.sampled_from([Add, Sub, Mul, Min, Max, Overlap]))
    return node(draw(inner), draw(inner))


@settings(max_examples=100, deadline=None)
@given(indices(), st.integers(-3, 4))
def test_every_value_is_inside(e: Expr, shift: int) -> None:
    a, b = substitute(e, {X: X + shift}), substitute(e, {Y: const(0)})
    lo, hi = difference(a, b, whole)
    found = [int(evaluate(a, p)) - int(evaluate(b, p)) for p in POINTS]
    assert lo is None or lo <= min(found)
    assert hi is None or max(found) <= hi


def resized(x: Expr) -> Expr:
    source = (Cast(x, f32) + 0.5) * 0.5 - 0.5
    begin = Cast(Call("ceil", (source - 2.0,)), i32)
    return Cast(Max(Min(begin, const(99, i32)), const(0, i32)), dtypes.int64)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((X + 1) // 2, X // 2, (0, 1)),
        ((X + 2) // 2, X // 2, (1, 1)),
        ((X * 2 + Y) // 3, X * 2 // 3, (0, 1)),
        ((X + 1) // 2 * 4 + Y, X // 2 * 4, (0, 7)),
        (((X + 1) // 2 + 1) // 2, (X // 2 + 1) // 2, (0, 1)),
        (Overlap(X * 4, const(33)) + Y, Overlap(X * 4, const(33)), (0, 3)),
        (Max(X - 5, const(0)), Max(X - 7, const(0)), (0, 2)),
        (resized(X * 4 + Y), resized(X * 4), (-1, 2)),  # it may be rounded otherwise
        (X // 2, X // 3, (-13, 20)),
        (Min(X + 1, const(30)), X, (-10, 1)),
        (X, Max(X - 1, const(3)), (-3, 1)),
        (X % 3, X, (-40, 2)),
    ],
)
def test_tight(a: Expr, b: Expr, expected: tuple[int, int]) -> None:
    assert difference(a, b, whole) == expected


def test_what_may_be_no_number_is_unknown() -> None:
    p = var("p", f32)
    a, b = (Cast(Max(Min(p, const(4.0, f32)), const(c, f32)), i32) for c in (0.0, 1.0))
    assert difference(a, b, lambda e: bounds(e, {})) == (-4, 4)
