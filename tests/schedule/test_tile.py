"""tile: several loops at once, outers first; guards move inwards."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tilewright.base.dtypes import int32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.schedule import Schedule


@pytest.mark.parametrize("tail", ["guard", "overlap"])
def test_tiles_of_any_size(tail, check_same, golden):
    kernel = matmul(10, 7, 3)
    s = Schedule(kernel)
    made = s.tile("relu.i", "relu.j", 4, 5, tail=tail)
    assert made == ("relu.i.o", "relu.j.o", "relu.i.i", "relu.j.i")
    check_same(kernel, s, exact=True)
    golden(f"schedule_tile_{tail}", repr(s.kernel))


def test_indices_are_simplified_within_the_parts(check_same):
    x, y, i = Buffer("X", (8,), int32), Buffer("Y", (8,), int32), Var("i", INDEX)
    kernel = Kernel("k", (x, y), (y,), loop(i, 8, Store(y, (i % 8,), x[i])))
    s = Schedule(kernel)
    s.split("i", 4)
    assert "Y[i.o * 4 + i.i] = " in repr(s.kernel)
    check_same(kernel, s, exact=True)


def test_three_loops_with_the_reduction(check_same):
    kernel = matmul(8, 12, 6, epilogue=False)
    s = Schedule(kernel)
    s.decompose_reduction("C", "mm.i")
    io, jo, ko, ii, ji, ki = s.tile("mm.i", "mm.j", "mm.k", 4, 6, 3)
    assert s.loops[-6:] == (io, jo, ko, ii, ji, ki)
    check_same(kernel, s)


def test_fuse_moves_a_guard_in(check_same):
    kernel = matmul(10, 7, 3)
    s = Schedule(kernel)
    _, inner = s.split("relu.i", 4, tail="guard")
    s.fuse(inner, "relu.j")
    check_same(kernel, s, exact=True)


@pytest.mark.parametrize(
    "args, tail, message",
    [
        (("mm.i", "mm.j", 4), "exact", "is not n loops and then n factors"),
        (("mm.i", "mm.j", 4, 4), "cut", "without tail='cut'"),
        (("mm.i", "mm.j", 3, 6), "exact", "tile: split: 3 does not divide"),
        (("mm.i", "mm.k", 2, 2), "exact", "tile: reorder: it is not perfectly nested"),
    ],
)
def test_refusals(args, tail, message):
    s = Schedule(matmul(8, 12, 6, epilogue=False))
    with pytest.raises(ScheduleError, match=message) as caught:
        s.tile(*args, tail=tail)
    assert caught.value.hint and not s.trace.steps
