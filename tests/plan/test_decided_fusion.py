"""Fusion as another plan decided it."""

from __future__ import annotations

from tests.plan.test_passes import COSTS, same, stage
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.plan.passes.fuse import fuse


def test_what_is_computed_once_may_be_decided_elsewhere() -> None:
    """At the pattern of a range, whose other sizes then have plans of the same form."""
    x, t, y = (
        Buffer("x", (8,), float32),
        Buffer("t", (8,), float32),
        Buffer("y", (8, 9), float32),
    )
    steps = [
        stage("first", map_("t", t, lambda i: x[i] * x[i] + 1.0)),
        stage("second", map_("y", y, lambda i, j: t[i] * 2.0)),
    ]
    asked: list[tuple[str, bool]] = []

    def decided(what: str, here: bool) -> bool:
        asked.append((what, here))
        return False

    fused = fuse(steps, frozenset({y}), COSTS.repeated, decided)
    assert asked == [("t is kept", True)]
    assert len(fused) == 1
    same(steps, fused, [x], [y])
