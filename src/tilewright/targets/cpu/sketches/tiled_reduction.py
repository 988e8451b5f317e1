"""Reductions with contiguous results: matrix products, convolutions, pooling, column sums.

The results of a tile (rows x vectors) stay in registers while the reduction runs; what follows the
reduction point by point runs on the registers. Weights are packed in the order they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from tilewright.base.dtypes import DType, float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Expr, Load, Select
from tilewright.ir.node import postorder
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    axes_along,
    existing,
    fetched_ahead,
    indexing,
    place,
    reads,
    register_vectors,
    start_apart,
    vectorize_inner,
    written_out,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    stride,
    uses,
)
from tilewright.schedule.tree import find_buffer
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.dot_products import (
    by_dots,
    dot,
    stage_operands,
)
from tilewright.targets.cpu.sketches.interleaved import interleaved
from tilewright.targets.cpu.sketches.partial_sums import in_parts, nests
from tilewright.targets.cpu.sketches.register_transpose import (
    axis_of,
    lanes_last,
    move_last,
    write_across,
)
from tilewright.targets.cpu.sketches.roles import TilePlan, plan, result_of, vector
from tilewright.targets.cpu.sketches.tile_loops import split_tiles
from tilewright.targets.cpu.sketches.turned import (
    NONE_TURNED,
    Turned,
    block_of_rows,
    copy_fast,
    turn,
    turned,
)


def tiled(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: those of `vector`, `plan`, `interleaved`, `split_tiles`, `dot` and `turned`;
    `pad.<buffer>`, copy an input with its padding first; `pack.<buffer>`, copy an operand in the
    order it is read, `pack.<buffer>.<loop>`, the same of one of several reads; of these copies,
    `pack.<buffer>.tiles`, in tiles with the parameters of `transpose`; `<reduction>.apart`, whether
    each of the batch has its own copy; `<reduction>.unroll`, steps that are written out;
    `<reduction>.prefetch` of the columns; `<reduction>.parallel` and `.shared`, `<copy>.shared`.
    """
    r = pattern.reduction
    assert r is not None
    d = dot(pattern, at, choose)
    pattern = replace(
        pattern, vector=vector(pattern, at, choose) if d is None else d.vector
    )
    fixed = None if d is None else d.tile
    in_tiles = fixed is not None
    p = plan(pattern, at, choose, fixed, dots=d is not None)
    column = "" if d is None else stage_operands(s, r, d, at, choose)
    p = interleaved(p, pattern, at, choose)
    apart = _staged_apart(r, p, at, choose) if d is None else ()
    staged = d is None and not apart
    s, copies, images = (
        _stage_images(s, r, p, at, choose) if staged else (s, [], NONE_TURNED)
    )
    target, names = results(s, pattern)
    lanes_last(s, r, p.vector, target)
    outer, inner = split_tiles(s, p, names, pattern, at, choose)
    dims = (*p.batch, *p.close, *p.rows, p.vector, *p.reduction)
    loops = {d: f"{r.name}.{d.var.name}" for d in dims}
    scope = "stack" if in_tiles else "register"
    first = _around_copies(outer, [names[d] for d in apart])
    if first:
        s.compute_at(target, first[-1])
        s, _ = _stage_padding(s, r, p, first[-1], at, choose)
    elif images.rows:
        first, outer = _turned_in_blocks(s, images, p, target, names, outer, at, choose)
    if outer != first:
        s.compute_at(target, outer[-1], scope=scope)
    else:
        s.set_scope(target, scope)
    if d is None:
        _by_vectors(s, r, p, target, outer, loops, at, choose)
    else:
        by_dots(s, d, p, target, column, outer, loops, at)
    outer = outer[: len(outer) - len(p.close)] or outer
    if outer:
        out, of = result_of(pattern)
        s = write_across(s, out, of[p.vector], outer[-1], at.machine)
    for name in () if in_tiles else inner[:-1]:
        s.unroll(name)
    register_vectors(s, inner[-1], p.tile.lanes)
    for copy in copies:
        _share_copy(s, copy, outer, at, choose)
    if at.threads(choose, r.name, at.costs.worth_sharing(_work(s, r, at))):
        at.share(s, first or outer, choose, r.name)
    return s


def _by_vectors(
    s: Schedule,
    r: Computation,
    p: TilePlan,
    target: str,
    outer: Sequence[str],
    loops: dict[Dim, str],
    at: Context,
    choose: Choices,
) -> None:
    """The sums of a tile by vectors of plain arithmetic, their operands packed and fetched ahead.

    target: the accumulators. outer: the loops around the tile.
    """
    reduce_in_registers(s, p, target, loops)
    pack_columns(s, p, outer, loops, at, choose)
    pack_rows(s, r, p, outer, loops, at, choose)
    convert_rows(s, r, p, [*at.around, *outer], loops, at, choose)
    sums = [loops[x] for x in p.reduction]
    if not at.exact:
        sums = _in_parts(s, r, target, sums, p.tile.lanes)
    written_out(s, sums, choose, r.name, p.steps)
    column = loops[p.vector]
    if p.tile.width > p.tile.lanes:
        column = f"{column}.i"
    fetched_ahead(s, column, choose, r.name)


def _in_parts(
    s: Schedule, r: Computation, target: str, reduction: Sequence[str], lanes: int
) -> list[str]:
    """Long sums in parts, each in registers (see `partial_sums`); the loops over the reduction in
    one. target: the accumulators, which then are in memory."""
    loops, part = in_parts(s, r, reduction)
    if part is not None:
        s.set_scope(target, "stack")
        for *rows, column in nests(s, part):
            for name in rows:
                s.unroll(name)
            register_vectors(s, column, lanes)
    return loops


def _work(s: Schedule, r: Computation, at: Context) -> float:
    """Nanoseconds of the arithmetic and of moving what is read and written, on one core."""
    steps = math.prod(max(d.extent, 1) for d in r.dims)
    step = at.costs.product_ns if is_contraction(r) else at.costs.point_ns
    return steps * step + at.costs.moving(s.kernel.params, at.constants)


def _staged_apart(
    r: Computation, p: TilePlan, at: Context, choose: Choices
) -> tuple[Dim, ...]:
    """The outermost batch dimensions with a separate padded input each; by default none if there
    are too few to share between threads."""
    reads = _guarded(r, p)
    alone = takewhile(lambda d: all(axis_of(a, d) is not None for a in reads), p.batch)
    found = tuple(alone) if reads else ()
    if not found:
        return ()
    enough = math.prod(d.extent for d in found) >= at.costs.shares * at.machine.cores
    return found if choose(f"{r.name}.apart", (True, False), enough) else ()


def _around_copies(outer: Sequence[str], apart: Sequence[str]) -> list[str]:
    """The outermost loops, down to that each of whose steps has copies of its own: the last of
    those `apart` that no other loop is around, or simply the last of them if there is none."""
    first = list(takewhile(lambda n: n in apart, outer))
    return first or list(outer[: max(map(outer.index, apart), default=-1) + 1])


def _guarded(r: Computation, p: TilePlan) -> list[Load]:
    """The guarded reads for which a padded copy is profitable: reads of a contraction, and strided
    vector reads, which would be tested and read lane by lane."""
    values = (n for o in r.outputs for n in postorder(o.value))
    reads = [
        n.then for n in values if isinstance(n, Select) and isinstance(n.then, Load)
    ]
    found = [a for a in reads if a.buffer.size > 1]
    if is_contraction(r):
        return found
    return [a for a in found if stride(address(a), p.vector.var) not in (0, 1)]


def _stage_padding(
    s: Schedule,
    r: Computation,
    p: TilePlan,
    anchor: str | None,
    at: Context,
    choose: Choices,
) -> tuple[Schedule, list[str]]:
    """Copy guarded inputs with their padding, where they are read often enough to pay for it.

    anchor: the loop around each part's copy; None for one of the whole. Returns the copies, too.
    """
    guarded = {a.buffer: a for a in _guarded(r, p)}
    copies: list[str] = []
    for buffer in sorted(guarded, key=lambda b: b.name):
        good = _pays_to_pad(guarded[buffer], r, p, at)
        if not choose(f"pad.{buffer.name}", (True, False), good):
            continue
        trial = s.fork()
        try:
            new = trial.cache_read(buffer.name, anchor, "global", pad=True)
        except ScheduleError:
            continue  # a guard on something else than the border: the reads keep it
        s = trial
        copies.append(new)
        if buffer not in {a.buffer for a in p.columns}:
            convert_made(s, new, choose)
        rank = len(buffer.shape)
        axis = axis_of(guarded[buffer], p.vector)
        if axis is not None and axis != rank - 1:
            move_last(s, new, axis, rank)
        loops = existing(s, [f"{new}.r{d}" for d in range(rank)])
        if loops:
            vectorize_inner(s, loops[-1], at.machine.lanes(buffer.dtype))
            if anchor is not None:
                place(s, new, at.costs.stack)
    return s, copies


def _stage_images(
    s: Schedule, r: Computation, p: TilePlan, at: Context, choose: Choices
) -> tuple[Schedule, list[str], Turned]:
    """Copies of whole inputs: of guarded ones with their padding, which are returned, and of images
    turned, but for those that blocks of rows have."""
    s, copies = _stage_padding(s, r, p, None, at, choose)
    images = turned(r, p, {a.buffer for a in _guarded(r, p)}, at, choose)
    if not images.rows:
        turn(s, images, None, at, choose)
    return s, copies, images


def _turned_in_blocks(
    s: Schedule,
    images: Turned,
    p: TilePlan,
    target: str,
    names: dict[Dim, str],
    outer: list[str],
    at: Context,
    choose: Choices,
) -> tuple[list[str], list[str]]:
    """The loops around blocks of rows with images of their own, and all loops outside of the tiles.

    target: the accumulators. The images are copied whole if blocks are not possible: then there are
    no loops of the first kind.
    """
    first, within = block_of_rows(s, images, p, names, outer)
    if first:
        s.compute_at(target, first[-1])
    turn(s, images, first[-1] if first else None, at, choose)
    return first, [*first, *within]


def _share_copy(
    s: Schedule, copy: str, outer: Sequence[str], at: Context, choose: Choices
) -> None:
    """Run a copy of the whole on all threads, along the axis that they share its readers along, if
    it has one: each then writes most of what it reads.

    parameter: `<copy>.shared`, as `Context.share`.
    """
    buffer, _ = find_buffer(s.kernel, copy, "parallel")
    if at.around or not at.costs.worth_sharing(at.costs.moving([buffer], ())):
        return
    axes = range(len(buffer.shape) - 1)
    nest = existing(s, [f"{copy}.r{n}" for n in axes])
    near = [f"{copy}.r{n}" for n in axes_along(s, copy, existing(s, outer)[:1])]
    first = [name for name in nest if name in near]
    loops = [*first, *(name for name in nest if name not in first)]
    if loops != nest:
        s.reorder(*loops)
    at.share(s, loops, choose, copy)


def _pays_to_pad(a: Load, r: Computation, p: TilePlan, at: Context) -> bool:
    """Whether an input is copied with its padding, and not read under guards: small windows whose
    elements few results share are read where they are, in vectors that processors can mask."""
    free = free_dims(r)
    taps = math.prod(d.extent for d in p.reduction)
    dense = (
        stride(address(a), p.vector.var) in (1, 2)
        and a.dtype.itemsize >= float32.itemsize
    )
    if not dense or not is_contraction(r) or taps > at.costs.guarded_taps:
        return True
    lanes = at.machine.lanes(a.dtype)
    *around, row = (_span(i, r) for i in a.index)
    copied = math.prod(around) * math.ceil(row / lanes)
    results = math.prod(d.extent for d in free) // p.vector.extent
    read = taps * results * math.ceil(p.vector.extent / lanes)
    return read > at.costs.guarded * copied


def _span(index: Expr, r: Computation) -> int:
    """How many positions an index has, from the first to the last."""
    steps = ((stride(affine(index), d.var), d.extent) for d in r.dims)
    return 1 + sum(abs(step or 0) * (extent - 1) for step, extent in steps)


def results(s: Schedule, pattern: KernelPattern) -> tuple[str, dict[Dim, str]]:
    """The accumulator's name, and the loops of the nest that uses it, by the reduction's dims."""
    r, e = pattern.reduction, pattern.epilogue
    assert r is not None
    if e is not None:
        names = {d: f"{e.name}.{pattern.dims[d].var.name}" for d in free_dims(r)}
        return r.outputs[0].tensor.name, names
    out = r.outputs[0]
    name = s.cache_write(out.tensor.name, None, scope="global")
    loops: dict[Dim, str] = {}
    for n, index in enumerate(out.index):
        for d in free_dims(r):
            if uses(index, d.var):
                loops[d] = f"{name}.w{n}"
    return name, loops


def reduce_in_registers(
    s: Schedule, p: TilePlan, target: str, loops: dict[Dim, str]
) -> None:
    """The accumulators' nests: initialized apart, the reduction outside the tile."""
    rows = existing(s, [loops[d] for d in p.rows])
    column = loops[p.vector]
    between = [loops[d] for d in (*p.batch, *p.close, *p.rows) if d in loops]
    starts = start_apart(s, target, (*rows, column), between)
    order = [*existing(s, [loops[d] for d in p.reduction]), *rows, column]
    if len(order) > 1:
        s.reorder(*order)
    if p.window is not None:
        s.unroll(loops[p.window])
    for name in rows:
        s.unroll(starts[name])
        s.unroll(name)
    register_vectors(s, starts[column], p.tile.lanes)
    register_vectors(s, column, p.tile.lanes)


def _worth_copying(a: Load, p: TilePlan, at: Context) -> bool:
    """Whether panels of a contiguous operand are used so often that they are copied.

    Those of a large one, whose rows are many pages; and those whose rows are so far apart, by a
    power of two, that they displace one another in the cache that should keep the panel.
    """
    steps = math.prod(
        -(-d.extent // f) for d, f in zip(p.rows, p.tile.rows, strict=True)
    )
    size = a.dtype.itemsize
    if steps < at.costs.panel_uses:
        return False
    if a.buffer.size * size > at.costs.large * at.machine.l2:
        return True
    pitches = {d: abs(stride(address(a), d.var) or 0) * size for d in p.reduction}
    pitch = max(pitches.values(), default=0)
    rows = math.prod(d.extent for d in p.reduction if pitches[d] >= at.machine.line)
    return not at.costs.stays(rows, pitch)


def pack_columns(
    s: Schedule,
    p: TilePlan,
    outer: Sequence[str],
    loops: dict[Dim, str],
    at: Context,
    choose: Choices,
) -> None:
    """Column operands in reading order: weights always, others where vectors are strided."""
    done: set[Buffer] = set()
    for a in p.columns:
        contiguous = stride(address(a), p.vector.var) == 1
        gathered = any(isinstance(n, Load) for i in a.index for n in postorder(i))
        if a.buffer in done or gathered:
            continue
        done.add(a.buffer)
        good = a.buffer in at.constants or not contiguous or _worth_copying(a, p, at)
        column = loops[p.vector]
        columns = [f"{column}.o", f"{column}.i", column]
        order = [*at.around, *outer, *(loops[d] for d in p.reduction)]
        order += [*columns, *(loops[d] for d in p.rows)]
        _pack(s, a, order, columns, good, at, choose)


def pack_rows(
    s: Schedule,
    r: Computation,
    p: TilePlan,
    outer: Sequence[str],
    loops: dict[Dim, str],
    at: Context,
    choose: Choices,
) -> None:
    """Row operands in reading order; by default where each element of a tile would be on a line of
    its own."""
    if not is_contraction(r):
        return
    for a in {a.buffer: a for a in r.accesses if a not in p.columns}.values():
        gathered = any(isinstance(n, Load) for i in a.index for n in postorder(i))
        inside = [*p.reduction, *p.rows]
        order = [*at.around, *outer, *(loops[d] for d in inside)]
        if not gathered:
            rows = [loops[d] for d in p.rows]
            _pack(s, a, order, rows, _is_scattered(a, r, p, at), at, choose)


def convert_rows(
    s: Schedule,
    r: Computation,
    p: TilePlan,
    outer: Sequence[str],
    loops: dict[Dim, str],
    at: Context,
    choose: Choices,
) -> None:
    """Row operands of 16 bits as the numbers that the arithmetic converts them to.

    A tile broadcasts each element of its rows, so that it converts them one by one, and again for
    each tile of columns; a copy, or what wrote them, does so in vectors. requires, else they stay:
    the nest does nothing else with them, and a copy has no element twice, as of windows.

    parameter: `convert.<buffer>`, whether they are.
    """
    for a in {a.buffer: a for a in r.accesses if a not in p.columns}.values():
        gathered = any(isinstance(n, Load) for i in a.index for n in postorder(i))
        used = [d for d in r.dims if any(uses(i, d.var) for i in a.index)]
        read = math.prod(d.extent for d in used)
        tensor = a.buffer.name
        there, made = find_buffer(s.kernel, tensor, "convert")
        if not _is_narrow(there.dtype) or gathered or read > a.buffer.size:
            continue
        order = [*outer, *(loops[d] for d in (*p.rows, *p.reduction))]
        names = indexing(s, tensor, existing(s, order))
        if not names or not choose(f"convert.{tensor}", (True, False), True):
            continue
        new = s.pack(tensor, *names)
        try:
            s.convert(new)
        except ScheduleError:
            s.undo()  # arithmetic on what is read as it is
            continue
        nest = [f"{new}.r{n}" for n in range(len(names))]
        copy_fast(s, nest[:-1], f"convert.{tensor}", a.buffer, at, choose, made is None)
        vectorize_inner(s, nest[-1], p.tile.lanes)


def convert_made(s: Schedule, name: str, choose: Choices) -> None:
    """Row operands of 16 bits that the kernel makes, likewise.

    parameter: `convert.<buffer>.made`, whether they are.
    """
    made, _ = find_buffer(s.kernel, name, "convert")
    if _is_narrow(made.dtype) and choose(f"convert.{name}.made", (True, False), True):
        with suppress(ScheduleError):  # not converted where they are read
            s.convert(name)


def _is_narrow(dtype: DType) -> bool:
    """Whether numbers of a dtype are converted for arithmetic: floats of 16 bits or fewer."""
    return dtype.is_float and dtype.itemsize < float32.itemsize


def _pack(
    s: Schedule,
    a: Load,
    order: Sequence[str],
    along: Sequence[str],
    good: bool,
    at: Context,
    choose: Choices,
) -> None:
    """An operand in the order in which these loops read it, if that is chosen.

    along: the loops that tell this read from others of the same tensor. good: the default.
    """
    tensor = a.buffer.name
    names = indexing(s, tensor, existing(s, order), along)
    if not names:
        return
    several = len(reads(s, tensor)) > 1
    parameter = f"pack.{tensor}.{along[-1]}" if several else f"pack.{tensor}"
    if not choose(parameter, (True, False), good):
        return
    new = s.pack(tensor, *names)
    if a.buffer not in at.constants:
        nest = [f"{new}.r{n}" for n in range(len(names))]
        copy_fast(s, nest, parameter, a.buffer, at, choose)


def _is_scattered(a: Load, r: Computation, p: TilePlan, at: Context) -> bool:
    """Whether what a tile reads is apart along its rows and along the reduction, is read by
    enough tiles of columns to pay for a copy, and is not a constant or element of memory's
    choice."""
    inner = [d for d, f in zip(p.rows, p.tile.rows, strict=True) if f > 1]
    steps = [stride(address(a), d.var) for d in (*inner, *p.reduction)]
    tiles = math.prod(
        -(-d.extent // p.tile.width) if d is p.vector else d.extent
        for d in free_dims(r)
        if not any(uses(i, d.var) for i in a.index)
    )
    apart = all(
        step is None or abs(step) * a.dtype.itemsize >= at.machine.line
        for step in steps
        if step != 0
    )
    gathered = any(isinstance(n, Load) for i in a.index for n in postorder(i))
    return bool(inner) and apart and not gathered and tiles >= at.costs.panel_uses
