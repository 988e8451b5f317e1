"""The order of iterations: what reorder, fission, merge and kinds of loops must not change.

One program per condition of each check, on which that condition alone stands in the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Min, Select, const, var
from tilewright.loops.nodes import If, Kernel, Stmt, Store, Update, block, loop
from tilewright.schedule import Schedule
from tilewright.schedule.meeting import commute, meeting
from tilewright.schedule.tree import Access, accesses

i32 = dtypes.int32
ROW, COL = var("i"), var("j")
ADD = reducer("add", i32)
_A, _B = var("a", i32), var("b", i32)
# The last value that is not zero: associative, and the order of its operands matters.
LAST = Reducer(
    "last", (_A,), (_B,), (Select(_B.ne(0), _B, _A),), (const(0, i32),), commutative=False
)


def steps(op: Reducer) -> Schedule:
    """Y[0] op= X[i, j]."""
    x, y = Buffer("X", (3, 4), i32), Buffer("Y", (1,), i32)
    body = Update((y,), ((const(0),),), (x[ROW, COL],), op)
    return Schedule(Kernel("k", (x, y), (y,), loop(ROW, 3, loop(COL, 4, body))))


@pytest.mark.parametrize("step", [("reorder", "j", "i"), ("vectorize", "j"), ("unroll", "j")])
def test_steps_of_a_reduction_change_places_only_if_they_commute(step, check_same):
    s = steps(ADD)
    getattr(s, step[0])(*step[1:])
    check_same(s.original, s, exact=True)
    for op in (LAST, replace(ADD, commutative=False)):
        with pytest.raises(ScheduleError, match=r"updates Y\[0\]"):
            getattr(steps(op), step[0])(*step[1:])


# -- what says how often a statement runs

X, Y, Z = (Buffer(n, (4,), i32) for n in "XYZ")
N, F = Buffer("N", (1,), INDEX), Buffer("F", (1,), i32)
ZERO = const(0)


def kernel(body: Stmt) -> Kernel:
    return Kernel("k", (X, Y, Z, F, N), (Y, Z, F, N), body)


def added(*more: Stmt, start: int = 0) -> Stmt:
    """Y[i] = start; Y[i] += X[i]; and more."""
    return block(
        Store(Y, (ROW,), const(start, i32)), Update((Y,), ((ROW,),), (X[ROW],), ADD), *more
    )


SOME = Min(N[0], const(4))
CHANGES_N = Store(N, (ZERO,), ROW * 0 + 1)
STEADY = [
    # Only the first part's writes matter to fission: its loop has ended when the second begins.
    (loop(ROW, SOME, block(CHANGES_N, Store(Z, (ROW,), X[ROW]))), ("fission", "i", 1), "N"),
    (loop(ROW, SOME, block(Store(Z, (ROW,), X[ROW]), CHANGES_N)), ("fission", "i", 1), None),
    (
        block(
            loop(ROW, SOME, block(Store(Y, (ROW,), X[ROW]), CHANGES_N)),
            loop(COL, SOME, Store(Z, (COL,), X[COL])),
        ),
        ("merge", "i", "j"),
        "N",
    ),
    (
        block(
            loop(ROW, SOME, Store(Y, (ROW,), X[ROW])),
            loop(COL, SOME, Store(Z, (COL,), X[COL])),
        ),
        ("merge", "i", "j"),
        None,
    ),
    (
        loop(ROW, 4, If(F[0] < 3, added(Store(F, (ZERO,), const(5, i32))), None)),
        ("decompose_reduction", "Y", "i"),
        "F",
    ),
    (loop(ROW, 4, If(Y[ROW] < 3, added(start=5), None)), ("decompose_reduction", "Y", "i"), "Y"),
    (loop(ROW, 4, If(F[0] < 3, added(), None)), ("decompose_reduction", "Y", "i"), None),
]


@pytest.mark.parametrize("body, step, changed", STEADY)
def test_how_often_a_statement_runs_does_not_change(body, step, changed):
    s = Schedule(kernel(body))
    if changed is None:
        getattr(s, step[0])(*step[1:])
        s.verify(1)
        return
    with pytest.raises(ScheduleError, match=f"says how often it runs, and {changed} changes"):
        getattr(s, step[0])(*step[1:])


def test_a_loop_without_iterations_has_no_part(check_same):
    x = loop(COL, 0, If(COL < 3, Store(Z, (COL,), X[COL]), None))
    s = Schedule(kernel(loop(ROW, 4, block(Store(Y, (ROW,), X[ROW]), x))))
    with pytest.raises(ScheduleError, match="no guard in it is decided in some iterations only"):
        s.partition_loop("j")


# -- which steps commute, and what never meets


def update(op: Reducer, *buffers: Buffer, at: Sequence[Expr] = (ZERO, ZERO)) -> Access:
    values = tuple(const(1, t) for t in op.dtypes)
    step = Update(buffers, tuple((i,) for i in at[: len(buffers)]), values, op)
    return next(a for a in accesses(step) if a.buffer is Y)


def test_two_steps_commute_if_they_are_of_one_commutative_reduction():
    stuck = replace(ADD, commutative=False)
    most = arg_reducer("argmax", i32, i32)
    assert commute(update(ADD, Y), update(ADD, Y))
    assert commute(update(most, Y, Z), update(most, Y, Z))
    different = [
        (update(ADD, Y), update(stuck, Y)),
        (update(ADD, Y), update(reducer("max", i32), Y)),
        (update(ADD, Y), accesses(Store(Y, (ZERO,), const(0, i32)))[0]),
        (update(ADD, Y), accesses(Store(X, (ZERO,), Y[0]))[0]),
        # Which index is kept beside a value depends on the value that was there.
        (update(most, Y, Z), update(most, Z, Y)),
        (update(most, Y, Z), update(most, Y, F)),
        (update(most, Y, Z, at=(ZERO, ROW)), update(most, Y, Z, at=(ZERO, ROW))),
    ]
    for a, b in different:
        assert not commute(a, b) and not commute(b, a)


def test_parts_that_are_apart_never_meet():
    y = Buffer("y", (20,), i32)
    body = Store(y, (ROW,), y[ROW + 10] + y[ROW + 4])
    far, near, write = accesses(body)
    env = {ROW: (0, 9)}
    assert meeting(far, write, (ROW,), env) is meeting(write, far, (ROW,), env) is None
    assert meeting(near, write, (ROW,), env) == meeting(write, near, (ROW,), env) == set()
    assert meeting(write, write, (ROW,), env) == {ROW}
