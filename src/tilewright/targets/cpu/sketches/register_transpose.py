"""Nests that read across the order of their writes: transposed tile by tile, in registers.

If a nest's stores are contiguous along one loop (its rows) and a load along another (its columns),
one of the two would access single elements. Instead, a tile is transposed by the machine's
intrinsic: as the copy itself, or into a small buffer that the nest then reads, or, if results are
narrower than their operands, out of a buffer that the nest has written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.expr.reads import reads_memory, variables
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Stmt, Store
from tilewright.loops.walk import loops_of
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, extents, vectorize_inner
from tilewright.schedule.space.patterns import address, stride
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.emit_transpose import LARGEST
from tilewright.targets.cpu.machine import CpuMachine

_SHUFFLED = 4  # bytes of an element
STRIPS = (
    64,
    256,
    1024,
)  # rows of a strip: what is read of one column stays in the cache


@dataclass(frozen=True, slots=True)
class TransposedNest:
    """loops: of the nest, outermost first. rows: the loop along which it stores to `place`;
    columns: the loop along which it loads `reads`. copy: whether it does nothing else. narrows:
    whether it writes fewer bytes than it reads, and reads only along the columns. whole: whether no
    other load crosses the order of writes."""

    loops: tuple[str, ...]
    rows: For
    columns: For
    place: Load
    reads: tuple[Load, ...]
    copy: bool
    narrows: bool
    whole: bool


def transposed_nest(
    s: Schedule, loops: Sequence[str], machine: CpuMachine
) -> TransposedNest | None:
    """How a perfect nest reads across, with an intrinsic for it; None where it does not."""
    known = _loops(s)
    nest = [known[name] for name in loops if name in known and known[name].trips != 1]
    if any(f.trips is None for f in nest):
        return None
    store = _only(nest[-1].body) if len(nest) > 1 else None
    if store is None:
        return None
    if any(map(reads_memory, store.index)):
        return None
    place = Load(store.buffer, store.index)
    rows = next((f for f in nest if stride(address(place), f.var) == 1), None)
    if rows is None:
        return None
    loads = {n for n in postorder(store.value) if isinstance(n, Load)}
    found: dict[Load, For] = {}
    for load in sorted(loads, key=repr):
        form = address(load)
        column = next((f for f in nest if stride(form, f.var) == 1), None)
        if stride(form, rows.var) and column is not None and column is not rows:
            found[load] = column
    reads = tuple(
        x for x in found if _apart(x, rows.var, found[x].var, loads, store.buffer)
    )
    columns = {found[x] for x in reads}
    if (
        not reads
        or len(columns) > 1
        or any(machine.transpose(x.dtype) is None for x in reads)
    ):
        return None
    column = columns.pop()
    along = all(stride(address(x), column.var) in (0, 1) for x in loads)
    narrow = all(place.dtype.itemsize < x.dtype.itemsize for x in reads)
    narrows = along and narrow and _axes_apart(place, rows.var, column.var)
    names = tuple(f.var.name for f in nest)
    return TransposedNest(
        names,
        rows,
        column,
        place,
        reads,
        store.value in reads,
        narrows,
        len(reads) == len(found),
    )


def pays(a: TransposedNest, costs: CostModel) -> bool:
    """Whether tiles are faster than vectors along the longer of rows and columns.

    Few elements of four bytes side by side are read apart by shuffles; they are also stored so, by
    a quarter of a vector at most.
    """
    if any(x.dtype.itemsize != _SHUFFLED for x in (a.place, *a.reads)):
        return a.whole
    stored = costs.machine.lanes(a.place.dtype) // costs.few_across
    rows, columns = a.rows.trips, a.columns.trips
    assert rows is not None and columns is not None
    few = columns <= costs.few_across or rows <= min(stored, costs.few_across)
    return a.whole and not few


def _loops(s: Schedule) -> dict[str, For]:
    return {f.var.name: f for f in loops_of(s.kernel.body)}


def _only(s: Stmt) -> Store | None:
    while isinstance(s, For):
        s = s.body
    if isinstance(s, Store):
        return s
    return None


def _apart(load: Load, row: Var, column: Var, loads: set[Load], out: Buffer) -> bool:
    """Whether rows and columns are separate axes of the buffer and cover everything read from it.

    The indices must not depend on data, since addresses inside a tile are not checked.
    """
    if any(map(reads_memory, load.index)):
        return False
    alone = all(n is load or n.buffer is not load.buffer for n in loads)
    if not alone:
        return False
    if load.buffer is out:
        return False
    return _axes_apart(load, row, column)


def _axes_apart(load: Load, row: Var, column: Var) -> bool:
    """Whether each of two variables has its own axis."""
    axes = [[i for i in load.index if v in variables(i)] for v in (row, column)]
    if not all(len(a) == 1 for a in axes):
        return False
    return axes[0] != axes[1]


def transpose(
    s: Schedule, a: TransposedNest, costs: CostModel, choose: Choices, name: str
) -> list[str]:
    """Schedule the nest in tiles; the loops outside a tile, outermost first.

    parameters: `<name>.strip`, rows that are read before the next columns are.
    """
    machine = costs.machine
    side = costs.transpose_side
    row = a.rows.var.name
    column = a.columns.var.name
    outer: list[str] = []
    strips, strip = _strips(s, row, costs, choose, name)
    narrows = a.narrows and machine.transpose(a.place.dtype) is not None
    row_o, row_i = _tiles(s, strip, side)
    column_o, column_i = _tiles(
        s, column, machine.lanes(a.place.dtype) if narrows else side
    )
    for loop in a.loops:
        if loop == column:
            outer += [*strips, *column_o]
        else:
            outer += row_o if loop == row else [loop]
    s.reorder(*outer, column_i, row_i)
    if a.copy:
        s.tensorize(column_i, _intrinsic(machine, a.reads[0]))
        return outer
    around = outer[-1] if outer else None
    if narrows:
        _leave(s, a, row_i, column_i, around, machine)
        return outer
    for load in a.reads:
        _stage(s, load, a, around, machine)
    vectorize_inner(s, row_i, machine.lanes(a.reads[0].dtype))
    return outer


def shares(s: Schedule, outer: Sequence[str], costs: CostModel) -> list[str]:
    """The first loops outside tiles, as many as are needed to give each core some iterations."""
    found = extents(s.kernel)
    count = 1
    for n, loop in enumerate(outer):
        count *= found[loop]
        if count >= costs.shares * costs.machine.cores:
            return list(outer[: n + 1])
    return list(outer)


def _tiles(s: Schedule, loop: str, side: int) -> tuple[list[str], str]:
    if extents(s.kernel)[loop] <= side:
        return [], loop
    o, i = s.split(loop, side, "overlap")
    return [o], i


def _strips(
    s: Schedule, row: str, costs: CostModel, choose: Choices, name: str
) -> tuple[list[str], str]:
    """The loop along rows cut into strips; a little shorter ones than asked for, if they fit."""
    extent = extents(s.kernel)[row]
    side = costs.transpose_side
    if extent <= STRIPS[0]:
        return [], row
    least = math.ceil(extent / choose(f"{name}.strip", STRIPS, costs.strip_rows))
    if least == 1:
        return [], row

    def strip(count: int) -> int:
        return math.ceil(extent / count / side) * side

    count = min(range(least, 2 * least), key=lambda n: (n * strip(n), n))
    o, i = s.split(row, strip(count), "overlap")
    return [o], i


def _stage(
    s: Schedule, load: Load, a: TransposedNest, around: str | None, machine: CpuMachine
) -> None:
    """What a tile reads, transposed, in its own buffer."""
    new = s.cache_read(load.buffer.name, around, "stack")
    nest = _exchanged(s, new, "r", load, a)
    s.tensorize(nest[0], _intrinsic(machine, load))


def _leave(
    s: Schedule,
    a: TransposedNest,
    row: str,
    column: str,
    around: str | None,
    machine: CpuMachine,
) -> None:
    """A tile is made in vectors along its columns, and leaves its buffer transposed."""
    new = s.cache_write(a.place.buffer.name, around, "stack")
    nest = _exchanged(s, new, "w", a.place, a)
    s.reorder(row, column)
    vectorize_inner(s, column, machine.lanes(a.place.dtype))
    s.tensorize(nest[0], _intrinsic(machine, a.place))


def _exchanged(
    s: Schedule, new: str, copy: str, load: Load, a: TransposedNest
) -> list[str]:
    """Swap the axes of rows and columns in a staged buffer; the loops of its copy."""
    axes = list(range(len(load.index)))
    row, column = (
        next(n for n in axes if f.var in variables(load.index[n]))
        for f in (a.rows, a.columns)
    )
    axes[row], axes[column] = axes[column], axes[row]
    names = [f"i{n}" for n in range(len(axes))]
    s.transform_layout(
        new, f"lambda {', '.join(names)}: ({', '.join(names[n] for n in axes)})"
    )
    return existing(s, [f"{new}.{copy}{n}" for n in range(len(axes))])


def _intrinsic(machine: CpuMachine, load: Load) -> str:
    name = machine.transpose(load.dtype)
    assert name is not None
    return name


def axis_of(load: Load, d: Dim) -> int | None:
    """The axis that a dimension indexes alone, if it indexes no other."""
    axes = [n for n, i in enumerate(load.index) if d.var in variables(i)]
    if len(axes) == 1 and load.index[axes[0]] is d.var:
        return axes[0]
    return None


def move_last(s: Schedule, buffer: str, axis: int, rank: int) -> None:
    """Store a buffer of `rank` axes with one of them as its last."""
    order = [f"i{n}" for n in range(rank)]
    moved = [*(i for i in order if i != f"i{axis}"), f"i{axis}"]
    s.transform_layout(buffer, f"lambda {', '.join(order)}: ({', '.join(moved)})")


def lanes_last(s: Schedule, r: Computation, vector: Dim, target: str) -> None:
    """The accumulators with the columns' axis last, regardless of its position in the result."""
    place = Load(r.outputs[0].tensor, r.outputs[0].index)
    axis = axis_of(place, vector)
    rank = len(place.index)
    if axis is not None and axis != rank - 1:
        move_last(s, target, axis, rank)


def write_across(
    s: Schedule, out: Load, column: Dim, around: str, machine: CpuMachine
) -> Schedule:
    """Results whose rows are not the tile's rows (channels first) are stored transposed.

    out: the destination; column: its dimension along the tile's columns. around: the innermost loop
    outside the tile. Unchanged if no intrinsic fits.
    """
    name = machine.transpose(out.dtype)
    axis = axis_of(out, column)
    if name is None:
        return s
    if axis is None:
        return s
    if stride(address(out), column.var) == 1:
        return s
    trial = s.fork()
    new = trial.cache_write(out.buffer.name, around, "stack")
    move_last(trial, new, axis, len(out.index))
    nest = existing(trial, [f"{new}.w{n}" for n in range(len(out.index))])
    rows = [n for n in nest if n != f"{new}.w{axis}"]
    if f"{new}.w{axis}" not in nest or not rows:
        return s
    try:
        rows = _joined(trial, out, rows)
        rows = _short(trial, rows, f"{new}.w{axis}")
        if len(rows) > 1:
            trial.reorder(*rows[:-1], f"{new}.w{axis}", rows[-1])
        trial.tensorize(f"{new}.w{axis}", name)
    except ScheduleError:
        return s  # its rows are not contiguous in the result either
    return trial


def _short(s: Schedule, rows: Sequence[str], column: str) -> list[str]:
    """The loops of the rows, the last of them in parts that an intrinsic writes out as a whole: a
    tile that visits a batch of results has many rows."""
    found = extents(s.kernel)
    row = rows[-1]
    most = max(1, LARGEST // found[column])
    if found[row] <= most:
        return list(rows)
    even = math.ceil(found[row] / math.ceil(found[row] / most))
    return [*rows[:-1], *s.split(row, even, "overlap")]


def _joined(s: Schedule, out: Load, rows: Sequence[str]) -> list[str]:
    """The loops of the rows, the last two as one where they go by one stride in the result."""
    found = extents(s.kernel)
    steps = out.buffer.strides
    axes = [int(name.rpartition("w")[2]) for name in rows[-2:]]
    if len(axes) < 2 or steps[axes[0]] != found[rows[-1]] * steps[axes[1]]:
        return list(rows)
    return [*rows[:-2], s.fuse(*rows[-2:])]
