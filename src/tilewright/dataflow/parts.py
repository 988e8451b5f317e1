"""Parts of a Computation: a subset of its points as a task, and what the task accesses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.compute.nodes import CC, PS, Computation, Dim, Output
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Load, Var, const
from tilewright.expr.reads import reads_memory, variables
from tilewright.ir.node import substitute

Cuts = Mapping[Var, tuple[int, int]]
# The most points that are enumerated to count or order what they touch.
_COUNTED: Final = 1 << 20


def restrict(c: Computation, cuts: Cuts, name: str) -> Computation:
    """Restrict the variables of `c` in `cuts` to ranges, low end included, high end excluded.

    Cutting a reduced dimension makes the result partial.
    """
    env: dict[object, object] = {}
    dims = []
    for d in c.dims:
        low, high = cuts.get(d.var, (0, d.extent))
        extent = high - low
        if extent == d.extent:
            dims.append(d)
            continue
        moved = Var(d.var.name, INDEX)
        env[d.var] = const(low) if extent == 1 else moved + low
        dims.append(Dim(moved, extent, d.combine))
    outputs = []
    for o in c.outputs:
        index = tuple(substitute(i, env) for i in o.index)
        outputs.append(Output(o.tensor, index, substitute(o.value, env)))
    return Computation(
        name=name,
        dims=tuple(dims),
        outputs=tuple(outputs),
        reducer=c.reducer,
    )


def points(c: Computation) -> int:
    """The number of applications of the scalar function."""
    return math.prod(d.extent for d in c.dims)


def results(c: Computation) -> int:
    """The number of elements of each output: the points of the dimensions that are not reduced."""
    return math.prod(d.extent for d in _free(c))


def _free(c: Computation) -> tuple[Dim, ...]:
    """The dimensions that are not reduced."""
    return tuple(d for d in c.dims if d.combine in (CC, PS))


def places(c: Computation, output: Output) -> tuple[Any, ...]:
    """The indices of all elements written to an output, as index arrays."""
    free = _free(c)
    shape = [d.extent for d in free]
    grid = _grid(free)
    found = []
    for axis in output.index:
        index = np.asarray(evaluate(axis, grid))
        found.append(np.broadcast_to(index, shape))
    return tuple(found)


def touched(c: Computation, buffer: Buffer) -> int:
    """An upper bound on the number of different elements of `buffer` that the Computation reads.

    Exact if the axes of an access depend on different variables, or there are few points.
    """
    loads = [load for load in c.accesses if load.buffer is buffer]
    return min(buffer.size, sum(_distinct(c.dims, load) for load in loads))


def _distinct(dims: Sequence[Dim], load: Load) -> int:
    """The elements of one access. Axes that share variables are counted together."""
    extents = {d.var: d.extent for d in dims}
    used = [{*variables(i)} & extents.keys() for i in load.index]
    total = 1
    for axes in _linked(used):
        space = set().union(*(used[a] for a in axes))
        ranges = {v: extents[v] for v in space}
        total *= _distinct_along(load, axes, ranges)
    return total


def _distinct_along(load: Load, axes: Sequence[int], ranges: Mapping[Var, int]) -> int:
    """The positions along some axes of an access. ranges: the extents of the variables they use."""
    index = [load.index[a] for a in axes]
    shape = [load.buffer.shape[a] for a in axes]
    combinations = math.prod(ranges.values())
    if len(axes) == 1 and isinstance(index[0], Var | Const):
        return combinations
    size = math.prod(shape)
    if any(reads_memory(i) for i in index):
        return size
    if combinations > _COUNTED:
        return min(size, combinations)
    grid = _grid([Dim(v, extent) for v, extent in ranges.items()])
    return _count(index, shape, grid)


def _count(index: Sequence[Expr], shape: Sequence[int], grid: Mapping[Var, Any]) -> int:
    """The number of different positions inside the shape; guards exclude those outside."""
    values = [np.asarray(evaluate(i, grid)) for i in index]
    places = np.broadcast_arrays(*values)
    inside = np.ones(places[0].shape, bool)
    for place, extent in zip(places, shape, strict=True):
        inside &= place >= 0
        inside &= place < extent
    visited = [place[inside] for place in places]
    flat = np.ravel_multi_index(visited, tuple(shape))
    different = np.unique(flat)
    return max(1, len(different))


def _linked(used: Sequence[set[Var]]) -> list[list[int]]:
    """Group the axes so that groups share no variable."""
    groups: list[tuple[set[Var], list[int]]] = []
    for axis, own in enumerate(used):
        shared = set(own)
        axes: list[int] = []
        separate = []
        for group in groups:
            if group[0] & own:
                shared |= group[0]
                axes += group[1]
            else:
                separate.append(group)
        groups = [*separate, (shared, [*axes, axis])]
    return [axes for _, axes in groups]


def in_order(c: Computation, index: Sequence[Expr], shape: Sequence[int]) -> bool:
    """Whether the points of `c`, in the order of its dimensions, visit an array of `shape` at
    `index` element by element, each once."""
    count = points(c)
    if count != math.prod(shape):
        return False
    dims = [d for d in c.dims if d.extent > 1]
    plain = [i for i, extent in zip(index, shape, strict=True) if extent > 1]
    if plain == [d.var for d in dims]:
        return True
    if count > _COUNTED:
        return False
    if any(reads_memory(i) for i in index):
        return False
    values: dict[Var, Any] = {d.var: 0 for d in c.dims}
    values.update(_grid(dims))
    strides = np.cumprod([1, *reversed(shape[1:])])[::-1]
    flat: Any = 0
    for axis, stride in zip(index, strides, strict=True):
        flat = flat + np.asarray(evaluate(axis, values)) * stride
    visited = np.broadcast_to(flat, [d.extent for d in dims])
    expected = np.arange(count)
    return np.array_equal(visited.reshape(-1), expected)


def writes_in_order(c: Computation) -> bool:
    """Whether the only output is written element by element in the order of the dimensions."""
    if len(c.outputs) != 1:
        return False
    free = _free(c)
    is_free = [d in free for d in c.dims if d.extent > 1]
    if sorted(is_free, reverse=True) != is_free:
        return False  # a reduction outside a dimension of the result
    o = c.outputs[0]
    return in_order(Computation(c.name, free, ()), o.index, o.tensor.shape)


def reads_in_order(c: Computation, buffer: Buffer) -> bool:
    """Whether the only access to `buffer` reads it element by element, each once."""
    loads = [load for load in c.accesses if load.buffer is buffer]
    if len(loads) != 1:
        return False
    return in_order(c, loads[0].index, buffer.shape)


def _grid(dims: Sequence[Dim]) -> dict[Var, Any]:
    """The values of each variable along its own axis."""
    found = {}
    for axis, d in enumerate(dims):
        shape = [1] * len(dims)
        shape[axis] = d.extent
        found[d.var] = np.arange(d.extent).reshape(shape)
    return found
