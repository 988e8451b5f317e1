"""Loops whose guards are decided in most iterations run these without them.

A boundary condition leaves a test, a minimum or a maximum in every index that it bounds, though it
is decided for all but the first and last elements of a row. An index that is bounded in vector
lanes is no longer that of neighbors in memory: such a load gathers. `steady` gives the innermost
statements that have such guards a copy without them:

    for xo in 97: for xi in 16 vector: B(max(min(xo*16 + xi - 3, 1535), 0))

becomes a prologue, a steady state and an epilogue, where the guards depend on one loop only

    for xo in 1: for xi in 16 vector: B(max(xi - 3, 0))
    for xo in 95: for xi in 16 vector: B(xo*16 + xi + 13)
    for xo in 1: for xi in 16 vector: B(min(xi + 1533, 1535))

and otherwise, as where `xo` is inside a tile `t`, a test of what does not change in the lanes:

    if t*64 + xo*16 >= 3 and t*64 + xo*16 <= 1523: for xi in 16 vector: B(t*64 + xo*16 + xi - 3)
    else: for xi in 16 vector: B(max(min(t*64 + xo*16 + xi - 3, 1535), 0))

A loop with the note WHOLE stays in one part, and no test is made of it.

Only the innermost statements are copied, so that code grows with the number of guarded statements
and not with the product of the loops around them. What is decided once per row stays: it is
computed outside the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import reduce
from math import gcd
from typing import Any

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import (
    And,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Overlap,
    Var,
    const,
)
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import (
    WHOLE,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Unit,
    While,
    block,
)
from tilewright.loops.walk import loops_of, names_of, walk
from tilewright.schedule import edit
from tilewright.schedule.primitives.partition_loop import parts
from tilewright.schedule.simplify_guards import (
    conditions,
    guards,
    is_decided,
    simplify_guards,
    stretch,
)

# In so large a share of the iterations around it a test must hold, as far as intervals tell, for a
# copy to be worth its code. The steady part of a loop has more than half of it.
SHARE = 0.75
# Nodes of expressions in one innermost statement (unrolled loops as often as they run) of which
# copies are made, and in all copies of a kernel: each node is about one instruction, and LLVM takes
# some 10 microseconds for it.
STATEMENT, GROWTH = 4_000, 20_000
# Comparisons in one test: more cost as much as the guards that they replace.
TESTS = 8
_ONE = Affine((), 1)


def steady(kernel: Kernel) -> Kernel:
    """The kernel with copies of its innermost statements for where their guards are decided.

    Every iteration computes the same, in the same order. The steady state keeps the names of loops
    and buffers.
    """
    if not guards(kernel.body):
        return kernel
    body = _Copies(kernel).visit(kernel.body, {})
    return kernel if body is kernel.body else kernel.with_body(body)


class _Copies:
    """One walk over a kernel; `room`: how many nodes may be copied yet.

    whole: the names of loops that are not parted.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.taken = names_of(kernel)
        self.whole = {name for name, said in kernel.notes.items() if WHOLE in said}
        self.room = GROWTH

    def visit(self, s: Stmt, env: Env) -> Stmt:
        """The statement with copies; env: bounds of the variables around it."""
        if _is_innermost(s):
            return self.tested(s, env)
        rule = _RULES.get(type(s))
        return s if rule is None else rule(self, s, env)

    def loop(self, s: For, env: Env) -> Stmt:
        """A loop around others, or around innermost statements."""
        n = s.trips
        top = bounds(s.extent, env)[1] if n is None else n
        inside = env if top is None else {**env, s.var: (0, max(top - 1, 0))}
        is_whole = s.var.name in self.whole
        if s.kind == "serial" and n is not None and _is_innermost(s.body):
            if not is_whole:
                return self.parted(s, n, inside)
        return _with(s, body=self.visit(s.body, inside))

    def parted(self, s: For, n: int, env: Env) -> Stmt:
        """A loop directly around innermost statements: in parts, if that decides a guard."""
        found = _stretch(s, n, env)
        size = _size(s.body)
        if found is None or not self.fits(2 * size):
            return _with(s, body=self.tested(s.body, env))
        made: list[Stmt] = []
        points = [p for p in found if 0 < p < n]
        for part in parts(s, points, n, env, self.taken):
            trips = part.trips or 1
            inside = {**env, part.var: (0, trips - 1)}
            body = self.tested(part.body, inside)
            made.append(_with(part, body=body))
        return block(*made)

    def tested(self, s: Stmt, env: Env) -> Stmt:
        """An innermost statement: next to a copy for where its guards hold, if a test says
        where."""
        decided = _Decided(s, env, self.whole)
        tests = decided.tests
        if not tests or len(tests) > TESTS or not self.fits(_size(s)):
            return s
        inside = {**env, **environment(s)}
        quick = edit.rewrite(s, inside, decided.values)
        quick = simplify_guards(quick, inside)
        slow = simplify_guards(s, inside)
        slow, _ = edit.renamed(slow, self.taken, ".edge")
        condition = reduce(And, tests)
        return If(condition, quick, slow)

    def fits(self, size: int) -> bool:
        """Whether this many nodes may be copied; if so, they are added to the count."""
        if size > STATEMENT or size > self.room:
            return False
        self.room -= size
        return True


def _with(s: Any, **fields: Stmt) -> Stmt:
    """The statement with other statements in it; itself where they are the same."""
    changed = any(getattr(s, name) is not new for name, new in fields.items())
    found: Stmt = s.replace(**fields) if changed else s
    return found


def _block(x: _Copies, s: Block, env: Env) -> Stmt:
    stmts = [x.visit(part, env) for part in s.stmts]
    same = all(new is old for new, old in zip(stmts, s.stmts, strict=True))
    return s if same else block(*stmts)


def _if(x: _Copies, s: If, env: Env) -> Stmt:
    then = x.visit(s.then, env)
    if s.otherwise is None:
        return _with(s, then=then)
    return _with(s, then=then, otherwise=x.visit(s.otherwise, env))


def _inside(x: _Copies, s: Alloc | While, env: Env) -> Stmt:
    return _with(s, body=x.visit(s.body, env))


_RULES: Mapping[type[Stmt], Callable[[_Copies, Any, Env], Stmt]] = {
    For: _Copies.loop,
    Block: _block,
    If: _if,
    Alloc: _inside,
    While: _inside,
}


def _is_innermost(s: Stmt) -> bool:
    """Whether no loop is in it that runs in order, but inside vector loops."""
    waiting = [s]
    while waiting:
        s = waiting.pop()
        if isinstance(s, While | Unit):
            return False
        if isinstance(s, For):
            if s.kind == "vector":
                continue
            if s.kind != "unroll" and s.trips != 1:
                return False
        waiting += [c for c in s.children() if isinstance(c, Stmt)]
    return True


def _size(s: Stmt) -> int:
    """The nodes of expressions in it, as often as unrolled loops write them out."""
    total = 0
    for place in walk(s):
        times = 1
        for around in place.loops:
            if around.kind == "unroll":
                times *= around.trips or 1
        for part in place.stmt.children():
            if isinstance(part, Expr):
                total += times * len(list(postorder(part)))
    return total


def _varying(s: Stmt) -> set[Var]:
    """The variables that change within an innermost statement."""
    return {f.var for f in loops_of(s) if f.trips != 1}


# -- in parts


def _stretch(f: For, n: int, env: Env) -> tuple[int, int] | None:
    """The iterations, a majority, in which all guards in `f.body` are decided that depend on this
    loop and no other loop around it."""
    own = environment(f.body)
    inner = _varying(f.body) or {f.var}
    known = {f.var, *own}
    every = guards(f.body)
    found = []
    for g in every:
        used = variables(g)
        if used <= known and not used.isdisjoint(inner):
            found.append(g)
    if not found:
        return None
    starts = [g for g in every if isinstance(g, Overlap)]
    others = {**env, **own}
    others.pop(f.var, None)
    start, stop = stretch((*found, *starts), f.var, n, others)
    narrowed = {**others, f.var: (start, stop - 1)}
    gained = any(is_decided(g, narrowed) for g in found)
    is_most = n > stop - start > n / 2
    return (start, stop) if gained and is_most else None


# -- by a test


class _Decided:
    """What the guards of an innermost statement are under tests.

    values: the value of each guard that they decide. tests: on sums of terms from outside the
    statement, none of a loop in `whole`.
    """

    def __init__(self, s: Stmt, env: Env, whole: Set[str]) -> None:
        self.env = {**env, **environment(s)}
        self.whole = whole
        self.own = {f.var for f in loops_of(s)}
        self.inner = _varying(s)
        self.values: dict[Any, Any] = {}
        self.sums: dict[frozenset[tuple[Expr, int]], tuple[Affine, int]] = {}
        if self.inner:
            self._decide(s)

    @property
    def tests(self) -> list[Expr]:
        """The conditions under which the guards have these values, all together."""
        return [_at_most(form, most) for form, most in self.sums.values()]

    def _decide(self, s: Stmt) -> None:
        done: dict[Any, Any] = {}
        for node in postorder(s):
            if not isinstance(node, Expr):
                continue
            new = node.map(done.__getitem__)
            value = None if isinstance(new, Overlap) else self._value(new)
            if value is not None:
                self.values[node] = new = value
            done[node] = new

    def _value(self, e: Expr) -> Expr | None:
        """The value of a guard that varies in the statement, if a test decides it."""
        found = conditions(e)
        if not found or variables(e).isdisjoint(self.inner):
            return None
        condition = found[0]
        form = affine(condition.lhs) - affine(condition.rhs)
        choices: tuple[tuple[Affine, Expr], ...] = ()
        if isinstance(e, Min | Max):
            less, more = e.lhs, e.rhs
            if isinstance(e, Max):
                less, more = more, less
            choices = ((form, less), (form.scaled(-1), more))
        elif isinstance(e, Le | Lt):
            if isinstance(e, Lt):
                form = form + _ONE
            always = const(True, e.dtype)
            never = const(False, e.dtype)
            choices = ((form, always), (_ONE - form, never))
        for least, value in choices:
            if self._test(least):
                return value
        return None

    def _test(self, form: Affine) -> bool:
        """Note the test for `form <= 0` in all of the statement, if it mostly holds."""
        within: list[tuple[Expr, int]] = []
        around: list[tuple[Expr, int]] = []
        for term in form.terms:
            used = variables(term[0])
            if not all(isinstance(v, Var) and v.name not in self.whole for v in used):
                return False
            if used.isdisjoint(self.own):
                around.append(term)
            else:
                within.append(term)
        _, top = _sum(within, self.env)
        low, high = _sum(around, self.env)
        if top is None or low is None or high is None:
            return False
        most = -form.const - top
        if high <= most or not around:
            return high <= most
        step = gcd(*(c for _, c in around))
        holds = (most - low) // step + 1
        every = (high - low) // step + 1
        if holds < SHARE * every:
            return False
        key = frozenset(around)
        first = (Affine(tuple(around), 0), most)
        total, least = self.sums.get(key, first)
        self.sums[key] = total, min(least, most)
        return True


def _at_most(form: Affine, most: int) -> Expr:
    """`form <= most`, written without a negative first term."""
    _, first = form.terms[0]
    if first > 0:
        return Le(to_expr(form), const(most))
    flipped = to_expr(form.scaled(-1))
    return Le(const(-most), flipped)


def _sum(terms: Sequence[tuple[Expr, int]], env: Env) -> Interval:
    total = to_expr(Affine(tuple(terms), 0))
    return bounds(total, env)
