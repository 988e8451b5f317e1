"""Reductions along rows, fused with other operations on a row: the threads of a block share it.

    for i in m: { sum[i] = ...k...; for j: y[i, j] = f(x[i, j], sum[i]) }
    ->  blockIdx.x, threadIdx.y: a row: threadIdx.x: parts of the sum; a tree; threadIdx.x: f

One launch for softmax, layer normalization, argmax, row sums. Where a machine has clusters, and
fewer rows than units, several blocks may share a row: each has a part of every loop along it, and
one partial result of each reduction in memory of the cluster. Each thread has every `lanes`-th
element of the row, so that neighbors read neighbors, and keeps intermediates and inputs that are
read twice in registers. Results of a row are in registers of all of its threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.nodes import For, Update
from tilewright.loops.passes.shared_room import room_of
from tilewright.loops.scopes import OF_CLUSTER, Scope
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.nest import existing, extents, fuse_all
from tilewright.schedule.space.patterns import (
    are_rows,
    classify,
    free_dims,
    reduction_dims,
    streams_rows,
)
from tilewright.schedule.tree import find_buffer
from tilewright.targets.simt.binding import (
    accumulate_in_registers,
    over_threads,
    run_at_once,
)
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import (
    Rows,
    lane_counts,
    rows_in_block,
    usual_blocks,
    usual_lanes,
)

CLUSTERS: Final = (1, 2, 4, 8)  # blocks that may share a row
ROUNDS: Final = 32  # elements of a row at most that a thread keeps in registers


def rows_of(computations: Sequence[Computation], machine: SimtMachine) -> Rows | None:
    """The rows that a group reduces; None if this sketch does not apply."""
    reductions = [c for c in computations if not c.is_map]
    if not reductions or not all(suits(c) for c in computations):
        return None
    pattern = classify(computations)
    if pattern.name == "tiled" and not streams_rows(pattern, ()):
        return None
    if pattern.name not in ("tiled", "joint_rows") and not are_rows(computations):
        return None
    sizes = [d.extent for d in free_dims(reductions[0])]
    widths = [_product(reduction_dims(c)) for c in reductions]
    dims = _row_dims(computations)
    alike = all([d.extent for d in free_dims(c)] == sizes for c in reductions)
    if not sizes or not alike or [d.extent for d in dims] != sizes:
        return None
    last = computations[-1].outputs[0].tensor
    itemsize = max(b.dtype.itemsize for b in (last, *reductions[0].inputs))
    return Rows(
        _product(dims),
        max(widths),
        itemsize,
        len(computations),
        machine,
        len(reductions),
    )


def suits(c: Computation) -> bool:
    """Whether its points are known and its values may be combined in any order."""
    known = all(d.static and d.extent > 0 for d in c.dims)
    return known and (c.reducer is None or c.reducer.commutative)


def by_rows(
    s: Schedule,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `rows_of` finds rows.

    parameters: those of `inlined`; `lanes`, threads of a row; `rows`, rows of a block; `blocks`,
    blocks of a cluster that share a row, with so many threads each;
    `<buffer>.scope`, the scope of an intermediate along the row; `<input>.held`, whether an input
    stays in registers. Raises ScheduleError if the group is not computed row by row.
    """
    rest = list(computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    found = rows_of(rest, machine)
    if found is None:
        raise ScheduleError("the rest after inlining is not computed by rows")
    s = s.fork()
    row = _one_row(s, rest)
    found = replace(found, between=_between(s, rest))
    if not lane_counts(found):
        raise ScheduleError("no thread has the memory for a row")
    lanes = choose("lanes", lane_counts(found), usual_lanes(found))
    phases = _phases(s, rest, row)
    apart = _are_apart(s, rest) and found.count < machine.units
    possible = _block_counts(s, found, lanes, phases) if apart else [1]
    blocks = choose("blocks", possible, usual_blocks(found, lanes, possible))
    at = _Row(row, lanes, phases, found, blocks)
    taken = _place(s, at, rest, choose)
    fetched = _held_inputs(s, at, rest, choose)
    for loops in (*fetched, *phases.values()):
        mine = loops if blocks == 1 else _over_blocks(s, loops, at)
        over_threads(s, mine, lanes, ROUNDS)
    if blocks > 1:
        s.bind(row, "blockIdx.y")
        return s
    usual, possible = rows_in_block(found, lanes, taken)
    together = choose("rows", possible, usual)
    if together > 1:
        row, inner = s.split(row, together, "guard")
        s.bind(inner, "threadIdx.y")
    s.bind(row, "blockIdx.x")
    return s


def _block_counts(
    s: Schedule,
    rows: Rows,
    lanes: int,
    phases: Mapping[Computation, Sequence[str]],
) -> list[int]:
    """How many blocks may share a row: more than one where the machine has clusters; each has a
    part of one loop along the row, as long in all Computations."""
    known = extents(s.kernel)
    phased = filter(None, phases.values())
    along = {tuple(known[loop] for loop in loops) for loops in phased}
    if not rows.machine.bulk_copies or lanes == 1 or along != {(rows.width,)}:
        return [1]
    return [n for n in CLUSTERS if -(-rows.width // _part(rows.width, n, lanes)) == n]


def _are_apart(s: Schedule, computations: Sequence[Computation]) -> bool:
    """Whether no Computation reads what another one leaves in the caller's memory, which only one
    of the blocks writes."""
    made = {o.tensor for c in computations for o in c.outputs}
    read = {b for c in computations for b in c.inputs}
    return made.isdisjoint(read.intersection(s.kernel.params))


def _part(width: int, blocks: int, lanes: int) -> int:
    """How many elements of a row a block has: whole rounds of its threads."""
    rounds = -(-width // (blocks * lanes))
    return rounds * lanes


def _over_blocks(s: Schedule, loops: Sequence[str], at: _Row) -> list[str]:
    """Distribute a loop along a row over the blocks of a cluster, with what each block reduces in
    its memory; returns the loop over a block's part."""
    loop = fuse_all(s, loops)
    if loop is None:
        return []
    part = _part(at.rows.width, at.blocks, at.lanes)
    block, inner = s.split(loop, part, "guard")
    for update in _updates(s, block):
        s.rfactor(block, OF_CLUSTER, update)
        s.bind(f"{block}.clear", "blockIdx.x")
    s.bind(block, "blockIdx.x")
    return [inner]


def _updates(s: Schedule, loop: str) -> list[str]:
    """The buffer by which `rfactor` knows each reduction in a loop that all of it updates."""
    inside = (at.stmt for at in walk(_nest(s, loop)))
    found = [u for u in inside if isinstance(u, Update)]
    return [u.buffers[0].name for u in found if u.buffers]


def _row_dims(computations: Sequence[Computation]) -> list[Dim]:
    """The row dimensions: leading ones of the last Computation, as many as a reduction's free
    ones."""
    first = next(c for c in computations if not c.is_map)
    return free_dims(computations[-1])[: len(free_dims(first))]


def _one_row(s: Schedule, computations: Sequence[Computation]) -> str:
    """Everything in the loop over rows, which is returned; row results in registers."""
    dims = _row_dims(computations)
    last = computations[-1]
    outer = existing(s, _names(last, dims))
    if len(outer) > 1 and not last.is_map:
        s.reorder(*outer)
    for c in reversed(computations[:-1]):
        if any(o.tensor in s.kernel.params for o in c.outputs):
            mine = existing(s, _names(c, free_dims(c)[: len(dims)]))
            for one, other in zip(mine, outer, strict=True):
                s.merge(one, other)
            outer = mine
        else:
            s.compute_at(c.outputs[0].tensor.name, outer[-1])
    for loop in outer:
        run_at_once(s, loop)
    row = fuse_all(s, outer)
    assert row is not None
    accumulate_in_registers(s, _nest(s, row), row)
    for c in computations:
        for b in _own(s, c):
            if find_buffer(s.kernel, b.name, "set_scope")[0].size == 1:
                s.set_scope(b.name, "register")
            elif not c.is_map:
                raise ScheduleError(f"{b.name} has several results in a row")
    return row


def _between(s: Schedule, computations: Sequence[Computation]) -> int:
    """The bytes of the longest row that one Computation leaves to another."""
    own = (b for c in computations for b in _own(s, c))
    held = (find_buffer(s.kernel, b.name, "set_scope")[0] for b in own)
    return max((room_of(b) for b in held), default=0)


def _own(s: Schedule, c: Computation) -> list[Buffer]:
    """The results of a Computation that are still in buffers of the kernel, not in its
    accumulators."""
    there = {b.name for b in allocated(s.kernel.body)}
    own = [o.tensor for o in c.outputs if o.tensor not in s.kernel.params]
    return [b for b in own if b.name in there]


def _phases(
    s: Schedule, computations: Sequence[Computation], row: str
) -> dict[Computation, list[str]]:
    """The loops along the row of each Computation."""
    inside = {f.var.name for f in loops_of(_nest(s, row).body)}
    found = {c: existing(s, _names(c, c.dims)) for c in computations}
    return {c: [n for n in loops if n in inside] for c, loops in found.items()}


def _nest(s: Schedule, loop: str) -> For:
    return next(f for f in loops_of(s.kernel.body) if f.var.name == loop)


def _names(c: Computation, dims: Sequence[Dim]) -> list[str]:
    return [f"{c.name}.{d.var.name}" for d in dims]


def _product(dims: Sequence[Dim]) -> int:
    size = 1
    for d in dims:
        size *= d.extent
    return size


def _place(
    s: Schedule, at: _Row, computations: Sequence[Computation], choose: Choices
) -> int:
    """Place intermediate rows: in registers, in shared memory, or in device memory.

    Returns the bytes of shared memory that a row takes.
    """
    taken = 0
    for b in [b for c in computations for b in _own(s, c)]:
        here, _ = find_buffer(s.kernel, b.name, "set_scope")
        if here.size == 1:
            continue
        users = [at.phases[c] for c in computations if _uses(c, b)]
        size = room_of(here)
        possible: list[Scope] = ["global"]
        if at.blocks == 1 and taken + size <= at.free_bytes:
            possible.insert(0, "shared")
        if at.in_registers(here, users):
            possible.insert(0, "register")
        scope = choose(f"{b.name}.scope", possible, possible[0])
        s.set_scope(b.name, scope)
        taken += size if scope == "shared" else 0
        at.words += at.rounds(here) * (scope == "register")
    return taken


def _uses(c: Computation, b: Buffer) -> bool:
    return b in c.inputs or any(o.tensor is b for o in c.outputs)


def _held_inputs(
    s: Schedule, at: _Row, computations: Sequence[Computation], choose: Choices
) -> list[list[str]]:
    """Keep inputs of a row that are read more than once in registers; returns the loops that fetch
    them."""
    made = []
    for b in dict.fromkeys(b for c in computations for b in c.inputs):
        readers = [at.phases[c] for c in computations if b in c.inputs]
        if b not in s.kernel.params or b in s.kernel.outputs or len(readers) < 2:
            continue
        trial = s.fork()
        try:
            name = trial.cache_read(b.name, at.loop, "register")
        except ScheduleError:
            continue  # the elements read are not one box, or are changed
        held, _ = find_buffer(trial.kernel, name, "set_scope")
        fits = held.size > 1 and at.in_registers(held, readers)
        if not fits or not choose(f"{b.name}.held", (True, False), True):
            continue
        s.cache_read(b.name, at.loop, "register")
        at.words += at.rounds(held)
        made.append(existing(s, [f"{name}.r{n}" for n in range(len(held.shape))]))
    return made


@dataclass(eq=False)
class _Row:
    """A row while it is scheduled. loop: over rows. phases: the loops along the row of each
    Computation. words: registers of a thread that hold parts of the row."""

    loop: str
    lanes: int
    phases: dict[Computation, list[str]]
    rows: Rows
    blocks: int = 1
    words: int = 0

    @property
    def free_bytes(self) -> int:
        """Shared memory not used by partial results of reductions."""
        return self.rows.machine.shared - self.rows.tree_bytes * self.lanes

    def rounds(self, b: Buffer) -> int:
        """How many elements of a row each thread has."""
        return -(-b.size // (self.lanes * self.blocks))

    def in_registers(self, b: Buffer, users: Sequence[Sequence[str]]) -> bool:
        """Whether each thread only needs elements that it computed, and has the registers for
        them."""
        along = sum(n > 1 for n in b.shape) == 1 and all(len(u) == 1 for u in users)
        few = self.rounds(b) <= ROUNDS
        return along and few and self.words + self.rounds(b) <= self.rows.most_words
