"""Faults of the kind that a GPU may hide, planted one by one: the interpreter finds all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import pytest

from tests.loops.gpu_kernels import barriers, judged, kernel, without_barrier
from tests.schedule.test_gpu import tiled
from tilewright.base.errors import ExecutionError
from tilewright.expr.nodes import Expr, Load, Lt, const
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.terms import variables
from tilewright.loops.launch import AXIS, Barrier, LaunchProgram
from tilewright.loops.nodes import Block, If, Kernel, Stmt, Store
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.loops.thread_exchange import DivergenceError
from tilewright.loops.walk import walk

TRANSPOSE = """\
kernel transpose(x: float32[12, 20]) -> y: float32[20, 12]:
  for bi in 2 blockIdx.y:
    for bj in 3 blockIdx.x:
      alloc t: float32[8, 9] in shared:
        for i in 8 threadIdx.y:
          for j in 8 threadIdx.x:
            if bi * 8 + i < 12:
              if bj * 8 + j < 20:
                t[i, j] = x[bi * 8 + i, bj * 8 + j]
        for i2 in 8 threadIdx.y:
          for j2 in 8 threadIdx.x:
            if bj * 8 + i2 < 20:
              if bi * 8 + j2 < 12:
                y[bj * 8 + i2, bi * 8 + j2] = t[j2, i2]"""
TREE = """\
kernel tree(x: int32[32]) -> y: int32[2]:
  for b in 2 blockIdx.x:
    alloc t: int32[16] in shared:
      for i in 16 threadIdx.x:
        t[i] = x[b * 16 + i]
      for i8 in 8 threadIdx.x:
        t[i8] = t[i8] + t[i8 + 8]
      for i4 in 4 threadIdx.x:
        t[i4] = t[i4] + t[i4 + 4]
      for i2 in 2 threadIdx.x:
        t[i2] = t[i2] + t[i2 + 2]
      y[b] = t[0] + t[1]"""
STENCIL = """\
kernel stencil(x: int32[34]) -> y: int32[32]:
  for b in 2 blockIdx.x:
    alloc t: int32[18] in shared:
      for i in 16 threadIdx.x:
        t[i] = x[b * 16 + i]
      for i2 in 2 threadIdx.x:
        t[16 + i2] = x[b * 16 + 16 + i2]
      for k in 2:
        alloc u: int32[18] in shared:
          for j in 18 threadIdx.x:
            u[j] = t[j]
          for j2 in 16 threadIdx.x:
            t[j2 + 1] = u[j2] + u[j2 + 1] + u[j2 + 2]
      for o in 16 threadIdx.x:
        y[b * 16 + o] = t[o + 1]"""


def in_two_buffers() -> Kernel:
    s = tiled(4, 4, 8, 4, 2)
    s.pipeline("mm.k.o", 0, 0, 1)
    return s.kernel


PROGRAMS: dict[str, Callable[[], Kernel]] = {
    "transpose": lambda: kernel(TRANSPOSE),
    "tree": lambda: kernel(TREE),
    "stencil": lambda: kernel(STENCIL),
    "product": lambda: tiled(6, 5, 5, 4, 2).kernel,
    "in two buffers": in_two_buffers,
}


@lru_cache
def made(name: str) -> tuple[Kernel, LaunchProgram]:
    before = PROGRAMS[name]()
    return before, to_launches(before)


def with_body(p: LaunchProgram, change: Callable[[Stmt], Stmt]) -> LaunchProgram:
    (launch,) = p.launches
    return replace(p, launches=(launch.with_body(change(launch.body)),))


def replaced(p: LaunchProgram, old: Stmt, new: Stmt) -> LaunchProgram:
    """The program with one statement in the place of another."""
    return with_body(p, lambda body: substitute(body, {old: new}))


def moved(index: tuple[Expr, ...], axis: int, by: int) -> tuple[Expr, ...]:
    return tuple(i + const(by) if n == axis else i for n, i in enumerate(index))


def dropped_barriers(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    for n in range(len(barriers(p))):
        yield f"barrier {n} is dropped", without_barrier(p, n)


def guards(p: LaunchProgram) -> list[If]:
    """But for those that only keep a thread of the edge from registers that nobody asks for."""
    found = [at.stmt for at in walk(p.launches[0].body) if isinstance(at.stmt, If)]
    return [s for s in found if not (_of_registers(s) and _of_threads(s.condition))]


def _of_registers(s: Stmt) -> bool:
    return all(b.scope == "register" for b in writes(s))


def _of_threads(condition: Expr) -> bool:
    return variables(condition) <= {*AXIS.values()}


def dropped_guards(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    for s in guards(p):
        yield f"no `if {s.condition!r}`", replaced(p, s, s.then)


def wider_guards(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    for s in guards(p):
        if isinstance(s.condition, Lt):
            wide = Lt(s.condition.lhs, s.condition.rhs + const(1))
            yield f"`if {wide!r}`", replaced(p, s, If(wide, s.then, None))


def off_by_one(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    for at in walk(p.launches[0].body):
        s = at.stmt
        if isinstance(s, Store) and s.buffer.scope != "register":
            for axis in range(len(s.index)):
                new = Store(s.buffer, moved(s.index, axis, 1), s.value)
                yield f"{s!r} one further in {axis}", replaced(p, s, new)


def misread(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    for at in walk(p.launches[0].body):
        s = at.stmt
        loads = [e for c in s.children() if isinstance(c, Expr) for e in _loads(c)]
        for load in loads:
            for axis in range(len(load.index)):
                new = Load(load.buffer, moved(load.index, axis, 1))
                changed = s.map(lambda c, a=load, b=new: substitute(c, {a: b}))
                yield (
                    f"{load!r} one further in {axis}, in {s!r}",
                    replaced(p, s, changed),
                )


def _loads(e: Expr) -> Iterator[Load]:
    found = (x for x in postorder(e) if isinstance(x, Load))
    return (x for x in found if x.buffer.scope == "shared")


def early(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    """A barrier changes places with the statement after it, which then runs too early."""
    for at in walk(p.launches[0].body):
        s = at.stmt
        if isinstance(s, Block):
            for n, inner in enumerate(s.stmts[:-1]):
                if isinstance(inner, Barrier):
                    order = [*s.stmts]
                    order[n : n + 2] = [order[n + 1], order[n]]
                    yield (
                        f"{order[n]!r} before its barrier",
                        replaced(p, s, Block(tuple(order))),
                    )


def wide_axes(p: LaunchProgram) -> list[tuple[str, int]]:
    """The axes along which a block has several threads, and how many."""
    counts = zip("xyz", p.launches[0].threads, strict=True)
    return [(f"threadIdx.{axis}", n) for axis, n in counts if n > 1]


def skipped_barriers(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    """The last thread of an axis does not come to a barrier."""
    for axis, count in wide_axes(p):
        for n, s in enumerate(barriers(p)):
            most = If(Lt(AXIS[axis], const(count - 1)), s, None)
            yield f"barrier {n} not for all of {axis}", replaced(p, s, most)


def repeated_barriers(p: LaunchProgram) -> Iterator[tuple[str, LaunchProgram]]:
    """The first thread of an axis comes to one more."""
    for axis, _ in wide_axes(p):
        for n, s in enumerate(barriers(p)):
            again = Block((s, If(Lt(AXIS[axis], const(1)), Barrier(s.scope), None)))
            yield f"barrier {n} twice for the first of {axis}", replaced(p, s, again)


KINDS = (
    dropped_barriers,
    dropped_guards,
    wider_guards,
    off_by_one,
    misread,
    early,
    skipped_barriers,
    repeated_barriers,
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_nothing_is_planted_in_is_right(name):
    for seed in range(3):
        judged(*made(name), seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_planted_fault_is_found(name, kind):
    """By a race, an index out of range, or a wrong value; at the first run."""
    before, right = made(name)
    for what, wrong in kind(right):
        try:
            judged(before, wrong)
        except (ExecutionError, AssertionError):
            continue
        raise RuntimeError(f"not found: {what}")


def test_faults_of_each_kind_are_planted():
    """More than the 50 that were asked for."""
    count = {kind: sum(len(list(kind(made(n)[1]))) for n in PROGRAMS) for kind in KINDS}
    assert min(count.values()) >= 9 and sum(count.values()) >= 100, count


@pytest.mark.parametrize("name", PROGRAMS)
def test_barriers_that_not_all_threads_come_to_are_found(name):
    """Not only by what came out. A thread that comes to one more is found as such; one that goes on
    alone may race first."""
    right = made(name)[1]
    for _, wrong in repeated_barriers(right):
        with pytest.raises(DivergenceError):
            judged(None, wrong)
    for _, wrong in skipped_barriers(right):
        with pytest.raises((DivergenceError, RaceError)):
            judged(None, wrong)


def test_dropped_barriers_and_early_statements_are_found_as_races():
    """Not only by what came out, which may be right by chance."""
    for name in PROGRAMS:
        right = made(name)[1]
        for _, wrong in (*dropped_barriers(right), *early(right)):
            with pytest.raises(RaceError):
                judged(None, wrong)
