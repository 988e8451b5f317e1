"""Merged dimensions: those that move together, kept or reduced, and no others."""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import Buffer


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
