"""The region of a tensor that a statement touches, at each level of its loops.

At level n of a statement, the loops from depth n on run and the outer ones are fixed; its innermost
level, the number of its loops, is a single execution. Regions are boxes: along each axis from the
lowest to the highest index, at most the extent of the tensor. Several accesses of one tensor share
a bounding box, as in Ansor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.tune.features.indices import IndexFeatures

NOWHERE: frozenset[int] = frozenset()
LINE = 64  # bytes of a cache line
# The movement of an axis over a loop: the loop's depth, the axis, the signed distance.
Span = tuple[int, int, float]


@dataclass(slots=True, eq=False)
class TensorShape:
    """A tensor's extents and row-major strides in elements, and the bytes of an element."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def size(self) -> int:
        """Total bytes."""
        bytes_ = self.itemsize
        for n in self.extents:
            bytes_ *= n
        return bytes_


@dataclass(slots=True, eq=False)
class TensorAccess:
    """A read or a write of one element; an update is both.

    strides: of its address in elements, by loop depth; a loop that is in no index has none.
    erratic: loops with a nonlinear effect on the address. spans: those of its axes, innermost loop
    first.
    """

    buffer: Buffer
    shape: TensorShape
    index: tuple[IndexFeatures, ...]
    reads: bool
    writes: bool
    strides: dict[int, float]
    erratic: frozenset[int]
    spans: list[Span]

    def moves(self, depth: int) -> bool:
        """Whether the element depends on a loop."""
        return depth in self.strides or depth in self.erratic


def access(
    buffer: Buffer,
    shape: TensorShape,
    index: tuple[IndexFeatures, ...],
    trips: Sequence[int],
    reads: bool,
    writes: bool,
) -> TensorAccess:
    """An access in loops with these trip counts, outermost first."""
    strides: dict[int, float] = {}
    erratic = NOWHERE
    spans: list[Span] = []
    steps = shape.strides
    for axis, at in enumerate(index):
        step = steps[axis]
        for depth, c in at.terms.items():
            strides[depth] = strides.get(depth, 0.0) + c * step
            span = c * (trips[depth] - 1)
            if depth in at.limits:
                span = math.copysign(at.span(depth, trips[depth]), c)
            spans.append((depth, axis, span))
        if at.erratic:
            erratic |= at.erratic
            for depth in at.erratic:
                spans.append((depth, axis, float(trips[depth] - 1)))
    spans.sort(reverse=True)
    return TensorAccess(buffer, shape, index, reads, writes, strides, erratic, spans)


@dataclass(slots=True, eq=False)
class TouchedTensor:
    """All accesses of a statement to one tensor.

    elements: the number of distinct ones touched at each level.
    """

    buffer: Buffer
    shape: TensorShape
    accesses: list[TensorAccess]
    reads: bool
    writes: bool
    elements: list[float]

    @property
    def bytes(self) -> list[float]:
        """Bytes of the distinct elements at each level."""
        size = self.shape.itemsize
        return [n * size for n in self.elements]

    def box(self, level: int) -> list[float]:
        """The extents of the region touched at a level, at most those of the tensor."""
        size = _apart(self.accesses)
        if _alike(self.accesses):
            for depth, axis, span in self.accesses[0].spans:
                if depth >= level:
                    size[axis] += abs(span)
        else:
            size = _union(self.accesses, level)
        extents = self.shape.extents
        return [min(n, most) for n, most in zip(size, extents, strict=True)]

    def lines(self, level: int) -> float:
        """Cache lines (of LINE bytes) at a level; adjacent complete rows count as one run."""
        elements, run, whole = 1.0, float(self.shape.itemsize), True
        box = self.box(level)
        for n, extent in zip(reversed(box), reversed(self.shape.extents), strict=True):
            elements *= n
            if whole:
                run *= n
                whole = n == extent
        pieces = elements * self.shape.itemsize / run if run else 0.0
        return pieces * max(1.0, run / LINE)


def touch(accesses: list[TensorAccess], levels: int) -> TouchedTensor:
    """The region that accesses of one tensor touch, at the levels 0 to `levels`."""
    first = accesses[0]
    if len(accesses) == 1:
        elements = _elements(first, [1.0] * len(first.index), levels)
        reads, writes = first.reads, first.writes
    else:
        reads = any(a.reads for a in accesses)
        writes = any(a.writes for a in accesses)
        if _alike(accesses):
            elements = _elements(first, _apart(accesses), levels)
        else:
            boxes = [_union(accesses, level) for level in range(levels + 1)]
            extents = first.shape.extents
            elements = [math.prod(map(min, size, extents)) for size in boxes]
    return TouchedTensor(first.buffer, first.shape, accesses, reads, writes, elements)


def _alike(accesses: list[TensorAccess]) -> bool:
    """Whether all accesses move together, like the points of a stencil."""
    spans = accesses[0].spans
    return len(accesses) == 1 or all(a.spans == spans for a in accesses)


def _apart(accesses: list[TensorAccess]) -> list[float]:
    """The bounding box of accesses that move together, for fixed loops."""
    if len(accesses) == 1:
        return [1.0] * len(accesses[0].index)
    size = []
    for axis in range(len(accesses[0].index)):
        at = [a.index[axis].const for a in accesses]
        size.append(max(at) - min(at) + 1)
    return size


def _elements(first: TensorAccess, size: list[float], levels: int) -> list[float]:
    """The elements at each level of a box of this size that grows as the access moves."""
    extents = first.shape.extents
    count = 1.0
    for axis, n in enumerate(size):
        count *= min(n, extents[axis])
    found = [count] * (levels + 1)
    last = levels  # the innermost level whose count is unknown
    for depth, axis, span in first.spans:
        if depth < last:
            found[depth + 1 : last + 1] = [count] * (last - depth)
            last = depth
        extent = extents[axis]
        before = size[axis]
        size[axis] = after = before + abs(span)
        if before < extent:
            count *= (after if after < extent else extent) / before
    found[: last + 1] = [count] * (last + 1)
    return found


def _union(accesses: list[TensorAccess], level: int) -> list[float]:
    """The bounding box, at a level, of accesses that move differently."""
    lows = [[at.const for at in a.index] for a in accesses]
    highs = [low.copy() for low in lows]
    for a, low, high in zip(accesses, lows, highs, strict=True):
        for depth, axis, span in a.spans:
            if depth >= level:
                end = high if span > 0 else low
                end[axis] += span
    lowest = map(min, *lows)
    return [h - n + 1 for h, n in zip(map(max, *highs), lowest, strict=True)]
