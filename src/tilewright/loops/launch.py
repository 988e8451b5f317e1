"""What a GPU is given: a Kernel as launches, each the program of one thread of a grid of blocks.

    Program = Program(name, params, outputs, workspace, launches)      the launches run in order
    Launch  = Launch(name, params, grid, threads, shared, body, places, cluster)
                                                 body: what one thread runs
    Stmt   += Barrier(scope)                     the threads of a block synchronize
            | Commit(of)                         what the thread has started since the last: a group
            | Wait(of, pending)                  that is over, but for the latest groups
            | Combine(buffers, indices, reducer, width)  one value of each thread, combined
            | Atomic(..)                         an Update that no other thread comes between

In a Kernel a loop over `threadIdx` is a phase: it may have others next to it in its block, each
over its own threads, and what a later one reads from an earlier one is complete, since the
interpreter runs one after the other. A Launch has the same phases in one program of a thread, with
barriers where a thread reads or overwrites what another one wrote, and nowhere else: they follow
from the dependences of the Kernel (`loops/passes/to_launches.py`), and are never written by hand.

Meaning: the blocks of a grid run in any order, the threads of a block at any relative speed. `body`
has the variables of `AXIS`, its own registers (`Alloc` in "register"), the block's `shared`
buffers and the buffers of the caller. Two threads may not access one element if one of them writes
it, unless a barrier of that scope is between (in different blocks: never), or both are Atomic by
one reducer. Every thread of a block reaches a Barrier or Combine together with the others, or none
does.

Neighboring blocks may be a cluster: they run at the same time, all its threads reach each Barrier
of scope "cluster", and what a `multicast` loop of one block writes is in the shared memory of all
of them. A Wait for boxes is one for the parts of all its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import sizes_of
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Extent, Var
from tilewright.loops.nodes import GPU_AXES, Stmt, Update

# The number of a block in its grid, and of a thread in its block, on each axis.
AXIS: Final = {axis: Var(axis, INDEX) for axis in GPU_AXES}


class Barrier(Stmt):
    """All threads of the block come here before one continues.

    scope: "shared" where they exchange shared memory only, "global" where the caller's as well,
    "cluster" where all threads of the cluster come.
    """

    scope: str


class Commit(Stmt):
    """What the thread has started since its last Commit is one group. of: as for `Wait`."""

    of: str


class Wait(Stmt):
    """What the thread has started is over.

    of: "copies", what it has copied in `async` loops, which is in shared memory then. Before it
    comes here nobody may touch it, itself included; others may after a barrier. "products", the
    units beside the threads: before, nobody may write their factors or touch their accumulators.
    pending: how many groups, the latest ones, may still be in flight, and what is in no group yet;
    0: nothing may be.
    """

    of: str
    pending: int


class CombineThreads(Stmt):
    """The components of a reducer, combined over `width` neighboring threads.

    Each thread has one element of each buffer, in registers, and has the result of its neighbors
    there afterwards. Neighbors are threads of one warp whose numbers agree but for the last
    log2(width) bits; they are combined as a tree, earlier threads on the left, so that the result
    is the same each time and a reducer that does not commute is combined in order.
    """

    buffers: tuple[Buffer, ...]
    indices: tuple[tuple[Expr, ...], ...]
    reducer: Reducer
    width: int

    @property
    def targets(self) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
        """Each buffer with the index of the element that is combined."""
        return zip(self.buffers, self.indices, strict=True)


class AtomicUpdate(Update, intern=False):
    """An Update of one element of the device's memory, done as one step.

    Threads of any blocks may do such steps on one element, in any order: sums of floats may differ
    in the last bits from run to run. Its reducer and dtype are in `atomics.ATOMIC`.
    """


@dataclass(frozen=True, eq=False, slots=True)
class Launch:
    """A grid of blocks of threads.

    grid, threads: how many there are on the axes x, y, z. shared: what each block has once, with
    undefined contents at first. params: the buffers of the caller and of the workspace that `body`
    uses. places: the byte of the block's memory at which each shared buffer begins, if some share
    room: what one had there is undefined once another one is written; empty if none do. cluster:
    blocks of a cluster on the axes x, y, z, which divide those of the grid.
    """

    name: str
    params: tuple[Buffer, ...]
    grid: tuple[Extent, Extent, Extent]
    threads: tuple[int, int, int]
    shared: tuple[Buffer, ...]
    body: Stmt
    places: Mapping[Buffer, int] = field(default_factory=dict)
    cluster: tuple[int, int, int] = (1, 1, 1)

    def with_body(self, body: Stmt) -> Launch:
        """The same grid and buffers around another program."""
        return replace(self, body=body)


@dataclass(frozen=True, eq=False, slots=True)
class LaunchProgram:
    """Launches in order; each sees the results of earlier ones.

    params: the Kernel's parameters, including outputs. workspace: further device buffers that live
    while the program runs.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    launches: tuple[Launch, ...]

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The sizes in the extents that are known only at run time."""
        return tuple(sizes_of(e for b in self.params for e in b.extents))

    def __repr__(self) -> str:
        from tilewright.loops.printer import show_program

        return show_program(self)
