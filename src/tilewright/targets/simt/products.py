"""A contraction as the blocks of a grid see it: rows, columns, sums, and both operands.

A dimension of the results is a row if only the left operand depends on it, a column if only the
right one does, and a batch dimension if both do. The operands are ordered so that the result is
contiguous along a column dimension. A matrix product has one of each; a convolution has channels on
one side, places on the other, and windows among the sums: its product is implicit, without a matrix
of windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Expr, Load, Mul, Var
from tilewright.ir.node import postorder
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    reduction_dims,
    stride,
    uses,
)


@dataclass(frozen=True, slots=True)
class Product:
    """See the module's docstring; dimensions are outermost first.

    reduction, epilogue: the contraction and the map after it, if any. last: pairs of a
    contraction's dimension and the epilogue's. left, right: the reads of the operands.
    """

    reduction: Computation
    epilogue: Computation | None
    last: tuple[tuple[Dim, Dim], ...]
    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    sums: tuple[Dim, ...]
    left: Load
    right: Load

    @property
    def name(self) -> str:
        """The name of the contraction, with which its loops begin."""
        return self.reduction.name

    @property
    def points(self) -> int:
        """Multiplications in all."""
        return math.prod(d.extent for d in self.reduction.dims)

    @property
    def itemsize(self) -> int:
        """Bytes of an accumulator."""
        return self.reduction.outputs[0].tensor.dtype.itemsize


def product_of(pattern: KernelPattern) -> Product | None:
    """The pattern as a product; None if it is not one, or has no rows or no columns.

    An index that is not linear in the dimensions (a gather), two reads of one side, and results at
    indices that are not dimensions are rejected, too.
    """
    r = pattern.reduction
    if pattern.name != "tiled" or r is None or not is_contraction(r):
        return None
    sides = _sides(r)
    if sides is None or not _is_plain(r, sides):
        return None
    batch, rows, columns = _roles(r, sides)
    contiguous = _contiguous(pattern, r)
    if contiguous in rows:
        sides, rows, columns = sides[::-1], columns, rows
    if not rows or contiguous not in columns:
        return None
    return Product(
        reduction=r,
        epilogue=pattern.epilogue,
        last=tuple(pattern.dims.items()),
        batch=batch,
        rows=rows,
        columns=columns,
        sums=tuple(reduction_dims(r)),
        left=sides[0],
        right=sides[1],
    )


def window_of(pattern: KernelPattern) -> Product | None:
    """The pattern as a convolution with a filter for each channel; None if it is not one.

    rows: the dimensions along which a window slides, last the one along which a thread may have
    several places; columns: the contiguous dimension of the results, along which it does not.
    left: what the windows read. Such a product has no column that only the filter depends on.
    """
    r = pattern.reduction
    if pattern.name != "tiled" or r is None or not is_contraction(r):
        return None
    sides = _sides(r)
    if sides is None or not _is_plain(r, sides):
        return None
    free, contiguous = free_dims(r), _contiguous(pattern, r)
    for left, right in (sides, sides[::-1]):
        slid = [d for d in free if _slides(d, left, r)]
        rest = [d for d in free if d not in slid]
        under = all(any(uses(i, d.var) for i in left.index) for d in rest)
        along = [d for d in slid if d is not contiguous]
        if not under or not along or contiguous is None:
            continue
        if any(uses(i, d.var) for d in slid for i in right.index):
            continue
        return Product(
            reduction=r,
            epilogue=pattern.epilogue,
            last=tuple(pattern.dims.items()),
            batch=tuple(d for d in rest if d is not contiguous),
            rows=tuple(along),
            columns=(contiguous,),
            sums=tuple(reduction_dims(r)),
            left=left,
            right=right,
        )
    return None


def _slides(d: Dim, read: Load, r: Computation) -> bool:
    """Whether a dimension of the results moves a window: it shares an index with a sum alone."""
    sums = [e.var for e in reduction_dims(r)]
    for i in read.index:
        terms = [atom for atom, _ in affine(i).terms]
        if d.var in terms:
            return len(terms) == 2 and any(v in terms for v in sums)
    return False


def _sides(r: Computation) -> tuple[Load, Load] | None:
    """The one read on each side of the product, of two buffers."""
    for node in postorder(r.outputs[0].value):
        if isinstance(node, Mul):
            left, right = (_reads(side) for side in (node.lhs, node.rhs))
            if len(left) == len(right) == 1 and left[0].buffer is not right[0].buffer:
                return left[0], right[0]
    return None


def _reads(e: Expr) -> list[Load]:
    return [n for n in postorder(e) if isinstance(n, Load) and n.buffer.size > 1]


def _is_plain(r: Computation, sides: Sequence[Load]) -> bool:
    """Whether each operand is read at a linear index, and results are indexed by dimensions."""
    variables = {d.var for d in r.dims}
    linear = all(
        isinstance(atom, Var) and atom in variables
        for a in sides
        for i in a.index
        for atom, _ in affine(i).terms
    )
    index = r.outputs[0].index
    wide = [d.var for d in free_dims(r)]
    return linear and all(any(i is v for i in index) for v in wide)


def _roles(
    r: Computation, sides: tuple[Load, Load]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]]:
    """The dimensions of the batch, of the left side only, and of the right side only."""
    found: dict[tuple[bool, bool], list[Dim]] = {}
    for d in free_dims(r):
        key = tuple(any(uses(i, d.var) for i in a.index) for a in sides)
        found.setdefault((key[0], key[1]), []).append(d)
    batch = (*found.get((True, True), ()), *found.get((False, False), ()))
    return (
        batch,
        tuple(found.get((True, False), ())),
        tuple(found.get((False, True), ())),
    )


def _contiguous(pattern: KernelPattern, r: Computation) -> Dim | None:
    """The dimension along which neighbors of the result are neighbors in memory."""
    last = pattern.epilogue or r
    out = last.outputs[0]
    place = address(out.tensor[out.index])
    found = (d for d in free_dims(r) if stride(place, pattern.dims[d].var) == 1)
    return next(found, None)
