"""split_scan: a running value in parts, each of which begins with what those before it leave."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Final

from tilewright.base.names import fresh
from tilewright.expr.bounds import lasting, refine
from tilewright.expr.mixed_radix import inside
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, const
from tilewright.loops.analysis.access import Env, accesses_of, environment
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.terms import loads, variables
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
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import StatementPlace, loops_of, names_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.registry import primitive_with

_FIRST: Final = (const(0),)


@primitive_with(options=["levels"])
def split_scan(
    kernel: Kernel, loop: str, scope: Scope = "global", levels: bool = False
) -> tuple[Kernel, tuple[str, ...]]:
    """Let each iteration of a scan's loop begin at once; the loops over the parts, in order.

    args: a loop, usually the outer one of a split; the scope of what the parts exchange; whether
        their values are combined in log2(parts) levels of independent steps, else one by one.
    requires: a serial loop of constant extent with one Update of a running value, which begins
        outside; all accesses of that value in the loop are at one index that does not depend on
        loops in it, and exists whatever their conditions are. What the Update adds, and whether it
        does, reads nothing that the loop writes: each value is computed twice. The reducer is
        associative, as all are; order is kept.
    Loops made: `<loop>.parts`, then `<loop>.before`, or with levels `<loop>.first`,
    `<loop>.level0`, and so on, then the loop itself. Only `<loop>.before` needs its order.
    before: for o in n: { s += A(o); B(o, s) }
    after:  alloc p[n], b[n]: { for o.parts in n: { p[o] = 0; p[o] += A(o) }
                                for o.before in n: { b[o] = s; s += p[o] }
                                for o in n: alloc t: { t = b[o]; t += A(o); B(o, t) } }
    """
    f, place = tree.find_loop(kernel, loop, "split_scan")
    work = _Scan(kernel, f, place, scope)
    nests = [work.parts(), *(work.levels() if levels else work.serial()), work.again()]
    new = block(*nests)
    for b in reversed(work.buffers):
        new = Alloc(b, new)
    made = (s.var.name for s in nests if isinstance(s, For))
    return edit.put(kernel, place, new), tuple(made)


class _Scan:
    """A scan while it is split. buffers: that its parts exchange."""

    def __init__(
        self, kernel: Kernel, f: For, place: StatementPlace, scope: Scope
    ) -> None:
        self.f, self.place, self.scope = f, place, scope
        self.trips = tree.trips(f, "split_scan")
        self.taken = names_of(kernel)
        self.env = environment(kernel.body)
        self.update = self._the_update()
        self._check_place()
        self._check_there()
        self.buffers: list[Buffer] = []
        self.sums = self._new("part", self.trips)
        self.starts = self._new("before", self.trips)

    def _new(self, suffix: str, count: int) -> tuple[Buffer, ...]:
        """A buffer of `count` values for each component of the running value."""
        made = tuple(
            Buffer(
                fresh(self.taken, f"{b.name}.{suffix}"), (count,), b.dtype, self.scope
            )
            for b in self.update.buffers
        )
        self.buffers += made
        return made

    def _the_update(self) -> Update:
        name = self.f.var.name
        inner = {s.stmt.buffer for s in walk(self.f) if isinstance(s.stmt, Alloc)}
        found = [
            s
            for s in walk(self.f)
            if isinstance(s.stmt, Update) and inner.isdisjoint(s.stmt.buffers)
        ]
        if self.f.kind != "serial" or len(found) != 1:
            raise refuse(
                "split_scan",
                name,
                f"it is {self.f.kind}, with {len(found)} Updates of values that begin outside",
                "name a serial loop with one running value; fission the others off first",
            )
        (at,) = found
        if not all(isinstance(s, For | If | Block | Alloc) for s in at.above):
            raise refuse(
                "split_scan",
                name,
                f"{at.stmt!r} is in a while loop or an intrinsic",
                "only steps under loops and conditions can be repeated",
            )
        assert isinstance(at.stmt, Update)
        return at.stmt

    def _check_place(self) -> None:
        """The value stays at one index, and nothing but the Update changes it."""
        u, where = self.update, self.update.indices[0]
        inside = {self.f.var, *(g.var for g in loops_of(self.f))}
        used = accesses_of(self.f, *u.buffers)
        fixed = not any(loads(i) or not inside.isdisjoint(variables(i)) for i in where)
        one = all(a.index == where for a in used) and len(set(u.indices)) == 1
        if not (fixed and one) or any(a.writes and a.place.stmt is not u for a in used):
            raise refuse(
                "split_scan",
                self.f.var.name,
                f"{u.buffers[0].name} is not one value that only {u.reducer} changes",
                "scan a loop in which the place of the running value is fixed",
            )

    def _check_there(self) -> None:
        """The value's place exists outside the conditions in the loop, where it is read first."""
        env: Env = dict(self.env)
        path = (*self.place.above, self.f)
        for outer, inner in pairwise(path):
            if isinstance(outer, If) and inner is outer.then:
                env = {**env, **refine(env, outer.condition)}
        known = lasting(env)
        for b, index in self.update.targets:
            if not all(inside(i, n, known) for i, n in zip(index, b.extents)):
                raise refuse(
                    "split_scan",
                    self.f.var.name,
                    f"{b.name} may not have the element of its running value",
                    "move the condition out of the loop, or cache_write the value first",
                )

    def parts(self) -> For:
        """Each iteration's own value."""
        o = self._var("parts")
        at = (o,)
        step = Update(
            self.sums, (at,) * len(self.sums), self.update.values, self.update.reducer
        )
        body = _only(self.f.body, self.update, step)
        bad = (reads(body) - {*self.sums}) & writes(self.f)
        if bad:
            names = ", ".join(sorted(b.name for b in bad))
            raise refuse(
                "split_scan",
                self.f.var.name,
                f"its steps depend on {names}, which it writes",
                "the values of a scan must not depend on its results",
            )
        body, _ = edit.renamed(body, self.taken, ".parts")
        body = edit.rewrite(body, self.env, {self.f.var: o})
        starts = zip(self.sums, self.update.reducer.identity, strict=True)
        clear = (Store(b, at, zero) for b, zero in starts)
        return loop(o, self.trips, block(*clear, body))

    def serial(self) -> Iterator[Stmt]:
        """What each begins with, one after the other, in the running value."""
        u, o = self.update, self._var("before")
        kept = (
            Store(b, (o,), Load(x, index))
            for b, (x, index) in zip(self.starts, u.targets, strict=True)
        )
        step = Update(u.buffers, u.indices, self._at(self.sums, o), u.reducer)
        yield loop(o, self.trips, block(*kept, step))

    def levels(self) -> Iterator[Stmt]:
        """The same by doubling: after a level of distance d, each has what 2d before it leave."""
        u = self.update
        now, then = self.starts, self._new("level", self.trips)
        o = self._var("first")
        first = block(*(Store(b, (o,), x[i]) for b, (x, i) in zip(now, u.targets)))
        rest = self._moved(now, o, self.sums, o - 1)
        yield loop(o, self.trips, If(o.eq(0), first, rest))
        distances = list(
            takewhile(lambda d: d < self.trips, (1 << n for n in range(64)))
        )
        for n, distance in enumerate(distances):
            o = self._var(f"level{n}")
            same = self._moved(then, o, now, o)
            ahead = self._moved(then, o, now, o - distance)
            step = Update(then, ((o,),) * len(then), self._at(now, o), u.reducer)
            whole = If(o < distance, same, block(ahead, step))
            yield loop(o, self.trips, whole)
            now, then = then, now
        self.starts = now
        if not self._is_last():
            last = const(self.trips - 1)
            yield block(
                *(Store(x, i, b[last]) for b, (x, i) in zip(now, u.targets)),
                Update(u.buffers, u.indices, self._at(self.sums, last), u.reducer),
            )

    def again(self) -> For:
        """The loop itself, with a running value of each iteration."""
        f, u = self.f, self.update
        mine = tuple(
            Buffer(fresh(self.taken, f"{b.name}.run"), (1,), b.dtype, "register")
            for b in u.buffers
        )
        moves = {b: _onto(x) for b, x in zip(u.buffers, mine, strict=True)}
        body = edit.rewrite(f.body, self.env, moves=moves)
        begin = (Store(x, _FIRST, b[f.var]) for x, b in zip(mine, self.starts))
        body = block(*begin, body)
        for x in reversed(mine):
            body = Alloc(x, body)
        return loop(f.var, self.trips, body)

    def _is_last(self) -> bool:
        """Whether the running value ends with the loop."""
        inner: Stmt = self.f
        for outer in reversed(self.place.above):
            if isinstance(outer, Alloc) and outer.buffer in self.update.buffers:
                return True
            whole = not isinstance(outer, Block) or outer.stmts[-1] is inner
            if not isinstance(outer, Block | Alloc) or not whole:
                return False
            inner = outer
        return False

    def _var(self, suffix: str) -> Var:
        return Var(fresh(self.taken, f"{self.f.var.name}.{suffix}"), INDEX)

    @staticmethod
    def _at(buffers: tuple[Buffer, ...], i: Expr) -> tuple[Expr, ...]:
        return tuple(b[i] for b in buffers)

    @staticmethod
    def _moved(
        to: tuple[Buffer, ...], i: Expr, source: tuple[Buffer, ...], j: Expr
    ) -> Stmt:
        return block(*(Store(b, (i,), x[j]) for b, x in zip(to, source, strict=True)))


def _onto(value: Buffer) -> edit.Move:
    """Every access at the only index of another buffer."""
    return lambda index: (value, _FIRST)


def _only(s: Stmt, update: Update, step: Update) -> Stmt:
    """A statement without anything but an update, which becomes another one."""
    if s is update:
        return step
    if isinstance(s, For):
        inner = _only(s.body, update, step)
        return For(s.var, s.extent, s.kind, inner) if _does(inner) else block()
    if isinstance(s, If):
        then = _only(s.then, update, step)
        other = block() if s.otherwise is None else _only(s.otherwise, update, step)
        if not _does(then) and not _does(other):
            return block()
        return If(s.condition, then, other if _does(other) else None)
    if isinstance(s, Block):
        return block(*(_only(inner, update, step) for inner in s.stmts))
    return _only(s.body, update, step) if isinstance(s, Alloc) else block()


def _does(s: Stmt) -> bool:
    return not (isinstance(s, Block) and not s.stmts)
