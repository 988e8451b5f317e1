"""rfactor: partial results, and where they may be combined."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import awkward
from tests.schedule.awkward import A, X, Y, buffer, kernel, over
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.nodes import Buffer, Var, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, Update, block
from tilewright.schedule import Schedule

i32 = dtypes.int32


def test_partial_results_go_back_inside_of_the_buffer_only(check_same):
    before = awkward.added_guarded()
    s = Schedule(before)
    s.rfactor("k")
    check_same(before, s, exact=True)


def test_partial_results_need_a_region_without_gaps():
    """An element in between is not the program's: adding 0 to -0.0 would change it."""
    with pytest.raises(
        ScheduleError, match=r"rfactor: updates Y\[i \* 2\].*|leaves"
    ) as caught:
        Schedule(awkward.added()).rfactor("k")
    assert "leaves elements of its region [5] out" in caught.value.message
    assert "cache_write the result first" in caught.value.hint


def test_partial_results_leave_the_sign_of_a_zero_alone():
    f32 = dtypes.float32
    x, y = Buffer("X", (3, 5), f32), Buffer("Y", (4,), f32)
    add = reducer("add", f32)
    body = over(
        "k", 5, lambda k: over("i", 3, lambda i: Update((y,), ((i,),), (x[i, k],), add))
    )
    s = Schedule(Kernel("f", (x, y), (y,), body))
    s.rfactor("k")
    arrays = {x: np.ones((3, 5), np.float32), y: np.full(4, -0.0, np.float32)}
    run(s.kernel, arrays)
    assert arrays[y].tolist() == [5, 5, 5, 0] and np.signbit(arrays[y][3])


def test_the_order_of_steps_that_do_not_commute_is_kept():
    """The first value of all: associative, but which partial result comes first matters."""
    a, b = Var("a", i32), Var("b", i32)
    first = Reducer("first", (a,), (b,), (a,), (const(0, i32),), commutative=False)
    body = over("k", 8, lambda k: Update((Y,), ((const(2),),), (X[k],), first))
    with pytest.raises(ScheduleError, match=r"first.* does not commute"):
        Schedule(kernel(body)).rfactor("k")


def test_the_place_of_the_result_does_not_depend_on_the_loop():
    with pytest.raises(
        ScheduleError, match=r"Y\[.*\] depends on it: no reduction loop"
    ):
        Schedule(awkward.added()).rfactor("i")


def test_a_result_that_is_read_on_the_way_is_not_regrouped():
    """Z[k] is the running sum."""
    z = buffer("Z", 5)

    def step(k):
        at = (const(1),)
        return block(Update((Y,), (at,), (A[0, k],), awkward.ADD), Store(z, (k,), Y[1]))

    with pytest.raises(
        ScheduleError, match="Y, which it updates, is used by other values"
    ):
        Schedule(kernel(over("k", 5, step), outputs="YZ")).rfactor("k")


def test_a_step_inside_of_a_piece_is_left_alone():
    def step(j):
        return Update((Y,), ((j,),), (X[j],), awkward.ADD)

    s = Schedule(kernel(over("k", 4, lambda k: over("j", 5, step))))
    s.blockize("j", "piece")
    with pytest.raises(ScheduleError, match="rfactor: there is not one Update"):
        s.rfactor("k")
