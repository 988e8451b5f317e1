"""split_scan: a running value in parts, and what keeps its order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.awkward import ADD, ARGMAX, X, Y, buffer, kernel, over
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Select, Var, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import Alloc, If, Store, Update, While, block
from tilewright.schedule import Schedule

i32 = dtypes.int32
ZERO = (const(0),)
S, X9, Y9, Z = buffer("S", 1), buffer("X", 9), buffer("Y", 9), buffer("Z", 1)


def step(value, at=ZERO, total=S, op=ADD):
    return Update((total,), (at,), (value,), op)


def scan(body, extent=9, before=None, after=None, total=S, outputs="Y"):
    """A running value in a buffer of its own, and what is around its loop."""
    start = Store(total, ZERO, const(5, i32))
    parts = [start, over("k", extent, body)]
    parts = [*([before] if before else []), *parts, *([after] if after else [])]
    return kernel(Alloc(total, block(*parts)), outputs=outputs)


def running(k):
    return block(step(X9[k]), Store(Y9, (k,), S[0]))


def exclusive(k):
    return block(Store(Y9, (k,), S[0]), step(X9[k]))


def guarded(k):
    return block(If(X9[k] > 0, step(X9[k] * 3), None), Store(Y9, (k,), S[0] + 1))


def otherwise(k):
    return If(X9[k] > 0, Store(Y9, (k,), S[0]), running(k))


SCANS = {f.__name__: f for f in (running, exclusive, guarded, otherwise)}


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_parts_begin_with_what_is_before_them(check_same, name, levels):
    before = scan(SCANS[name])
    for size in (1, 2, 4, 9):
        s = Schedule(before)
        outer = s.split("k", size, "guard")[0] if size > 1 else "k"
        loops = s.split_scan(outer, levels=levels)
        assert (loops[0], loops[-1]) == (f"{outer}.parts", outer)
        for loop in loops:
            if not loop.endswith(".before"):
                s.parallel(loop)
        check_same(before, s, exact=True)


@pytest.mark.parametrize("levels", [False, True])
def test_a_total_that_is_used_later_is_complete(check_same, levels):
    z = Store(Z, ZERO, S[0])
    before = scan(running, after=z, outputs="YZ")
    s = Schedule(before)
    s.split("k", 2, "guard")
    s.split_scan("k.o", levels=levels)
    check_same(before, s, exact=True)


def test_scans_are_split_again(check_same):
    before = scan(running)
    s = Schedule(before)
    s.split("k", 2, "guard")
    _, middle, _ = s.split_scan("k.o")
    s.split(middle, 2, "guard")
    s.split_scan(f"{middle}.o")
    check_same(before, s, exact=True)


def test_the_order_of_a_scan_is_kept():
    """Decimal digits: associative in pairs (value, power), but nothing commutes."""
    a, b = Var("a", i32), Var("b", i32)
    last = Reducer(
        "last", (a,), (b,), (Select(b.eq(0), a, b),), (const(0, i32),), False
    )

    def body(k):
        return block(step(X9[k], op=last), Store(Y9, (k,), S[0]))

    for levels in (False, True):
        before = scan(body)
        s = Schedule(before)
        s.split("k", 2, "guard")
        s.split_scan("k.o", levels=levels)
        x = np.array([3, 0, 0, 4, 0, 5, 6, 0, 0], np.int32)
        found = {
            p: x.copy() if p.name == "X" else np.zeros(9, np.int32)
            for p in before.params
        }
        run(s.kernel, found)
        y = next(v for p, v in found.items() if p.name == "Y")
        assert y.tolist() == [3, 3, 3, 4, 4, 5, 6, 6, 6]


def test_values_with_their_places(check_same):
    """The largest so far and where it was: two components in one step."""
    best, place = Buffer("best", (1,), i32), Buffer("place", (1,), dtypes.int64)

    def body(k):
        u = Update((best, place), (ZERO, ZERO), (X9[k], k), ARGMAX)
        return block(u, Store(Y9, (k,), best[0]))

    start = (Store(b, ZERO, c) for b, c in zip((best, place), ARGMAX.identity))
    inner = block(*start, over("k", 9, body))
    before = kernel(Alloc(best, Alloc(place, inner)))
    for levels in (False, True):
        s = Schedule(before)
        s.split("k", 4, "guard")
        s.split_scan("k.o", levels=levels)
        check_same(before, s, exact=True)


def feeds_back(k):
    return block(step(Y9[k]), Store(Y9, (k,), S[0]))


def reads_itself(k):
    return block(step(X9[k] + S[0]), Store(Y9, (k,), S[0]))


def resets(k):
    return block(Store(S, ZERO, X9[k]), running(k))


def moves(k):
    return block(step(X9[k], at=(k * 0 + k,)), Store(Y9, (k,), S[0]))


def twice(k):
    return block(step(X9[k]), running(k))


def in_a_while_loop(k):
    return While(S[0] < 0, running(k))


def decided_by_results(k):
    return block(If(Y9[k] > 0, step(X9[k]), None), Store(Y9, (k,), S[0]))


REFUSED = {
    feeds_back: "its steps depend on Y, which it writes",
    decided_by_results: "its steps depend on Y, which it writes",
    reads_itself: "its steps depend on S, which it writes",
    resets: "S is not one value that only add changes",
    moves: "S is not one value that only add changes",
    twice: "it is serial, with 2 Updates",
    in_a_while_loop: "is in a while loop or an intrinsic",
}


@pytest.mark.parametrize("body", REFUSED)
def test_scans_that_keep_their_order(body):
    with pytest.raises(ScheduleError, match=REFUSED[body]):
        Schedule(scan(body)).split_scan("k")


def test_a_place_that_only_a_condition_makes_exist_is_not_read_before_it():
    """Y[7 * o] is outside for o = 2, where the program never touches it."""

    def body(o):
        def inner(k):
            return If(o * 7 < 9, step(X9[k], at=(o * 7,), total=Y9), None)

        return over("k", 9, inner)

    with pytest.raises(ScheduleError, match="Y may not have the element"):
        Schedule(kernel(over("o", 3, body))).split_scan("k")


def test_a_value_of_each_iteration_is_none_that_runs():
    def body(k):
        return Alloc(S, block(Store(S, ZERO, const(0, i32)), running(k)))

    with pytest.raises(
        ScheduleError, match="with 0 Updates of values that begin outside"
    ):
        Schedule(kernel(over("k", 9, body))).split_scan("k")


def test_a_loop_that_is_bound_is_refused():
    s = Schedule(
        kernel(over("k", 5, lambda k: Update((Y,), ((const(2),),), (X[k],), ADD)))
    )
    s.unroll("k")
    with pytest.raises(ScheduleError, match="it is unroll"):
        s.split_scan("k")
