"""Rows that memory brings while the row before is worked on: a note, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import call
from tilewright.graph.ops.norm import exponentials
from tilewright.loops.lower import lower
from tilewright.loops.nodes import PREFETCH, Kernel
from tilewright.loops.passes.hoist import hoist
from tilewright.loops.verify import verify
from tilewright.operators import Buffer, map_, reduce_
from tilewright.runtime.executable import Executable
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import host
from tilewright.targets.cpu.sketches import Context, default
from tilewright.targets.registry import target

SMALL = replace(host(), l1=1024, l2=4096)  # so that small data is large
SHAPE = (16, 300)


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
