"""Products by the machine's dot products: several neighbours of the reduction in every lane.

A tile's columns are the lanes of the accumulators, its rows are broadcast. An instruction takes
neighbours of the reduction as one word, so the row operand must be contiguous along a dimension of
the reduction, and the column operand is packed so that those words are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.expr.nodes import Cast, Const, Expr, Load, Mul, Select
from tilewright.loops.intrinsic import intrinsic
from tilewright.schedule import Schedule
from tilewright.schedule.sketch.choices import Choices
from tilewright.schedule.sketch.classify import address, reduction_dims, stride
from tilewright.schedule.sketch.context import Context
from tilewright.schedule.sketch.nest import (
    existing,
    extents,
    indexing,
    register_vectors,
    spread,
    start_apart,
    vectorize_inner,
)

PARALLEL_COPY = 131_072  # narrow elements copied in their order that take about 10 us


@dataclass(frozen=True, slots=True)
class Dot:
    """name: of the intrinsic. row, column: its operands. vector: the columns' dimension. depth: the
    dimension of the reduction whose neighbours are `inside` at a time in one of `lanes` lanes."""

    name: str
    row: Load
    column: Load
    vector: Dim
    depth: Dim
    inside: int
    lanes: int


def dot(
    r: Computation, vector: Dim, columns: Sequence[Load], at: Context, choose: Choices
) -> Dot | None:
    """How a reduction is done by dot products; None where it is not.

    columns: the reads along the vector dimension that every row shares.
    parameter: `<reduction>.intrinsic`, which of those of the machine that fit, or None.
    """
    sides = _factors(r)
    if sides is None or len(columns) != 1 or r.reducer is None or r.reducer.name != "add":
        return None
    rows = [side for side in sides if _read(side) is not columns[0]]
    if len(rows) != 1:
        return None
    row = _read(rows[0])
    out = r.reducer.dtypes[0]
    found: dict[str, Dot] = {}
    for name in at.machine.products(row.dtype, columns[0].dtype, out):
        lanes, inside = _shape(name)
        depth = _depth(r, row, inside, rows[0])
        exact = not at.exact or intrinsic(name).tolerance == 0
        if depth is not None and exact and vector.extent >= lanes:
            found[name] = Dot(name, row, columns[0], vector, depth, inside, lanes)
    if not found:
        return None
    names: list[str | None] = [*found, None]
    taken = choose(f"{r.name}.intrinsic", names, names[0])
    return None if taken is None else found[taken]


def _factors(r: Computation) -> tuple[Expr, Expr] | None:
    """Both factors in their own dtypes, where the reduction sums a product of two reads."""
    value = r.outputs[0].value
    if not isinstance(value, Mul):
        return None
    sides = [x.value for x in (value.lhs, value.rhs) if isinstance(x, Cast)]
    if len(sides) != 2 or not all(isinstance(_inside(x), Load) for x in sides):
        return None
    return sides[0], sides[1]


def _inside(side: Expr) -> Expr:
    return side.then if isinstance(side, Select) and isinstance(side.otherwise, Const) else side


def _read(side: Expr) -> Load:
    found = _inside(side)
    assert isinstance(found, Load)
    return found


def _shape(name: str) -> tuple[int, int]:
    """Lanes of an intrinsic, and numbers that are summed in each."""
    dims = intrinsic(name).description.dims
    (lanes,) = (d.extent for d in dims if d.combine == CC)
    (inside,) = (d.extent for d in dims if d.combine != CC)
    return lanes, inside


def _depth(r: Computation, row: Load, inside: int, side: Expr) -> Dim | None:
    """The dimension along which the row operand is contiguous; padded, if it is padded with 0."""
    form = address(row)
    depth = next((d for d in reduction_dims(r) if stride(form, d.var) == 1), None)
    if depth is None or depth.extent % inside == 0:
        return depth
    zero = not isinstance(side, Select) or side.otherwise == Const(0, side.dtype)
    return depth if zero else None


def stage_operands(s: Schedule, r: Computation, d: Dot, at: Context) -> str:
    """Whole words: the depth padded, and copies of the operands that hold their padding.

    Returns the name of the buffer that holds the column operand.
    """
    s.pad(f"{r.name}.{d.depth.var.name}", d.inside)
    whole = d.depth.extent % d.inside == 0
    guarded = [_read(x) for x in _factors(r) or () if isinstance(x, Select)]
    names: dict[Load, str] = {}
    for load in (d.row, d.column):
        names[load] = load.buffer.name
        if whole and load not in guarded:
            continue
        names[load] = new = s.cache_read(load.buffer.name, None, "global", pad=True)
        loops = existing(s, [f"{new}.r{n}" for n in range(len(load.index))])
        if loops:
            vectorize_inner(s, loops[-1], at.machine.lanes(load.dtype))
            if load.buffer.size >= PARALLEL_COPY and load.buffer not in at.constants:
                spread(s, loops[:-1])
    return names[d.column]


def dots_in_registers(
    s: Schedule,
    d: Dot,
    target: str,
    rows: Sequence[str],
    column: str,
    reduction: Sequence[str],
    batch: Sequence[str],
) -> list[str]:
    """The accumulators' nests: initialised apart, words of the reduction outside of the tile.

    rows, column: the loops of the tile. reduction: those over the reduction in order. batch:
    what may stand between. Returns the loops from the outermost step on, as they are nested.
    """
    starts = start_apart(s, target, (*rows, column), batch)
    depth = next(n for n in reduction if n.endswith(f".{d.depth.var.name}"))
    steps, inner = [n for n in existing(s, reduction) if n != depth], depth
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
    return order


def multiply(s: Schedule, d: Dot, column: str, loops: Sequence[str], at: Context) -> None:
    """Pack the column operand in the order in which `loops` read it, and use the intrinsic.

    column: the buffer's name. loops: all around the product, the last two its lanes and neighbours.
    """
    names = indexing(s, column, existing(s, loops))
    new = s.pack(column, *names)
    copies = [f"{new}.r{n}" for n in range(len(names))]
    interleave = at.machine.interleave(d.column.dtype)
    if interleave is not None and stride(address(d.column), d.vector.var) == 1:
        s.tensorize(copies[-2], interleave)
    if d.column.buffer not in at.constants and d.column.buffer.size >= PARALLEL_COPY:
        spread(s, copies[:2])
    s.tensorize(loops[-2], d.name)
