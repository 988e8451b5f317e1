"""Sums over windows by position: the same numbers, and nothing that the law does not hold for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import DType, float32, int32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.check import check as check_computation
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS, Computation
from tilewright.compute.reducer import reducer
from tilewright.compute.split_window import split_window
from tilewright.expr.nodes import Buffer, Load, Select, const
from tilewright.graph.ops.windows import Windows

RNG = np.random.default_rng(0)


def convolution(
    size: tuple[int, ...],
    kernel: tuple[int, ...] = (3, 3),
    pads: tuple[int, ...] = (3, 3, 3, 3),
    *,
    dilation: int = 3,
    stride: int = 1,
    channels: int = 2,
    dtype: DType = float32,
    outside: float = 0.0,
) -> Computation:
    rank = len(size)
    begin, end = pads[:rank], pads[rank:]
    outputs = tuple(
        (n + a + b - (k - 1) * dilation - 1) // stride + 1
        for n, k, a, b in zip(size, kernel, begin, end, strict=True)
    )
    shape = Windows(
        size, kernel, (stride,) * rank, (dilation,) * rank, begin, end, outputs
    )
    x = Buffer("x", (channels, *size), dtype)
    w = Buffer("w", (4, channels, *kernel), dtype)
    y = Buffer("y", (4, *outputs), dtype)

    def value(*i: Any) -> Any:
        m, o, c, k = i[0], i[1 : 1 + rank], i[1 + rank], i[2 + rank :]
        return shape.read(x, (c,), shape.place(o, k), outside) * w[(m, c, *k)]

    return reduce_("conv", y, (channels, *kernel), "add", value)


def check(c: Computation) -> int:
    """Compare on whole numbers, whose sums are the same in any order; returns the products left."""
    parts = split_window(c)
    assert parts is not None
    arrays = {b: RNG.integers(-4, 5, b.shape).astype(b.dtype.numpy) for b in c.inputs}
    want = evaluate(c, arrays)
    for part in (*parts.sums, parts.total):
        check_computation(part)
        arrays |= evaluate(part, arrays)
    for tensor, expected in want.items():
        np.testing.assert_array_equal(arrays[tensor], expected)
    assert {b.name for b in parts.factors} == {"w"}
    return sum(int(np.prod([d.extent for d in s.dims])) for s in parts.sums)


@pytest.mark.parametrize(
    "c",
    [
        convolution((5, 4)),
        convolution((4, 5), pads=(1, 0, 5, 3)),  # most results lie after the data
        convolution((3, 3), pads=(4, 4, 4, 4)),  # no position serves all results
        convolution((7, 6), dilation=2, stride=2, pads=(2, 1, 2, 3)),
        convolution((6,), kernel=(5,), pads=(4, 4), dilation=2),
        convolution((2, 3, 2), kernel=(2, 2, 2), pads=(1, 1, 1, 1, 1, 1), dilation=1),
        convolution((5, 4), dtype=int32),
    ],
    ids=lambda c: str([d.extent for d in c.dims]),
)
def test_a_padded_convolution(c: Computation) -> None:
    products = int(np.prod([d.extent for d in c.dims]))
    assert check(c) < products


def test_only_products_with_data_are_left() -> None:
    """Along an axis of 5, three positions 3 apart read 2, 5 and 2 elements; of 4: 1, 4 and 1."""
    assert check(convolution((5, 4))) == (2 + 5 + 2) * (1 + 4 + 1) * 2 * 4


def test_positions_that_read_only_padding_are_left_out() -> None:
    parts = split_window(convolution((3, 5), pads=(3, 3, 3, 3)))
    assert parts is not None and len(parts.sums) == 3


def test_results_in_a_part_of_a_tensor_shifted_and_across_stay_in_that_part() -> None:
    whole = Buffer("whole", (9, 8, 7), float32)
    c = convolution((5, 4))
    (out,) = c.outputs
    m, i, j = (d.var for d in c.parallel_dims)
    moved = replace(
        c, outputs=(replace(out, tensor=whole, index=(j + 1, m + 2, i + 2)),)
    )
    check(moved)
    parts = split_window(moved)
    assert parts is not None
    assert parts.total.outputs[0].index == moved.outputs[0].index
    assert all(s.outputs[0].tensor is not whole for s in parts.sums)


def test_a_tensor_that_is_also_read_is_left_as_it_is() -> None:
    """The total of the positions would be added to what the first of them has changed."""
    c = convolution((5, 4))
    (out,) = c.outputs
    read = out.value.lhs
    old = Load(out.tensor, read.then.index)
    own = Select(read.condition, old, const(0.0, float32))
    aliased = replace(c, outputs=(replace(out, value=own * out.value.rhs),))
    assert split_window(aliased) is None


@pytest.mark.parametrize(
    "c",
    [
        convolution((5, 4), outside=1.0),  # what is left out is no zero
        convolution((9, 9), pads=(0, 0, 0, 0)),  # nothing is padded
        convolution((5, 4), channels=1),  # depthwise
        convolution((9, 9), kernel=(5, 5), dilation=2),  # 25 positions
        map_("m", Buffer("y", (3,), float32), lambda i: Buffer("x", (3,), float32)[i]),
    ],
    ids=["outside", "inside", "depthwise", "large", "map"],
)
def test_what_does_not_qualify(c: Computation) -> None:
    assert split_window(c) is None


def test_only_sums_of_their_own_dtype() -> None:
    c = convolution((5, 4))
    (out,) = c.outputs
    most = replace(c, reducer=replace(reducer("max", float32), name="add"))
    assert split_window(most) is None
    assert split_window(replace(c, reducer=reducer("add", int32))) is None
    scan = replace(c, dims=(*c.dims[:-1], replace(c.dims[-1], combine=PS)))
    assert split_window(scan) is None
    two = replace(
        c, outputs=(out, replace(out, tensor=Buffer("z", (4, 5, 4), float32)))
    )
    assert split_window(two) is None


def test_results_that_are_no_interval_are_left_as_they_are() -> None:
    """A condition with a hole, and one on two dimensions of the results at once."""
    c = convolution((5, 4))
    (out,) = c.outputs
    read = out.value.lhs
    i, j = (d.var for d in c.parallel_dims[1:])
    k = c.combined_dims[1].var
    for condition in (i.ne(k + 1) & (k <= i), i <= j + k):
        other = Select(condition, read.then, const(0.0, float32))
        odd = replace(c, outputs=(replace(out, value=other * out.value.rhs),))
        assert split_window(odd) is None


def test_a_factor_computed_from_the_place_follows_its_position() -> None:
    """Weights times the position of the window, the result and the channel."""
    c = convolution((5, 4))
    (out,) = c.outputs
    place = c.combined_dims[1].var * 5 + c.parallel_dims[1].var + c.combined_dims[0].var
    scaled = out.value.lhs * (out.value.rhs * place.astype(float32))
    check(replace(c, outputs=(replace(out, value=scaled),)))
