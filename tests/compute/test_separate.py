"""Windows reduced along one axis after another: equal to all of a window at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.dtypes import float32
from tilewright.compute.build import reduce_
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.compute.separate import separate
from tilewright.expr.nodes import Buffer
from tilewright.graph.ops.windows import Windows

OUTSIDE = {"max": float("-inf"), "min": float("inf"), "add": 0.0}
Axis = tuple[int, int, int, int, int, int]  # extent, window, stride, dilation, before, after


def pool(axes: Sequence[Axis], op: str = "max") -> Computation | None:
    """A pooling of two channels along these axes; None where it has no results."""
    outputs = tuple((n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in axes)
    if min(outputs) < 1:
        return None
    size, kernel, strides, dilations, begin, end = zip(*axes, strict=True)
    shape = Windows(size, kernel, strides, dilations, begin, end, outputs)
    x, y = Buffer("x", (2, *size), float32), Buffer("y", (2, *outputs), float32)
    rank = len(axes)

    def value(c: Any, *i: Any) -> Any:
        return shape.read(x, (c,), shape.place(i[:rank], i[rank:]), OUTSIDE[op])

    return reduce_("pool", y, kernel, op, value)


def agrees(c: Computation) -> bool:
    """Whether the law applies; where it does, both forms must give the same, NaN included."""
    parts = separate(c)
    if parts is None:
        return False
    x, y = c.accesses[0].buffer, c.outputs[0].tensor
    data = np.random.default_rng(0).integers(-9, 9, x.shape).astype(np.float32)
    if c.reducer is not None and c.reducer.name != "add":
        data.flat[::7] = np.nan
        data.flat[3::11] = np.inf
    for part in parts:
        check(part)
    np.testing.assert_array_equal(evaluate(parts, {x: data})[y], evaluate(c, {x: data})[y])
    return True


AXES = st.tuples(
    *(st.integers(3, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2)),
    *(st.integers(0, 2), st.integers(0, 2)),
)


@given(st.lists(AXES, min_size=1, max_size=3), st.sampled_from(sorted(OUTSIDE)))
def test_any_windows(axes: list[Axis], op: str) -> None:
    c = pool(axes, op)
    if c is not None:
        agrees(c)


@pytest.mark.parametrize("op", OUTSIDE)
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_where_windows_share(op: str, stride: int, dilation: int) -> None:
    c = pool([(9, 3, stride, dilation, 1, 1)] * 2, op)
    assert c is not None and agrees(c)


def test_it_is_fewer_terms() -> None:
    c = pool([(9, 3, 1, 1, 1, 1)] * 2)
    assert c is not None
    parts = separate(c)
    assert parts is not None
    assert [tuple(d.extent for d in p.dims) for p in parts] == [(2, 9, 11, 3), (2, 9, 9, 3)]


@pytest.mark.parametrize(
    "axes",
    [
        [(9, 3, 1, 1, 1, 1)],  # along one axis only
        [(8, 2, 2, 1, 0, 0)] * 2,  # no window shares anything with its neighbour
        [(9, 3, 1, 2, 2, 2)] * 2,  # a place is half a step
        [(9, 3, 3, 1, 0, 0), (9, 1, 1, 1, 0, 0)],  # windows of one row
    ],
    ids=["one axis", "apart", "half a step", "one row"],
)
def test_where_it_does_not_apply(axes: list[Axis]) -> None:
    c = pool(axes)
    assert c is not None and separate(c) is None


def test_products_of_two_tensors_are_no_windows() -> None:
    x, w, y = (Buffer(n, s, float32) for n, s in (("x", (9, 9)), ("w", (3, 3)), ("y", (7, 7))))
    c = reduce_("conv", y, (3, 3), "add", lambda i, j, m, n: x[i + m, j + n] * w[m, n])
    assert separate(c) is None
