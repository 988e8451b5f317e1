"""Inlining position masks: `k <= last[b]` instead of a tensor of booleans.

Maps that compare positions, or guard a tensor by such a comparison, are recomputed in their
readers. The reader then shows which positions it needs, whatever it does with the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import inline, rewrite_loads
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Buffer,
    Cast,
    Const,
    Expr,
    Le,
    Load,
    Lt,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
)
from tilewright.ir.node import postorder
from tilewright.plan.nodes import DefUse, FusionGroup
from tilewright.plan.passes.band_tables import Read, as_band

Data = Mapping[Buffer, np.ndarray[Any, Any]]
POSITIONS = (Add, And, Cast, Const, Le, Load, Lt, Mul, Not, Or, Sub, Var)


def inline_masks(group: FusionGroup, flow: DefUse, data: Data) -> FusionGroup:
    """The group with position masks, and guards by them, inlined.

    flow: the producers of what the group reads. data: constants; one that holds positions (a number
    plus a multiple of each index) or a band along a diagonal is computed, too.

    requires of an inlined tensor
        a single group makes it: one map with one result
        its value uses only indices and integers and is a position or a boolean; or it is an
        element where such a value is true, and a constant elsewhere
    """
    found = tuple(_inlined(c, flow, data) for c in group.computations)
    return replace(group, computations=found)


def _inlined(c: Computation, flow: DefUse, data: Data) -> Computation:
    waiting = list(c.inputs)
    while waiting:
        buffer = waiting.pop()
        made = _maker(buffer, flow)
        combined = None if made is None else inline(made, c)
        if made is not None and combined is not None:
            c = combined
            waiting += made.inputs
    tables = {b: data[b] for b in c.inputs if b in data}
    steps = {b: found for b, a in tables.items() if (found := _steps(b, a)) is not None}
    reads: dict[Buffer, Read] = {b: _position(*found) for b, found in steps.items()}
    if c.is_map:
        bands = ((b, as_band(b, np.reshape(a, b.shape))) for b, a in tables.items())
        reads |= {b: read for b, read in bands if read is not None}
    return rewrite_loads(c, reads) if reads else c


def _maker(buffer: Buffer, flow: DefUse) -> Computation | None:
    """The map that makes a position mask or a guard by one."""
    makers = flow.writers.get(buffer, [])
    if len(makers) != 1 or makers[0].kernel is not None or not makers[0].is_map:
        return None
    (c,) = makers[0].computations
    value = c.outputs[0].value
    if len(c.outputs) != 1:
        return None
    if isinstance(value, Select) and isinstance(value.then, Load):
        guards = isinstance(value.otherwise, Const) and _is_by_position(value.condition)
        return c if guards else None
    return c if _is_by_position(value) else None


def _is_by_position(value: Expr) -> bool:
    """Whether a value is a position or a boolean about positions."""
    if value.dtype is not INDEX and not value.dtype.is_bool:
        return False
    nodes = [n for n in postorder(value) if isinstance(n, Expr)]
    return all(
        isinstance(n, POSITIONS) and (n.dtype.is_int or n.dtype.is_bool) for n in nodes
    )


def _steps(buffer: Buffer, array: np.ndarray[Any, Any]) -> tuple[int, list[int]] | None:
    """The first element and the step along each axis of a table of positions, else None."""
    if buffer.dtype is not INDEX or not array.size:
        return None
    first = int(array.flat[0])
    steps = []
    table = np.full(array.shape, first, object)
    for axis, extent in enumerate(array.shape):
        index = [0] * array.ndim
        index[axis] = min(1, extent - 1)
        step = int(array[tuple(index)]) - first
        steps.append(step)
        along = np.arange(extent).astype(object) * step
        table = table + along.reshape(
            [-1 if n == axis else 1 for n in range(array.ndim)]
        )
    return (first, steps) if bool((table == array).all()) else None


def _position(first: int, steps: Collection[int]) -> Any:
    """A function that computes an element of such a table."""

    def read(load: Load) -> Expr:
        found: Expr = const(first)
        for i, step in zip(load.index, steps, strict=True):
            found = Add(found, Mul(i, const(step)))
        return found

    return read
