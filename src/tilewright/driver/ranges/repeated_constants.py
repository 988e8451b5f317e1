"""Constants of an open plan that repeat along a size: one of the equal parts is stored.

A model may expand what is the same for all sequences, such as the embedding of a token's type, to
the batch; at known sizes that is a constant with a part per sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import rewrite_loads
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, const
from tilewright.plan.nodes import Plan


def without_repeats(plan: Plan) -> Plan:
    """The plan with one element along each axis along which a constant repeats.

    requires: all parts of the constant along the axis are equal, bit for bit; it is no result, and
    Computations alone read it; each read has at this axis the variable of a dimension whose extent
    the sizes decide. Other axes keep the form in which schedules know them, such as that of a
    weight that happens to be zero.
    """
    own = {b: _repeated(b, array, plan) for b, array in plan.data.items()}
    kept = {
        b: tuple(slice(0, 1) if n in axes else slice(None) for n in range(len(b.shape)))
        for b, axes in own.items()
        if axes
    }
    if not kept:
        return plan
    made: dict[Buffer, tuple[Buffer, Any]] = {}
    for b, part in kept.items():
        array = np.ascontiguousarray(plan.data[b][part])
        made[b] = Buffer(b.name, array.shape, b.dtype, b.scope), array
    rewrite = {b: _Moved(made[b][0], own[b]) for b in kept}
    steps = tuple(
        replace(g, computations=tuple(_rewritten(c, rewrite) for c in g.computations))
        for g in plan.groups
    )
    values = {
        v: replace(v, shape=made[plan.buffers[v]][0].shape)
        for v in plan.graph.constants
        if plan.buffers.get(v) in made
    }
    constants = {values.get(v, v): a for v, a in plan.graph.constants.items()}
    buffers = {values.get(v, v): made.get(b, (b,))[0] for v, b in plan.buffers.items()}
    data = {b: array for b, array in plan.data.items() if b not in made}
    data |= dict(made.values())
    constants |= {v: data[buffers[v]] for v in values.values()}
    graph = replace(plan.graph, constants=constants)
    return replace(plan, graph=graph, steps=steps, buffers=buffers, data=data)


class _Moved:
    """Reads of a constant as reads of its part, at 0 along the axes where it repeats."""

    def __init__(
        self,
        part: Buffer,
        axes: frozenset[int],
    ) -> None:
        self.part = part
        self.axes = axes

    def __call__(self, load: Load) -> Expr:
        zero = const(0, INDEX)
        index = (zero if n in self.axes else i for n, i in enumerate(load.index))
        return Load(self.part, tuple(index))


def _rewritten(
    c: Computation,
    rewrite: Mapping[Buffer, _Moved],
) -> Computation:
    return rewrite_loads(c, rewrite) if any(b in rewrite for b in c.inputs) else c


def _repeated(
    b: Buffer,
    array: np.ndarray[Any, Any],
    plan: Plan,
) -> frozenset[int]:
    """The axes as `without_repeats` requires them."""
    readers = [g for g in plan.groups if b in g.reads]
    if not b.static or b in plan.kept or any(g.kernel is not None for g in readers):
        return frozenset()
    axes = {n for n, extent in enumerate(b.shape) if extent > 1}
    for c in (c for g in readers for c in g.computations):
        sized = {d.var for d in c.dims if not d.static}
        for load in (a for a in c.accesses if a.buffer is b):
            axes = {n for n in axes if load.index[n] in sized}
    return frozenset(n for n in axes if _is_one_part(array, n))


def _is_one_part(array: np.ndarray[Any, Any], axis: int) -> bool:
    """Whether all parts are equal, bit for bit; those of strings, by the addresses of these."""
    parts = np.moveaxis(array, axis, 0)
    first = parts[0].tobytes()
    return all(part.tobytes() == first for part in parts[1:])
