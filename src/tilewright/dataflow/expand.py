"""Expansions: the ways to turn an operator's Computation into tasks, as a table.

The family of a Computation depends on what it computes, not on its operator. Every family has
`whole` (one task) and `loop` (a task per index of the outermost parallel loop); products and
convolutions also have the classical schemes. A (N x K) is the operand that a task holds, for a
convolution the filters; B (K x M) is the other one, for a convolution the windows, in im2col
layout:

    mv    a matrix-vector product for each column of B: M tasks
    lmv   a vector-matrix product for each row of A: N tasks
    op    an outer product of each column of A and row of B, and a task that adds them: K + 1 tasks
    tiled, tiled8, tiled16    blocks of the result, 4, 8 or 16 (or the next divisor) per side
    direct, rows  (convolutions) each output channel, or each row of it, directly from the input
    winograd  (3x3, stride 1 or 2) F(2x2, 3x3): transforms, pointwise products, inverse transform

A convolution's result is written pixel by pixel with all its channels, so results computed channel
by channel are reordered; a matrix product's result is written row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.compute.nodes import CC, PS, Computation, Dim, Output
from tilewright.compute.winograd import winograd
from tilewright.dataflow.pieces import (
    ComputationTasks,
    TaskProduct,
    gathered,
    is_windowed,
    ordered,
    product_of,
)
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.ir.node import substitute

Expansion = Callable[[Computation], Sequence[ComputationTasks]]
Scheme = Callable[[TaskProduct], list[ComputationTasks]]


def family(c: Computation) -> str:
    """`conv`, `matmul`, `reduce`, `scan` or `map`."""
    p = product_of(c)
    if p is not None and p.m and (p.n or p.b) and is_windowed(p):
        return "conv"
    if p is not None and p.n and (p.m or p.b):
        return "matmul"
    if any(d.combine == PS for d in c.dims):
        return "scan"
    return "map" if c.is_map else "reduce"


def expand(c: Computation, choice: str | None = None) -> Sequence[ComputationTasks]:
    """Expand `c` by the named expansion, or the first one of its family.

    Raises InputError for a name that the family does not have; the hint lists the valid ones.
    """
    known = expansions(c)
    if choice is None:
        choice = next(iter(known))
    if choice not in known:
        raise InputError(
            f"no expansion {choice!r} of a {family(c)}",
            where=c.name,
            hint=f"known: {', '.join(known)}",
        )
    return known[choice](c)


def expansions(c: Computation) -> Mapping[str, Expansion]:
    """The expansions that apply to `c`, by name, the default first."""
    found = dict(EXPANSIONS[family(c)])
    if "winograd" in found and winograd(c) is None:
        del found["winograd"]
    return found


def _whole(c: Computation) -> Sequence[ComputationTasks]:
    return [ComputationTasks(c, holds=not c.is_map)]


def _loop(c: Computation) -> Sequence[ComputationTasks]:
    outermost = next((d for d in c.dims if d.combine == CC and d.extent > 1), None)
    if outermost is None:
        return _whole(c)
    return [
        ComputationTasks(
            computation=c,
            label=outermost.var.name,
            spread={outermost.var: 1},
            holds=not c.is_map,
        )
    ]


def _matrix(c: Computation) -> TaskProduct:
    p = product_of(c)
    assert p is not None
    return p


def _columns(p: TaskProduct) -> list[ComputationTasks]:
    dims = (*p.b, *p.m, *p.n, *p.k)
    computation = ordered(p.computation, dims)
    return [ComputationTasks(computation, "mv", _singly(*p.b, *p.m))]


def _rows(p: TaskProduct) -> list[ComputationTasks]:
    dims = (*p.b, *p.n, *p.m, *p.k)
    computation = ordered(p.computation, dims)
    return [ComputationTasks(computation, "lmv", _singly(*p.b, *p.n))]


def _singly(*dims: Dim) -> dict[Var, int]:
    """A task per index of these dimensions."""
    return {d.var: 1 for d in dims}


def _outer(p: TaskProduct) -> list[ComputationTasks]:
    """Partial products, one per index of the reduced dimensions, and their sum."""
    c = p.computation
    assert c.reducer is not None
    free = (*p.b, *p.n, *p.m)
    every = (*p.k, *free)
    shape = tuple(d.extent for d in every)
    index = tuple(d.var for d in every)
    fresh = _fresh(every)
    partial = []
    sums = []
    for o, dtype in zip(c.outputs, c.reducer.dtypes, strict=True):
        tensor = Buffer(f"{o.tensor.name}_partial", shape, dtype)
        partial.append(Output(tensor, index, o.value))
        place = tuple(substitute(i, fresh) for i in o.index)
        term = substitute(tensor[index], fresh)
        sums.append(Output(o.tensor, place, term))
    spread_dims = tuple(Dim(d.var, d.extent, CC) for d in every)
    products = Computation(f"{c.name}_products", spread_dims, tuple(partial))
    sum_dims = tuple(Dim(fresh[d.var], d.extent, d.combine) for d in (*free, *p.k))
    total = Computation(
        name=f"{c.name}_sum",
        dims=sum_dims,
        outputs=tuple(sums),
        reducer=c.reducer,
    )
    return [
        ComputationTasks(products, "op", _singly(*p.k)),
        ComputationTasks(total, "sum", joins=True),
    ]


def _fresh(dims: Iterable[Dim]) -> dict[Any, Any]:
    """A new variable for each dimension's."""
    return {d.var: Var(d.var.name, INDEX) for d in dims}


def _tiles(count: int) -> Scheme:
    """Blocks of the result, `count` along each side."""

    def make(p: TaskProduct) -> list[ComputationTasks]:
        dims = (*p.b, *p.n, *p.m, *p.k)
        computation = ordered(p.computation, dims)
        spread = _singly(*p.b)
        for side in (p.n, p.m):
            widest = max(side, key=lambda d: d.extent, default=None)
            if widest is not None:
                spread[widest.var] = _divisor(widest.extent, count)
        return [ComputationTasks(computation, "tile", spread)]

    return make


def _divisor(extent: int, count: int) -> int:
    """The tile extent for `count` tiles, or for the next larger number that divides the extent."""
    fewest = min(count, extent)
    numbers = range(fewest, extent + 1)
    number = next(n for n in numbers if extent % n == 0)
    return extent // number


def _matmul(scheme: Scheme, by_rows: bool) -> Expansion:
    def make(c: Computation) -> Sequence[ComputationTasks]:
        p = _matrix(c)
        pieces = scheme(p)
        if by_rows:
            return pieces
        return _reordered(pieces, p, (*p.b, *p.n, *p.m))

    return make


def _conv(scheme: Scheme, by_pixels: bool) -> Expansion:
    def make(c: Computation) -> Sequence[ComputationTasks]:
        copy, p = gathered(_matrix(c))
        pieces = scheme(p)
        if not by_pixels:
            pieces = _reordered(pieces, p, (*p.b, *p.m, *p.n))
        windows = ComputationTasks(copy, "im2col", stores=True)
        return [windows, *pieces]

    return make


def _reordered(
    pieces: list[ComputationTasks], p: TaskProduct, order: Sequence[Dim]
) -> list[ComputationTasks]:
    """Copy the last piece's result with a task, in the order of these dimensions."""
    *others, last = pieces
    fresh = _fresh(order)
    first = p.computation.outputs[0]
    index = tuple(substitute(i, fresh) for i in first.index)
    moved = []
    copies = []
    for o in last.computation.outputs:
        name = f"{o.tensor.name}_unordered"
        kept = Buffer(name, o.tensor.shape, o.tensor.dtype)
        moved.append(Output(kept, o.index, o.value))
        copies.append(Output(o.tensor, index, kept[index]))
    changed = replace(last.computation, outputs=tuple(moved))
    dims = tuple(Dim(fresh[d.var], d.extent, CC) for d in order)
    name = f"{copies[0].tensor.name}_reorder"
    copy = Computation(name, dims, tuple(copies))
    return [
        *others,
        replace(last, computation=changed),
        ComputationTasks(copy, "reorder"),
    ]


def _direct(c: Computation) -> Sequence[ComputationTasks]:
    p = _matrix(c)
    return [ComputationTasks(p.computation, "direct", _singly(*p.b, *p.n))]


def _direct_rows(c: Computation) -> Sequence[ComputationTasks]:
    p = _matrix(c)
    row = [d for d in p.m if d.extent > 1][:1]
    spread = _singly(*p.b, *p.n, *row)
    return [ComputationTasks(p.computation, "row", spread)]


def _winograd(c: Computation) -> Sequence[ComputationTasks]:
    steps = winograd(c)
    assert steps is not None
    pieces: list[ComputationTasks] = []
    for step in steps:
        p = product_of(step)
        spread = {} if p is None else _singly(*p.b)
        label = step.name.removeprefix(c.name).lstrip(".")
        pieces.append(ComputationTasks(step, label or "result", spread))
    return pieces


_TILED: Final = {"tiled": 4, "tiled8": 8, "tiled16": 16}  # tiles along each side
# Available in every family.
PLAIN: Final[dict[str, Expansion]] = {"whole": _whole, "loop": _loop}

EXPANSIONS: Final[dict[str, dict[str, Expansion]]] = {
    "conv": {
        "lmv": _conv(_rows, by_pixels=False),
        "mv": _conv(_columns, by_pixels=True),
        "op": _conv(_outer, by_pixels=False),
        **{
            name: _conv(_tiles(count), by_pixels=False)
            for name, count in _TILED.items()
        },
        "direct": _direct,
        "rows": _direct_rows,
        "winograd": _winograd,
        **PLAIN,
    },
    "matmul": {
        "lmv": _matmul(_rows, by_rows=True),
        "mv": _matmul(_columns, by_rows=False),
        "op": _matmul(_outer, by_rows=True),
        **{
            name: _matmul(_tiles(count), by_rows=True) for name, count in _TILED.items()
        },
        **PLAIN,
    },
    "reduce": PLAIN,
    "map": PLAIN,
    "scan": PLAIN,
}
