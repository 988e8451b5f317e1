"""The promise of overlapping tiles: who makes it, who relies on it, and what would break it."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer, Expr, Min, Overlap, const, var
from tilewright.ir.node import postorder
from tilewright.loops.analysis.dependence import can_parallelize
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    loop,
)
from tilewright.schedule import Schedule
from tilewright.schedule.legality import check_tiles

i32 = dtypes.int32
X, Y, Z = (Buffer(n, (10,), i32) for n in "XYZ")
V, R, K = var("v"), var("r"), var("k")


def written(value: Expr) -> Kernel:
    """Y[min(v*4, 6) + r] = value: a clamp of the user's own, which promises nothing."""
    at = Min(V * 4, const(6)) + R
    return Kernel("k", (X, Y), (Y,), loop(V, 3, loop(R, 4, Store(Y, (at,), value))))


def maps(*body: Stmt) -> Schedule:
    """A loop over ten elements in overlapping tiles of four."""
    s = Schedule(Kernel("k", (X, Y, Z), (Y, Z), loop(V, 10, block(*body))))
    s.split("v", 4, "overlap")
    return s


COPY = Store(Y, (V,), X[V])


@pytest.mark.parametrize(
    "step",
    [("reorder", "r", "v"), ("vectorize", "v"), ("parallel", "v")],
)
def test_a_minimum_of_the_user_promises_nothing(step):
    s = Schedule(written(V.astype(i32)))
    with pytest.raises(
        ScheduleError, match=r"conflict at Y\[6\]|loop-carried dependence"
    ):
        getattr(s, step[0])(*step[1:])


@pytest.mark.parametrize("promised", ["before", "after"])
def test_what_a_rewrite_makes_of_a_promise_is_checked_on_both_sides(promised):
    """A parallel loop is checked again if its tiles overlapped, and if they do now."""

    def tiled(step: Stmt) -> Kernel:
        inside = loop(R, 4, step)
        return Kernel("k", (X, Y), (Y,), loop(V, 3, inside, "parallel"))

    apart = tiled(Store(Y, (V * 2 + R,), V.astype(i32)))
    at = (Overlap(V * 4, const(6)) + R,)
    overlapping = tiled(Update((Y,), (at,), (X[at],), reducer("add", i32)))
    sides = (overlapping, apart) if promised == "before" else (apart, overlapping)
    with pytest.raises(ScheduleError, match="loop-carried dependence"):
        check_tiles(*sides, "change")


def test_the_same_clamp_made_by_split_is_a_promise(check_same):
    s = maps(COPY)
    starts = {n for n in postorder(s.kernel.body) if isinstance(n, Min)}
    assert {type(n) for n in starts} == {Overlap}
    assert "overlap(v.o * 4, 6)" in repr(s.kernel)
    s.reorder("v.i", "v.o")
    s.unroll("v.o")
    check_same(maps(COPY).original, s, exact=True)


def test_a_read_between_is_safe_where_the_element_is_stored_once(check_same):
    s = maps(COPY, Store(Z, (V,), Y[V] * 2))
    s.parallel("v.o")
    check_same(s.original, s, exact=True)


def test_other_tiles_do_not_see_a_value_that_is_not_final():
    """Each tile stores Y[x] for k = 0 and again for k = 1: another may read in between."""
    x, z = Buffer("X", (2, 10), i32), Buffer("Z", (2, 10), i32)
    body = block(Store(Y, (V,), x[K, V]), Store(z, (K, V), Y[V]))
    s = Schedule(Kernel("k", (x, Y, z), (Y, z), loop(K, 2, loop(V, 10, body))))
    outer, inner = s.split("v", 4, "overlap")
    s.reorder(outer, "k", inner)
    with pytest.raises(ScheduleError, match=r"parallel: .* writes Y.* and reads Y"):
        s.parallel(outer)


def test_two_stores_of_an_element_are_not_one(check_same):
    s = maps(Store(Y, (V,), const(0, i32)), COPY)
    with pytest.raises(ScheduleError, match="parallel: this parallel loop"):
        s.parallel("v.o")
    s = maps(COPY, Store(Z, (V,), Y[V] * 2))
    s.parallel("v.o")
    with pytest.raises(ScheduleError, match="specialize: this parallel loop"):
        s.specialize("v.i < 1")
    check_same(s.original, s, exact=True)


def test_two_stores_of_values_that_are_proved_equal(check_same):
    s = maps(COPY)
    s.parallel("v.o")
    s.specialize("v.i < 1")
    check_same(s.original, s, exact=True)


def test_fission_keeps_apart_what_is_not_the_same_twice(check_same):
    """Y[v] *= 2 on its own doubles twice where tiles overlap; Z[v] = Y[v] does not."""
    s = maps(COPY, Store(Z, (V,), Y[V] * 2))
    s.fission("v.i", 1)
    s.fission("v.o", 1)
    check_same(s.original, s, exact=True)
    s = maps(COPY, Store(Y, (V,), Y[V] * 2))
    s.fission("v.i", 1)
    with pytest.raises(
        ScheduleError,
        match=r"fission: the parts depend on each other across iterations",
    ):
        s.fission("v.o", 1)


IN_PLACE = Store(Y, (V,), Y[V] + 1)
CASES = [
    ((If(V < 3, COPY, IN_PLACE),), r"reads Y\[v\] as its first run left it"),
    ((If(V < 3, COPY, None), IN_PLACE), r"reads Y\[v\] as its first run left it"),
    ((IN_PLACE,), r"reads Y\[v\] as its first run left it"),
    (
        (Store(Y, (V,), X[V]), Store(Y, (9 - V,), X[V])),
        "out of order, (perhaps )?with a loop-carried dependence",
    ),
    ((Store(Y, (V,), Z[9 - V]), Store(Z, (V,), X[V])), r"reads Z\[9 - v\]|reads Z"),
    (
        (Store(Z, (V,), Y[V]), Store(Y, (V,), X[V])),
        r"reads Y\[v\] as its first run left it",
    ),
]


@pytest.mark.parametrize("body, message", CASES)
def test_the_promise_is_made_only_where_it_holds(body, message):
    with pytest.raises(ScheduleError, match=message):
        maps(*body)


@pytest.mark.parametrize(
    "step", [("partition_loop", "v.i", 1), ("split", "v.i", 3, "cut")]
)
def test_parts_of_a_tile_are_two_stores(step, check_same):
    s = maps(COPY)
    s.parallel("v.o")
    with pytest.raises(ScheduleError, match=f"{step[0]}: this parallel loop"):
        getattr(s, step[0])(*step[1:])
    s.serial("v.o")
    getattr(s, step[0])(*step[1:])
    check_same(s.original, s, exact=True)


@pytest.mark.parametrize(
    ("layout", "promised"),
    [
        ("lambda i: (i // 2, i % 2)", True),
        ("lambda i: (i % 3, 4 - i // 3)", True),
        ("lambda i: (i // 2, (i + 1) % 2)", False),
    ],
)
def test_a_start_that_is_taken_apart(layout, promised, check_same):
    """Rows of an intermediate: in a quotient and its remainder; elsewhere it promises nothing."""
    t = Buffer("T", (10,), i32)
    made = loop(V, 10, Store(t, (V,), X[V]))
    used = loop(R, 10, Store(Y, (R,), t[R]))
    s = Schedule(Kernel("k", (X, Y), (Y,), Alloc(t, block(made, used))))
    s.split("v", 4, "overlap")
    s.parallel("v.o")
    if not promised:
        with pytest.raises(ScheduleError, match="transform_layout: this"):
            s.transform_layout("T", layout)
        s.serial("v.o")
    s.transform_layout("T", layout)
    check_same(s.original, s, exact=True)


J = var("j")


@pytest.mark.parametrize(
    ("index", "guards"),
    [
        ((V + J, (V + 2) // 3), ()),
        ((V + J,), (J * 2 + 2 < V, V + J < 8)),
        ((V + J,), (const(3) < V, V + J * 2 < 8)),
    ],
    ids=["another index", "two guards", "guards of one"],
)
def test_what_tells_tiles_apart_is_no_part_of_the_ideal_reading(index, guards):
    """Elements 5 and 6 meet in tiles 1 and 2 alone: what forbids others says where x is in fact,
    and rules out the places where ideal tiles would meet."""
    x, y = Buffer("X", (2, 10), i32), Buffer("Y", (12, 5)[: len(index)], i32)
    body: Stmt = Store(y, index, x[J, V])
    for guard in guards:
        body = If(guard, body, None)
    s = Schedule(Kernel("k", (x, y), (y,), loop(J, 2, loop(V, 10, body))))
    outer, inner = s.split("v", 4, "overlap")
    with pytest.raises(ScheduleError, match="would reverse a loop-carried dependence"):
        s.reorder(outer, "j", inner)


@pytest.mark.parametrize("order", [("v.o", "v.i"), ("v.i", "v.o")], ids=str)
def test_an_index_of_the_lane_alone_takes_the_promise_back(order):
    """T[i, x + j] of tiles at 0 and 2 meet, and never of tiles at 0 and 4."""
    x, t, y = Buffer("X", (6,), i32), Buffer("T", (8,), i32), Buffer("Y", (6, 3), i32)
    fill = loop(J, 3, Store(t, (V + J,), x[V] * 10 + J.astype(i32)))
    use = loop(R, 3, Store(y, (V, R), t[V + R]))
    body = loop(V, 6, Alloc(t, block(fill, use)))
    s = Schedule(Kernel("k", (x, y), (y,), body))
    s.split("v", 4, "overlap")
    s.reorder(*order)
    for name in reversed(order):
        s.expand("T", name)
        if name == "v.o":
            s.fold_storage("T", 0, 1)
    with pytest.raises(ScheduleError, match="parallel: this parallel loop has"):
        s.parallel("v.o")


def test_the_promise_of_tiles_inside_of_an_expanded_loop_stays(check_same):
    x, y, t = (
        Buffer("X", (2, 10), i32),
        Buffer("Y", (2, 10), i32),
        Buffer("T", (20,), i32),
    )
    fill = loop(V, 10, Store(t, (V * 2,), x[K, V]))
    use = loop(R, 10, Store(y, (K, R), t[R * 2]))
    s = Schedule(Kernel("k", (x, y), (y,), loop(K, 2, Alloc(t, block(fill, use)))))
    s.split("v", 4, "overlap")
    s.expand("T", "k")
    s.parallel("v.o")
    check_same(s.original, s, exact=True)


def rows(pitch: int) -> tuple[Schedule, str, str]:
    """Rows of seven elements, `pitch` apart in one axis, each in overlapping tiles of four."""
    x, y, j = Buffer("X", (3, 7), i32), Buffer("Y", (3 * pitch + 7,), i32), var("j")
    body = loop(K, 3, loop(j, 7, Store(y, (K * pitch + j,), x[K, j])))
    s = Schedule(Kernel("k", (x, y), (y,), body))
    outer, _ = s.split("j", 4, "overlap")
    return s, "k", str(outer)


def test_rows_of_overlapping_tiles_run_together_as_one_loop(check_same):
    """In the ideal reading row and tile run into one another; in fact the rows are apart."""
    s, row, tile = rows(7)
    for name in (row, tile):
        s.parallel(name)
    fused = s.fuse(row, tile)
    assert can_parallelize(s.kernel, str(fused))
    check_same(s.original, s, exact=True)


def test_rows_that_meet_do_not_run_together():
    s, row, tile = rows(6)
    with pytest.raises(ScheduleError, match="parallel"):
        s.parallel(row)
    with pytest.raises(ScheduleError, match="parallel"):
        s.parallel(str(s.fuse(row, tile)))
