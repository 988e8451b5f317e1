"""Two sizes joined to one: the same numbers in the same memory, and what forbids it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Load, Var, const
from tilewright.plan.joined_sizes import join_sizes
from tilewright.plan.open_extents import Resized

M, N = Var("m", INDEX), Var("n", INDEX)
A, P, J, K = (Var(name, INDEX) for name in "apjk")
X = Buffer("x", (M, N, 6), float32)
W = Buffer("w", (6, 4), float32)
IDS = Buffer("ids", (M, N), int64)
TABLE = Buffer("table", (N, 6), float32)
WORDS = Buffer("words", (5, 6), float32)
SQUARE = Buffer("square", (M, N, N), float32)
BEHIND = Buffer("behind", (6, M, N), float32)
Y = Buffer("y", (M, N, 4), float32)
DIAGONAL, DIAGONAL_Y = Buffer("d", (N, N), float32), Buffer("y", (N, N, 4), float32)
BACKWARD = N - P - 1
BATCH, ROWS, COLUMNS = Dim(A, M), Dim(P, N), Dim(J, 4)
DIMS = (BATCH, ROWS, COLUMNS)


def mapped(
    value: Expr,
    y: Buffer = Y,
    index: tuple[Expr, ...] = (A, P, J),
    rows: Dim = ROWS,
) -> Any:
    return Computation("f", (BATCH, rows, COLUMNS), (Output(y, index, value),))


def product() -> list[Computation]:
    """relu-like: a product with a bias of the words that a tensor names."""
    value = (Load(X, (A, P, K)) + Load(WORDS, (Load(IDS, (A, P)), K))) * Load(W, (K, J))
    h = Buffer("h", (M, N, 4), float32)
    dims = (*DIMS, Dim(K, 6, "pw"))
    made = Computation(
        "h", dims, (Output(h, (A, P, J), value),), reducer("add", float32)
    )
    return [made, mapped(Load(h, (A, P, J)) * 2.0)]


def same(group: list[Computation]) -> int:
    """Compare with the joined group at sizes; how many tensors have another shape."""
    joined, views = join_sizes(group)
    rng = np.random.default_rng(0)
    for sizes in ({M: 1, N: 1}, {M: 3, N: 5}, {M: 4, N: 1}):
        sized = Resized({**sizes}, {})
        inputs = dict.fromkeys(b for c in group for b in c.inputs)
        made = {o.tensor for c in group for o in c.outputs}
        given = {
            b: rng.integers(0, 5, sized.buffer(b).shape).astype(b.dtype.numpy)
            for b in inputs
            if b not in made
        }
        want = evaluate(
            [sized.computation(c) for c in group],
            {sized.buffer(b): a for b, a in given.items()},
        )
        seen = {b: sized.buffer(views.get(b, b)) for b in (*given, Y)}
        got = evaluate(
            [sized.computation(c) for c in joined],
            {seen[b]: a.reshape(seen[b].shape) for b, a in given.items()},
        )
        y = want[sized.buffer(Y)]
        np.testing.assert_array_equal(got[seen[Y]].reshape(y.shape), y)
    return len(views)


def test_rows_of_all_sequences_are_rows() -> None:
    group = product()
    assert same(group) == 4
    for c in join_sizes(group)[0]:
        assert len([d for d in c.dims if not d.static]) == 1


def test_work_without_rows_stays_as_it_is() -> None:
    scaled = Buffer("scaled", (6, 4), float32)
    dims = (Dim(K, 6), COLUMNS)
    weights = Computation("s", dims, (Output(scaled, (K, J), Load(W, (K, J)) * 3.0),))
    rows = mapped(Load(X, (A, P, J)) * Load(scaled, (J, J)))
    assert same([weights, rows]) == 2
    assert join_sizes([weights, rows])[0][0] is weights


def test_the_first_two_axes_of_the_sizes_are_joined() -> None:
    """Of a row's scores for all rows, those of one more axis stay."""
    q = Var("q", INDEX)
    y = Buffer("y", (M, N, N), float32)
    output = Output(
        y, (A, P, q), Load(SQUARE, (A, P, q)) + Load(TABLE, (q, const(2, INDEX)))
    )
    made = Computation("scores", (BATCH, ROWS, Dim(q, N)), (output,))
    (joined,), views = join_sizes([made])
    assert {v.extents for v in views.values()} == {(M * N, N)}
    assert [d.size for d in joined.dims] == [M * N, N]


def test_three_sizes_are_joined_one_after_another() -> None:
    b = Var("b", INDEX)
    i = Var("i", INDEX)
    x, y = (Buffer(name, (b, M, N, 4), float32) for name in "xy")
    output = Output(y, (i, A, P, J), Load(x, (i, A, P, J)) * 2.0)
    made = Computation("f", (Dim(i, b), *DIMS), (output,))
    (joined,), views = join_sizes([made])
    assert [len(v.extents) for v in views.values()] == [2, 2]
    assert len(joined.dims) == 2
    assert {joined.outputs[0].tensor, *joined.inputs} == {*views.values()}


@pytest.mark.parametrize(
    ("why", "made"),
    [
        ("another tensor has one size", mapped(Load(TABLE, (P, J)))),
        ("a row of another sequence", mapped(Load(X, (A, N - P - 1, J)))),
        ("a row of itself", mapped(Load(X, (A, A, J)))),
        ("the row's number", mapped(Cast(P, float32))),
        ("the axes change places", mapped(Load(X, (A, P, J)), index=(P, A, J))),
        ("another axis in front", mapped(Load(BEHIND, (A % 6, A, P)))),
        ("another axis behind", mapped(Load(SQUARE, (A, P, P)))),
        (
            "the last row first",
            mapped(Cast(Load(IDS, (A, BACKWARD)), float32), index=(A, BACKWARD, J)),
        ),
        ("some of the rows", mapped(Load(X, (A, P, J)), rows=Dim(P, N - 1))),
        ("a diagonal", mapped(Load(DIAGONAL, (P, P)), DIAGONAL_Y, (P, P, J))),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_sizes_stay_apart(why: str, made: Computation) -> None:
    assert join_sizes([made]) == ((made,), {})


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_stays(axis: int) -> None:
    """Sums along one size start anew for each index of the other one."""
    dims = [BATCH, ROWS]
    dims[axis] = replace(dims[axis], combine="ps")
    output = Output(
        Buffer("y", (M, N), float32), (A, P), Load(X, (A, P, const(0, INDEX)))
    )
    made = Computation("scan", tuple(dims), (output,), reducer("add", float32))
    assert join_sizes([made]) == ((made,), {})


def test_a_sum_along_a_size_stays() -> None:
    y = Buffer("y", (M, 4), float32)
    output = Output(y, (A, J), Load(X, (A, P, J)))
    dims = (BATCH, replace(ROWS, combine="pw"), COLUMNS)
    made = Computation("sum", dims, (output,), reducer("add", float32))
    assert join_sizes([made]) == ((made,), {})


def test_all_readers_must_agree() -> None:
    """One that reads a tensor otherwise keeps its shape for all."""
    first, last = product()
    shifted = mapped(Load(first.outputs[0].tensor, (A, N - P - 1, J)))
    assert join_sizes([first, shifted])[1] == {}
    assert join_sizes([first, last])[1] != {}
