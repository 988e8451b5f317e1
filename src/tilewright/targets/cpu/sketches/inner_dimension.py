"""The dimension of a map to vectorize, by the cost of its strided loads and stores.

A vector whose lanes are contiguous is one access, and shuffles bring lanes together that are a few
elements apart. Otherwise each lane is accessed separately. Lines cost more if they are new: those
that the next iteration of the loop around reads again are in the cache, unless the vectors of one
iteration evict one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import Affine, to_expr
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Load
from tilewright.expr.reads import reads_memory, variables
from tilewright.schedule.space.patterns import address, stride
from tilewright.targets.cpu.cost import CostModel

IntArray = NDArray[np.int64]


def inner_dimension(c: Computation, dims: Sequence[Dim], costs: CostModel) -> Dim:
    """The dimension that the rule takes: the last one, unless another is much faster."""
    last = dims[-1]
    usual = cycles(c, dims, last, costs)
    best = min(dims, key=lambda d: (cycles(c, dims, d, costs), d is not last))
    return best if costs.turned * cycles(c, dims, best, costs) <= usual else last


def cycles(c: Computation, dims: Sequence[Dim], inner: Dim, costs: CostModel) -> float:
    """Expected cycles of an element's accesses, with vectors along `inner`."""
    places = [o.tensor[o.index] for o in c.outputs]
    lanes = costs.machine.lanes(places[0].dtype)
    forms = [address(a) for a in (*c.accesses, *places)]
    extent = joined_extent(forms, dims, inner)
    vectors = math.ceil(extent / lanes)
    around = [d for d in dims if d is not inner]
    loop = _VectorLoop(inner, around[-1] if around else None, min(lanes, extent), costs)
    taken = sum(loop.read(a) for a in c.accesses) + sum(map(loop.written, places))
    return vectors * taken / extent


def joined_extent(forms: Sequence[Affine], dims: Sequence[Dim], inner: Dim) -> int:
    """The length of the loop of `inner` with all the loops around that continue where it ends."""
    extent = inner.extent
    for d in reversed([d for d in dims if d is not inner]):
        if not all(goes_on(f, d, inner, extent) for f in forms):
            break
        extent *= d.extent
    return extent


def goes_on(form: Affine, outer: Dim, inner: Dim, extent: int) -> bool:
    """Whether one step of `outer` moves as far as `extent` steps of `inner`."""
    a, b = stride(form, outer.var), stride(form, inner.var)
    return a is not None and b is not None and a == b * extent


@dataclass(frozen=True, slots=True)
class _VectorLoop:
    """Vectors of this many lanes along `inner`; around: the loop around theirs."""

    inner: Dim
    around: Dim | None
    lanes: int
    costs: CostModel

    def read(self, access: Load) -> float:
        """Cycles of a vector's loads."""
        return self._cycles(
            access,
            self.costs.few_across,
            self.costs.apart_load,
            self.costs.far_load,
        )

    def written(self, access: Load) -> float:
        """Cycles of its stores: only vectors of whole lines are stored apart by shuffles."""
        whole = self.lanes * access.dtype.itemsize >= self.costs.machine.line
        return self._cycles(
            access,
            self.costs.few_across if whole else 1,
            self.costs.apart_store,
            self.costs.far_store,
        )

    def _cycles(self, access: Load, few: int, apart: float, far: float) -> float:
        """few: elements apart that shuffles bring together. apart: cycles of a lane on its own,
        far: where lanes displace one another."""
        costs, form = self.costs, address(access)
        step = stride(form, self.inner.var)
        if step is None:
            places = self._places(form)
            lines = np.unique(places * access.dtype.itemsize // costs.machine.line)
            near = np.ptp(places) <= few * (self.lanes - 1)
            return costs.new_line * len(lines) + self.lanes * (0 if near else apart)
        if abs(step) <= 1:
            return 1 / costs.loads
        pitch = abs(step) * access.dtype.itemsize
        rows = costs.resident_rows(pitch)
        moved = self._moved(access, form)
        # The loop around comes back to the lines, where it moves by a part of one.
        crowded = rows <= costs.ahead and moved < 1
        if rows < (self.inner.extent if crowded else self.lanes):
            return self.lanes * far
        new = min(1.0, pitch / costs.machine.line)
        if rows >= self.inner.extent:  # the loop around finds them in the cache
            new *= moved
        alone = apart if abs(step) > few else 0.0
        return self.lanes * (alone + costs.new_line * new)

    def _moved(self, access: Load, form: Affine) -> float:
        """The share of a line by which the loop around moves."""
        if self.around is None:
            return 1.0
        step = stride(form, self.around.var)
        if step is None:
            return 1.0
        return min(1.0, abs(step) * access.dtype.itemsize / self.costs.machine.line)

    def _places(self, form: Affine) -> IntArray:
        """The elements of a vector whose address is not linear; where it depends on data, as if
        they were halves side by side."""
        e = to_expr(form)
        lanes = np.arange(self.lanes)
        if reads_memory(e):
            return lanes // 2
        places: IntArray = evaluate(
            e, {**dict.fromkeys(variables(e), 0), self.inner.var: lanes}
        )
        return places
