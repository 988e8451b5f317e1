"""Expansions: the ways to turn an operator's Computation into tasks, as a table.

A Computation belongs to a family by what it does, whatever operator it came from. Every family has
`whole` (one task) and `loop` (a task for each index of the outermost parallel loop); products and
convolutions also the classical schemes. A (N x K) is the operand that is held, for a convolution
the filters; B (K x M) the other one, for a convolution the windows, laid out by im2col:

    mv    a matrix-vector product for each column of B: M tasks
    lmv   a vector-matrix product for each row of A: N tasks
    op    an outer product of each column of A and row of B, and a task that adds them: K + 1 tasks
    tiled, tiled8, tiled16    blocks of the result, 4, 8 or 16 along each side, or a few more
    direct, rows  (convolutions) each output channel, or each row of it, straight from the input
    winograd  (3x3, stride 1) F(2x2, 3x3): transforms, products point by point, and back

A convolution's result leaves pixel by pixel with all its channels, so that what was computed
channel by channel is reordered; a matrix product's leaves row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tilewright.base.errors import InputError
from tilewright.compute.nodes import CC, PS, Computation, Dim, Output
from tilewright.compute.winograd import winograd
from tilewright.dataflow.pieces import (
    Piece,
    Product,
    gathered,
    is_windowed,
    ordered,
    product_of,
)
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.ir.node import substitute

Expansion = Callable[[Computation], Sequence[Piece]]
Scheme = Callable[[Product], list[Piece]]


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


def expand(c: Computation, choice: str | None = None) -> Sequence[Piece]:
    """The pieces of `c` by the named expansion, or the first that its family has.

    Raises InputError for a name that the family does not have; the hint lists those that it has.
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


def _whole(c: Computation) -> Sequence[Piece]:
    return [Piece(c, holds=not c.is_map)]


def _loop(c: Computation) -> Sequence[Piece]:
    outermost = next((d for d in c.dims if d.combine == CC and d.extent > 1), None)
    if outermost is None:
        return _whole(c)
    return [Piece(c, outermost.var.name, {outermost.var: 1}, holds=not c.is_map)]


def _matrix(c: Computation) -> Product:
    p = product_of(c)
    assert p is not None
    return p


def _columns(p: Product) -> list[Piece]:
    dims = (*p.b, *p.m, *p.n, *p.k)
    spread = {d.var: 1 for d in (*p.b, *p.m)}
    return [Piece(ordered(p.computation, dims), "mv", spread)]


def _rows(p: Product) -> list[Piece]:
    dims = (*p.b, *p.n, *p.m, *p.k)
    spread = {d.var: 1 for d in (*p.b, *p.n)}
    return [Piece(ordered(p.computation, dims), "lmv", spread)]


def _outer(p: Product) -> list[Piece]:
    """Partial products, one for each index of the reduced dimensions, and their sum."""
    c = p.computation
    free = (*p.b, *p.n, *p.m)
    assert c.reducer is not None
    shape, index = (
        tuple(x) for x in zip(*((d.extent, d.var) for d in (*p.k, *free)), strict=True)
    )
    partial = [
        Buffer(f"{o.tensor.name}_partial", shape, dtype)
        for o, dtype in zip(c.outputs, c.reducer.dtypes, strict=True)
    ]
    products = Computation(
        f"{c.name}_products",
        tuple(Dim(d.var, d.extent, CC) for d in (*p.k, *free)),
        tuple(
            Output(b, index, o.value) for b, o in zip(partial, c.outputs, strict=True)
        ),
    )
    fresh: dict[object, object] = {d.var: Var(d.var.name, INDEX) for d in (*p.k, *free)}
    dims = tuple(Dim(_var(fresh, d), d.extent, d.combine) for d in (*free, *p.k))
    sums = tuple(
        Output(
            o.tensor,
            tuple(substitute(i, fresh) for i in o.index),
            substitute(b[index], fresh),
        )
        for b, o in zip(partial, c.outputs, strict=True)
    )
    total = Computation(f"{c.name}_sum", dims, sums, c.reducer)
    return [
        Piece(products, "op", {d.var: 1 for d in p.k}),
        Piece(total, "sum", joins=True),
    ]


def _var(fresh: Mapping[object, object], d: Dim) -> Var:
    found = fresh[d.var]
    assert isinstance(found, Var)
    return found


def _tiles(count: int) -> Scheme:
    """Blocks of the result, `count` along each side."""

    def make(p: Product) -> list[Piece]:
        dims = (*p.b, *p.n, *p.m, *p.k)
        spread = {d.var: 1 for d in p.b}
        for side in (p.n, p.m):
            widest = max(side, key=lambda d: d.extent, default=None)
            if widest is not None:
                spread[widest.var] = _divisor(widest.extent, count)
        return [Piece(ordered(p.computation, dims), "tile", spread)]

    return make


def _divisor(extent: int, count: int) -> int:
    """The extent of `count` tiles, or of the next number of them that leaves none smaller."""
    number = next(n for n in range(min(count, extent), extent + 1) if extent % n == 0)
    return extent // number


def _matmul(scheme: Scheme, by_rows: bool) -> Expansion:
    def make(c: Computation) -> Sequence[Piece]:
        p = _matrix(c)
        pieces = scheme(p)
        return pieces if by_rows else _reordered(pieces, p, (*p.b, *p.n, *p.m))

    return make


def _conv(scheme: Scheme, by_pixels: bool) -> Expansion:
    def make(c: Computation) -> Sequence[Piece]:
        copy, p = gathered(_matrix(c))
        pieces = scheme(p)
        return [
            Piece(copy, "im2col", stores=True),
            *(pieces if by_pixels else _reordered(pieces, p, (*p.b, *p.m, *p.n))),
        ]

    return make


def _reordered(pieces: list[Piece], p: Product, order: Sequence[Dim]) -> list[Piece]:
    """The last piece's result, copied by a task in the order of these dimensions."""
    last = pieces[-1]
    outputs = last.computation.outputs
    kept = [
        Buffer(f"{o.tensor.name}_unordered", o.tensor.shape, o.tensor.dtype)
        for o in outputs
    ]
    moved = tuple(
        Output(b, o.index, o.value) for b, o in zip(kept, outputs, strict=True)
    )
    changed = replace(last.computation, outputs=moved)
    fresh: dict[object, object] = {d.var: Var(d.var.name, INDEX) for d in order}
    dims = tuple(Dim(_var(fresh, d), d.extent, CC) for d in order)
    index = tuple(substitute(i, fresh) for i in p.computation.outputs[0].index)
    copies = tuple(
        Output(o.tensor, index, b[index]) for b, o in zip(kept, outputs, strict=True)
    )
    copy = Computation(f"{outputs[0].tensor.name}_reorder", dims, copies)
    return [*pieces[:-1], replace(last, computation=changed), Piece(copy, "reorder")]


def _direct(c: Computation) -> Sequence[Piece]:
    p = _matrix(c)
    return [Piece(p.computation, "direct", {d.var: 1 for d in (*p.b, *p.n)})]


def _direct_rows(c: Computation) -> Sequence[Piece]:
    p = _matrix(c)
    row = [d for d in p.m if d.extent > 1][:1]
    return [Piece(p.computation, "row", {d.var: 1 for d in (*p.b, *p.n, *row)})]


def _winograd(c: Computation) -> Sequence[Piece]:
    steps = winograd(c)
    assert steps is not None
    pieces: list[Piece] = []
    for step in steps:
        p = product_of(step)
        spread = {d.var: 1 for d in p.b} if p is not None else {}
        label = step.name.removeprefix(c.name).lstrip(".") or "result"
        pieces.append(Piece(step, label, spread))
    return pieces


_TILED: Final = {"tiled": 4, "tiled8": 8, "tiled16": 16}  # tiles along each side
# Every family has these.
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
