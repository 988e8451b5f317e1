"""Deep sums in parts: the same numbers, and nothing that the law does not hold for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS, Computation
from tilewright.compute.reducer import reducer
from tilewright.compute.split_sum import split_sum
from tilewright.expr.nodes import Buffer, Load, Select, const

RNG = np.random.default_rng(0)
X, W = Buffer("x", (6, 8), float32), Buffer("w", (8, 5), float32)
Y = Buffer("y", (6, 5), float32)


def product() -> Computation:
    return reduce_("mm", Y, (8,), "add", lambda i, j, k: X[i, k] * W[k, j])


def depth(c: Computation):
    return next(d for d in c.dims if d.combine == "pw")


def values(c: Computation) -> dict[Buffer, np.ndarray]:
    """Whole numbers: their sums are the same in any order."""
    return {b: RNG.integers(-4, 5, b.shape).astype(b.dtype.numpy) for b in c.inputs}


def check(c: Computation, parts: int, dim: int = 0) -> None:
    reduced = [d for d in c.dims if d.combine == "pw"][dim]
    made = split_sum(c, reduced, parts)
    assert made is not None
    arrays = values(c)
    want = evaluate(c, arrays)
    for step in made:
        arrays |= evaluate(step, arrays)
    for tensor, expected in want.items():
        np.testing.assert_array_equal(arrays[tensor], expected)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_product(parts: int) -> None:
    check(product(), parts)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_convolution_with_padding_along_any_of_its_axes(dim: int) -> None:
    x, w = Buffer("x", (4, 9), float32), Buffer("w", (3, 4, 2), float32)
    y = Buffer("y", (3, 9), float32)

    def value(o, i, c, r):
        at = i + r * 3 - 2
        read = Select((const(0) <= at) & (at < const(9)), x[c, at], const(0.0, float32))
        return read * w[o, c, r]

    check(reduce_("conv", y, (4, 2), "add", value), 2, dim)


def test_results_in_a_part_of_a_tensor_shifted_and_across_stay_in_that_part() -> None:
    whole = Buffer("whole", (7, 9), float32)
    c = product()
    (out,) = c.outputs
    i, j = (d.var for d in c.dims[:2])
    moved = replace(c, outputs=(replace(out, tensor=whole, index=(j + 1, i + 2)),))
    check(moved, 4)
    made = split_sum(moved, depth(moved), 4)
    assert made is not None and made[1].outputs[0].index == moved.outputs[0].index
    assert made[0].outputs[0].tensor is not whole


def test_a_tensor_that_is_also_read_is_left_as_it_is() -> None:
    """Each part would read what a part before it, or the whole, has made of it."""
    c = product()
    (out,) = c.outputs
    i, j = (d.var for d in c.dims[:2])
    aliased = replace(c, outputs=(replace(out, value=out.value + Load(Y, (i, j))),))
    assert split_sum(aliased, depth(aliased), 2) is None


def test_what_is_no_sum_of_its_own_dtype_along_a_reduction_is_left_as_it_is() -> None:
    c = product()
    assert split_sum(c, depth(c), 3) is None  # does not divide
    assert split_sum(c, depth(c), 1) is None
    assert split_sum(c, c.dims[0], 2) is None  # no reduction
    assert split_sum(c, replace(depth(c)), 2) is None  # of another Computation
    most = replace(c, reducer=replace(reducer("max", float32), name="add"))
    assert split_sum(most, depth(most), 2) is None
    scan = replace(c, dims=(*c.dims[:-1], replace(c.dims[-1], combine=PS)))
    assert split_sum(scan, scan.dims[-1], 2) is None
    wide = replace(c, reducer=reducer("add", int32))
    assert split_sum(wide, depth(wide), 2) is None
    plain = map_("m", Y, lambda i, j: X[i, j] + 1.0)
    assert split_sum(plain, plain.dims[0], 2) is None


def test_integers_too() -> None:
    a, y = Buffer("a", (3, 6), int32), Buffer("t", (3,), int32)
    check(reduce_("sum", y, (6,), "add", lambda i, k: cast(a[i, k], int32)), 3)
