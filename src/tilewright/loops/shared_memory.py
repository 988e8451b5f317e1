"""Shared memory that records accesses and finds every race.

Only barriers order two threads, and all threads of a block reach each of them, so the vector clock
of a thread is one number: how many barriers it has passed (for the caller's memory, how many of
scope "global"; for threads of two blocks of a cluster, how many of scope "cluster"). Two accesses
to an element, one of them a write, are a race if the threads are in different blocks, or are
different and have the same clock, whether or not the values are right in this run; but not if both
are atomic updates by one reducer. The elements
that an `async` loop copies, and those that a unit beside the threads reads, are in use until the
thread waits for their group: what conflicts with it before that is also a race, even by the same
thread; and so is another use of such a unit's accumulators. Elements of a box that one thread
copies are there for each thread that has waited for its group, and, if a block of the cluster
copies it for the others, for these at the next barrier of the cluster.

Of a buffer in scope "cluster" each block of the cluster has a slice, which it alone may write;
others may read it only between barriers of the cluster: before the first one its block may not have
begun, and behind the last one it may have ended.

Buffers of a block may share room: accesses of two of them conflict if they touch the same bytes,
and what one had there is undefined once the other is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import field
from itertools import chain
from typing import Any, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError
from tilewright.expr.nodes import Buffer
from tilewright.expr.swizzle import swizzled
from tilewright.loops.interp import undefined
from tilewright.loops.nodes import Stmt
from tilewright.loops.passes.in_flight import BOXES, COMMITTED, COPIES, PRODUCTS
from tilewright.loops.printer import show
from tilewright.loops.scopes import OF_CLUSTER

Place = tuple[int, int, int]


class RaceError(ExecutionError):
    """Two threads touch an element, one of them to change it, with no barrier between."""

    code = "TW-RACE"


class ThreadAccess(NamedTuple):
    """One access: its thread and block, the thread's clock, and the statement.

    flies: part of a copy or of a product that is in flight. group: of a box, whose number that is;
    else -1. met: the clock of the cluster; -1 where that orders nothing. atomic: the reducer of an
    atomic update; else empty.
    """

    block: Place
    thread: Place
    clock: int
    writes: bool
    stmt: int
    flies: bool = False
    group: int = -1
    met: int = -1
    atomic: str = ""

    def races(self, other: ThreadAccess, landed: int) -> bool:
        """Whether another one, after this, is a race. landed: the groups of boxes that the other
        one's thread has waited for, or knows to be there."""
        if not (self.writes or other.writes):
            return False
        if self.atomic and self.atomic == other.atomic:
            return False
        if self.flies:
            return True
        if self.group >= 0:
            return self.group >= landed
        if self.block != other.block:
            return self.met == other.met
        return self.thread != other.thread and self.clock == other.clock


@dataclass(eq=False)
class SimulatedThread:
    """A thread: the statement that it is at, and the clocks by scope.

    ended, landed, copied: groups of boxes that it has ended, that it knows to be there, and up to
    the last one to which it has copied.
    """

    block: Place
    number: Place
    clocks: dict[str, int]
    stmt: int = 0
    program: Generator[tuple[int, Any], None, None] | None = None
    ended: int = 0
    landed: int = 0
    copied: int = 0
    adds: Accumulators = field(default_factory=lambda: Accumulators())
    flying: dict[str, Groups] = field(default_factory=lambda: defaultdict(lambda: [[]]))

    def commit(self, of: str) -> None:
        """What it has started since the last time is one group."""
        self.ended += of == BOXES
        self.flying[of].append([])

    def lands(self, blocks: Sequence[SimulatedBlock], pending: int) -> bool:
        """Wait for boxes, which the first threads of the cluster's blocks copy; False: one has not
        yet."""
        needed = self.ended - pending
        if any(block.threads[0].ended < needed for block in blocks):
            return False
        self.landed = max(self.landed, needed)
        return True

    def wait(self, of: str, pending: int) -> None:
        """What it has started is over, at its clock of now, but for the latest groups."""
        *groups, open_ = self.flying[of]
        if not pending and of not in COMMITTED:
            groups.append(open_)
            open_ = []
        over = max(len(groups) - pending, 0)
        for memory, position in chain.from_iterable(groups[:over]):
            memory.over(position, self)
        self.flying[of] = [*groups[over:], open_]

    def start(self, of: str, memory: InUse, position: int) -> None:
        """An element is in use from now on."""
        self.flying[of][-1].append((memory, position))


@dataclass(eq=False)
class SimulatedBlock:
    """A block. known: the groups of boxes that all threads of its cluster know to be in its
    memory."""

    number: Place
    threads: list[SimulatedThread] = field(default_factory=list)
    known: int = 0


@dataclass(eq=False)
class SharedRoom:
    """Memory of one buffer, whose elements are its cells, or of several that share it.

    cell: bytes of a cell then, which all elements are multiples of. touched: by whom. owners: of
    cells that several buffers have, the one that was written last.
    """

    cell: int = 1

    touched: dict[int, dict[ThreadAccess, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    owners: dict[int, TrackedMemory] = field(default_factory=dict)


@dataclass(eq=False)
class TrackedMemory:
    """The elements of a buffer, and who touched each of them in this launch. at: the byte at which
    it begins in a room that it shares. home: the block that has it. peers: what the blocks of its
    cluster have, itself included. owners: the blocks that have a slice of it each."""

    buffer: Buffer
    values: list[Any]
    statements: Sequence[Stmt]
    room: SharedRoom = field(default_factory=lambda: SharedRoom())
    at: int | None = None
    home: SimulatedBlock | None = None
    peers: list[TrackedMemory] = field(default_factory=list)
    owners: Sequence[Place] = ()

    def owner(self, position: int) -> Place:
        """The block that has an element."""
        return self.owners[position * len(self.owners) // len(self.values)]

    def check_slice(self, position: int, thread: SimulatedThread, writes: bool) -> None:
        """Raises RaceError for an access to another block's slice that no barrier can order."""
        home = self.owner(position)
        if home == thread.block:
            return
        wrong = "" if thread.clocks["cluster"] else "whose block may not have begun"
        if writes:
            wrong = "which is in the memory of another block"
        if wrong:
            line = first_line(self.statements[thread.stmt])
            raise RaceError(
                f"thread {thread.number} of block {thread.block} uses an element, {wrong}, "
                f"in `{line}`",
                where=self.place(position),
            )

    def check_ended(self, meetings: int) -> None:
        """Raises RaceError for a use of another block's slice behind the last of so many barriers
        of the cluster."""
        for position, touched in self.room.touched.items() if self.owners else ():
            for a in touched:
                if a.block != self.owner(position) and a.met == meetings:
                    raise RaceError(
                        f"{self.said(a)}, and its block may have ended: no barrier of the "
                        "cluster is behind",
                        where=self.place(position),
                    )

    def place(self, position: int) -> str:
        """The text of an element."""
        shape = [e if isinstance(e, int) else -1 for e in self.buffer.extents]
        index = ", ".join(map(str, _unflattened(position, shape)))
        return f"{self.buffer.name}[{index}]"

    def touch(
        self,
        position: int,
        thread: SimulatedThread,
        writes: bool,
        flies: bool = False,
        group: int = -1,
        atomic: str = "",
    ) -> None:
        """Note an access. Raises RaceError where it and an earlier one are a race."""
        if self.owners:
            self.check_slice(position, thread, writes)
        clock = self.clock(thread)
        met = self.met(thread)
        new = ThreadAccess(
            thread.block,
            thread.number,
            clock,
            writes,
            thread.stmt,
            flies,
            group,
            met,
            atomic,
        )
        landed = thread.landed
        if self.home is not None and self.home.number != thread.block:
            landed = self.home.known
        comes_later = writes and (flies or group >= 0)
        for cell in self.cells(position):
            if writes and self.at is not None:
                self.room.owners[cell] = self
            before = self.room.touched[cell]
            if new in before and not comes_later:
                continue
            for old in before:
                if old.races(new, landed):
                    raise self.race(position, old, new)
            before[new] = None

    def cells(self, position: int) -> Sequence[int]:
        """The parts of its room that an element has."""
        if self.at is None:
            return (position,)
        size, cell = self.buffer.dtype.itemsize, self.room.cell
        first = self.at + swizzled(position * size, self.buffer.swizzle)
        return range(first // cell, (first + size) // cell)

    def value(self, position: int) -> Any:
        """An element, which is undefined where another buffer was written since."""
        owners = self.room.owners
        if any(owners.get(cell, self) is not self for cell in self.cells(position)):
            return undefined(self.buffer.dtype)
        return self.values[position]

    def clock(self, thread: SimulatedThread) -> int:
        return thread.clocks["shared" if self.is_shared else "global"]

    def met(self, thread: SimulatedThread) -> int:
        return thread.clocks["cluster"] if self.is_shared else -1

    @property
    def is_shared(self) -> bool:
        """Whether threads of a block, or of a cluster, share it in the memory of blocks."""
        return self.buffer.scope in ("shared", OF_CLUSTER)

    def over(self, position: int, thread: SimulatedThread) -> None:
        """What a thread copied there is there, or what it multiplied is read."""
        for touched in map(self.room.touched.__getitem__, self.cells(position)):
            for old in list(touched):
                who = old.block, old.thread
                if old.flies and who == (thread.block, thread.number):
                    del touched[old]
                    clock = self.clock(thread)
                    met = self.met(thread)
                    now = old._replace(clock=clock, flies=False, met=met)
                    touched[now] = None

    def race(
        self,
        position: int,
        old: ThreadAccess,
        new: ThreadAccess,
    ) -> RaceError:
        one, two = (self.said(touch) for touch in (old, new))
        apart = "in other blocks"
        is_met = self.home is not None and new.block != self.home.number
        if is_met or (self.owners and new.block != old.block):
            apart = "with no barrier of the cluster between"
        elif old.flies or old.group >= 0:
            apart = "with no wait between"
        elif old.block == new.block:
            apart = "with no barrier between"
        return RaceError(f"{one}, and {two}, {apart}", where=self.place(position))

    def said(self, touch: ThreadAccess) -> str:
        does = "writes" if touch.writes else "reads"
        who = f"thread {touch.thread} of block {touch.block}"
        return f"{who} {does} it in `{first_line(self.statements[touch.stmt])}`"


def _unflattened(position: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for extent in reversed(shape):
        if extent < 0:  # only a call knows it: the rest is not distinguished
            return [position, *index]
        position, rest = divmod(position, extent)
        index.insert(0, rest)
    return index


def first_line(s: Stmt) -> str:
    return show(s).split("\n", 1)[0]


@dataclass(eq=False)
class Accumulators:
    """Those of the units beside a thread, by buffer; counts: how many units still add to each."""

    counts: Counter[Buffer] = field(default_factory=Counter)
    buffers: list[Buffer] = field(default_factory=list)

    def start(self, thread: SimulatedThread, buffer: Buffer) -> None:
        """A unit adds to them."""
        if buffer not in self.buffers:
            self.buffers.append(buffer)
        self.counts[buffer] += 1
        thread.start(PRODUCTS, self, self.buffers.index(buffer))

    def over(self, position: int, thread: SimulatedThread) -> None:
        """A unit has added to them."""
        self.counts[self.buffers[position]] -= 1

    def check(self, buffer: Buffer, s: Stmt) -> None:
        """Raises RaceError if a unit still adds to them."""
        if self.counts[buffer]:
            raise RaceError(
                f"`{first_line(s)}` uses accumulators with no wait for their product",
                where=buffer.name,
            )


InUse = TrackedMemory | Accumulators
# Elements that one thread has in use, by the group in which it started that.
Groups = list[list[tuple[InUse, int]]]


@dataclass(eq=False)
class View:
    """The memory as one thread sees it."""

    memory: TrackedMemory
    thread: SimulatedThread

    def __getitem__(self, position: int) -> Any:
        self.memory.touch(position, self.thread, False)
        return self.memory.value(position)

    def __setitem__(
        self,
        position: int,
        value: Any,
    ) -> None:
        self.memory.touch(position, self.thread, True)
        self.memory.values[position] = value

    def held(self, position: int, reducer: str) -> Any:
        """An element in front of an atomic update, which ends by `atomic`."""
        self.memory.touch(position, self.thread, True, atomic=reducer)
        return self.memory.value(position)

    def atomic(self, position: int, value: Any) -> None:
        """The end of an atomic update."""
        self.memory.values[position] = value

    def copy(self, position: int, value: Any) -> None:
        """A write that arrives later."""
        self.memory.touch(position, self.thread, True, flies=True)
        self.memory.values[position] = value
        self.thread.start(COPIES, self.memory, position)

    def box(self, position: int, value: Any) -> None:
        """A write that arrives later, for the threads that wait."""
        group = self.thread.ended
        self.thread.copied = group + 1
        self.memory.touch(position, self.thread, True, group=group)
        self.memory.values[position] = value

    def multicast(self, position: int, value: Any) -> None:
        """The same, in the memory of all blocks of the cluster."""
        for peer in self.memory.peers:
            View(peer, self.thread).box(position, value)

    def factor(self, position: int) -> Any:
        """A read that is over later."""
        self.memory.touch(position, self.thread, False, flies=True)
        self.thread.start(PRODUCTS, self.memory, position)
        return self.memory.value(position)
