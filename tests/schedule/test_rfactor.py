"""rfactor: partial results, and where they may be combined."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import awkward
from tests.schedule.awkward import A, X, Y, buffer, kernel, over
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Var, const
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


# -- scatters: a private copy of the whole buffer for each iteration

IMAGE, PLACES = Buffer("image", (6, 8), i32), Buffer("places", (5,), i32)
ADD = reducer("add", i32)


def scatter(place=lambda y, x: IMAGE[y, x], more=None) -> Kernel:
    """places[place(y, x) mod 5] += 1 over an image; and more in its inner loop."""

    def step(y: Var, x: Var):
        at = Cast(place(y, x), INDEX) % 5
        update = Update((PLACES,), ((at,),), (const(1, i32),), ADD)
        return update if more is None else block(update, more(y, x))

    body = over("y", 6, lambda y: over("x", 8, lambda x: step(y, x)))
    return Kernel("scatter", (IMAGE, PLACES), (PLACES,), body)


def test_rows_of_a_scatter_run_on_threads(check_same):
    s = Schedule(scatter())
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        s.fork().parallel("y")
    s.split("y", 2)
    assert s.rfactor("y.o", scope="global") == ("places.rf",)
    s.parallel("y.o")
    check_same(scatter(), s, exact=True)


def test_neighbors_of_a_scatter_do_not_wait_for_one_another(check_same):
    """Each of four in a row counts in a copy of its own, so that they may be interleaved."""
    s = Schedule(scatter())
    inner = s.split("x", 4)[1]
    s.rfactor(inner, scope="stack")
    s.vthread(inner)
    check_same(scatter(), s, exact=True)


@pytest.mark.parametrize(
    "kernel, scope, message",
    [
        (scatter(), "register", "at indices that registers do not have"),
        (scatter(lambda y, x: IMAGE[y, x] + Cast(y, i32)), "global", "no reduction loop"),
        (
            scatter(more=lambda y, x: Store(IMAGE, (y, x), PLACES[0])),
            "global",
            "places, which it updates, is used by other values",
        ),
    ],
)  # fmt: skip
def test_scatters_that_keep_their_order(kernel, scope, message):
    writable = Kernel(kernel.name, kernel.params, kernel.params, kernel.body)
    with pytest.raises(ScheduleError, match=message):
        Schedule(writable).rfactor("y", scope=scope)


@pytest.mark.parametrize(("op", "guarded"), [("add", False), ("max", True)])
def test_elements_that_no_scatter_reaches_stay_as_they_are(op, guarded):
    """0.0 is added to none of them: it would make -0.0 another number. Sums start from -0.0 and
    need no comparison; of others, what is neutral is left out."""
    f32 = dtypes.float32
    x, at = Buffer("X", (6,), f32), Buffer("at", (6,), i32)
    y = Buffer("Y", (4,), f32)

    def step(k: Var) -> Update:
        place = ((Cast(at[k], INDEX),),)
        return Update((y,), place, (x[k],), reducer(op, f32))

    s = Schedule(Kernel("f", (x, at, y), (y,), over("k", 6, step)))
    s.rfactor("k", scope="stack")
    assert ("if Y.rf" in str(s.kernel)) == guarded
    arrays = {
        x: np.arange(6, dtype=np.float32),
        at: np.array([1, 3, 1, 1, 3, 3], np.int32),
        y: np.full(4, -0.0, np.float32),
    }
    run(s.kernel, arrays)
    assert arrays[y].tolist() == ([0, 3, 0, 5] if guarded else [0, 5, 0, 10])
    assert np.signbit(arrays[y]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("dtype", [dtypes.float32, i32])
@pytest.mark.parametrize("op", ["add", "max", "min", "mul"])
def test_scatters_of_negative_numbers(op, dtype):
    """Of integers, what is neutral changes nothing, and is not asked for."""
    x, at = Buffer("X", (9,), dtype), Buffer("at", (9,), i32)
    y = Buffer("Y", (4,), dtype)

    def step(k: Var) -> Update:
        place = ((Cast(at[k], INDEX),),)
        return Update((y,), place, (x[k],), reducer(op, dtype))

    before = Kernel("f", (x, at, y), (y,), over("k", 9, step))
    s = Schedule(before)
    s.split("k", 3)
    s.rfactor("k.o", scope="stack")
    is_asked = dtype.is_float and op != "add"
    assert ("if Y.rf" in str(s.kernel)) == is_asked
    given = {
        x: np.array([-3, -1, -2, -7, -5, -4, -2, -9, 3], dtype.name),
        at: np.array([0, 0, 1, 1, 0, 3, 3, 1, 3], np.int32),
        y: np.array([-8, -6, -4, -5], dtype.name),
    }
    both = [{b: a.copy() for b, a in given.items()} for _ in range(2)]
    for made, arrays in zip((before, s.kernel), both, strict=True):
        run(made, arrays)
    assert both[0][y].tolist() == both[1][y].tolist()


@pytest.mark.parametrize("op", ["add", "max"])
def test_a_reduction_that_is_no_scatter_starts_from_its_identity(op):
    f32 = dtypes.float32
    x, y = Buffer("X", (8,), f32), Buffer("Y", (1,), f32)

    def step(k: Var) -> Update:
        return Update((y,), ((const(0),),), (x[k],), reducer(op, f32))

    s = Schedule(Kernel("f", (x, y), (y,), over("k", 8, step)))
    s.split("k", 2)
    s.rfactor("k.o")
    start = {"add": "0.0", "max": "-inf"}[op]
    assert f"] = {start}" in str(s.kernel)
    assert "if" not in str(s.kernel).replace("-inf", "")
