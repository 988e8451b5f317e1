"""The order of iterations that reorder, fission, merge and loop kinds must keep.

One program for each condition of each check: only that condition forbids the rewrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import LimitError, ScheduleError
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Min, Select, const, var
from tilewright.loops.analysis.access import Access, accesses, commute, shared
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, Update, block, loop
from tilewright.schedule import Schedule
from tilewright.schedule.legality import show_pair
from tilewright.targets.registry import target

i32 = dtypes.int32
ROW, COL, DEEP = var("i"), var("j"), var("k")
ADD = reducer("add", i32)
_A, _B = var("a", i32), var("b", i32)
# The last value that is not zero: associative, and the order of its operands matters.
LAST = Reducer(
    "last",
    (_A,),
    (_B,),
    (Select(_B.ne(0), _B, _A),),
    (const(0, i32),),
    commutative=False,
)


def steps(op: Reducer) -> Schedule:
    """Y[0] op= X[i, j]."""
    x, y = Buffer("X", (3, 4), i32), Buffer("Y", (1,), i32)
    body = Update((y,), ((const(0),),), (x[ROW, COL],), op)
    return Schedule(Kernel("k", (x, y), (y,), loop(ROW, 3, loop(COL, 4, body))))


@pytest.mark.parametrize(
    "step", [("reorder", "j", "i"), ("vectorize", "j"), ("vthread", "i")]
)
def test_steps_of_a_reduction_change_places_only_if_they_commute(step, check_same):
    s = steps(ADD)
    getattr(s, step[0])(*step[1:])
    check_same(s.original, s, exact=True)
    for op in (LAST, replace(ADD, commutative=False)):
        with pytest.raises(ScheduleError, match=r"updates Y\[0\]"):
            getattr(steps(op), step[0])(*step[1:])


# -- how often a statement runs

X, Y, Z = (Buffer(n, (4,), i32) for n in "XYZ")
N, F = Buffer("N", (1,), INDEX), Buffer("F", (1,), i32)
ZERO = const(0)


def kernel(body: Stmt) -> Kernel:
    return Kernel("k", (X, Y, Z, F, N), (Y, Z, F, N), body)


def added(*more: Stmt, start: int = 0) -> Stmt:
    """Y[i] = start; Y[i] += X[i]; and more."""
    return block(
        Store(Y, (ROW,), const(start, i32)),
        Update((Y,), ((ROW,),), (X[ROW],), ADD),
        *more,
    )


SOME = Min(N[0], const(4))
CHANGES_N = Store(N, (ZERO,), ROW * 0 + 1)
STEADY = [
    # Only the first part's writes matter to fission: its loop has ended when the second begins.
    (
        loop(ROW, SOME, block(CHANGES_N, Store(Z, (ROW,), X[ROW]))),
        ("fission", "i", 1),
        "N",
    ),
    (
        loop(ROW, SOME, block(Store(Z, (ROW,), X[ROW]), CHANGES_N)),
        ("fission", "i", 1),
        None,
    ),
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
    (
        loop(ROW, 4, If(Y[ROW] < 3, added(start=5), None)),
        ("decompose_reduction", "Y", "i"),
        "Y",
    ),
    (
        loop(ROW, 4, If(F[0] < 3, added(), None)),
        ("decompose_reduction", "Y", "i"),
        None,
    ),
]


@pytest.mark.parametrize("body, step, changed", STEADY)
def test_how_often_a_statement_runs_does_not_change(body, step, changed):
    s = Schedule(kernel(body))
    if changed is None:
        getattr(s, step[0])(*step[1:])
        s.verify(1)
        return
    with pytest.raises(
        ScheduleError, match=f"says how often it runs, and {changed} changes"
    ):
        getattr(s, step[0])(*step[1:])


def test_a_loop_without_iterations_has_no_part(check_same):
    x = loop(COL, 0, If(COL < 3, Store(Z, (COL,), X[COL]), None))
    s = Schedule(kernel(loop(ROW, 4, block(Store(Y, (ROW,), X[ROW]), x))))
    with pytest.raises(
        ScheduleError, match="no guard in it is decided in some iterations only"
    ):
        s.partition_loop("j")


# -- which steps commute, and which accesses never conflict


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
        # The index stored with a value depends on the previous value.
        (update(most, Y, Z), update(most, Z, Y)),
        (update(most, Y, Z), update(most, Y, F)),
        (update(most, Y, Z, at=(ZERO, ROW)), update(most, Y, Z, at=(ZERO, ROW))),
    ]
    for a, b in different:
        assert not commute(a, b) and not commute(b, a)


def test_parts_that_are_apart_never_meet():
    y = Buffer("y", (20,), i32)
    body = Store(y, (ROW,), y[ROW + 10] + y[ROW + 4])
    far, near, write = accesses(body, {ROW: (0, 9)})
    assert agreeing(far, write, (ROW,)) is agreeing(write, far, (ROW,)) is None
    assert agreeing(near, write, (ROW,)) == agreeing(write, near, (ROW,)) == set()
    assert agreeing(write, write, (ROW,)) == {ROW}


def met(first: Expr, second: Expr) -> list[bool]:
    """Whether Y[first] and Y[second], each in its own j, may conflict, both ways; i is fixed."""
    inner = loop(COL, 4, Store(Y, (second,), X[COL]))
    env = {ROW: (2, 5), COL: (0, 3)}
    parts = put(Y, first, X[0]), inner
    a, b = (next(x for x in accesses(s, env) if x.writes) for s in parts)
    return [agreeing(*both, (var("v"),)) is not None for both in ((a, b), (b, a))]


@pytest.mark.parametrize("at", range(-2, 10))
@pytest.mark.parametrize("second", [COL * 2, 6 - COL * 2], ids=["up", "down"])
def test_a_loop_of_one_access_reaches_from_end_to_end(at, second):
    """j * 2 in 0..6; that it is even is not seen."""
    assert met(const(at), second) == [0 <= at <= 6] * 2


@pytest.mark.parametrize("end", range(2, 13))
def test_a_fixed_variable_is_one_value_in_both(end):
    """Where i == end - i is 2 * i == end, of i in 2..5."""
    assert met(ROW, end - ROW) == [4 <= end <= 10] * 2


def test_what_is_read_again_at_one_place_counts_once():
    found = shared(block(put(Y, ZERO, Y[1]), put(Z, ZERO, Y[1])))
    assert [str(a) for a in found[Y]] == ["Y[1]", "Y[0]"] and list(found) == [Y, Z]


def test_accesses_as_text():
    load, store = accesses(put(Y, ZERO, Y[0]))
    assert show_pair(store, store) == "writes Y[0]"
    assert show_pair(load, store) == "reads Y[0] and writes Y[0]"
    other = accesses(put(Y, ROW, X[0]))[-1]
    assert show_pair(store, other) == "writes Y[0] and writes Y[i]"


# -- programs that write in part, at offsets, in place and by several nests

WIDE = Buffer("W", (4, 5), i32)
T = Buffer("T", (4,), i32)
TO_N = loop(COL, Min(N[0], const(4)), Store(WIDE, (ROW, COL), X[ROW]))


def nest(*body: Stmt, rows: int = 4, columns: int = 4) -> Stmt:
    return loop(ROW, rows, loop(COL, columns, block(*body)))


def rows(*body: Stmt, extent: int = 4) -> Stmt:
    return loop(ROW, extent, block(*body))


def after(*body: Stmt, extent: int = 4) -> Stmt:
    return loop(COL, extent, block(*body))


def put(b: Buffer, at: Expr, value: Expr) -> Stmt:
    return Store(b, (at,), value)


COPY = put(Y, ROW, X[ROW])
SWAP, FUSE = ("reorder", "j", "i"), ("fuse", "i", "j")
FISSION, MERGE = ("fission", "i", 1), ("merge", "i", "j")
INIT = ("decompose_reduction", "Y", "i")
PROGRAMS = [
    # reorder: conflicting accesses keep their order.
    (nest(put(Y, ROW, X[COL])), SWAP, None),
    (nest(put(Y, ROW, Y[COL])), SWAP, "exchanging i and j"),
    (
        loop(ROW, 4, loop(COL, 4, loop(DEEP, 2, put(Y, ROW, Y[COL] + 1)))),
        ("reorder", "j", "i", "k"),
        "exchanging i and j",
    ),
    (nest(put(Y, (ROW + COL) // 2, X[ROW])), SWAP, "exchanging i and j"),
    (nest(put(Y, ROW, X[COL]), put(Z, COL, Y[ROW])), SWAP, None),
    (nest(put(Y, ROW, X[COL]), put(Z, COL, Y[COL])), SWAP, "exchanging i and j"),
    (nest(put(Y, N[0] * 0 + ROW, X[COL])), SWAP, None),
    (nest(put(Y, Min(N[ROW * 0], const(3)), X[COL])), SWAP, "exchanging i and j"),
    # A guard moves inward only if nothing changes it; an else branch cannot move.
    (
        loop(ROW, 4, If(ROW < 2, after(Store(WIDE, (ROW, COL), X[COL])), None)),
        SWAP,
        None,
    ),
    (
        loop(ROW, 4, If(F[0] < 2, after(put(F, ZERO, X[COL])), None)),
        SWAP,
        "not perfectly nested",
    ),
    (loop(ROW, 4, If(ROW < 2, after(COPY), COPY)), SWAP, "not perfectly nested"),
    (loop(ROW, 4, TO_N), SWAP, "depends on N"),
    # fuse: there is nothing between the loops, and the order never changes.
    (nest(put(Y, ROW, Y[COL])), FUSE, None),
    (loop(ROW, 4, TO_N), FUSE, "is not a constant"),
    (rows(after(COPY), COPY), FUSE, "not perfectly nested"),
    (
        loop(ROW, 4, If(F[0] < 2, after(put(F, ZERO, X[COL])), None)),
        FUSE,
        "not perfectly nested",
    ),
    # fission: an early statement may not pass a late one of an earlier iteration.
    (rows(COPY, put(Z, ROW, Y[ROW])), FISSION, None),
    (
        rows(COPY, put(Z, ROW, Y[3 - ROW])),
        FISSION,
        "parts depend on each other across iterations",
    ),
    (rows(put(Z, ROW, Y[ROW + 1]), COPY, extent=3), FISSION, None),
    (
        rows(put(Z, ROW + 1, Y[ROW]), put(Y, ROW + 1, X[ROW]), extent=3),
        FISSION,
        "parts depend on",
    ),
    (rows(put(Y, ROW + 1, X[ROW]), put(Y, ROW, X[ROW]), extent=3), FISSION, None),
    (
        rows(put(Y, ROW, X[ROW]), put(Y, ROW + 1, X[ROW]), extent=3),
        FISSION,
        "parts depend on",
    ),
    (rows(put(Y, ZERO, X[ROW]), put(Z, ROW, Y[0])), FISSION, "parts depend on"),
    (rows(put(Y, ROW, X[ROW]), put(F, ZERO, Y[ROW]), put(Z, ROW, F[0])), FISSION, None),
    (rows(put(F, ZERO, X[ROW]), put(Y, ROW, F[0]), COPY), FISSION, "parts depend on"),
    (
        rows(Alloc(T, block(put(T, ZERO, X[ROW]), put(Y, ROW, T[0])))),
        FISSION,
        "cannot be parted",
    ),
    # A guard around both applies to each part, unless it reads a value that a part changes.
    (
        rows(If(ROW < 3, block(COPY, put(Z, ROW, Y[ROW])), None)),
        FISSION,
        None,
    ),
    (
        rows(If(ROW < 3, block(COPY, put(Z, ROW, Y[3 - ROW])), None)),
        FISSION,
        "parts depend on",
    ),
    (
        rows(If(F[0] < 2, block(put(F, ZERO, X[ROW]), COPY), None)),
        FISSION,
        "cannot be parted",
    ),
    (
        rows(If(ROW < 3, block(COPY, put(Z, ROW, X[ROW])), COPY)),
        FISSION,
        "cannot be parted",
    ),
    # merge: a late statement may not come before an early one of a later iteration.
    (block(rows(COPY), after(put(Z, COL, Y[COL]))), MERGE, None),
    (
        block(rows(COPY), after(put(Z, COL, Y[3 - COL]))),
        MERGE,
        "depends on later iterations of the first",
    ),
    (
        block(rows(COPY), after(put(Z, COL, Y[COL + 1]), extent=3)),
        MERGE,
        "depends on later iterations",
    ),
    (
        block(rows(COPY), after(put(Y, COL + 1, X[COL]), extent=3)),
        MERGE,
        "depends on later iterations",
    ),
    (block(rows(COPY), after(put(Y, COL, X[COL]), extent=2)), MERGE, None),
    (block(rows(COPY, extent=2), after(put(Y, COL, Y[COL] * 2))), MERGE, None),
    (
        block(rows(COPY), put(Y, ZERO, X[3]), after(put(Z, COL, X[COL]))),
        MERGE,
        "uses Y too",
    ),
    (block(rows(COPY), put(F, ZERO, X[3]), after(put(Z, COL, F[0]))), MERGE, None),
    (
        block(rows(COPY), Alloc(T, put(T, ZERO, X[3])), after(put(Z, COL, X[COL]))),
        MERGE,
        None,
    ),
    (block(after(put(Z, COL, X[COL])), rows(COPY)), MERGE, "does not follow"),
    (
        block(rows(COPY), TO_N.replace(body=put(Z, COL, X[COL]))),
        MERGE,
        "is not a constant",
    ),
    # decompose_reduction: no other iteration accesses the initialized element.
    (rows(added()), INIT, None),
    (
        rows(added(put(Y, ROW // 2, X[ROW]))),
        INIT,
        "parts depend on each other across iterations",
    ),
    (nest(*added().stmts), INIT, r"parts depend on each other across iterations"),
    (rows(COPY, *added().stmts), INIT, None),
    (
        rows(put(Z, ROW, Y[3 - ROW]), *added().stmts),
        INIT,
        "parts depend on each other across iterations",
    ),
    (rows(put(Y, ROW, X[ROW])), INIT, "does not start with a Store to Y"),
]


@pytest.mark.parametrize("body, step, message", PROGRAMS)
def test_partial_offset_and_in_place_programs(body, step, message):
    s = Schedule(Kernel("k", (X, Y, Z, F, N, WIDE), (Y, Z, F, N, WIDE), body))
    if message is None:
        getattr(s, step[0])(*step[1:])
        for seed in range(3):
            s.verify(seed)
        return
    with pytest.raises(ScheduleError, match=message):
        getattr(s, step[0])(*step[1:])


def test_a_parallel_loop_does_not_come_out_to_where_its_iterations_meet():
    """Y[i + j] += X[j]: for one i all are different, for one j too, for both they are not."""
    y = Buffer("Y", (8,), i32)
    body = Update((y,), ((ROW + COL,),), (X[COL],), ADD)
    s = Schedule(Kernel("k", (X, y), (y,), nest(body)))
    s.reorder("j", "i")
    s.parallel("i")
    with pytest.raises(ScheduleError, match="reorder: this parallel loop"):
        s.reorder("i", "j")


@pytest.mark.parametrize("sizes", [(1, 5), (5, 1), (1, 1), (5, 2)])
def test_a_fused_loop_of_one_iteration_leaves_no_division(sizes, check_same):
    """Of conditions either, which are not simplified, and which `cache_read(pad=True)` reads."""
    m, n = sizes
    x, y = Buffer("x", (m, n), i32), Buffer("y", (m, n), i32)
    value = Select((ROW + 1 < m + 1) & (COL < n), x[ROW, COL], const(0, i32))
    body = Store(y, (ROW, COL), value)
    s = Schedule(Kernel("k", (x, y), (y,), loop(ROW, m, loop(COL, n, body))))
    assert s.fuse("i", "j") == "i_j"
    assert ("%" in repr(s.kernel)) == ("//" in repr(s.kernel)) == (1 not in sizes)
    check_same(s.original, s, exact=True)


def test_only_serial_loops_are_merged_and_fused_with_their_like():
    s = Schedule(kernel(block(rows(COPY), after(put(Z, COL, X[COL])))))
    s.parallel("j")
    with pytest.raises(ScheduleError, match=r"merge: the loop is parallel already"):
        s.merge("i", "j")
    s = Schedule(Kernel("k", (X, WIDE), (WIDE,), nest(Store(WIDE, (ROW, COL), X[COL]))))
    s.parallel("i")
    with pytest.raises(ScheduleError, match=r"fuse: the kinds are parallel and serial"):
        s.fuse("i", "j")
    s.parallel("j")
    s.verify()
    assert "parallel" in repr(s.kernel) and s.fuse("i", "j") == "i_j"


def test_what_only_isl_sees_is_permitted():
    """Even and odd elements never conflict; the proof needs divisibility."""
    y = Buffer("Y", (24,), i32)
    body = Store(y, (ROW * 2 + COL * 4,), y[ROW * 4 + COL * 2 + 3])
    s = Schedule(Kernel("k", (y,), (y,), nest(If((ROW < 1) & (COL < 4), body, None))))
    s.reorder("j", "i")
    s.verify()


@pytest.mark.parametrize("kind", ["vectorize", "unroll"])
def test_loops_that_are_no_threads_are_not_fused(kind):
    s = Schedule(Kernel("k", (X, WIDE), (WIDE,), nest(Store(WIDE, (ROW, COL), X[COL]))))
    getattr(s, kind)("i")
    getattr(s, kind)("j")
    with pytest.raises(ScheduleError, match="fuse: the kinds are"):
        s.fuse("i", "j")


def test_one_loop_has_no_order():
    s = Schedule(kernel(rows(COPY)))
    with pytest.raises(ScheduleError, match="it takes two or more loops"):
        s.reorder("i")


# -- unrolled loops keep their order


@pytest.mark.parametrize("op", [LAST, replace(ADD, commutative=False)])
@pytest.mark.parametrize("loop_name", ["i", "j"])
def test_steps_that_do_not_commute_are_unrolled_in_order(op, loop_name, check_same):
    s = steps(op)
    s.unroll(loop_name)
    check_same(s.original, s, exact=True)


def recurrence() -> Kernel:
    """Y[i] = Y[i - 1] * 3 + X[i], from left to right."""
    before = Y[ROW] * 3 + X[ROW + 1]
    return kernel(loop(ROW, 3, Store(Y, (ROW + 1,), before)))


def test_a_recurrence_is_unrolled_but_does_not_run_together(check_same):
    s = Schedule(recurrence())
    s.unroll("i")
    s.verify()
    check_same(recurrence(), s, exact=True)
    for verb in ("vectorize", "parallel", "vthread"):
        with pytest.raises(ScheduleError, match="loop-carried dependence"):
            getattr(Schedule(recurrence()), verb)("i")


def test_copies_have_a_limit_that_names_the_loops():
    y = Buffer("Y", (1 << 16,), i32)
    fill = Store(y, (ROW * 256 + COL,), const(1, i32))
    body = loop(ROW, 256, loop(COL, 256, fill))
    s = Schedule(Kernel("k", (y,), (y,), body))
    s.unroll("j")
    with pytest.raises(ScheduleError) as caught:
        s.unroll("i")
    assert "i (256) x j (256) are 65,536 copies" in str(caught.value)
    assert "more than 4,096; split the loop" in str(caught.value)
    inner = s.split("i", 16)[1]
    s.unroll(inner)


def test_a_limit_on_code_names_the_unrolled_loop(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CODE_LIMIT", "100")
    y = Buffer("Y", (64,), i32)
    s = Schedule(Kernel("k", (y,), (y,), loop(ROW, 64, Store(y, (ROW,), y[ROW] * 3))))
    s.unroll("i")
    with pytest.raises(LimitError, match="loop i, unrolled 64 times: "):
        target("cpu").text(s.kernel, "k", "llvm")
