"""Every question of the analysis against enumeration of all pairs of iterations.

Random small programs: partial writes, offsets, one buffer read and written, guards, Selects,
mixed-radix indices, gathers, products of loops, memory of an iteration's own, several writers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Buffer,
    Const,
    Expr,
    Load,
    Lt,
    Max,
    Min,
    Mul,
    Overlap,
    Select,
    Var,
    const,
    var,
)
from tilewright.expr.reads import reads
from tilewright.ir.node import postorder
from tilewright.loops.analysis import isl
from tilewright.loops.analysis.access import Access, environment, pairs, shared
from tilewright.loops.analysis.dependence import (
    are_independent,
    can_delay,
    can_fission,
    can_parallelize,
    can_reorder,
    can_separate,
)
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.question import conflicting
from tilewright.loops.analysis.verdict import Illegal, Legal, Unknown, Verdict
from tilewright.loops.interp import run
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

I32 = dtypes.int32
_A, _B = var("a", I32), var("b", I32)
ADD, MOST = reducer("add", I32), reducer("max", I32)
LAST = Reducer(
    "last",
    (_A,),
    (_B,),
    (Select(_B.ne(0), _B, _A),),
    (const(0, I32),),
    commutative=False,
)
X, Y, OWN = Buffer("x", (64, 64), I32), Buffer("y", (64,), I32), Buffer("t", (64,), I32)
AT = Buffer("at", (8,), dtypes.int64)
CONTENTS = ((0, 1, 2, 3, 4, 5, 6, 7), (3, 0, 3, 1, 0, 2, 7, 7))
SEEDS, BATCHES = 120, 8


# -- programs


class Programs:
    """Kernels of two or three loops around a sequence of statements."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.loops = [var(n) for n in "ijk"[: self.r.choice([2, 2, 3])]]
        self.elements: list[tuple[Buffer, tuple[Expr, ...]]] = []

    def kernel(self) -> Kernel:
        """The next one."""
        stmts = [self.stmt(n) for n in range(self.r.randint(1, 3))]
        body = block(*stmts)
        if self.r.random() < 0.3:
            body = Alloc(OWN, body)
        for v in reversed(self.loops):
            body = loop(v, self.r.randint(1, 4), body)
        return Kernel("p", (AT, X, Y), (X, Y), body)

    def stmt(self, n: int) -> Stmt:
        inner = var(f"m{n}")
        chosen = self.r.random()
        variables = [*self.loops, inner] if chosen < 0.25 else self.loops
        s = self.write(variables)
        if self.r.random() < 0.3:
            other = self.r.choice([None, self.write(variables)])
            s = If(self.condition(variables), s, other)
        return loop(inner, self.r.randint(1, 3), s) if chosen < 0.25 else s

    def write(self, variables: Sequence[Var]) -> Stmt:
        target, at = self.element(variables)
        value: Expr = Load(*self.element(variables))
        if self.r.random() < 0.2:
            arms = self.r.sample([value, const(1, I32)], 2)
            value = Select(self.condition(variables), *arms)
        if self.r.random() < 0.5:
            return Store(target, at, value)
        return Update((target,), (at,), (value,), self.r.choice([ADD, ADD, MOST, LAST]))

    def element(self, variables: Sequence[Var]) -> tuple[Buffer, tuple[Expr, ...]]:
        if self.elements and self.r.random() < 0.3:
            return self.r.choice(self.elements)
        b = self.r.choice([X, X, Y, OWN])
        b = Y if b is OWN and self.r.random() < 0.5 else b
        found = b, tuple(self.index(variables) for _ in b.shape)
        if variables is self.loops:
            self.elements.append(found)
        return found

    def condition(self, variables: Sequence[Var]) -> Expr:
        return Lt(self.index(variables), const(self.r.randint(0, 6)))

    def index(self, variables: Sequence[Var]) -> Expr:
        e: Expr = const(self.r.randint(0, 2))
        for v in self.r.sample(
            list(variables), self.r.randint(0, min(3, len(variables)))
        ):
            e = e + self.term(v, variables)
        if self.r.random() < 0.08:
            e = self.r.choice([Min, Max])(e, const(self.r.randint(1, 4)))
        return e

    def term(self, v: Var, variables: Sequence[Var]) -> Expr:
        r, other = self.r, self.r.choice(list(variables))
        kind = r.random()
        if kind < 0.55:
            return v * r.choice([1, 1, 2, 3, 4, 8, -1])
        if kind < 0.85:
            n = r.choice([2, 3])
            whole = r.choice([v, v + other, v * 4 + other, v // 2])
            return r.choice(
                [whole // n * r.choice([1, 4]), whole % n, whole // n * 4 + whole % n]
            )
        return AT[v] if kind < 0.95 else v * other


# -- the accesses of an execution


@dataclass(frozen=True)
class Event:
    """An access that is performed: by a statement below others, in an iteration of the loops."""

    kind: str
    element: tuple[Buffer, tuple[int, ...]]
    path: tuple[Stmt, ...]
    point: dict[Var, int]
    reducer: Reducer | None = None


class Run:
    """All that a program does, for some contents of AT."""

    def __init__(self, contents: Sequence[int]) -> None:
        self.contents = contents
        self.events: list[Event] = []

    def load(self, buffer: Buffer, index: tuple[Any, ...]) -> int:
        """Only AT decides anything."""
        return self.contents[int(index[0]) % 8] if buffer is AT else 0

    def value(self, e: Expr, point: dict[Var, int]) -> int:
        return int(evaluate(e, point, self.load))

    def stmt(self, s: Stmt, above: tuple[Stmt, ...], point: dict[Var, int]) -> None:
        path = (*above, s)
        if isinstance(s, For):
            for n in range(s.trips or 0):
                self.stmt(s.body, path, {**point, s.var: n})
        elif isinstance(s, If):
            self.loads((s.condition,), path, point)
            arm = s.then if self.value(s.condition, point) else s.otherwise
            if arm is not None:
                self.stmt(arm, path, point)
        elif isinstance(s, Block | Alloc):
            for inner in s.stmts if isinstance(s, Block) else (s.body,):
                self.stmt(inner, path, point)
        elif isinstance(s, Store):
            self.loads((*s.index, s.value), path, point)
            self.event("store", s.buffer, s.index, path, point)
        elif isinstance(s, Update):
            self.loads((*s.indices[0], *s.values), path, point)
            self.event("update", s.buffers[0], s.indices[0], path, point, s.reducer)

    def loads(
        self, roots: tuple[Expr, ...], path: tuple[Stmt, ...], point: Any
    ) -> None:
        for x in reads(roots, {}):
            if all(bool(self.value(c, point)) == holds for c, holds in x.guards):
                self.event("load", x.load.buffer, x.load.index, path, point)

    def event(
        self, kind: str, b: Buffer, index: Any, path: Any, point: Any, op: Any = None
    ) -> None:
        at = tuple(self.value(i, point) for i in index)
        self.events.append(Event(kind, (b, at), path, point, op))


def happens(kernel: Kernel) -> list[list[Event]]:
    runs = []
    for contents in CONTENTS:
        run = Run(contents)
        run.stmt(kernel.body, (), {})
        runs.append(run.events)
    return runs


Related = Callable[[list[int], list[int]], bool]


def meets(
    runs: list[list[Event]],
    band: Sequence[For],
    related: Related,
    updates: bool = True,
    first: Sequence[Stmt] = (),
    second: Sequence[Stmt] = (),
) -> bool:
    """Whether two events conflict in iterations p and q of the band that are related."""
    inner = band[-1]
    for events in runs:
        inside = [e for e in events if inner in e.path and e.element[0] is not AT]
        inside = [e for e in inside if not _own(e, inner)]
        for e, f in product(inside, inside):
            if e.element != f.element or e.kind == f.kind == "load":
                continue
            if updates and e.reducer is not None and e.reducer is f.reducer is not LAST:
                continue
            outer = [
                s.var for s in e.path[: e.path.index(band[0])] if isinstance(s, For)
            ]
            if any(e.point[v] != f.point[v] for v in outer):
                continue
            if first and not (set(first) & set(e.path) and set(second) & set(f.path)):
                continue
            if related(*([x.point[g.var] for g in band] for x in (e, f))):
                return True
    return False


def _own(e: Event, inner: For) -> bool:
    allocs = (s.buffer for s in e.path[e.path.index(inner) :] if isinstance(s, Alloc))
    return e.element[0] in allocs


def nest(kernel: Kernel) -> list[For]:
    found, s = [], kernel.body
    while isinstance(s, For):
        found.append(s)
        s = s.body
    return found


def judge(verdict: Verdict, conflict: bool, kernel: Kernel, what: str) -> None:
    """No verdict permits a conflict or invents one, and isl gives up only for a stated reason."""
    assert not (conflict and isinstance(verdict, Legal)), f"{what} of {kernel}"
    if isinstance(verdict, Illegal):
        assert conflict, f"{what} of {kernel}: {verdict.reason}"
    if isinstance(verdict, Unknown) and verdict.limit == "affine":
        assert not _is_affine(kernel), f"{what} of {kernel}: {verdict.reason}"


def _is_affine(kernel: Kernel) -> bool:
    nodes = list(postorder(kernel.body))
    products = (n for n in nodes if isinstance(n, Mul))
    gathers = any(isinstance(n, Load) and n.buffer is AT for n in nodes)
    return not gathers and all(isinstance(n.rhs, Const) for n in products)


# -- the questions


def programs(batch: int) -> Iterator[Kernel]:
    return (Programs(seed).kernel() for seed in range(batch, SEEDS, BATCHES))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_loops_run_together_only_if_no_iterations_meet(batch: int) -> None:
    for kernel in programs(batch):
        runs, env = happens(kernel), environment(kernel.body)
        for f in nest(kernel):
            for updates in (True, False):
                met = meets(runs, [f], lambda p, q: p != q, updates)
                verdict = can_parallelize(kernel, f, None, updates=updates)
                judge(verdict, met, kernel, f"parallel {f.var.name} {updates}")
            assert not are_independent(f, env) or not met, kernel


@pytest.mark.sampled(5)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_loops_change_places_only_if_no_order_changes(batch: int) -> None:
    for kernel in programs(batch):
        runs, loops = happens(kernel), nest(kernel)
        names = [f.var.name for f in loops]
        for order in permutations(range(len(loops))):

            def related(p: list[int], q: list[int], order: Any = order) -> bool:
                return p < q and [p[n] for n in order] > [q[n] for n in order]

            verdict = can_reorder(kernel, loops, [names[n] for n in order])
            judge(verdict, meets(runs, loops, related), kernel, f"reorder {order}")

        def backwards(p: list[int], q: list[int]) -> bool:
            return p < q and any(x > y for x, y in zip(p, q, strict=True))

        judge(
            can_reorder(kernel, loops), meets(runs, loops, backwards), kernel, "reorder"
        )


@pytest.mark.parametrize("batches", [2, pytest.param(BATCHES, marks=pytest.mark.slow)])
def test_bodies_are_parted_only_if_the_parts_keep_their_order(batches: int) -> None:
    seen: Counter[tuple[int, type]] = Counter()
    for kernel in chain(*map(programs, range(batches))):
        f = nest(kernel)[-1]
        stmts = f.body.stmts if isinstance(f.body, Block) else ()
        runs = happens(kernel)
        for at in range(1, len(stmts)):
            parts = stmts[at:], stmts[:at]
            met = meets(runs, [f], lambda p, q: p < q, True, *parts)
            verdict = can_fission(kernel, f, at)
            judge(verdict, met, kernel, f"fission {at}")
            seen[at, type(verdict)] += 1
            loops = nest(kernel)[-2:]
            apart = meets(
                runs, loops, lambda p, q: p != q, False, stmts[:at], stmts[at:]
            )
            verdict = can_separate(kernel, loops, stmts[:at], stmts[at:])
            judge(verdict, apart, kernel, f"separate {at}")
    for answer in (Legal, Illegal, Unknown):
        assert seen[1, answer] >= 5 * batches / BATCHES, (answer, seen)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_statements_lag_only_if_they_keep_their_order(batch: int) -> None:
    for kernel in programs(batch):
        f = nest(kernel)[-1]
        stmts = f.body.stmts if isinstance(f.body, Block) else ()
        runs = happens(kernel)
        for (first, second), lags in product(
            combinations(stmts, 2), [(0, 0), (0, 1), (1, 2)]
        ):

            def related(p: list[int], q: list[int], lags: Any = lags) -> bool:
                return lags[0] <= q[0] - p[0] <= lags[1]

            met = meets(runs, [f], related, True, [first], [second])
            judge(
                can_delay(kernel, f, first, second, lags), met, kernel, f"delay {lags}"
            )


# -- tiles that overlap


class Tiles:
    """Programs on overlapping tiles of 4 of 10 elements; elements stored twice get equal values."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.tile, self.lane = var("o"), var("i")
        self.x = Overlap(self.tile * 4, const(6)) + self.lane
        self.shifted = Overlap(self.tile * 4, const(5)) + self.lane

    def kernel(self, order: Sequence[str] = "oi", body: Stmt | None = None) -> Kernel:
        """The next one, or a body of one in another order."""
        if body is None:
            body = block(*(self.stmt() for _ in range(self.r.randint(1, 3))))
        loops = {"o": (self.tile, 3), "i": (self.lane, 4)}
        for name in reversed(order):
            body = loop(*loops[name], body)
        return Kernel("t", (IN, P, Q), (P, Q), body)

    def stmt(self) -> Stmt:
        r, target = self.r, self.r.choice([P, Q])
        at = r.choice([self.x, self.x, self.shifted])
        kind = r.random()
        if kind < 0.5:  # the promise: what is stored depends on the element alone
            return Store(target, (at,), IN[at] + r.randint(0, 2))
        if kind < 0.7:
            return Update((target,), ((at,),), (IN[at],), r.choice([ADD, MOST]))
        source = r.choice([IN, P, Q])[at]
        return Store(target, (self.lane,), source)


IN, P, Q = (Buffer(name, (10,), I32) for name in ("in", "p", "q"))


def ends(kernel: Kernel) -> list[list[int]]:
    arrays = [np.arange(10, dtype=np.int32) * n + n for n in (3, 5, 7)]
    run(kernel, dict(zip(kernel.params, arrays, strict=True)))
    return [a.tolist() for a in arrays]


def test_tiles_that_overlap_change_places_only_if_results_do_not() -> None:
    seen: Counter[type] = Counter()
    for seed in range(300):
        made = Tiles(seed)
        kernel = made.kernel()
        (outer, inner) = nest(kernel)
        verdict = can_reorder(kernel, [outer, inner], "io")
        seen[type(verdict)] += 1
        if verdict:
            assert ends(kernel) == ends(made.kernel("io", inner.body)), kernel
    assert seen[Legal] >= 30 and seen[Illegal] >= 30


# -- the lemmas alone


@pytest.mark.sampled(8)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_lemmas_against_enumeration_and_isl(batch: int) -> None:
    """Of quick accesses and of guarded ones, for the loops of every depth."""
    for kernel in programs(batch):
        loops = nest(kernel)
        runs, env = happens(kernel), environment(kernel.body)
        for n in range(len(loops)):
            band = loops[n:]
            for found in shared(band[-1].body, env).values():
                for a, b in pairs(found):
                    check_agreeing(a, b, band, runs)
            for a, b in conflicting(kernel, band[-1]):
                check_agreeing(a, b, band, runs)
                if n == 0:
                    check_isl(a, b, band)


def check_agreeing(
    a: Access, b: Access, band: list[For], runs: list[list[Event]]
) -> None:
    same = agreeing(a, b, [f.var for f in band])
    for events in runs:
        for e, f in product(_of(a, events), _of(b, events)):
            outer = [
                s.var for s in e.path[: e.path.index(band[0])] if isinstance(s, For)
            ]
            if e.element != f.element or any(e.point[v] != f.point[v] for v in outer):
                continue
            assert same is not None, f"{a} and {b} touch {e.element}"
            for g in band:
                agree = e.point[g.var] == f.point[g.var]
                assert agree or g.var not in same, (
                    f"{a} and {b} touch {e.element}: {g.var}"
                )


def _of(a: Access, events: list[Event]) -> list[Event]:
    """The events of an access, of its guards: an expression may be read under several."""
    found = []
    for e in events:
        if e.path[-1] is a.place.stmt and e.kind == a.kind and e.element[0] is a.buffer:
            run = Run(CONTENTS[0])
            if not any(_uses_at(i) for i in (*a.index, *(c for c, _ in a.guards))):
                if tuple(run.value(i, e.point) for i in a.index) != e.element[1]:
                    continue
                if any(bool(run.value(c, e.point)) != holds for c, holds in a.guards):
                    continue
                found.append(e)
    return found


def _uses_at(e: Expr) -> bool:
    return "[" in repr(e)


def check_isl(a: Access, b: Access, band: list[For]) -> None:
    """What the lemmas prove, isl does not refute."""
    same = agreeing(a, b, [f.var for f in band])
    if same is None:
        found = isl.ask(a, b, band, lambda p, q: "true")
        assert not isinstance(found, Illegal), f"{a}, {b}: {found}"
        return
    for n, f in enumerate(band):
        if f.var in same:
            found = isl.ask(a, b, band, lambda p, q, n=n: f"{p[n]} != {q[n]}")
            assert not isinstance(found, Illegal), f"{a}, {b}: {found}"
