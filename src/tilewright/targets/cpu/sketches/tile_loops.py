"""The loops of a register tile, and the loops outside it in order.

The order minimizes traffic between caches. The outermost loops, fused and divided, give each thread
a part of the result. If data would have to be fetched from other cores, each part is contiguous in
memory: then consecutive kernels find in a core's cache what that core has produced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Dim
from tilewright.expr.nodes import Load
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import divisors, extents
from tilewright.schedule.space.patterns import KernelPattern, address, stride
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.machine import CpuMachine
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_tile_model import (
    Traffic,
    columns_outermost,
)
from tilewright.targets.cpu.sketches.roles import TilePlan, result_of


@dataclass(frozen=True, slots=True)
class _Loops:
    """Of the two kinds of dimension of a tile, outermost first."""

    outer: list[str]
    inner: list[str]


def split_tiles(
    s: Schedule,
    p: TilePlan,
    names: dict[Dim, str],
    pattern: KernelPattern,
    at: Context,
    choose: Choices,
) -> tuple[list[str], list[str]]:
    """Split the nest that uses the results; its outer loops in order, and its tile loops.

    parameters: `<reduction>.in_order`, whether tiles are computed in memory order; else
    `<reduction>.block`, how many tiles of rows are processed per panel of columns,
    `<reduction>.columns`, how many tiles wide a panel is, and `<reduction>.within`, whether loops
    within rows run per step of rows.
    """
    rows = _rows(s, p, names)
    columns = _columns(s, p, names)
    r = pattern.reduction
    assert r is not None
    in_order = _is_written_in_order(p, pattern, at.costs)
    several = len([*p.batch, *rows.outer, *columns.outer]) > 1
    if several:
        in_order = choose(f"{r.name}.in_order", (True, False), in_order)
    if in_order:
        outer = _by_memory(p, pattern, names, rows, columns)
        return _ordered(s, [*outer, *(names[d] for d in p.close)], rows, columns)
    within = _within_rows(p, pattern) if p.rows else []
    if within:
        near = _is_near(within, p, pattern, at.machine)
        within = within if choose(f"{r.name}.within", (True, False), near) else []
    first = rows.outer[:1]
    rest = rows.outer[1:]
    if first and columns.outer:
        steps = extents(s.kernel)[first[0]]
        block = choose(
            f"{r.name}.block",
            divisors(steps),
            _block(p, pattern, steps, within, at.costs),
        )
        if block == steps:
            first, rest = [], rows.outer
        elif block > 1:
            whole, part = s.split(first[0], block)
            first, rest = [whole], [part, *rest]
    if rest and columns.outer:
        panel, *tiles = columns.outer
        steps = extents(s.kernel)[panel]
        wide = choose(f"{r.name}.columns", divisors(steps), 1)
        if wide == steps:
            columns, rest = replace(columns, outer=[]), [*rest, panel, *tiles]
        elif wide > 1:
            panel, tile = s.split(panel, wide)
            columns = replace(columns, outer=[panel])
            rest = [*rest, tile, *tiles]
    far = [names[d] for d in p.batch if d not in within]
    outer = [*far, *first, *(names[d] for d in within), *columns.outer, *rest]
    outer += [names[d] for d in p.close]
    return _ordered(s, outer, rows, columns)


def _ordered(
    s: Schedule, outer: list[str], rows: _Loops, columns: _Loops
) -> tuple[list[str], list[str]]:
    inner = [*rows.inner, *columns.inner]
    if len(outer) + len(inner) > 1:
        s.reorder(*outer, *inner)
    return outer, inner


def _is_written_in_order(p: TilePlan, pattern: KernelPattern, costs: CostModel) -> bool:
    """Whether tiles are made in the order of memory: where the result passes the caches by, and the
    whole operand of the columns stays in the second one."""
    out, of = result_of(pattern)
    columns = {a.buffer for a in p.columns}
    read = sum(b.size * b.dtype.itemsize for b in columns)
    made = math.prod(d.extent for d in of) * out.dtype.itemsize
    return costs.streams(made) and read <= costs.full * costs.machine.l2


def _by_memory(
    p: TilePlan,
    pattern: KernelPattern,
    names: dict[Dim, str],
    rows: _Loops,
    columns: _Loops,
) -> list[str]:
    """The loops over the batch and over tiles, with longer strides in the result outermost."""
    out, of = result_of(pattern)
    cut = [d for d, f in zip(p.rows, p.tile.rows, strict=True) if f < d.extent]
    found = [(d, names[d]) for d in p.batch]
    found += zip(cut, rows.outer, strict=True)
    found += ((p.vector, name) for name in columns.outer)
    found.sort(key=lambda pair: -abs(stride(address(out), of[pair[0]].var) or 0))
    return [name for _, name in found]


def _rows(s: Schedule, p: TilePlan, names: dict[Dim, str]) -> _Loops:
    found = _Loops([], [])
    for d, factor in zip(p.rows, p.tile.rows, strict=True):
        if factor == 1:
            found.outer.append(names[d])
        elif factor == d.extent:
            found.inner.append(names[d])
        else:
            o, i = s.split(names[d], factor, "overlap")
            found.outer.append(o)
            found.inner.append(i)
    return found


def _columns(s: Schedule, p: TilePlan, names: dict[Dim, str]) -> _Loops:
    column = names[p.vector]
    if p.tile.width >= p.vector.extent:
        return _Loops([], [column])
    o, i = s.split(column, p.tile.width, "overlap")
    return _Loops([o], [i])


def _block(
    p: TilePlan,
    pattern: KernelPattern,
    steps: int,
    within: Sequence[Dim],
    costs: CostModel,
) -> int:
    """Steps of rows per panel of columns: all of them if that reduces traffic.

    If rows and results together are larger than the data read along the columns, which cores may
    share, the number gives each core an equal share instead, unless a batch is divided.
    """
    t = _traffic(p, pattern)
    machine = costs.machine
    if not columns_outermost(t, costs):
        return 1
    out, of = result_of(pattern)
    made = math.prod(d.extent for d in of) * out.dtype.itemsize
    groups = math.prod(d.extent for d in within)
    if (
        machine.cores == 1
        or len(p.batch) > len(within)
        or groups * (t.columns - t.rows) >= made
    ):
        return steps
    even = [n for n in divisors(steps) if steps // n % machine.cores == 0]
    if even:
        return even[-1]
    enough = steps >= costs.shares * machine.cores
    if enough and groups * t.columns <= machine.l2:
        return 1
    return steps


def _traffic(p: TilePlan, pattern: KernelPattern) -> Traffic:
    """Of one step of the batch."""
    r = pattern.reduction
    assert r is not None
    itemsize = (
        p.columns[0].dtype.itemsize if p.columns else r.outputs[0].tensor.dtype.itemsize
    )
    depth = math.prod(d.extent for d in p.reduction)
    columns = depth * p.vector.extent * itemsize
    batch = math.prod(d.extent for d in (*p.batch, *p.close))
    rows = (
        sum(b.size // batch for b in {a.buffer for a in _row_reads(p, pattern)})
        * itemsize
    )
    row_steps = math.prod(
        -(-d.extent // f) for d, f in zip(p.rows, p.tile.rows, strict=True)
    )
    steps = -(-p.vector.extent // p.tile.width)
    return Traffic(
        rows=rows,
        columns=columns,
        panel=depth * p.tile.width * itemsize,
        row_steps=row_steps,
        column_steps=steps,
    )


def _row_reads(p: TilePlan, pattern: KernelPattern) -> list[Load]:
    assert pattern.reduction is not None
    return [a for a in pattern.reduction.accesses if a not in p.columns]


def _within_rows(p: TilePlan, pattern: KernelPattern) -> list[Dim]:
    """Those of the batch that are within a row wherever rows do, as groups of channels: they go by
    per step of the rows."""
    out, of = result_of(pattern)
    reads = _row_reads(p, pattern)
    places = [(address(a), {d: d for d in of}) for a in reads] + [(address(out), of)]

    def inside(d: Dim) -> bool:
        pairs = [
            (stride(form, to[d].var), stride(form, to[p.rows[0]].var))
            for form, to in places
        ]
        return all(
            a is not None and b is not None and abs(a) < abs(b) for a, b in pairs
        )

    return [d for d in p.batch if inside(d)]


def _is_near(
    within: Sequence[Dim], p: TilePlan, pattern: KernelPattern, machine: CpuMachine
) -> bool:
    """Whether the data read along the columns stays in the cache for all of these."""
    groups = math.prod(d.extent for d in within)
    return _traffic(p, pattern).columns * groups <= machine.l2
