"""A schedule looks back: handles, diffs, undo, checks, errors that show the place."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError, VerifyError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import PS
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import For, Kernel, loop
from tilewright.loops.printer import show_kernel
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule, Trace, edit
from tilewright.schedule.equal import check_equal

f32, i32 = dtypes.float32, dtypes.int32


def product(m: int = 4, n: int = 6, k: int = 8, dtype: dtypes.DType = f32) -> Kernel:
    a, b = Buffer("A", (m, k), dtype), Buffer("B", (k, n), dtype)
    c, d = Buffer("C", (m, n), dtype), Buffer("D", (m, n), dtype)
    steps = [
        reduce_("mm", c, (k,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        map_("d", d, lambda i, j: c[i, j] + c[i, j]),
    ]
    return lower("product", steps, [a, b, d], [d])


def test_print_is_the_program_and_the_trace_is_the_schedule():
    s = Schedule(product())
    s.split("mm.i", 2)
    assert str(s) == show_kernel(s.kernel)
    assert str(s.trace) == "s.split('mm.i', 2)"


def test_diff_shows_what_the_last_step_changed():
    s = Schedule(product())
    assert s.diff() == ""
    s.vectorize("d.j")
    assert s.diff().split("\n") == [
        "      for d.i in 4:",
        "-       for d.j in 6:",
        "+       for d.j in 6 vector:",
    ]
    s.parallel("d.i")
    assert "d.j" not in s.diff() and "vector" in s.diff(steps=2)


def test_a_handle_stands_for_a_name_while_the_loop_exists():
    s = Schedule(product())
    i, c = s.loop("mm.i"), s.buffer("C")
    s.split("d.j", 2)
    s.compute_at(c, "d.i")
    assert i.valid is ("mm.i" in s.loops)
    j = s.loop("mm.j")
    inner = s.split(j, 3)
    assert s.trace.steps[-1].args == ("mm.j", 3)
    assert inner == ("mm.j.o", "mm.j.i")


def test_a_lost_handle_says_which_step_took_the_loop():
    s = Schedule(product())
    k = s.loop("mm.k")
    s.parallel("d.i")
    s.split("mm.k", 4)
    assert not k.valid
    with pytest.raises(
        ScheduleError, match=r"mm.k is gone: step 2, split\('mm.k', 4\), took"
    ):
        s.unroll(k)
    assert repr(k) == "<mm.k: step 2, split('mm.k', 4), took mm.k away>"


def test_a_lost_name_says_which_step_took_it():
    s = Schedule(product())
    s.split("mm.k", 4)
    with pytest.raises(
        ScheduleError, match=r"step 1, split\('mm.k', 4\), took mm.k away"
    ):
        s.unroll("mm.k")


def test_looking_up_what_is_not_there_names_what_is():
    s = Schedule(product())
    with pytest.raises(ScheduleError, match=r"did you mean mm\.k"):
        s.loop("mm.kk")
    with pytest.raises(ScheduleError, match="there is no buffer 'Q'"):
        s.buffer("Q")


def test_undo_takes_steps_back():
    s = Schedule(product())
    before = s.kernel
    s.split("mm.k", 4)
    s.undo()
    assert s.kernel is before and not s.trace.steps
    with pytest.raises(ScheduleError, match="no step has been made"):
        s.undo()


def test_a_fork_shares_the_past_and_not_the_future():
    s = Schedule(product())
    s.split("mm.k", 4)
    t = s.fork()
    t.parallel("d.i")
    assert (
        len(s.trace.steps) == 1 and t.original is s.original and "parallel" in t.diff()
    )


def test_verify_compares_with_the_program_before_the_first_step():
    s = Schedule(product())
    s.split("mm.k", 4)
    s.rfactor("mm.k.i")
    s.verify()
    other = product(dtype=i32)
    wrong = Schedule(other)
    wrong.split("mm.k", 4)
    # A program that forgets half of the sum.
    half = show_kernel(wrong.kernel)
    assert "mm.k.o in 2" in half
    broken = other.with_body(_halved(wrong.kernel))
    with pytest.raises(VerifyError, match=r"D\[0, 0\] is -?\d+, but -?\d+ before"):
        check_equal(other, broken)


def _halved(kernel: Kernel):
    place = next(
        p
        for p in walk(kernel.body)
        if isinstance(p.stmt, For) and p.stmt.var.name == "mm.k.o"
    )
    return edit.put(kernel, place, loop(place.stmt.var, 1, place.stmt.body)).body


def test_a_trace_replays_on_another_size():
    s = Schedule(product())
    rest = s.split("mm.k", 4)[1]
    s.rfactor(rest)
    s.parallel("d.i")
    other = Schedule(product(8, 5, 12), Trace.from_json(s.trace.to_json()))
    other.verify()
    assert other.loops[:2] == ("mm.i", "mm.j") and "mm.k.o" in other.loops
    with pytest.raises(ScheduleError, match="4 does not divide its 10 iterations"):
        Schedule(product(k=10), s.trace)


def scan() -> Kernel:
    x, y = Buffer("X", (4, 9), f32), Buffer("Y", (4, 9), f32)
    c = reduce_(
        "scan", y, (9,), "add", lambda i, j: x[i, j], extents=(4,), combine=PS,
        index=lambda i, j: (i, j),
    )  # fmt: skip
    return lower("prefix", [c], [x, y], [y])


def test_a_refusal_has_a_witness_and_shows_the_program():
    s = Schedule(scan())
    with pytest.raises(ScheduleError) as caught:
        s.vectorize("scan.j")
    error = caught.value
    assert (
        "iterations (scan.i=0, scan.j=0) and (scan.i=0, scan.j=1) conflict at Y.acc[0]"
        in str(error)
    )
    marked = [x for x in str(error.program).split("\n") if x.startswith("> ")]
    assert marked == [">       for scan.j in 9:"]


def test_a_parallel_reduction_is_refused_with_two_iterations_that_meet():
    s = Schedule(product())
    with pytest.raises(
        ScheduleError, match=r"iterations \(.*mm.k=0\) and \(.*mm.k=1\) conflict at C\["
    ):
        s.parallel("mm.k")
