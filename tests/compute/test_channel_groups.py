"""Grouped convolutions group by group: the same numbers, and nothing the law does not hold for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.channel_groups import GROUPS, by_group
from tilewright.compute.check import check as check_computation
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Load

RNG = np.random.default_rng(0)
SIZE, DEPTH = 3, 2  # channels of a group, out and in


def convolution(groups: int, *, last: bool = False) -> Computation:
    x = Buffer("x", (groups * DEPTH, 5), float32)
    w = Buffer("w", (groups * SIZE, DEPTH, 3), float32)
    t = Buffer("t", (5, groups * SIZE) if last else (groups * SIZE, 5), float32)

    def value(m: Any, i: Any, c: Any, k: Any) -> Any:
        return padded(x, (m // SIZE * DEPTH + c, i + k - 1), 0.0) * w[m, c, k]

    if last:
        return reduce_(
            "conv", t, (DEPTH, 3), "add", lambda i, m, c, k: value(m, i, c, k)
        )
    return reduce_("conv", t, (DEPTH, 3), "add", value)


def check(c: Computation, after: Computation | None) -> int:
    """Compare on whole numbers; returns how many groups there are."""
    parts = by_group(c, after)
    assert parts is not None
    whole = [c] if after is None else [c, after]
    arrays = {
        b: RNG.integers(-4, 5, b.shape).astype(np.float32)
        for b in dict.fromkeys(b for p in whole for b in p.inputs)
        if b is not c.outputs[0].tensor
    }
    (out,) = whole[-1].outputs
    steps = [p for pair in parts for p in pair]
    for step in steps:
        check_computation(step)
    want, got = evaluate(whole, arrays), evaluate(steps, arrays)
    np.testing.assert_array_equal(got[out.tensor], want[out.tensor])
    assert all(c.outputs[0].tensor not in p.inputs for pair in parts for p in pair)
    return len(parts)


@pytest.mark.parametrize("groups", [2, 3, GROUPS])
@pytest.mark.parametrize("last", [False, True])
def test_a_convolution_with_and_without_a_map(groups: int, last: bool) -> None:
    c = convolution(groups, last=last)
    t = c.outputs[0].tensor
    assert check(c, None) == groups
    bias, y = Buffer("b", (groups * SIZE,), float32), Buffer("y", t.shape, float32)
    after = map_("after", y, lambda i, j: t[i, j] + bias[j if last else i])
    assert check(c, after) == groups


def test_a_map_that_moves_its_results_into_a_part_of_a_tensor_of_another_shape() -> (
    None
):
    c = convolution(2)
    t = c.outputs[0].tensor
    y = Buffer("y", (6, 7, 2), float32)
    place = lambda m, i: (i + 1, m % 3 + 2, m // 3)  # noqa: E731
    after = map_("after", y, lambda m, i: t[m, i] * 2.0, extents=t.shape, index=place)
    assert check(c, after) == 2


def test_what_is_no_grouped_convolution_is_left_as_it_is() -> None:
    assert by_group(convolution(1), None) is None
    assert by_group(convolution(GROUPS + 1), None) is None
    c = convolution(2)
    (out,) = c.outputs
    whole = Buffer("whole", (7, 5), float32)
    m, i = out.index
    part = replace(c, outputs=(replace(out, tensor=whole, index=(m + 1, i)),))
    assert by_group(part, None) is None
    seven = Buffer("seven", (7, 5), float32)
    uneven = reduce_(
        "uneven", seven, (2,), "add", lambda m, i, k: Load(whole, (m // 3, k))
    )
    assert by_group(uneven, None) is None
    mixed = reduce_(
        "mixed",
        out.tensor,
        (2,),
        "add",
        lambda m, i, k: whole[m // 3, k] * whole[m // 2, k],
    )
    assert by_group(mixed, None) is None


def test_a_map_that_does_not_follow_the_groups_is_refused() -> None:
    c = convolution(2)
    t = c.outputs[0].tensor
    y = Buffer("y", t.shape, float32)
    mirrored = map_("mirrored", y, lambda m, i: t[5 - m, i])
    both = map_("both", y, lambda m, i: t[m, i] + t[5 - m, i])
    total = reduce_(
        "total", Buffer("s", (6,), float32), (5,), "add", lambda m, i: t[m, i]
    )
    for after in (mirrored, both, total):
        assert by_group(c, after) is None


def test_a_map_that_changes_what_a_later_group_reads_is_refused() -> None:
    c = convolution(2)
    t, x = c.outputs[0].tensor, c.accesses[0].buffer
    over = map_("over", x, lambda m, i: t[m, i], extents=(4, 5))
    assert by_group(c, over) is None
    y = Buffer("y", t.shape, float32)
    adds = map_("adds", y, lambda m, i: t[m, i] + y[m, i])
    assert by_group(c, adds) is None
