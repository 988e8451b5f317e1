"""Reductions by the threads of a block: each adds up its own part, and a tree the parts.

    for k in 4:                                alloc p[64] in register, s[64] in shared:
      for t in 64 threadIdx.x:          ->       for t: p[t] = 0
        y[0] add= x[k * 64 + t]                  for k: for t: p[t] add= x[k * 64 + t]
                                                 for t: s[t] = p[t]
                                                 for t in 32: s[t] = s[t] + s[t + 32]
                                                 ... in 16, 8, 4, 2, 1
                                                 y[0] add= s[0]

The condition. An Update is a reduction over a thread loop around it whose variable is in none of
its indices, unless its buffers are allocated inside that loop. The parts are of the outermost
statement around these loops in which the Update changes one place, that is inside all loops
whose variables the indices have, and in which nothing else touches its buffers. The place must be
there even if no value is: it is inside its buffer, or what is put there is guarded as the values
are, by the conditions that are the same for all of them. Its reducer must be commutative: the
values of a thread are not neighbors in the order of the program. Where this does not hold the
Update stays unchanged, and is refused as a race (`barriers`).

Threads that run in step combine their parts first, `width` neighbors on the axis x at a time, the
greatest power of two that divides the axis and is no more than a warp. Where that is all of them,
each has the result, and there is nothing in shared memory. The order in which values
are combined depends on nothing but the sizes, so that each run gives the same bits.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from tilewright.base.names import fresh
from tilewright.compute.guards import conjuncts
from tilewright.expr.bounds import Env, lasting, refine
from tilewright.expr.mixed_radix import inside
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Eq,
    Expr,
    Load,
    Not,
    Var,
    const,
)
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import environment, expressions
from tilewright.loops.analysis.effects import allocated, reads, writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.launch import AXIS, CombineThreads
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Stmt,
    Store,
    Update,
    block,
    loop,
)
from tilewright.loops.walk import StatementPlace, loops_of, walk


class _Reduction(NamedTuple):
    """An Update, the loops of the threads that share it, and the statement that they do it in.

    guards: without which its location may not exist.
    """

    update: Update
    loops: Mapping[str, For]
    root: Stmt
    guards: Sequence[Expr]


def with_reductions(
    body: Stmt,
    threads: Mapping[str, int],
    warp: int,
    around: Env = MappingProxyType({}),
) -> Stmt:
    """The body of a block with each reduction over threads as parts and a tree.

    threads: by axis, x first. warp: how many threads run in step, 1 if that is unknown. around:
    bounds of variables that the body has from outside.
    """
    taken = {f.var.name for f in loops_of(body)} | {b.name for b in allocated(body)}
    while True:
        found = next(_reductions(body, threads, around), None)
        if found is None:
            return body
        body = substitute(body, {found.root: _Tree(found, threads, warp, taken).made()})


def _reductions(
    body: Stmt, threads: Mapping[str, int], around: Env
) -> Iterator[_Reduction]:
    ranges = {**around, **environment(body)}
    for at in walk(body):
        s = at.stmt
        if not isinstance(s, Update) or not s.reducer.commutative:
            continue
        used = {v for index in s.indices for i in index for v in variables(i)}
        shared = [f for f in _shared_loops(at, s, threads) if f.var not in used]
        if not shared:
            continue
        found = _root(at, s, shared[0], used, ranges)
        if found is not None:
            yield _Reduction(s, {f.kind: f for f in shared}, *found)


def _shared_loops(
    at: StatementPlace,
    s: Update,
    threads: Mapping[str, int],
) -> list[For]:
    """The thread loops around that the buffers of an update are not allocated in."""
    found: list[For] = []
    for outer in at.above:
        if isinstance(outer, For) and outer.kind in threads and outer.trips != 1:
            found.append(outer)
        elif isinstance(outer, Alloc) and outer.buffer in s.buffers:
            found = []
    return found


def _root(
    at: StatementPlace,
    s: Update,
    outermost: For,
    used: set[Expr],
    ranges: Env,
) -> tuple[Stmt, Sequence[Expr]] | None:
    """The outermost statement in which an update changes one place that nothing else touches, and
    the guards of that place."""
    root = None
    below = True
    for outer in reversed(at.above):
        below = below and outer is not outermost
        if isinstance(outer, For) and outer.var in used:
            break
        if isinstance(outer, Alloc) and outer.buffer in s.buffers:
            break
        if not isinstance(outer, For | Block | Alloc | If) or _touched(outer, s):
            break
        guards = None if below else _guards(at, s, outer, ranges)
        if guards is not None:
            root = outer, guards
    return root


def _guards(
    at: StatementPlace,
    s: Update,
    root: Stmt,
    ranges: Env,
) -> Sequence[Expr] | None:
    """Conditions under which the location of an update in a statement exists; None: unknown.

    Those around the update that are the same for all of its values, where there is a value if they
    hold; none where bounds show that the place is inside its buffer.
    """
    n = at.above.index(root)
    same, others = _conditions((*at.above[n:], s), root)
    for c in _conditions((*at.above[:n], root), None)[0]:
        ranges = refine(ranges, c)
    if _is_there(s, ranges):
        return ()
    if not others:
        return same
    for c in same:
        ranges = refine(ranges, c)
    return same if _is_there(s, ranges) else None


def _conditions(path: Sequence[Stmt], root: Stmt | None) -> tuple[Sequence[Expr], bool]:
    """The conditions on a path of statements that nothing in `root` changes; whether others, or
    loops that may be empty, decide too."""
    own = {f.var for f in path if isinstance(f, For)} if root else set()
    changed = writes(root) if root else set()
    same: list[Expr] = []
    others = False
    for outer, inner in pairwise(path):
        others |= isinstance(outer, For) and not outer.trips
        if not isinstance(outer, If):
            continue
        condition = outer.condition if inner is outer.then else Not(outer.condition)
        for c in conjuncts(condition):
            read = {x.buffer for x in loads(c)}
            if own.isdisjoint(variables(c)) and read.isdisjoint(changed):
                same.append(c)
            else:
                others = True
    return same, others


def _is_there(s: Update, ranges: Env) -> bool:
    known = lasting(ranges)
    return all(
        not reads_memory(i) and inside(i, extent, known)
        for b, index in s.targets
        for i, extent in zip(index, b.extents, strict=True)
    )


def _touched(around: Stmt, s: Update) -> bool:
    """Whether anything but an update touches its buffers, or it reads them itself."""
    read = {x.buffer for e in expressions(s) for x in loads(e)}
    without = substitute(around, {s: Block(())})
    return not (read | reads(without) | writes(without)).isdisjoint(s.buffers)


# From the index on each axis of the threads, what they do.
_Make = Callable[[Mapping[str, Expr]], Stmt]


class _Tree:
    """One reduction on its way; sizes: how many parts there are by axis, x first."""

    def __init__(
        self,
        found: _Reduction,
        threads: Mapping[str, int],
        warp: int,
        taken: set[str],
    ) -> None:
        self.update, self.loops, self.root, self.guards = found
        self.taken = taken
        self.sizes = {axis: n for axis, n in threads.items() if axis in found.loops}
        self.width = _width(self.sizes.get(_X, 1), warp)
        self.parts = self.buffers("register", self.sizes)
        self.rows = dict(self.sizes)
        if self.width > 1:
            self.rows[_X] //= self.width
        self.shared = self.buffers("shared", self.rows)

    def buffers(
        self,
        scope: str,
        sizes: Mapping[str, int],
    ) -> tuple[Buffer, ...]:
        shape = tuple(reversed([*sizes.values()]))
        return tuple(
            Buffer(
                fresh(self.taken, f"{b.name}.{_NAMES[scope]}"), shape, b.dtype, scope
            )
            for b in self.update.buffers
        )

    def made(self) -> Stmt:
        """The statement with the parts of each thread in it, and their tree after it."""
        u = self.update
        mine = {axis: f.var for axis, f in self.loops.items()}
        step = Update(self.parts, self.at(self.parts, mine), u.values, u.reducer)
        if self.in_warps:
            values = self.values(self.parts, AXIS)
        else:
            values = self.values(self.shared, {})
        result: Stmt = Update(u.buffers, u.indices, values, u.reducer)
        if self.guards:
            result = If(reduce(And, self.guards), result, None)
        body = block(
            self.each(self.sizes, self.cleared),
            substitute(self.root, {u: step}),
            *self.combined(),
            *self.halved(),
            result,
        )
        for b in (*(() if self.in_warps else self.shared), *self.parts):
            body = Alloc(b, body)
        return body

    @property
    def in_warps(self) -> bool:
        """Whether threads in step have all parts: each of them has the result in its registers."""
        return self.width > 1 and all(n == 1 for n in self.rows.values())

    def each(
        self,
        sizes: Mapping[str, int],
        make: _Make,
    ) -> Stmt:
        """The work of this many threads on each axis."""
        numbers = {a: Var(fresh(self.taken, f"{_NAMES[a]}.part"), INDEX) for a in sizes}
        body = make(numbers)
        for axis, var in numbers.items():
            body = loop(var, sizes[axis], body, axis)
        return body

    def at(
        self,
        buffers: Sequence[Buffer],
        numbers: Mapping[str, Expr],
    ) -> tuple[tuple[Expr, ...], ...]:
        """The element of some threads in each of the buffers; 0 on an axis that is left out."""
        axes = reversed(self.sizes)
        index = tuple(numbers.get(axis, const(0)) for axis in axes)
        return (index,) * len(buffers)

    def values(
        self,
        buffers: Sequence[Buffer],
        numbers: Mapping[str, Expr],
    ) -> tuple[Expr, ...]:
        index = self.at(buffers, numbers)
        return tuple(map(Load, buffers, index))

    def stored(
        self,
        buffers: Sequence[Buffer],
        numbers: Mapping[str, Expr],
        values: Sequence[Expr],
    ) -> Stmt:
        index = self.at(buffers, numbers)
        return block(*map(Store, buffers, index, values))

    def cleared(self, numbers: Mapping[str, Expr]) -> Stmt:
        return self.stored(self.parts, numbers, self.update.reducer.identity)

    def combined(self) -> Iterator[Stmt]:
        """The parts in registers, of neighbors together, into shared memory."""
        if self.width > 1:
            yield self.each(self.sizes, self.in_step)
        if not self.in_warps:
            yield self.each(self.sizes, self.shown)

    def in_step(self, numbers: Mapping[str, Expr]) -> Stmt:
        at = self.at(self.parts, numbers)
        return CombineThreads(self.parts, at, self.update.reducer, self.width)

    def shown(self, numbers: Mapping[str, Expr]) -> Stmt:
        values = self.values(self.parts, numbers)
        if self.width == 1:
            return self.stored(self.shared, numbers, values)
        x, width = numbers[_X], const(self.width)
        rows = {**numbers, _X: x // width}
        return If(Eq(x % width, const(0)), self.stored(self.shared, rows, values), None)

    def halved(self) -> Iterator[Stmt]:
        """The tree in shared memory, one axis after the other."""
        left = dict(self.rows)
        for axis in self.rows:
            while left[axis] > 1:
                half = -(-left[axis] // 2)
                left[axis] -= half
                yield self.each(left, self.pairs(axis, half))
                left[axis] = half
            del left[axis]

    def pairs(
        self,
        axis: str,
        distance: int,
    ) -> _Make:
        def make(numbers: Mapping[str, Expr]) -> Stmt:
            partner = {**numbers, axis: numbers[axis] + const(distance)}
            values = self.values(self.shared, partner)
            at = self.at(self.shared, numbers)
            return Update(self.shared, at, values, self.update.reducer)

        return make


_X: Final = "threadIdx.x"
_NAMES: Final = {
    "register": "part",
    "shared": "parts",
    "threadIdx.x": "tx",
    "threadIdx.y": "ty",
    "threadIdx.z": "tz",
}


def _width(threads: int, warp: int) -> int:
    """The greatest power of two that divides a number of threads and is no more than a warp."""
    width = 1
    while width * 2 <= warp and threads % (width * 2) == 0:
        width *= 2
    return width
