"""A reduction with several results: each is placed separately, and no other moves with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, Update, block, loop
from tilewright.schedule import Schedule

i32, i64 = dtypes.int32, dtypes.int64
ARGMAX = arg_reducer("argmax", i32, i64)
X = Buffer("X", (6, 8), i32)
R, C = Var("i", i64), Var("k", i64)


def argmax(whole: bool = False) -> Kernel:
    """V, P = the largest value of each row of X, and where. whole: start all rows first."""
    v, p = Buffer("V", (6,), i32), Buffer("P", (6,), i64)
    return Kernel("argmax", (X, v, p), (v, p), _nest(v, p, whole))


def _nest(v: Buffer, p: Buffer, whole: bool = False) -> Stmt:
    step = loop(C, 8, Update((v, p), ((R,), (R,)), (X[R, C], C), ARGMAX))
    if not whole:
        return loop(R, 6, block(*_start(v, p, R), step))
    again = Var("s", i64)
    return block(loop(again, 6, block(*_start(v, p, again))), loop(R, 6, step))


def _start(v: Buffer, p: Buffer, at: Expr) -> Sequence[Stmt]:
    return [Store(b, (at,), c) for b, c in zip((v, p), ARGMAX.identity, strict=True)]


def staged() -> Kernel:
    """The same, in intermediates that are copied out."""
    v, p = Buffer("V", (6,), i32), Buffer("P", (6,), i64)
    y, q, j = Buffer("Y", (6,), i32), Buffer("Q", (6,), i64), Var("j", i64)
    copies = loop(j, 6, block(Store(y, (j,), v[j]), Store(q, (j,), p[j])))
    return Kernel(
        "staged", (X, y, q), (y, q), Alloc(v, Alloc(p, block(_nest(v, p), copies)))
    )


def row_by_row() -> Kernel:
    """The same, with intermediates of one row."""
    v, p = Buffer("V", (1,), i32), Buffer("P", (1,), i64)
    y, q, zero = Buffer("Y", (6,), i32), Buffer("Q", (6,), i64), const(0)
    step = loop(C, 8, Update((v, p), ((zero,), (zero,)), (X[R, C], C), ARGMAX))
    copies = [Store(y, (R,), v[0]), Store(q, (R,), p[0])]
    row = Alloc(v, Alloc(p, block(*_start(v, p, zero), step, *copies)))
    return Kernel("rows", (X, y, q), (y, q), loop(R, 6, row))


def pipelined() -> Kernel:
    """The same, its copies a row late: a ring of one row is enough for V."""
    v, p = Buffer("V", (6,), i32), Buffer("P", (6,), i64)
    y, q = Buffer("Y", (6,), i32), Buffer("Q", (6,), i64)
    step = loop(C, 8, Update((v, p), ((R,), (R,)), (X[R, C], C), ARGMAX))
    row = block(*_start(v, p, R), step, Store(y, (R,), v[R]), Store(q, (R,), p[R]))
    return Kernel("ring", (X, y, q), (y, q), Alloc(v, Alloc(p, loop(R, 6, row))))


def both(kernel: Kernel, which: Sequence[str], check_same, apply) -> None:
    """`apply` to one output, the other one, then both."""
    for names in ([which[0]], [which[1]], [*which]):
        s = Schedule(kernel)
        for name in names:
            apply(s, name)
        check_same(kernel, s, exact=True)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("at", [None, "i", "k"])
def test_cache_write(whole, at, check_same):
    both(argmax(whole), "VP", check_same, lambda s, b: s.cache_write(b, at))


@pytest.mark.parametrize("text", ["lambda i: (5 - i,)", "lambda i: (i // 2, i % 2)"])
def test_transform_layout(text, check_same):
    both(staged(), "VP", check_same, lambda s, b: s.transform_layout(b, text))


def test_expand(check_same):
    both(row_by_row(), "VP", check_same, lambda s, b: s.expand(b, "i"))


def test_fold_storage(check_same):
    both(pipelined(), "VP", check_same, lambda s, b: s.fold_storage(b, 0, 1))


def test_virtual_threads(check_same):
    s = Schedule(row_by_row())
    s.expand("V", "i")
    s.vthread("i")
    check_same(row_by_row(), s, exact=True)


@pytest.mark.parametrize("threads", [4, 20])
def test_virtual_threads_part_all_results_of_a_step_of_which_one_differs(
    threads, check_same
):
    """The start of each thread decides P, though only V depends on the thread."""
    v, p = Buffer("V", (1,), i32), Buffer("P", (1,), i64)
    s, q, zero = Buffer("S", (threads,), i32), Buffer("Q", (threads,), i64), (const(0),)
    step = loop(C, 8, Update((v, p), (zero, zero), (X[0, C], C), ARGMAX))
    start = [Store(v, zero, s[R]), Store(p, zero, const(9))]
    body = loop(
        R, threads, Alloc(v, Alloc(p, block(*start, step, Store(q, (R,), p[0]))))
    )
    kernel = Kernel("threads", (X, s, q), (q,), body)
    schedule = Schedule(kernel)
    schedule.vthread("i")
    check_same(kernel, schedule, exact=True)


def test_steps_change_places_only_where_all_their_values_meet(check_same):
    """P[k] holds the place of V: whether it is set depends on earlier steps."""
    v, p = Buffer("V", (1,), i32), Buffer("P", (8,), i64)
    step = loop(C, 8, Update((v, p), ((const(0),), (C,)), (X[0, C], C), ARGMAX))
    kernel = Kernel("trail", (X, v, p), (v, p), step)
    for request in ("vectorize", "vthread"):
        with pytest.raises(ScheduleError, match="loop-carried dependence"):
            getattr(Schedule(kernel), request)("k")


def test_steps_of_one_value_with_different_others_keep_their_order():
    """V is shared; P and Q record which of the two steps set it."""
    v, p, q = Buffer("V", (1,), i32), Buffer("P", (1,), i64), Buffer("Q", (1,), i64)
    at = (const(0),)
    steps = [Update((v, b), (at, at), (X[0, C], C), ARGMAX) for b in (p, q)]
    kernel = Kernel("two", (X, v, p, q), (v, p, q), loop(C, 8, block(*steps)))
    with pytest.raises(ScheduleError, match=r"fission: .* V\[0\]"):
        Schedule(kernel).fission("k", 1)
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        Schedule(kernel).vectorize("k")


def test_steps_keep_their_order_where_only_one_value_outlives_the_loop():
    """Each iteration of i initializes V, so P holds the value of the last iteration."""
    v, p, zero = Buffer("V", (1,), i32), Buffer("P", (1,), i64), (const(0),)
    step = loop(C, 8, Update((v, p), (zero, zero), (X[R, C], C + R * 8), ARGMAX))
    row = Alloc(v, block(Store(v, zero, ARGMAX.identity[0]), step))
    kernel = Kernel("last", (X, p), (p,), loop(R, 6, row))
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        Schedule(kernel).vectorize("i")


@pytest.mark.parametrize(
    "name, args", [("cache_write", ("P", "i")), ("expand", ("P", "i"))]
)
def test_results_are_not_parted_where_their_steps_have_changed_places(name, args):
    s = Schedule(argmax() if name == "cache_write" else row_by_row())
    s.vectorize("k")
    with pytest.raises(
        ScheduleError,
        match=rf"{name}: .*vector loop (has|may have) a loop-carried dependence",
    ) as caught:
        getattr(s, name)(*args)
    assert caught.value.hint == f"{name} before the loop gets its kind"


def test_rfactor_needs_one_place():
    s = Schedule(staged())
    s.transform_layout("V", "lambda i: (5 - i,)")
    with pytest.raises(
        ScheduleError, match=r"are at different places: V\[.*\], P\[i\]"
    ) as caught:
        s.rfactor("k")
    assert "before the layout" in caught.value.hint
