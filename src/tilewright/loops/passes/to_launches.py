"""A Kernel as the launches of a GPU: one per nest, each the program of one thread.

    alloc p[8]:                            program f(x) -> y:
      for b in 8 blockIdx.x:                 workspace p[8]
        for t in 32 threadIdx.x: ...   ->    launch f_0(x, p) grid [8, 1, 1] threads [32, 1, 1]: ...
      for i in 8: y[0] add= p[i]             launch f_1(p, y) grid [1, 1, 1] threads [1, 1, 1]: ...

Each statement at the root of a kernel becomes a launch, in order; consecutive statements of one
thread share a launch. Buffers allocated around them become device memory. A nest without a loop
over blocks is one block. Loops over blocks are directly nested, except for conditions and buffers,
which become part of each block, and for those over blocks that share memory (`cluster_memory.py`).
"""

from __future__ import annotations

from dataclasses import field
from itertools import groupby
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Extent
from tilewright.ir.node import substitute
from tilewright.loops.analysis.effects import allocated, reads, writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.launch import AXIS, Launch, LaunchProgram
from tilewright.loops.nodes import (
    GPU_AXES,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    block,
)
from tilewright.loops.passes.async_copies import with_async_copies
from tilewright.loops.passes.atomics import noted_loop, with_atomics
from tilewright.loops.passes.barriers import with_barriers
from tilewright.loops.passes.bulk_copies import with_bulk_copies, with_last_waits
from tilewright.loops.passes.cluster_memory import (
    check_slices,
    cluster_that_shares,
    with_last_meeting,
)
from tilewright.loops.passes.clusters import cluster_of, in_parts, with_multicasts
from tilewright.loops.passes.constant_memory import check_constant_reads
from tilewright.loops.passes.guards import gathered
from tilewright.loops.passes.shared_room import shared_places
from tilewright.loops.passes.thread_program import THREAD_AXES, thread_program
from tilewright.loops.passes.thread_registers import Move, moved, refusal
from tilewright.loops.passes.warp_units import with_units
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.loops.sizes import statement
from tilewright.loops.walk import loops_of

BLOCK_AXES: Final = tuple(axis for axis in GPU_AXES if axis.startswith("blockIdx"))


def to_launches(
    kernel: Kernel,
    warp: int = 1,
    async_copies: bool = False,
    bulk_copies: bool = False,
    own_room: int | None = None,
) -> LaunchProgram:
    """The launches of a kernel whose loops are bound to the axes of a GPU.

    warp: the number of threads that run in lockstep and can combine values without shared memory.
    async_copies: whether threads continue while memory is copied, where notes allow it.
    bulk_copies: whether one thread copies boxes of tensors, and blocks of a cluster parts of these,
    where notes allow it.
    own_room: bytes of shared memory for each thread of a block, up to which its buffers share no
    room; None: they never do.
    Raises ScheduleError (TW-LAUNCH) naming the loop or buffer that prevents it.
    """
    work = _Kernel(kernel, warp, bulk_copies, own_room)
    body = statement(kernel)
    if bulk_copies:
        body = with_bulk_copies(kernel, body)
    work.root(with_async_copies(kernel, body) if async_copies else body)
    params = kernel.params
    workspace = tuple(work.workspace)
    return LaunchProgram(
        kernel.name, params, kernel.outputs, workspace, tuple(work.launches)
    )


@dataclass(eq=False)
class _Kernel:
    """A kernel during conversion; moves: the device buffers that replace its own."""

    kernel: Kernel
    warp: int
    in_clusters: bool
    own_room: int | None
    workspace: list[Buffer] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    moves: dict[Buffer, Move] = field(default_factory=dict)

    def root(
        self,
        s: Stmt,
    ) -> None:
        """The launches of the statements outside all loops."""
        if isinstance(s, Block) and any(map(_is_bound, s.stmts)):
            for bound, together in groupby(s.stmts, _is_bound):
                for inner in together if bound else [block(*together)]:
                    self.root(inner)
        elif isinstance(s, Alloc) and not _is_one_block(s):
            self.of_device(s.buffer)
            self.root(s.body)
        elif not (isinstance(s, Block) and not s.stmts):
            self.launches.append(self.launch(s))

    def of_device(
        self,
        b: Buffer,
    ) -> None:
        if b.scope in ("shared", "warp"):
            hint = "allocate it inside the loops over blocks"
            raise refusal("it is outside all blocks", f"buffer {b.name}", hint)
        mine = Buffer(b.name, b.extents, b.dtype)
        self.workspace.append(mine)
        self.moves[b] = lambda index: (mine, index)

    def launch(
        self,
        nest: Stmt,
    ) -> Launch:
        grid: dict[str, Extent] = {}
        names: dict[Any, Any] = {}
        body = substitute(_inside_grid(nest, grid, names), names)
        sharing = cluster_that_shares(body, grid)
        cluster = sharing
        if self.in_clusters and (noted := cluster_of(self.kernel, nest, grid)):
            if sharing is not None:
                raise noted.refusal("other blocks share memory in it")
            cluster = noted
            body = with_multicasts(body, cluster)
        numbers = {AXIS[axis]: extent for axis, extent in grid.items()}
        axis = "" if sharing is None else sharing.axis
        found = thread_program(moved(body, self.moves), numbers, self.warp, axis)
        if sharing is not None:
            check_slices(found.body, sharing)
        self.workspace += found.workspace
        x, y, z = (grid.get(axis, 1) for axis in BLOCK_AXES)
        if loop := noted_loop(self.kernel, nest):
            found = with_atomics(found, (x, y, z), loop)
        threads = dict(zip(THREAD_AXES, found.threads, strict=True))
        room = self.own_room
        places = {} if room is None else shared_places(found, room)
        program = with_last_waits(with_barriers(found, (x, y, z), places))
        if sharing is not None:
            program = with_last_meeting(program, sharing)
        if cluster is not None:
            program = in_parts(program, cluster)
        program = gathered(with_units(program, threads))
        check_constant_reads(program)
        used = reads(program) | writes(program)
        known = (*self.kernel.params, *self.workspace)
        return Launch(
            f"{self.kernel.name}_{len(self.launches)}",
            tuple(b for b in known if b in used),
            (x, y, z),
            found.threads,
            found.shared,
            program,
            places,
            (1, 1, 1) if cluster is None else cluster.shape,
        )


def _is_bound(s: Stmt) -> bool:
    """Whether a statement at the root needs more than one thread.

    An allocation around several nests does, even if none of their loops is bound: it outlives a
    thread, and may be larger than a thread's memory.
    """
    parts = s.stmts if isinstance(s, Block) else (s,)
    if any(isinstance(inner, Alloc) for inner in parts):
        return True
    return any(f.kind in GPU_AXES for f in loops_of(s))


def _is_one_block(s: Alloc) -> bool:
    """Whether allocations around a single block, or cluster, at the root are memory of that."""
    if s.buffer.scope == OF_CLUSTER:
        return True
    if s.buffer.scope != "shared":
        return False
    return not any(f.kind in BLOCK_AXES for f in loops_of(s))


def _inside_grid(
    s: Stmt,
    grid: dict[str, Extent],
    names: dict[Any, Any],
) -> Stmt:
    """The body of a block; adds the extents of the grid by axis, and the numbers by loop."""
    if not any(f.kind in BLOCK_AXES for f in loops_of(s)):
        return s
    if isinstance(s, Alloc) and s.buffer.scope == OF_CLUSTER:
        return s
    if isinstance(s, For) and s.kind in BLOCK_AXES:
        if s.kind in grid:
            hint = "bind one of them to another axis"
            raise refusal(
                f"it is {s.kind}, as a loop around it is", f"loop {s.var.name}", hint
            )
        if loads(s.extent) or not names.keys().isdisjoint(variables(s.extent)):
            what = f"the number of blocks, {s.extent!r}, differs between blocks"
            raise refusal(
                what, f"loop {s.var.name}", "bind a loop around it to the grid"
            )
        grid[s.kind] = s.count
        names[s.var] = AXIS[s.kind]
        return _inside_grid(s.body, grid, names)
    if isinstance(s, Alloc):
        return Alloc(s.buffer, _inside_grid(s.body, grid, names))
    if isinstance(s, If) and s.otherwise is None:
        return If(s.condition, _inside_grid(s.then, grid, names), None)
    if any(b.scope == OF_CLUSTER for b in allocated(s)):
        return s
    f = next(f for f in loops_of(s) if f.kind in BLOCK_AXES)
    what = f"it is {f.kind}, but not all around it are loops over blocks"
    hint = "reorder the loops over blocks to the outside; split off or merge what is next to them"
    raise refusal(what, f"loop {f.var.name}", hint)
