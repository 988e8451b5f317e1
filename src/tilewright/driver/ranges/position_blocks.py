"""The loops over blocks of positions: each gathers its windows, runs a kernel, scatters results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.driver.ranges.block_counts import BlockCounts, speedup
from tilewright.driver.ranges.part_assembly import (
    PartAssembly,
    PartedWork,
)
from tilewright.driver.ranges.window_copies import WindowCopy, linear, places
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Expr,
    Extent,
    Min,
    Var,
    as_expr,
    const,
)
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import environment
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    loop,
)
from tilewright.loops.passes.hoist import HoistedKernel
from tilewright.loops.sizes import statement
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of, walk
from tilewright.plan.positions import Positions, PositionWindow
from tilewright.schedule import edit
from tilewright.schedule.primitives.reshape import onto_shape

if TYPE_CHECKING:
    from tilewright.driver.ranges.positions import FewPositions, PositionKernels

TOGETHER = 16  # contiguous elements, at least, that a kernel reads where they are: a cache line
# Statements without instructions on tensors.
PLAIN = (
    Alloc,
    Block,
    For,
    If,
    Store,
    Update,
)


def assembled(
    maker: PositionKernels, chosen: BlockCounts, few: FewPositions | None
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
    assembly: PartAssembly, maker: PositionKernels, chosen: BlockCounts, suffix: str
) -> Stmt:
    blocks = _PositionBlocks(maker, assembly, suffix)
    if maker.positions.boxes:
        (count,) = chosen.counts
        tiles = blocks.tiles(count)
        part = maker.part(count)
        assert not isinstance(part, str)
        total = prod_of(tiles)
        blocks.add(part, count, const(0, INDEX), total, maker.ends_of(total)[1])
        return blocks.body()
    total = prod_of(maker.positions.counts)
    _, most = maker.ends()
    pairs = zip(chosen.loops(total), chosen.most(most), strict=True)
    for (count, done, times), often in pairs:
        part = maker.part(count)
        assert not isinstance(part, str)
        blocks.add(part, count, done, times, often)
    return blocks.body()


def prod_of(
    factors: Sequence[Expr],
) -> Expr:
    """The product of expressions, at least one."""
    return reduce(lambda a, b: a * b, factors)


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """The kernel of so many positions, and where its work on constants is found."""

    kernel: Kernel
    count: int
    packed: Mapping[Buffer, Buffer]


class _PositionBlocks:
    """Builds loops over blocks of positions, with unique names."""

    def __init__(
        self, maker: PositionKernels, assembly: PartAssembly, suffix: str
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
        most: int,
    ) -> None:
        """Add a loop that runs a kernel `times` times, at most `most`, from position `done` on.

        Threads share the blocks; the rest of these, and few, run one after another, each on all
        threads, if the kernel is worth that.
        """
        suffix = f"{self._suffix}.{count}"
        part = _Part(work.kernel, count, self._assembly.packed(work.prepare, suffix))
        cores = self._maker.target.open_costs.cores
        fast = speedup(cores, [f.trips for f in _parallel(work.kernel.body)])
        if fast == 1:
            self._nests.append(self._blocks(part, done, times, suffix))
            return
        if most >= fast:
            rounds = (times + const(cores - fast, INDEX)) // const(cores, INDEX)
            many = (
                Min(rounds * const(cores, INDEX), times)
                if fast < cores
                else rounds * const(cores, INDEX)
            )
            self._nests.append(self._blocks(part, done, many, suffix))
            done = done + many * self._step(count)
            times = times - many
        each = f"{suffix}.each"
        self._nests.append(self._blocks(part, done, times, each, inside=True))

    def _blocks(
        self,
        part: _Part,
        done: Expr,
        times: Expr,
        suffix: str,
        *,
        inside: bool = False,
    ) -> Stmt:
        """The loop over blocks; inside: threads share the work of each, else the blocks."""
        kernel, count = part.kernel, part.count
        stmt = self._assembly.body(kernel, suffix)
        parts = self._maker.parts(count)
        shapes = {b.name: b.extents for b in kernel.params}
        own = {
            b.name: Buffer(fresh(self._assembly.taken, b.name), shapes[b.name], b.dtype)
            for b in parts.values()
        }
        by_name = {b.name: b for b in self._maker.kernel.params} | own
        packed = part.packed
        moves = {b: edit.onto(packed.get(b) or by_name[b.name]) for b in kernel.params}
        body = edit.rewrite(stmt, environment(stmt), moves=moves)
        block_of = self.name(f"positions{suffix}")
        first = done + block_of * self._step(count)
        copies = [self._copy(w, b, own[b.name], count, first) for w, b in parts.items()]
        if inside:
            copies = [_shared(nest) for nest in copies]
        gathers = len(copies) - len(self._maker.positions.written)
        body = block(*copies[:gathers], body, *copies[gathers:])
        for b in own.values():
            body = Alloc(b, body)
        if inside:
            return loop(block_of, times, body, "serial")
        if self._may_stay(kernel, count):
            body = self._in_place(part, first, suffix, body)
        return loop(block_of, times, _serial(body), "parallel")

    def _may_stay(self, kernel: Kernel, count: int) -> bool:
        """Whether a kernel may read what it reads where it is.

        requires: the positions are a rectangle or, along a single dimension, a row; the kernel has
        its windows in their own shapes but for axes of one element, so that only strides differ,
        which sizes decide for a rectangle; the elements of every position are together along the
        last axis; it guards what it reads beyond axes that no position moves along; no instruction
        on tensors, which needs strides that are numbers.
        """
        windows = self.positions.windows
        guards = not any(w.leaves and w.outside is not None for w in windows)
        simple = all(isinstance(p.stmt, PLAIN) for p in walk(kernel.body))
        return guards and simple and all(self._stays(w, kernel, count) for w in windows)

    def _stays(self, window: PositionWindow, kernel: Kernel, count: int) -> bool:
        """Whether this window is as `_may_stay` requires it."""
        part = self._maker.parts(count)[window]
        shapes = {b.name: b.shape for b in kernel.params}
        last = window.axes[-1]
        return (
            _long(shapes[part.name]) == _long(part.shape)
            and _long(part.shape) == _long(self._there(window, count))
            and (self.positions.boxes or self._is_row(window))
            and last.dim is None
            and last.length >= TOGETHER
        )

    def _is_written(self, window: PositionWindow, kernel: Kernel, count: int) -> bool:
        """Whether a kernel may write a result where it is.

        requires: it is in a row, could be read there, and has no elements of other positions, which
        a block that reaches beyond the last position would overwrite.
        """
        if self.positions.boxes or not self._stays(window, kernel, count):
            return False
        pairs = zip(window.axes, window.tensor.extents, strict=True)
        (extent,) = [n for a, n in pairs if a.dim is not None]
        return extent == self.positions.dims[window.of][0].size

    def _is_row(self, window: PositionWindow) -> bool:
        """Whether positions are one behind another along an axis, and see one element of it."""
        moved = [a for a in window.axes if a.dim is not None]
        single = len(self.positions.counts) == 1 == len(moved)
        one = single and (moved[0].stride, moved[0].length, moved[0].least) == (1, 1, 0)
        return one and max(self.positions.steps.values()) == 1

    def _there(self, window: PositionWindow, count: int) -> tuple[int, ...]:
        """The extents of a window of so many positions, along the axes of its tensor."""
        grid = self._maker.grid(count)
        if self.positions.boxes:
            return self.positions.shape(window, grid)
        lengths = [a.length if a.dim is None else grid[a.dim] for a in window.axes]
        return tuple(lengths)

    def _in_place(
        self,
        part: _Part,
        first: Expr,
        suffix: str,
        moved: Stmt,
    ) -> Stmt:
        """The kernel on the tensors that it reads, where all positions are inside of them.

        Results of a row are written where they are, if they could be read there; to those of a
        rectangle, whose strides sizes decide, kernels that add to them would write each time.
        moved: what copies the windows to their parts first, for positions at the edges.
        """
        where = "in_place" if self.positions.boxes else "in_row"
        count, suffix = part.count, f"{suffix}.{where}"
        parts = self._maker.parts(count)
        read = self.positions.windows
        by_name = {b.name: b for b in self._maker.kernel.params}
        inside: list[Expr] = []
        moves: dict[Buffer, edit.Move] = {}
        of_name = {b.name: b for b in part.kernel.params}
        results: list[tuple[PositionWindow, Buffer, Buffer]] = []
        for w, b in parts.items():
            own = of_name.pop(b.name)
            if w in read or self._is_written(w, part.kernel, count):
                offsets, within = self._inside(w, count, first)
                there = self._there(w, count)
                moves[own] = _Shifted(w.tensor, own.shape, there, offsets)
                inside += within
            else:
                name = fresh(self._assembly.taken, b.name)
                results.append((w, b, Buffer(name, own.extents, own.dtype)))
                moves[own] = edit.onto(results[-1][-1])
        for b in of_name.values():
            moves[b] = edit.onto(part.packed.get(b) or by_name[b.name])
        stmt = self._assembly.body(part.kernel, suffix)
        sizes = (v for v in postorder(first) if isinstance(v, Var))
        known = dict.fromkeys((*self._assembly.kernel.sizes, *sizes), (0, None))
        env = {**environment(stmt), **known}
        here = edit.rewrite(stmt, env, moves=moves)
        # As `rewrite` leaves indices, so that proofs see what the condition says of them.
        made = edit.tidy_comparisons(If(reduce(and_, inside), here, None), env)
        assert isinstance(made, If)
        body = block(made.then, *(self._copy(*r, count, first) for r in results))
        for _, _, b in results:
            body = Alloc(b, body)
        return If(made.condition, body, moved)

    def _inside(
        self,
        window: PositionWindow,
        count: int,
        first: Expr,
    ) -> tuple[list[Expr], list[Expr]]:
        """Where a window of positions begins, and the conditions for it to be in its tensor."""
        start = [first]
        if self.positions.boxes:
            grid = self._maker.grid(count)
            pairs = zip(places(first, self.tiles(count)), grid, strict=True)
            start = [t * const(g, INDEX) for t, g in pairs]
        shape = self._there(window, count)
        offsets: list[Expr] = []
        inside: list[Expr] = []
        for a, n, extent in zip(window.axes, shape, window.tensor.extents, strict=True):
            at: Expr = const(a.least, INDEX)
            if a.dim is not None:
                at = at + start[a.dim] * const(a.stride, INDEX)
                low, high = linear((at, at + const(n - 1, INDEX)))
                inside += [low >= const(0, INDEX), high < as_expr(extent, INDEX)]
            offsets.append(at)
        return offsets, inside

    def tiles(self, count: int) -> list[Expr]:
        """How many rectangles of so many positions cover each open dimension."""
        pairs = zip(self.positions.counts, self._maker.grid(count), strict=True)
        return [(n + const(g - 1, INDEX)) // const(g, INDEX) for n, g in pairs]

    def _step(self, count: int) -> Expr:
        """From a block to the next: rectangles are numbered themselves."""
        return const(1 if self.positions.boxes else count, INDEX)

    def _copy(
        self, window: PositionWindow, part: Buffer, own: Buffer, count: int, first: Expr
    ) -> Stmt:
        """What gathers or scatters a window. own: the memory of its part."""
        scatters = window in self.positions.written.values()
        grid = self._maker.grid(count)
        local = onto_shape(part, own)
        found = WindowCopy(
            self.positions,
            self.tiles,
            self.name,
            window,
            own.name,
            local,
            grid,
            first,
            scatters,
        )
        return found.nest()

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


def _long(shape: Sequence[Extent]) -> list[Extent]:
    """The extents other than 1."""
    return [n for n in shape if n != 1]


@dataclass(frozen=True, eq=False, slots=True)
class _Shifted:
    """Every access of a part in the whole tensor, from an offset along each axis.

    own: the part's shape in its kernel; shape: in the tensor, with other axes of one element.
    """

    tensor: Buffer
    own: Sequence[int]
    shape: Sequence[int]
    offsets: Sequence[Expr]

    def __call__(self, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        pairs = zip(index, self.own, strict=True)
        long = iter([i for i, n in pairs if n != 1])
        at = [const(0, INDEX) if n == 1 else next(long) for n in self.shape]
        moved = (i + o for i, o in zip(at, self.offsets, strict=True))
        return self.tensor, linear(tuple(moved))


def _parallel(
    stmt: Stmt,
) -> list[For]:
    return [f for f in loops_of(stmt) if f.kind == "parallel"]


def _shared(
    nest: Stmt,
) -> Stmt:
    """The copies of some positions, each by any thread; a condition is tested by each."""
    if isinstance(nest, If):
        return If(nest.condition, _shared(nest.then), None)
    assert isinstance(nest, For)
    return For(nest.var, nest.extent, "parallel", nest.body)


def _serial(
    stmt: Stmt,
) -> Stmt:
    """The loops of a part in one thread: threads share the blocks."""
    if isinstance(stmt, For) and stmt.kind == "parallel":
        return For(stmt.var, stmt.extent, "serial", _serial(stmt.body))
    found: Stmt = stmt.map(lambda n: _serial(n) if isinstance(n, Stmt) else n)
    return found
