"""partition_loop: where the guards are decided they are gone."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import padded, reduce_
from tilewright.expr.nodes import Buffer, Min, Select
from tilewright.ir.node import postorder
from tilewright.loops.lower import lower
from tilewright.loops.nodes import If, Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_loop

i32 = dtypes.int32


def window(n: int = 12) -> Kernel:
    """Sums of three neighbors, 0 outside."""
    x, y = Buffer("X", (n,), i32), Buffer("Y", (n,), i32)
    f = lambda i, k: padded(x, (i + k - 1,), 0)  # noqa: E731
    return lower("window", [reduce_("w", y, (3,), "add", f)], [x, y], [y])


def guards(s: Schedule, loop: str) -> int:
    f, _ = find_loop(s.kernel, loop, "test")
    return sum(isinstance(node, If | Select | Min) for node in postorder(f))


def test_the_inside_has_no_padding(check_same, golden):
    s = Schedule(window())
    parts = s.partition_loop("w.i")
    assert parts == ("w.i.p0", "w.i", "w.i.p2")
    check_same(window(), s, exact=True)
    assert [guards(s, p) for p in parts] == [1, 0, 1]
    golden("schedule_partition_window", repr(s.kernel))


@pytest.mark.parametrize("tail", ["guard", "overlap"])
def test_full_tiles_have_no_tail(tail, check_same):
    kernel = matmul(13, 50, 7, epilogue=False)
    s = Schedule(kernel)
    o, _ = s.split("mm.i", 4, tail=tail)
    assert guards(s, o) > 0
    parts = s.partition_loop(o)
    assert parts == (o, f"{o}.p1") and guards(s, o) == 0
    check_same(kernel, s, exact=True)


def test_points_by_hand(check_same):
    s = Schedule(window())
    assert s.partition_loop("w.i", 2, 9) == ("w.i.p0", "w.i", "w.i.p2")
    assert s.partition_loop("w.k", 1) == ("w.k.p0_2", "w.k")
    check_same(window(), s, exact=True)


def test_a_part_that_does_nothing_is_left_out(check_same):
    s = Schedule(window())
    s.split("w.i", 16, tail="guard")
    assert s.partition_loop("w.i.i", 12) == ("w.i.i",)
    check_same(window(), s, exact=True)


@pytest.mark.parametrize(
    "points, message",
    [
        ((), "no guard in it is decided in some iterations only"),
        ((3, 2), "the points 3, 2 do not part its 8 iterations"),
        ((8,), "take increasing ones in 1..7"),
        ((0, 4), "do not part"),
    ],
    ids=str,
)
def test_refusals(points, message):
    s = Schedule(matmul(8, 8, 4))
    with pytest.raises(ScheduleError, match=f"loop mm.i: partition_loop: .*{message}"):
        s.partition_loop("mm.i", *points)
