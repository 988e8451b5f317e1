"""Splitting a sum over a window into one sum per window position, each over the results it adds to.

    y[i] = sum[t, k] (inside(i, t) ? x(i, t, k) : 0) * w(i, t, k)
         = sum[t] (i in box_t ? p_t[i - low_t] : 0)
                with   p_t[j] = sum[k] x(low_t + j, t, k) * w(low_t + j, t, k)

A window with wide dilation over a small image reads only padding for most of its positions and
results: of 3x3 positions, 12 apart, over 14x14 elements, a fifth of the products are with data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import product

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.compute.guards import conjuncts
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.reducer import is_sum
from tilewright.compute.transforms import environment
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Add,
    And,
    Buffer,
    Const,
    Expr,
    Le,
    Load,
    Lt,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute

POSITIONS = 16  # of a window, at most: the map that adds them up reads as many tensors

Box = dict[Dim, tuple[int, int]]  # the first and the last point of each kept dimension
Position = dict[object, object]  # the constants of the window's variables


@dataclass(frozen=True, slots=True)
class WindowParts:
    """The sums of the positions, and the map that adds them up and writes what was written before.

    factors: buffers that are multiplied by zeros of the padding, which must be finite.
    """

    sums: tuple[Computation, ...]
    total: Computation
    factors: frozenset[Buffer]


def split_window(c: Computation) -> WindowParts | None:
    """One sum per position of a window that reads padding, and their total.

    requires, else None:

        a sum of numbers of its own dtype into one output that it does not read; no dimension is
            empty
        the value is a product of a read that is 0 where a condition fails, and of a factor
        the dimensions of the sum in that condition, the window's, have at most POSITIONS points;
            others have several
        at each position of the window, each conjunct depends on one kept dimension at most, and
            holds for an interval of it; for some position, not for all results

    The factors must be finite, as what is left out are zeros times them. The order of the terms
    changes, and the sign of a zero may.
    """
    read = _padded_read(c)
    if read is None:
        return None
    if not c.parallel_dims:  # a total: no point to tell apart
        return None
    window = [d for d in c.combined_dims if _uses(read.condition, d)]
    left = [d for d in c.combined_dims if d not in window]
    if not window or math.prod(d.extent for d in window) > POSITIONS:
        return None
    if math.prod(d.extent for d in left) == 1:  # depthwise: nothing is left to add up
        return None
    positions: list[Position] = []
    boxes: list[Box] = []
    extents = (range(d.extent) for d in window)
    for point in product(*extents):
        at: Position = {}
        for d, n in zip(window, point, strict=True):
            at[d.var] = const(n)
        condition = substitute(read.condition, at)
        box = _box(condition, c.parallel_dims)
        if box is None:
            return None
        if all(low <= high for low, high in box.values()):
            positions.append(at)
            boxes.append(box)
    everything = {d: (0, d.extent - 1) for d in c.parallel_dims}
    if all(box == everything for box in boxes):
        return None
    sums: list[Computation] = []
    for at, box in zip(positions, boxes, strict=True):
        sums.append(_sum(c, len(sums), at, box, read))
    return WindowParts(
        tuple(sums),
        _total(c, sums, boxes),
        frozenset(a.buffer for a in c.accesses if a is not read.then),
    )


def _padded_read(c: Computation) -> Select | None:
    """The read that is zero under a condition, as a factor of the only value."""
    if c.reducer is None or not is_sum(c.reducer) or len(c.outputs) != 1:
        return None
    (out,) = c.outputs
    dtype = c.reducer.dtypes[0]
    if out.value.dtype is not dtype or out.tensor.dtype is not dtype:
        return None
    if out.tensor in c.inputs or any(d.combine not in (CC, PW) for d in c.dims):
        return None
    if not all(d.static and d.extent for d in c.dims):
        return None
    if not isinstance(out.value, Mul):
        return None
    sides = (out.value.lhs, out.value.rhs)
    found = [e for e in sides if isinstance(e, Select)]
    if len(found) != 1:
        return None
    (read,) = found
    zero = isinstance(read.otherwise, Const) and read.otherwise.value == 0
    return read if zero and isinstance(read.then, Load) else None


def _uses(e: Expr, d: Dim) -> bool:
    return any(n is d.var for n in postorder(e))


def _box(condition: Expr, dims: Sequence[Dim]) -> Box | None:
    """The points at which a condition holds, if they are an interval of each dimension.

    None if they are not; the interval is empty, with the last point before the first, if there are
    none.
    """
    holds = {d: np.ones(d.extent, bool) for d in dims}
    for part in conjuncts(condition):
        free = [n for n in postorder(part) if isinstance(n, Var | Load)]
        along = [d for d in dims if d.var in free]
        if len(free) > 1 or len(along) != len(free):
            return None
        d = along[0] if along else dims[0]
        holds[d] &= np.asarray(evaluate(part, {d.var: np.arange(d.extent)}), bool)
    found: Box = {}
    for d, mask in holds.items():
        places = np.flatnonzero(mask)
        if not len(places):
            found[d] = (0, -1)
            continue
        low = int(places[0])
        high = int(places[-1])
        if high - low + 1 != len(places):
            return None
        found[d] = (low, high)
    return found


def _sum(
    c: Computation,
    n: int,
    at: Position,
    box: Box,
    read: Select,
) -> Computation:
    """The sum at one position of the window, over its box."""
    (out,) = c.outputs
    env = dict(at)
    inner: dict[Dim, Dim] = {}
    for d, (low, high) in box.items():
        inner[d] = replace(d, size=high - low + 1)
        env[d.var] = d.var + low if low else d.var
    dims = tuple(inner.get(d, d) for d in c.dims if d.var not in at)
    ranges = environment(dims)
    read_there: Expr = substitute(out.value, {read: read.then})
    value: Expr = substitute(read_there, env)
    tidy: dict[object, object] = {}
    for load in postorder(value):
        if isinstance(load, Load):
            index = tuple(simplify(i, ranges) for i in load.index)
            tidy[load] = Load(load.buffer, index)
    kept = [inner[d] for d in c.parallel_dims]
    tensor = Buffer(
        f"{out.tensor.name}_at{n}",
        tuple(d.extent for d in kept),
        out.tensor.dtype,
    )
    made = Output(
        tensor,
        tuple(d.var for d in kept),
        substitute(value, tidy),
    )
    return replace(
        c,
        name=f"{c.name}_at{n}",
        dims=dims,
        outputs=(made,),
    )


def _total(
    c: Computation,
    sums: Sequence[Computation],
    boxes: Sequence[Box],
) -> Computation:
    """The map that adds up the sums of the positions, each where it has a value."""
    (out,) = c.outputs
    terms = []
    for s, box in zip(sums, boxes, strict=True):
        tensor = s.outputs[0].tensor
        terms.append(_term(tensor, box))
    total: Expr = reduce(Add, terms)
    made = replace(out, value=total)
    return Computation(
        c.name,
        c.parallel_dims,
        (made,),
    )


def _term(
    tensor: Buffer,
    box: Box,
) -> Expr:
    """The element of a sum where it has one, and zero elsewhere."""
    conditions: list[Expr] = []
    index: list[Expr] = []
    for d, (low, high) in box.items():
        index.append(d.var - low if low else d.var)
        if low:
            conditions.append(Le(const(low), d.var))
        if high < d.extent - 1:
            conditions.append(Lt(d.var, const(high + 1)))
    load = Load(tensor, tuple(index))
    if not conditions:
        return load
    return Select(
        reduce(And, conditions),
        load,
        const(0, tensor.dtype),
    )
