"""The dimension of a map to vectorize, by the cost of its strided loads and stores.

A vector whose lanes are contiguous is one access. Otherwise each lane is accessed separately, which
costs more the fewer of them share a cache line, and most if they evict one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Load
from tilewright.schedule.space.patterns import address, stride
from tilewright.targets.cpu.cost import CostModel


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
    filled = min(lanes, extent)
    taken = sum(_vector(a, inner, filled, costs, costs.far_load) for a in c.accesses)
    taken += sum(_vector(p, inner, filled, costs, costs.far_store) for p in places)
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


def _vector(
    access: Load, inner: Dim, lanes: int, costs: CostModel, far: float
) -> float:
    """Cycles of one vector of an access; far: of a lane where lanes displace one another."""
    step = stride(address(access), inner.var)
    size = access.buffer.dtype.itemsize
    if step is None:  # halves and remainders, which go by shuffles
        step = 2
    if abs(step) <= 1:
        return 1 / costs.loads
    apart = abs(step) * size
    if costs.resident_rows(apart) < lanes:
        return lanes * far
    return lanes * costs.apart * min(1.0, apart / costs.machine.line)
