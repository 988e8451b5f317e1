"""vthread: virtual threads, interleaved; what does not depend on them is shared."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tests.schedule.test_rows import softmax
from tilewright.base.dtypes import int32 as i32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Lt, Var, const
from tilewright.loops.nodes import Alloc, Kernel, Store, Unit, While, block, loop
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer


def product() -> Kernel:
    return matmul(8, 16, 6, epilogue=False)


def staged() -> Schedule:
    """Two halves of the rows, each with its own accumulators; both read the columns of B."""
    s = Schedule(product())
    o, _ = s.split("mm.i", 4)
    s.cache_write("C", o)
    s.cache_read("A", o)
    s.cache_read("B", "mm.k")
    return s


def test_threads_share_what_does_not_depend_on_them(check_same, golden):
    s = staged()
    made = s.vthread("mm.i.o")
    assert made == ("mm.i.o", "mm.i.o.s", "mm.i.o.s_2", "mm.i.o.s_3")
    check_same(product(), s, exact=True)
    shapes = {
        b: find_buffer(s.kernel, b, "test")[0].shape
        for b in ("A.local", "C.acc", "B.local")
    }
    assert shapes == {"A.local": (2, 4, 6), "C.acc": (2, 4, 16), "B.local": (1, 1)}
    golden("schedule_vthread", repr(s.kernel))


def test_two_virtual_threads_in_each_direction(check_same):
    s = Schedule(product())
    io, jo, ii, _ = s.tile("mm.i", "mm.j", 4, 8)
    s.bind(io, "vthread")
    s.bind(jo, "vthread")
    s.cache_write("C", jo)
    s.vthread(jo)
    s.vthread(io)
    check_same(product(), s, exact=True)
    assert find_buffer(s.kernel, "C.acc", "test")[0].shape == (2, 2, 4, 8)
    assert s.loops[0] == ii


def test_rows_of_a_softmax(check_same):
    kernel = softmax(4, 19)
    s = Schedule(kernel)
    s.split("div.i", 2)
    for buffer in ("S", "E", "M"):
        s.compute_at(buffer, "div.i.i", "stack")
    s.vthread("div.i.i")
    check_same(kernel, s)


def test_indices_are_simplified_within_the_threads():
    x, y, z, v = (*(Buffer(name, (4,), i32) for name in "XYZ"), Var("v", INDEX))
    body = block(Store(y, (v,), x[v]), Store(z, (v % 4,), x[v]))
    s = Schedule(Kernel("k", (x, y, z), (y, z), loop(v, 4, body)))
    assert s.vthread("v") == ("v", "v.s")
    assert "Z[v.s] = X[v.s]" in repr(s.kernel)


def test_reductions_may_meet_but_nothing_else():
    s = Schedule(product())
    s.decompose_reduction("C", "mm.i")
    s.vthread("mm.k")
    s = Schedule(softmax(4, 6))
    s.vectorize("div.j")
    with pytest.raises(
        ScheduleError, match=r"loop div.j: vthread: the loop is vector already"
    ):
        s.vthread("div.j")


def test_a_carried_dependence_is_refused():
    from tests.schedule.test_refusals import prefix

    s = Schedule(prefix())
    with pytest.raises(
        ScheduleError, match=r"loop scan.j: vthread: this .*loop-carried dependence"
    ):
        s.vthread("scan.j")


@pytest.mark.parametrize("threads", [4, 20])
def test_threads_that_count_have_a_count_each(threads, check_same):
    """The count of a while loop is the same in all threads, but each runs the loop."""
    x, y, c = (
        Buffer("X", (1,), i32),
        Buffer("Y", (threads,), i32),
        Buffer("c", (1,), i32),
    )
    v, zero = Var("v", INDEX), (const(0),)
    step = block(Store(y, (v,), y[v] + x[0]), Store(c, zero, c[0] + 1))
    body = block(Store(c, zero, const(0, i32)), While(Lt(c[0], const(3, i32)), step))
    before = Kernel("count", (x, y), (y,), loop(v, threads, Alloc(c, body)))
    s = Schedule(before)
    s.vthread("v")
    check_same(before, s, exact=True)


@pytest.mark.parametrize("threads", [4, 20])
def test_a_piece_that_each_thread_does_has_memory_of_its_own(threads, check_same):
    """The piece counts on in a buffer that starts alike in all threads."""
    x, y, c = (
        Buffer("X", (1,), i32),
        Buffer("Y", (threads,), i32),
        Buffer("c", (1,), i32),
    )
    v, zero = Var("v", INDEX), (const(0),)
    piece = Unit(
        "piece", None, (), block(Store(c, zero, c[0] + 1), Store(y, (v,), c[0] + x[0]))
    )
    body = block(Store(c, zero, const(0, i32)), piece)
    before = Kernel("pieces", (x, y), (y,), loop(v, threads, Alloc(c, body)))
    s = Schedule(before)
    s.vthread("v")
    check_same(before, s, exact=True)


def test_a_noted_loop_stays():
    s = Schedule(product())
    s.annotate("mm.i", "note", 1)
    with pytest.raises(ScheduleError, match="vthread: the loop has the notes note"):
        s.vthread("mm.i")
