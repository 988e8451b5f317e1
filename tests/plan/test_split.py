"""Groups that are split: where it is not profitable to keep them, and where a sum is deep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.split_groups import split_groups
from tilewright.plan.passes.split_sums import split_deep_sums

DEEP = 2048
A, B = Buffer("a", (4, DEEP), float32), Buffer("b", (DEEP, 4), float32)
P, Q, R, S = (Buffer(n, (4, 4), float32) for n in "pqrs")
T = Buffer("t", (4,), float32)


def chain(*buffers: Buffer) -> tuple[Computation, ...]:
    """Each is the double of the one before."""
    return tuple(
        map_(f"to_{y.name}", y, lambda i, j, x=x: x[i, j] * 2.0)
        for x, y in pairwise(buffers)
    )


@pytest.mark.parametrize(
    ("most", "sizes"), [(3, [3]), (2, [2, 1]), (1, [1, 1, 1]), (0, [1, 1, 1])]
)
def test_a_group_becomes_as_few_profitable_ones_as_there_are(
    most: int, sizes: list[int]
) -> None:
    group = FusionGroup("g", chain(P, Q, R, S), flops=7)
    found = split_groups([group], lambda parts: len(parts) <= most)
    made = [s for s in found if isinstance(s, FusionGroup)]
    assert [len(s.computations) for s in made] == sizes
    assert sum((s.computations for s in made), ()) == group.computations
    assert sum(s.flops for s in made) == 7
    assert (found == [group]) == (sizes == [3])


PRODUCT = reduce_("product", P, (DEEP,), "add", lambda i, j, k: A[i, k] * B[k, j])
TOTAL = reduce_("total", T, (4,), "add", lambda i, j: P[i, j])


def cheaper_in_parts(computations: Sequence[Computation], constants: object) -> float:
    return 100.0 if computations[0] is PRODUCT else 1.0


@pytest.mark.parametrize(
    ("rest", "splits"), [((), True), (chain(P, Q), True), ((TOTAL,), False)]
)
def test_a_deep_sum_is_split_where_maps_follow(
    rest: tuple[Computation, ...], splits: bool
) -> None:
    group = FusionGroup("g", (PRODUCT, *rest))
    found = split_deep_sums([group], (), cheaper_in_parts, least=256)
    assert len(found) == (2 if splits else 1)
    assert (found[0] is group) is not splits


@pytest.mark.parametrize(
    ("launch", "splits"), [(0.0, True), (1e-3, True), (1e9, False)]
)
def test_one_more_kernel_has_to_pay_for_itself(launch: float, splits: bool) -> None:
    group = FusionGroup("g", (PRODUCT,))
    found = split_deep_sums([group], (), cheaper_in_parts, least=256, launch=launch)
    assert len(found) == (2 if splits else 1)
