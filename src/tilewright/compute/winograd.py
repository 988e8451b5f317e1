"""Winograd's minimal filtering: a 3x3 convolution of stride 1 or 2 with fewer multiplications.

A tile of m x m results needs (m + 2) x (m + 2) inputs d and the 3x3 filter g (Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, CVPR 2016, F(m x m, 3 x 3)):

    Y = A^T [ (G g G^T) * (B^T d B) ] A

where * multiplies point by point; over channels, the products of each point add up: (m + 2)^2
matrix products, 16 instead of 36 multiplications per tile for m = 2, 36 instead of 144 for m = 4.
The matrices come from `toom_cook.py`, exact; both sides are equal on rationals.

With stride 2, a tile of 2 x 2 results takes 5 x 5 inputs and 25 multiplications instead of 36.

A convolution over more axes is a sum of such, one for each place of its window on the axes in
front of the last two: there the data keeps its places, and the products add up over the window
as they do over channels.

Rounding: with float32's unit u = 2^-24, C channels (times the window's places on the axes in
front), gamma(n) = n u / (1 - n u), and R roundings on
the way of a term (`Filtering.roundings`: of constants, multiplications and additions in all three
transforms; 10 for m = 2, 8 with stride 2, 28 for m = 4), each result is away from the exact one by
at most

    gamma(C + R) |A^T| [ sum over c of (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|

which is at most C gamma(C + R) growth^2 max|d| max|g|, where growth^2 (`Filtering.growth`) is 64
for m = 2, 25 with stride 2 and 564 for m = 4, and the direct sum has 9 C gamma(9 C). Measured
errors on normal data are far smaller. The inputs of a tile must be finite: an infinity spreads
over the tile's results, and elements beyond a quarter (m = 4: a 28th) of the largest number may
overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.numbers import ceil_div
from tilewright.compute.build import reduce_
from tilewright.compute.guards import guarded, read_or_zero
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.compute.toom_cook import STRIDES, Filtering, filtering
from tilewright.compute.transforms import environment, identity_dims
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Extent,
    Load,
    Mul,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute

WINDOW = 3  # elements of the filter per axis

Square = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Roles:
    """The product data[batch.., f + t.., s h + i, s v + j, channels..]
    * weight[columns.., channels.., t.., i, j], with the stride s.

    space: h and v; window: i and j; frames: f and taps: t of the axes in front of those two; each
    axis of the data has one index, in any order of the roles but h before v, and f before both.
    """

    data: Load
    weight: Load
    space: tuple[Dim, ...]
    window: tuple[Dim, ...]
    channels: tuple[Dim, ...]
    batch: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    frames: tuple[Dim, ...]
    taps: tuple[Dim, ...]
    f: Filtering

    @property
    def tiles(self) -> tuple[Extent, ...]:
        """Extents of the batch, of the windows' reach before the data, and of both axes in
        tiles."""
        pairs = zip(self.frames, self.taps, strict=True)
        reached = (f.extent + t.extent - 1 for f, t in pairs)
        space = (_tiles(d, self.f.tile) for d in self.space)
        return (*(d.size for d in self.batch), *reached, *space)

    @property
    def places(self) -> tuple[Extent, ...]:
        """Extents of the batch and the axes in front as results have them, and in tiles."""
        kept = (d.size for d in (*self.batch, *self.frames))
        return (*kept, *self.tiles[len(self.tiles) - len(self.space) :])


def _tiles(d: Dim, tile: int) -> Extent:
    """How many tiles cover a dimension."""
    if d.static:
        return ceil_div(d.extent, tile)
    last = affine(as_expr(d.size, INDEX)) + Affine((), tile - 1)
    return to_expr(last) // const(tile)


def winograd(
    c: Computation,
    tile: int = 2,
) -> tuple[Computation, ...] | None:
    """A 3x3 convolution of stride 1, or 2 with tiles of 2, by F(tile x tile, 3 x 3), or None for
    anything else.

    tile: 2 or 4. The Computations in order are: the filters' transform (`<name>.filter`; of
    constant weights, a constant), the inputs' (`<name>.input`), the products of all points over the
    channels (`<name>.product`), and the results' (of the old name, dimensions and output). It
    applies to any layout and padding, where there are several tiles per axis, channels in and
    channels out.

    requires, else None, with the roles that `_Roles` names:

        a sum in float32 of products of one read of data and one of weights into one output
        the read of weights is plain; that of data is, too, or is guarded by exactly what keeps it
            inside, and 0 elsewhere: tiles read 0 there as well
        h, v, i, j occur in the data once, as s h + i + a and s v + j + b, a and b constants and s
            the stride; f and t as f + t + a
        i and j are 3 long, and in the weights too
        so do f and t of any other axis, which comes in front; t of any extent
        channels are reduced and are in both; columns, in the weights only, and batch, in the data
            only, are kept; nothing else has several points, and nothing is empty
        the batch and both axes may have extents that only a call knows
        no result uses an element of the data that no window reads, such as those of the last
            tile of an axis may be, where the data continues: it would not cancel if it is large or
            no number. Such elements are read all the same, so that all data must have been written
    """
    r = _any_roles(c, tile)
    if r is None:
        return None
    points = r.f.size**2
    name = c.outputs[0].tensor.name
    depth = [d.extent for d in (*r.taps, *r.channels)]
    width = [d.extent for d in r.columns]
    filters = Buffer(f"{name}.filter", (points, *depth, *width), float32)
    channels = [d.extent for d in r.channels]
    data = Buffer(f"{name}.input", (points, *r.tiles, *channels), float32)
    products = Buffer(f"{name}.product", (points, *r.places, *width), float32)
    front = len(r.batch)
    n = len(r.places)
    k = n + len(width)
    taps = len(r.taps)

    def product(u: Var, *e: Var) -> Expr:
        place, column, channel = e[:n], e[n:k], e[k:]
        frames = place[front : front + taps]
        reached = (f + t for f, t in zip(frames, channel[:taps], strict=True))
        tile = (*place[:front], *reached, *place[front + taps :])
        element = data[(u, *tile, *channel[taps:])]
        weight = filters[(u, *channel, *column)]
        return element * weight

    return (
        _filter(f"{c.name}.filter", filters, r),
        _input(f"{c.name}.input", data, r),
        reduce_(f"{c.name}.product", products, depth, "add", product),
        _results(c, products, r),
    )


def _filter(
    name: str,
    out: Buffer,
    r: _Roles,
) -> Computation:
    dims, env = _fresh((*r.taps, *r.channels, *r.columns))
    ranges = environment(dims)
    h, w = r.window

    def element(i: int, j: int) -> Expr:
        at = env | {h.var: const(i), w.var: const(j)}
        return Load(r.weight.buffer, _at(r.weight, at, ranges))

    square = _square(WINDOW, element)
    points = r.f.filters.square(square, float)
    return _points(name, out, dims, points)


def _input(
    name: str,
    out: Buffer,
    r: _Roles,
) -> Computation:
    old = (*r.batch, *r.frames, *r.space, *r.channels)
    dims, env = _fresh(old, out.extents[1:])
    env |= {t.var: const(0) for t in r.taps}
    ranges = environment(dims)
    tile = r.f.tile

    def element(i: int, j: int) -> Expr:
        at = dict(env)
        for h, w, offset in zip(r.space, r.window, (i, j), strict=True):
            at[h.var] = env[h.var] * tile
            at[w.var] = const(offset)
        index = _at(r.data, at, ranges)
        return guarded(Load(r.data.buffer, index), ranges)

    square = _square(r.f.size, element)
    points = r.f.inputs.square(square, float)
    return _points(name, out, dims, points)


def _points(
    name: str,
    out: Buffer,
    dims: Sequence[Dim],
    values: Square,
) -> Computation:
    """`out[n * i + j, dims] = values[i][j]` for all n x n points."""
    rest = [d.var for d in dims]
    flat = enumerate(value for row in values for value in row)
    outputs = []
    for u, value in flat:
        outputs.append(Output(out, (const(u), *rest), value))
    return Computation(name, tuple(dims), tuple(outputs))


def _results(
    c: Computation,
    products: Buffer,
    r: _Roles,
) -> Computation:
    """The convolution's own dimensions; an element takes the row of A^T that its place in the tile
    says."""
    tile = r.f.tile
    h, w = r.space
    batch = [d.var for d in (*r.batch, *r.frames)]
    tiles = [h.var // tile, w.var // tile]
    columns = [d.var for d in r.columns]

    def chosen(space: Dim, terms: Sequence[Expr]) -> Expr:
        *rows, last = r.f.results.apply(terms, float)
        found: Expr = last
        for n, row in reversed(list(enumerate(rows))):
            here = (space.var % tile).eq(n)
            found = Select(here, row, found)
        return found

    def element(i: int, j: int) -> Expr:
        point = const(r.f.size * i + j)
        return products[(point, *batch, *tiles, *columns)]

    square = _square(r.f.size, element)
    lines = [chosen(h, line) for line in zip(*square, strict=True)]
    out = c.outputs[0]
    dims = c.parallel_dims
    result = Output(
        out.tensor,
        out.index,
        chosen(w, lines),
    )
    return Computation(c.name, dims, (result,))


def _square(
    size: int,
    element: Callable[[int, int], Expr],
) -> list[list[Expr]]:
    return [[element(i, j) for j in range(size)] for i in range(size)]


def _fresh(
    dims: Sequence[Dim],
    extents: Sequence[Extent] | None = None,
) -> tuple[tuple[Dim, ...], dict[Var, Expr]]:
    """New dimensions for old ones, and the new variable of each old one."""
    sizes = [d.extent for d in dims] if extents is None else extents
    new = []
    env: dict[Var, Expr] = {}
    for d, size in zip(dims, sizes, strict=True):
        var = Var(d.var.name, INDEX)
        new.append(Dim(var, size))
        env[d.var] = var
    return tuple(new), env


def _at(
    load: Load,
    env: dict[Var, Expr],
    ranges: dict[Var, tuple[int, int]],
) -> tuple[Expr, ...]:
    moved = (substitute(i, dict(env)) for i in load.index)
    return tuple(simplify(i, ranges) for i in moved)


def _any_roles(c: Computation, tile: int) -> _Roles | None:
    """With the stride that it has, if there is a filtering for it."""
    for stride in STRIDES[tile]:
        found = _roles(c, filtering(tile, WINDOW, stride))
        if found is not None:
            return found
    return None


def _roles(c: Computation, f: Filtering) -> _Roles | None:
    """What each part of a convolution is; None if it is none that the law is about."""
    value = c.outputs[0].value
    if c.reducer is None or not c.reducer.does_as(reducer("add", float32)):
        return None
    if identity_dims(c) is None or c.outputs[0].tensor.dtype is not float32:
        return None
    if not isinstance(value, Mul):
        return None
    if any(d.combine == PS or (d.static and not d.extent) for d in c.dims):
        return None
    ranges = environment(c.dims)
    for data, weight in ((value.lhs, value.rhs), (value.rhs, value.lhs)):
        load = read_or_zero(data, ranges)
        if load is None or not isinstance(weight, Load):
            continue
        if read_or_zero(weight, ranges) is not weight:
            continue
        found = _of(c, f, load, weight)
        if found is not None:
            return found
    return None


def _takes_no_more(
    f: Filtering,
    results: Extent,
    first: int,
    extent: Extent,
) -> bool:
    """Whether results along an axis depend only on data that the windows read, and zeros.

    first: the start of the first window. extent: of the data.
    """
    past = affine(as_expr(results, INDEX)).scaled(f.stride)
    end = past + Affine((), first + WINDOW - f.stride)
    beyond = affine(as_expr(extent, INDEX)) - end
    if beyond.is_const and beyond.const <= 0:
        return True
    if not isinstance(results, int):
        return False
    last = (results - 1) % f.tile + 1  # results of the last tile
    needed = f.stride * (last - 1) + WINDOW
    return f.reach(last) <= needed


Pairs = list[tuple[Dim, Dim]]


def _space_and_window(
    c: Computation,
    f: Filtering,
    data: Load,
) -> tuple[Pairs, Pairs, list[Dim]] | None:
    """The pairs (h, i) and (v, j) that index the last such axes of the data, those that index the
    axes in front, and all dimensions in it.

    None where an axis has an index of another form.
    """
    by_var: dict[Expr, Dim] = {d.var: d for d in c.dims}
    pairs: Pairs = []
    strides: list[int] = []
    enough: list[
        bool
    ] = []  # whether tiles take no more than windows, along each pair's axis
    used: list[Dim] = []
    for index, extent in zip(data.index, data.buffer.extents, strict=True):
        form = affine(index)
        if any(atom not in by_var for atom, _ in form.terms):
            return None
        found = [(by_var[atom], step) for atom, step in form.terms]
        found.sort(key=lambda term: term[0].combine == PW)
        *before, last = [step for _, step in found] or [1]
        if last != 1:
            return None
        if [d.combine for d, _ in found] == [CC, PW]:
            (h, _), (i, _) = found
            enough.append(_takes_no_more(f, h.size, form.const, extent))
            pairs.append((h, i))
            strides += before
        elif before:
            return None
        used += [d for d, _ in found]
    if len(pairs) < 2 or len(set(used)) != len(used) or not all(enough[-2:]):
        return None
    if strides != [1] * (len(pairs) - 2) + [f.stride] * 2:
        return None
    return pairs[-2:], pairs[:-2], used


def _shifted(index: Expr, dims: Mapping[Expr, Dim]) -> Dim | None:
    """The dimension that an index is, or is a constant away from."""
    terms = affine(index).terms
    if len(terms) != 1:
        return None
    ((atom, step),) = terms
    return dims.get(atom) if step == 1 else None


def _of(
    c: Computation,
    f: Filtering,
    data: Load,
    weight: Load,
) -> _Roles | None:
    found = _space_and_window(c, f, data)
    if found is None:
        return None
    pairs, before, in_data = found
    space, window = zip(*pairs, strict=True)
    frames = tuple(d for d, _ in before)
    taps = tuple(t for _, t in before)
    by_var: dict[Expr, Dim] = {d.var: d for d in c.dims}
    in_weight = [_shifted(i, by_var) for i in weight.index if not isinstance(i, Const)]
    shared = [d for d in in_data if d in in_weight]
    channels = tuple(d for d in c.dims if d in shared and d not in (*window, *taps))
    columns = tuple(d for d in c.dims if d in in_weight and d not in in_data)
    alone = [d for d in in_data if d not in shared and d not in (*space, *frames)]
    batch = tuple(d for d in c.dims if d in alone)
    known = {*space, *window, *channels, *columns, *batch, *frames, *taps}
    fits = (
        None not in in_weight
        and all(w in shared and w.extent == WINDOW for w in window)
        and all(t in shared for t in taps)
        and all(d.combine == PW for d in channels)
        and all(d.combine == CC for d in (*columns, *batch))
        and all(d.static for d in c.dims if d not in (*space, *batch))
        and all(d in known or d.extent == 1 for d in c.dims)
        and all(not d.static or d.extent > f.tile for d in space)
        and any(d.extent > 1 for d in channels)
        and any(d.extent > 1 for d in columns)
    )
    if not fits:
        return None
    return _Roles(
        data,
        weight,
        space,
        window,
        channels,
        batch,
        columns,
        frames,
        taps,
        f,
    )
