"""pad: more iterations that are not seen."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tests.schedule.test_partition_loop import window
from tests.schedule.test_reverse_compute_at import argmax
from tests.schedule.test_rows import softmax
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, Lt, Select, Var, const
from tilewright.ir.node import postorder
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Alloc, If, Kernel, Store, While, block, loop
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer, find_loop

f32, i32 = dtypes.float32, dtypes.int32


def product() -> Kernel:
    return matmul(7, 10, 5, epilogue=False)


def test_a_product_in_whole_tiles(check_same, golden):
    s = Schedule(product())
    s.cache_write("C", scope="global")
    s.decompose_reduction("C.acc", "mm.i")
    for name, multiple in (("mm.i", 4), ("mm.j", 8), ("mm.k", 4)):
        s.pad(name, multiple)
    check_same(product(), s, exact=True)
    for b in ("A", "B"):
        s.cache_read(b, pad=True)
    check_same(product(), s, exact=True)
    golden("schedule_pad", repr(s.kernel))
    made = s.tile("mm.i", "mm.j", "mm.k", 4, 8, 4)
    s.vectorize(made[4])
    check_same(product(), s, exact=True)
    assert find_buffer(s.kernel, "C.acc", "test")[0].shape == (8, 16)


def test_a_parameter_keeps_a_guard(check_same):
    s = Schedule(product())
    s.pad("mm.j", 4)
    check_same(product(), s, exact=True)
    f, _ = find_loop(s.kernel, "mm.j", "test")
    assert f.trips == 12 and isinstance(f.body, If)


@pytest.mark.parametrize("name", ["max.j", "exp.j", "sum.j", "div.j", "div.i", "sum.i"])
def test_softmax_with_longer_rows(name, check_same):
    kernel = softmax(3, 19)
    s = Schedule(kernel)
    s.pad(name, 8)
    check_same(kernel, s, exact=True)


def test_components_of_a_reducer_stay(check_same):
    s = Schedule(argmax())
    s.pad("a.k", 16)
    s.pad("a.r", 4)
    check_same(argmax(), s, exact=True)


def test_padding_of_padding(check_same):
    s = Schedule(window(10))
    s.pad("w.i", 4)
    s.pad("w.k", 4)
    check_same(window(10), s, exact=True)


def test_nothing_to_add():
    s = Schedule(product())
    before = s.kernel
    s.pad("mm.i", 7)
    assert s.kernel is before


def image(stride: int, guarded: bool) -> Kernel:
    """Windows of three over a row of integers, with 7 around it if it is guarded."""
    x, w = Buffer("x", (9,), i32), Buffer("w", (3,), i32)
    count = (9 - 3) // stride + 1

    def value(i, k):
        at = i * stride + k - guarded
        inside = (const(0) <= at) & (at < const(9))
        return (Select(inside, x[at], const(7, i32)) if guarded else x[at]) * w[k]

    y = Buffer("y", (count,), i32)
    return lower(
        "image", [reduce_("w", y, (3,), "add", value)], params=[x, w, y], outputs=[y]
    )


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "bare"])
@pytest.mark.parametrize("stride", [1, 2])
def test_one_factor_that_is_zero_is_enough_for_integers(stride, guarded, check_same):
    """The other may be read on, up to the end of its buffer, and is copied without a guard on k."""
    kernel = image(stride, guarded)
    s = Schedule(kernel)
    s.pad("w.k", 4)
    check_same(kernel, s, exact=True)
    for b in ("x", "w"):
        s.cache_read(b, pad=True)
    check_same(kernel, s, exact=True)
    f, _ = find_loop(s.kernel, "w.k", "test")
    assert f.trips == 4 and "select" not in repr(f)


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "bare"])
def test_windows_of_added_results_are_cut_off_at_the_end_of_the_buffer(
    guarded, check_same
):
    """Some of what they read exists, so that a guard on the loop would be no test of an index."""
    x, w = Buffer("x", (10,), f32), Buffer("w", (3,), f32)
    count = 5 if guarded else 4

    def value(i, k):
        at = i * 2 + k - guarded
        read = Select(const(0) <= at, x[at], const(0.0, f32)) if guarded else x[at]
        return read * w[k]

    t, y = Buffer("t", (count,), f32), Buffer("y", (count,), f32)
    steps = [reduce_("w", t, (3,), "add", value), map_("copy", y, lambda i: t[i])]
    kernel = lower("image", steps, params=[x, w, y], outputs=[y])
    s = Schedule(kernel)
    s.pad("w.i", 4 if guarded else 3)
    check_same(kernel, s, exact=True)
    s.cache_read("x", pad=True)
    check_same(kernel, s, exact=True)
    f, _ = find_loop(s.kernel, "w.i", "test")
    assert f.trips == (8 if guarded else 6) and "select" not in repr(f)


def test_floats_are_read_as_zero_on_both_sides(check_same):
    """For what is not a number times zero is not a zero."""
    x, w, y = Buffer("x", (12,), f32), Buffer("w", (3,), f32), Buffer("y", (9,), f32)
    c = reduce_("w", y, (3,), "add", lambda i, k: x[i + k] * w[k])
    kernel = lower("row", [c], params=[x, w, y], outputs=[y])
    s = Schedule(kernel)
    s.pad("w.k", 4)
    f, _ = find_loop(s.kernel, "w.k", "test")
    assert repr(f).count("select(w.k < 3") == 2
    check_same(kernel, s, exact=True)


def test_only_what_the_loop_indexes_is_read_otherwise(check_same):
    x, w, y = Buffer("x", (12,), i32), Buffer("w", (9,), i32), Buffer("y", (9,), i32)
    c = reduce_("w", y, (3,), "add", lambda i, k: x[i + k] * w[i])
    kernel = lower("row", [c], params=[x, w, y], outputs=[y])
    s = Schedule(kernel)
    s.pad("w.k", 4)
    check_same(kernel, s, exact=True)
    f, _ = find_loop(s.kernel, "w.k", "test")
    assert repr(f).count("select(") == 1


def test_no_room_is_made_before_the_start_of_a_buffer(check_same):
    """t[i, 3 - i] would leave t on both sides."""
    i, j = Var("i", dtypes.int64), Var("j", dtypes.int64)
    x, y, t = Buffer("X", (4,), i32), Buffer("Y", (4,), i32), Buffer("t", (4, 4), i32)
    body = block(
        loop(i, 4, Store(t, (i, 3 - i), x[i])), loop(j, 4, Store(y, (j,), t[j, 3 - j]))
    )
    kernel = Kernel("corners", (x, y), (y,), Alloc(t, body))
    s = Schedule(kernel)
    s.pad("i", 6)
    check_same(kernel, s, exact=True)


def test_a_guard_in_a_guard(check_same):
    """The inner one says already what the padded loop needs."""
    i = Var("i", dtypes.int64)
    x, y, t = Buffer("X", (5,), i32), Buffer("Y", (5,), i32), Buffer("t", (5,), i32)
    value = Select(i.ne(2), Select(Lt(i, const(5)), x[i], const(0, i32)), const(7, i32))
    out = loop(j := Var("j", dtypes.int64), 5, Store(y, (j,), t[j]))
    kernel = Kernel(
        "g", (x, y), (y,), Alloc(t, block(loop(i, 5, Store(t, (i,), value)), out))
    )
    s = Schedule(kernel)
    s.pad("i", 4)
    check_same(kernel, s, exact=True)


def triangle() -> Schedule:
    """Y[i] = X[j] for j < i only, through a guard."""
    i, j = Var("i", dtypes.int64), Var("j", dtypes.int64)
    x, y = Buffer("X", (8,), i32), Buffer("Y", (8, 12), i32)
    body = If(Lt(j, i), Store(y, (i, j), x[j]), None)
    return Schedule(Kernel("triangle", (x, y), (y,), loop(i, 8, loop(j, 12, body))))


REFUSED = [
    (triangle, "i", 3, r"X\[j\] owes its safety to a guard on this loop.*partition"),
    (lambda: Schedule(product()), "mm.i", 0, "0 is not a number of iterations"),
]


@pytest.mark.parametrize(
    "make, name, multiple, message", REFUSED, ids=["guard", "zero"]
)
def test_refusals(make, name, multiple, message):
    s = make()
    with pytest.raises(ScheduleError, match=message) as caught:
        s.pad(name, multiple)
    assert caught.value.message.startswith("pad:") and caught.value.hint


def test_a_while_loop_is_refused():
    i = Var("i", dtypes.int64)
    y = Buffer("Y", (8,), i32)
    body = block(
        Store(y, (i,), y[i] - 1), While(Lt(y[i], y[0]), Store(y, (i,), y[i] + 1))
    )
    s = Schedule(Kernel("w", (y,), (y,), loop(i, 7, body)))
    with pytest.raises(ScheduleError, match="pad: a while loop is inside"):
        s.pad("i", 4)
    assert any(isinstance(node, While) for node in postorder(s.kernel.body))


def test_a_window_and_channels_as_one_loop(check_same):
    """A step of a convolution: the guard divides the fused loop, as the index does."""
    x, w = Buffer("X", (9, 4), f32), Buffer("W", (3, 4), f32)

    def value(i, u, c):
        inside = (i + u >= 1) & (i + u < 10)
        return Select(inside, x[i + u - 1, c], const(0.0, f32)) * w[u, c]

    y = Buffer("Y", (9,), f32)
    conv = reduce_("conv", y, (3, 4), "add", value)
    kernel = lower("k", [conv], params=[x, w, y], outputs=[y])
    s = Schedule(kernel)
    s.decompose_reduction("Y", "conv.i")
    outer, inner = s.split("conv.c", 4)
    s.reorder("conv.u", outer, "conv.i", inner)
    step = s.fuse("conv.u", outer)
    new = s.cache_read("X", step, pad=True)
    check_same(kernel, s, exact=True)
    assert find_buffer(s.kernel, new, "test")[0].shape == (9, 4)
