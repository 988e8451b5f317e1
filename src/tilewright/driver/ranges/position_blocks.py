"""The loops over blocks of positions: each gathers its windows, runs a kernel, scatters results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from operator import and_
from typing import TYPE_CHECKING

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.driver.ranges.block_counts import BlockCounts, speedup
from tilewright.driver.ranges.part_assembly import (
    PartAssembly,
    PartedWork,
)
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Extent,
    Load,
    Min,
    Select,
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

CHUNK = 64  # contiguous elements, at most, that are copied at a time
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

    def _may_stay(
        self,
        kernel: Kernel,
        count: int,
    ) -> bool:
        """Whether a kernel of a rectangle may read what it reads where it is.

        requires: the kernel has its windows in their own shapes but for axes of one element, so
        that only strides differ, which sizes decide; the elements of every position are together
        along the last axis; it guards what it reads beyond axes that no position moves along; no
        instruction on tensors, which needs strides that are numbers.
        """
        shapes = {b.name: b.shape for b in kernel.params}
        parts = self._maker.parts(count)
        read = [(w, parts[w]) for w in self.positions.windows]
        plain = all(_long(shapes[b.name]) == _long(b.shape) for _, b in read)
        last = [w.axes[-1] for w, _ in read]
        together = all(a.dim is None and a.length >= TOGETHER for a in last)
        guards = not any(w.leaves and w.outside is not None for w, _ in read)
        simple = all(isinstance(p.stmt, PLAIN) for p in walk(kernel.body))
        return self.positions.boxes and plain and together and guards and simple

    def _in_place(
        self,
        part: _Part,
        first: Expr,
        suffix: str,
        moved: Stmt,
    ) -> Stmt:
        """The kernel on the tensors that it reads, where the rectangle is inside of all of them.

        moved: what copies the windows to their parts first, for rectangles at the edges.
        """
        count, suffix = part.count, f"{suffix}.in_place"
        parts = self._maker.parts(count)
        read = self.positions.windows
        by_name = {b.name: b for b in self._maker.kernel.params}
        inside: list[Expr] = []
        moves: dict[Buffer, edit.Move] = {}
        of_name = {b.name: b for b in part.kernel.params}
        results: list[tuple[PositionWindow, Buffer, Buffer]] = []
        for w, b in parts.items():
            own = of_name.pop(b.name)
            if w in read:
                offsets, within = self._inside(w, count, first)
                moves[own] = _Shifted(w.tensor, own.shape, b.shape, offsets)
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
        """Where a rectangle's window begins, and the conditions for it to be in its tensor."""
        grid = self._maker.grid(count)
        tiles = self.tiles(count)
        pairs = zip(_places(first, tiles), grid, strict=True)
        start = [t * const(g, INDEX) for t, g in pairs]
        shape = self.positions.shape(window, grid)
        offsets: list[Expr] = []
        inside: list[Expr] = []
        for a, n, extent in zip(window.axes, shape, window.tensor.extents, strict=True):
            at: Expr = const(a.least, INDEX)
            if a.dim is not None:
                at = at + start[a.dim] * const(a.stride, INDEX)
                low, high = _linear((at, at + const(n - 1, INDEX)))
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
        return self.tensor, _linear(tuple(moved))


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
        if self.blocks.positions.boxes:
            return self._scattered() if self.scatters else self._box()
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

    def _first(self) -> list[Expr]:
        """The first position of the rectangle along each open dimension."""
        tiles = self.blocks.tiles(prod(self.grid))
        places = _places(self.first, tiles)
        return [t * const(g, INDEX) for t, g in zip(places, self.grid, strict=True)]

    def _outside(self) -> Const | None:
        """What is copied for elements that are not in the tensor; None: those are left out.

        Anything will do where no result that is kept reads it. Rows of a rectangle are copied in
        vectors, whose elements are selected one by one. And a window holds all that its positions
        name: also what a condition that is no guard of this tensor keeps them from reading.
        """
        window, positions = self.window, self.blocks.positions
        if window.outside is not None:
            return window.outside
        if window.leaves:
            return const(0, window.tensor.dtype)
        if not positions.boxes:
            return None
        lengths = positions.shape(window, self.grid)
        moved = [a for a, n in zip(window.axes, lengths, strict=True) if n > 1]
        in_rows = moved and moved[-1].dim is not None
        return const(0, window.tensor.dtype) if in_rows else None

    def _scattered(self) -> Stmt:
        """The results of a rectangle, position by position, within their tensor."""
        dims = self.blocks.positions.dims[self.window.of]
        local: list[Expr] = [self.blocks.name(f"{self.name}.at") for _ in self.grid]
        outer = [n + v for n, v in zip(self._first(), local, strict=True)]
        body = self._points(local, outer)
        within = [d < as_expr(x.size, INDEX) for d, x in zip(outer, dims, strict=True)]
        within += [d >= const(0, INDEX) for d in outer]
        body = If(reduce(and_, within), body, None)
        for v, n in reversed([*zip(local, self.grid, strict=True)]):
            assert isinstance(v, Var)
            body = loop(v, n, body)
        return body

    def _box(self) -> Stmt:
        """What a rectangle reads, as far as it is in its tensor."""
        tensor, first = self.window.tensor, self._first()
        there: list[Expr] = []
        mine: list[Expr] = []
        inside: list[Expr] = []
        loops: list[tuple[Var, int, str]] = []
        shape = self.blocks.positions.shape(self.window, self.grid)
        for a, n, extent in zip(self.window.axes, shape, tensor.extents, strict=True):
            within: Expr = const(0, INDEX)
            if n > 1:
                within = self._along(n, loops)
            at = const(a.least, INDEX) + within
            if a.dim is not None:
                at = at + first[a.dim] * const(a.stride, INDEX)
                if self._outside() is None:
                    (at,) = _linear((at,))
                    inside += [at < as_expr(extent, INDEX), at >= const(0, INDEX)]
            there.append(at)
            mine.append(within)
        stmt = self._store(tuple(mine), tuple(there))
        last = len(loops) - 1
        for n, (v, extent, kind) in reversed([*enumerate(loops)]):
            stmt = loop(v, extent, stmt, kind if n == last else "serial")
            if n == last and inside and not any(v in postorder(i) for i in inside):
                stmt = If(reduce(and_, inside), stmt, None)
                inside = []
        return If(reduce(and_, inside), stmt, None) if inside else stmt

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
        outside = self._outside()
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
