"""Convolutions on tensor cores, as implicit products: right at odd sizes, and counted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, load_counted
from tests.targets.cuda.test_tensor_tiles import (
    CORES,
    check_counted,
    launches,
    scheduled,
)
from tests.targets.simt.products import Case, arrays, expected, interpreted
from tilewright.base.dtypes import DType, bfloat16, float16, float32, int8, int32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import And, Buffer, Cast, Expr, Select, const
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import TensorTile, row_sides, tensor_tiling
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_tiles import NAME
from tilewright.targets.simt.products import product_of
from tilewright.testing.random_kernels import plain


def convolution(
    size: int,
    channels: int,
    filters: int,
    window: int,
    stride: int = 1,
    dtype: DType = float16,
    *images: int,
) -> Case:
    """Channels last, padded by half a window, with a rectifier that rounds floats back.

    images: how many there are, if there is such a dimension.
    """
    pad, wide = window // 2, int32 if dtype is int8 else float32
    out = (size + 2 * pad - window) // stride + 1
    a = Buffer("A", (*images, size, size, channels), dtype)
    b = Buffer("B", (window, window, channels, filters), dtype)
    t = Buffer("T", (*images, out, out, filters), wide)
    y = Buffer("Y", t.shape, int32 if dtype is int8 else dtype)

    def value(*at: Expr) -> Expr:
        *n, i, j, f, u, v, c = at
        row, column = i * stride + u - pad, j * stride + v - pad
        inside = And(And(row >= 0, row < size), And(column >= 0, column < size))
        x: Expr = a[(*n, row, column, c)]
        if pad:
            x = Select(inside, x, const(0, dtype))
        return Cast(x, wide) * Cast(b[u, v, c, f], wide)

    def relu(*at: Expr) -> Expr:
        x = t[at]
        return Cast(Select(x > const(0, wide), x, const(0, wide)), y.dtype)

    sums = (window, window, channels)
    return [reduce_("mm", t, sums, "add", value), map_("relu", y, relu)]


CASES = {
    "two dimensions of rows": (convolution(9, 16, 9, 3), (64, 32, 16, 4, 1), 3),
    "bfloat16": (convolution(7, 7, 33, 3, 1, bfloat16, 2), (32, 64, 16, 1, 4), 1),
    "int8": (convolution(9, 19, 8, 3, 1, int8), (32, 32, 32, 2, 1), 1),
    "strided": (convolution(13, 16, 24, 3, 2), (64, 32, 16, 4, 1), 2),
    "pointwise": (convolution(6, 40, 17, 1), (16, 64, 32, 1, 2), 2),
    "warps along both": (convolution(17, 8, 9, 1), (64, 32, 16, 4, 1), 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_right_as_ptx(name):
    case, tile, stages = CASES[name]
    p = launches(scheduled(case, tensor_tile=tile, stages=stages))
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products
    assert np.array_equal(made, expected(case, given))


@pytest.mark.slow
def test_threads_do_not_race():
    case = convolution(2, 8, 9, 3)
    p = launches(scheduled(case, tensor_tile=(16, 32, 16, 1, 1), stages=3))
    assert np.array_equal(interpreted(p, arrays(p)), expected(case, arrays(p)))


COUNTED = {
    "padded": (convolution(16, 16, 32, 3), (64, 32, 16, 4, 1)),
    "strided": (convolution(32, 32, 32, 1, 2), (32, 32, 16, 2, 1)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", COUNTED)
def test_requests_turns_and_products_are_those_of_the_closed_forms(name):
    case, tile = COUNTED[name]
    check_counted(case, tile, {"stages": 2}, is_whole=False)


@pytest.mark.parametrize(
    ("size", "sides"), [(56, (2, 64)), (112, (8, 16)), (28, (4, 32)), (7, (8, 16))]
)
def test_rows_of_a_tile_are_those_that_need_the_least_padding(size, sides):
    p = product_of(classify(convolution(size, 16, 64, 3)))
    tile = TensorTile(128, 64, 32, 4, 2)
    assert tuple(row_sides(p, tile).values())[-2:] == sides
    shares = tensor_tiling(p, tile).plan.shares
    assert np.prod([shares[d].threads for d in p.rows]) == 4


def test_they_are_chosen_where_they_are_expected_to_be_faster():
    def first(size: int, channels: int, of: str = "sm_80") -> str:
        case = convolution(size, channels, channels, 3)
        return Cuda(machine(of)).sketches(plain(case), case, ())[0].name

    assert first(56, 64) == first(14, 256, "sm_90a") == NAME
    assert first(14, 256, "sm_75") != NAME
    assert first(5, 3) != NAME


@pytest.mark.slow
@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptxas_spills_nothing(arch):
    of = machine(arch)
    case = convolution(56, 64, 128, 3)
    p = launches(scheduled(case, CORES, tensor_tile=(128, 128, 32, 2, 4)), of)
    (used,) = report.assemble(ptx(p, of), of)[1].values()
    assert used.registers <= 168
    assert used.stack == used.spill_stores == used.spill_loads == 0
