"""Rows that move unevenly, as those at `v // 2` do: what compute_at, store_at and slide make."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedule.preconditions import (
    ZERO,
    Rows,
    T,
    Y,
    Z,
    check,
    i32,
    made,
    own,
    put,
    v,
)
from tilewright.base import dtypes
from tilewright.expr.nodes import INDEX, Call, Cast, Expr, Min, Var, const
from tilewright.loops.nodes import Stmt

SLIDE = ("slide", "T", "v")


def resized(v: Expr) -> Expr:
    """Where a row twice as long samples one, by floats that may be rounded otherwise elsewhere."""
    source = (Cast(v, dtypes.float32) + 0.5) * 0.4 - 0.1
    return Cast(Cast(Call("floor", (source,)), i32), INDEX)


# Elements that move with v without being a constant apart, and leave a guard where they stick out.
NEAR: list[Callable[[Var], Expr]] = [
    lambda v: T[v // 2] + T[(v + 1) // 2],
    lambda v: T[(v + 1) // 2] + T[v // 2],
    lambda v: T[(v // 2 + 1) // 2] + T[7 - v // 3],
    lambda v: T[resized(v)] + T[resized(v) + 1],
    lambda v: T[v] + T[Min(v, const(4)) + 3],
]
HALVES: list[Callable[[Var], Expr]] = [
    lambda v: T[v // 2] + T[(v + 1) // 2],
    lambda v: T[(v + 1) // 2] + T[v // 2],
    lambda v: T[v // 3 + 2] + T[(v + 1) // 3 + 1] + T[v // 3],
    lambda v: T[((v + 1) // 2 + 3) // 2] + T[(v // 2 + 1) // 2],
    lambda v: T[(v * 3 + 1) // 4] + T[v * 3 // 4],
]


def read_by(read: Callable[[Var], Expr]) -> Stmt:
    """Y[v] = read(v), which reads T."""
    return own(T, made(), v(lambda v: put(Y, v, read(v))))


ROWS: Rows = [
    *((read_by(e), ("compute_at", "T", "v"), None) for e in NEAR),
    *((read_by(e), ("store_at", "T", None, "v"), None) for e in NEAR),
    *((read_by(e), SLIDE, None) for e in HALVES),
    # The first step, from where the loop would have been before, is larger than all others.
    (
        own(
            T, made(), v(lambda v: put(Y, v, T[v * 2] + T[Min(v * 3 + 5, const(7))]), 2)
        ),
        SLIDE,
        None,
    ),
    # Rows are read after the loop, or before it, that no iteration of it reaches so soon.
    (
        own(T, made(), v(lambda v: put(Y, v, T[v // 2])), put(Z, ZERO, T[7])),
        SLIDE,
        None,
    ),
    (
        own(T, made(), put(Z, ZERO, T[2]), v(lambda v: put(Y, v, T[v // 2]))),
        SLIDE,
        None,
    ),
    (own(T, made(), v(lambda v: put(Y, v, T[(v + 7) // 8]))), SLIDE, None),
    (
        own(T, made(), v(lambda v: put(Y, v, T[v // 2 * 2]))),
        SLIDE,
        "leave rows of it out",
    ),
    (own(T, made(), v(lambda v: put(Y, v, T[(7 - v) // 2]))), SLIDE, "not a window"),
    (own(T, made(), v(lambda v: put(Y, v, T[v % 4]))), SLIDE, "not a window"),
]


@pytest.mark.parametrize(
    "body, step, message", ROWS, ids=[f"{r[1][0]} {n}" for n, r in enumerate(ROWS)]
)
def test_a_window(body: Stmt, step: tuple[object, ...], message: str | None) -> None:
    check(body, step, message)
