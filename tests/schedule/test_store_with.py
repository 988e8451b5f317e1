"""store_with: an intermediate in the memory of the result that is stored at its last use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedule.awkward import rows_from_the_result, rows_kept
from tilewright.base.dtypes import float32, float64
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Load, Var, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, block, loop
from tilewright.operators import call, map_, reduce_
from tilewright.schedule import Schedule

ROWS, WIDTH = 5, 7
X, Y, E = (Buffer(name, (ROWS, WIDTH), float32) for name in "XYE")
Z, W = Buffer("Z", (ROWS,), float32), Buffer("W", (ROWS, WIDTH), float64)
V, J, K = (Var(name, INDEX) for name in "vjk")


def scaled() -> Schedule:
    """Each row of exponentials by its sum."""
    steps = [
        map_("e", E, lambda i, j: call("exp", X[i, j])),
        reduce_("z", Z, (WIDTH,), "add", lambda i, k: E[i, k]),
        map_("y", Y, lambda i, j: E[i, j] / Z[i]),
    ]
    return Schedule(lower("scaled", steps, params=[X, Y], outputs=[Y]))


def test_of_whole_buffers() -> None:
    s = scaled()
    s.store_with("E", "Y")
    assert "alloc E" not in str(s)
    s.verify()


def test_of_one_row() -> None:
    s = scaled()
    for name in ("Z", "E"):
        s.compute_at(name, "y.i")
    s.store_with("E", "Y")
    assert "Y[y.i, y.j] = Y[y.i, y.j] / Z[0]" in str(s)
    s.parallel("y.i")
    s.verify()


def test_tiles_that_overlap_are_not_stored_into() -> None:
    s = scaled()
    for name in ("Z", "E"):
        s.compute_at(name, "y.i")
    s.split("y.i", 2, "overlap")
    with pytest.raises(ScheduleError, match="Y is stored by tiles that overlap"):
        s.store_with("E", "Y")


def test_tiles_that_overlap_afterwards_must_be_serial() -> None:
    s = scaled()
    for name in ("Z", "E"):
        s.compute_at(name, "y.i")
    s.store_with("E", "Y")
    outer, _ = s.split("y.i", 2, "overlap")
    s.verify()
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        s.parallel(outer)
    with pytest.raises(ScheduleError, match="overlapping tiles"):
        s.split("y.j", 4, "overlap")


T, L = Buffer("T", (WIDTH,), float32), Var("l", INDEX)
FILL = loop(J, WIDTH, Store(T, (J,), Load(X, (V, J)) * 2.0))
READ = Load(T, (K,))


def in_rows(*stmts: Stmt, part: Buffer = T) -> Schedule:
    """Of each row v, what the statements do with an intermediate."""
    body = loop(V, ROWS, Alloc(part, block(*stmts)))
    return Schedule(Kernel("k", (X, Y, W), (Y, W), body))


def results(value: Expr, n: int = WIDTH) -> Stmt:
    """The row of Y, or the first elements of it."""
    return loop(K, n, Store(Y, (V, K), value))


def test_of_another_shape() -> None:
    s = in_rows(
        FILL,
        results(READ + 1.0),
        loop(L, WIDTH, Store(W, (V, L), Cast(Y[V, L], float64))),
    )
    s.store_with("T", "Y")
    assert "Y[v, j] = X[v, j] * 2.0" in str(s) and "alloc" not in str(s)
    s.verify()


def test_beside_another_store() -> None:
    other = Store(W, (V, K), Cast(X[V, K], float64))
    s = in_rows(FILL, loop(K, WIDTH, block(Store(Y, (V, K), READ), other)))
    s.store_with("T", "Y")
    assert "alloc" not in str(s)
    s.verify()


REFUSED: dict[str, tuple[list[Stmt], str]] = {
    "another element": (
        [FILL, results(Load(T, (const(WIDTH - 1) - K,)))],
        "while it is read",
    ),
    "one of them": ([FILL, results(READ + Load(T, (const(0),)))], "while it is read"),
    "later": (
        [FILL, results(READ), loop(L, 1, Store(W, (V, L), Cast(T[L], float64)))],
        "last use",
    ),
    "before": (
        [FILL, loop(L, WIDTH, Store(T, (L,), Y[V, L])), results(READ)],
        "read before",
    ),
    "again": ([FILL, loop(L, 2, results(READ))], "tiles that overlap"),
    "guarded": (
        [FILL, loop(K, WIDTH, If(K < 3, Store(Y, (V, K), READ), None))],
        "not wholly",
    ),
    "fewer": ([FILL, results(READ, WIDTH - 1)], "elements stored there"),
    "nothing": ([FILL], "not stored where"),
    "in a condition": (
        [
            FILL,
            loop(K, WIDTH, block(Store(Y, (V, K), READ), If(READ < 1.0, FILL, None))),
        ],
        "other uses",
    ),
}


@pytest.mark.parametrize("stmts, message", REFUSED.values(), ids=list(REFUSED))
def test_refused(stmts: list[Stmt], message: str) -> None:
    s = in_rows(*stmts)
    with pytest.raises(ScheduleError, match=message) as raised:
        s.store_with("T", "Y")
    assert raised.value.hint and "alloc T" in str(s)


def test_of_another_dtype() -> None:
    s = in_rows(FILL, results(READ))
    with pytest.raises(ScheduleError, match="W is of float64, it of float32"):
        s.store_with("T", "W")


def test_two_stores_of_tiles_that_overlap_are_not_parallel() -> None:
    """Another thread may see what the first Store left, in memory and in the order of threads."""
    y = Buffer("Y", (10,), float32)
    body = block(Store(y, (V,), const(1.0, float32)), Store(y, (V,), y[V] * 2.0))
    s = Schedule(Kernel("k", (y,), (y,), loop(V, 10, body)))
    outer, inner = s.split("v", 4, "overlap")
    s.verify()
    for verb in (s.parallel, s.vectorize):
        with pytest.raises(ScheduleError, match="loop-carried dependence"):
            verb(outer)
    s.vectorize(inner)


@pytest.mark.parametrize("name, other", [("T", "T"), ("T", "S")])
def test_a_buffer_of_the_same_or_an_inner_scope_holds_nothing_else(
    name: str, other: str
) -> None:
    with pytest.raises(
        ScheduleError, match=f"store_with: {other} does not exist around it"
    ):
        Schedule(rows_kept()).store_with(name, other)


def test_a_piece_stores_what_it_stores() -> None:
    s = Schedule(rows_kept())
    s.blockize("l")
    with pytest.raises(ScheduleError, match="store_with: Y is stored by a Unit"):
        s.store_with("T", "Y")


def test_a_row_lies_in_its_part_of_the_result(check_same: Callable[..., None]) -> None:
    s = Schedule(rows_kept())
    s.store_with("T", "Y")
    assert "alloc T" not in repr(s.kernel)
    check_same(rows_kept(), s, exact=True)


def test_a_row_made_from_what_its_place_held_stays() -> None:
    with pytest.raises(
        ScheduleError, match="store_with: Y is read before it is stored"
    ):
        Schedule(rows_from_the_result()).store_with("T", "Y")
