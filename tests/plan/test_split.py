"""Groups that are split: unprofitable ones, deep sums, and windows over padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.split_groups import split_groups
from tilewright.plan.passes.split_sums import split_deep_sums
from tilewright.plan.passes.split_windows import split_windows

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


ROWS = Buffer("rows", (4, 8, DEEP), float32)
OVER_BOTH = reduce_(
    "over_both", P, (8, DEEP), "add", lambda i, j, n, k: ROWS[i, n, k] * B[k, j]
)


@pytest.mark.parametrize(
    ("c", "constants", "splits"),
    [
        (PRODUCT, (B,), True),
        (PRODUCT, (A, B), True),
        (PRODUCT, (), False),
        (OVER_BOTH, (B,), False),
        (OVER_BOTH, (ROWS,), True),
    ],
)
def test_sums_of_any_size_are_split_over_axes_of_weights_alone(
    c: Computation, constants: tuple[Buffer, ...], splits: bool
) -> None:
    def cost(parts: Sequence[Computation], _: object) -> float:
        return 100.0 if parts[0] is c else 1.0

    def number(**how: bool) -> int:
        group = FusionGroup("g", (c,))
        return len(split_deep_sums([group], constants, cost, 256, **how))

    assert number() == 2
    assert number(weights_only=True) == (2 if splits else 1)


@pytest.mark.parametrize(
    ("launch_ns", "splits"), [(0.0, True), (1e-3, True), (1e9, False)]
)
def test_one_more_kernel_has_to_pay_for_itself(launch_ns: float, splits: bool) -> None:
    group = FusionGroup("g", (PRODUCT,))
    found = split_deep_sums(
        [group], (), cheaper_in_parts, least=256, launch_ns=launch_ns
    )
    assert len(found) == (2 if splits else 1)


X, W = Buffer("x", (3, 4), float32), Buffer("w", (4, 3, 5), float32)
WINDOWS = reduce_(
    "windows",
    P,
    (3, 5),
    "add",
    lambda m, i, c, k: padded(X, (c, i + k - 2), 0.0) * W[m, c, k],
)
WEIGHTS = np.arange(60, dtype=np.float32).reshape(W.shape)


def positions(
    *rest: Computation, weights: np.ndarray | None = WEIGHTS, gain: float = 1.0
) -> int:
    """How many groups a convolution and what follows it become; all give the same values."""
    group = FusionGroup("g", (WINDOWS, *rest), flops=7)
    data = {} if weights is None else {W: weights}
    found = split_windows([group], data, products_with_data, gain)
    if len(found) > 1:
        arrays = {X: np.arange(12, dtype=np.float32).reshape(X.shape), **data}
        want = evaluate(group.computations, arrays)
        got = evaluate([c for g in found for c in g.computations], arrays)
        assert all((got[b] == want[b]).all() for b in want)
        assert sum(g.flops for g in found) == 2 * 4 * 3 * (2 + 3 + 4 + 3 + 2)
    return len(found)


def products_with_data(computations: Sequence[Computation], constants: object) -> float:
    """One for each; none for maps."""
    (c,) = computations
    return 0.0 if c.is_map else float(np.prod([d.extent for d in c.dims]))


def test_windows_are_split_where_maps_follow() -> None:
    assert positions() == 6
    assert positions(*chain(P, Q)) == 6
    assert positions(TOTAL) == 1


def test_windows_are_split_if_little_enough_is_left() -> None:
    """Of 20 products per channel and result, 14 are with data."""
    assert positions(gain=0.71) == 6
    assert positions(gain=0.69) == 1


def test_zeros_of_padding_are_left_out_only_for_finite_constants() -> None:
    assert positions(weights=None) == 1
    for odd in (np.inf, np.nan):
        weights = WEIGHTS.copy()
        weights[1, 2, 0] = odd
        assert positions(weights=weights) == 1
