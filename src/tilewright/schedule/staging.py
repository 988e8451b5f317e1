"""Shared parts of primitives that copy data: where a copy may be placed, and its nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh
from tilewright.expr import bounds as intervals
from tilewright.expr.nodes import INDEX, Buffer, Expr, Extent, Var, const
from tilewright.loops.analysis.access import Env, Index, accesses, environment
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.region import inside
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import (
    SIZE,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    block,
    loop,
)
from tilewright.loops.walk import StatementPlace, below
from tilewright.schedule import edit, tree


@dataclass(frozen=True, eq=False, slots=True)
class StatementRange:
    """Consecutive statements `start .. stop-1` of a sequence (or one statement that is none)."""

    place: StatementPlace
    start: int = 0
    stop: int | None = None

    @property
    def _stmts(self) -> tuple[Stmt, ...]:
        s = self.place.stmt
        if isinstance(s, Block):
            return s.stmts
        return (s,)

    @property
    def body(self) -> Stmt:
        """The statements of the part."""
        return block(*self._stmts[self.start : self.stop])

    def put(self, kernel: Kernel, new: Stmt) -> Kernel:
        """`kernel` with another statement in the place of the part."""
        stop = len(self._stmts) if self.stop is None else self.stop
        before = self._stmts[: self.start]
        after = self._stmts[stop:]
        return edit.put(kernel, self.place, block(*before, new, *after))


def intermediate(kernel: Kernel, name: str, verb: str) -> tuple[Buffer, StatementPlace]:
    """The buffer called `name`, allocated in the kernel, and the place of its Alloc."""
    buffer, place = tree.find_buffer(kernel, name, verb)
    if place is None:
        raise ScheduleError(
            f"{verb}: it is a parameter, so its whole value must be in memory",
            where=f"buffer {name}",
            hint="cache_write it at the root first, which makes an intermediate and a copy",
        )
    return buffer, place


def rebuffered(
    kernel: Kernel, place: StatementPlace, new: Buffer, move: Callable[[Index], Index]
) -> Kernel:
    """`kernel` with another buffer in the place of the Alloc's; move: an element's new index."""
    alloc = place.stmt
    assert isinstance(alloc, Alloc)
    old = alloc.buffer

    def moved(index: Index) -> tuple[Buffer, Index]:
        return new, move(index)

    env = environment(kernel.body)
    body = edit.rewrite(alloc, env, moves={old: moved})
    return edit.put(kernel, place, edit.with_allocs(body, {old: new}))


def after_writes(
    kernel: Kernel, buffer: Buffer, alloc: StatementPlace | None, verb: str
) -> StatementRange:
    """The outermost part of the kernel where `buffer` has its final value and is still read."""
    s, above = in_sizes(kernel)
    exists = alloc is None
    while True:
        if exists and buffer not in writes(s):
            return StatementRange(StatementPlace(s, above))
        if isinstance(s, Block):
            written = [n for n, x in enumerate(s.stmts) if buffer in writes(x)]
            last = max(written, default=-1)
            if (
                exists
                and last >= 0
                and any(buffer in reads(x) for x in s.stmts[last + 1 :])
            ):
                return StatementRange(StatementPlace(s, above), last + 1)
            holder = next(
                (x for x in s.stmts if alloc is not None and _holds(x, alloc)), None
            )
            inner = s.stmts[last] if holder is None else holder
        elif isinstance(s, Alloc | For):
            exists = exists or (isinstance(s, Alloc) and s.buffer is buffer)
            inner = s.body
        else:
            raise ScheduleError(
                f"{verb}: the buffer is still being written where it is read",
                where=f"buffer {buffer.name}",
                hint="name the loop to stage it in",
            )
        s, above = inner, (*above, s)


def in_sizes(kernel: Kernel) -> tuple[Stmt, tuple[Stmt, ...]]:
    """What runs for a choice of the sizes, and the loops of the sizes around it."""
    s: Stmt = kernel.body
    above: tuple[Stmt, ...] = ()
    while isinstance(s, For) and s.kind == SIZE:
        s, above = s.body, (*above, s)
    return s, above


def _holds(s: Stmt, alloc: StatementPlace) -> bool:
    return s is alloc.stmt or s in alloc.above


def all_writes(
    kernel: Kernel, buffer: Buffer, alloc: StatementPlace | None
) -> StatementRange:
    """The smallest run of statements in its scope, outside loops, with every write of `buffer`."""
    s, above = in_sizes(kernel)
    if alloc is not None:
        s = below(alloc.stmt)[0]
        above = (*alloc.above, alloc.stmt)
    while True:
        if isinstance(s, Alloc):
            s, above = s.body, (*above, s)
            continue
        if not isinstance(s, Block):
            return StatementRange(StatementPlace(s, above))
        hits = [n for n, x in enumerate(s.stmts) if buffer in writes(x)]
        first = s.stmts[hits[0]]
        if len(hits) > 1 or not isinstance(first, Alloc):
            return StatementRange(StatementPlace(s, above), hits[0], hits[-1] + 1)
        s, above = first, (*above, s)


def used_as_index(root: Stmt, buffer: Buffer) -> bool:
    """Whether a value of `buffer` says where to read or write: then it must be the final one."""
    found = (i for a in accesses(root) for i in a.index)
    return any(x.buffer is buffer for i in found for x in loads(i))


def sweep(
    prefix: str,
    shape: Sequence[Extent],
    taken: set[str],
    env: Env,
    body: Callable[[Index], Stmt],
) -> Stmt:
    """A nest over a box, loops `<prefix><dimension>`; a dimension of extent 1 needs no loop."""
    vars_: dict[int, Var] = {}
    for d, n in enumerate(shape):
        if n != 1:
            vars_[d] = Var(fresh(taken, f"{prefix}{d}"), INDEX)
            env |= environment(loop(vars_[d], n, block()))
    point = tuple(vars_[d] if d in vars_ else const(0) for d in range(len(shape)))
    nest = body(point)
    for d in reversed(vars_):
        nest = loop(vars_[d], shape[d], nest)
    return nest


def guarded(
    point: Index,
    buffer: Buffer,
    env: Env,
    body: Stmt,
) -> Stmt:
    """`body` where `point` is inside `buffer`, as far as bounds do not prove that it does."""
    condition = within(point, buffer, env)
    if condition is None:
        return body
    return If(condition, body, None)


def within(point: Index, buffer: Buffer, env: intervals.Env) -> Expr | None:
    """The condition that `point` is inside `buffer`; None where bounds prove it."""
    total: Expr | None = None
    for i, n in zip(point, buffer.extents, strict=True):
        condition = inside(i, n, env)
        if condition is not None:
            total = condition if total is None else total & condition
    return total
