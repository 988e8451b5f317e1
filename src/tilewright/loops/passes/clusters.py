"""Clusters of blocks, each of which copies a part of what all of them need.

    for b in 8 blockIdx.x {cluster: 2}:         launch f_0(..) grid [8, 1, 1] .. cluster [2, 1, 1]:
      for r in 64 {bulk: 1}: for c in 64:  ->     for r in 32 multicast: for c in 64:
        t[r, c] = x[r, c]                           t[blockIdx.x % 2 * 32 + r, c] = x[..]

A loop over blocks that is noted `CLUSTER` says how many neighbors on its axis are a cluster, where
the machine has boxes (`bulk_copies.py`). A box is the same for all of them if neither its place in
the tensor nor that in shared memory depends on the number on this axis: then it is divided along
its outermost side, and each block copies its part into the memory of all.

The memory of a block has another writer then. All blocks of a cluster run the same copies, waits
and barriers: nothing around these depends on the number on this axis, or on data. So

    a wait for a group of boxes is one for the parts of all blocks
    what is in front of a box that overwrites it, in any block, needs a barrier of scope "cluster"
        (`barriers.py`), even if the same thread does both
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Expr, Extent, Var, const
from tilewright.expr.swizzle import PATTERN
from tilewright.ir.node import substitute, transform
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.launch import AXIS, Barrier, Commit, Wait
from tilewright.loops.nodes import (
    BULK,
    CLUSTER,
    MULTICAST,
    For,
    If,
    Kernel,
    Stmt,
    While,
)
from tilewright.loops.passes.bulk_copies import box_copy
from tilewright.loops.passes.in_flight import BOXES
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.walk import StatementPlace, loops_of, walk

MOST: Final = 8  # blocks of a cluster, on every GPU that has them


_LEAVE_OUT: Final = "leave the note out: each block copies all that it needs then"


class Cluster(NamedTuple):
    """Neighboring blocks on an axis of the grid. loop: that is bound to it. hint: what to do
    without."""

    axis: str
    blocks: int
    loop: str
    hint: str = _LEAVE_OUT

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many there are on the axes x, y, z."""
        x, y, z = (self.blocks if self.axis.endswith(a) else 1 for a in "xyz")
        return x, y, z

    @property
    def number(self) -> Var:
        """The number of a block on the axis."""
        return AXIS[self.axis]

    @property
    def rank(self) -> Expr:
        """The number of a block in its cluster."""
        return self.number % self.blocks

    def refusal(self, what: str) -> ScheduleError:
        """The error of a loop that is no cluster."""
        return refusal(f"no cluster of blocks: {what}", f"loop {self.loop}", self.hint)


def cluster_of(
    kernel: Kernel, nest: Stmt, grid: Mapping[str, Extent]
) -> Cluster | None:
    """The cluster that a nest is noted to have. grid: the extents of its blocks, by axis.

    Raises ScheduleError (TW-LAUNCH) where the grid has no such clusters.
    """
    notes = kernel.notes
    noted = [f for f in loops_of(nest) if CLUSTER in notes.get(f.var.name, ())]
    if not noted:
        return None
    first, *others = noted
    count = notes[first.var.name][CLUSTER]
    whole = count if isinstance(count, int) else 0
    found = Cluster(first.kind, whole, first.var.name)
    extent = grid.get(first.kind)
    if others:
        raise found.refusal(f"loop {others[0].var.name} is another one")
    if extent is None:
        raise found.refusal(f"the loop is {first.kind}, not one over blocks")
    if not 2 <= whole <= MOST:
        raise found.refusal(f"it has 2 to {MOST} blocks, not {count}")
    if not isinstance(extent, int) or extent % whole:
        raise found.refusal(f"{extent} blocks are not a multiple of {whole}")
    return found


def with_multicasts(body: Stmt, cluster: Cluster) -> Stmt:
    """The body of a block with the boxes that are the same for all blocks of its cluster noted as
    such. Raises ScheduleError (TW-LAUNCH) if none is."""

    def rewritten(node: Any) -> Any:
        is_box = isinstance(node, For) and node.kind == BULK
        return (
            node.replace(kind=MULTICAST)
            if is_box and _is_shared(node, cluster)
            else node
        )

    made: Stmt = transform(body, rewritten)
    if made is body:
        raise cluster.refusal("none of its boxes is the same for all of them")
    return made


def _is_shared(f: For, cluster: Cluster) -> bool:
    """Whether a box is the same for all blocks, and can be divided among them."""
    copy = box_copy(f)
    places = (*copy.start, copy.place)
    if any(cluster.number in variables(a) for form in places for a, _ in form.terms):
        return False
    assert f.trips is not None
    is_whole = f.trips % cluster.blocks == 0
    return is_whole and copy.box.nbytes % (cluster.blocks * PATTERN) == 0


def in_parts(body: Stmt, cluster: Cluster) -> Stmt:
    """The program of a thread, in which barriers are placed, with the part of each box that its
    block copies.

    Raises ScheduleError (TW-LAUNCH) where blocks of a cluster may do different things.
    """
    for at in walk(body):
        if _is_together(at.stmt):
            _check_alike(at, cluster)

    def rewritten(node: Any) -> Any:
        if isinstance(node, For) and node.kind == MULTICAST:
            return _part(node, cluster)
        return node

    made: Stmt = transform(body, rewritten)
    return made


def _part(f: For, cluster: Cluster) -> For:
    """The part of a box that a block copies."""
    assert f.trips is not None
    n = f.trips // cluster.blocks
    moved = cluster.rank * n + f.var
    body: Stmt = substitute(f.body, {f.var: moved})
    return f.replace(extent=const(n), body=body)


def _is_together(s: Stmt) -> bool:
    """Whether all blocks of a cluster have to come to a statement equally often."""
    match s:
        case Barrier(scope):
            return scope == "cluster"
        case Commit(of) | Wait(of, _):
            return of == BOXES
        case For(kind=kind):
            return kind in (BULK, MULTICAST)
    return False


def _check_alike(at: StatementPlace, cluster: Cluster) -> None:
    for s in at.above:
        if isinstance(s, While):
            raise cluster.refusal("a while loop is around what all of them do together")
        for e in _decides(s):
            if loads(e) or cluster.number in variables(e):
                what = f"{e!r} may differ between blocks that do something together"
                raise cluster.refusal(what)


def _decides(s: Stmt) -> Iterator[Expr]:
    """What decides whether, and how often, the inside of a statement runs."""
    if isinstance(s, If):
        yield s.condition
    elif isinstance(s, For):
        yield s.extent
