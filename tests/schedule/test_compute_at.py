"""compute_at: what is kept between iterations, and what is not, of an intermediate that moves."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer, Select, const, var
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, Update, block, loop
from tilewright.loops.parser import parse
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer

i32 = dtypes.int32
X, D = Buffer("X", (4, 4), i32), Buffer("D", (4, 4), i32)
T = Buffer("T", (4,), i32)
ADD, ZERO = reducer("add", i32), const(0, i32)
S, ROW, COL, K = var("s"), var("i"), var("j"), var("k")


def steps(*nests: Stmt) -> Schedule:
    """An intermediate that outlives the iterations of a loop around its nests."""
    return Schedule(Kernel("k", (X, D), (D,), Alloc(T, loop(S, 4, block(*nests)))))


USE = loop(COL, 4, Store(D, (S, COL), T[COL]))
SUM = loop(ROW, 4, Update((T,), ((ROW,),), (X[S, ROW],), ADD))
CLEAR = loop(K, 4, Store(T, (K,), ZERO))
FILL = loop(ROW, 4, Store(T, (ROW,), X[S, ROW]))


@pytest.mark.parametrize("nests", [(FILL, USE), (CLEAR, SUM, USE)])
def test_what_is_made_anew_moves(nests, check_same):
    s = steps(*nests)
    s.compute_at("T", "j")
    check_same(s.original, s, exact=True)
    assert "alloc T: int32[1]" in repr(s.kernel)


def test_a_row_of_the_loop_around_is_not_looked_for_in_the_nest(check_same):
    """T[s, i] is made and used in iteration s; only i is a loop of the nest."""
    t = Buffer("T", (4, 4), i32)
    made = loop(ROW, 4, Store(t, (S, ROW), X[S, ROW] + 1))
    used = loop(COL, 4, Store(D, (S, COL), t[S, COL] * 2))
    kernel = Kernel("k", (X, D), (D,), Alloc(t, loop(S, 4, block(made, used))))
    s = Schedule(kernel)
    s.compute_at("T", "j")
    assert "alloc T: int32[1, 1]" in repr(s.kernel)
    check_same(kernel, s, exact=True)
    late = used.replace(body=Store(D, (S, COL), Select(S < 1, ZERO, t[S - 1, COL])))
    s = Schedule(kernel.with_body(Alloc(t, loop(S, 4, block(made, late)))))
    with pytest.raises(ScheduleError, match="compute_at"):
        s.compute_at("T", "j")


PART = loop(COL, 2, Store(D, (S, COL), Select(COL <= S, T[COL], ZERO)))


@pytest.mark.parametrize(
    "nests",
    [
        (If(S < 1, CLEAR, None), SUM, USE),
        (loop(ROW, 1, Store(T, (S,), X[S, ROW])), loop(var("o"), 1, PART)),
        (
            If(S < 1, CLEAR, None),
            FILL.replace(body=Store(T, (ROW,), T[ROW] + X[S, ROW])),
            USE,
        ),
    ],
)
def test_what_is_kept_does_not(nests):
    s = steps(*nests)
    with pytest.raises(
        ScheduleError, match="may have been stored in an earlier iteration"
    ):
        s.compute_at("T", "o" if "o" in s.loops else "j")
    s.verify()


def test_what_its_own_steps_read_is_computed_too(check_same):
    """A running sum of windows that grow: a tile needs all steps, along the dimension they take."""
    kernel = parse(
        """
kernel k(x: int32[4, 32]) -> y: int32[4, 16]:
  alloc s: int32[3, 4, 32]:
    for j in 4:
      for i in 32:
        s[0, j, i] = x[j, i]
    for r in 2:
      for j1 in 4:
        for i1 in 24:
          s[r + 1, j1, i1] = s[r, j1, i1] + s[r, j1, i1 + (r + 1) * (r + 1)]
    for j2 in 4:
      for o in 4:
        for i2 in 4:
          y[j2, o * 4 + i2] = s[2, j2, o * 4 + i2] - s[1, j2, o * 4 + i2]
""".strip().split("\n")
    )
    s = Schedule(kernel)
    s.compute_at("s", "o")
    check_same(kernel, s, exact=True)
    buffer, _ = find_buffer(s.kernel, "s", "test")
    assert buffer.shape == (3, 1, 32)
