"""Quotients and remainders by numbers that only a call knows."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import float32 as F
from tilewright.expr.nodes import INDEX, Buffer, Var, const
from tilewright.loops.analysis.access import guarded_accesses
from tilewright.loops.analysis.dependence import can_parallelize
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.nodes import Kernel, Store, loop

TILE, LANE = Var("o", INDEX), Var("i", INDEX)


def test_a_divisor_that_is_the_same_makes_the_whole() -> None:
    """t[x // n, x % n] tells x if all iterations have the same n, and t[x // o, x % o] does not."""
    t = Buffer("T", (20, 20), F)
    x, n = TILE * 4 + LANE, Var("n", INDEX)

    def told(divisor: Any, remainder: Any) -> set[Any] | None:
        body = Store(t, (x // divisor, x % remainder), const(0.0, F))
        inner = loop(TILE, 3, loop(LANE, 4, body))
        kernel = Kernel("t", (t,), (t,), loop(n, 5, inner))
        (write,) = (a for a in guarded_accesses(kernel.body) if a.writes)
        return agreeing(write, write, [TILE, LANE])

    assert told(n + 1, n + 1) == {TILE, LANE}
    for one, other in ((n + 1, n + 2), (TILE + 1, TILE + 1), (LANE + 1, LANE + 1)):
        assert told(one, other) == set()
    body = Store(t, (x // (n + 1), x % (n + 1)), const(0.0, F))
    kernel = Kernel("t", (t,), (t,), loop(n, 5, loop(TILE, 3, loop(LANE, 4, body))))
    assert can_parallelize(kernel, "o") and not can_parallelize(kernel, "n")
