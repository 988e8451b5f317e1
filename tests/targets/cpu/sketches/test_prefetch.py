"""Rows that memory brings while the row before is worked on: a note, and what becomes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import call
from tilewright.graph.ops.softmax import exponentials
from tilewright.loops.lower import lower
from tilewright.loops.nodes import PREFETCH, Kernel
from tilewright.loops.passes.hoist import hoist
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_, reduce_
from tilewright.runtime.executable import Executable
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.sketches import Context, default
from tilewright.targets.registry import target

SMALL = replace(host(), l1=1024, l2=4096)  # so that small data is large
SHAPE = (16, 300)
SIZE = math.prod(SHAPE)


def softmax() -> list[Computation]:
    x, y = (Buffer(name, SHAPE, float32) for name in "xy")
    e = exponentials("softmax", x, [1], float32)
    return [*e.steps, map_("div", y, lambda i, j: e.terms[i, j] / e.total[i, 0])]


def centered() -> list[Computation]:
    x, y = (Buffer(name, SHAPE, float32) for name in "xy")
    total = Buffer("total", SHAPE[:1], float32)
    return [
        reduce_("sum", total, SHAPE[1:], "add", lambda i, j: x[i, j]),
        map_("centered", y, lambda i, j: x[i, j] - call("sqrt", total[i])),
    ]


def sums() -> list[Computation]:
    x, y = Buffer("x", SHAPE, float32), Buffer("y", SHAPE[:1], float32)
    return [reduce_("sum", y, SHAPE[1:], "add", lambda i, j: x[i, j])]


def normalized() -> list[Computation]:
    """Sums of a row that is made here are no reads of memory."""
    x, y = (Buffer(name, SHAPE, float32) for name in "xy")
    off = Buffer("off", SHAPE, float32)
    total, squares = (Buffer(n, SHAPE[:1], float32) for n in ("total", "squares"))
    return [
        reduce_("total", total, SHAPE[1:], "add", lambda i, j: x[i, j]),
        map_("off", off, lambda i, j: x[i, j] - total[i] / float(SHAPE[1])),
        reduce_(
            "squares", squares, SHAPE[1:], "add", lambda i, j: off[i, j] * off[i, j]
        ),
        map_("y", y, lambda i, j: off[i, j] / call("sqrt", squares[i])),
    ]


def scheduled(steps: list[Computation], at: Context) -> Kernel:
    x, y = steps[0].inputs[0], steps[-1].outputs[0].tensor
    kernel = default(lower("k", steps, params=[x, y], outputs=[y]), steps, at).kernel
    verify(kernel)
    return kernel


def prefetches(kernel: Kernel) -> list[object]:
    return [said[PREFETCH] for said in kernel.notes.values() if PREFETCH in said]


def test_the_next_row_is_fetched_where_functions_of_large_data_are_computed() -> None:
    kernel = scheduled(softmax(), Context(SMALL))
    assert prefetches(kernel) == [300 * 4]
    assert "call void @llvm.prefetch" in target("cpu").text(kernel, "k", "llvm")
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    terms = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    found = Executable(build_kernel(kernel, target("cpu")), threads=2)(x)
    np.testing.assert_allclose(found, terms / terms.sum(1, keepdims=True), rtol=1e-5)


def test_nothing_is_fetched_of_small_data_or_where_memory_is_never_idle() -> None:
    for kernel in (
        scheduled(softmax(), Context(host())),
        scheduled(centered(), Context(SMALL)),
    ):
        assert prefetches(kernel) == []
        assert "prefetch" not in target("cpu").text(kernel, "k", "llvm")


def test_rows_of_large_data_are_fetched_as_far_ahead_as_a_processor_gains_by() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    for ahead in (4096, 512):
        here = replace(host(), l2=4096, measured=(("fetched", ahead),))
        kernel = scheduled(sums(), Context(here))
        assert prefetches(kernel) == [ahead]
        found = Executable(build_kernel(kernel, target("cpu")), threads=2)(x)
        np.testing.assert_allclose(found, x.sum(1, dtype=float), rtol=1e-4, atol=1e-4)
    for name, fetched in (("znver5", [4096]), ("znver4", [])):
        found = prefetches(scheduled(sums(), Context(replace(machine(name), l2=4096))))
        assert found == fetched


@pytest.mark.parametrize("l2", [SIZE, SIZE + 1])
def test_rows_that_the_second_cache_may_hold_are_not_fetched_ahead(l2: int) -> None:
    """Large data has four bytes for each of the cache, as this tensor has for SIZE."""
    found = prefetches(scheduled(sums(), Context(replace(machine("znver5"), l2=l2))))
    assert bool(found) == (l2 == SIZE)


@pytest.mark.parametrize("l3", [8 * SIZE, 8 * SIZE + 1])
def test_rows_that_others_are_made_of_are_fetched_from_beyond_the_last_cache(
    l3: int,
) -> None:
    """Both have four bytes for each of SIZE. Rows that are made here are no reads of memory."""
    at = Context(replace(machine("znver5"), l2=4096, l3=l3))
    found = prefetches(scheduled(normalized(), at))
    assert found == ([4096] if l3 == 8 * SIZE else [])


def test_rows_of_two_large_tensors_are_not_fetched_ahead() -> None:
    """A small one beside a large one does not count."""
    x, z = (Buffer(name, SHAPE, float32) for name in "xz")
    few = Buffer("w", SHAPE[1:], float32)
    y = Buffer("y", SHAPE[:1], float32)
    at = Context(replace(machine("znver5"), l2=4096))
    for other, read, ahead in (
        (z, lambda i, j: z[i, j], []),
        (few, lambda i, j: few[j], [4096]),
    ):
        value = lambda i, j, read=read: x[i, j] * read(i, j)  # noqa: E731
        steps = [reduce_("sum", y, SHAPE[1:], "add", value)]
        kernel = lower("k", steps, params=[x, other, y], outputs=[y])
        assert prefetches(default(kernel, steps, at).kernel) == ahead


def test_of_rows_that_are_fetched_while_functions_are_computed_no_others_are() -> None:
    small = replace(machine("znver5"), l1=1024, l2=4096, l3=4096)
    assert prefetches(scheduled(softmax(), Context(small))) == [300 * 4]


def test_notes_stay_where_constant_work_is_hoisted() -> None:
    a, b, c = (Buffer(name, (8, 8), float32) for name in "abc")
    product = reduce_("mm", c, (8,), "add", lambda i, j, k: a[i, k] * b[k, j])
    s = Schedule(lower("k", [product], params=[a, b, c], outputs=[c]))
    packed = s.pack("b", "mm.j", "mm.k")
    s.annotate(f"{packed}.r0", "of", "packing")
    s.annotate("mm.i", "of", "product")
    found = hoist(s.kernel, [b])
    assert [k.notes for k in found.prepare] == [{f"{packed}.r0": {"of": "packing"}}]
    assert found.kernel.notes == {"mm.i": {"of": "product"}}
    verify(found.kernel)


def test_each_place_that_a_vector_loop_reads_is_fetched_once() -> None:
    """Two of x, one of y: the same place of two tensors is two, and read twice it is one."""
    x, y = (Buffer(name, (4, 2, 64), float32) for name in "xy")
    z = Buffer("z", (4, 64), float32)

    def value(i, j):
        return (x[i, 0, j] + x[i, 1, j]) * y[i, 0, j] + x[i, 0, j]

    step = map_("z", z, value)
    s = Schedule(lower("k", [step], params=[x, y, z], outputs=[z]))
    _, lane = s.split("z.j", 16)
    s.vectorize(lane)
    s.annotate(lane, PREFETCH, 256)
    text = target("cpu", "x86-64-v4").text(s.kernel, "k", "llvm")
    assert text.count("call void @llvm.prefetch") == 3
