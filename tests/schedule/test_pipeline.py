"""pipeline, double_buffer: iterations overlap, what they meet in keeps its order."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Var, const
from tilewright.loops.nodes import Kernel, Store, block, loop
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer

i32 = dtypes.int32


def product() -> Kernel:
    return matmul(8, 16, 6, epilogue=False)


def staged() -> Schedule:
    """Slices of A and B copied per step of the reduction."""
    s = Schedule(product())
    s.decompose_reduction("C", "mm.i")
    s.split("mm.k", 2)
    s.reorder("mm.k.o", "mm.i", "mm.j", "mm.k.i")
    s.cache_read("A", "mm.k.o")
    s.cache_read("B", "mm.k.o")
    return s


def copies(s: Schedule, name: str) -> int:
    return find_buffer(s.kernel, name, "test")[0].shape[0]


def test_one_slice_ahead(check_same, golden):
    s = staged()
    s.double_buffer("A.local")
    check_same(product(), s, exact=True)
    assert copies(s, "A.local") == 2 and copies(s, "B.local") == 2
    golden("schedule_double_buffer", repr(s.kernel))


def test_several_slices_ahead(check_same):
    s = staged()
    s.double_buffer("A.local", stages=3)
    check_same(product(), s, exact=True)
    assert copies(s, "A.local") == 3
    with pytest.raises(ScheduleError, match="1 copies hold no other iteration"):
        staged().double_buffer("A.local", stages=1)


@pytest.mark.parametrize(
    "stages, a, b", [((0, 0, 1), 2, 2), ((0, 1, 2), 2, 3), ((0, 0, 2), 3, 3)]
)
def test_lags(stages, a, b, check_same):
    s = staged()
    s.pipeline("mm.k.o", *stages)
    check_same(product(), s, exact=True)
    assert (copies(s, "A.local"), copies(s, "B.local")) == (a, b)
    assert s.kernel.body is not None and "mm.k.o" in s.loops


def test_a_spare_copy(check_same):
    s = staged()
    s.pipeline("mm.k.o", 0, 0, 1, spare=1)
    check_same(product(), s, exact=True)
    assert copies(s, "A.local") == copies(s, "B.local") == 3
    with pytest.raises(ScheduleError, match="spare is -1"):
        staged().pipeline("mm.k.o", 0, 0, 1, spare=-1)


def steps(*shifts: int) -> Kernel:
    """T[i] = X[i]; then one statement after another reads T at a distance and stores its own."""
    x, i = Buffer("X", (32,), i32), Var("i", dtypes.int64)
    t = Buffer("T", (32,), i32)
    outs = [Buffer(f"Y{n}", (32,), i32) for n in range(len(shifts))]
    stmts = [Store(t, (i + 8,), x[i + 8] * 2)]
    stmts += [Store(y, (i,), t[i + 8 + d]) for y, d in zip(outs, shifts, strict=True)]
    return Kernel("steps", (x, t, *outs), (t, *outs), loop(i, 12, block(*stmts)))


def test_what_is_made_earlier_may_be_read_earlier(check_same):
    kernel = steps(-2)
    s = Schedule(kernel)
    s.pipeline("i", 2, 0)
    check_same(kernel, s, exact=True)


def test_several_loops_deep(check_same):
    kernel = steps(0, -1, -3)
    s = Schedule(kernel)
    s.split("i", 6)
    s.pipeline("i.i", 1, 1, 2, 0)
    check_same(kernel, s, exact=True)


REFUSED = [
    (
        lambda: Schedule(steps(0)),
        ("i", 1, 0),
        r"statement 0 would run 1 iter.*conflict at T\[8\]",
    ),
    (
        lambda: Schedule(steps(-2)),
        ("i", 3, 0),
        "statement 0 would run 3 iterations after",
    ),
    (
        lambda: Schedule(steps(4)),
        ("i", 0, 5),
        "statement 1 would run 5 iterations after",
    ),
    (
        lambda: Schedule(steps(0)),
        ("i", 0, 12),
        "the lags 0, 12 are not one per statement",
    ),
    (lambda: Schedule(steps(0)), ("i", 1, 1), "its 2 statements are: 0: T"),
    (lambda: Schedule(steps(0)), ("i", 0), "one per statement from 0 on, at most 11"),
    (
        staged,
        ("mm.k.o", 1, 0, 0),
        "statement 0 would run 1 iterations after statement 2",
    ),
]


@pytest.mark.parametrize(
    "make, args, message", REFUSED, ids=[str(a) for _, a, _ in REFUSED]
)
def test_refusals(make, args, message):
    s = make()
    with pytest.raises(ScheduleError, match=message) as caught:
        s.pipeline(*args)
    assert caught.value.message.startswith("pipeline:") and caught.value.hint


def test_refusals_of_double_buffer():
    s = staged()
    with pytest.raises(
        ScheduleError, match=r"not allocated in the body of loop mm.i.*mm.k.o"
    ):
        s.double_buffer("A.local", "mm.i")
    with pytest.raises(
        ScheduleError, match=r"not allocated in the body of a loop.*cache_read"
    ):
        s.double_buffer("C")
    s.cache_write("C", "mm.k.o", name="all")
    with pytest.raises(
        ScheduleError, match=r"loop mm.k.o: double_buffer: statement 1 would run"
    ):
        s.double_buffer("all")
    s = staged()
    s.unroll("mm.k.o")
    with pytest.raises(ScheduleError, match="the loop is unroll"):
        s.double_buffer("A.local")


def test_parts_of_a_loop_may_share_a_statement(check_same):
    """A step that does not name the loop is one statement in both parts."""
    y, acc, k = Buffer("Y", (7,), i32), Buffer("acc", (1,), i32), Var("k", INDEX)
    step = Store(acc, (const(0),), acc[0] + 3)
    sums = loop(k, 7, block(step, Store(y, (k,), acc[0])))
    kernel = Kernel("k", (y, acc), (y, acc), sums)
    s = Schedule(kernel)
    s.partition_loop("k", 2)
    with pytest.raises(ScheduleError, match="pipeline"):
        s.pipeline("k", 0, 1)
    check_same(kernel, s, exact=True)
