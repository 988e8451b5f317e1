"""Products by the machine's dot products: several neighbors of the reduction in every lane.

A tile's columns are the lanes of the accumulators, its rows are broadcast. An instruction takes
neighbors of the reduction as one word, so the row operand must be contiguous along a dimension of
the reduction, and the column operand is packed so that those words are neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.reducer import is_sum
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Cast, Const, Expr, Load, Mul, Select, const
from tilewright.loops.intrinsic import intrinsic
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    existing,
    extents,
    indexing,
    register_vectors,
    spread,
    start_apart,
    vectorize_inner,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    reduction_dims,
    stride,
    uses,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_tile_model import Tile
from tilewright.targets.cpu.sketches.register_transpose import (
    axis_of,
    move_last,
    transpose,
    transposed_nest,
)
from tilewright.targets.cpu.sketches.roles import TilePlan, roles_of
from tilewright.targets.cpu.sketches.tile_products import (
    AmxProduct,
    best_shape,
    dot_cycles,
    row_groups,
    shapes,
)

# Loops of the reduction besides its depth that a product of tiles has inside.
SLIDES = 2


@dataclass(frozen=True, slots=True)
class Dot:
    """name: of the intrinsic. row, column: its operands. vector: the columns' dimension. depth: the
    dimension of the reduction that it takes `inside` at a time, `word` neighbors in one of `lanes`
    lanes. tile: the results that it makes at once, where it is a product of tiles. cycles: of the
    whole, by the cost model."""

    name: str
    row: Load
    column: Load
    vector: Dim
    depth: Dim
    inside: int
    word: int
    lanes: int
    tile: Tile | None
    cycles: float


def dot(
    pattern: KernelPattern, at: Context, choose: Choices, tiles: bool = True
) -> Dot | None:
    """The plan to do a tiled reduction with dot products; None if it does not use them.

    tiles: whether products of tiles may be used, too; if not, the depth may go through blocks of an
    axis of the column operand.

    parameters: `<reduction>.intrinsic`, one of the machine's that fit, or None; `<reduction>.tile`
    of a product of tiles.
    """
    r = pattern.reduction
    sides = None if r is None else _factors(r)
    if r is None:
        return None
    if r.reducer is None:
        return None
    if not is_sum(r.reducer):
        return None
    if sides is None:
        return None
    found: dict[str, Dot] = {}
    for side, other in (sides, sides[::-1]):
        row = _read(side)
        column = _read(other)
        vector = _vector(pattern, r, row, column)
        for name in at.machine.products(row.dtype, column.dtype, r.reducer.dtypes[0]):
            exact = not at.exact or intrinsic(name).tolerance == 0
            if vector is None or not exact or (_shape(name)[0] and not tiles):
                continue
            d = _planned(name, r, side, column, vector, at, blocks=not tiles)
            if d is not None:
                found.setdefault(name, d)
    if not found:
        return None
    filled = [d for d in found.values() if _is_filled(d, at.costs)]
    good = min(filled, key=lambda d: d.cycles).name if filled else None
    taken = choose(f"{r.name}.intrinsic", [*found, None], good)
    if taken is None:
        return None
    d = found[taken]
    if d.tile is None:
        return d
    possible = shapes(_product(r, d, at), d.lanes)
    rows = choose(f"{r.name}.tile", [t.value for t in possible], d.tile.value)
    return replace(d, tile=next(t for t in possible if t.value == rows))


def _is_filled(d: Dot, costs: CostModel) -> bool:
    """Whether enough of the depth of a product of tiles is not padding."""
    whole = ceil_div(d.depth.extent, d.inside) * d.inside
    return d.tile is None or d.depth.extent >= costs.useful * whole


def _planned(
    name: str,
    r: Computation,
    side: Expr,
    column: Load,
    vector: Dim,
    at: Context,
    blocks: bool,
) -> Dot | None:
    """The plan with one intrinsic; None where operands or results do not fit it."""
    row = _read(side)
    tiles, lanes, inside, word = _shape(name)
    depth = _depth(r, row, column, inside, side, blocks)
    if depth is None or vector.extent < lanes:
        return None
    d = Dot(name, row, column, vector, depth, inside, word, lanes, None, 0.0)
    of = _product(r, d, at)
    if not tiles:
        return replace(d, cycles=dot_cycles(of, word, at.costs))
    cycles, tile = best_shape(of, lanes, at.costs)
    return replace(d, tile=tile, cycles=cycles)


def _product(r: Computation, d: Dot, at: Context) -> AmxProduct:
    roles = roles_of(r, d.vector)
    sums = reduction_dims(r)
    # Each of the other steps of the reduction pads the depth.
    around = math.prod(x.extent for x in sums if x is not d.depth)
    depth = around * ceil_div(d.depth.extent, d.inside) * d.inside
    return AmxProduct(
        tuple(x.extent for x in roles.rows),
        d.vector.extent,
        at.machine.lanes(intrinsic(d.name).tensors[-1].dtype),
        math.prod(x.extent for x in roles.batch),
        depth,
        d.inside,
    )


def _vector(
    pattern: KernelPattern, r: Computation, row: Load, column: Load
) -> Dim | None:
    """The columns: a dimension of the column operand only; the pattern's, or the longest."""
    mine, shared = (
        {d for d in free_dims(r) if any(uses(i, d.var) for i in x.index)}
        for x in (column, row)
    )
    own = [d for d in free_dims(r) if d in mine - shared]
    if pattern.vector in own:
        return pattern.vector
    return max(own, key=lambda d: d.extent, default=None)


def _factors(r: Computation) -> tuple[Expr, Expr] | None:
    """Both factors in their own dtypes, where the reduction sums a product of two reads."""
    value = r.outputs[0].value
    if not isinstance(value, Mul):
        return None
    sides = [x.value for x in (value.lhs, value.rhs) if isinstance(x, Cast)]
    if len(sides) != 2:
        return None
    if not all(isinstance(_inside(x), Load) for x in sides):
        return None
    return sides[0], sides[1]


def _inside(side: Expr) -> Expr:
    return (
        side.then
        if isinstance(side, Select) and isinstance(side.otherwise, Const)
        else side
    )


def _read(side: Expr) -> Load:
    found = _inside(side)
    assert isinstance(found, Load)
    return found


def _shape(name: str) -> tuple[bool, int, int, int]:
    """Whether it is a product of tiles, its lanes or columns, the numbers that each sums at a time,
    and neighbors among them."""
    found = intrinsic(name)
    *rows, lanes = (d.extent for d in found.description.dims if d.combine == CC)
    depth = [d for d in found.description.dims if d.combine != CC]
    summed = [d.extent for d in depth if d.var.name not in found.free]
    return bool(rows), lanes, math.prod(summed), summed[-1]


def _depth(
    r: Computation, row: Load, column: Load, inside: int, side: Expr, blocks: bool
) -> Dim | None:
    """The dimension whose neighbors form words: of those that waste least, a contiguous one.

    It is an axis of the column operand, or whole `blocks` of one (overlapping windows would grow in
    packing). If it does not
    fill its words, it is padded: the column operand with 0, which suffices for integers. For
    floats, the row operand must be 0 there too; this is possible only for an axis that the
    dimension alone indexes, and only if its outside is 0 as well.
    """
    form = address(row)
    zero = not isinstance(side, Select) or side.otherwise is const(0, side.dtype)
    found: tuple[float, bool, Dim] | None = None
    for d in reduction_dims(r):
        useful = d.extent / (-(-d.extent // inside) * inside)
        near = stride(form, d.var) == 1
        alone = axis_of(row, d) is not None
        whole = useful == 1 or row.dtype.is_int
        fits = alone or near if whole else alone and zero
        of_blocks = blocks and useful == 1 and _in_blocks(column, d)
        if not fits or (axis_of(column, d) is None and not of_blocks):
            continue
        if found is None or (useful, near) > found[:2]:
            found = useful, near, d
    return None if found is None else found[2]


def _in_blocks(load: Load, d: Dim) -> bool:
    """Whether a dimension goes through blocks of one axis, side by side."""
    forms = [affine(i) for i in load.index if uses(i, d.var)]
    if len(forms) != 1 or stride(forms[0], d.var) != 1:
        return False
    return all(a is d.var or c % d.extent == 0 for a, c in forms[0].terms)


def stage_operands(
    s: Schedule, r: Computation, d: Dot, at: Context, choose: Choices
) -> str:
    """Whole words: the depth padded, and copies of the operands that hold their padding.

    Returns the name of the buffer that holds the column operand.
    """
    s.pad(f"{r.name}.{d.depth.var.name}", d.inside)
    whole = d.depth.extent % d.inside == 0
    guarded = [_read(x) for x in _factors(r) or () if isinstance(x, Select)]
    names: dict[Load, str] = {}
    for load in (d.row, d.column):
        names[load] = load.buffer.name
        if load in guarded or not whole:
            names[load] = s.cache_read(names[load], None, "global", pad=True)
            _copy(s, names[load], load, at, choose)
    if stride(address(d.row), d.depth.var) != 1:
        axis = axis_of(d.row, d.depth)
        assert axis is not None
        new = s.cache_read(names[d.row], None, "global")
        move_last(s, new, axis, len(d.row.index))
        _copy(s, new, d.row, at, choose, axis)
    return names[d.column]


def _copy(
    s: Schedule,
    new: str,
    load: Load,
    at: Context,
    choose: Choices,
    last: int | None = None,
) -> None:
    """The nest of a copy, with loops in the order of its writes: one axis last."""
    axes = sorted(range(len(load.index)), key=lambda n: n == last)
    nest = existing(s, [f"{new}.r{n}" for n in axes])
    if not nest:
        return
    if len(nest) > 1:
        s.reorder(*nest)
    crossed = transposed_nest(s, nest, at.machine)
    if crossed is None:
        vectorize_inner(s, nest[-1], at.machine.lanes(load.dtype))
        outer = nest[:-1]
    else:
        outer = transpose(s, crossed, at.costs, choose, new)
    if load.buffer not in at.constants and _worth_sharing(load, at):
        spread(s, outer)


def _worth_sharing(copied: Load, at: Context) -> bool:
    return at.costs.worth_sharing(copied.buffer.size * at.costs.passed_ns)


def reads_words(d: Dot) -> bool:
    """Whether words of the row operand are neighbors in memory, without a copy."""
    return stride(address(d.row), d.depth.var) == 1


def by_dots(
    s: Schedule,
    d: Dot,
    p: TilePlan,
    target: str,
    column: str,
    outer: Sequence[str],
    loops: Mapping[Dim, str],
    at: Context,
) -> None:
    """The sums of a tile by an intrinsic that multiplies and adds several values at once.

    target: the accumulators. column: the staged operand along the vector. outer: the loops around
    the tile.
    """
    rows = existing(s, [loops[x] for x in p.rows])
    inside = [loops[x] for x in p.reduction]
    between = [loops[x] for x in (*p.batch, *p.close) if x in loops]
    lanes = p.tile.lanes
    order, around = _accumulate(
        s, d, target, rows, loops[p.vector], inside, between, lanes
    )
    _multiply(s, d, column, [*outer, *order], around, at)


def _accumulate(
    s: Schedule,
    d: Dot,
    target: str,
    rows: Sequence[str],
    column: str,
    reduction: Sequence[str],
    batch: Sequence[str],
    lanes: int,
) -> tuple[list[str], str]:
    """The accumulators' nests: initialized apart, steps of the reduction outside the tile.

    rows, column: the loops of the tile. reduction: those over the reduction in order. batch:
    what may be between. lanes: of a vector. Returns the loops from the outermost step on, as
    the columns are packed, and the one around what the intrinsic does.
    """
    depth = next(n for n in reduction if n.endswith(f".{d.depth.var.name}"))
    steps = [n for n in existing(s, reduction) if n != depth]
    if d.tile is not None:
        return _tile_product(s, d, target, steps, depth, rows, column, batch, lanes)
    starts = start_apart(s, target, (*rows, column), batch)
    inner = depth
    if extents(s.kernel)[depth] > d.inside:
        step, inner = _words(s, depth, d, rows, column)
        steps.append(step)
    vectors, lane = [], column
    if extents(s.kernel)[column] > d.lanes:
        block, lane = s.split(column, d.lanes)
        vectors.append(block)
    order = [*steps, *rows, *vectors, lane, inner]
    s.reorder(*order)
    for name in (*rows, *vectors, *(starts[n] for n in rows)):
        s.unroll(name)
    register_vectors(s, starts[column], d.lanes)
    return order, lane


def _words(
    s: Schedule, depth: str, d: Dot, rows: Sequence[str], column: str
) -> tuple[str, str]:
    """The depth in words: the loop over them and the one inside. What is left over is multiplied
    element by element, in vectors."""
    if extents(s.kernel)[depth] % d.inside:
        s.reorder(depth, *rows, column)
    step, inner, *rest = s.split(depth, d.inside, "cut")
    if rest:
        for row in rows:
            s.unroll(f"{row}.t")
        register_vectors(s, f"{column}.t", d.lanes)
    return step, inner


def _tile_product(
    s: Schedule,
    d: Dot,
    target: str,
    steps: list[str],
    depth: str,
    rows: Sequence[str],
    column: str,
    batch: Sequence[str],
    lanes: int,
) -> tuple[list[str], str]:
    """All of the reduction in one intrinsic, from 0 on: the last two of its other loops, and
    blocks, words and neighbors of its depth. More loops are outside, with the results in memory.
    """
    far = steps[: len(steps) - SLIDES]
    steps = steps[len(far) :]
    if far:
        starts = start_apart(s, target, (*rows, column), batch)
        register_vectors(s, starts[column], lanes)
    whole, inner = [], depth
    if extents(s.kernel)[depth] > d.inside:
        block, inner = s.split(depth, d.inside)
        whole.append(block)
    word, near = s.split(inner, d.word)
    # The innermost rows first: they are the rows of a tile, those around them several tiles.
    within = [*rows[::-1]]
    if rows:
        groups, each = row_groups(extents(s.kernel)[rows[-1]])
        if groups > 1:
            several, row = s.split(rows[-1], each)
            within[:1] = [row, several]
    made, summed = [*within, column], [*steps, *whole, word, near]
    for nest in [[*far, *made, *summed]] if far else [made, summed]:
        if len(nest) > 1:
            s.reorder(*nest)
    packed = [*far, *within, *steps, *whole, word, column, near]
    return packed, made[0]


def _multiply(
    s: Schedule, d: Dot, column: str, loops: Sequence[str], around: str, at: Context
) -> None:
    """Pack the column operand in the order in which `loops` read it, and use the intrinsic.

    column: the buffer's name. loops: all around the product, the last two its lanes and neighbors.
    around: the loop that the intrinsic replaces.
    """
    # Both operands may be parts of one tensor; the lanes are those of the columns alone.
    names = indexing(s, column, existing(s, [*at.around, *loops]), loops[-2:-1])
    new = s.pack(column, *names)
    copies = [f"{new}.r{n}" for n in range(len(names))]
    _in_registers(s, d, names, copies, at)
    if d.column.buffer not in at.constants and _worth_sharing(d.column, at):
        spread(s, copies[:2])
    s.tensorize(around, d.name)


def _in_registers(
    s: Schedule, d: Dot, names: Sequence[str], copies: Sequence[str], at: Context
) -> None:
    """The nest that packs a column operand by the machine's intrinsics: the elements of rows as
    neighbors, or words of columns that are contiguous, transposed.

    names: the loops in whose order it is packed. copies: those of the nest.
    """
    form = address(d.column)
    interleave = at.machine.interleave(d.column.dtype)
    words = at.machine.transpose_words(d.column.dtype)
    lane = copies[-2]
    if interleave is not None and stride(form, d.vector.var) == 1:
        lanes, _ = (dim.extent for dim in intrinsic(interleave).description.dims)
        s.tensorize(s.split(lane, lanes)[1] if d.lanes > lanes else lane, interleave)
    steps = [n for n in names[:-2] if f".{d.depth.var.name}." in n]
    whole = d.column.buffer in at.constants
    if words is None or whole or not steps or stride(form, d.depth.var) != 1:
        return
    word, side = copies[names.index(steps[-1])], at.costs.transpose_side
    if extents(s.kernel)[word] > side:
        _, word = s.split(word, side, "overlap")
    between = copies[names.index(steps[-1]) + 1 : -2]
    if between:
        s.reorder(*between, word)
    s.tensorize(word, words)
