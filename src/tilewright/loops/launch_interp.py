"""The interpreter of programs of launches; it defines their meaning and detects every race.

The blocks of a launch run in random order, those of a cluster together; their threads run one
statement at a time, in an order drawn from a seeded generator. Each access to shared memory is
compared with earlier ones (`loops/shared_memory.py`).

Errors: RaceError with both threads and statements, DivergenceError if threads wait at different
barriers, ExecutionError (TW-INDEX) for an index out of range. Undefined elements read as NaN or an
odd integer; operations are those of `loops/interp.py`.
"""

from __future__ import annotations

import random
from collections.abc import (
    Mapping,
    Sequence,
)
from itertools import product
from math import gcd
from typing import Any

import numpy as np

from tilewright.base.errors import ExecutionError
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.interp import (
    check_array,
    elements,
    out_of_range,
    undefined,
)
from tilewright.loops.launch import (
    Barrier,
    CombineThreads,
    Commit,
    Launch,
    LaunchProgram,
    Wait,
)
from tilewright.loops.nodes import (
    Kernel,
    Unit,
    block,
)
from tilewright.loops.passes.in_flight import runs_beside
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.loops.shared_memory import (
    Place,
    RaceError,
    SharedRoom,
    SimulatedBlock,
    SimulatedThread,
    TrackedMemory,
    View,
    first_line,
)
from tilewright.loops.sizes import at, solve
from tilewright.loops.thread_exchange import DivergenceError, WarpExchange, combine
from tilewright.loops.thread_source import ThreadWriter


def run(
    program: LaunchProgram,
    buffers: Mapping[Buffer, Any],
    seed: int = 0,
) -> None:
    """Run `program` in place on one NumPy array per parameter, in an order that `seed` says.

    Raises InputError for a missing array or one of another shape or dtype, and the errors above.
    """
    kernel = Kernel(program.name, program.params, program.outputs, block())
    for b in program.params:
        check_array(kernel, b, buffers.get(b))
    sizes = solve(kernel, [buffers[b].shape for b in program.params])
    memory = {b: elements(buffers[b]) for b in program.params}
    for b in program.workspace:
        memory[b] = _fresh(b, sizes)
    rng = random.Random(seed)
    with np.errstate(all="ignore"):
        for launch in program.launches:
            _Grid(launch, sizes, memory, rng).run()
    for b in program.outputs:
        buffers[b].reshape(-1)[:] = np.asarray(memory[b], b.dtype.numpy)


def _fresh(
    b: Buffer,
    sizes: Mapping[Var, int],
) -> list[Any]:
    count = 1
    for extent in b.extents:
        count *= at(extent, sizes)
    return [undefined(b.dtype)] * count


class _Grid:
    """One launch."""

    def __init__(
        self,
        launch: Launch,
        sizes: Mapping[Var, int],
        memory: Mapping[Buffer, list[Any]],
        rng: random.Random,
    ) -> None:
        self.launch, self.sizes, self.rng = launch, sizes, rng
        writer = ThreadWriter()
        source = writer.launch(launch, list(sizes))
        self.statements = writer.statements
        scope = writer.scope | {"out_of_range": out_of_range, "undefined": undefined}
        exec(compile(source, f"<launch {launch.name}>", "exec"), scope)
        self.main = scope["main"]
        self.memory = [
            TrackedMemory(b, memory[b], self.statements) for b in launch.params
        ]

    def run(self) -> None:
        x, y, z = (range(at(n, self.sizes)) for n in self.launch.grid)
        clusters: dict[Place, list[Place]] = {}
        cx, cy, cz = self.launch.cluster
        for i, j, k in product(x, y, z):
            clusters.setdefault((i // cx, j // cy, k // cz), []).append((i, j, k))
        found = list(clusters.values())
        self.rng.shuffle(found)
        for numbers in found:
            common = self.common(numbers)
            blocks = self.blocks(numbers, common)
            self.cluster(blocks)
            self.check_ended(blocks)
            for memory in common.values():
                memory.check_ended(blocks[0].threads[0].clocks["cluster"])

    def common(self, numbers: Sequence[Place]) -> dict[Buffer, TrackedMemory]:
        """The buffers of which each block of a cluster has a slice."""
        made = {}
        for b in self.launch.shared:
            if b.scope == OF_CLUSTER:
                values = _fresh(b, self.sizes)
                made[b] = TrackedMemory(b, values, self.statements, owners=numbers)
        return made

    def blocks(
        self, numbers: Sequence[Place], common: Mapping[Buffer, TrackedMemory]
    ) -> list[SimulatedBlock]:
        """The blocks of a cluster, which see the memory of one another."""
        memories = [self.shared(common) for _ in numbers]
        for peers in zip(*memories, strict=True):
            for memory in peers:
                memory.peers = list(peers)
        return [self.block(n, m) for n, m in zip(numbers, memories, strict=True)]

    def block(self, number: Place, shared: Sequence[TrackedMemory]) -> SimulatedBlock:
        """A block with its threads, which are about to begin."""
        made = SimulatedBlock(number)
        nx, ny, nz = self.launch.threads
        for memory in shared:
            if not memory.owners:
                memory.home = made
        for z, y, x in product(range(nz), range(ny), range(nx)):
            clocks = {"shared": 0, "global": 0, "cluster": 0}
            thread = SimulatedThread(number, (x, y, z), clocks)
            views = [View(m, thread) for m in (*self.memory, *shared)]
            thread.program = self.main(*views, *self.sizes.values(), *number, x, y, z)
            next(thread.program)
            made.threads.append(thread)
        return made

    def cluster(self, blocks: Sequence[SimulatedBlock]) -> None:
        """Run the blocks of a cluster."""
        waiting: dict[SimulatedThread, tuple[int, Any]] = {}
        arriving = {b.number: WarpExchange(self.launch) for b in blocks}
        running = [t for b in blocks for t in b.threads]
        held: dict[SimulatedThread, int] = {}
        while running or waiting or held:
            for other in [t for t in held if t.lands(blocks, held[t])]:
                running.append(other)
                del held[other]
            if not running:
                running = self.met(blocks, waiting, held)
            thread = self.rng.choice(running)
            paused = self.step(thread)
            if paused is None:
                running.remove(thread)
                continue
            match self.statements[paused[0]]:
                case Commit(of):
                    thread.commit(of)
                case Wait("bulk", pending):
                    running.remove(thread)
                    held[thread] = pending
                case Wait(of, pending):
                    thread.wait(of, pending)
                case Barrier() | CombineThreads():
                    running.remove(thread)
                    waiting[thread] = paused
                case Unit() as unit if runs_beside(unit):
                    thread.adds.start(thread, unit.operands[-1].buffer)
                case Unit() as unit if paused[1] is None:
                    self.check_accumulators(thread, unit)
                case Unit() as unit:
                    running.remove(thread)
                    running += arriving[thread.block].come(unit, thread, paused)
        for warps in arriving.values():
            warps.check_left()

    def met(
        self,
        blocks: Sequence[SimulatedBlock],
        waiting: dict[SimulatedThread, tuple[int, Any]],
        held: Mapping[SimulatedThread, int],
    ) -> list[SimulatedThread]:
        """The threads that go on when none can on its own: those of blocks that wait at a barrier
        of their own, else all."""
        apart = {t.block for t, (at, _) in waiting.items() if not self.is_of_all(at)}
        ready = [
            b for b in blocks if b.number in apart and held.keys().isdisjoint(b.threads)
        ]
        if not ready and held:
            first = next(iter(held))
            raise DivergenceError(
                "a thread waits for a box that no thread copies",
                where=f"{self.launch.name}, block {first.block}",
            )
        groups = [b.threads for b in ready] or [[t for b in blocks for t in b.threads]]
        for threads in groups:
            self.meet(threads, waiting)
            for thread in threads:
                del waiting[thread]
        if not ready:
            for b in blocks:
                b.known = max(t.landed for t in b.threads)
        return [t for threads in groups for t in threads]

    def is_of_all(self, at: int) -> bool:
        """Whether a statement brings all threads of a cluster together."""
        s = self.statements[at]
        return isinstance(s, Barrier) and s.scope == "cluster"

    def check_ended(self, blocks: Sequence[SimulatedBlock]) -> None:
        """Raise RaceError if a block of a cluster has ended before its boxes were there."""
        groups = max(t.copied for b in blocks for t in b.threads)
        for b in blocks:
            if any(t.landed < groups for t in b.threads):
                raise RaceError(
                    f"block {b.number} ends with no wait for a box that is copied into its memory",
                    where=self.launch.name,
                )

    def shared(self, common: Mapping[Buffer, TrackedMemory]) -> list[TrackedMemory]:
        """The shared buffers of a block. common: those that it has a slice of."""
        places, sizes = (
            self.launch.places,
            [b.dtype.itemsize for b in self.launch.shared],
        )
        room = SharedRoom(gcd(*sizes))
        return [
            common.get(b)
            or TrackedMemory(
                b,
                _fresh(b, self.sizes),
                self.statements,
                room if places else SharedRoom(),
                places.get(b),
            )
            for b in self.launch.shared
        ]

    def check_accumulators(self, thread: SimulatedThread, unit: Unit) -> None:
        """Raise RaceError if a unit uses some that a product still adds to."""
        for o in unit.operands:
            try:
                thread.adds.check(o.buffer, unit)
            except RaceError as error:
                raise error.at(self.launch.name) from None

    def step(
        self,
        thread: SimulatedThread,
    ) -> tuple[int, Any] | None:
        """Run a thread up to its next statement; None at its end."""
        assert thread.program is not None
        try:
            paused = next(thread.program, None)
        except RaceError as error:
            raise error.at(self.launch.name) from None
        except ExecutionError as error:
            where = (
                f"{self.launch.name}, thread {thread.number} of block {thread.block}"
            )
            raise error.at(where) from None
        if paused is not None:
            thread.stmt = paused[0]
        return paused

    def meet(
        self,
        threads: Sequence[SimulatedThread],
        waiting: Mapping[SimulatedThread, tuple[int, Any]],
    ) -> None:
        """All threads are at one statement, which brings them together."""
        first = next(t for t in threads if t in waiting)
        for thread in threads:
            if thread not in waiting or waiting[thread][0] != waiting[first][0]:
                raise self.diverged(first, thread, waiting)
        s = self.statements[first.stmt]
        if isinstance(s, CombineThreads):
            combine(s, [waiting[t][1] for t in threads])
            return
        assert isinstance(s, Barrier)
        for thread in threads:
            thread.clocks["shared"] += 1
            thread.clocks["global"] += s.scope != "shared"
            thread.clocks["cluster"] += s.scope == "cluster"

    def diverged(
        self,
        one: SimulatedThread,
        other: SimulatedThread,
        waiting: Mapping[SimulatedThread, tuple[int, Any]],
    ) -> DivergenceError:
        line = first_line(self.statements[one.stmt])
        does = f"thread {other.number} has ended"
        if other in waiting:
            where = waiting[other][0]
            waits = first_line(self.statements[where])
            does = f"thread {other.number} at statement {where}, `{waits}`"
        return DivergenceError(
            f"thread {one.number} waits at statement {one.stmt}, `{line}`, and {does}",
            where=f"{self.launch.name}, block {one.block}",
        )
