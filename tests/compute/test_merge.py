"""Merged dimensions: those that move together, kept or reduced, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.compute.memory import same
from tilewright.base.dtypes import DType, bool_, float16, float32, float64, int8, int64
from tilewright.base.errors import ExecutionError
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.local_results import local_results
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, const


def extents(c: Computation) -> list[int]:
    (merged,), _ = merge_dims([c])
    return [d.extent for d in merged.dims]


def tensor(name: str, *shape: int) -> Buffer:
    return Buffer(name, shape, float32)


def test_what_lies_side_by_side_is_one_dimension() -> None:
    x, y = tensor("x", 3, 4, 5), tensor("y", 3, 4, 5)
    assert extents(map_("m", y, lambda i, j, k: x[i, j, k] * 2.0)) == [60]


def test_reduced_dimensions_merge_like_kept_ones() -> None:
    x, y = tensor("x", 6, 4, 5), tensor("y", 6)
    total = reduce_("sum", y, (4, 5), "add", lambda i, j, k: x[i, j, k])
    (merged,), views = merge_dims([total])
    assert [(d.extent, d.combine) for d in merged.dims] == [(6, "cc"), (20, "pw")]
    assert views[x].shape == (6, 20)
    data = np.random.default_rng(0).standard_normal((6, 4, 5)).astype(np.float32)
    (got,) = evaluate(merged, {views[x]: data.reshape(6, 20)}).values()
    np.testing.assert_allclose(got, data.sum((1, 2)), rtol=1e-5)


def test_windows_and_orders_that_differ_stay() -> None:
    x, y, z = tensor("x", 8, 9), tensor("y", 6, 7), tensor("z", 6)
    window = reduce_("w", y, (3, 3), "max", lambda h, v, i, j: x[h + i, v + j])
    assert extents(window) == [6, 7, 3, 3]
    a, b = tensor("a", 6, 4, 5), tensor("b", 5, 4)
    product = reduce_("p", z, (4, 5), "add", lambda i, j, k: a[i, j, k] * b[k, j])
    assert extents(product) == [6, 4, 5]


def test_kept_and_reduced_ones_stay_apart_and_scans_stay() -> None:
    x, y = tensor("x", 6, 4), tensor("y", 6)
    assert extents(reduce_("s", y, (4,), "add", lambda i, j: x[i, j])) == [6, 4]
    out = tensor("o", 6, 4)
    scan = reduce_(
        "scan", out, (6, 4), "add", lambda i, j: x[i, j], extents=(), combine=PS,
        index=lambda i, j: (i, j),
    )  # fmt: skip
    assert extents(scan) == [6, 4]


# -- for each condition a group that would go wrong without it

R, J, K = (Var(n, INDEX) for n in "ijk")
X, Y, W = tensor("x", 4, 6), tensor("y", 4, 6), tensor("w", 9, 9)
FIVE = tensor("five", 5, 6)
Parts = list[Computation]


def sum_of(
    out: Buffer, index: tuple[Expr, ...], value: Expr, *dims: Dim
) -> Computation:
    return Computation(
        "sum", dims, (Output(out, index, value),), reducer("add", float32)
    )


def copy_of(
    out: Buffer, index: tuple[Expr, ...], value: Expr, *dims: Dim
) -> Computation:
    return Computation("map", dims, (Output(out, index, value),))


def read(f: Callable[[Expr, Expr], Expr]) -> Parts:
    """A map over i and j with such a value."""
    return [copy_of(Y, (R, J), f(R, J), Dim(R, 4), Dim(J, 6))]


def write(shape: tuple[int, ...], *index: Expr) -> Parts:
    return [copy_of(tensor("z", *shape), index, X[R, J] * 2.0, Dim(R, 4), Dim(J, 6))]


TOTAL, SQUARE, CUBE = tensor("total", 1), tensor("q", 6, 6), tensor("c", 4, 4, 6)
# Groups, and the dimensions that their first Computation has afterwards.
GROUPS: dict[str, tuple[Parts, list[int]]] = {
    "side by side": (read(lambda i, j: X[i, j] - 1.0), [24]),
    "rows of a larger tensor": (read(lambda i, j: W[i, j] + X[i, j]), [4, 6]),
    "the first rows": (write((9, 6), R, J), [24]),
    "rows from the second on": (write((9, 6), R + 1, J), [4, 6]),
    "columns of a larger tensor": (write((4, 9), R, J), [4, 6]),
    "columns backwards": (write((4, 6), R, const(5) - J), [4, 6]),
    "columns behind a border": (write((4, 7), R, J + 1), [4, 6]),
    "the other way round": (write((6, 4), J, R), [4, 6]),
    "apart": (write((4, 3, 6), R, const(1), J), [4, 6]),
    "twice": (read(lambda i, j: CUBE[i, i, j] * 2.0), [4, 6]),
    "and once more": (read(lambda i, j: tensor("d", 4, 6, 4)[i, j, i] * 2.0), [4, 6]),
    "turned as well": (read(lambda i, j: W[i, j] - W[j, i]), [4, 6]),
    "at two places": ([copy_of(SQUARE, (R, J), Load(CUBE, (const(1), R, J)), Dim(R, 4), Dim(J, 6)),
                       copy_of(Y, (R, J), SQUARE[R, J], Dim(R, 4), Dim(J, 6))], [24]),
    "on other axes, too": (read(lambda i, j: tensor("d", 9, 9, 6)[i, j, 0]), [4, 6]),
    "at one element, too": (read(lambda i, j: X[i, j] + X[1, 2]), [4, 6]),
    "in the value, too": (read(lambda i, j: X[i, j] + cast(j, float32)), [4, 6]),
    "the first in the value": (read(lambda i, j: X[i, j] + cast(i, float32)), [4, 6]),
    "guarded": (read(lambda i, j: padded(X, (i, j - 1), 3.0)), [4, 6]),
    "guarded by rows": (read(lambda i, j: padded(X, (i + 1, j), 3.0)), [4, 6]),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_two_dimensions_are_one_where_memory_and_values_say_so(name: str) -> None:
    group, left = GROUPS[name]
    made, views = merge_dims(group)
    same(group, made, views)
    assert [d.extent for d in made[0].dims] == left


def test_a_tensor_has_them_on_the_same_axes_everywhere() -> None:
    t = tensor("t", 4, 4, 4)
    elsewhere = (t[0, R, J], t[R, 0, J], t[J, R, 0], t[R, 3, 2])
    for other in elsewhere:
        for value in (t[R, J, 0] - other, other - t[R, J, 0]):
            group = [copy_of(tensor("z", 4, 4), (R, J), value, Dim(R, 4), Dim(J, 4))]
            made, views = merge_dims(group)
            assert len(made[0].dims) == 2
            same(group, made, views)


def kinds(one: str, two: str) -> Parts:
    """What reduces, scans or keeps two dimensions, and what does otherwise with the same two."""
    found: Parts = []
    for name, kind in (("s", one), ("u", two)):
        dims = (Dim(R, 4, kind), Dim(J, 6, kind))
        out, index = (
            (tensor(name, 1), (const(0),))
            if kind == PW
            else (tensor(name, 4, 6), (R, J))
        )
        make = copy_of if kind == CC else sum_of
        found.append(make(out, index, X[R, J] * 2.0, *dims))
    return found


@pytest.mark.parametrize(
    ("one", "two", "merged"),
    [(PW, PW, True), (PW, CC, False), (PS, CC, False), (PS, PW, False)],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True])
def test_dimensions_are_of_one_kind_in_all(
    one: str, two: str, merged: bool, turned: bool
) -> None:
    group = kinds(one, two)[:: -1 if turned else 1]
    made, views = merge_dims(group)
    assert all((len(c.dims) == 1) is merged for c in made)
    same(group, made, views)


def test_a_scan_into_part_of_a_tensor_stays_one() -> None:
    """Its copy into that part has the same dimensions, and does not scan."""
    out = tensor("o", 9, 6)
    for axis in (0, 1):
        extents = (4,) if axis else (6,)

        def at(n: Expr, k: Expr, axis: int = axis) -> tuple[Expr, ...]:
            return (n, k) if axis else (k, n)

        scan = reduce_(
            "scan", out, (6 if axis else 4,), "add", lambda n, k, at=at: X[at(n, k)],
            extents=extents, combine=PS, index=at,
        )  # fmt: skip
        group = local_results([scan])
        made, views = merge_dims(group)
        assert [len(c.dims) for c in made] == [2, 2]
        same(group, made, views)


@pytest.mark.parametrize("extents", [(4, 5), (1, 4), (4, 1)], ids=str)
def test_a_variable_of_two_extents_is_left_alone(extents: tuple[int, int]) -> None:
    group = [
        copy_of(tensor(f"z{n}", e, 6), (R, J), FIVE[R, J] * 2.0, Dim(R, e), Dim(J, 6))
        for n, e in enumerate(extents)
    ]
    made, views = merge_dims(group)
    same(group, made, views)


def test_sums_keep_the_order_of_their_terms() -> None:
    """The second sums up columns, and its terms round otherwise than those of rows."""
    rows = sum_of(TOTAL, (const(0),), X[R, J], Dim(R, 4, PW), Dim(J, 6, PW))
    columns = sum_of(tensor("u", 1), (const(0),), X[R, J], Dim(J, 6, PW), Dim(R, 4, PW))
    between = sum_of(
        tensor("v", 1),
        (const(0),),
        X[R, J],
        Dim(R, 4, PW),
        Dim(K, 3, PW),
        Dim(J, 6, PW),
    )
    for group in (
        [rows],
        [columns, rows],
        [rows, columns],
        [rows, between],
        [between, rows],
    ):
        made, views = merge_dims(group)
        same(group, made, views)
        assert (len(made[0].dims) == 1) is (len(group) == 1)


def test_one_without_the_other_stays() -> None:
    both = copy_of(Y, (R, J), X[R, J], Dim(R, 4), Dim(J, 6))
    for d in (Dim(R, 4, PW), Dim(J, 6, PW)):
        counted = sum_of(tensor("n", 1), (const(0),), const(1.0, float32), d)
        maps = copy_of(Y, (R, J), X[R, J], Dim(R, 4, PW), Dim(J, 6, PW))
        sums = replace(
            maps,
            outputs=(Output(TOTAL, (const(0),), X[R, J]),),
            reducer=counted.reducer,
        )
        for group in (
            [both, counted],
            [counted, both],
            [sums, counted],
            [counted, sums],
        ):
            made, views = merge_dims(group)
            same(group, made, views)


# -- axes of one element


def test_a_reduction_of_one_term_still_combines_it() -> None:
    """-0.0 is 0.0 then, and no number counts as less than all numbers."""
    x, y = tensor("x", 5, 1), tensor("y", 5)
    data = {x: np.array([-0.0, np.nan, 2.0, -np.inf, 0.0], np.float32).reshape(5, 1)}
    for op in ("add", "max", "max_number"):
        c = reduce_("r", y, (1,), op, lambda i, k: x[i, k])
        made, views = merge_dims([c])
        assert len(made[0].dims) == 1
        same([c], made, views, data)


def test_the_first_of_several_elements_is_no_axis_of_one() -> None:
    x, y = tensor("x", 3, 6), tensor("y", 6)
    c = map_("c", y, lambda j: x[0, j])
    made, views = merge_dims([c])
    assert not views
    same([c], made, views)
    last = map_("c", y, lambda j: x[2, j])
    same([last], *merge_dims([last]))


def test_a_place_read_from_memory_is_still_checked() -> None:
    x, i, y = tensor("x", 1, 6), Buffer("i", (6,), int64), tensor("y", 6)
    c = map_("c", y, lambda j: x[i[j], j])
    made, views = merge_dims([c])
    same([c], made, views, {i: np.zeros(6, np.int64)})
    shown = {
        views.get(b, b): np.ones(views.get(b, b).shape, b.dtype.numpy) for b in (x, i)
    }
    with pytest.raises(ExecutionError):
        evaluate(made, shown)


@pytest.mark.parametrize(
    "shape", [(0, 6), (4, 0), (1, 1, 1), (1, 0), (2, 1, 3, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [bool_, int8, float16, float64], ids=str)
def test_no_element_one_element(shape: tuple[int, ...], dtype: DType) -> None:
    x, y = Buffer("x", shape, dtype), Buffer("y", shape, dtype)
    c = map_("c", y, lambda *i: x[i])
    made, views = merge_dims([c])
    assert len(made[0].dims) <= 1 or 0 in shape
    same([c], made, views)


@pytest.mark.parametrize("op", ["add", "mul", "xor"])
def test_integers_wrap_alike(op: str) -> None:
    x, y = Buffer("x", (3, 4, 5), int8), Buffer("y", (3,), int8)
    c = reduce_("c", y, (4, 5), op, lambda i, j, k: x[i, j, k])
    made, views = merge_dims([c])
    assert len(made[0].dims) == 2
    same([c], made, views)


# -- axes that are numbers of several digits

LINE = tensor("line", 24)
A, B = Dim(R, 4), Dim(J, 6)
C, D = Dim(Var("k", INDEX), 6), Dim(Var("l", INDEX), 4)
# What is written with i < 4 and j < 6, what reads it in the same kernel, and whether it is split.
NUMBERS: dict[str, tuple[Expr, Expr | None, int, bool]] = {
    "digits": (R * 6 + J, R * 6 + J, 24, True),
    "the other order": (J * 4 + R, None, 24, True),
    "other radices": (R * 6 + J, C.var * 4 + D.var, 24, False),
    "a part": (R * 6 + J, None, 30, False),
    "shifted": (R * 6 + J + 1, None, 25, False),
    "with gaps": (R * 12 + J, None, 48, False),
    "gaps below": (R * 6 + J, R * 6, 24, False),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_an_axis_of_digits_is_several(name: str) -> None:
    index, reads, extent, split = NUMBERS[name]
    line = tensor("line", extent)
    group = [copy_of(line, (index,), X[J % 4, R % 6] * 2.0, A, B)]
    if reads is not None:
        dims = (C, D) if name == "other radices" else (A, B)
        place = tuple(d.var for d in dims)
        z = tensor("z", *(d.extent for d in dims))
        group.append(copy_of(z, place, line[reads] + 1.0, *dims))
    made, views = merge_dims(group)
    same(group, made, views)
    assert (line in views) is split
    whole = [
        i for c in made for o in c.outputs if o.tensor.name == "line" for i in o.index
    ]
    assert (all(isinstance(i, Var) for i in whole)) is split


def test_windows_and_what_is_shifted_are_no_digits() -> None:
    line = tensor("line", 24)
    reads = (
        line[R * 3 + J],
        line[R + J],
        padded(line, (R * 6 + J - 1,), 5.0),
        line[J * 4],
    )
    for value in reads:
        group = [copy_of(Y, (R, J), value * 2.0, A, B)]
        made, views = merge_dims(group)
        assert line not in views
        same(group, made, views)


def test_every_result_of_several_counts() -> None:
    most, place = tensor("m", 4, 6), Buffer("p", (6, 4), int64)
    x = tensor("x", 4, 6, 3)
    op = arg_reducer("argmax", float32, int64)
    dims = (A, B, Dim(K, 3, PW))
    for at, left in (((R, J), 2), ((J, R), 3)):
        index = Buffer("p", (4, 6), int64) if left == 2 else place
        c = Computation(
            "a", dims, (Output(most, (R, J), x[R, J, K]), Output(index, at, K)), op
        )
        made, views = merge_dims([c])
        assert len(made[0].dims) == left
        same([c], made, views)
