"""Operators whose result for corners of arrays is a corner of the result for the whole arrays.

Positions and masks are known arrays that grow with a sequence. What is computed from those of the
largest size need not be computed again at each smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tilewright.driver.ranges.reshaped_axes import axis_forms, broadcast_alike
from tilewright.driver.ranges.size_forms import AffineForm, CornerForm, Fact
from tilewright.driver.ranges.size_terms import Extents
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import POINTWISE


def takes_corners(
    op: Operation,
    reads: Sequence[Fact],
    made: Sequence[Fact],
    largest: Extents,
) -> bool:
    """Whether the results of corners of the operands are corners of the results of all of them.

    requires: the arrays that are cut are those at the largest sizes.
    """
    if not all(_is_whole(f, largest) for f in (*reads, *made)):
        return False
    rule = _RULES.get(op.qualified, _elementwise if has_trait(op, POINTWISE) else None)
    return rule is not None and rule(op, reads)


def _is_whole(
    f: Fact,
    largest: Extents,
) -> bool:
    whole = f.numbers.whole if isinstance(f.numbers, CornerForm) else None
    return whole is None or np.array_equal(whole.shape, f.shape.at(largest))


def _is_cut(f: Fact) -> bool:
    """Whether it is known, and no size changes more of it than where it ends."""
    return isinstance(f.numbers, CornerForm) or (f.numbers is not None and not f.sizes)


def _gathered(
    op: Operation,
    reads: Sequence[Fact],
) -> bool:
    """requires: the data is a constant that no size changes, the indices are a corner."""
    data, indices = reads
    return not data.sizes and isinstance(indices.numbers, CornerForm)


def _elementwise(
    op: Operation,
    reads: Sequence[Fact],
) -> bool:
    """requires: operands are repeated along the same axes at all sizes."""
    forms = [axis_forms(f.shape) for f in reads]
    known = [form for form in forms if form is not None]
    return (
        len(known) == len(forms) and all(map(_is_cut, reads)) and broadcast_alike(known)
    )


def _expanded(
    op: Operation,
    reads: Sequence[Fact],
) -> bool:
    """requires: the data is repeated along the same axes at all sizes."""
    data, shape = reads
    wanted = (
        axis_forms(shape.numbers) if isinstance(shape.numbers, AffineForm) else None
    )
    given = axis_forms(data.shape)
    if given is None or wanted is None:
        return False
    return _is_cut(data) and broadcast_alike([given, wanted])


def _other_axes(
    op: Operation,
    reads: Sequence[Fact],
) -> bool:
    """requires: no size changes which axes are added or removed."""
    data, *others = reads
    named = bool(others) or op.attributes.get("axes") is not None
    return _is_cut(data) and named and not any(f.sizes for f in others)


def _turned(
    op: Operation,
    reads: Sequence[Fact],
) -> bool:
    return _is_cut(reads[0])


_RULES: Final[Mapping[str, Callable[[Operation, Sequence[Fact]], bool]]] = {
    "Gather": _gathered,
    "Expand": _expanded,
    "Squeeze": _other_axes,
    "Unsqueeze": _other_axes,
    "Transpose": _turned,
}
