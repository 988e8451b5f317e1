"""The exact elements of a tensor that a Computation writes and reads, by enumeration.

Slow and obvious, for verifiers. An index is followed through all values of the dimensions in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.compute.interp import grids
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import environment
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer, Const, Expr, Var
from tilewright.expr.reads import Guard, Read, reads, reads_memory, variables

Counts = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def written(c: Computation, tensor: Buffer) -> Counts:
    """How often `c` writes each element of a tensor, in the tensor's shape.

    Raises IndexError for an index outside it.
    """
    counts = np.zeros(tensor.shape, np.int64)
    kept = c.kept_dims
    for o in c.outputs:
        if o.tensor is tensor:
            count = _boxed if _is_box(o.index) else _counted
            counts += count(o, kept)
    return counts


def read(c: Computation, tensor: Buffer) -> Mask:
    """Which elements of a tensor `c` reads, in the tensor's shape.

    Data-dependent reads count everything possible: every element if an index depends on data, both
    arms if a condition does. Otherwise an index outside raises IndexError.
    """
    mask = np.zeros(tensor.shape, np.bool_)
    if any(d.extent == 0 for d in c.dims):
        return mask
    roots = [e for o in c.outputs for e in (o.value, *o.index)]
    for r in reads(tuple(roots), environment(c.dims)):
        if r.load.buffer is not tensor:
            continue
        if any(map(reads_memory, r.load.index)):
            mask[...] = True
        else:
            _mark(mask, r, c.dims)
        if mask.all():
            break
    return mask


def _is_box(index: Sequence[Expr]) -> bool:
    """Whether no variable is on two axes, so that the written region is a product of sets, one per
    axis."""
    found = [v for i in index for v in set(variables(i))]
    return len(set(found)) == len(found)


def _times(o: Output, kept: Sequence[Dim]) -> int:
    """How often each element is written, by dimensions that are not in the index."""
    used = {v for i in o.index for v in variables(i)}
    return prod(d.extent for d in kept if d.var not in used)


def _boxed(o: Output, kept: Sequence[Dim]) -> Counts:
    times = _times(o, kept)
    total = np.array(times, np.int64)
    for i, extent in zip(o.index, o.tensor.shape, strict=True):
        in_index = set(variables(i))
        along = np.zeros(extent, np.int64)
        for grid in grids([d for d in kept if d.var in in_index]):
            (flat,) = _places((i,), grid)
            np.add.at(along, _checked(flat, extent), 1)
        total = np.multiply.outer(total, along)
    return total


def _counted(o: Output, kept: Sequence[Dim]) -> Counts:
    shape = o.tensor.shape
    counts = np.zeros(shape, np.int64)
    times = _times(o, kept)
    used = {v for i in o.index for v in variables(i)}
    for grid in grids([d for d in kept if d.var in used]):
        at = _all_checked(_places(o.index, grid), shape)
        np.add.at(counts, at, times)
    return counts


def _mark(mask: Mask, r: Read, dims: Sequence[Dim]) -> None:
    guards = [g for g in r.guards if not reads_memory(g[0])]
    by_data = len(guards) < len(r.guards)
    expressions = [*r.load.index, *(condition for condition, _ in guards)]
    used = {v for e in expressions for v in variables(e)}
    for grid in grids([d for d in dims if d.var in used]):
        chosen = _holding(guards, grid)
        if not chosen.any():
            continue
        places = [p[chosen] for p in _places(r.load.index, grid)]
        if by_data:  # the data's side of the guard may keep the index inside
            pairs = zip(places, mask.shape, strict=True)
            inside = np.ones(np.count_nonzero(chosen), np.bool_)
            for p, n in pairs:
                inside &= (p >= 0) & (p < n)
            places = [p[inside] for p in places]
        mask[_all_checked(places, mask.shape)] = True


def _holding(
    guards: Sequence[Guard],
    grid: dict[Var, Any],
) -> Mask:
    """The points of a grid, flat, at which every condition is as the guards say."""
    shape = np.broadcast_shapes(*(np.shape(v) for v in grid.values()))
    chosen = np.ones(shape, np.bool_)
    for condition, holds in guards:
        as_said = np.asarray(evaluate(condition, grid)) == holds
        chosen &= np.broadcast_to(as_said, shape)
    return chosen.reshape(-1)


def _places(
    index: Sequence[Expr],
    grid: dict[Var, Any],
) -> list[Counts]:
    """The values of each index at the points of a grid, flat."""
    shape = np.broadcast_shapes(*(np.shape(v) for v in grid.values()))
    found = []
    for i in index:
        if isinstance(i, Const):
            value = int(i.value.real)
        else:
            value = evaluate(i, grid)
        everywhere = np.broadcast_to(np.asarray(value), shape)
        found.append(everywhere.reshape(-1))
    return found


def _all_checked(
    places: Sequence[Counts],
    shape: Sequence[int],
) -> tuple[Counts, ...]:
    """An index per axis. Raises IndexError for one that is outside."""
    return tuple(_checked(p, n) for p, n in zip(places, shape, strict=True))


def _checked(places: Counts, extent: int) -> Counts:
    wrong = (places < 0) | (places >= extent)
    if wrong.any():
        raise IndexError(f"index {places[wrong][0]} is outside 0..{extent - 1}")
    return places
