"""Exact arithmetic: long sums of floats keep what their additions round away.

Added one by one, 200,000 numbers near 10,000 lose the last three of seven digits, as each addition
rounds to the precision of the sum so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tilewright.compute.compensated_sum import compensated
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import PW, Computation
from tilewright.expr.nodes import Mul
from tilewright.ir.node import postorder
from tilewright.plan.nodes import FusionGroup, Step

# NumPy's pairwise sum, too, adds this many terms one by one.
SHORT: Final = 8


def compensate(steps: Sequence[Step]) -> list[Step]:
    """The steps with compensated sums of more than `SHORT` terms.

    Sums of products of two tensors, which do most of the arithmetic of a model, stay.
    """
    return [_compensated(s) if isinstance(s, FusionGroup) else s for s in steps]


def _compensated(group: FusionGroup) -> FusionGroup:
    found: list[Computation] = []
    for c in group.computations:
        made = compensated(c) if _is_long(c) else None
        found += made or (c,)
    if len(found) == len(group.computations):
        return group
    return replace(group, computations=tuple(found))


def _is_long(c: Computation) -> bool:
    summed = [d for d in c.dims if d.combine == PW]
    terms = math.prod(d.extent for d in summed if d.static)
    open_extents = not all(d.static for d in summed)
    if is_contraction(c) and not _sums_squares(c):
        return False
    return open_extents or terms > SHORT


def _sums_squares(c: Computation) -> bool:
    values = [n for o in c.outputs for n in postorder(o.value)]
    products = [n for n in values if isinstance(n, Mul)]
    return all(n.lhs is n.rhs for n in products)
