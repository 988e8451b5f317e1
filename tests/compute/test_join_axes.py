"""Axes that are the digits of one number, and for each condition two axes that are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.compute.memory import same
from tilewright.base.dtypes import DType, bool_, float32, float64, int8, int64
from tilewright.base.errors import ExecutionError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.join_axes import join_axes
from tilewright.compute.nodes import PS, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, Var, const

T = Buffer("t", (4, 6), float32)
TEXT = Buffer("idx", (5,), int64)
Index = Callable[[Expr, Expr], tuple[Expr | int, Expr | int]]
# What reads t of 4 rows of 6, the extents of n and m, and whether t may be one axis of 24.
READS: dict[str, tuple[Index, tuple[int, int], bool]] = {
    "all of it": (lambda n, m: (n // 6, n % 6), (24, 2), True),
    "a part, shifted": (lambda n, m: ((n + 9) // 6, (n + 9) % 6), (10, 2), True),
    "backwards": (lambda n, m: ((23 - n) // 6, (23 - n) % 6), (24, 2), True),
    "around and around": (lambda n, m: (n // 6 % 4, n % 6), (48, 2), True),
    "around from below zero": (
        lambda n, m: ((n - 7) // 6 % 4, (n - 7) % 6),
        (24, 2),
        True,
    ),
    "a number of two": (
        lambda n, m: ((n * 2 + m) // 6, (n * 2 + m) % 6),
        (12, 2),
        True,
    ),
    "nothing": (lambda n, m: (n // 6, n % 6), (0, 2), True),
    "two numbers": (lambda n, m: (n // 6, m % 6), (24, 9), False),
    "two numbers around": (lambda n, m: (m // 6 % 4, n % 6), (24, 9), False),
    "rows by another length": (lambda n, m: (n // 3, n % 6), (12, 2), False),
    "rows around by another length": (lambda n, m: (n // 3 % 4, n % 6), (24, 2), False),
    "columns by another length": (lambda n, m: (n // 6, n % 3), (24, 2), False),
    "around too early": (lambda n, m: (n // 6 % 2, n % 6), (24, 2), False),
    "around in both": (lambda n, m: (n % 4, n % 6), (24, 2), False),
    "rows and columns": (lambda n, m: (n // 6, m), (24, 6), False),
    "what is not a digit": (lambda n, m: (n // 6, n), (6, 2), False),
    "rows that are none": (lambda n, m: (m, n % 6), (24, 4), False),
}


@pytest.mark.parametrize("name", READS)
def test_two_axes_are_one_where_they_are_digits_of_a_number(name: str) -> None:
    index, extents, joined = READS[name]
    c = map_("c", Buffer("y", extents, float32), lambda n, m: T[index(n, m)] * 2.0)
    made, views = join_axes([c])
    same([c], made, views)
    assert (T in views) is joined


def written(
    index: Index, extents: tuple[int, int], shape: tuple[int, ...] = (4, 6)
) -> Computation:
    x, y = Buffer("x", extents, float32), Buffer("y", shape, float32)
    return map_("c", y, lambda n, m: x[n, m] * 2.0, extents=extents, index=index)


WRITES: dict[str, tuple[Computation, bool]] = {
    "all of it": (written(lambda n, m: (n // 6, n % 6), (24, 1)), True),
    "a part": (written(lambda n, m: ((n + 3) // 6, (n + 3) % 6), (15, 1)), True),
    "every other": (written(lambda n, m: (n * 2 // 6, n * 2 % 6), (12, 1)), True),
    "by columns": (written(lambda n, m: (n, m), (4, 6)), False),
    "rows by another length": (written(lambda n, m: (n // 3, n % 3), (12, 1)), False),
    "more rows": (written(lambda n, m: (n // 5, n % 5), (20, 1)), False),
}


@pytest.mark.parametrize("name", WRITES)
def test_results_too(name: str) -> None:
    c, joined = WRITES[name]
    made, views = join_axes([c])
    same([c], made, views)
    assert bool(views) is joined


def both(one: Index, two: Index) -> None:
    c = map_(
        "c", Buffer("y", (24, 4), float32), lambda n, m: T[one(n, m)] - T[two(n, m)]
    )
    made, views = join_axes([c])
    assert not views
    same([c], made, views)


def test_every_read_counts() -> None:
    digits: Index = lambda n, m: (n // 6, n % 6)  # noqa: E731
    both(digits, lambda n, m: (m, 5))
    both(lambda n, m: (m, 5), digits)


def test_who_writes_it_otherwise_counts() -> None:
    """Written by rows and columns, read as digits in the same kernel, and the other way round."""
    x, y, z = (
        Buffer("x", (4, 6), float32),
        Buffer("y", (4, 6), float32),
        Buffer("z", (24,), float32),
    )
    rows = map_("rows", y, lambda i, j: x[i, j] * 2.0)
    walk = map_("walk", z, lambda n: y[n // 6, n % 6])
    made, views = join_axes([rows, walk])
    assert not views
    same([rows, walk], made, views)


def test_a_tensor_written_in_parts_by_two_is_one_axis_in_both() -> None:
    x, y = Buffer("x", (12,), float32), Buffer("y", (4, 6), float32)
    parts = []
    for start in (0, 12):

        def at(n: Expr, start: int = start) -> tuple[Expr, ...]:
            return (n + start) // 6, (n + start) % 6

        parts.append(map_("part", y, lambda n: x[n], extents=(12,), index=at))
    made, views = join_axes(parts)
    assert views[y].shape == (24,)
    same(parts, made, views)


def test_the_other_half_may_be_read_meanwhile() -> None:
    """In place: rows 2 and 3 from rows 0 and 1 of one tensor."""
    at: Callable[..., tuple[Expr, ...]] = lambda n: ((n + 12) // 6, (n + 12) % 6)  # noqa: E731
    c = map_("c", T, lambda n: T[n // 6, n % 6] + 1.0, extents=(12,), index=at)
    made, views = join_axes([c])
    assert views[T].shape == (24,)
    same([c], made, views)


def test_several_axes_and_both_sides() -> None:
    x, y = Buffer("x", (2, 3, 4), float32), Buffer("y", (5, 2, 3, 4), float32)
    digits: Callable[[Expr], tuple[Expr, ...]] = lambda n: (n // 12, n // 4 % 3, n % 4)  # noqa: E731
    at: Callable[..., tuple[Expr, ...]] = lambda b, n: (b, *digits(n))  # noqa: E731
    c = map_("c", y, lambda b, n: x[digits(23 - n)], extents=(5, 24), index=at)
    made, views = join_axes([c])
    assert views[x].shape == (24,) and views[y].shape == (5, 24)
    same([c], made, views)


def test_a_guard_holds_for_the_number_as_for_its_digits() -> None:
    def value(n: Expr) -> Expr:
        row = (n - 5) // 6
        inside = (const(0) <= row) & (row < const(4))
        return Select(inside, T[row, (n - 5) % 6], const(7.0, float32))

    c = map_("c", Buffer("y", (40,), float32), value)
    made, views = join_axes([c])
    assert T in views
    same([c], made, views)


def test_a_place_read_from_memory_is_still_checked() -> None:
    c = map_("c", Buffer("y", (5,), float32), lambda n: T[TEXT[n] // 6, TEXT[n] % 6])
    made, views = join_axes([c])
    assert views[T].shape == (24,)
    same([c], made, views, {TEXT: np.array([3, 0, 23, 6, 5])})
    for wrong in (24, -1):
        data = {
            TEXT: np.array([3, 0, 23, 6, wrong]),
            views[T]: np.zeros(24, np.float32),
        }
        with pytest.raises(ExecutionError):
            evaluate(made, data)


@pytest.mark.parametrize("dtype", [bool_, int8, float64], ids=str)
def test_any_element(dtype: DType) -> None:
    t = Buffer("t", (3, 1, 4), dtype)
    c = map_("c", Buffer("y", (12,), dtype), lambda n: t[n // 4, 0, n % 4])
    d = map_("d", Buffer("y", (12,), dtype), lambda n: t[n // 4, n // 4 % 1, n % 4])
    for each in (c, d):
        made, views = join_axes([each])
        same([each], made, views)


def test_scans_and_results_of_several_components() -> None:
    x = Buffer("x", (12,), float32)
    y = Buffer("y", (3, 4), float32)
    at: Callable[..., tuple[Expr, ...]] = lambda n: (n // 4, n % 4)  # noqa: E731
    scan = reduce_(
        "s", y, (12,), "add", lambda n: x[n], extents=(), index=at, combine=PS
    )
    most, place = Buffer("m", (3, 4), float32), Buffer("p", (3, 4), int64)
    n, k = Var("n", INDEX), Var("k", INDEX)
    op = arg_reducer("argmax", float32, int64)
    outputs = (Output(most, at(n), x[k]), Output(place, at(n), k + n))
    found = Computation("a", (Dim(n, 12), Dim(k, 12, "pw")), outputs, op)
    columns = replace(
        found, outputs=(outputs[0], replace(outputs[1], index=(n % 3, n // 3)))
    )
    for c, joined in ((scan, {y}), (found, {most, place}), (columns, {most})):
        made, views = join_axes([c])
        assert set(views) == joined
        same([c], made, views)
