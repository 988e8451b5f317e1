"""Bounds contain every value, and are tight where loops need them to be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.expr.bounds import bounds, is_empty, lasting, proves, refine
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Add,
    And,
    Buffer,
    Call,
    Cast,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Select,
    Shl,
    Shr,
    Sub,
    const,
    var,
)

X, Y = var("i"), var("j")
RANGES = {X: (0, 4), Y: (-2, 3)}
POINTS = [{X: i, Y: j} for i in range(5) for j in range(-2, 4)]


POSITIVE = st.integers(1, 5).map(const)
LEAVES = st.sampled_from([X, Y]) | st.integers(-4, 9).map(const)


@st.composite
def integers(draw: st.DrawFn, depth: int = 3) -> Expr:
    kind = draw(st.integers(0, 5)) if depth else 0
    if kind == 0:
        return draw(LEAVES)
    inner = integers(depth - 1)
    if kind == 1:
        return draw(st.sampled_from([FloorDiv, Mod, Shl, Shr]))(draw(inner), draw(POSITIVE))
    if kind == 2:
        return Select(draw(conditions(depth - 1)), draw(inner), draw(inner))
    if kind == 3:
        e = draw(inner)
        return draw(
            st.sampled_from([Neg(e), Call("abs", (e,)), Cast(Cast(e, dtypes.int8), dtypes.int64)])
        )
    return draw(st.sampled_from([Add, Sub, Mul, Min, Max]))(draw(inner), draw(inner))


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Expr:
    kind = draw(st.integers(0, 2)) if depth else 0
    if kind == 0:
        node = draw(st.sampled_from([Lt, Le, Eq, Ne]))
        return node(draw(integers(depth)), draw(integers(depth)))
    if kind == 1:
        return Not(draw(conditions(depth - 1)))
    return draw(st.sampled_from([And, Or]))(
        draw(conditions(depth - 1)), draw(conditions(depth - 1))
    )


def contains(interval: tuple[int | None, int | None], value: int) -> bool:
    lo, hi = interval
    return (lo is None or lo <= value) and (hi is None or value <= hi)


@settings(max_examples=300, deadline=None)
@given(integers())
def test_every_value_is_inside(e: Expr) -> None:
    found = bounds(e, RANGES)
    assert all(contains(found, int(evaluate(e, p))) for p in POINTS)


@settings(max_examples=300, deadline=None)
@given(integers(), conditions(), st.booleans())
def test_every_value_under_a_condition_is_inside(e: Expr, c: Expr, holds: bool) -> None:
    env = refine(RANGES, c, holds)
    points = [p for p in POINTS if bool(evaluate(c, p)) == holds]
    assert not (points and is_empty(env))
    found = bounds(e, env)
    assert all(contains(found, int(evaluate(e, p))) for p in points)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (X * 8 + Y + 2, (0, 37)),
        (X - X, (0, 0)),
        ((X * 8 + 7) // 8 * 8, (0, 32)),
        ((X + 8) % 16, (8, 12)),
        (Min(const(8), const(37) - X * 8) + X * 8, (8, 37)),
        (Max(X, const(2)) - X, (0, 2)),
        (Select(Lt(X, const(2)), X + 2, X), (2, 4)),
    ],
)
def test_tight(e: Expr, expected: tuple[int, int]) -> None:
    lo, hi = bounds(e, RANGES)
    assert lo is not None and hi is not None
    assert (max(lo, expected[0]), hi) == expected


def test_a_guard_on_a_sum_bounds_the_sum() -> None:
    e = X * 2 + Y - 3
    env = refine(RANGES, And(Le(const(0), e), Lt(e, const(4))))
    assert bounds(e + 1, env) == (1, 4)
    assert bounds(const(0) - e, env) == (-3, 0)


def test_a_bound_through_min_speaks_of_both_arms() -> None:
    tail = Min(const(8), const(37) - X * 8)
    env = refine(RANGES | {Y: (0, None)}, Lt(Y, tail))
    assert bounds(Y, env) == (0, 7)
    assert bounds(X * 8 + Y, env) == (0, 36)


def test_unknown_variables_and_floats() -> None:
    x = var("x")
    assert bounds(x + 1, {}) == (None, None)
    assert bounds(var("f", dtypes.float32), {}) == (None, None)
    assert bounds(var("b", dtypes.uint8), {}) == (0, 255)
    assert proves(Lt(x, x + 1), {}) is True
    assert proves(Lt(x, X), RANGES) is None


def test_what_is_known_of_memory_does_not_last() -> None:
    a = Buffer("a", (1,), dtypes.int64)
    env = refine({}, And(Lt(a[0], const(3)), Lt(X, const(5))))
    assert bounds(a[0], env) == (None, 2)
    assert bounds(a[0], lasting(env)) == (None, None)
    assert bounds(X, lasting(env)) == (None, 4)
