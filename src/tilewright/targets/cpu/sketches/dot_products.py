"""Products by the machine's dot products: several neighbors of the reduction in every lane.

A tile's columns are the lanes of the accumulators, its rows are broadcast. An instruction takes
neighbors of the reduction as one word, so the row operand must be contiguous along a dimension of
the reduction, and the column operand is packed so that those words are neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.reducer import is_sum
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
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_transpose import (
    axis_of,
    move_last,
    transpose,
    transposed_nest,
)


@dataclass(frozen=True, slots=True)
class Dot:
    """name: of the intrinsic. row, column: its operands. vector: the columns' dimension. depth: the
    dimension of the reduction that it takes `inside` at a time, `word` neighbors in one of `lanes`
    lanes. rows: of the results that it makes at once, where it is a product of tiles. useful: the
    part of its work that is needed, the rest being padding or done again at an edge."""

    name: str
    row: Load
    column: Load
    vector: Dim
    depth: Dim
    inside: int
    word: int
    lanes: int
    rows: int | None
    useful: float


def dot(pattern: KernelPattern, at: Context, choose: Choices) -> Dot | None:
    """The plan to do a tiled reduction with dot products; None if it does not use them.

    parameter: `<reduction>.intrinsic`, one of the machine's that fit, or None.
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
            rows, lanes, inside, word = _shape(name)
            depth = _depth(r, row, column, inside, side)
            exact = not at.exact or intrinsic(name).tolerance == 0
            if vector is None or depth is None or not exact or vector.extent < lanes:
                continue
            extent = _rows(r, vector, column)
            if rows is None or extent >= rows:
                steps = (
                    (extent, rows or 1),
                    (vector.extent, lanes),
                    (depth.extent, inside),
                )
                useful = math.prod(n / (-(-n // step) * step) for n, step in steps)
                d = Dot(
                    name, row, column, vector, depth, inside, word, lanes, rows, useful
                )
                found.setdefault(name, d)
    if not found:
        return None
    names: list[str | None] = [*found, None]
    dots = [name for name, d in found.items() if d.rows is None]
    good = [
        name
        for name, d in found.items()
        if d.rows is not None and d.useful >= at.costs.useful
    ]
    taken = choose(f"{r.name}.intrinsic", names, (*good, *dots, None)[0])
    return None if taken is None else found[taken]


def _rows(r: Computation, vector: Dim, column: Load) -> int:
    """The extent of the innermost dimension that the column operand does not depend on."""
    free = [d for d in free_dims(r) if d is not vector]
    rows = [d.extent for d in free if not any(uses(i, d.var) for i in column.index)]
    return rows[-1] if rows else 1


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


def _shape(name: str) -> tuple[int | None, int, int, int]:
    """Rows of a product of tiles, lanes, the numbers that each sums, and neighbors among them."""
    found = intrinsic(name)
    *rows, lanes = (d.extent for d in found.description.dims if d.combine == CC)
    depth = [d for d in found.description.dims if d.combine != CC]
    summed = [d.extent for d in depth if d.var.name not in found.free]
    return rows[0] if rows else None, lanes, math.prod(summed), summed[-1]


def _depth(
    r: Computation, row: Load, column: Load, inside: int, side: Expr
) -> Dim | None:
    """The dimension whose neighbors form words: of those that waste least, a contiguous one.

    It is an axis of the column operand (overlapping windows would grow in packing). If it does not
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
        if not fits or axis_of(column, d) is None:
            continue
        if found is None or (useful, near) > found[:2]:
            found = useful, near, d
    return None if found is None else found[2]


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


def accumulate(
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
    they are nested, and the one around what the intrinsic does.
    """
    starts = start_apart(s, target, (*rows, column), batch)
    depth = next(n for n in reduction if n.endswith(f".{d.depth.var.name}"))
    steps = [n for n in existing(s, reduction) if n != depth]
    inner = depth
    if d.rows is not None:
        register_vectors(s, starts[column], lanes)
        return _tile_product(s, d, steps, depth, rows, column)
    if extents(s.kernel)[depth] > d.inside:
        step, inner = s.split(depth, d.inside)
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


def _tile_product(
    s: Schedule, d: Dot, steps: list[str], depth: str, rows: Sequence[str], column: str
) -> tuple[list[str], str]:
    """All of the depth in one instruction's loop: blocks of it, words, and neighbors in a word."""
    whole, inner = [], depth
    if extents(s.kernel)[depth] > d.inside:
        block, inner = s.split(depth, d.inside)
        whole.append(block)
    word, near = s.split(inner, d.word)
    order = [*steps, *rows, *whole, word, column, near]
    s.reorder(*order)
    return order, rows[0]


def multiply(
    s: Schedule, d: Dot, column: str, loops: Sequence[str], around: str, at: Context
) -> None:
    """Pack the column operand in the order in which `loops` read it, and use the intrinsic.

    column: the buffer's name. loops: all around the product, the last two its lanes and neighbors.
    around: the loop that the intrinsic replaces.
    """
    names = indexing(s, column, existing(s, [*at.around, *loops]))
    new = s.pack(column, *names)
    copies = [f"{new}.r{n}" for n in range(len(names))]
    interleave = at.machine.interleave(d.column.dtype)
    if interleave is not None and stride(address(d.column), d.vector.var) == 1:
        lanes, _ = (dim.extent for dim in intrinsic(interleave).description.dims)
        row = copies[-2]
        s.tensorize(s.split(row, lanes)[1] if d.lanes > lanes else row, interleave)
    if d.column.buffer not in at.constants and _worth_sharing(d.column, at):
        spread(s, copies[:2])
    s.tensorize(around, d.name)
