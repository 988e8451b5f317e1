"""Bounds contain every value, and are tight where loops need them to be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.bounds import (
    bounds,
    is_empty,
    lasting,
    linear_bounds,
    proves,
    refine,
)
from tilewright.expr.interp import evaluate
from tilewright.expr.intervals import Interval
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
from tilewright.expr.simplify import simplify

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
        return draw(st.sampled_from([FloorDiv, Mod, Shl, Shr]))(
            draw(inner), draw(POSITIVE)
        )
    if kind == 2:
        return Select(draw(conditions(depth - 1)), draw(inner), draw(inner))
    if kind == 3:
        e = draw(inner)
        return draw(
            st.sampled_from(
                [Neg(e), Call("abs", (e,)), Cast(Cast(e, dtypes.int8), dtypes.int64)]
            )
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


A, B = var("a"), var("b")  # of which one end is known
HALVES = {A: (2, None), B: (None, 5)}
BYTE, WIDE = var("u", dtypes.uint8), var("v", dtypes.uint64)
FLAG = var("f", dtypes.bool_)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (A + 1, (3, None)), (B + 1, (None, 6)), (A - B, (-3, None)), (B - A, (None, 3)),
        (A + B, (None, None)), (Neg(A), (None, -2)), (Neg(B), (-5, None)), (A * 3, (6, None)),
        (Min(A, B), (None, 5)), (Max(A, B), (2, None)), (Min(A, A + B), (None, None)),
        (Select(FLAG, A, const(1)), (1, None)), (Select(FLAG, const(9), B), (None, 9)),
        (Select(FLAG, B, const(9)), (None, 9)), (Select(FLAG, const(1), A), (1, None)),
        (A * A, (0, None)), (A * B, (None, None)), (B * A, (None, None)), (B * B, (None, None)),
        (X * A, (0, None)), (B * X, (None, None)),
        (FloorDiv(X, Y), (None, None)), (FloorDiv(X, const(-2)), (None, None)),
        (FloorDiv(X, const(0)), (None, None)), (Mod(X, const(0)), (None, None)),
        (FloorDiv(X, const(1)), (0, 4)), (Mod(X, Y), (None, None)), (Mod(X, const(1)), (0, 0)),
        (Mod(X, const(-3)), (None, None)), ((X + 14) % 16, (0, 15)), ((X + 19) % 16, (3, 7)),
        (Select(Lt(X, const(9)), X, const(99)), (0, 4)),
        (Select(Lt(const(8), X), const(99), X), (0, 4)),
        (Select(And(Lt(X, const(2)), Lt(const(1), X)), const(99), X), (0, 4)),
        (Select(Or(Lt(X, const(3)), Lt(const(2), X)), X, const(99)), (0, 4)),
        (Min(X, Y) - X, (-6, 0)), (Max(X, Y) - X, (0, 3)), (X - Min(X, Y), (0, 6)),
        (X - Max(X, Y), (-3, 0)), (Min(A, B) - A, (None, 0)), (Min(B, A) - A, (None, 0)),
        (Max(A, B) - A, (0, 3)), (Max(B, A) - A, (0, 3)), (B - Max(A, B), (None, 0)),
        (A * X, (0, None)), (A * Y, (None, None)), (X * B, (None, None)), (X * Y, (-8, 12)),
        (A // 2, (1, None)), (B // 2, (None, 2)), (A % 4, (0, 3)), (B % 4, (0, 3)),
        (Shl(A, const(2)), (8, None)), (Shl(B, const(2)), (None, 20)),
        (Shr(A, const(1)), (1, None)), (Shr(B, const(1)), (None, 2)), (Shr(X, const(1)), (0, 2)),
        (Shl(X, Y), (None, None)), (Shr(X, Y), (None, None)), (Shr(X, const(64)), (None, None)),
        (And(A, const(6)), (0, 6)), (And(B, const(6)), (0, 6)), (And(B, Y), (None, None)),
        (Or(A, B), (None, None)), (Not(A), (None, -3)), (Not(B), (-6, None)),
        (Call("abs", (A,)), (0, None)), (Call("abs", (B,)), (0, None)),
        (Call("abs", (Y,)), (0, 3)), (Call("abs", (Y - 3,)), (0, 5)),
        (Call("abs", (X + 1,)), (1, 5)), (Cast(A, dtypes.int8), (-128, 127)),
    ],
    ids=str,
)  # fmt: skip
def test_an_end_is_known_where_it_follows_from_known_ends(
    e: Expr, expected: Interval
) -> None:
    assert bounds(e, {**RANGES, **HALVES}) == expected


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (Lt(X, const(5)), (1, 1)), (Lt(X, const(4)), (0, 1)), (Lt(const(4), X), (0, 0)),
        (Lt(const(3), X), (0, 1)), (Le(X, const(4)), (1, 1)), (Le(X, const(3)), (0, 1)),
        (Le(const(5), X), (0, 0)), (Le(const(4), X), (0, 1)), (Eq(X, const(5)), (0, 0)),
        (Eq(X, const(4)), (0, 1)), (Eq(X, const(-1)), (0, 0)), (Eq(X, const(0)), (0, 1)),
        (Eq(X, X), (1, 1)), (Ne(X, X), (0, 0)), (Ne(X, const(5)), (1, 1)), (Ne(X, Y), (0, 1)),
        (Lt(A, const(2)), (0, 0)), (Lt(B, const(6)), (1, 1)), (Le(A, const(1)), (0, 0)),
        (Le(B, const(5)), (1, 1)), (Eq(A, const(1)), (0, 0)), (Eq(B, const(6)), (0, 0)),
        (Eq(A, B), (0, 1)), (Lt(A, B), (0, 1)), (Not(FLAG), (0, 1)),
        (Not(Lt(X, const(5))), (0, 0)), (And(FLAG, Lt(const(4), X)), (0, 0)),
        (Or(FLAG, Lt(X, const(5))), (1, 1)), (Cast(X, dtypes.bool_), (0, 1)),
        (Cast(A, dtypes.bool_), (1, 1)), (Cast(B - 6, dtypes.bool_), (1, 1)),
        (Cast(X - X, dtypes.bool_), (0, 0)), (Cast(X + 1, dtypes.bool_), (1, 1)),
        (Cast(X - 4, dtypes.bool_), (0, 1)), (Cast(X - 5, dtypes.bool_), (1, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_true_or_false(e: Expr, expected: Interval) -> None:
    assert bounds(e, {**RANGES, **HALVES}) == expected


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (BYTE, (3, 100)), (BYTE + BYTE, (6, 200)), (BYTE - const(3, BYTE.dtype), (0, 97)),
        (BYTE + const(155, BYTE.dtype), (158, 255)), (BYTE + const(156, BYTE.dtype), (0, 255)),
        (BYTE - const(4, BYTE.dtype), (0, 255)), (BYTE * const(2, BYTE.dtype), (6, 200)),
        (Lt(BYTE, const(60, BYTE.dtype)), (0, 1)),
        (BYTE * const(3, BYTE.dtype), (0, 255)), (Shl(BYTE, const(1, BYTE.dtype)), (6, 200)),
        (Shl(BYTE, const(2, BYTE.dtype)), (0, 255)), (Cast(BYTE, dtypes.int8), (3, 100)),
        (Cast(BYTE + BYTE, dtypes.int8), (-128, 127)), (Not(BYTE), (0, 255)),
        (Cast(Neg(Cast(BYTE, dtypes.int8)), dtypes.uint8), (0, 255)),
        (WIDE, (0, 2**64 - 1)), (WIDE + const(5, WIDE.dtype), (0, 2**64 - 1)),
        (Cast(BYTE, WIDE.dtype) + const(5, WIDE.dtype), (8, 105)),
        (WIDE * WIDE, (0, 2**64 - 1)), (Cast(WIDE, dtypes.int64), (None, None)),
        (Cast(Min(WIDE, const(7, WIDE.dtype)), dtypes.int64), (0, 7)),
        (Cast(Shr(WIDE, const(1, WIDE.dtype)), dtypes.int64), (0, 2**63 - 1)),
    ],
    ids=str,
)  # fmt: skip
def test_what_wraps_around_may_be_anything(e: Expr, expected: Interval) -> None:
    assert bounds(e, {BYTE: (3, 100)}) == expected


def test_a_sum_of_uint64_is_not_compared_as_if_it_never_wrapped() -> None:
    """`v + 5 < 3` was taken to be false, `int64(v) < 0` too."""
    five, three = (const(n, WIDE.dtype) for n in (5, 3))
    sum_, index = Lt(WIDE + five, three), Lt(Cast(WIDE, dtypes.int64), const(0))
    for e in (sum_, index):
        assert evaluate(e, {WIDE: np.uint64(2**64 - 3)})
        assert simplify(e) is e


@pytest.mark.parametrize(
    ("condition", "holds", "empty"),
    [
        (Lt(const(3), const(3)), True, True), (Lt(const(3), const(3)), False, False),
        (Le(const(3), const(3)), True, False), (Le(const(3), const(3)), False, True),
        (Le(const(4), const(3)), True, True), (Eq(const(4), const(3)), True, True),
        (Ne(const(3), const(4)), False, True), (Ne(X, X), False, False),
        (const(False, dtypes.bool_), True, True), (const(False, dtypes.bool_), False, False),
        (const(True, dtypes.bool_), False, True), (const(True, dtypes.bool_), True, False),
        (Lt(X, const(0)), True, True), (Le(X, const(0)), True, False),
        (Lt(const(4), X), True, True), (And(Lt(X, const(2)), Lt(const(1), X)), True, True),
        (Or(Lt(X, const(3)), Lt(const(2), X)), False, True),
    ],
    ids=str,
)  # fmt: skip
def test_what_never_holds_leaves_nothing(
    condition: Expr, holds: bool, empty: bool
) -> None:
    assert is_empty(refine(RANGES, condition, holds)) is empty


@pytest.mark.parametrize(
    ("condition", "holds", "expected"),
    [
        (Lt(X, const(3)), True, (0, 2)), (Lt(X, const(3)), False, (3, 4)),
        (Le(X, const(3)), True, (0, 3)), (Le(X, const(3)), False, (4, 4)),
        (Eq(X, const(3)), True, (3, 3)), (Eq(X, const(3)), False, (0, 4)),
        (Ne(X, const(3)), False, (3, 3)), (Ne(X, const(3)), True, (0, 4)),
        (And(Le(const(1), X), Lt(X, const(3))), True, (1, 2)),
        (Or(Lt(X, const(1)), Le(const(3), X)), False, (1, 2)),
        (And(Le(const(1), X), Lt(X, const(3))), False, (0, 4)),
        (Not(Lt(X, const(3))), True, (3, 4)), (Not(Lt(X, const(3))), False, (0, 2)),
        (Le(X * 3, const(7)), True, (0, 2)), (Le(const(4), X * 3), True, (2, 4)),
        (Le(X + Y, const(0)), True, (0, 2)), (Le(const(6), X + Y), True, (3, 4)),
        (Le(X + A, const(4)), True, (0, 2)), (Le(X + B, const(4)), True, (0, 4)),
        (Le(X, Min(const(3), Y)), True, (0, 3)), (Le(Max(X, Y), const(2)), True, (0, 2)),
        (Le(Min(X, Y), const(2)), True, (0, 4)),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_condition_says(
    condition: Expr, holds: bool, expected: Interval
) -> None:
    assert bounds(X, refine({**RANGES, **HALVES}, condition, holds)) == expected


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
    f = var("f", dtypes.float32)
    for e in (
        f,
        f + f,
        Min(f, f),
        Neg(f),
        Select(FLAG, f, f),
        Cast(X, f.dtype),
        const(1, f.dtype),
    ):
        assert bounds(e, {}) == (None, None)
    assert bounds(Lt(f, f), {}) == (0, 1)
    assert bounds(var("b", dtypes.uint8), {}) == (0, 255)
    assert proves(Lt(x, x + 1), {}) is True
    assert proves(Lt(x, X), RANGES) is None


def test_what_is_known_of_memory_does_not_last() -> None:
    a = Buffer("a", (1,), dtypes.int64)
    env = refine({}, And(Lt(a[0], const(3)), Lt(X, const(5))))
    assert bounds(a[0], env) == (None, 2)
    assert bounds(a[0], lasting(env)) == (None, None)
    assert bounds(X, lasting(env)) == (None, 4)


def test_bounds_of_a_linear_form_are_those_of_its_expression():
    i, j = var("i"), var("j")
    known = refine({i: (0, 9), j: (0, 9)}, Lt(i + j, const(4)))
    for e in (i * 3 - j + 2, i + j, j - i * 4, i // 2 + j, const(5), Min(i, j) - i):
        assert linear_bounds(affine(e), known) == bounds(e, known)
        assert linear_bounds(affine(e), {}) == bounds(e, {})
    assert linear_bounds(affine(i + j), known) == (0, 3)


UNKNOWN: dict[str, tuple[Expr, tuple[int, int], tuple[int, int | None], Interval]] = {
    # a quotient or remainder, what x and n are between, and the bounds of the result
    "at least 0": (X // Y, (0, 9), (1, None), (0, 9)),
    "by at least 2": (X // Y, (0, 9), (2, None), (0, 4)),
    "of both signs": (X // Y, (-7, 9), (2, 3), (-4, 4)),
    "below 0": (X // Y, (-7, -2), (1, None), (-7, -1)),
    "a remainder": (X % Y, (-7, 9), (1, 5), (0, 4)),
    "a remainder by any": (X % Y, (-7, 9), (1, None), (0, None)),
    "by 0": (X // Y, (0, 9), (0, None), (None, None)),
    "a remainder by 0": (X % Y, (0, 9), (0, 5), (None, None)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_divisor_of_at_least_one(name: str) -> None:
    e, x, n, expected = UNKNOWN[name]
    assert bounds(e, {X: x, Y: n}) == expected
    low, high = expected
    for a in range(x[0], x[1] + 1):
        for b in range(max(n[0], 1), (n[1] or 20) + 1):
            value = int(evaluate(e, {X: a, Y: b}))
            assert (low is None or low <= value) and (high is None or value <= high)
