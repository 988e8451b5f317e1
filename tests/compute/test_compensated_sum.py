"""Sums with the errors of their additions: nearer numbers, and only where the law holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.compensated_sum import compensated
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS
from tilewright.expr.nodes import Buffer

X, Y = Buffer("x", (2, 40), float32), Buffer("y", (2,), float32)
INF, NAN = np.inf, np.nan
LARGEST = np.finfo(np.float32).max


def row_sum(x=X, y=Y, op="add", **how):
    return reduce_("sum", y, (x.shape[1],), op, lambda i, j: x[i, j], **how)


def summed(*row: float) -> float:
    x = Buffer("x", (1, len(row)), float32)
    made = compensated(row_sum(x, Buffer("y", (1,), float32)))
    assert made is not None
    arrays = {x: np.array([row], np.float32)}
    with np.errstate(over="ignore", invalid="ignore"):
        for step in made:
            arrays |= evaluate(step, arrays)
    return float(arrays[made[1].outputs[0].tensor][0])


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ((), 0),
        ((1e8, 1, 1, 1, -1e8), 3),
        ((1, 1e8, 1, -1e8), 2),  # the smaller operand first
        ((1, 2.0**-30, -1), 2.0**-30),
        ((1, INF, 2), INF),
        ((-INF, 1, 2), -INF),
        ((INF, -INF), NAN),
        ((1, NAN, 2), NAN),
        ((LARGEST, LARGEST), INF),
        ((LARGEST, -LARGEST, 1), 1),
    ],
)
def test_what_additions_round_away_is_added_at_the_end(row, want) -> None:
    np.testing.assert_equal(summed(*row), want)


def test_results_go_where_the_sum_wrote_them() -> None:
    whole = Buffer("whole", (5,), float32)
    c = row_sum()
    (out,) = c.outputs
    moved = replace(c, outputs=(replace(out, tensor=whole, index=(out.index[0] + 2,)),))
    made = compensated(moved)
    assert made is not None
    arrays = {X: np.arange(80, dtype=np.float32).reshape(2, 40)}
    want = evaluate(moved, arrays)[whole]
    for step in made:
        arrays |= evaluate(step, arrays)
    np.testing.assert_array_equal(arrays[whole], want)


def test_other_computations_stay() -> None:
    integers = Buffer("n", (2, 40), int32)
    scan = row_sum(y=X, combine=PS, extents=(2,))
    wide = reduce_("wide", Y, (40,), "add", lambda i, j: cast(X[i, j], int32))
    for c in (
        map_("copy", X, lambda i, j: X[i, j]),
        row_sum(op="max"),
        row_sum(integers, Buffer("m", (2,), int32)),
        scan,
        wide,
    ):
        assert compensated(c) is None
