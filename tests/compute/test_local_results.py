"""Reductions into part of a tensor, elsewhere in it, or where others write, get a tensor each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.local_results import local_results, owns_results
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Var

X = Buffer("x", (4, 6, 3), float32)


def sums(
    shape: tuple[int, ...], index: Callable[..., tuple[Expr | int, ...]]
) -> Computation:
    """The sums of 4 x 6 triples at `index(i, j)` of a tensor."""
    out = Buffer("y", shape, float32)
    value = lambda i, j, k: X[i, j, k]  # noqa: E731
    return reduce_("sums", out, (3,), "add", value, extents=(4, 6), index=index)


NOT_THEIR_OWN = {
    "a part": sums((6, 6), lambda i, j: (i, j)),
    "inside of a halo": sums((6, 8), lambda i, j: (i + 1, j + 1)),
    "one of two": sums((4, 12), lambda i, j: (i, j * 2)),
    "backwards": sums((4, 6), lambda i, j: (i, 5 - j)),
    "two dimensions in one axis": sums((24,), lambda i, j: (i * 6 + j,)),
    "one dimension in two axes": sums((4, 2, 3), lambda i, j: (i, j // 3, j % 3)),
    "more of an axis of one": sums((4, 6, 2), lambda i, j: (i, j, 1)),
}


def both(group: tuple[Computation, ...]) -> None:
    """The group means the same with local results, and its reductions own theirs."""
    made = local_results(group)
    assert all(c.is_map or owns_results(c) for c in made)
    data = {X: np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)}
    before, after = evaluate(group, data), evaluate(made, data)
    for tensor, array in before.items():
        np.testing.assert_array_equal(after[tensor], array)


@pytest.mark.parametrize("name", NOT_THEIR_OWN)
def test_a_reduction_into_part_of_a_tensor_is_copied(name: str) -> None:
    c = NOT_THEIR_OWN[name]
    assert not owns_results(c)
    assert len(local_results([c])) == 2
    both((c,))


@pytest.mark.parametrize("name", NOT_THEIR_OWN)
def test_so_is_one_behind_or_before_others(name: str) -> None:
    """What the pooling of windows axis by axis became, whose second half had no protection."""
    c = NOT_THEIR_OWN[name]
    out = c.outputs[0].tensor
    z = Buffer("z", out.shape, float32)
    after = map_("after", z, lambda *i: out[i] * 2.0)
    first = sums((4, 6), lambda i, j: (i, j))
    first = Computation("first", first.dims, first.outputs, first.reducer)
    assert len(local_results([first, c])) == 3
    both((first, c))
    assert len(local_results([c, after])) == 3
    both((c, after))


def test_a_reduction_that_fills_its_tensor_stays() -> None:
    plain, turned = sums((4, 6), lambda i, j: (i, j)), sums((6, 4), lambda i, j: (j, i))
    thin = sums((4, 1, 6), lambda i, j: (i, 0, j))
    for c in (plain, turned, thin):
        assert local_results([c]) == (c,)


def test_maps_stay() -> None:
    part = map_(
        "part", Buffer("y", (9, 9, 9), float32), lambda *i: X[i], extents=X.shape
    )
    assert local_results([part]) == (part,)


def test_two_that_write_one_tensor_have_one_each() -> None:
    """Each covers its tensor but for an axis of one, which the other shares with it."""
    out = Buffer("y", (4, 6), float32)
    halves = []
    for n in (0, 2):
        value = lambda i, j, k, n=n: X[i + n, j, k]  # noqa: E731
        index = lambda i, j, n=n: (i + n, j)  # noqa: E731
        c = reduce_(f"h{n}", out, (3,), "add", value, extents=(2, 6), index=index)
        halves.append(c)
    whole = sums((4, 6), lambda i, j: (i, j))
    whole = reduce_("w", out, (3,), "add", lambda i, j, k: X[i, j, k])
    assert not owns_results(whole, frozenset({out}))
    assert len(local_results(halves)) == 4
    both(tuple(halves))


def test_every_result_of_a_reduction_of_several_counts() -> None:
    i, j, k = (Var(n, INDEX) for n in "ijk")
    most, place = Buffer("m", (4, 6), float32), Buffer("p", (6, 6), int64)
    dims = (Dim(i, 4), Dim(j, 6), Dim(k, 3, PW))
    op = arg_reducer("argmax", float32, int64)
    outputs = (Output(most, (i, j), X[i, j, k]), Output(place, (i + 2, j), k))
    c = Computation("argmax", dims, outputs, op)
    assert not owns_results(c)
    both((c,))


def test_a_scan_keeps_the_dimension_that_it_runs_along() -> None:
    i, j, k = (Var(n, INDEX) for n in "ijk")
    out = Buffer("y", (4, 6, 5), float32)
    like = sums((4, 6), lambda i, j: (i, j))
    dims = (Dim(i, 4), Dim(j, 6), Dim(k, 3, PS))
    c = Computation(
        "scan", dims, (Output(out, (i, j, k + 1), X[i, j, k]),), like.reducer
    )
    assert not owns_results(c)
    both((c,))
    assert [d.combine for d in local_results([c])[1].dims] == [CC, CC, CC]
