"""Shape arithmetic that need not be computed at every size: what it gives follows from operands.

Exporters write a shape to expand to as `Where(Equal(shape, -1), 1, shape)`, whose numbers depend on
every size at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.driver.ranges.size_forms import AffineForm, Fact
from tilewright.graph.nodes import Operation
from tilewright.runtime.dispatch import Allowed

# Their int64 results are affine functions of all operands, or (PLACES) of the first one.
AFFINE: Final = frozenset(("Add", "Concat", "Identity", "Shape", "Sub"))
PLACES: Final = frozenset(("Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"))


def adds_up(op: Operation, reads: Sequence[Fact]) -> bool:
    """Whether the numbers of the results are affine functions of those of the operands.

    requires: no number is a product of sizes. The condition of a Where is the same at all sizes: no
    booleans are a sum of them.
    """
    first, *others = reads
    if op.qualified == "Where":
        reads = others
    known = [f.numbers.base for f in reads if isinstance(f.numbers, AffineForm)]
    if not all(a.dtype == np.int64 for a in known):
        return False
    if op.qualified in PLACES:
        return not first.shape.slopes and not any(f.sizes for f in others)
    return op.qualified in AFFINE or op.qualified == "Where"


def never_equal(op: Operation, reads: Sequence[Fact], allowed: Allowed) -> bool:
    """Whether an Equal is false at all sizes: the numbers that elements may have do not meet."""
    bounds = [
        _bounds(f.numbers, allowed) for f in reads if isinstance(f.numbers, AffineForm)
    ]
    if op.qualified != "Equal" or len(bounds) != 2:
        return False
    (low, high), (least, most) = bounds
    return bool(np.all((high < least) | (most < low)))


def _bounds(form: AffineForm, allowed: Allowed) -> tuple[Any, Any]:
    """The least and the greatest numbers that elements may have; a term grows with its size."""
    if form.products:
        return -math.inf, math.inf
    low = high = form.base.astype(object)
    for term, slope in form.slopes.items():
        start = term.at(form.start)
        ends = [pick(allowed[term.size]) for pick in (min, max)]
        changes = [
            slope.astype(object) * (term.at({term.size: n}) - start) for n in ends
        ]
        low, high = low + np.minimum(*changes), high + np.maximum(*changes)
    return low, high
