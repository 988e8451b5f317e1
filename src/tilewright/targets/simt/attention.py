"""Attention over blocks of keys as one launch: neither scores nor parts of results leave a block.

    blockIdx: what is around a row; a tile of rows of queries
              registers of each thread: the greatest score, the sum and the mean of its rows
              for each block of keys:  fetch keys and values into shared memory, together
                                       scores, in registers; the softmax of each row, by its threads
                                       the shares, in shared memory; times the values, in registers
                                       take them into the mean of the blocks before
              store

`compute/online_softmax.py` makes the group. Threads on y have rows; threads on x have keys of a
block, then columns of the result. A block of keys that is masked for all rows is not read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation, Dim
from tilewright.compute.online_softmax import weighted_mean
from tilewright.expr.nodes import Buffer, Expr, Load, Select, Var
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.nest import existing, extents
from tilewright.schedule.space.patterns import free_dims, reduction_dims, uses
from tilewright.schedule.tree import find_buffer
from tilewright.targets.simt.attention_cost import (
    ROOM,
    AttentionShape,
    AttentionTile,
    attention_tiles,
)
from tilewright.targets.simt.binding import bind_blocks, fetch_together
from tilewright.targets.simt.machine import SimtMachine

AT_ONCE: Final = 256  # elements of a tile that a block loads before it stores them
# Of the last Computations, the product with the values first, whether they are maps.
_KINDS: Final = (False, True, False, True)


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts of a group; see the module's docstring.

    scores: the product of queries and keys. inner: the other Computations on a block of keys, in
    order. kept: the greatest score and the sum of each row of a block. mean: the product with the
    values. online: the mean over the blocks. last: its epilogue. row, column: the dimensions of
    `last` along a tile of rows and along the result's columns.
    """

    scores: Computation
    inner: tuple[Computation, ...]
    kept: Computation
    mean: Computation
    online: Computation
    last: Computation
    row: Dim
    column: Dim

    @property
    def keys(self) -> int:
        """Keys of a block."""
        return self.scores.outputs[0].tensor.shape[-1]

    @property
    def operands(self) -> tuple[Load, Load, Load]:
        """The reads of queries, of keys, and of values."""
        made = self.inner[-1].outputs[0].tensor
        key = _variable(self.scores.outputs[0].index[-1])
        queries, keys = sorted(
            self.scores.accesses, key=lambda a: any(uses(i, key) for i in a.index)
        )
        (values,) = (a for a in self.mean.accesses if a.buffer is not made)
        return queries, keys, values

    @property
    def depth(self) -> int:
        """Products of each score."""
        (d,) = reduction_dims(self.scores)
        return d.extent

    @property
    def blocks(self) -> int:
        """Blocks of keys."""
        (d,) = reduction_dims(self.online)
        return d.extent

    @property
    def skips(self) -> bool:
        """Whether blocks of keys count nothing where a mask by position hides them."""
        return isinstance(self.online.outputs[0].value, Select)

    @property
    def around(self) -> list[Dim]:
        """The dimensions of the result around its rows."""
        return [d for d in free_dims(self.last) if d not in (self.row, self.column)]

    @property
    def key_loop(self) -> str:
        """The loop over the blocks of keys."""
        return loop_of(self.online, reduction_dims(self.online)[0].var)


def attention_of(
    computations: Sequence[Computation], machine: SimtMachine
) -> Attention | None:
    """The parts of attention over blocks of keys; None if the group is not attention, rounds
    between, or no tile fits."""
    parts = parts_of(computations)
    if parts is None or any(c.outputs[0].tensor.dtype.bits < 32 for c in parts.inner):
        return None
    return parts if attention_tiles(shape(parts), machine) else None


def parts_of(computations: Sequence[Computation]) -> Attention | None:
    """The parts of attention over blocks of keys; None if the group is not attention.

    A single query is left to other schedules. All indices of intermediates are dimensions.
    """
    if len(computations) < len(_KINDS) + 1 or not _is_online(computations):
        return None
    first, *inner, mean, kept, online, last = computations
    found = _dims(kept, online, last)
    if found is None or not _are_plain(first, inner, mean):
        return None
    return Attention(first, tuple(inner), kept, mean, online, last, *found)


def _is_online(computations: Sequence[Computation]) -> bool:
    """Whether a group is one that `online_softmax` made."""
    *_, mean, kept, online, last = computations
    kinds = tuple(c.is_map for c in (mean, kept, online, last))
    if kinds != _KINDS or online.reducer is None or not is_contraction(computations[0]):
        return False
    made = {o.tensor for c in computations for o in c.outputs}
    outputs = {o.tensor for o in (*kept.outputs, *mean.outputs)}
    same = online.reducer.does_as(weighted_mean(online.reducer.dtypes[0]))
    return same and made.intersection(online.inputs) == outputs


def _are_plain(
    first: Computation, inner: Sequence[Computation], mean: Computation
) -> bool:
    """Whether the Computations on a block have known sizes and at most one reduction dimension;
    whether rows and columns are dimensions; whether queries, keys and values are distinct tensors,
    each read at one place."""
    axis = len(first.outputs[0].index) - 2
    shares = read_of(mean, inner[-1].outputs[0].tensor).index if inner else ()
    sums = all(len(reduction_dims(c)) <= 1 for c in (first, *inner, mean))
    places = [c.outputs[0].index[axis] for c in (first, *inner)]
    variables = [*places, *shares[-2:], *mean.outputs[0].index]
    static = all(d.static and d.extent for c in (first, *inner, mean) for d in c.dims)
    made = inner[-1].outputs[0].tensor if inner else None
    reads = [a.buffer for a in (*first.accesses, *mean.accesses)]
    own = len(reads) == len(set(reads)) == 4 and made in reads
    plain = all(isinstance(v, Var) for v in variables)
    return axis >= 0 and sums and static and own and plain


def shape(a: Attention) -> AttentionShape:
    """The sizes that the cost model needs."""
    return AttentionShape(
        around=math.prod(d.extent for d in a.around),
        rows=a.row.extent,
        keys=a.keys,
        blocks=a.blocks,
        depth=a.depth,
        columns=a.column.extent,
        itemsize=a.scores.outputs[0].tensor.dtype.itemsize,
        keys_last=uses(
            a.operands[1].index[-1], _variable(a.scores.outputs[0].index[-1])
        ),
    )


def _dims(
    kept: Computation, online: Computation, last: Computation
) -> tuple[Dim, Dim] | None:
    """The dimensions of the last map along rows and along columns; None if there is none, or if
    indices are not plain dimensions."""
    rows = read_of(online, kept.outputs[0].tensor).index
    columns = [d.var for d in free_dims(online) if d.var not in rows]
    whole = online.outputs[-1]
    behind = dict(zip(whole.index, read_of(last, whole.tensor).index, strict=True))
    if len(columns) != 1 or not rows:
        return None
    found: dict[Expr, Dim] = {d.var: d for d in free_dims(last)}
    row, column = (found.get(behind.get(v, v)) for v in (rows[-1], columns[0]))
    return None if row is None or column is None else (row, column)


def read_of(c: Computation, tensor: Buffer) -> Load:
    return next(a for a in c.accesses if a.buffer is tensor)


def _variable(e: Expr) -> Var:
    assert isinstance(e, Var)
    return e


def loop_of(c: Computation, v: Expr) -> str:
    return f"{c.name}.{_variable(v).name}"


def by_key_blocks(
    s: Schedule,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `attention_of` finds attention.

    parameters: those of `inlined`; `attention.tile`, the rows of a block and its threads;
    `attention.staged`, whether keys and values are staged in shared memory. Raises ScheduleError if
    a primitive fails.
    """
    s, rest = inlined(s, computations, choose)
    a = attention_of(rest, machine)
    if a is None:
        raise ScheduleError("after inlining, it is not attention over blocks")
    s = s.fork()
    possible = attention_tiles(shape(a), machine)
    tile = AttentionTile(*choose("attention.tile", possible, possible[0]))
    staged = choose("attention.staged", (True, False), machine.shared_pays)
    work = _SimtWork(s, a, tile.rows, tile)
    work.blocks()
    work.inside()
    work.apart(a.inner[-1].outputs[0].tensor.name, ROOM)
    if staged:
        work.fetch()
    with suppress(ScheduleError):  # without a mask by position, all blocks count
        s.skip(a.key_loop)
    work.bind()
    return s


@dataclass(eq=False)
class AttentionWork(ABC):
    """A schedule on its way, up to the threads. rows: of a block. grid: the loops over blocks.
    start: those that start the means."""

    s: Schedule
    a: Attention
    rows: int
    grid: Sequence[str] = field(default=(), init=False)
    start: Sequence[str] = field(default=(), init=False)

    @abstractmethod
    def scope(self, c: Computation) -> str:
        """Where the results of a Computation on a block of keys are."""

    def blocks(self) -> None:
        """Loops over blocks around the result, each with the means of its rows in registers."""
        s, a = self.s, self.a
        kept = loop_of(a.kept, a.kept.outputs[0].index[-1])
        for row in (kept, *(row for row, _ in self.phases().values())):
            if row in extents(s.kernel):
                s.pad(row, self.rows)
        outer, inner = s.split(loop_of(a.last, a.row.var), self.rows, "guard")
        around = existing(s, [loop_of(a.last, d.var) for d in a.around])
        s.reorder(*around, outer, inner, loop_of(a.last, a.column.var))
        self.grid = [*around, outer]
        s.compute_at(a.online.outputs[-1].tensor.name, outer, scope="register")
        for o in a.online.outputs:
            s.set_scope(o.tensor.name, "register")
        row, column = self.phases()[a.online]
        self.start = s.decompose_reduction(a.online.outputs[-1].tensor.name, row)
        s.reorder(a.key_loop, row, column)

    def inside(self) -> None:
        """Move all Computations on a block of keys into its iteration."""
        s, a = self.s, self.a
        for c in (a.mean, a.kept, *reversed(a.inner), a.scores):
            for o in c.outputs[:1]:
                s.compute_at(o.tensor.name, a.key_loop)
            for o in c.outputs:
                s.set_scope(o.tensor.name, self.scope(c))

    def phases(self) -> dict[Computation, tuple[str, str]]:
        """The loops along rows and columns of each Computation that has both."""
        a = self.a
        made = a.scores.outputs[0].index
        axis = len(made) - 2
        found = {}
        for c in (a.scores, *a.inner):
            along = reduction_dims(c)
            index = c.outputs[0].index
            column = along[0].var if c is not a.scores and along else index[-1]
            found[c] = (loop_of(c, index[axis]), loop_of(c, column))
        online = read_of(a.online, a.kept.outputs[0].tensor).index
        read = read_of(a.online, a.mean.outputs[0].tensor).index
        (column,) = [d.var for d in free_dims(a.online) if d.var not in online]
        place = read.index(column)
        shares = read_of(a.mean, a.inner[-1].outputs[0].tensor)
        of_mean = a.mean.outputs[0].index[place]
        found[a.mean] = (loop_of(a.mean, shares.index[-2]), loop_of(a.mean, of_mean))
        found[a.online] = (loop_of(a.online, online[-1]), loop_of(a.online, column))
        return found


@dataclass(eq=False)
class _SimtWork(AttentionWork):
    """The same, by single threads."""

    tile: AttentionTile

    def scope(self, c: Computation) -> str:
        """Private values in registers, shares in shared memory."""
        return "shared" if c is self.a.inner[-1] else "register"

    @property
    def threads(self) -> dict[str, int]:
        """Threads of a block, by axis."""
        t = self.tile
        return {"threadIdx.x": t.column_threads, "threadIdx.y": t.row_threads}

    def fetch(self) -> None:
        """The queries of a block's rows, and the keys and values of each block of keys."""
        s, a = self.s, self.a
        queries, keys, values = a.operands
        key_room = 0 if shape(a).keys_last else ROOM
        for read, loop, room in (
            (queries, self.grid[-1], ROOM),
            (keys, a.key_loop, key_room),
            (values, a.key_loop, 0),
        ):
            name = s.cache_read(read.buffer.name, loop, "shared", pad=True)
            rank = self.apart(name, room)
            loops = existing(s, [f"{name}.r{n}" for n in range(rank)])
            each = max(1, AT_ONCE // self.tile.threads)
            fetch_together(s, loops, self.threads, unrolled=each)

    def apart(self, name: str, room: int) -> int:
        """Put room between the rows of a tile; the tile's dimensions."""
        held, _ = find_buffer(self.s.kernel, name, "storage_align")
        rank = len(held.shape)
        if room and rank > 1:
            pitch = held.shape[-1] + room
            self.s.storage_align(name, rank - 2, pitch, 0)
        return rank

    def bind(self) -> None:
        """Every phase to the threads, and the grid."""
        s, a = self.s, self.a
        phases = self.phases()
        for c in (a.scores, a.mean):
            row, column = phases[c]
            zero = s.decompose_reduction(c.outputs[0].tensor.name, row)
            self.share(*zero[-2:])
            along = loop_of(c, reduction_dims(c)[0].var)
            self.share(row, column, (along,))
        for c in a.inner:
            row, column = phases[c]
            if c.is_map:
                self.share(row, column)
            else:
                self.by_rows(row)
                self.columns(column)
        self.by_rows(loop_of(a.kept, a.kept.outputs[0].index[-1]))
        self.share(*self.start[-2:])
        self.share(*phases[a.online])
        last = loop_of(a.last, a.row.var)
        self.share(f"{last}.i", loop_of(a.last, a.column.var))
        bind_blocks(s, self.grid)

    def by_rows(self, loop: str) -> str:
        """Distribute rows to threads; returns the loop over the rows of one thread."""
        s = self.s
        mine, own = s.split(loop, self.tile.row_threads)
        s.reorder(own, mine)
        s.bind(own, "threadIdx.y")
        s.unroll(mine)
        return mine

    def columns(self, loop: str) -> None:
        """Distribute a reduction along columns to neighboring threads."""
        s = self.s
        _, own = s.split(loop, self.tile.column_threads, "guard")
        s.bind(own, "threadIdx.x")

    def share(self, row: str, column: str, between: Sequence[str] = ()) -> None:
        """Distribute rows and columns to threads. between: loops around the rows and columns of one
        thread."""
        s, t = self.s, self.tile
        rows, own_row = s.split(row, t.row_threads)
        columns, own_column = s.split(column, t.column_threads, "guard")
        s.reorder(own_row, own_column, *between, rows, columns)
        for part in (rows, columns):
            s.unroll(part)
        s.bind(own_row, "threadIdx.y")
        s.bind(own_column, "threadIdx.x")
