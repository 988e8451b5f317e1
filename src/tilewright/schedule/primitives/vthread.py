"""vthread: the iterations of a loop as virtual threads, interleaved statement by statement."""

from __future__ import annotations

from typing import Any

from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import (
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
    block,
)
from tilewright.loops.nodes import loop as for_
from tilewright.loops.walk import below, loops_of, names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse
from tilewright.schedule.primitives.annotate import check_unmarked
from tilewright.schedule.registry import primitive

_FEW = 16


@primitive
def vthread(kernel: Kernel, loop: str) -> tuple[Kernel, tuple[str, ...]]:
    """Interleave the iterations of a loop: the loop goes as deep as it can; the loops it becomes.

    args: a loop, serial, parallel or bound to vthread.
    requires: a constant extent; no loop-carried dependence, except as
        steps of one commutative reduction.
    What depends on the loop gets its own loop around each innermost statement (the first keeps
    the name, the others are `<loop>.s`): unrolled where that is short and has no loop inside. What
    does not depend on it runs once for all. A buffer allocated inside gets a leading dimension for
    the loop where its contents depend on it, else the threads share it (TVM's
    inject_virtual_thread). All results of a reduction's step depend on it where one does, and so
    does all that a while loop or a Unit writes that each thread runs as a whole.
    before: for v in 2: alloc a[4], b[4]: { for k: { a[..] = X[k]; b[..] = Y[v, k]; C[v] += a*b } }
    after:  alloc a[4], b[2, 4]: for k: { a[..] = X[k]; for v in 2: b[v, ..] = Y[v, k]
                                          for v.s in 2: C[v.s] += a * b[v.s, ..] }
    """
    f, place = tree.find_loop(kernel, loop, "vthread")
    n = tree.trips(f, "vthread")
    check_unmarked(kernel, (loop,), "vthread")
    if f.kind not in ("serial", "parallel", "vthread"):
        raise refuse(
            "vthread",
            loop,
            f"the loop is {f.kind} already",
            "vthread it before",
        )
    hint = "take a loop of a cc dimension, or rfactor first"
    together = edit.put(kernel, place, For(f.var, f.extent, "vector", f.body))
    check_kinds(together, (loop,), "vthread", hint)
    threads = _Threads(f, n, names_of(kernel), environment(kernel.body))
    new = threads.inject(f.body)
    result = edit.put(kernel, place, new)
    inner = [x.var.name for x in loops_of(new) if x.kind != "serial"]
    check_kinds(
        result,
        inner,
        "vthread",
        "vthread before the loops inside get their kinds",
    )
    return result, tuple(threads.made)


class _Threads:
    """One loop while it is moved into its body; `touched`: everything that differs between its
    iterations."""

    def __init__(
        self,
        f: For,
        trips: int,
        taken: set[str],
        env: Env,
    ) -> None:
        self.loop = f
        self.trips = trips
        self.taken = taken
        self.env = env
        self.private = allocated(f.body)
        self.touched: set[Any] = {f.var}
        self.moves: dict[Buffer, Buffer] = {}
        self.made: list[str] = []
        while self._spread(f.body, False):
            pass

    def _spread(self, s: Stmt, under: bool) -> bool:
        """Add the buffers whose contents differ; whether there was a new one.

        under: whether something around decides differently per iteration whether `s` runs, or is
        run as a whole by each iteration. What an Update leaves in one of its buffers depends on
        what was in all of them.
        """
        is_whole = isinstance(s, While | Unit)
        under = under or self._depends(s) or (is_whole and self._acts(s))
        grown = False
        written: set[Buffer] = set()
        if isinstance(s, Store):
            written = {s.buffer}
        elif isinstance(s, Update):
            written = set(s.buffers)
            under = under or not written.isdisjoint(self.touched)
        if under and written:
            grown = not written <= self.touched
            self.touched |= written
        for inner in below(s):
            grown = self._spread(inner, under) or grown
        return grown

    def _depends(self, s: Stmt) -> bool:
        """Whether the statement itself, without those in it, differs between iterations."""
        for e in s.children():
            if not isinstance(e, Expr):
                continue
            for v in variables(e):
                read = v.buffer if isinstance(v, Load) else None
                if v in self.touched or read in self.touched:
                    return True
        return False

    def _acts(self, s: Stmt) -> bool:
        """Whether `s` or a statement in it must run once per iteration."""
        if self._depends(s):
            return True
        written: tuple[Buffer, ...] = ()
        if isinstance(s, Store):
            written = (s.buffer,)
        elif isinstance(s, Update):
            written = s.buffers
        if any(b in self.touched or b not in self.private for b in written):
            return True
        return any(map(self._acts, below(s)))

    def inject(self, s: Stmt) -> Stmt:
        """`s` for all iterations of the loop."""
        if not self._acts(s):
            return s
        if isinstance(s, Block):
            return block(*map(self.inject, s.stmts))
        if isinstance(s, Alloc):
            return self._alloc(s)
        if isinstance(s, For) and not self._depends(s):
            return For(s.var, s.extent, s.kind, self.inject(s.body))
        if isinstance(s, If) and not self._depends(s):
            other = None if s.otherwise is None else self.inject(s.otherwise)
            return If(s.condition, self.inject(s.then), other)
        return self._around(s)

    def _alloc(self, s: Alloc) -> Stmt:
        b = s.buffer
        if b not in self.touched:
            return Alloc(b, self.inject(s.body))
        shape = (self.trips, *b.extents)
        new = Buffer(b.name, shape, b.dtype, b.scope)
        self.moves[b] = new
        return Alloc(new, self.inject(s.body))

    def _around(self, s: Stmt) -> Stmt:
        """A loop over the threads around one statement."""
        var = self.loop.var
        if self.made:
            var = Var(fresh(self.taken, f"{self.loop.var.name}.s"), INDEX)
        self.made.append(var.name)
        env = {**self.env, var: (0, max(self.trips - 1, 0))}
        moves = {old: _leading(new, var) for old, new in self.moves.items()}
        body = edit.rewrite(s, env, {self.loop.var: var}, moves)
        plain = not loops_of(body) and not isinstance(body, Unit)
        kind = "unroll" if plain and self.trips < _FEW else "serial"
        return for_(var, self.trips, body, kind)


def _leading(buffer: Buffer, var: Var) -> edit.Move:
    return lambda index: (buffer, (var, *index))
