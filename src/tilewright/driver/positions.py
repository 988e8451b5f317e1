"""Kernels of an open plan over positions: kernels of a fixed number of them, in loops.

What some positions read is gathered side by side, in their order along all open extents at once: a
kernel of fixed sizes, with all schedules of its target, then computes their results, which are
scattered to their places. No kernel depends on an extent, so no image has a remainder of its own
along each axis: only the last positions of all are fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace
from functools import reduce
from itertools import takewhile
from math import isqrt, prod
from operator import and_

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, UnsupportedError, VerifyError
from tilewright.base.names import fresh
from tilewright.driver.block_counts import BlockCounts, block_counts
from tilewright.driver.part_assembly import (
    PartAssembly,
    PartedWork,
    decline,
    scheduled_part,
)
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, substitute
from tilewright.loops.analysis.access import environment
from tilewright.loops.nodes import Alloc, For, If, Kernel, Stmt, Store, block, loop
from tilewright.loops.passes.hoist import HoistedKernel
from tilewright.loops.sizes import statement
from tilewright.loops.verify import verify
from tilewright.plan.nodes import FusionGroup, OpenExtent
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.plan.positions import Positions, PositionWindow, positions
from tilewright.schedule import edit
from tilewright.schedule.primitives.reshape import onto_shape
from tilewright.targets.base import Target

CHUNK = 64  # contiguous elements, at most, that are copied at a time


def by_positions(
    kernel: Kernel,
    forms: Sequence[FusionGroup],
    constants: Collection[Buffer],
    target: Target,
    sizes: Sequence[OpenExtent],
) -> PartedWork | None:
    """The scheduled kernel of a group as a loop over blocks of positions.

    kernel: unscheduled, with all sizes of the plan. forms: the group in several forms, of which the
    first one is taken that the target is good at; the last is the group itself, which computes so
    few positions that the other one would take longer. sizes: of the plan.
    None if the group is no function of positions, if the target expects kernels of few positions to
    take too long, or if all schedules reshape a tensor irreversibly.
    """
    found: list[tuple[int, _PositionKernels]] = []
    for n, group in enumerate(forms):
        made = positions(group.computations, kernel.params, constants)
        if made is not None:
            maker = _PositionKernels(kernel, group, made, constants, target, sizes)
            found.append((n - len(forms), maker))
    if not found:
        decline(kernel, "positions", "it does not do the same at each position")
    for n, (form, maker) in enumerate(found):
        least, most = maker.ends()
        chosen = maker.chosen(least, most)
        if chosen is None:
            continue
        few = _few(maker, chosen, [m for _, m in found[n + 1 :]])
        made_of = _made(maker, chosen, few)
        if made_of is not None:
            return replace(made_of, form=form)
    return None


@dataclass(frozen=True, eq=False, slots=True)
class _FewPositions:
    """Another form of the group, for so many points at most."""

    maker: _PositionKernels
    counts: BlockCounts
    most: int


def _few(
    maker: _PositionKernels, chosen: BlockCounts, others: Sequence[_PositionKernels]
) -> _FewPositions | None:
    """The last other form where it takes less time than blocks of positions of several points."""
    points = maker.points
    if points == 1 or not others or others[-1].points > 1:
        return None
    other = others[-1]
    largest = chosen.counts[0] * points
    known = BlockCounts.of(other.counts(largest), other.block_cost)
    totals = range(1, largest + 1)
    faster = (known.cost(n) < chosen.cost(-(-n // points)) for n in totals)
    most = sum(1 for _ in takewhile(bool, faster))
    least, _ = other.ends()
    counts = other.chosen(least, most) if least <= most else None
    return None if counts is None else _FewPositions(other, counts, most)


def _made(
    maker: _PositionKernels, chosen: BlockCounts, few: _FewPositions | None
) -> PartedWork | None:
    name = maker.kernel.name
    shown = {} if few is None else {"few": few.most, "by": list(few.counts.counts)}
    counts, points = list(chosen.counts), maker.points
    events.emit("positions", kernel=name, at_a_time=counts, points=points, **shown)
    try:
        return _assembled(maker, chosen, few)
    except (ScheduleError, UnsupportedError, VerifyError) as error:
        events.emit("kept-whole", kernel=name, reason=str(error))
    return None


@dataclass(frozen=True, eq=False, slots=True)
class _PositionKernels:
    """Makes the kernels of some positions, and the kernel of all."""

    kernel: Kernel
    group: FusionGroup
    positions: Positions
    constants: Collection[Buffer]
    target: Target
    sizes: Sequence[OpenExtent]
    _scheduled: dict[int, HoistedKernel | str] = field(default_factory=dict)

    def grid(
        self,
        count: int,
    ) -> tuple[int, ...]:
        """So many positions along each open dimension.

        In a row, or where each has several points, as near to a square as possible.
        """
        dims = len(self.positions.counts)
        steps = self.positions.steps.values()
        rows = isqrt(count) if dims > 1 and max(steps) > 1 else 1
        while count % rows:
            rows -= 1
        return (*[1] * (dims - 2), rows, count // rows)[-dims:]

    def parts(
        self,
        count: int,
    ) -> dict[PositionWindow, Buffer]:
        """The local tensors of what is gathered and scattered."""
        found = {}
        grid = self.grid(count)
        windows = (*self.positions.windows, *self.positions.written.values())
        for n, w in enumerate(windows):
            shape = self.positions.shape(w, grid)
            name = f"{w.tensor.name}.{count}.{n}"
            found[w] = Buffer(name, shape, w.tensor.dtype)
        return found

    def signature(
        self,
        count: int,
    ) -> tuple[KernelSignature, set[Buffer]]:
        """The kernel to compile for so many positions, and its constant parameters."""
        parts = self.parts(count)
        some = self.positions.some(self.grid(count), parts)
        group = replace(self.group, computations=tuple(some))
        live = [parts[w] for w in self.positions.written.values()]
        found = kernel_signature(group, live, parts=False)
        pairs = zip(found.values, found.params, strict=True)
        return found, {p for b, p in pairs if b in self.constants}

    @property
    def points(
        self,
    ) -> int:
        """The points of a position of the last Computation, along all open dimensions."""
        found = self.positions
        return int(found.steps[found.last] ** len(found.counts))

    def work(
        self,
        count: int,
    ) -> float:
        """The nanoseconds that the target expects for the arithmetic of so many positions."""
        found, constants = self.signature(count)
        return self.target.predicted_work(found.computations, constants)

    def block_cost(
        self,
        count: int,
    ) -> float:
        """The nanoseconds that the target expects for a block of so many positions.

        Each block reads all weights again.
        """
        costs = self.target.open_costs
        found = self.positions
        read = {b for c in found.dims for b in c.inputs if b in self.constants}
        weights = sum(b.size * b.dtype.itemsize for b in read)
        rate = costs.near_ns if weights <= costs.kept else costs.far_ns
        return self.work(count) + weights * rate

    def ends(
        self,
    ) -> tuple[int, int]:
        """The least and the greatest number of positions, of all sizes of the plan."""
        total = prod_of(self.positions.counts)
        least: dict[Node, Node] = {e.size: const(e.least, INDEX) for e in self.sizes}
        most: dict[Node, Node] = {e.size: const(e.most, INDEX) for e in self.sizes}
        found = [simplify(substitute(total, ends), {}) for ends in (least, most)]
        low, high = (int(n.value.real) if isinstance(n, Const) else 1 for n in found)
        return low, high

    def counts(
        self,
        most: int,
    ) -> list[int]:
        """Possible numbers of positions of a block, descending.

        At most as many as a cache keeps the windows of. Where a position has several points along
        each dimension, it is a tile of a method that needs several tiles along each.
        """
        costs = self.target.open_costs
        several = max(self.positions.steps.values()) > 1
        base = (1 << len(self.positions.counts[-2:])) if several else 1
        found = [base]
        while (
            found[-1] < min(most, costs.many_positions)
            and self.gathered(2 * found[-1]) <= costs.gathered
        ):
            found.append(2 * found[-1])
        return found[::-1]

    def chosen(
        self,
        least: int,
        most: int,
    ) -> BlockCounts | None:
        """The numbers of positions per block, for so many in all; None if blocks do not pay."""
        costs = self.target.open_costs
        counts = self.counts(most)
        few, many = counts[-1], counts[0]
        if not self.is_good(many):
            self.decline(f"{many} at a time have no good schedule")
            return None
        # Most of a tile would be empty.
        if many >= few * costs.few_units**2:
            if self.work(few) * costs.few_units > self.work(many):
                self.decline("kernels of few positions take too long")
                return None
        while counts:
            found = block_counts(least, most, counts, self.block_cost, costs.block_gain)
            refused = [n for n in found.counts if isinstance(self.part(n), str)]
            if not refused:
                return found
            counts = [n for n in counts if n not in refused]
        reason = self.part(few)
        events.emit("kept-whole", kernel=self.kernel.name, reason=reason)
        return None

    def decline(
        self,
        reason: str,
    ) -> None:
        """Report why blocks of this form's positions do not pay."""
        points = self.points
        which = "positions" if points == 1 else f"positions of {points} points"
        decline(self.kernel, which, reason)

    def part(
        self,
        count: int,
    ) -> HoistedKernel | str:
        """The scheduled kernel of so many positions; why there is none.

        A schedule of some numbers may reshape a tensor irreversibly, and one of others not.
        """
        if count not in self._scheduled:
            found, constants = self.signature(count)
            try:
                local = {b.name for b in self.parts(count).values()}
                made = scheduled_part(found, constants, self.target, local)
                self._scheduled[count] = made
            except (ScheduleError, UnsupportedError, VerifyError) as error:
                reason = str(error)
                name = self.kernel.name
                events.emit("kept-apart", kernel=name, count=count, reason=reason)
                self._scheduled[count] = reason
        return self._scheduled[count]

    def is_good(
        self,
        count: int,
    ) -> bool:
        """Whether the target has a good schedule for so many positions."""
        found, _ = self.signature(count)
        return self.target.is_profitable(found.computations)

    def gathered(
        self,
        count: int,
    ) -> int:
        """The bytes of what is gathered for so many positions."""
        parts = self.parts(count)
        return sum(
            parts[w].size * w.tensor.dtype.itemsize for w in self.positions.windows
        )


def _assembled(
    maker: _PositionKernels, chosen: BlockCounts, few: _FewPositions | None
) -> PartedWork:
    """A loop for each number of positions; another form's loops where there are few."""
    assembly = PartAssembly(maker.kernel)
    body = _loops(assembly, maker, chosen, "")
    if few is not None:
        other = _loops(assembly, few.maker, few.counts, ".few")
        total = prod_of(few.maker.positions.counts)
        body = If(total <= const(few.most, INDEX), other, body)
    around = statement(assembly.kernel)
    if isinstance(around, If):  # the bounds of sizes, which proofs need
        body = If(around.condition, body, None)
    found = assembly.work(body)
    verify(found.kernel)
    return found


def _loops(
    assembly: PartAssembly, maker: _PositionKernels, chosen: BlockCounts, suffix: str
) -> Stmt:
    blocks = _PositionBlocks(maker, assembly, suffix)
    total = prod_of(maker.positions.counts)
    for count, done, times in chosen.loops(total):
        part = maker.part(count)
        assert not isinstance(part, str)
        blocks.add(part, count, done, times)
    return blocks.body()


def prod_of(
    factors: Sequence[Expr],
) -> Expr:
    """The product of expressions, at least one."""
    return reduce(lambda a, b: a * b, factors)


class _PositionBlocks:
    """Builds loops over blocks of positions, with unique names."""

    def __init__(
        self, maker: _PositionKernels, assembly: PartAssembly, suffix: str
    ) -> None:
        self._maker = maker
        self._assembly = assembly
        self._suffix = suffix
        self._nests: list[Stmt] = []

    def add(
        self,
        work: HoistedKernel,
        count: int,
        done: Expr,
        times: Expr,
    ) -> None:
        """Add a loop that runs a kernel `times` times, from position `done` on."""
        part = work.kernel
        suffix = f"{self._suffix}.{count}"
        stmt = self._assembly.body(part, suffix)
        parts = self._maker.parts(count)
        shapes = {b.name: b.extents for b in part.params}
        own = {
            b.name: Buffer(fresh(self._assembly.taken, b.name), shapes[b.name], b.dtype)
            for b in parts.values()
        }
        packed = self._assembly.packed(work.prepare, suffix)
        by_name = {b.name: b for b in self._maker.kernel.params} | own
        moves = {b: edit.onto(packed.get(b) or by_name[b.name]) for b in part.params}
        body = edit.rewrite(stmt, environment(stmt), moves=moves)
        block_of = self.name(f"positions{suffix}")
        first = done + block_of * const(count, INDEX)
        written = self._maker.positions.written.values()
        nests = [self._copy(w, b, own[b.name], count, first) for w, b in parts.items()]
        body = block(
            *nests[: len(nests) - len(written)],
            body,
            *nests[len(nests) - len(written) :],
        )
        for b in own.values():
            body = Alloc(b, body)
        self._nests.append(loop(block_of, times, _serial(body), "parallel"))

    def _copy(
        self, window: PositionWindow, part: Buffer, own: Buffer, count: int, first: Expr
    ) -> Stmt:
        """What gathers or scatters a window. own: the memory of its part."""
        scatters = window in self.positions.written.values()
        grid = self._maker.grid(count)
        local = onto_shape(part, own)
        return _WindowCopy(self, window, own.name, local, grid, first, scatters).nest()

    def name(
        self,
        wish: str,
    ) -> Var:
        """A new loop variable."""
        return self._assembly.variable(wish)

    @property
    def positions(
        self,
    ) -> Positions:
        """Those of the group."""
        return self._maker.positions

    def body(
        self,
    ) -> Stmt:
        """All loops."""
        return block(*self._nests)


@dataclass(frozen=True, eq=False, slots=True)
class _WindowCopy:
    """The nest that gathers or scatters the window of some positions.

    name: the prefix of its loops. local: where an element of the window is.
    """

    blocks: _PositionBlocks
    window: PositionWindow
    name: str
    local: edit.Move
    grid: Sequence[int]
    first: Expr
    scatters: bool

    def nest(
        self,
    ) -> Stmt:
        """Position by position; those within the extents of the window's Computation."""
        found = self.blocks.positions
        step = found.steps[self.window.of]
        dims = found.dims[self.window.of]
        name = f"{self.name}.at"
        position = self.blocks.name(name)
        points = [self.blocks.name(f"{name}.p") for _ in dims]
        local = _places(position, self.grid)
        whole = _places(self.first + position, found.counts)
        size = const(step, INDEX)
        inner, outer = local, whole
        if step > 1:
            inner = [u * size + p for u, p in zip(local, points, strict=True)]
            outer = [u * size + p for u, p in zip(whole, points, strict=True)]
        body = self._points(inner, outer)
        within = [d < as_expr(x.size, INDEX) for d, x in zip(outer, dims, strict=True)]
        within += [d >= const(0, INDEX) for d in outer]
        body = If(reduce(and_, within), body, None)
        for p in reversed(points) if step > 1 else ():
            body = loop(p, step, body)
        return loop(position, prod(self.grid), body)

    def _points(
        self,
        inner: Sequence[Expr],
        outer: Sequence[Expr],
    ) -> Stmt:
        """The copy of one position, whose places are `inner` in the part and `outer` in all."""
        there: list[Expr] = []
        mine: list[Expr] = [] if self.scatters else list(inner)
        loops: list[tuple[Var, int, str]] = []
        for a in self.window.axes:
            at: Expr = const(a.least, INDEX)
            within: Expr = const(0, INDEX)
            if a.length > 1:
                within = self._along(a.length, loops)
                at = at + within
            if a.dim is not None:
                at = at + outer[a.dim] * const(a.stride, INDEX)
            there.append(at)
            if self.scatters:
                mine.append(inner[a.dim] if a.dim is not None else within)
            elif a.length > 1:
                mine.append(within)
        stmt = self._store(tuple(mine), tuple(there))
        for n, (v, extent, kind) in enumerate(reversed(loops)):
            stmt = loop(v, extent, stmt, kind if n == 0 else "serial")
        return stmt

    def _along(
        self,
        length: int,
        loops: list[tuple[Var, int, str]],
    ) -> Expr:
        chunk = max(n for n in range(1, CHUNK + 1) if length % n == 0)
        inside = self.blocks.name(f"{self.name}.w")
        if chunk == length or chunk == 1:
            loops.append((inside, length, "vector" if chunk > 1 else "serial"))
            return inside
        outside = self.blocks.name(f"{self.name}.w")
        loops += [(outside, length // chunk, "serial"), (inside, chunk, "vector")]
        return outside * const(chunk, INDEX) + inside

    def _store(
        self,
        mine: tuple[Expr, ...],
        there: tuple[Expr, ...],
    ) -> Stmt:
        tensor = self.window.tensor
        local, mine = self.local(mine)
        if self.scatters:
            return Store(tensor, _linear(there), Load(local, mine))
        there = _linear(there)
        value: Expr = Load(tensor, there)
        outside = self.window.outside
        if outside is not None:
            axes = zip(there, tensor.extents, self.window.axes, strict=True)
            conditions = [
                (i >= const(0, INDEX)) & (i < as_expr(e, INDEX))
                for i, e, a in axes
                if not a.is_inside(e)
            ]
            value = Select(reduce(and_, conditions), value, outside)
        return Store(local, mine, value)


def _places(
    position: Expr,
    counts: Sequence[Expr | int],
) -> list[Expr]:
    """The place along each dimension of a position in their order."""
    found: list[Expr] = []
    rest = position
    for n, count in reversed(list(enumerate(counts))):
        size = as_expr(count, INDEX)
        found.append(rest % size if n else rest)
        rest = rest // size
    return found[::-1]


def _linear(
    index: Sequence[Expr],
) -> tuple[Expr, ...]:
    return tuple(to_expr(affine(i)) for i in index)


def _serial(
    stmt: Stmt,
) -> Stmt:
    """The loops of a part in one thread: threads share the blocks."""
    if isinstance(stmt, For) and stmt.kind == "parallel":
        return For(stmt.var, stmt.extent, "serial", _serial(stmt.body))
    found: Stmt = stmt.map(lambda n: _serial(n) if isinstance(n, Stmt) else n)
    return found
