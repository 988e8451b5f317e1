"""Reductions over rows of sparse matrices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import ExecutionError, InputError, ScheduleError

ROWS, COLUMNS, COUNT = 6, 5, 13
RNG = np.random.default_rng(2)
START = np.array([0, 4, 4, 5, 9, 9, 13], np.int32)
AT = RNG.integers(0, COLUMNS, COUNT).astype(np.int32)
DATA = RNG.standard_normal(COUNT, dtype=np.float32)
DENSE = np.zeros((ROWS, COLUMNS), np.float32)
for row in range(ROWS):
    for n in range(START[row], START[row + 1]):
        DENSE[row, AT[n]] += DATA[n]
X = RNG.standard_normal((COLUMNS, 8), dtype=np.float32)

start = t.placeholder((ROWS + 1,), "int32", name="start")
at = t.placeholder((COUNT,), "int32", name="at")
data = t.placeholder((COUNT,), name="data")
x = t.placeholder((COLUMNS, 8), name="x")
ARGS = [start, at, data, x]


def product() -> t.Tensor:
    def row(i, j):
        k = t.reduce_axis((start[i], start[i + 1]), name="k")
        return t.sum(data[k] * x[at[k], j], axis=k)

    return t.compute((ROWS, 8), row, name="Y")


def run(s: t.Schedule, out: t.Tensor, *arrays: np.ndarray, **options) -> np.ndarray:
    found = np.empty(tuple(out.shape), out.dtype.numpy)
    t.build(s, [*ARGS, out], **options)(*arrays, found)
    return found


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_a_sparse_matrix_product(target):
    Y = product()
    s = t.create_schedule(Y.op)
    i, j = s[Y].op.axis
    if target == "cpu":
        s[Y].parallel(i)
        s[Y].vectorize(j)
    found = run(s, Y, START, AT, DATA, X, target=target)
    np.testing.assert_allclose(found, DENSE @ X, rtol=1e-5, atol=1e-6)


def test_as_tvms_topi_writes_it_and_what_reads_it():
    def row(i, j):
        k = t.reduce_axis((0, start[i + 1] - start[i]), name="k")
        n = start[i] + k
        return t.max(data[n] * x[at[n], j], axis=k)

    Y = t.compute((ROWS, 8), row, name="Y")
    Z = t.compute((ROWS, 8), lambda i, j: t.exp(Y[i, j]), name="Z")
    s = t.create_schedule(Z.op)
    s[Y].compute_at(s[Z], s[Z].op.axis[0])
    assert "alloc Y: float32[1, 8]" in str(s)
    found = run(s, Z, START, AT, DATA, X)
    want = np.full((ROWS, 8), -np.inf, np.float32)
    for r in range(ROWS):
        for n in range(START[r], START[r + 1]):
            want[r] = np.maximum(want[r], DATA[n] * X[AT[n]])
    np.testing.assert_allclose(found, np.exp(want), rtol=1e-5)


def test_sizes_that_a_call_decides():
    n, count = t.var("n"), t.var("count")
    ends = t.placeholder((n + 1,), "int32", name="ends")
    values = t.placeholder((count,), name="values")

    def row(i):
        k = t.reduce_axis((ends[i], ends[i + 1]), name="k")
        return t.sum(values[k], axis=k)

    S = t.compute((n,), row, name="S")
    f = t.build(t.create_schedule(S.op), [ends, values, S])
    for counts in ([2, 0, 3], [1, 1]):
        at = np.cumsum([0, *counts]).astype(np.int32)
        v = RNG.standard_normal(at[-1], dtype=np.float32)
        found = np.empty(len(counts), np.float32)
        f(at, v, found)
        want = [v[a:b].sum() for a, b in pairwise(at)]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_an_axis_of_another_axis():
    def prefix(i):
        k = t.reduce_axis((0, i + 1), name="k")
        return t.sum(data[k], axis=k)

    S = t.compute((COUNT,), prefix, name="S")
    out = np.empty(COUNT, np.float32)
    t.build(t.create_schedule(S.op), [data, S])(DATA, out)
    np.testing.assert_allclose(out, np.cumsum(DATA), rtol=1e-5)


def test_rows_that_leave_the_data_are_errors():
    Y = product()
    s = t.create_schedule(Y.op)
    wrong = START.copy()
    wrong[3] = COUNT + 1
    with pytest.raises(ExecutionError, match="out of range"):
        run(s, Y, wrong, AT, DATA, X)
    backwards = START[::-1].copy()  # no row has an element
    np.testing.assert_array_equal(run(s, Y, backwards, AT, DATA, X), 0)


def test_what_cannot_be_done():
    Y = product()
    s = t.create_schedule(Y.op)
    (k,) = s[Y].op.reduce_axis
    s[Y].split(k, 4)
    with pytest.raises(
        ScheduleError,
        match=r"s\[Y\].split\(k, factor=4\).*not a constant|depends on data",
    ):
        str(s)
    with pytest.raises(InputError, match="neither an axis of the tensor"):
        k = t.reduce_axis((0, t.reduce_axis((0, 3), name="m") + 1), name="k")
        t.compute((4,), lambda i: t.sum(data[k], axis=k))
    with pytest.raises(InputError, match="an end of the domain"):
        t.reduce_axis((0, data[0]))
