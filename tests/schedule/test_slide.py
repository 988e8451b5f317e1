"""store_at, slide, fold_storage: windows that move, and memory that holds just one of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import INDEX, Buffer, Cast, Max, Min, Var, const
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, Kernel, Store, block, loop
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule

i32 = dtypes.int32


def stencils(rows: int, columns: int, *windows: tuple[int, int, int]) -> Kernel:
    """Stages S0, S1, ...; stage n reads rows step*y + first .. + last of the one before."""
    heights = [rows]
    for step, first, last in reversed(windows):
        heights.append(step * (heights[-1] - 1) + last + 1)
    heights.reverse()
    buffers = [Buffer(f"S{n}", (h, columns), i32) for n, h in enumerate(heights)]
    stages = []
    for n, (step, first, last) in enumerate(windows):
        source, made = buffers[n], buffers[n + 1]

        def value(y, x, source=source, step=step, first=first, last=last):
            total = source[y * step + first, x]
            for k in range(first + 1, last + 1):
                total = total + source[y * step + k, x] * (k + 2)
            return total

        stages.append(map_(f"s{n + 1}", made, lambda y, x, value=value: value(y, x)))
    return lower("stencils", stages, [buffers[0], buffers[-1]], [buffers[-1]])


def elements(kernel: Kernel, name: str) -> int:
    """How many elements the buffer called `name` has."""
    from tilewright.schedule.tree import find_buffer

    return find_buffer(kernel, name, "test")[0].size


def test_slide_and_fold(check_same):
    kernel = stencils(9, 5, (1, 0, 0), (1, 0, 2))
    s = Schedule(kernel)
    assert s.slide("S1", "s2.y") == ("s1.y.warm", "s1.x.warm")
    assert elements(s.kernel, "S1") == 11 * 5
    s.fold_storage("S1", 0, 3)
    assert elements(s.kernel, "S1") == 3 * 5
    check_same(kernel, s, exact=True)
    assert (
        repr(s.kernel)
        == """\
kernel stencils(S0: int32[11, 5]) -> S2: int32[9, 5]:
  alloc S1: int32[3, 5]:
    for s1.y.warm in 2:
      for s1.x.warm in 5:
        S1[s1.y.warm, s1.x.warm] = S0[s1.y.warm, s1.x.warm]
    for s2.y in 9:
      for s1.y in 1:
        for s1.x in 5:
          S1[(s2.y + 2) % 3, s1.x] = S0[s2.y + 2, s1.x]
      for s2.x in 5:
        S2[s2.y, s2.x] = S1[s2.y % 3, s2.x] + S1[(s2.y + 1) % 3, s2.x] * 3_i32 \
+ S1[(s2.y + 2) % 3, s2.x] * 4_i32"""
    )


def test_data_may_choose_in_the_other_dimensions(check_same):
    """Rows are computed whole; an index that the loop moves through itself is refused."""
    data, out = Buffer("data", (9, 5), i32), Buffer("out", (8, 5), i32)
    made = Buffer("made", (9, 5), i32)
    first = map_("first", made, lambda y, x: data[y, x] * 3)

    def built(column) -> Kernel:
        def value(y, x):
            return made[y, column(y, x)] + made[y + 1, column(y, x)]

        return lower("k", [first, map_("second", out, value)], [data, out], [out])

    def chosen(y, x):
        return Cast(Min(Max(data[y, x], const(0, i32)), const(4, i32)), INDEX)

    kernel = built(chosen)
    s = Schedule(kernel)
    s.slide("made", "second.y")
    check_same(kernel, s, exact=True)
    with pytest.raises(ScheduleError, match="moves through 2 dimensions"):
        Schedule(built(lambda y, x: Min(y, const(4)))).slide("made", "second.y")


def test_a_chain_slides_through_one_loop(check_same):
    kernel = stencils(8, 4, (1, 0, 0), (1, 0, 2), (1, 0, 1), (1, 1, 4))
    s = Schedule(kernel)
    for name in ("S3", "S2", "S1"):
        s.slide(name, "s4.y")
    for name, factor in (("S3", 4), ("S2", 5), ("S1", 7)):
        s.fold_storage(name, 0, factor)
    check_same(kernel, s, exact=True)


def test_both_loops_of_a_tile_and_a_second_dimension(check_same):
    kernel = stencils(8, 6, (1, 0, 0), (1, 0, 2))
    s = Schedule(kernel)
    s.split("s2.y", 4)
    s.slide("S1", "s2.y.o")
    s.slide("S1", "s2.y.i")
    check_same(kernel, s, exact=True)
    s = Schedule(kernel)
    s.split("s2.y", 3, "overlap")
    s.compute_at("S1", "s2.y.o")
    s.slide("S1", "s2.y.i")
    s.fold_storage("S1", 0, 4)
    check_same(kernel, s, exact=True)


def test_a_reduction_slides(check_same):
    x, y = Buffer("X", (12, 7), i32), Buffer("Y", (10,), i32)
    t = Buffer("T", (12,), i32)
    steps = [
        reduce_("t", t, (7,), "add", lambda i, k: x[i, k]),
        map_("y", y, lambda i: t[i] - t[i + 2]),
    ]
    kernel = lower("sums", steps, [x, y], [y])
    s = Schedule(kernel)
    s.slide("T", "y.i")
    s.fold_storage("T", 0, 3)
    check_same(kernel, s, exact=True)


def test_what_is_used_before_the_loop_is_computed_before(check_same):
    """Row n of the nest is element n + 1."""
    x, y, z, t = (Buffer(name, (12,), i32) for name in "XYZT")
    i, v = Var("i", INDEX), Var("v", INDEX)
    body = block(
        loop(i, 10, Store(t, (i + 1,), x[i])),
        Store(z, (const(0),), t[4]),
        loop(v, 8, Store(y, (v,), t[v + 1] + t[v + 3])),
    )
    kernel = Kernel("used", (x, y, z), (y, z), Alloc(t, body))
    s = Schedule(kernel)
    s.slide("T", "v")
    assert "for i.warm in 4:" in repr(s.kernel)
    check_same(kernel, s, exact=True)


def test_the_largest_of_all_windows_is_kept(check_same):
    """8 rows are there when the last 5 of them are read, then the last 3."""
    x, y, z, t = (Buffer(name, (8,), i32) for name in "XYZT")
    i, j, k = (Var(name, INDEX) for name in "ijk")
    body = block(
        loop(i, 8, Store(t, (i,), x[i])),
        loop(j, 2, Store(y, (j,), t[j + 3])),
        loop(k, 2, Store(z, (k,), t[k + 5])),
    )
    kernel = Kernel("windows", (x, y, z), (y, z), Alloc(t, body))
    s = Schedule(kernel)
    with pytest.raises(ScheduleError, match="5 rows are alive at once in loop j"):
        s.fold_storage("T", 0, 4)
    s.fold_storage("T", 0, 5)
    check_same(kernel, s, exact=True)


def test_store_at_keeps_the_memory_outside(check_same):
    kernel = stencils(12, 4, (1, 0, 0), (1, 0, 2))
    s = Schedule(kernel)
    s.split("s2.y", 4)
    s.store_at("S1", "s2.y.o", "s2.y.i")
    check_same(kernel, s, exact=True)
    assert elements(s.kernel, "S1") == 6 * 4
    assert "for s1.y in 3" in repr(s.kernel)
    s.fold_storage("S1", 0, 3)
    check_same(kernel, s, exact=True)


BLUR = ((1, 0, 0), (1, 0, 2))


def test_threads_store_a_halo_again_in_the_memory_that_they_share(check_same):
    """Each row of the second stencil makes the three that it reads, with the same values."""
    kernel = stencils(12, 4, *BLUR)
    s = Schedule(kernel)
    s.parallel("s2.y")
    s.store_at("S1", None, "s2.y")
    check_same(kernel, s, exact=True)


def parallel_y(s):
    s.parallel("s2.y")


def slide_y(s):
    s.slide("S1", "s2.y")


CASES = [
    (BLUR, parallel_y, ("slide", "S1", "s2.y"), "loop s2.y is parallel"),
    (BLUR, None, ("slide", "S1", "s2.x"), "loop s2.y is between"),
    (BLUR, None, ("slide", "S0", "s2.y"), "it is a parameter"),
    (BLUR, None, ("slide", "S1", "s1.y"), "no statement before that loop computes it"),
    (((1, 0, 0), (3, 0, 1)), None, ("slide", "S1", "s2.y"), "leave rows of it out"),
    (BLUR, None, ("fold_storage", "S1", 0, 4), "11 rows are alive at once"),
    (
        BLUR,
        slide_y,
        ("fold_storage", "S1", 0, 2),
        "3 rows are alive at once in loop s2.y",
    ),
    (BLUR, slide_y, ("fold_storage", "S1", 0, 11), "11 is not in 1..10"),
    (BLUR, slide_y, ("fold_storage", "S1", 2, 4), "no dimension 2"),
    (
        ((1, 0, 0), (1, 0, 1), (1, 0, 2)),
        None,
        ("slide", "S1", "s3.y"),
        "all of it|does not read",
    ),
]


@pytest.mark.parametrize("windows, first, step, message", CASES, ids=range(len(CASES)))
def test_refusal(windows, first, step, message):
    s = Schedule(stencils(9, 5, *windows))
    if first is not None:
        first(s)
    before = s.kernel
    with pytest.raises(ScheduleError, match=message) as caught:
        getattr(s, step[0])(*step[1:])
    assert caught.value.where and caught.value.hint and s.kernel is before


def hand_written(*stmts):
    """A kernel of these statements on T (10 rows, allocated) and Y (10 rows, the output)."""
    from tilewright.loops.nodes import Alloc, block

    t, y = Buffer("T", (10,), i32), Buffer("Y", (10,), i32)
    return Kernel("k", (y,), (y,), Alloc(t, block(*(make(t, y) for make in stmts))))


def rows(name, count, body):
    """One of the statements of `hand_written`: a loop over `body(t, y, i)`."""
    from tilewright.expr.nodes import INDEX, Var
    from tilewright.loops.nodes import loop

    i = Var(name, INDEX)
    return lambda t, y: loop(i, count, body(t, y, i))


def test_what_is_read_before_the_loop_is_computed_before_it(check_same):
    from tilewright.expr.nodes import Cast, const
    from tilewright.loops.nodes import Alloc, Store, block

    u = Buffer("U", (1,), i32)
    made = rows("i", 10, lambda t, y, i: Store(t, (i,), Cast(i, i32)))
    early = rows("e", 2, lambda t, y, i: Store(y, (i + 8,), t[i + 5]))
    used = rows("v", 8, lambda t, y, v: Store(y, (v,), t[v] + t[v + 2] + u[0]))

    def later(t, y):
        return Alloc(u, block(Store(u, (const(0),), t[0]), early(t, y), used(t, y)))

    kernel = hand_written(made, later)
    s = Schedule(kernel)
    s.slide("T", "v")
    check_same(kernel, s, exact=True)
    assert "for i.warm in 7" in repr(s.kernel)


def test_values_that_are_not_final_are_not_read():
    from tilewright.compute.reducer import reducer
    from tilewright.expr.nodes import const
    from tilewright.loops.nodes import Store, Update

    one = const(1, i32)
    made = rows("i", 10, lambda t, y, i: Store(t, (i,), one))
    early = rows("e", 2, lambda t, y, i: Store(y, (i + 8,), t[i]))
    again = rows(
        "j", 10, lambda t, y, i: Update((t,), ((i,),), (one,), reducer("add", i32))
    )
    used = rows("v", 8, lambda t, y, v: Store(y, (v,), t[v] + t[v + 2]))
    with pytest.raises(ScheduleError, match="read before all of its nests have run"):
        Schedule(hand_written(made, early, again, used)).slide("T", "v")


def test_rows_that_depend_on_one_another_do_not_slide():
    """T[i] += T[i - 1]: delaying rows would be right only in this order, which is not proven."""
    from tilewright.expr.nodes import INDEX, Var, const
    from tilewright.loops.nodes import Alloc, Store, block, loop

    t, y = Buffer("T", (10,), i32), Buffer("Y", (8,), i32)
    i, v = Var("i", INDEX), Var("v", INDEX)
    made = loop(i, 9, Store(t, (i + 1,), t[i] + const(1, i32)))
    used = loop(v, 8, Store(y, (v,), t[v] + t[v + 2]))
    kernel = Kernel(
        "k",
        (y,),
        (y,),
        Alloc(t, block(Store(t, (const(0),), const(1, i32)), made, used)),
    )
    with pytest.raises(
        ScheduleError, match=r"different parts|depend on one another|not one loop"
    ):
        Schedule(kernel).slide("T", "v")


WINDOW = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 4)).map(
    lambda w: (w[0], w[1], w[1] + w[2])
)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.lists(WINDOW, min_size=1, max_size=3), st.data())
def test_random_chains(rows, windows, data):
    """Whatever is accepted computes the same, and what the least factor is, is exact enough."""
    kernel = stencils(rows, 3, (1, 0, 0), *windows)
    last = len(windows) + 1
    loop = f"s{last}.y"
    s = Schedule(kernel)
    if data.draw(st.booleans()):
        loop = s.split(loop, data.draw(st.integers(1, rows)), "cut")[0]
    names = [f"S{n}" for n in range(last - 1, 0, -1)]
    moved = []
    for name in names:
        try:
            s.slide(name, loop)
        except ScheduleError:
            break
        moved.append(name)
    for name in moved:
        extent = elements(s.kernel, name) // 3
        try:
            s.fold_storage(name, 0, data.draw(st.integers(1, max(extent - 1, 1))))
        except ScheduleError:
            continue
    verify(s.kernel)
    a, b = (kernel, s.kernel)
    x = np.random.default_rng(0).integers(-9, 9, a.params[0].shape).astype(np.int32)
    results = []
    for k in (a, b):
        out = np.zeros(k.outputs[0].shape, np.int32)
        run(k, {k.params[0]: x, k.outputs[0]: out})
        results.append(out)
    np.testing.assert_array_equal(*results)
