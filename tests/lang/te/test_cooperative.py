"""Threads that fetch together: shared memory inside of the loops over the threads that read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.lang.te.cooperative import part_threads
from tilewright.loops.nodes import If, Kernel, Store, loop
from tilewright.loops.passes.to_launches import to_launches
from tilewright.schedule import Schedule

Program = tuple[t.Schedule, list[t.Tensor], dict[str, Any]]


def product(
    sizes: tuple[int, int, int],
    *,
    virtual: bool = False,
    each: int = 2,
    reordered: bool = True,
) -> Program:
    """A matrix product as TVM's tutorials schedule it for GPUs, with 4 by 4 threads a block."""
    m, n, k = sizes
    A, B = t.placeholder((k, m), name="A"), t.placeholder((k, n), name="B")
    r = t.reduce_axis((0, k), name="r")
    C = t.compute((m, n), lambda i, j: t.sum(A[r, i] * B[r, j], axis=r), name="C")
    s = t.create_schedule(C.op)
    shared = [s.cache_read(x, "shared", [C]) for x in (A, B)]
    local = [s.cache_read(x, "local", [C]) for x in shared]
    own = s.cache_write(C, "local")
    block = 4 * each * (2 if virtual else 1)
    outer, loops = [], []
    for axis, c in zip(s[C].op.axis, "yx", strict=True):
        tile, rest = s[C].split(axis, block)
        s[C].bind(tile, t.thread_axis(f"blockIdx.{c}"))
        outer.append(tile)
        if virtual:
            lane, rest = s[C].split(rest, nparts=2)
            s[C].bind(lane, t.thread_axis("vthread"))
            outer.append(lane)
        loops.append((*s[C].split(rest, nparts=4), c))
    outer.sort(key=lambda x: x.name.count("."))
    threads = [thread for thread, _, _ in loops]
    s[C].reorder(*outer, *threads, *(inner for _, inner, _ in loops))
    for thread, _, c in loops:
        s[C].bind(thread, t.thread_axis(f"threadIdx.{c}"))
    s[own].compute_at(s[C], threads[1])
    ko, ki = s[own].split(s[own].op.reduce_axis[0], 4)
    if reordered:
        s[own].reorder(ko, ki, *s[own].op.axis)
    for fetch, mine in zip(shared, local, strict=True):
        s[fetch].compute_at(s[own], ko)
        s[mine].compute_at(s[own], ki)
        for axis, c in zip(s[fetch].op.axis, "yx", strict=True):
            thread, _ = s[fetch].split(axis, nparts=4)
            s[fetch].bind(thread, t.thread_axis(f"threadIdx.{c}"))
        first, second = (s[fetch].leaf_iter_vars[n] for n in (0, 2))
        s[fetch].reorder(first, second)
    handles = {"own": own, "shared": shared, "threads": threads, "ko": ko}
    return s, [A, B, C], handles


def check(s: t.Schedule, args: list[t.Tensor]) -> None:
    """The program computes the product."""
    (k, m), (_, n) = (x.shape for x in args[:2])
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(x, dtype=np.float32) for x in ((k, m), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    t.build(s, args, target="interp")(a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.covering(1)  # even and ragged sizes; with virtual threads and without
@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("sizes", [(32, 32, 8), (29, 19, 7)])
def test_what_threads_share_is_fetched_between_phases(
    sizes: tuple[int, int, int], virtual: bool
) -> None:
    s, args, _ = product(sizes, virtual=virtual)
    check(s, args)
    (launch,) = to_launches(s.schedule.kernel).launches
    assert launch.threads == (4, 4, 1)
    assert {b.shape for b in launch.shared} == {(4, 16 if virtual else 8)}
    # after the fetch, and before the next one
    assert str(launch.body).count("barrier") == 2


def test_the_sums_of_a_thread_stay_its_own() -> None:
    s, _, _ = product((16, 16, 8))
    (launch,) = to_launches(s.schedule.kernel).launches
    assert "alloc own: float32[1, 1, 2, 2] in register" in str(launch.body)
    assert "s.expand('own', 'C.j.i.o')" in str(s.trace)


def test_reduction_loops_may_be_inside_of_those_of_the_results() -> None:
    s, args, _ = product((16, 16, 8), reordered=False)
    check(s, args)
    assert to_launches(s.schedule.kernel).launches


def test_at_a_loop_over_threads_all_of_them_fetch() -> None:
    s, args, found = product((13, 19, 7))
    for stage in found["shared"]:
        s[stage].compute_at(s[args[2]], found["threads"][1])
    check(s, args)
    (launch,) = to_launches(s.schedule.kernel).launches
    assert {b.shape for b in launch.shared} == {(7, 8)}
    assert str(launch.body).count("barrier") == 1


def test_what_is_placed_later_goes_to_the_phase_that_reads_it() -> None:
    A, B = t.placeholder((8, 16), name="A"), t.placeholder((8, 16), name="B")
    k = t.reduce_axis((0, 8), name="k")
    C = t.compute((16,), lambda i: t.sum(A[k, i] * B[k, i], axis=k), name="C")
    s = t.create_schedule(C.op)
    column = s.cache_read(A, "local", [C])
    shared = s.cache_read(B, "shared", [C])
    own = s.cache_write(C, "local")
    block, thread = s[C].split(s[C].op.axis[0], 4)
    s[C].bind(block, "blockIdx.x")
    s[C].bind(thread, "threadIdx.x")
    s[own].compute_at(s[C], thread)
    outer, inner = s[own].split(s[own].op.reduce_axis[0], 4)
    s[shared].compute_at(s[own], outer)
    s[shared].bind(s[shared].op.axis[1], "threadIdx.x")
    s[column].compute_at(s[own], inner)
    s[column].compute_at(s[C], thread)
    a, b = np.random.default_rng(0).standard_normal((2, 8, 16), dtype=np.float32)
    c = np.zeros(16, np.float32)
    t.build(s, [A, B, C], target="interp")(a, b, c)
    np.testing.assert_allclose(c, (a * b).sum(0), rtol=1e-4, atol=1e-5)
    assert to_launches(s.schedule.kernel).launches


def test_results_may_be_in_global_memory() -> None:
    A = t.placeholder((8, 16), name="A")
    k = t.reduce_axis((0, 8), name="k")
    C = t.compute((16,), lambda i: t.sum(A[k, i], axis=k), name="C")
    s = t.create_schedule(C.op)
    copy = s.cache_read(A, "shared", [C])
    block, thread = s[C].split(s[C].op.axis[0], 8)
    s[C].bind(block, "blockIdx.x")
    s[C].bind(thread, "threadIdx.x")
    outer, _ = s[C].split(s[C].op.reduce_axis[0], 4)
    s[copy].compute_at(s[C], outer)
    s[copy].bind(s[copy].op.axis[1], "threadIdx.x")
    a, c = np.arange(128, dtype=np.float32).reshape(8, 16), np.zeros(16, np.float32)
    t.build(s, [A, C], target="interp")(a, c)
    np.testing.assert_array_equal(c, a.sum(0))
    (launch,) = to_launches(s.schedule.kernel).launches
    assert "barrier" not in str(launch.body)  # each thread reads what it has fetched


@pytest.mark.parametrize(("each", "reordered"), [(2, False), (1, True)])
def test_guards_of_tails_go_into_the_phases(each: int, reordered: bool) -> None:
    s, args, _ = product((13, 19, 7), each=each, reordered=reordered)
    check(s, args)
    (launch,) = to_launches(s.schedule.kernel).launches
    assert launch.threads == (4, 4, 1)


def test_a_condition_on_data_around_the_place_is_refused() -> None:
    i, k = Var("i", INDEX), Var("k", INDEX)
    x, y = Buffer("x", (4,), float32), Buffer("y", (4, 8), float32)
    inner = loop(k, 8, Store(y, (i, k), x[i]))
    body = loop(i, 4, If(x[i] < 1.0, inner, None))
    s = Schedule(Kernel("f", (x, y), (y,), body))
    with pytest.raises(
        ScheduleError, match="k is under a condition in the loop i "
    ) as e:
        part_threads(s, "k", {"i"})
    assert "compute it at a loop over blocks" in str(e.value.hint)
