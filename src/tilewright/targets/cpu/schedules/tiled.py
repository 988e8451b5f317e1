"""Reductions with contiguous results: matrix products, convolutions, pooling, column sums.

The results of a tile (rows x vectors) stay in registers while the reduction runs; what follows the
reduction point by point runs on the registers. Weights are packed in the order they are read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Load, Select
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import Machine
from tilewright.targets.cpu.schedules.classify import (
    Kind,
    address,
    free_dims,
    reduction_dims,
    stride,
    uses,
)
from tilewright.targets.cpu.schedules.nest import (
    existing,
    register_vectors,
    spread,
    vectorize_inner,
)
from tilewright.targets.cpu.schedules.tiles import Tile, Traffic, choose, columns_outermost

PARALLEL_WORK = 1_000_000  # multiply-adds below which a kernel stays on one thread (about 10 us)
PARALLEL_COPY = 32_768  # elements copied across their order that take about as long


@dataclass(frozen=True, slots=True)
class Plan:
    """The roles of the dimensions, and the tile.

    batch: index every input. rows: give another row of the tile. vector: the columns. reduction:
    in loop order. columns: the reads along the vector dimension that every row shares.
    """

    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    vector: Dim
    reduction: tuple[Dim, ...]
    columns: tuple[Load, ...]
    tile: Tile


def plan(kind: Kind, machine: Machine, exact: bool = False) -> Plan:
    """Roles and tile of a reduction that `classify` calls tiled."""
    r, v = kind.reduction, kind.vector
    assert r is not None and v is not None
    free = [d for d in free_dims(r) if d is not v]
    loads = _data_loads(r)
    along = [a for a in loads if any(uses(i, v.var) for i in a.index)]
    rows = [d for d in free if any(not _depends(a, d) for a in along)]
    columns = tuple(a for a in along if any(not _depends(a, d) for d in rows))
    if not rows and len(loads) == 1:
        rows = free[-1:]
    elif not rows:
        columns = tuple(along)
    streams = len(columns) < len(along)
    lanes = machine.lanes(r.reducer.dtypes[0]) if r.reducer else 1
    extents = [d.extent for d in rows]
    tile = choose(extents, v.extent, lanes, machine.registers, streams)
    batch = tuple(d for d in free if d not in rows)
    across = [a for a in loads if a not in columns] or loads
    reduction = reduction_dims(r)
    if not exact:
        reduction.sort(key=lambda d: -abs(stride(address(across[0]), d.var) or 0))
    return Plan(batch, tuple(rows), v, tuple(reduction), columns, tile)


def _data_loads(r: Computation) -> list[Load]:
    return [a for a in r.accesses if a.dtype.is_float or len(r.accesses) < 3 or a.buffer.size > 1]


def _depends(a: Load, d: Dim) -> bool:
    return any(uses(i, d.var) for i in a.index)


def tiled(
    kernel: Kernel,
    kind: Kind,
    machine: Machine,
    constants: Collection[Buffer],
    exact: bool = False,
) -> Schedule:
    """The schedule; see the module's docstring. `exact` keeps the order of the reduction."""
    s = Schedule(kernel)
    r = kind.reduction
    assert r is not None
    p = plan(kind, machine, exact)
    s = _stage_padding(s, r, p, machine)
    target, names = results(s, kind)
    outer, inner = _tile(s, p, names, machine, r)
    loops = {d: f"{r.name}.{d.var.name}" for d in (*p.rows, p.vector, *p.reduction)}
    if outer:
        s.compute_at(target, outer[-1], scope="register")
    else:
        s.set_scope(target, "register")
    reduce_in_registers(s, p, target, loops)
    for name in inner[:-1]:
        s.unroll(name)
    register_vectors(s, inner[-1], p.tile.lanes)
    pack_columns(s, p, outer, loops, constants)
    work = math.prod(max(d.extent, 1) for d in r.dims)
    spread(s, outer, work, PARALLEL_WORK)
    return s


def _stage_padding(s: Schedule, r: Computation, p: Plan, machine: Machine) -> Schedule:
    """Copy guarded inputs with their padding, where they are read often enough to pay for it."""
    if not p.columns:
        return s
    guarded = {
        n.then.buffer
        for o in r.outputs
        for n in postorder(o.value)
        if isinstance(n, Select) and isinstance(n.then, Load) and n.then.buffer.size > 1
    }
    for buffer in sorted(guarded, key=lambda b: b.name):
        trial = s.fork()
        try:
            new = trial.cache_read(buffer.name, None, "global", pad=True)
        except ScheduleError:
            continue  # a guard on something else than the border: the reads keep it
        s = trial
        loops = existing(s, [f"{new}.r{d}" for d in range(len(buffer.shape))])
        if loops:
            vectorize_inner(s, loops[-1], machine.lanes(buffer.dtype))
            spread(s, loops[:-1], buffer.size, PARALLEL_WORK)
    return s


def results(s: Schedule, kind: Kind) -> tuple[str, dict[Dim, str]]:
    """The accumulator's name, and the loops of the nest that uses it, by the reduction's dims."""
    r, e = kind.reduction, kind.epilogue
    assert r is not None
    if e is not None:
        return r.outputs[0].tensor.name, {d: f"{e.name}.{d.var.name}" for d in e.dims}
    out = r.outputs[0]
    name = s.cache_write(out.tensor.name, None, scope="global")
    loops: dict[Dim, str] = {}
    for n, index in enumerate(out.index):
        for d in free_dims(r):
            if uses(index, d.var):
                loops[d] = f"{name}.w{n}"
    return name, loops


def _tile(
    s: Schedule, p: Plan, names: dict[Dim, str], machine: Machine, r: Computation
) -> tuple[list[str], list[str]]:
    """Split the nest that uses the results; its outer loops in order, and its tile loops."""
    row_outer: list[str] = []
    row_inner: list[str] = []
    for d, factor in zip(p.rows, p.tile.rows, strict=True):
        if factor == 1:
            row_outer.append(names[d])
        elif factor == d.extent:
            row_inner.append(names[d])
        else:
            o, i = s.split(names[d], factor, "overlap")
            row_outer.append(o)
            row_inner.append(i)
    column_outer: list[str] = []
    column = names[p.vector]
    if p.tile.width < p.vector.extent:
        o, column = s.split(column, p.tile.width, "overlap")
        column_outer = [o]
    batch = [names[d] for d in p.batch]
    if _columns_first(p, machine, r):
        outer = [*batch, *column_outer, *row_outer]
    else:
        outer = [*batch, *row_outer[:1], *column_outer, *row_outer[1:]]
    inner = [*row_inner, column]
    order = [*outer, *inner]
    if len(order) > 1:
        s.reorder(*order)
    return outer, inner


def _columns_first(p: Plan, machine: Machine, r: Computation) -> bool:
    itemsize = r.outputs[0].tensor.dtype.itemsize
    depth = math.prod(d.extent for d in p.reduction)
    columns = depth * p.vector.extent * itemsize
    row_inputs = [a.buffer for a in r.accesses if a not in p.columns]
    rows = sum(b.size // math.prod(d.extent for d in p.batch) for b in set(row_inputs)) * itemsize
    row_steps = math.prod(-(-d.extent // f) for d, f in zip(p.rows, p.tile.rows, strict=True))
    steps = -(-p.vector.extent // p.tile.width)
    t = Traffic(rows, columns, depth * p.tile.width * itemsize, row_steps, steps)
    return columns_outermost(t, machine.l1, machine.l2)


def reduce_in_registers(s: Schedule, p: Plan, target: str, loops: dict[Dim, str]) -> None:
    """The accumulators' nests: initialised apart, the reduction outside the tile."""
    rows = existing(s, [loops[d] for d in p.rows])
    column = loops[p.vector]
    inits = s.decompose_reduction(target, (*rows, column)[0])
    reductions = existing(s, [loops[d] for d in p.reduction])
    order = [*reductions, *rows, column]
    if len(order) > 1:
        s.reorder(*order)
    for name in (*inits[:-1], *rows):
        s.unroll(name)
    register_vectors(s, inits[-1], p.tile.lanes)
    register_vectors(s, column, p.tile.lanes)


def pack_columns(
    s: Schedule,
    p: Plan,
    outer: Sequence[str],
    loops: dict[Dim, str],
    constants: Collection[Buffer],
) -> None:
    """Column operands in reading order: weights always, others where vectors are strided."""
    done: set[Buffer] = set()
    for a in p.columns:
        contiguous = stride(address(a), p.vector.var) == 1
        gathered = any(isinstance(n, Load) for i in a.index for n in postorder(i))
        if a.buffer in done or gathered or (a.buffer not in constants and contiguous):
            continue
        done.add(a.buffer)
        column = loops[p.vector]
        candidates = [*outer, *(loops[d] for d in p.reduction)]
        candidates += [f"{column}.o", f"{column}.i", column, *(loops[d] for d in p.rows)]
        names = _indexing(s, a.buffer.name, existing(s, candidates))
        if names:
            new = s.pack(a.buffer.name, *names)
            if a.buffer not in constants:
                spread(s, [f"{new}.r0", f"{new}.r1"], a.buffer.size, PARALLEL_COPY)


def _indexing(s: Schedule, buffer: str, names: Sequence[str]) -> list[str]:
    """Those of the loops that the (single) read of the buffer depends on, in the order given."""
    from tilewright.loops.nodes import Update

    found: set[str] = set()
    loads: set[Load] = set()
    for node in postorder(s.kernel.body):
        if isinstance(node, Update):
            loads |= {
                n
                for value in node.values
                for n in postorder(value)
                if isinstance(n, Load) and n.buffer.name == buffer
            }
    if len(loads) != 1:
        return []
    for i in next(iter(loads)).index:
        found |= {n.name for n in postorder(i) if hasattr(n, "name")}
    return [n for n in names if n in found]
