"""The lifetimes of a plan's buffers."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import Plan


def lifetimes(plan: Plan) -> Mapping[Buffer, tuple[int, int]]:
    """The first and last step that uses each buffer in memory, in order of first use."""
    found: dict[Buffer, tuple[int, int]] = {}
    for n, step in enumerate(plan.steps):
        for b in plan.touched(step):
            found[b] = (found.get(b, (n, n))[0], n)
    return found
