"""The laws of Computations keep their meaning: inlining, following, splitting, merging, layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import float16, float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.join_axes import join_axes
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.split_axes import split_axes
from tilewright.compute.transforms import (
    follow,
    inline,
    order_dims,
    relayout,
    split_digits,
)
from tilewright.expr.nodes import INDEX, Buffer, Max, Var, as_expr, const


def buffer(name: str, *shape: int) -> Buffer:
    return Buffer(name, shape, float32)


def values(*buffers: Buffer) -> dict[Buffer, np.ndarray]:
    rng = np.random.default_rng(0)
    return {b: rng.standard_normal(b.shape).astype(np.float32) for b in buffers}


def plain_reads(c: Computation) -> bool:
    """Whether every index is a variable or a sum without `//` and `%`."""
    return all(
        "//" not in repr(i) and "%" not in repr(i) for a in c.accesses for i in a.index
    )


def test_reshape_and_transpose_vanish_into_a_matrix_product() -> None:
    x, split, heads = (
        buffer("x", 6, 12),
        buffer("split", 6, 3, 4),
        buffer("heads", 3, 6, 4),
    )
    w, out = buffer("w", 3, 4, 5), buffer("out", 3, 6, 5)
    reshape = map_(
        "reshape", split, lambda s, h, d: x[(s * 12 + h * 4 + d) // 12, h * 4 + d]
    )
    transpose = map_("transpose", heads, lambda h, s, d: split[s, h, d])
    product = reduce_(
        "mm", out, (4,), "add", lambda h, i, j, k: heads[h, i, k] * w[h, k, j]
    )
    moved = inline(reshape, transpose)
    assert moved is not None
    fused = inline(moved, product)
    assert fused is not None
    assert plain_reads(fused)
    data = values(x, w)
    expected = evaluate([reshape, transpose, product], data)[out]
    np.testing.assert_allclose(evaluate([fused], data)[out], expected, rtol=1e-5)


def test_a_reduction_is_not_inlined() -> None:
    x, total, out = buffer("x", 4, 5), buffer("total", 4), buffer("out", 4)
    s = reduce_("sum", total, (5,), "add", lambda i, k: x[i, k])
    assert inline(s, map_("use", out, lambda i: total[i] * 2.0)) is None


def test_nor_is_one_that_has_nothing_to_reduce() -> None:
    """Its value is float32 and combined with the identity; what others read is float16."""
    x, total, out = (
        buffer("x", 4),
        Buffer("total", (4,), float16),
        Buffer("out", (4,), float16),
    )
    s = reduce_("sum", total, (), "add", lambda i: x[i])
    assert (
        s.is_map and inline(s, map_("use", out, lambda i: total[i] + total[i])) is None
    )


def test_a_map_follows_the_product_through_transpose_and_reshape() -> None:
    a, b, c = buffer("a", 3, 6, 5), buffer("b", 3, 5, 4), buffer("c", 3, 6, 4)
    out = buffer("out", 6, 12)
    product = reduce_("mm", c, (5,), "add", lambda h, i, j, k: a[h, i, k] * b[h, k, j])
    merge = map_("merge", out, lambda s, x: Max(c[x // 4, s, x % 4], const(0, float32)))
    epilogue = follow(product, merge)
    assert epilogue is not None
    assert {d.var for d in epilogue.dims} == {
        d.var for d in product.dims if d.combine == "cc"
    }
    data = values(a, b)
    expected = evaluate([product, merge], data)[out]
    got = evaluate([product, epilogue], data)[out]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_map_that_reads_two_places_does_not_follow(shift: int) -> None:
    a, t, out = buffer("a", 8, 5), buffer("t", 8), buffer("out", 7)
    s = reduce_("sum", t, (5,), "add", lambda i, k: a[i, k])
    both = map_("both", out, lambda i: t[i] + t[i + max(shift, 0)])
    assert follow(s, both) is None


def test_digits_become_dimensions() -> None:
    x, out = buffer("x", 3, 4), buffer("out", 12)
    c = split_digits(map_("m", out, lambda i: x[i // 4, i % 4]))
    assert [d.extent for d in c.dims] == [3, 4]
    assert plain_reads(c)
    data = values(x)
    np.testing.assert_array_equal(evaluate([c], data)[out], data[x].reshape(12))


def woven(rows: int, phases: int, channels: int, last: bool) -> list[Computation]:
    """A product whose columns are phases of channels, and a map that weaves the phases in."""
    x, w = buffer("x", rows, 5), buffer("w", phases * channels, 5)
    t = buffer("t", rows, phases * channels)
    product = reduce_("mm", t, (5,), "add", lambda i, j, k: x[i, k] * w[j, k])
    twice = lambda at, c: t[at // phases, at % phases * channels + c] * 2.0  # noqa: E731
    if last:
        weave = map_("weave", buffer("out", rows * phases, channels), twice)
    else:
        weave = map_(
            "weave", buffer("out", channels, rows * phases), lambda c, at: twice(at, c)
        )
    after = follow(product, weave)
    assert after is not None
    return [product, after]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("phases", "channels"), [(2, 4), (3, 2), (2, 1)])
def test_results_that_go_apart_by_digits_have_dimensions_of_their_own(
    phases: int, channels: int, last: bool
) -> None:
    group = woven(3, phases, channels, last)
    found = split_axes(group, ())
    data = values(*(b for b in group[0].inputs))
    out = group[-1].outputs[0].tensor
    np.testing.assert_array_equal(
        evaluate(found, data)[out], evaluate(group, data)[out]
    )
    apart = not last and channels > 1
    assert len(found[0].dims) == (4 if apart else 3)
    if apart:
        assert all("%" not in repr(i) for i in found[1].outputs[0].index)


def test_a_scalar_has_no_axis_to_split() -> None:
    x, total, y = buffer("x", 6), buffer("total"), buffer("y")
    sum_ = reduce_("total", total, (6,), "add", lambda k: x[k])
    half = map_("half", y, lambda: total[()] * 0.5)
    assert split_axes([sum_, half], ()) == (sum_, half)


WRITTEN: dict[str, tuple[tuple[int, ...], Callable[..., tuple[object, ...]], bool]] = {
    "other columns between": ((3, 5, 4), lambda i, j: (i // 4, j, i % 4), True),
    "one row after another": ((5, 3, 4), lambda i, j: (j, i // 4, i % 4), False),
    "rows between parts of a vector": (
        (2, 12, 4),
        lambda i, j: (j // 4, i, j % 4),
        False,
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_rows_are_split_where_a_product_is_written_with_others_in_between(
    name: str,
) -> None:
    """Else a tile of rows that reaches into the next part would be as large as both parts. Vectors
    along the innermost dimension stay whole."""
    shape, place, split = WRITTEN[name]
    columns = 8 if name == "rows between parts of a vector" else 5
    x, w = buffer("x", 12, 3), buffer("w", 3, columns)
    m, y = buffer("m", 12, columns), buffer("y", *shape)
    product = reduce_("m", m, (3,), "add", lambda i, j, k: x[i, k] * w[k, j])
    i, j = product.parallel_dims
    value = m[i.var, j.var] * 2.0
    index = tuple(as_expr(n, INDEX) for n in place(i.var, j.var))
    copy = Computation("copy", (i, j), (Output(y, index, value),))
    found = split_axes((product, copy), ())
    assert len(found[0].dims) == (4 if split else 3)
    assert len(found[1].dims) == (3 if split else 2)
    data = values(x, w)
    want = evaluate((product, copy), data)[y]
    np.testing.assert_array_equal(evaluate(found, data)[y], want)


def test_a_scan_over_repeated_elements_is_not_split() -> None:
    """The axis that it combines is one of its result."""
    x, out = buffer("x", 3, 4), buffer("out", 3, 20)
    scan = reduce_(
        "scan",
        out,
        (20,),
        "add",
        lambda i, k: x[i, k // 5],
        extents=(3,),
        combine="ps",
    )
    assert split_axes((scan,), ()) == (scan,)
    free = reduce_("sum", buffer("y", 20), (3,), "add", lambda k, i: x[i, k // 5])
    assert len(split_axes((free,), ())) == 2


def test_relayout_moves_storage_and_order_dims_follows_it() -> None:
    x, y = buffer("x", 2, 3, 4, 5), buffer("y", 2, 3, 4, 5)
    stored = buffer("y", 2, 4, 5, 3)
    c = relayout(
        map_("copy", y, lambda n, c, h, w: x[n, c, h, w]), {y: (stored, (0, 2, 3, 1))}
    )
    c = order_dims(c)
    assert [d.var.name for d in c.dims] == ["n", "h", "w", "c"]
    data = values(x)
    np.testing.assert_array_equal(
        evaluate([c], data)[stored], data[x].transpose(0, 2, 3, 1)
    )


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(shapes, st.data())
def test_merged_dimensions_mean_the_same(shape: list[int], data: st.DataObject) -> None:
    kept = [data.draw(st.booleans()) for _ in shape]
    small = [n if k else 1 for n, k in zip(shape, kept, strict=True)]
    x, y, out = buffer("x", *shape), buffer("y", *small), buffer("out", *shape)

    def add(*i: Var) -> object:
        return x[i] + y[tuple(v if k else 0 for v, k in zip(i, kept, strict=True))]

    c = map_("add", out, add)
    merged, views = merge_dims([c])
    assert len(merged[0].dims) <= len([n for n in shape if n > 1])
    given_ = values(x, y)
    shown = {
        views.get(b, b): a.reshape(views.get(b, b).shape) for b, a in given_.items()
    }
    expected = evaluate([c], given_)[out]
    got = evaluate(merged, shown)[views.get(out, out)]
    np.testing.assert_array_equal(got.reshape(out.shape), expected)


def test_padding_keeps_its_dimensions_apart() -> None:
    x, out = buffer("x", 5, 5), buffer("out", 5, 5)
    c = map_("shift", out, lambda h, w: padded(x, (h - 1, w), 0.0))
    merged, _ = merge_dims([c])
    assert len(merged[0].dims) == 2


def test_axes_that_another_computation_reads_apart_stay_apart() -> None:
    x, e, s = buffer("x", 3, 4), buffer("e", 3, 4), buffer("s", 3)
    group = [
        map_("double", e, lambda i, j: x[i, j] + x[i, j]),
        reduce_("sum", s, (4,), "add", lambda i, k: e[i, k]),
    ]
    merged, views = merge_dims(group)
    assert not views
    data = values(x)
    np.testing.assert_array_equal(evaluate(merged, data)[s], evaluate(group, data)[s])


def test_a_reshape_of_rows_leaves_a_plain_walk() -> None:
    a, b, t, y = (
        buffer("a", 6, 3),
        buffer("b", 3, 4),
        buffer("t", 6, 4),
        buffer("y", 2, 3, 4),
    )
    product = reduce_("mm", t, (3,), "add", lambda i, j, k: a[i, k] * b[k, j])
    epilogue = follow(product, map_("reshape", y, lambda p, q, j: t[p * 3 + q, j]))
    assert epilogue is not None
    joined, views = join_axes([product, epilogue])
    assert views[y].shape == (6, 4)
    data = values(a, b)
    expected = evaluate([product, epilogue], data)[y]
    np.testing.assert_array_equal(
        evaluate(joined, data)[views[y]].reshape(2, 3, 4), expected
    )
