"""The meaning of Computations: reductions step by step, all points at once in NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute.nodes import CC, PS, Computation, Dim
from tilewright.compute.reducer import Reducer
from tilewright.expr.interp import evaluate as evaluate_expr
from tilewright.expr.nodes import Buffer, Cast, Expr, Var

# Points evaluated at once: bounds the memory of temporaries.
_CHUNK = 1 << 18

Arrays = dict[Buffer, Any]
Memory = Mapping[Buffer, Any]
Grid = Mapping[Var, Any]


def evaluate(
    computations: Computation | Sequence[Computation],
    inputs: Mapping[Buffer, Any],
) -> dict[Buffer, Any]:
    """Every tensor that the Computations write, run in order, as NumPy arrays.

    inputs: an array of the buffer's shape and dtype for each tensor read before it is written.
    A reduction combines in the order of its dimensions, rounding each step, as the plain nest does.
    Elements that no Computation writes are 0. Raises InputError for a missing or ill-shaped array,
    ExecutionError (TW-INDEX) for an index out of range.
    """
    if isinstance(computations, Computation):
        computations = [computations]
    many = tuple(computations)
    arrays: Arrays = {}
    for b, a in inputs.items():
        array = np.asarray(a)
        if array.shape != b.shape or array.dtype != b.dtype.numpy:
            raise InputError(f"{b!r} was given an array {array.dtype}{array.shape}")
        arrays[b] = array
    written: Arrays = {}
    for c in many:
        for o in c.outputs:
            tensor = o.tensor
            if tensor not in written:
                written[tensor] = np.zeros(tensor.shape, tensor.dtype.numpy)
        _one(c, arrays | written, written)
    return written


def run(
    computations: Sequence[Computation],
    memory: Mapping[Buffer, Any],
) -> None:
    """Run the Computations in order on one writable array per tensor that they read or write.

    As `evaluate`, but elements that none of them writes stay unchanged.
    """
    for c in computations:
        _one(c, memory, memory)


def _one(
    c: Computation,
    arrays: Memory,
    written: Memory,
) -> None:
    def load(buffer: Buffer, index: tuple[Any, ...]) -> Any:
        if buffer not in arrays:
            raise InputError(f"no array for {buffer!r}", where=c.name)
        return arrays[buffer][_checked(c, buffer, index)]

    free = c.parallel_dims
    scans = [d for d in c.dims if d.combine == PS]
    rest = [d for d in c.dims if d.combine not in (CC, PS)]
    for grid in grids(free):
        if c.reducer is None:
            values = tuple(evaluate_expr(o.value, grid, load) for o in c.outputs)
            _store(c, grid, values, written)
        else:
            _reduce(c, c.reducer, grid, (scans, rest), load, written)


def _at(
    grid: Grid,
    dims: Sequence[Dim],
    point: Sequence[int],
) -> Grid:
    """The points of the grid, with the other dimensions at one point."""
    found = dict(grid)
    for d, n in zip(dims, point, strict=True):
        found[d.var] = n
    return found


def _reduce(
    c: Computation,
    reducer: Reducer,
    grid: Grid,
    bound: tuple[Sequence[Dim], Sequence[Dim]],
    load: Any,
    written: Memory,
) -> None:
    """bound: the dimensions that are scanned, and those that are reduced."""
    scans, rest = bound

    def consumed(
        acc: tuple[Any, ...],
        at: Grid,
    ) -> tuple[Any, ...]:
        for point in product(*(range(d.extent) for d in rest)):
            here = _at(at, rest, point)
            values = tuple(evaluate_expr(o.value, here, load) for o in c.outputs)
            acc = _combined(reducer, acc, values)
        return acc

    start = tuple(evaluate_expr(i, {}) for i in reducer.identity)
    acc = start
    for point in product(*(range(d.extent) for d in scans)):
        if len(scans) > 1:
            acc = start
        # One scan continues from the point before; several begin again at each point.
        firsts = point if len(scans) == 1 else (0,) * len(scans)
        ends = zip(firsts, point, strict=True)
        window = [range(first, last + 1) for first, last in ends]
        for p in product(*window):
            acc = consumed(acc, _at(grid, scans, p))
        _store(c, _at(grid, scans, point), acc, written)


def _combined(
    reducer: Reducer,
    acc: tuple[Any, ...],
    values: tuple[Any, ...],
) -> tuple[Any, ...]:
    variables = (*reducer.lhs, *reducer.rhs)
    operands = (*acc, *values)
    env: dict[Var, Any] = dict(zip(variables, operands, strict=True))
    return tuple(evaluate_expr(r, env) for r in reducer.result)


def _store(
    c: Computation,
    grid: Grid,
    values: tuple[Any, ...],
    written: Memory,
) -> None:
    shape = np.broadcast_shapes(*(np.shape(v) for v in grid.values()))
    for n, (o, value) in enumerate(zip(c.outputs, values, strict=True)):
        places = (evaluate_expr(i, grid) for i in o.index)
        index = tuple(np.broadcast_to(place, shape) for place in places)
        if c.reducer is None:
            dtype = o.value.dtype
        else:
            dtype = c.reducer.dtypes[n]
        if dtype is not o.tensor.dtype:
            v = Var("value", dtype)
            cast: Expr = Cast(v, o.tensor.dtype)
            value = evaluate_expr(cast, {v: value})
        written[o.tensor][_checked(c, o.tensor, index)] = value


def _checked(
    c: Computation,
    buffer: Buffer,
    index: tuple[Any, ...],
) -> tuple[Any, ...]:
    for axis, (i, extent) in enumerate(zip(index, buffer.shape, strict=True)):
        outside = (i < 0) | (i >= extent)
        bad = np.asarray(outside)
        if bad.any():
            first = np.asarray(i)[bad].flat[0]
            raise ExecutionError(
                f"index {first} of dimension {axis} of {buffer.name} is outside 0..{extent - 1}",
                code="TW-INDEX",
                where=c.name,
            )
    return index


def grids(dims: Sequence[Dim]) -> Iterator[dict[Var, Any]]:
    """The points of the parallel dimensions as broadcasting axes, in pieces of bounded size."""
    if any(d.extent == 0 for d in dims):
        return
    sizes: list[int] = []
    room = _CHUNK
    for d in reversed(dims):
        sizes.append(max(1, min(d.extent, room)))
        room //= sizes[-1]
    sizes.reverse()
    steps = [range(0, d.extent, s) for d, s in zip(dims, sizes, strict=True)]
    for origin in product(*steps):
        grid: dict[Var, Any] = {}
        for axis, (d, size, first) in enumerate(zip(dims, sizes, origin, strict=True)):
            last = min(first + size, d.extent)
            values = np.arange(first, last, dtype=np.int64)
            shape = [1] * len(dims)
            shape[axis] = -1
            grid[d.var] = values.reshape(shape)
        yield grid
