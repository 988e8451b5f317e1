"""Products read a reshaped matrix where it lies, if its axes become one, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.plan.test_passes import same, stage
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, Expr
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.fuse import fuse

WEIGHTS = Buffer("w", (4, 3, 2), float32)
COLUMNS = Buffer("c", (6, 5), float32)


def reshaped_product(index: Callable[[Expr, Expr], Any]) -> list[FusionGroup]:
    """A matrix made of WEIGHTS by an index map, times COLUMNS."""
    v, y = Buffer("v", (4, 6), float32), Buffer("y", (4, 5), float32)
    view = map_("view", v, lambda i, k: WEIGHTS[index(i, k)])

    def product(i: Expr, j: Expr, k: Expr) -> Expr:
        return v[i, k] * COLUMNS[k, j]

    return [
        stage("view", view),
        stage("product", reduce_("product", y, (6,), "add", product)),
    ]


def test_a_product_reads_a_reshaped_matrix_where_it_lies() -> None:
    steps = reshaped_product(lambda i, k: (i, k // 2, k % 2))
    y = steps[1].writes[0]
    after = fuse(steps, frozenset([y]), 0)
    assert [s.name for s in after] == ["product"]
    same(steps, after, [WEIGHTS, COLUMNS], [y])


@pytest.mark.parametrize(
    "index",
    [lambda i, k: (i, k % 3, k // 3), lambda i, k: (k % 4, i // 2, i % 2)],
    ids=["turned", "of both dimensions"],
)
def test_but_not_one_whose_axes_do_not_become_one(
    index: Callable[[Expr, Expr], Any],
) -> None:
    steps = reshaped_product(index)
    y = steps[1].writes[0]
    after = fuse(steps, frozenset([y]), 0)
    assert [s.name for s in after] == ["view", "product"]


def test_nor_the_other_operand_because_the_first_was_reshaped() -> None:
    view, product = reshaped_product(lambda i, k: (i, k // 2, k % 2))
    image = Buffer("image", (8,), float32)
    windows = map_("windows", COLUMNS, lambda k, j: image[k // 3 + j % 4])
    steps = [view, stage("windows", windows), product]
    y = product.writes[0]
    after = fuse(steps, frozenset([y]), 0)
    assert [s.name for s in after] == ["windows", "product"]
    same(steps, after, [WEIGHTS, image], [y])
