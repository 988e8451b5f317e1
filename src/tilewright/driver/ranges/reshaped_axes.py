"""Reshapes and expansions whose results have affine extents, shown for all sizes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tilewright.driver.ranges.size_terms import Extents, SizeTerm

if TYPE_CHECKING:
    from tilewright.driver.ranges.size_forms import AffineForm

# A number at the start point, and the slopes of its terms: equal for equal functions.
AxisForm = tuple[int, tuple[tuple[SizeTerm, int], ...]]
INFERRED: AxisForm = (-1, ())
COPIED: AxisForm = (0, ())
ONE: AxisForm = (1, ())


def axis_forms(
    form: AffineForm,
) -> list[AxisForm] | None:
    """Each number of a row of them; None if some are products of sizes."""
    if form.products or form.base.dtype != np.int64 or form.base.ndim != 1:
        return None
    found = []
    for n, base in enumerate(form.base.tolist()):
        slopes = ((t, int(s[n])) for t, s in form.slopes.items())
        found.append((base, tuple((t, s) for t, s in slopes if s)))
    return found


def reshapes_alike(
    given: Sequence[AxisForm],
    wanted: Sequence[AxisForm],
    start: Extents,
    least: Extents,
) -> bool:
    """Whether a reshape is valid, with affine extents, at all sizes.

    given, wanted: the extents of the data, and the numbers of the shape, where 0 copies an extent
    and -1 is inferred. requires: all extents are positive; those of the data that sizes change are
    in the shape as they are, but for one that -1 may stand for; the others have the same product.
    """
    copied = [
        given[n] if w == COPIED and n < len(given) else w for n, w in enumerate(wanted)
    ]
    named = [w for w in copied if w != INFERRED]
    inferred = len(copied) - len(named)
    if inferred > 1:
        return False
    if not all(_is_positive(form, start, least) for form in (*given, *named)):
        return False
    left = Counter(form for form in given if form[1])
    left.subtract(form for form in named if form[1])
    if min(left.values(), default=0) < 0:
        return False
    mine, theirs = (prod(n for n, s in forms if not s) for forms in (given, named))
    if not inferred:
        return not any(left.values()) and mine == theirs
    return sum(left.values()) <= 1 and mine % theirs == 0


def broadcast_alike(shapes: Sequence[Sequence[AxisForm]]) -> bool:
    """Whether arrays are valid together, repeated along the same axes, at all sizes.

    requires: along each axis, those whose extent is not 1 have the same extent.
    """
    rank = max(map(len, shapes), default=0)
    padded = ([ONE] * (rank - len(forms)) + [*forms] for forms in shapes)
    return all(len({*axis} - {ONE}) <= 1 for axis in zip(*padded, strict=True))


def _is_positive(
    form: AxisForm,
    start: Extents,
    least: Extents,
) -> bool:
    base, slopes = form
    lowest = base + sum(s * (t.at(least) - t.at(start)) for t, s in slopes)
    return lowest > 0 and all(s > 0 for _, s in slopes)
