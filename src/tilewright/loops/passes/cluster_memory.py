"""Memory that the blocks of a cluster share: each writes its own slice, and reads those of others.

    alloc p[4] in cluster:                     launch f_0(..) grid [4, 1, 1] .. cluster [4, 1, 1]:
      for b in 4 blockIdx.x:                     shared p: float32[4] in cluster
        p[b] = sum of x[b * 64 ..]        ->     p[blockIdx.x] = ...
      for b in 4 blockIdx.x:                     barrier cluster
        for c in 4: y[b] add= p[c]               for c in 4: y[blockIdx.x] add= p[c]
                                                 barrier cluster

A buffer in scope "cluster" is allocated inside the loops over the blocks of the grid. Loops over
one more axis of blocks are inside it: these blocks are the cluster. They are phases, as loops over
threads are, and may be several, one after the other. The first index of the buffer is the number
of the block that has the slice. So

    a block writes only where the first index is its own number
    a dependence on such a buffer needs a barrier of the cluster (`barriers.py`)
    one is behind the last use of another block's slice, as the memory of a block that has ended is
        no more
    all blocks come to these barriers equally often: what is around them depends neither on the
        number of the block in its cluster nor on data
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tilewright.expr.nodes import Extent
from tilewright.loops.analysis.access import Access, accesses
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.launch import Barrier
from tilewright.loops.nodes import GPU_AXES, Alloc, Block, For, Stmt, block
from tilewright.loops.passes.clusters import MOST, Cluster
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.loops.walk import below, loops_of

_HINT: Final = "keep what blocks exchange in global memory, in two launches"


def cluster_that_shares(
    body: Stmt,
    grid: dict[str, Extent],
) -> Cluster | None:
    """The blocks that share memory in the body of a block, if some do; adds their axis to the grid.

    grid: the extents of the other axes. Raises ScheduleError (TW-LAUNCH) naming the loop or buffer
    for which there is no such cluster.
    """
    buffers = sorted(allocated(body), key=lambda b: b.name)
    shared = [b for b in buffers if b.scope == OF_CLUSTER]
    if not shared:
        return None
    loops = list(_over_blocks(body))
    if not loops:
        what = "no loop over blocks is inside it"
        raise refusal(what, f"buffer {shared[0].name}", "bind one to blockIdx")
    first = loops[0]
    for f in loops:
        where = f"loop {f.var.name}"
        if f.kind != first.kind:
            what = f"it is {f.kind}, but the blocks that share memory are {first.kind}"
            raise refusal(what, where, "bind it to the same axis")
        if f.kind in grid:
            what = f"it is {f.kind}, as a loop around the memory of its cluster is"
            raise refusal(what, where, "bind one of them to another axis")
        if f.trips is None:
            what = f"a cluster has a constant number of blocks, not {f.extent!r}"
            raise refusal(what, where, "split the loop by a constant")
    count = max(f.trips or 0 for f in loops)
    found = Cluster(first.kind, count, first.var.name, _HINT)
    if not 2 <= count <= MOST:
        raise found.refusal(f"it has 2 to {MOST} blocks, not {count}")
    for b in shared:
        if not b.extents or b.extents[0] != count:
            what = f"it has no slice for each of the {count} blocks that share it"
            hint = "its first index is the number of the block in its cluster"
            raise refusal(what, f"buffer {b.name}", hint)
    grid[first.kind] = count
    return found


def _over_blocks(body: Stmt) -> Iterator[For]:
    kinds = [axis for axis in GPU_AXES if axis.startswith("blockIdx")]
    return (f for f in loops_of(body) if f.kind in kinds)


def check_slices(
    program: Stmt,
    cluster: Cluster,
) -> None:
    """Raise ScheduleError (TW-LAUNCH) where a block may write to another one's slice."""
    for a in accesses(program):
        is_shared = a.buffer.scope == OF_CLUSTER
        if is_shared and a.writes and a.index[0] is not cluster.number:
            what = f"{a} may be in the memory of another block"
            hint = "write where the first index is the block's own number, in a loop over blocks"
            raise refusal(what, f"buffer {a.buffer.name}", hint)


def with_last_meeting(
    program: Stmt,
    cluster: Cluster,
) -> Stmt:
    """The program of a thread, in which barriers are placed, with one of the cluster behind the
    last use of another block's memory."""
    if not _is_used(program, cluster, False):
        return program
    return block(program, Barrier("cluster"))


def _is_used(
    s: Stmt,
    cluster: Cluster,
    before: bool,
) -> bool:
    """Whether another block's memory may have been used, with no barrier of the cluster since, at
    the end of a statement. before: whether that is so in front of it."""
    match s:
        case Barrier(scope):
            return before and scope != "cluster"
        case Block() | Alloc():
            for inner in below(s):
                before = _is_used(inner, cluster, before)
            return before
        case For() if s.trips:
            return _is_used(s.body, cluster, before)
    others = (_is_of_others(a, cluster) for a in accesses(s))
    return before or any(others)


def _is_of_others(a: Access, cluster: Cluster) -> bool:
    return a.buffer.scope == OF_CLUSTER and a.index[0] is not cluster.number
