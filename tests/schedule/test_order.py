"""The order of iterations: what reorder, fission, merge and kinds of loops must not change.

One program per condition of each check, on which that condition alone stands in the way.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.nodes import Buffer, Select, const, var
from tilewright.loops.nodes import Kernel, Update, loop
from tilewright.schedule import Schedule

i32 = dtypes.int32
ROW, COL = var("i"), var("j")
ADD = reducer("add", i32)
_A, _B = var("a", i32), var("b", i32)
# The last value that is not zero: associative, and the order of its operands matters.
LAST = Reducer(
    "last", (_A,), (_B,), (Select(_B.ne(0), _B, _A),), (const(0, i32),), commutative=False
)


def steps(op: Reducer) -> Schedule:
    """Y[0] op= X[i, j]."""
    x, y = Buffer("X", (3, 4), i32), Buffer("Y", (1,), i32)
    body = Update((y,), ((const(0),),), (x[ROW, COL],), op)
    return Schedule(Kernel("k", (x, y), (y,), loop(ROW, 3, loop(COL, 4, body))))


@pytest.mark.parametrize("step", [("reorder", "j", "i"), ("vectorize", "j"), ("unroll", "j")])
def test_steps_of_a_reduction_change_places_only_if_they_commute(step, check_same):
    s = steps(ADD)
    getattr(s, step[0])(*step[1:])
    check_same(s.original, s, exact=True)
    for op in (LAST, replace(ADD, commutative=False)):
        with pytest.raises(ScheduleError, match=r"updates Y\[0\]"):
            getattr(steps(op), step[0])(*step[1:])
