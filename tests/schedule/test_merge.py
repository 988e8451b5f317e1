"""merge: fuse two loops if no iteration of the second conflicts with later ones of the first."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Load, Var, const
from tilewright.loops.analysis.dependence import can_fission
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, block, loop
from tilewright.operators import map_
from tilewright.schedule import Schedule

X, Y, Z, T = (Buffer(name, (10,), float32) for name in "XYZT")
A, B = Var("i", INDEX), Var("j", INDEX)


def two(
    offset: int, n: int = 8, m: int = 8, between: tuple[Stmt, ...] = ()
) -> Schedule:
    """T[i + 1] of X, then Z[j] of T[j + offset]."""
    first = loop(A, n, Store(T, (A + 1,), Load(X, (A,))))
    second = loop(B, m, Store(Z, (B,), Load(T, (B + offset,))))
    return Schedule(Kernel("two", (X, T, Z), (T, Z), block(first, *between, second)))


def test_the_bodies_run_in_turn() -> None:
    s = two(1)
    s.merge("i", "j")
    assert str(s).splitlines()[1:] == [
        "  for i in 8:",
        "    T[i + 1] = X[i]",
        "    Z[i] = T[i + 1]",
    ]
    s.verify()
    assert s.fission("i", 1) == "i.2"
    s.verify()


def test_what_was_done_before_may_be_read() -> None:
    s = two(0)
    s.merge("i", "j")
    s.verify()


def test_what_is_done_later_may_not() -> None:
    s = two(2)
    with pytest.raises(
        ScheduleError, match=r"merge: .*depends on later iterations.*T\[i \+ 2\]"
    ) as raised:
        s.merge("i", "j")
    assert "iterations" in raised.value.message and raised.value.hint
    assert str(s) == str(two(2))


@pytest.mark.parametrize(
    ("n", "m", "guard"),
    [(8, 5, "i < 5"), (5, 8, "i < 5"), (1, 8, "i < 1"), (0, 3, "i < 0")],
)
def test_the_shorter_loop_gets_a_guard(n: int, m: int, guard: str) -> None:
    s = two(1, n, m)
    s.merge("i", "j")
    assert f"if {guard}:" in str(s) and f"for i in {max(n, m)}:" in str(s)
    s.verify()


def test_the_first_loop_passes_what_it_shares_nothing_with() -> None:
    s = two(1, between=(Store(Z, (const(9),), Load(X, (const(9),))),))
    s.merge("i", "j")
    assert str(s).index("Z[9]") < str(s).index("for i")
    s.verify()


def test_allocations_go_around_both() -> None:
    a, b, c = (Buffer(name, (6, 8), float32) for name in "abc")
    y = Buffer("y", (6, 8), float32)
    maps = [
        map_("first", b, lambda i, j: a[i, j] + 1.0),
        map_("second", c, lambda i, j: a[i, j] * 2.0),
        map_("last", y, lambda i, j: b[i, j] + c[i, j]),
    ]
    s = Schedule(lower("three", maps, params=[a, y], outputs=[y]))
    s.merge("first.i", "second.i")
    s.merge("first.j", "second.j")
    s.merge("first.i", "last.i")
    s.merge("first.j", "last.j")
    assert str(s).count("for ") == 2 and str(s).count("alloc ") == 2
    s.verify()


def test_who_may_not_be_merged() -> None:
    s = two(1, between=(Store(Z, (const(9),), Load(T, (const(9),))),))
    with pytest.raises(ScheduleError, match="between it and loop j uses T too"):
        s.merge("i", "j")
    for first, second in (("j", "i"), ("i", "i")):
        with pytest.raises(ScheduleError, match="does not follow it"):
            s.merge(first, second)
    s = two(1)
    s.parallel("j")
    with pytest.raises(
        ScheduleError, match="loop j: merge: the loop is parallel already"
    ):
        s.merge("i", "j")


def test_a_statement_twice_is_parted_only_if_it_meets_itself_nowhere() -> None:
    """Equal statements are one node, which is in both parts."""
    shift = Store(T, (A,), Load(T, (A + 1,)))
    s = Schedule(Kernel("twice", (T,), (T,), loop(A, 8, block(shift, shift))))
    assert not can_fission(s.kernel, "i", 1)
    with pytest.raises(ScheduleError, match="fission: the parts depend on"):
        s.fission("i", 1)
    again = Store(T, (B,), Load(T, (B + 1,)))
    s = Schedule(
        Kernel("twice", (T,), (T,), block(loop(A, 8, shift), loop(B, 8, again)))
    )
    with pytest.raises(ScheduleError, match="merge"):
        s.merge("i", "j")


def test_overlapping_tiles_are_read_where_they_are_computed() -> None:
    """The last tile moves back: it computes elements later than their order suggests."""
    s = two(1, 7, 7)
    s.split("i", 3, tail="overlap")
    s.fuse("i.o", "i.i")
    with pytest.raises(ScheduleError, match=r"merge: .*later"):
        s.merge("i.o_i.i", "j")
    s = two(1, 7, 7)
    for name in "ij":
        s.split(name, 3, tail="overlap")
    s.merge("i.o", "j.o")
    s.verify()
    with pytest.raises(ScheduleError, match="merge"):
        two(2, 7, 7).merge("i", "j")


def overlapping(tail: str) -> Schedule:
    """Y[i] of T[i], then T[j] of X[j]; tiles of four, where the tail of the second overlaps."""
    first = loop(A, 10, Store(Y, (A,), Load(T, (A,))))
    second = loop(B, 10, Store(T, (B,), Load(X, (B,))))
    s = Schedule(Kernel("swap", (X, T, Y), (T, Y), block(first, second)))
    s.split("i", 4, tail)
    s.split("j", 4, "overlap")
    return s


def test_tiles_that_read_again_what_was_overwritten_are_not_merged() -> None:
    """The last tile would read T[6] once more, when the second loop has stored there."""
    s = overlapping("overlap")
    with pytest.raises(ScheduleError, match=r"merge: .*conflict at T\[6\]"):
        s.merge("i.o", "j.o")


def test_an_overlapping_tile_does_not_overwrite_what_another_still_reads() -> None:
    """In order, each tile reads before the next one stores; side by side it may not."""
    s = overlapping("guard")
    s.merge("i.o", "j.o")
    s.verify()
    with pytest.raises(ScheduleError, match=r"parallel: .*conflict at T\[6\]"):
        s.parallel("i.o")


def test_what_stands_between_stays_where_the_second_has_a_buffer_around_it() -> None:
    own = Buffer("own", (10,), float32)
    first = loop(A, 8, Store(T, (A + 1,), Load(X, (A,))))
    between = Store(Y, (const(0),), Load(X, (const(0),)))
    steps = block(Store(own, (B,), Load(T, (B + 1,))), Store(Z, (B,), Load(own, (B,))))
    body = block(first, between, Alloc(own, block(loop(B, 8, steps))))
    s = Schedule(Kernel("k", (X, T, Y, Z), (T, Y, Z), body))
    s.merge("i", "j")
    assert "Y[0] = X[0]" in str(s)
    s.verify()
