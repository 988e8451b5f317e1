"""Masks by position go into what reads them, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.base.dtypes import DType, bool_, float32, int32, int64
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import And, Buffer, Cast, Expr, Le, Load, Lt, Select, const
from tilewright.plan.nodes import DefUse, FusionGroup
from tilewright.plan.passes.inline_masks import inline_masks

KEYS = 6
PLACES = Buffer("places", (KEYS,), int64)
LAST = Buffer("last", (), int64)
MASK = Buffer("mask", (KEYS,), bool_)
X, Y = Buffer("x", (KEYS,), float32), Buffer("y", (), float32)
TABLES = {
    "from 0": list(range(KEYS)),
    "downwards": [9, 7, 5, 3, 1, -1],
    "all the same": [4] * KEYS,
    "large": [2**62 + n for n in range(KEYS)],
}


def reader(mask: Buffer = MASK) -> Computation:
    def value(i: Expr) -> Expr:
        return Select(mask[i], X[i], const(0.0, float32))

    return reduce_("sum", Y, (KEYS,), "add", value)


def inlined(
    maker: Computation, data: dict[Buffer, list[int]], of: Computation | None = None
) -> Computation:
    first = FusionGroup("maker", (maker,))
    second = FusionGroup("reader", (of or reader(),))
    arrays = {b: np.array(a, b.dtype.numpy) for b, a in data.items()}
    (made,) = inline_masks(second, DefUse([first, second]), arrays).computations
    return made


def below(i: Expr) -> Expr:
    return Le(PLACES[i], LAST[()])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("last", [-(2**63), -1, 0, 3, 5, 2**62 + 2, 2**63 - 1])
def test_a_table_of_positions_is_computed(table: str, last: int) -> None:
    places = np.array(TABLES[table])
    made = inlined(map_("mask", MASK, below), {PLACES: TABLES[table]})
    assert set(made.inputs) == {LAST, X}
    x = np.arange(1, KEYS + 1, dtype=np.float32)
    found = evaluate(made, {LAST: np.array(last), X: x})
    assert found[Y] == x[places <= last].sum()


@pytest.mark.parametrize(
    "table", [[0, 1, 2, 3, 4, 6], [0, 1, 0, 1, 0, 1], [0, -(2**63), 2, 3, 4, 5]]
)
def test_another_table_is_read(table: list[int]) -> None:
    made = inlined(map_("mask", MASK, below), {PLACES: table})
    assert set(made.inputs) == {PLACES, LAST, X}


def test_a_table_that_is_not_known_is_read() -> None:
    made = inlined(map_("mask", MASK, below), {})
    assert set(made.inputs) == {PLACES, LAST, X}


def test_narrow_tables_may_wrap_around() -> None:
    narrow = Buffer("narrow", (KEYS,), int32)
    maker = map_("mask", MASK, lambda i: Lt(Cast(narrow[i], int64), LAST[()]))
    made = inlined(maker, {narrow: TABLES["from 0"]})
    assert set(made.inputs) == {narrow, LAST, X}


def test_two_axes() -> None:
    table, square = Buffer("t", (3, 2), int64), Buffer("m", (3, 2), bool_)
    maker = map_("m", square, lambda i, j: Lt(table[i, j], LAST[()]))
    z = Buffer("z", (3,), float32)

    def value(i: Expr, j: Expr) -> Expr:
        return Select(square[i, j], const(1.0, float32), const(0.0, float32))

    made = inlined(
        maker, {table: [[5, 7], [15, 17], [25, 27]]}, reduce_("s", z, (2,), "add", value)
    )  # fmt: skip
    assert set(made.inputs) == {LAST}
    found = evaluate(made, {LAST: np.array(17)})
    np.testing.assert_array_equal(found[z], [2, 1, 0])


def test_a_guard_by_position() -> None:
    kept = Buffer("kept", (KEYS,), float32)

    def guarded(otherwise: Expr) -> Computation:
        return map_("kept", kept, lambda i: Select(below(i), X[i], otherwise))

    read = reduce_("sum", Y, (KEYS,), "add", lambda i: kept[i])
    tables = {PLACES: TABLES["from 0"]}
    made = inlined(guarded(const(0.0, float32)), tables, read)
    assert set(made.inputs) == {LAST, X}
    other = Buffer("other", (), float32)
    assert kept in inlined(guarded(other[()]), tables, read).inputs


Maker = Callable[[Expr], Expr]


@pytest.mark.parametrize(
    "dtype,value",
    [
        (bool_, lambda i: Lt(X[i], const(0.5, float32))),
        (bool_, lambda i: And(below(i), Lt(X[i], const(0.5, float32)))),
        (float32, lambda i: X[i] + const(1.0, float32)),
        (int32, lambda i: Cast(PLACES[i], int32)),
    ],
    ids=["of data", "of data too", "arithmetic", "a narrow number"],
)
def test_what_is_not_by_position_stays(dtype: DType, value: Maker) -> None:
    b = Buffer("b", (KEYS,), dtype)
    zero = const(0, dtype) if dtype is not bool_ else None

    def read(i: Expr) -> Expr:
        test: Expr = Load(b, (i,)) if zero is None else Lt(zero, b[i])
        return Select(test, const(1.0, float32), const(0.0, float32))

    of = reduce_("sum", Y, (KEYS,), "add", read)
    assert b in inlined(map_("b", b, value), {PLACES: TABLES["from 0"]}, of).inputs


def test_what_two_groups_make_stays() -> None:
    maker = map_("m", MASK, below)
    halves = [FusionGroup(name, (maker,)) for name in ("one", "other")]
    group = FusionGroup("reader", (reader(),))
    flow = DefUse([*halves, group])
    assert MASK in inline_masks(group, flow, {}).reads


def test_what_a_reduction_makes_stays() -> None:
    rows = Buffer("rows", (KEYS, 3), bool_)
    maker = reduce_("any", MASK, (3,), "or", lambda i, j: rows[i, j])
    assert MASK in inlined(maker, {}).inputs
