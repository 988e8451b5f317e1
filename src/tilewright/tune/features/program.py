"""The form of a Kernel that all feature sets read: loops, statements, accesses, operations.

Analyzed once. Loops with a single iteration are skipped, because they vanish in the code, and so
are the bodies of loops without iterations. Both branches of a condition count, and the body of a
While counts once. Extents that are not constant count as their largest value, sizes known only at
run time as `indices.STAND_IN`. The loops inside a Unit with an intrinsic have the kind `unit`.

Statements of kernels are immutable, and a schedule keeps those that it does not change: each nest
is analyzed once, even if several kernels contain it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Expr, Extent, Load, Var
from tilewright.loops.nodes import (
    SIZE,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
)
from tilewright.tune.features.indices import Indices
from tilewright.tune.features.operations import (
    Counts,
    Operations,
    count,
    of_reducer,
)
from tilewright.tune.features.regions import (
    TensorAccess,
    TensorShape,
    TouchedTensor,
    access,
    touch,
)

UNIT = "unit"


@dataclass(slots=True, eq=False)
class FeatureLoop:
    """A loop with two iterations or more. kind: of the For, or UNIT; outer: the enclosing loop."""

    var: Var
    trips: int
    kind: str
    depth: int
    outer: FeatureLoop | None


@dataclass(slots=True, eq=False)
class FeatureLine:
    """A statement that computes and stores.

    loops: enclosing ones, outermost first. accesses: the written elements, then distinct reads.
    operations: of one execution, without index arithmetic. reduces: whether it is an Update.
    branches: number of enclosing conditions.
    """

    loops: tuple[FeatureLoop, ...]
    accesses: list[TensorAccess]
    operations: Operations
    reduces: bool
    branches: int
    _touches: list[TouchedTensor] | None = None

    @property
    def target(self) -> TensorAccess:
        """The first element written."""
        return self.accesses[0]

    @property
    def executions(self) -> int:
        """The number of executions."""
        return math.prod([f.trips for f in self.loops])

    @property
    def touches(self) -> list[TouchedTensor]:
        """Its accesses by tensor, the written tensor first."""
        if self._touches is None:
            by_buffer: dict[Buffer, list[TensorAccess]] = {}
            for a in self.accesses:
                if a.buffer in by_buffer:
                    by_buffer[a.buffer].append(a)
                else:
                    by_buffer[a.buffer] = [a]
            levels = len(self.loops)
            self._touches = [touch(found, levels) for found in by_buffer.values()]
        return self._touches


@dataclass(slots=True, eq=False)
class FeatureAllocation:
    """A buffer that is allocated inside `loops`."""

    buffer: Buffer
    shape: TensorShape
    loops: tuple[FeatureLoop, ...]


@dataclass(slots=True, eq=False)
class FeatureNest:
    """A statement enclosed only by allocations and size loops, with everything inside it.

    loops: all of them in program order. kept: cached results of feature sets, by key.
    """

    loops: list[FeatureLoop] = field(default_factory=list)
    lines: list[FeatureLine] = field(default_factory=list)
    allocations: list[FeatureAllocation] = field(default_factory=list)
    kept: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class KernelNests:
    """All nests of a kernel in order; allocations: those outside the nests."""

    kernel: Kernel
    nests: list[FeatureNest]
    allocations: list[FeatureAllocation]

    @property
    def parameters(self) -> list[TensorShape]:
        """The shapes of the kernel's parameters."""
        return [shape_of(b) for b in self.kernel.params]

    @property
    def lines(self) -> list[FeatureLine]:
        """All statements in program order."""
        return [line for nest in self.nests for line in nest.lines]

    @property
    def loops(self) -> list[FeatureLoop]:
        """All loops in program order."""
        return [f for nest in self.nests for f in nest.loops]

    @property
    def all_allocations(self) -> list[FeatureAllocation]:
        """Those outside the nests, then those inside."""
        inner = [a for nest in self.nests for a in nest.allocations]
        return [*self.allocations, *inner]


_nests: WeakKeyDictionary[Stmt, FeatureNest] = WeakKeyDictionary()


def forget() -> None:
    """Clear the cache of nests; for benchmarks."""
    _nests.clear()


def program(kernel: Kernel) -> KernelNests:
    """Analyze a kernel."""
    found = KernelNests(kernel, [], [])
    stack = [kernel.body]
    while stack:
        s = stack.pop()
        if isinstance(s, Block):
            stack.extend(reversed(s.stmts))
        elif isinstance(s, Alloc):
            allocation = FeatureAllocation(s.buffer, shape_of(s.buffer), ())
            found.allocations.append(allocation)
            stack.append(s.body)
        elif isinstance(s, For) and s.kind == SIZE:
            stack.append(s.body)
        else:
            found.nests.append(_nest(s))
    return found


def _nest(s: Stmt) -> FeatureNest:
    nest = _nests.get(s)
    if nest is None:
        walk = _Walk()
        walk.stmt(s)
        nest = _nests[s] = walk.nest
    return nest


@lru_cache(maxsize=1024)
def shape_of(buffer: Buffer) -> TensorShape:
    """The shape of a buffer."""
    extents = tuple(_extent(n) for n in buffer.extents)
    strides: list[int] = []
    step = 1
    for n in reversed(extents):
        strides.append(step)
        step *= n
    return TensorShape(extents, tuple(reversed(strides)), buffer.dtype.itemsize)


def _extent(n: Extent) -> int:
    if isinstance(n, int):
        return n
    return max(1, int(Indices({}, {}, {}).highest(n, ())))


class _Walk:
    """One walk over a nest. stack: enclosing loops; unit: number of enclosing intrinsics."""

    def __init__(self) -> None:
        self.nest = FeatureNest()
        self.stack: list[FeatureLoop] = []
        self.trips: list[int] = []
        self.unit = 0
        self.branches = 0
        self.indices = Indices({}, {}, {})
        self.shapes: dict[Buffer, TensorShape] = {}
        self.reads: dict[Load, TensorAccess] = {}

    def stmt(self, s: Stmt) -> None:
        _STATEMENTS[type(s)](self, s)

    def loop(self, s: For) -> None:
        around = len(self.stack)
        body: Stmt = s
        while isinstance(body, For):
            trips = body.trips
            if trips is None:
                trips = self.highest(body.extent)
            if trips < 1:
                break
            if trips == 1:
                self.indices.known[body.var] = 0
            else:
                self.enter(body, trips)
            body = body.body
        else:
            _STATEMENTS[type(body)](self, body)
        del self.stack[around:]
        del self.trips[around:]

    def highest(self, extent: Expr) -> int:
        highest = self.indices.highest(extent, self.trips)
        return max(1, int(highest))

    def enter(self, s: For, trips: int) -> None:
        depth = len(self.stack)
        outer = self.stack[-1] if depth else None
        kind = UNIT if self.unit else s.kind
        found = FeatureLoop(s.var, trips, kind, depth, outer)
        self.nest.loops.append(found)
        self.indices.depths[s.var] = depth
        self.stack.append(found)
        self.trips.append(trips)

    def block(self, s: Block) -> None:
        for inner in s.stmts:
            self.stmt(inner)

    def alloc(self, s: Alloc) -> None:
        allocation = FeatureAllocation(
            s.buffer, self.shape(s.buffer), tuple(self.stack)
        )
        self.nest.allocations.append(allocation)
        self.stmt(s.body)

    def branch(self, s: If) -> None:
        self.branches += 1
        self.stmt(s.then)
        if s.otherwise is not None:
            self.stmt(s.otherwise)
        self.branches -= 1

    def repeat(self, s: While) -> None:
        self.branches += 1
        self.stmt(s.body)
        self.branches -= 1

    def instruction(self, s: Unit) -> None:
        self.unit += s.intrinsic is not None
        self.stmt(s.body)
        self.unit -= s.intrinsic is not None

    def store(self, s: Store) -> None:
        self.line([(s.buffer, s.index)], (s.value,), {}, False)

    def update(self, s: Update) -> None:
        operations = dict(of_reducer(s.reducer))
        self.line(list(s.targets), s.values, operations, True)

    def line(
        self,
        targets: list[tuple[Buffer, tuple[Expr, ...]]],
        values: tuple[Expr, ...],
        operations: Counts,
        reduces: bool,
    ) -> None:
        loads: list[Load] = []
        count(values, operations, loads, self.indices)
        accesses = [self.access(b, at, reduces, True) for b, at in targets]
        for a in accesses:
            for at in a.index:
                loads += at.loads
        for load in loads:  # grows during the loop by the loads of indices
            read = self.read(load)
            if read not in accesses:
                accesses.append(read)
                for at in read.index:
                    loads += at.loads
        loops = tuple(self.stack)
        made = FeatureLine(loops, accesses, operations, reduces, self.branches)
        self.nest.lines.append(made)

    def read(self, load: Load) -> TensorAccess:
        found = self.reads.get(load)
        if found is None:
            found = self.access(load.buffer, load.index, True, False)
            self.reads[load] = found
        return found

    def access(
        self, buffer: Buffer, index: tuple[Expr, ...], reads: bool, writes: bool
    ) -> TensorAccess:
        met = self.indices.read
        at = tuple([met.get(i) or self.indices(i) for i in index])
        return access(buffer, self.shape(buffer), at, self.trips, reads, writes)

    def shape(self, buffer: Buffer) -> TensorShape:
        found = self.shapes.get(buffer)
        if found is None:
            found = self.shapes[buffer] = shape_of(buffer)
        return found


_STATEMENTS: Mapping[type[Stmt], Callable[[_Walk, Any], None]] = {
    For: _Walk.loop,
    Block: _Walk.block,
    Alloc: _Walk.alloc,
    If: _Walk.branch,
    While: _Walk.repeat,
    Unit: _Walk.instruction,
    Store: _Walk.store,
    Update: _Walk.update,
}
