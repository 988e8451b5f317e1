"""Guarded reads: their conditions state that the index is inside, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.base.dtypes import DType, bool_, float32, int8, int64
from tilewright.compute.guards import (
    guarded,
    inside,
    keeps_inside,
    read_or_constant,
    read_or_zero,
)
from tilewright.expr.bounds import less_than
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import INDEX, Buffer, Expr, Lt, Select, Var, const
from tilewright.expr.simplify import simplify

X, PLACES = Buffer("x", (4, 6), float32), Buffer("p", (9,), int64)
K, J = Var("i", INDEX), Var("j", INDEX)
RANGES = {K: (0, 5), J: (0, 7)}
READ = X[K - 1, J - 1]
ROWS = (const(1) <= K) & (K < const(5))
COLUMNS = (const(1) <= J) & (J < const(7))


def outside(value: float) -> Expr:
    return const(value, float32)


# Conditions, the value outside, and whether it is a guarded read of x.
GUARDS: dict[str, tuple[Expr, Expr, bool]] = {
    "both": (ROWS & COLUMNS, outside(0.0), True),
    "in another order": (COLUMNS & ROWS, outside(0.0), True),
    "on the index": (
        (const(0) <= K - 1) & (K - 1 < const(4)) & COLUMNS,
        outside(0.0),
        True,
    ),
    "what always holds, too": (ROWS & COLUMNS & (const(0) <= K), outside(0.0), True),
    "another constant": (ROWS & COLUMNS, outside(7.0), True),
    "no number": (ROWS & COLUMNS, outside(float("nan")), True),
    "rows only": (ROWS, outside(0.0), False),
    "not the first": ((K < const(5)) & COLUMNS, outside(0.0), False),
    "a part of it": (ROWS & COLUMNS & (J < const(4)), outside(0.0), False),
    "a part along one": (ROWS & (const(1) <= J) & (J < const(6)), outside(0.0), False),
    "more of it": (ROWS & (const(1) <= J) & (J < const(9)), outside(0.0), False),
    "something else as well": (
        ROWS & COLUMNS & (PLACES[K] < const(3)),
        outside(0.0),
        False,
    ),
    "something else outside": (ROWS & COLUMNS, X[0, 0], False),
    "nowhere": (ROWS & COLUMNS & (J < const(0)), outside(0.0), False),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_says_where_the_index_is_inside_and_no_more(name: str) -> None:
    condition, otherwise, exact = GUARDS[name]
    e = Select(condition, READ, otherwise)
    found = read_or_constant(e, RANGES)
    assert found is (otherwise if exact else None)
    zero = exact and otherwise is outside(0.0)
    assert read_or_zero(e, RANGES) is (READ if zero else None)


def test_a_guard_around_more_than_a_read_is_for_all_of_its_reads() -> None:
    both = Select(ROWS & COLUMNS, READ * 2.0 + X[0, 0], outside(0.0))
    assert keeps_inside(both, RANGES)
    further = Select(ROWS & COLUMNS, READ * X[K - 1, J], outside(0.0))
    assert not keeps_inside(further, RANGES)
    assert not keeps_inside(Select(ROWS, READ * 2.0, outside(0.0)), RANGES)
    assert not keeps_inside(Select(ROWS & COLUMNS, READ * 2.0, X[0, 0]), RANGES)


def test_inside_of_a_tensor_of_any_size() -> None:
    n = Var("n", INDEX)
    t = Buffer("t", (n, 6), float32)
    ranges = {
        n: (0, 100),
        K: (0, None),
        J: (0, 5),
        frozenset({(K, 1), (n, -1)}): (None, -1),
    }
    assert inside(t[K, J], ranges) == []  # type: ignore[arg-type]
    assert inside(t[K + 1, J], ranges) == [simplify(K + 1 < n)]  # type: ignore[arg-type]


def test_what_is_read_behind_the_guard_is_a_read_alone() -> None:
    assert (
        read_or_constant(Select(ROWS & COLUMNS, READ * 2.0, outside(0.0)), RANGES)
        is None
    )
    assert read_or_constant(READ, RANGES) is None
    assert read_or_zero(READ, RANGES) is None
    assert read_or_zero(X[K, J], {K: (0, 3), J: (0, 5)}) is X[K, J]
    assert read_or_zero(X[K, J], {K: (0, 3), J: (0, 6)}) is None


def test_both_zeros_are_zero() -> None:
    e = Select(ROWS & COLUMNS, READ, outside(-0.0))
    assert read_or_zero(e, RANGES) is READ


def test_a_place_read_from_memory_is_open_on_both_sides() -> None:
    assert len(inside(X[PLACES[K], J], RANGES)) == 3
    e = guarded(X[PLACES[K], K], {K: (0, 5)})
    assert read_or_zero(e, {K: (0, 5)}) is X[PLACES[K], K]


@pytest.mark.parametrize("dtype", [bool_, int8], ids=str)
def test_any_element(dtype: DType) -> None:
    x = Buffer("x", (4,), dtype)
    e = guarded(x[K - 1], RANGES)
    assert isinstance(e, Select) and e.otherwise.dtype is dtype
    assert read_or_zero(e, RANGES) is x[K - 1]


def test_a_tensor_without_elements_is_never_read() -> None:
    x = Buffer("x", (0,), float32)
    e = guarded(x[K], RANGES)
    assert read_or_zero(e, RANGES) is x[K] and inside(x[K], RANGES)


N = Var("n", INDEX)


def below(extent: Expr) -> dict[Any, Any]:
    """Ranges of n from 1 to 12, and of i from 0 to below an extent."""
    return {N: (1, 12), K: (0, None), **less_than(K, extent)}


# The extent of i, the size of a tensor, what is read of it, and whether that is always below it.
STRIDED: dict[str, tuple[Expr, Expr, Expr, bool]] = {
    "every second": ((N + 1) // 2, N, K * 2, True),
    "every third": ((N + 2) // 3, N, K * 3, True),
    "every third from 1": ((N + 1) // 3, N, K * 3 + 1, True),
    "half of a size": (N // 2, N, K * 2 + 1, True),
    "one more": ((N + 1) // 2, N, K * 2 + 1, False),
    "too many": ((N + 2) // 2, N, K * 2, False),
    "another step": ((N + 2) // 3, N, K * 4, False),
    "a step that does not divide": ((N + 1) // 2, N, K * 3, False),
    "another size": ((N + 5) // 3, N, K * 3, False),
    "a larger multiple": (N, N, K * 2, False),
    "twice as much": ((N + 1) // 2, N * 2, K * 4, True),
    "twice as much and more": ((N + 1) // 2, N * 2, K * 4 + 2, False),
    "backwards": (N, N, N * 2 - K - 2, False),
    "less a multiple": (N, N, K + N - (N + 1) // 2 * 2 + 1, False),
}


@pytest.mark.parametrize("name", STRIDED)
def test_what_a_step_reads_of_a_tensor_of_any_size(name: str) -> None:
    """A condition may be left out where counting finds that it always holds, and only there."""
    extent, size, index, always = STRIDED[name]
    counted = [
        evaluate(index < size, {K: i, N: n})
        for n in range(1, 13)
        for i in range(int(evaluate(extent, {N: n})))
    ]
    assert all(counted) == always
    found = inside(Buffer("t", (size,), float32)[index], below(extent))
    assert any(isinstance(c, Lt) for c in found) == (not always)


def test_what_is_rounded_down_stays_rounded_where_that_is_less() -> None:
    """4 * (j // 4) is at most 4 for j up to 7, and so i + 4 * (j // 4) less than n + 4."""
    ranges = below(N) | {J: (0, 7)}
    for more, always in ((4, True), (3, False)):
        t = Buffer("t", (N + more,), float32)
        assert (inside(t[K + J // 4 * 4], ranges) == []) is always
