"""The roles of a reduction's dimensions in its register tiles: rows, columns, batch.

The columns are vectors. They run along a dimension that is contiguous in the result, or along one
of constant weights, which are packed; then a tile leaves its registers transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Load
from tilewright.schedule.space.choices import Choices
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
from tilewright.targets.cpu.sketches.register_tile_model import (
    RowData,
    Tile,
    Window,
    best,
    choose_tile,
    gain,
)
from tilewright.targets.cpu.sketches.register_transpose import axis_of

ORDERED = 4  # loops over a reduction, at most, whose orders may be tried: 24 of them


@dataclass(frozen=True, slots=True)
class Roles:
    """batch: dimensions that index every input. rows: dimensions over rows of the tile. vector: the
    columns. columns: the reads along the vector dimension that all rows share; across: the
    others."""

    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    vector: Dim
    columns: tuple[Load, ...]
    across: tuple[Load, ...]
    streams: bool


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The roles of the dimensions (see `Roles`), the reduction in loop order, and the tile.

    window: the innermost of the reduction, if neighboring rows of the tile share what they read
    along it. steps: of the innermost loop of the reduction, that are written out by default. close:
    dimensions of the batch that go by inside a tile (see `interleaved`).
    """

    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    vector: Dim
    reduction: tuple[Dim, ...]
    columns: tuple[Load, ...]
    tile: Tile
    window: Dim | None = None
    steps: int = 1
    close: tuple[Dim, ...] = ()


def plan(
    pattern: KernelPattern,
    at: Context,
    choose: Choices,
    fixed: Tile | None = None,
    dots: bool = False,
) -> TilePlan:
    """Roles and tile of a reduction that `classify` calls tiled.

    fixed: the tile that it must have. dots: whether it is done by dot products.

    parameters: `<reduction>.tile`, rows of the register tile by dimension and its vectors;
    `<reduction>.lanes`, of these vectors, all or fewer; `<reduction>.order`, the loops over the
    reduction.
    """
    r, v = pattern.reduction, pattern.vector
    assert r is not None and v is not None
    roles = roles_of(r, v)
    lanes = _lanes(r, at)
    if fixed is None:
        if not dots:
            lanes = _narrowed(lanes, v.extent, r.name, choose)
        shape = [d.extent for d in roles.rows], v.extent, lanes, at.costs
        data = _data(r, roles, at, _across(pattern, v))
        kept = _kept(pattern, roles, at)
        data = replace(data, dots=dots, kept=kept, whole=at.reshaped, packed=at.packed)
        tile = choose_tile(choose, f"{r.name}.tile", *shape, data)
    else:
        tile = fixed
    reduction = reduction_dims(r)
    sliding = _sliding(r, roles, -1)
    window = _window(sliding, at)
    if not at.exact:
        reduction = _ordered(r, reduction, roles.across[0], window, choose)
    slides = tile.rows[-1:] > (1,) and reduction[-1:] == [sliding]
    return TilePlan(
        roles.batch,
        roles.rows,
        v,
        tuple(reduction),
        roles.columns,
        tile,
        window if slides else None,
        _steps(r, reduction, slides, at.costs),
    )


def _narrowed(lanes: int, extent: int, name: str, choose: Choices) -> int:
    """Lanes of a vector: fewer of them may fit the columns better."""
    half = lanes // 2
    possible = [n for n in (lanes, half, half // 2) if n > 2]
    if len(possible) < 2 or extent <= possible[-1]:
        return lanes
    return choose(f"{name}.lanes", possible, lanes)


def vector(pattern: KernelPattern, at: Context, choose: Choices) -> Dim:
    """The dimension of the columns.

    parameter: `<reduction>.vector`, where there is a choice: the pattern's own, another one that is
    contiguous in the result, or one along which results leave their tiles transposed.
    """
    r, own = pattern.reduction, pattern.vector
    assert r is not None and own is not None
    others = [d for d in free_dims(r) if d is not own and _suits(pattern, d, at)]
    if not others:
        return own
    gains = {d: _gain(r, d, at, _across(pattern, d)) for d in (own, *others)}
    top = max(others, key=lambda d: gains[d])
    if gains[top] > at.costs.better * gains[own]:
        good = top
    else:
        good = own
    by_name = {d.var.name: d for d in gains}
    return by_name[choose(f"{r.name}.vector", tuple(by_name), good.var.name)]


def default_tile(
    pattern: KernelPattern, at: Context, dots: Dim | None = None
) -> tuple[Roles, Tile, float]:
    """Roles and tile of a reduction untuned, and the part of the multiply-adds that are useful.

    dots: the columns' dimension of one that is done by dot products, of which the part is then.
    """
    r, own = pattern.reduction, pattern.vector
    assert r is not None and own is not None
    v = vector(pattern, at, Choices()) if dots is None else dots
    roles = roles_of(r, v)
    pitch = _across(pattern, v)
    data = replace(_data(r, roles, at, pitch), dots=dots is not None)
    rows = [d.extent for d in roles.rows]
    tile = best(rows, v.extent, _lanes(r, at), at.costs, data)
    return roles, tile, _gain(r, v, at, pitch, dots is not None)


def result_of(pattern: KernelPattern) -> tuple[Load, dict[Dim, Dim]]:
    """The destination of the pattern's result, and its dimensions by those of the reduction."""
    r = pattern.reduction
    assert r is not None
    o = (pattern.epilogue or r).outputs[0]
    dims = (
        {d: d for d in free_dims(r)} if pattern.epilogue is None else dict(pattern.dims)
    )
    return Load(o.tensor, o.index), dims


def _suits(pattern: KernelPattern, d: Dim, at: Context) -> bool:
    """Whether columns may run along `d` instead: the data read along it is packed, and the result
    is contiguous there or transposed by an intrinsic.

    Constants are packed at compile time. Other operands are packed on every run, if the result must
    be transposed and the pattern's own columns do not fill a vector: the 3 taps in the derivative
    of a convolution by its weights. A result of constants may be contiguous along another
    dimension than the pattern's own, as DepthToSpace stores channels.
    """
    r = pattern.reduction
    assert r is not None
    out, dims = result_of(pattern)
    loads = _data_loads(r)
    along = [a for a in loads if _depends(a, d)]
    if not along or len(along) == len(loads) or not _near(pattern, dims[d], at):
        return False
    constant = all(a.buffer in at.constants for a in along)
    if stride(address(out), dims[d].var) == 1:
        return constant
    if at.machine.transpose(out.dtype) is None or axis_of(out, dims[d]) is None:
        return False
    turned = all(axis_of(a, d) is not None for a in along)
    return constant or (turned and _is_starved(pattern, at))


def _near(pattern: KernelPattern, d: Dim, at: Context) -> bool:
    """Whether the map after the reduction reads contiguous or shared data along its dimension `d`,
    constants aside if its result is contiguous: they are few, such as biases, and read once for
    each tile."""
    out, _ = result_of(pattern)
    r, e = pattern.reduction, pattern.epilogue
    assert r is not None
    given = {r.outputs[0].tensor}
    if stride(address(out), d.var) == 1:
        given |= set(at.constants)
    after = [a for a in e.accesses if a.buffer not in given] if e is not None else []
    return all(stride(address(a), d.var) in (0, 1) for a in after)


def _across(pattern: KernelPattern, d: Dim) -> int:
    """Elements of the result between columns along `d`, if it leaves tiles transposed, else 0."""
    out, dims = result_of(pattern)
    step = stride(address(out), dims[d].var)
    return 0 if step is None or abs(step) == 1 else abs(step)


def _kept(pattern: KernelPattern, roles: Roles, at: Context) -> float:
    """Rows of the result of which the first cache holds a line each."""
    out, dims = result_of(pattern)
    if not roles.rows or _across(pattern, roles.vector):
        return math.inf
    pitch = stride(address(out), dims[roles.rows[-1]].var) or 0
    return at.costs.resident_rows(abs(pitch) * out.dtype.itemsize)


def _is_starved(pattern: KernelPattern, at: Context) -> bool:
    """Whether the contiguous dimension of a contraction's result is shorter than a vector."""
    r, own = pattern.reduction, pattern.vector
    assert r is not None and own is not None
    return is_contraction(r) and own.extent < _lanes(r, at)


def _gain(r: Computation, v: Dim, at: Context, pitch: int, dots: bool = False) -> float:
    roles = roles_of(r, v)
    lanes = _lanes(r, at)
    data = replace(_data(r, roles, at, pitch), dots=dots)
    part = at.costs.products(min(lanes, v.extent), data.itemsize)
    part /= at.costs.products(lanes, data.itemsize)
    if any(
        a.buffer not in at.constants and _bytes(a) > at.machine.l2
        for a in roles.columns
    ):
        part *= at.costs.far_speed
    part *= gain([d.extent for d in roles.rows], v.extent, lanes, at.costs, data)
    if not pitch:
        return part
    moved = _packing(r, v, at) * at.costs.products(lanes, data.itemsize)
    return part / (1 + part * moved)


def _packing(r: Computation, v: Dim, at: Context) -> float:
    """Cycles per multiply-add of packing what is read along `v` across the order of memory, on
    every run: each element once per step of the dimensions that it depends on, so that windows that
    overlap grow."""
    taken = 0.0
    for a in _data_loads(r):
        across = _depends(a, v) and stride(address(a), v.var) != 1
        if across and a.buffer not in at.constants:
            uses_of = (d.extent for d in r.dims if not _depends(a, d))
            taken += at.costs.crossed / math.prod(uses_of)
    return taken


def _bytes(a: Load) -> int:
    return a.buffer.size * a.dtype.itemsize


def _lanes(r: Computation, at: Context) -> int:
    if r.reducer:
        return at.machine.lanes(r.reducer.dtypes[0])
    return 1


def roles_of(r: Computation, v: Dim) -> Roles:
    """The roles with columns along `v`."""
    free = [d for d in free_dims(r) if d is not v]
    loads = _data_loads(r)
    along = [a for a in loads if any(uses(i, v.var) for i in a.index)]
    rows = [d for d in free if any(not _depends(a, d) for a in along)]
    columns = tuple(a for a in along if any(not _depends(a, d) for d in rows))
    if not rows and len(loads) == 1:
        rows = free[-1:]
    elif not rows:
        rows = [d for d in free if any(not _depends(a, d) for a in loads)]
        columns = () if rows else tuple(along)
    across = [a for a in loads if a not in columns] or loads
    batch = tuple(d for d in free if d not in rows)
    streams = len(columns) < len(along)
    return Roles(
        batch=batch,
        rows=tuple(rows),
        vector=v,
        columns=columns,
        across=tuple(across),
        streams=streams,
    )


def _sliding(r: Computation, roles: Roles, place: int) -> Dim | None:
    """The dimension of the reduction that moves a streamed read as the tile's row at this place
    does, counted from the last one, -1."""
    if not roles.streams or len(roles.rows) < -place:
        return None
    row = roles.rows[place]
    for index in roles.across[0].index:
        found = [d for d in reduction_dims(r) if uses(index, d.var)]
        if uses(index, row.var) and len(found) == 1:
            return found[0]
    return None


def _window(sliding: Dim | None, at: Context) -> Dim | None:
    """A window that is short enough to be written out whole."""
    if sliding is None or sliding.extent > at.costs.taps:
        return None
    return sliding


def _steps(
    r: Computation, reduction: Sequence[Dim], slides: bool, costs: CostModel
) -> int:
    """How many steps of the innermost loop are written out, at most: of a long window, whose steps
    share what they read, and of a sum of few, whose loop would take as long as the additions. A
    short window is written out whole; of products, so many as the processor gains by."""
    if slides:
        return costs.taps if reduction[-1].extent > costs.taps else 1
    if is_contraction(r):
        return costs.written
    few = math.prod(d.extent for d in reduction) <= costs.few_steps
    return costs.taps if few else 1


def _data(r: Computation, roles: Roles, at: Context, across: int = 0) -> RowData:
    """across: elements between columns of a result that leaves tiles transposed."""
    first = roles.across[0]
    sliding = _sliding(r, roles, -1)
    moved = [*roles.rows[-1:], *([] if sliding is None else [sliding])]
    pitch = math.gcd(*(stride(address(first), d.var) or 0 for d in moved))
    resident = at.costs.resident_rows(pitch * first.dtype.itemsize)
    size = (
        first.dtype.itemsize if not roles.columns else roles.columns[0].dtype.itemsize
    )
    if roles.columns:
        depth = math.prod(d.extent for d in reduction_dims(r))
    else:
        depth = 0
    found = RowData(
        streams=roles.streams,
        resident=resident,
        stored=at.costs.stored / depth if depth else 0.0,
        crossed=across > 0,
        line=started(across * size, roles.vector.extent, at) / depth if depth else 0.0,
        evicted=_evicted(r, roles, at.costs),
        column=depth * size,
        itemsize=size,
        panel=at.costs.full * at.machine.l2,
        apart=_apart(r, roles, at),
    )
    window = _window(sliding, at)
    if window is None:
        return found
    above = _sliding(r, roles, -2)
    return replace(
        found,
        window=_shared(first, roles.rows[-1], window),
        above=None if above is None else _shared(first, roles.rows[-2], above),
        filled=_lanes(r, at) * first.dtype.itemsize / at.costs.second_bytes,
    )


def _apart(r: Computation, roles: Roles, at: Context) -> float:
    """Steps whose columns the first cache holds, of columns from beyond the second cache that few
    rows read in the order of memory; infinite for others."""
    rows = math.prod(d.extent for d in roles.rows)
    if not roles.columns or not is_contraction(r) or rows >= at.costs.panel_uses:
        return math.inf
    a = roles.columns[0]
    steps = (stride(address(a), d.var) or 0 for d in reduction_dims(r))
    pitch = math.gcd(*steps) * a.dtype.itemsize
    packed = a.buffer in at.constants or stride(address(a), roles.vector.var) != 1
    if packed or _bytes(a) <= at.machine.l2:
        return math.inf
    return at.costs.resident_rows(pitch)


def _shared(a: Load, row: Dim, window: Dim) -> Window:
    """What the rows along `row` share of a read, whose window is along `window`."""
    steps = (abs(stride(address(a), d.var) or 0) for d in (row, window))
    return Window(window.extent, *steps)


def started(pitch: int, columns: int, at: Context) -> float:
    """Cycles for each line where a column of a transposed tile starts, so many bytes apart."""
    if pitch < at.machine.line:
        return 0.0
    lanes = min(columns, at.machine.lanes(float32))
    return (
        at.costs.far_store
        if at.costs.resident_rows(pitch) < lanes
        else at.costs.new_line
    )


def _evicted(r: Computation, roles: Roles, costs: CostModel) -> float:
    """Cycles per step of the reduction for lines of a row that other steps displace."""
    first = roles.across[0]
    form, size = address(first), first.dtype.itemsize
    steps = {d: abs(stride(form, d.var) or 0) * size for d in reduction_dims(r)}
    apart = {d: s for d, s in steps.items() if s >= costs.machine.line}
    if roles.streams or all(
        d.extent <= costs.resident_rows(s) for d, s in apart.items()
    ):
        return 0.0
    near = (d.extent for d in steps if d not in apart)
    return costs.far_load / math.prod(near)


def _ordered(
    r: Computation,
    dims: list[Dim],
    across: Load,
    window: Dim | None,
    choose: Choices,
) -> list[Dim]:
    """The loops over the reduction, longest strides of the row operand outermost by default.

    window: the innermost one by default, if there is one.
    """
    good = sorted(
        dims, key=lambda d: (d is window, -abs(stride(address(across), d.var) or 0))
    )
    orders = [tuple(d.var.name for d in p) for p in permutations(dims[:ORDERED])]
    if len(dims) > ORDERED or len(orders) < 2:
        return good
    taken = choose(f"{r.name}.order", orders, tuple(d.var.name for d in good))
    return sorted(dims, key=lambda d: taken.index(d.var.name))


def _data_loads(r: Computation) -> list[Load]:
    return [
        a
        for a in r.accesses
        if a.dtype.is_float or len(r.accesses) < 3 or a.buffer.size > 1
    ]


def _depends(a: Load, d: Dim) -> bool:
    return any(uses(i, d.var) for i in a.index)
