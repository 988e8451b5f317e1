"""Kernels that operators give unchanged: threads and register tiles where their notes allow it.

A recurrence's product is too deep in loops to be a Computation: per step, the state times the
weights, which are in panels of columns. A tile of some sequences by one panel stays in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import MAX_SIZE, Expr
from tilewright.expr.reads import variables
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import (
    PRODUCTS,
    STEPS,
    Alloc,
    Block,
    For,
    Kernel,
    Stmt,
    Store,
    Update,
)
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    UNROLLED,
    VECTORS,
    existing,
    extents,
    register_vectors,
    spread,
    start_apart,
    vectorize_inner,
    written_out,
)
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.scatters import (
    scatter_of,
    share_scatter,
    worth_parts,
)
from tilewright.targets.cpu.sketches.streaming import streamed

ROWS = (1, 2, 4, 8)  # of a tile that may be tried
LANES = (4, 8, 16, 32)  # of its vectors


@dataclass(frozen=True, slots=True)
class _Product:
    """Loops of a product: over panels, rows and the terms of a sum where there are any; columns.

    update: the step of its sum.
    """

    panels: list[str]
    rows: list[str]
    column: str
    depth: list[str]
    update: Update


def given(kernel: Kernel, at: Context, choose: Choices) -> Schedule:
    """See the module's docstring.

    parameters: those of `_tiles`; `<loop>.parallel`, of each loop that threads may share; those of
    `_loops`.
    """
    s = Schedule(kernel)
    costs = at.costs
    for loop, said in kernel.notes.items():
        steps, products = (
            n if isinstance(n := said.get(k), int) else 0 for k in (STEPS, PRODUCTS)
        )
        shared = [loop]
        product = _product(kernel, loop) if products else None
        if product is not None:
            s, shared = _tiles(s, loop, product, at, choose), product.panels
        taken = steps * costs.step_ns + products * costs.given_product_ns
        if taken and shared and at.threads(choose, loop, costs.worth_sharing(taken)):
            spread(s, shared)
    return streamed(_loops(s, at, choose), at, choose)


def _loops(s: Schedule, at: Context, choose: Choices) -> Schedule:
    """What the notes say nothing of: innermost loops that only store, in vectors, others written
    out in part; outermost ones on threads, scatters into results of each thread's own. A primitive
    refuses what is not legal.

    parameters: `<loop>.vectors`, in flight at a time, 0 for none, or `<loop>.unroll`;
    `<loop>.parallel`.
    """
    for f in loops_of(s.kernel.body):
        innermost = f.trips and not any(loops_of(f.body))
        if f.kind != "serial" or not innermost:
            continue
        name = f.var.name
        wide = 0
        if _stores_only(f.body):
            possible = (0, *VECTORS)
            wide = choose(f"{name}.vectors", possible, 0)
        if wide:
            vectorize_inner(s, name, at.machine.lanes(float32), wide)
        else:
            written_out(s, [name], choose, name)
    if at.machine.cores == 1:
        return s
    for f in _outermost(s.kernel.body):
        name = f.var.name
        if name in s.kernel.notes:
            continue
        scatter = scatter_of(f, at)
        worth = scatter is not None and worth_parts(f, scatter, at)
        if not at.threads(choose, name, worth):
            continue
        if scatter is None:
            s.parallel(name)
        else:
            s = _scattered(s, f, scatter, at)
    return s


def _scattered(s: Schedule, f: For, update: Update, at: Context) -> Schedule:
    """A scatter on all threads; unchanged if a primitive refuses."""
    trial = s.fork()
    try:
        share_scatter(trial, f, update, at)
    except ScheduleError as error:
        name = f.var.name
        events.emit("kept-serial", kernel=s.kernel.name, loop=name, reason=str(error))
        return s
    return trial


def _stores_only(body: Stmt) -> bool:
    if isinstance(body, Block):
        return all(map(_stores_only, body.stmts))
    return isinstance(body, Store)


def _outermost(body: Stmt) -> Iterator[For]:
    """Loops inside no other one, that run one by one."""
    if isinstance(body, Block):
        for part in body.stmts:
            yield from _outermost(part)
    elif isinstance(body, Alloc):
        yield from _outermost(body.body)
    elif isinstance(body, For) and body.kind == "serial" and body.trips != 1:
        yield body


def _product(kernel: Kernel, loop: str) -> _Product | None:
    """The product whose outermost loop this is; None where no step of a sum is inside."""
    for place in walk(kernel.body):
        update = place.stmt
        names = [f.var.name for f in place.loops]
        if isinstance(update, Update) and loop in names:
            break
    else:
        return None
    nest = place.loops[names.index(loop) :]
    *others, column = [f for f in nest if _uses(update.indices[0], f)]
    weights = [
        a.index for v in update.values for a in loads(v) if _uses(a.index, column)
    ]
    panels = [f.var.name for f in others if any(_uses(index, f) for index in weights)]
    rows = [f.var.name for f in others if f.var.name not in panels]
    depth = [f.var.name for f in nest if not _uses(update.indices[0], f)]
    return _Product(panels, rows, column.var.name, depth, update)


def _uses(index: Sequence[Expr], f: For) -> bool:
    return any(f.var in variables(i) for i in index)


def _tiles(
    s: Schedule, name: str, p: _Product, at: Context, choose: Choices
) -> Schedule:
    """A product in register tiles; unchanged if a primitive refuses.

    parameters: `<name>.rows` of a tile, `<name>.lanes` of its vectors, `<name>.unroll`, steps of
    its sums that are written out.
    """
    now = extents(s.kernel)
    width = now[p.column]
    height = now.get(p.rows[0], MAX_SIZE) if p.rows else 1
    possible = [n for n in LANES if width % n == 0] or [width]
    best = max((n for n in possible if n <= at.costs.given_lanes), default=possible[0])
    lanes = choose(f"{name}.lanes", possible, best)
    good = min(height, at.costs.given_rows)
    size = choose(
        f"{name}.rows", sorted({good, *(n for n in ROWS if n <= height)}), good
    )
    deep = now.get(p.depth[-1], 1) if p.depth else 1
    counts = [n for n in UNROLLED if deep % n == 0]
    steps = choose(f"{name}.unroll", (1, *counts), 1) if counts else 1
    trial = s.fork()
    try:
        if not p.panels:
            trial.annotate(name, PRODUCTS, None)  # of a loop that is split
        for around, row, end in _blocks(trial, p, size):
            _tile(trial, p, around, row, end, lanes)
            if steps > 1:
                last = f"{p.depth[-1]}{end}"
                trial.unroll(trial.split(last, steps)[1])
    except ScheduleError as error:
        events.emit("kept-plain", kernel=s.kernel.name, part=name, reason=str(error))
        return s
    return trial


def _blocks(
    s: Schedule, p: _Product, size: int
) -> Iterator[tuple[str, str | None, str]]:
    """The loop around each tile, the one over its rows, and what names of its loops end with."""
    if not p.rows:
        around = (
            p.panels[-1]
            if p.panels
            else s.split(p.column, extents(s.kernel)[p.column])[0]
        )
        yield around, None, ""
        return
    (row,) = p.rows
    height = extents(s.kernel).get(row)
    if height is None:
        whole, inner = s.split(row, size, "guard")
        yield whole, inner, ""
        return
    whole, inner, *rest = s.split(row, size, "cut")
    yield whole, inner, ""
    for left in rest:
        around, inner = s.split(left, height % size)
        yield around, inner, left.removeprefix(row)


def _tile(
    s: Schedule, p: _Product, around: str, row: str | None, end: str, lanes: int
) -> None:
    """One tile: its accumulators in registers, cleared and stored by their own nests."""
    (target,) = p.update.buffers
    acc = s.cache_write(target.name, around, "register")
    rows = existing(s, [] if row is None else [row])
    column = f"{p.column}{end}"
    depth = [f"{name}{end}" for name in p.depth]
    if column not in s.loops:
        column = f"{column}.i"  # all of it, in a loop of one iteration
    starts = start_apart(s, acc, (*rows, column))
    if len(order := [*depth, *rows, column]) > 1:
        s.reorder(*order)
    stores = existing(s, [f"{acc}.w{n}" for n in range(len(target.extents))])
    for nest in ([starts[n] for n in (*rows, column)], [*rows, column], stores):
        for name in nest[:-1]:
            s.unroll(name)
        register_vectors(s, nest[-1], lanes)
