"""What kernels without products take: operations on elements, accesses out of order, and data.

Vectors go along the dimension with the fewest accesses out of order. There, an element takes the
operations of its value; each access that has no vectors of neighbors takes shuffles, which
`crossed` counts. A kernel is never faster than its data arrive from the cache that holds all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Buffer, Call, Div, Expr, Load
from tilewright.ir.node import Node, postorder
from tilewright.schedule.space.patterns import KernelPattern, address, stride
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.inner_dimension import joined_extent


def element_cycles(pattern: KernelPattern, at: Context) -> float:
    """Cycles of all points of these Computations, with their data in the first cache."""
    reduced = 1 + at.costs.window_load if pattern.name == "windows" else 1
    return sum(_cycles(c, reduced, at) for c in pattern.computations)


def _cycles(c: Computation, reduced: int, at: Context) -> float:
    """reduced: operations that a reduction takes for each element besides its value."""
    costs, machine = at.costs, at.machine
    if not c.dims:
        return 1.0
    dtype = c.outputs[0].tensor.dtype
    lanes = machine.lanes(dtype)
    forms = {a: address(a) for a in (*c.accesses, *_places(c))}
    across = {d: _across(forms, d, lanes, costs) for d in reversed(c.dims)}
    inner = min(across, key=lambda d: (across[d], -d.extent))
    operations = sum(_operations(o.value, forms, inner, costs) for o in c.outputs)
    operations += 0 if c.is_map else reduced
    extent = joined_extent(list(forms.values()), c.dims, inner)
    vectors = math.prod(d.extent for d in c.dims) / extent * math.ceil(extent / lanes)
    rate = costs.multiply_rate(lanes, dtype.itemsize)
    return vectors * (operations / rate + lanes * across[inner])


def _places(c: Computation) -> list[Load]:
    return [o.tensor[o.index] for o in c.outputs]


def _across(
    forms: Mapping[Load, Affine], d: Dim, lanes: int, costs: CostModel
) -> float:
    """Cycles of an element's accesses whose neighbors along `d` are not neighbors in memory."""
    taken = 0.0
    for a, form in forms.items():
        step = stride(form, d.var)
        if step is not None and -1 <= step <= 1:
            continue
        near = costs.resident_rows(abs(step or 0) * a.dtype.itemsize) >= lanes
        taken += costs.crossed if near else costs.far_load
    return taken


def _operations(
    value: Expr, forms: Mapping[Load, Affine], inner: Dim, costs: CostModel
) -> int:
    """Operations of a value on the vectors that a loop along `inner` loads.

    Others leave the loop, or are indices and guards.
    """
    varying: set[Node] = set()
    taken = 0
    for n in postorder(value):
        if isinstance(n, Load):
            if stride(forms[n], inner.var) != 0:
                varying.add(n)
        elif any(child in varying for child in n.children()):
            varying.add(n)
            taken += costs.function if isinstance(n, Call | Div) else 1
    return taken


def arrival(computations: Sequence[Computation], at: Context) -> float:
    """Nanoseconds that the data which a kernel reads or leaves takes to arrive or to go."""
    line = at.machine.line
    made = {o.tensor for c in computations for o in c.outputs}
    kept = made & {b for c in computations for b in c.inputs}
    touched: dict[Buffer, int] = {}
    for c in computations:
        for a in (*c.accesses, *_places(c)):
            if a.buffer not in kept:
                elements = touched.get(a.buffer, 0) + _touched(a, c, line)
                touched[a.buffer] = min(elements, a.buffer.size)
    moved = sum(n * b.dtype.itemsize for b, n in touched.items())
    return moved / (at.costs.arriving(moved) * at.machine.clock)


def _touched(a: Load, c: Computation, line: int) -> int:
    """Elements that an access touches, at most, with those that it skips within a line."""
    steps = {d: stride(address(a), d.var) for d in c.dims}
    apart = min((abs(s) for s in steps.values() if s), default=1)
    points = math.prod(d.extent for d, s in steps.items() if s != 0)
    return points * min(apart, line // a.dtype.itemsize)
