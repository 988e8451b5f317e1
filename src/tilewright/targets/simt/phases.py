"""Programs of operators whose threads take turns: a block for each row, or one for everything.

    for r in rows: for k in n: { for i in m: A(k, i); x = f(k); while c: for j in m: B(j) }
    ->  blockIdx.x r: for k in n: { threadIdx.x i: A(k, i); x = f(k); while c: threadIdx.x j: B(j) }

The steps of a recurrence, levels of a sort, rounds of a suppression: all threads of a block execute
loops that need their order together, and the independent loops in them are its phases, between
which `to_launches` inserts barriers. The first thread executes what is in no such loop. Buffers of
a row are in shared memory, as far as they fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tilewright.loops.analysis.effects import allocated
from tilewright.loops.nodes import Alloc, Block, For, Stmt
from tilewright.loops.passes.shared_room import room_of
from tilewright.loops.walk import below, walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, fuse_all
from tilewright.schedule.tree import find_buffer, find_loop
from tilewright.targets.simt.binding import (
    chain,
    independent_outside,
    made_serial,
    nests,
    over_threads,
)
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.phase_cost import (
    PhaseWork,
    best_ns,
    block_threads,
    work_of,
)

UNROLLED: Final = 4  # rounds of a phase at most that are written out
SHORT: Final = 4  # iterations that are not worth a phase


def by_phases(
    s: Schedule, machine: SimtMachine, choose: Choices
) -> tuple[Schedule, set[str]]:
    """See the module's docstring; also the nests that are done. requires: a kernel that an operator
    gives.

    parameters: `<nest>.threads`, those of a block, 1 for a nest that stays as it is;
    `<buffer>.whole`, whether one block does all for which a buffer is allocated, and
    `<buffer>.threads`.
    """
    left = machine.shared
    done: set[str] = set()
    for name in _pieces(s, machine, choose):
        trial = s.fork()
        nest = _Nest(trial, name)
        usual, possible = block_threads(nest.work, machine)
        threads = choose(f"{name}.threads", possible, usual)
        if threads > 1:
            left -= nest.bind(threads, left)
            done.update(f.var.name for f in nests(nest.top()) if isinstance(f, For))
            s = trial
    return s, done


def _pieces(s: Schedule, machine: SimtMachine, choose: Choices) -> Iterator[str]:
    """The nests of a kernel, by their first loops, and what one block does, by its first buffer."""
    body = s.kernel.body
    for stmt in body.stmts if isinstance(body, Block) else (body,):
        inner = [n for n in nests(stmt) if isinstance(n, For)]
        if isinstance(stmt, Alloc):
            name = stmt.buffer.name
            apart = [_Nest(s.fork(), f.var.name) for f in inner]
            times = [best_ns(n.work, machine) + machine.launch_ns for n in apart]
            one = best_ns(_Nest(s.fork(), name).work, machine) + machine.launch_ns
            if choose(f"{name}.whole", (True, False), one <= sum(times)):
                yield name
                continue
        yield from (f.var.name for f in inner)


def work_together(s: Schedule, name: str) -> PhaseWork:
    """What one block does of the nest, or of the allocation, of this name."""
    return _Nest(s, name).work


class _Nest:
    """A nest, or all of an allocation, while it is scheduled.

    name: of its first loop or of the buffer. rows: its independent outer loops. phases: the
    independent loops inside, each a chain. own: buffers that it allocates.
    """

    def __init__(self, s: Schedule, name: str) -> None:
        self.s, self.name = s, name
        self.rows: list[str] = []
        inside = top = self.top()
        if isinstance(top, For):
            top = independent_outside(s, top)
            self.name = top.var.name
            self.rows = independent(s, top)
        if self.rows:
            inside = find_loop(s.kernel, self.rows[-1], "bind")[0].body
        self.phases = list(self._phases(inside))
        top = self.top()  # whose loops are serial now
        self.work: PhaseWork = work_of(top, self.rows, self.phases)
        self.own = list(allocated(top))

    def top(self) -> Stmt:
        """The nest or the allocation, as it is now."""
        for stmt in (p.stmt for p in walk(self.s.kernel.body)):
            if isinstance(stmt, For) and stmt.var.name == self.name:
                return stmt
            if isinstance(stmt, Alloc) and stmt.buffer.name == self.name:
                return stmt
        return Block(())  # its first loop is part of another one now

    def _phases(self, s: Stmt) -> Iterator[list[str]]:
        """The independent loops in a statement with at least SHORT iterations in total."""
        names = independent(self.s, s) if isinstance(s, For) else []
        sizes = extents_of(s, names)
        if names and sizes >= SHORT:
            yield names
            return
        for inner in below(s):
            yield from self._phases(inner)

    def bind(self, threads: int, room: int) -> int:
        """Bind rows to blocks, and phases to threads; the bytes of shared memory taken.

        room: bytes of shared memory that are left.
        """
        taken = 0
        for b in self.own:
            size = room_of(b)
            here, _ = find_buffer(self.s.kernel, b.name, "set_scope")
            if here.scope != "register" and taken + size <= room:
                self.s.set_scope(b.name, "shared")
                taken += size
        for loops in self.phases:
            over_threads(self.s, loops, threads, UNROLLED)
        row = fuse_all(self.s, existing(self.s, self.rows))
        if row is not None:
            self.s.bind(row, "blockIdx.x")
        return taken


def independent(s: Schedule, f: For) -> list[str]:
    """The loops of a chain, from its first on, whose iterations are independent; they become
    serial."""
    names = []
    for inner in chain(f):
        if not inner.trips or not made_serial(s, inner):
            break
        names.append(inner.var.name)
    return names


def extents_of(s: Stmt, names: Sequence[str]) -> int:
    """The iterations of the first loops of a chain."""
    count = 1
    for f in chain(s) if isinstance(s, For) else ():
        count *= (f.trips or 0) if f.var.name in names else 1
    return count
