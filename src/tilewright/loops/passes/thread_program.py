"""The body of a block as the program of one of its threads.

A loop over `threadIdx` is a phase. In the program of a thread its variable is the thread's number,
and what stood in it is guarded where the block has more threads than the loop has iterations:

    for i in 16 threadIdx.x: t[i] = x[i]             if threadIdx.x < 16: t[threadIdx.x] = ...
    y[0] = t[15]                              ->     if threadIdx.x < 1: y[0] = t[15]

A statement outside all loops of an axis is executed by the first thread along it; if it only fills
registers, by all threads, each its own. Guards surround single statements, so that a barrier can be
placed between them; `gathered` combines them again once the barriers are placed.

A buffer in "register" with phases in its scope is an array of each thread (`thread_registers`).

The blocks of a cluster that share memory (`cluster_memory.py`) are one more axis of threads: a loop
over them is a phase, too, and what stands outside all of them is done by the first block, or fills
the registers of all. A buffer in "shared" is inside such a loop, as each block has one.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Mapping,
)
from dataclasses import field
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.bounds import Env, less_than
from tilewright.expr.nodes import (
    Buffer,
    Expr,
    Extent,
    Lt,
    Not,
    Var,
    const,
)
from tilewright.ir.node import substitute, transform
from tilewright.loops.analysis.access import environment
from tilewright.loops.analysis.effects import allocated, writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.launch import AXIS, CombineThreads
from tilewright.loops.nodes import (
    COPY_KINDS,
    Alloc,
    Block,
    For,
    If,
    Stmt,
    Unit,
    While,
    block,
)
from tilewright.loops.passes.guards import Guards, guarded
from tilewright.loops.passes.thread_reductions import with_reductions
from tilewright.loops.passes.thread_registers import (
    Move,
    moved,
    own_elements,
    refusal,
)
from tilewright.loops.passes.warp_units import (
    LANES,
    check_fragments,
    check_units,
    lanes,
    warp_units,
)
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.loops.walk import below, loops_of, walk

THREAD_AXES: Final = tuple(axis for axis in AXIS if axis.startswith("threadIdx"))
THREAD: Final = frozenset(AXIS[axis] for axis in THREAD_AXES)
# What loops of other processors are in the program of a thread.
_IN_A_THREAD: Final = {"parallel": "serial", "vthread": "serial"}


@dataclass(frozen=True, eq=False, slots=True)
class ThreadProgram:
    """threads: on the axes x, y, z. shared, workspace: the buffers that `body` has of its block.

    homes: of each shared buffer, the variables of the loops in whose iterations it begins anew.
    cluster: the axis of blocks that share memory, if some do.
    """

    threads: tuple[int, int, int]
    shared: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    body: Stmt
    homes: Mapping[Buffer, frozenset[Var]]
    cluster: Var | None = None


def thread_program(
    body: Stmt,
    grid: Mapping[Var, Extent],
    warp: int = 1,
    cluster: str = "",
) -> ThreadProgram:
    """The program of one thread of a block, without barriers.

    body: of a block, with the numbers of the block as AXIS has them. grid: how many there are.
    warp: how many threads run in step. cluster: the axis of blocks that share memory, if some do.
    Raises ScheduleError (TW-LAUNCH) naming the loop or the buffer.
    """
    threads = dict.fromkeys(THREAD_AXES, 1)
    for f in _bound(body):
        _check(f, cluster)
        if f.kind == cluster:
            continue
        threads[f.kind] = max(threads[f.kind], f.trips or 0)
    together = lanes(body, threads)
    for unit in warp_units(body) if len(together) == 1 else ():
        threads[LANES] = max(threads[LANES], unit.threads)
    check_units(body, threads, warp, together)
    body = with_reductions(body, threads, warp, _blocks(grid))
    homes = _homes(body)
    own: dict[Any, Any] = {f.var: AXIS[f.kind] for f in _bound(body)}
    body = substitute(body, own)
    if cluster:
        whole = grid[AXIS[cluster]]
        assert isinstance(whole, int)
        threads[cluster] = whole
    work = _Block(threads, grid, environment(body), together, cluster)
    work.env |= {AXIS[axis]: (0, n - 1) for axis, n in threads.items()}
    check_fragments(body, together, work.env)
    merged = transform(work.merge(body, frozenset(), ()), _in_a_thread)
    x, y, z = (threads[axis] for axis in THREAD_AXES)
    return ThreadProgram(
        (x, y, z),
        tuple(work.shared.values()),
        tuple(work.workspace),
        moved(merged, work.moves),
        {mine: homes[b] for b, mine in work.shared.items()},
        AXIS[cluster] if cluster else None,
    )


def _homes(body: Stmt) -> dict[Buffer, frozenset[Var]]:
    """The variables of the loops around the allocations of each buffer."""
    found: dict[Buffer, frozenset[Var]] = {}
    for at in walk(body):
        if isinstance(at.stmt, Alloc):
            b = at.stmt.buffer
            around = frozenset(f.var for f in at.loops)
            found[b] = found.get(b, around) & around
    return found


def _blocks(grid: Mapping[Var, Extent]) -> Env:
    """That the numbers of a block are below how many there are."""
    found: dict[Any, Any] = {}
    for v, n in grid.items():
        if isinstance(n, int):
            found[v] = (0, n - 1)
        else:
            found |= {v: (0, None), **less_than(v, n)}
    return found


def varies(
    e: Expr,
    registers: Collection[Buffer],
    cluster: Var | None = None,
) -> bool:
    """Whether an expression may differ between the threads of a block, which have `registers`, or
    of the blocks of a cluster, on whose axis it is."""
    if not (THREAD | {cluster}).isdisjoint(variables(e)):
        return True
    return any(x.buffer in registers for x in loads(e))


def _bound(body: Stmt) -> list[For]:
    return [f for f in loops_of(body) if f.kind in AXIS]


def _check(f: For, cluster: str) -> None:
    where = f"loop {f.var.name}"
    if f.kind not in (*THREAD_AXES, cluster):
        hint = "bind the loops of the grid around all else, one directly in the other"
        raise refusal(f"it is {f.kind}, but inside a block", where, hint)
    if f.trips is None:
        what = f"a block has a constant number of threads, not {f.extent!r}"
        raise refusal(
            what, where, "split the loop by a constant and bind the inner one"
        )
    inside = next((g for g in loops_of(f.body) if g.kind == f.kind), None)
    if inside is not None:
        what = f"loop {inside.var.name} inside it is {f.kind} too"
        raise refusal(what, where, "bind one of them to another axis")


def _in_a_thread(s: Any) -> Any:
    if isinstance(s, For) and s.kind in _IN_A_THREAD:
        return s.replace(kind=_IN_A_THREAD[s.kind])
    return s


def _has_phases(s: Stmt) -> bool:
    if any(f.kind in AXIS for f in loops_of(s)):
        return True
    return next(warp_units(s), None) is not None


def _has_steps(s: Stmt) -> bool:
    """Whether what one thread does is several steps of its block: a buffer of the block is
    allocated there, or copies arrive later, for which there may be waits."""
    if isinstance(s, For) and s.kind in COPY_KINDS:
        return False
    for at in walk(s):
        match at.stmt:
            case Alloc(b):
                if b.scope in ("shared", OF_CLUSTER):
                    return True
            case For(kind=kind):
                if kind in COPY_KINDS:
                    return True
    return False


def _element_by_element(s: Stmt) -> bool:
    """Whether neither vector loops nor copies nor units, which take neighbors, are in a
    statement."""
    nodes = (at.stmt for at in walk(s))
    wide = ("vector", *COPY_KINDS)
    return not any(
        isinstance(n, Unit) or (isinstance(n, For) and n.kind in wide) for n in nodes
    )


Axes = frozenset[str]
_NONE: Final[Axes] = frozenset()


@dataclass(eq=False)
class _Block:
    """One block on its way. copies: of a register array, the axes whose threads all have the same.

    threads, grid: extents by axis and by number. env: bounds. lanes: the axes whose threads are a
    warp. cluster: the axis of blocks that are in `threads`, too. moves: what becomes of accesses.
    """

    threads: dict[str, int]
    grid: Mapping[Var, Extent]
    env: dict[Any, Any]
    lanes: Collection[str]
    cluster: str
    shared: dict[Buffer, Buffer] = field(default_factory=dict)
    workspace: list[Buffer] = field(default_factory=list)
    moves: dict[Buffer, Move] = field(default_factory=dict)
    copies: dict[Buffer, Axes] = field(default_factory=dict)

    def merge(
        self,
        s: Stmt,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        """`s` in the program of a thread; bound: the axes of the thread loops around it."""
        if isinstance(s, CombineThreads):
            return s  # by all threads, also those whose registers are never read
        if isinstance(s, Alloc):
            return self.alloc(s, bound, guards)
        if not (_has_phases(s) or _has_steps(s)):
            return self.single(s, bound, guards)
        return _MERGE[type(s)](self, s, bound, guards)

    def block(
        self,
        s: Block,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        return block(*(self.merge(inner, bound, guards) for inner in s.stmts))

    def loop(
        self,
        s: For,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        if s.kind not in self.threads:
            return self.control(s, s.extent, bound, guards)
        if s.trips != self.threads[s.kind]:
            guards = (*guards, Lt(s.var, s.extent))
        return self.merge(s.body, bound | {s.kind}, guards)

    def if_(
        self,
        s: If,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        if not self.varies(s.condition) or loads(s.condition):
            return self.control(s, s.condition, bound, guards)
        then = self.merge(s.then, bound, (*guards, s.condition))
        if s.otherwise is None:
            return then
        other = self.merge(s.otherwise, bound, (*guards, Not(s.condition)))
        return block(then, other)

    def while_(
        self,
        s: While,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        return self.control(s, s.condition, bound, guards)

    def control(
        self,
        s: Stmt,
        decides: Expr,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        """A loop or a condition around phases. Where threads differ in it, guards stay outside."""
        inside = () if self.varies(decides) else guards
        merged = {inner: self.merge(inner, bound, inside) for inner in below(s)}
        made: Stmt = s.map(lambda child: merged.get(child, child))
        return made if inside == guards else guarded(guards, made)

    def unit(
        self,
        s: Unit,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        if s.threads > 1:
            return self.single(s, bound, guards)
        what = "a loop in it is bound to threads, but a unit is done as one piece"
        raise refusal(what, f"unit {s.name}", "bind loops around units only")

    def alloc(
        self,
        s: Alloc,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        b = s.buffer
        spans = _has_phases(s)
        if b.scope == OF_CLUSTER:
            self.of_cluster(b, bound)
            return self.merge(s.body, bound, guards)
        if b.scope == "shared" or (spans and b.scope not in ("register", "warp")):
            apart = not b.swizzle and _element_by_element(s.body)
            self.of_block(b, bound, apart)
            return self.merge(s.body, bound, guards)
        if not spans:
            return self.single(s, bound, guards)
        together = self.lanes if b.scope == "warp" else ()
        threads = {a: n for a, n in self.threads.items() if a not in together}
        array, axes, move = own_elements(b, s.body, threads, self.env)
        self.copies[b] = frozenset(self.threads) - axes - bound
        self.moves[b] = move
        return Alloc(array, self.merge(s.body, bound, guards))

    def of_cluster(self, b: Buffer, bound: Axes) -> None:
        """A buffer of which each block of the cluster has its slice."""
        if bound:
            hint = "allocate it around the loops over threads and over the blocks of the cluster"
            what = "it is inside a loop over threads, or over the blocks that share it"
            raise refusal(what, f"buffer {b.name}", hint)
        self.shared[b] = b

    def of_block(
        self,
        b: Buffer,
        bound: Axes,
        apart: bool,
    ) -> None:
        """A buffer that threads of a block share: in its own memory, or in a part of the device's.

        Where it is allocated inside thread loops, each of their iterations has one. apart: whether
        the elements of one need not be neighbors: then neighboring threads' are, in other banks.
        """
        around = [axis for axis in reversed(THREAD_AXES) if axis in bound]
        last = [axis for axis in around if apart and axis == THREAD_AXES[0]]
        first = [axis for axis in around if axis not in last]
        before, after = (tuple(self.threads[a] for a in axes) for axes in (first, last))
        extents = (*before, *b.extents, *after)
        numbers: tuple[Expr, ...] = tuple(AXIS[axis] for axis in first)
        behind = tuple(AXIS[axis] for axis in last)
        scope = "shared"
        if b.scope == "global":
            common = self.cluster if self.cluster not in bound else ""
            grid = {v: n for v, n in self.grid.items() if v.name != common}
            extents = (*grid.values(), *extents)
            numbers = (*grid, *numbers)
            scope = "global"
        elif self.cluster and self.cluster not in bound:
            where = f"loop over {self.cluster}"
            hint = f"put it in {OF_CLUSTER!r}, or allocate it inside a {where}"
            what = f"each block of the cluster has its own, but no {where} is around it"
            raise refusal(what, f"buffer {b.name}", hint)
        mine = Buffer(b.name, extents, b.dtype, scope, b.swizzle)
        if scope == "global":
            self.workspace.append(mine)
        else:
            self.shared[b] = mine
        self.moves[b] = lambda index: (mine, (*numbers, *index, *behind))

    def single(
        self,
        s: Stmt,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        """What has no phase in it is done by the first thread on each axis that is not bound.

        Registers that all threads on an axis have a copy of are filled by all of them.
        """
        missing = [a for a, n in self.threads.items() if a not in bound and n > 1]
        written = writes(s) - allocated(s)
        for b in written:
            self.check_copies(b, bound)
        fillers = {self.copies.get(b, _NONE).intersection(missing) for b in written}
        if len(fillers) > 1:
            return self.parted(s, bound, guards)
        everyone = next(iter(fillers), _NONE)
        first = (Lt(AXIS[a], const(1)) for a in missing if a not in everyone)
        return guarded((*guards, *first), s)

    def parted(
        self,
        s: Stmt,
        bound: Axes,
        guards: Guards,
    ) -> Stmt:
        """Statements, some of which fill the registers of all threads one by one."""
        if isinstance(s, Block):
            return block(*(self.single(inner, bound, guards) for inner in s.stmts))
        if isinstance(s, Alloc):
            self.copies[s.buffer] = frozenset(self.threads) - bound
        parts = {inner: self.single(inner, bound, ()) for inner in below(s)}
        return guarded(guards, s.map(lambda child: parts.get(child, child)))

    def check_copies(
        self,
        b: Buffer,
        bound: Axes,
    ) -> None:
        """Raise ScheduleError where one thread would change what others have a copy of."""
        shared = self.copies.get(b, _NONE) & bound
        if b.scope == "warp":
            shared = shared.difference(self.lanes)  # each has its own fragment
        for axis in sorted(a for a in shared if self.threads[a] > 1):
            what = (
                f"the threads of {axis} write one element, but have separate registers"
            )
            hint = f"give it a dimension for {axis}, or put it in shared memory"
            raise refusal(what, f"buffer {b.name}", hint)

    def varies(
        self,
        e: Expr,
    ) -> bool:
        return varies(e, self.copies, AXIS.get(self.cluster))


_MERGE: Final[Mapping[type[Stmt], Callable[[_Block, Any, Axes, Guards], Stmt]]] = {
    Block: _Block.block,
    For: _Block.loop,
    If: _Block.if_,
    While: _Block.while_,
    Unit: _Block.unit,
}
