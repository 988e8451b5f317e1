"""Parts of a Computation: a subset of its points as a task, and what the task accesses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from tilewright.compute.nodes import CC, PS, Computation, Dim, Output
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Load, Var, const
from tilewright.expr.reads import reads_memory, variables
from tilewright.ir.node import substitute

Cuts = Mapping[Var, tuple[int, int]]
_COUNTED: Final = (
    1 << 20
)  # points that are enumerated to count or order what they touch


def restrict(c: Computation, cuts: Cuts, name: str) -> Computation:
    """The points of `c` whose variables lie in `cuts`, low end included, high end not.

    A reduced dimension that is cut gives a partial result.
    """
    env: dict[object, object] = {}
    dims = []
    for d in c.dims:
        low, high = cuts.get(d.var, (0, d.extent))
        if (low, high) == (0, d.extent):
            dims.append(d)
            continue
        moved = Var(d.var.name, INDEX)
        env[d.var] = const(low) if high - low == 1 else moved + low
        dims.append(Dim(moved, high - low, d.combine))
    outputs = tuple(
        Output(
            o.tensor,
            tuple(substitute(i, env) for i in o.index),
            substitute(o.value, env),
        )
        for o in c.outputs
    )
    return Computation(name, tuple(dims), outputs, c.reducer)


def points(c: Computation) -> int:
    """How often the scalar function is applied."""
    return math.prod(d.extent for d in c.dims)


def results(c: Computation) -> int:
    """Elements that each output gets: the points of what is not reduced."""
    return math.prod(d.extent for d in c.dims if d.combine in (CC, PS))


def places(c: Computation, output: Output) -> tuple[Any, ...]:
    """The indices of all elements that an output gets, as arrays to index with."""
    free = [d for d in c.dims if d.combine in (CC, PS)]
    grid = _grid(free)
    index = (np.asarray(evaluate(i, grid)) for i in output.index)
    return tuple(np.broadcast_to(i, [d.extent for d in free]) for i in index)


def touched(c: Computation, buffer: Buffer) -> int:
    """How many different elements of `buffer` the Computation reads, at most.

    Exact where the axes of an access depend on different variables, or there are few points.
    """
    loads = [load for load in c.accesses if load.buffer is buffer]
    return min(buffer.size, sum(_distinct(c.dims, load) for load in loads))


def _distinct(dims: Sequence[Dim], load: Load) -> int:
    """Elements of one access. Axes that share variables are counted together."""
    extents = {d.var: d.extent for d in dims}
    used = [{*variables(i)} & extents.keys() for i in load.index]
    total = 1
    for axes in _linked(used):
        if len(axes) == 1 and isinstance(load.index[axes[0]], Var | Const):
            total *= math.prod(extents[v] for v in used[axes[0]])
            continue
        space = set().union(*(used[a] for a in axes))
        size = math.prod(load.buffer.shape[a] for a in axes)
        exact = not any(reads_memory(load.index[a]) for a in axes)
        if not exact or math.prod(extents[v] for v in space) > _COUNTED:
            total *= min(size, math.prod(extents[v] for v in space) if exact else size)
            continue
        grid = _grid([Dim(v, extents[v]) for v in space])
        total *= _count(
            [load.index[a] for a in axes], [load.buffer.shape[a] for a in axes], grid
        )
    return total


def _count(index: Sequence[Expr], shape: Sequence[int], grid: Mapping[Var, Any]) -> int:
    """Different positions inside the shape; guards keep a program from those outside."""
    places = np.broadcast_arrays(*(np.asarray(evaluate(i, grid)) for i in index))
    inside = np.ones(places[0].shape, bool)
    for place, extent in zip(places, shape, strict=True):
        inside &= (place >= 0) & (place < extent)
    flat = np.ravel_multi_index([p[inside] for p in places], tuple(shape))
    return max(1, len(np.unique(flat)))


def _linked(used: Sequence[set[Var]]) -> list[list[int]]:
    """The axes in groups that share no variable."""
    groups: list[tuple[set[Var], list[int]]] = []
    for axis, own in enumerate(used):
        near = [g for g in groups if g[0] & own]
        merged = (own.union(*(g[0] for g in near)), [a for g in near for a in g[1]])
        groups = [g for g in groups if g not in near] + [
            (merged[0], [*merged[1], axis])
        ]
    return [axes for _, axes in groups]


def in_order(c: Computation, index: Sequence[Expr], shape: Sequence[int]) -> bool:
    """Whether the points of `c`, in the order of its dimensions, visit an array of `shape` element
    after element, each once, at `index`."""
    dims = [d for d in c.dims if d.extent > 1]
    if points(c) != math.prod(shape):
        return False
    plain = [i for i, extent in zip(index, shape, strict=True) if extent > 1]
    if plain == [d.var for d in dims]:
        return True
    if points(c) > _COUNTED or any(reads_memory(i) for i in index):
        return False
    grid = _grid(dims)
    zero = {d.var: 0 for d in c.dims if d.extent == 1}
    places = [np.asarray(evaluate(i, {**grid, **zero})) for i in index]
    strides = np.cumprod([1, *reversed(shape[1:])])[::-1]
    flat = sum(p * s for p, s in zip(places, strides, strict=True))
    whole = np.broadcast_to(flat, [d.extent for d in dims])
    return bool((whole.reshape(-1) == np.arange(math.prod(shape))).all())


def writes_in_order(c: Computation) -> bool:
    """Whether the only output is written element after element as the dimensions run."""
    if len(c.outputs) != 1:
        return False
    kinds = [
        kind
        for kind, _ in groupby(d.combine in (CC, PS) for d in c.dims if d.extent > 1)
    ]
    if kinds not in ([], [True], [False], [True, False]):
        return False
    o = c.outputs[0]
    free = Computation(c.name, tuple(d for d in c.dims if d.combine in (CC, PS)), ())
    return in_order(free, o.index, o.tensor.shape)


def reads_in_order(c: Computation, buffer: Buffer) -> bool:
    """Whether the only access to `buffer` reads it element after element, each once."""
    loads = [load for load in c.accesses if load.buffer is buffer]
    return len(loads) == 1 and in_order(c, loads[0].index, buffer.shape)


def _grid(dims: Sequence[Dim]) -> dict[Var, Any]:
    """The values of each variable along an axis of its own."""
    rank = range(len(dims))
    return {
        d.var: np.arange(d.extent).reshape([-1 if n == k else 1 for n in rank])
        for k, d in enumerate(dims)
    }
