"""A matrix product with epilogue in the shape a CPU wants, and each tail of its tiles."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, Max, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule

f32 = dtypes.float32


def matmul(m: int, n: int, k: int, epilogue: bool = True) -> Kernel:
    a, b = Buffer("A", (m, k), f32), Buffer("B", (k, n), f32)
    c = Buffer("C", (m, n), f32)
    product = reduce_("mm", c, (k,), "add", lambda i, j, k: a[i, k] * b[k, j])
    if not epilogue:
        return lower("matmul", [product], [a, b, c], [c])
    bias, d = Buffer("bias", (n,), f32), Buffer("D", (m, n), f32)
    relu = map_("relu", d, lambda i, j: Max(c[i, j] + bias[j], const(0.0, f32)))
    return lower("matmul", [product, relu], [a, b, bias, d], [d])


def tiled(kernel: Kernel, mr: int, nr: int, lanes: int) -> Schedule:
    """Register tiles of mr x nr accumulators, B packed by panels, the epilogue in registers."""
    s = Schedule(kernel)
    jo, ji = s.split("relu.j", nr, tail="overlap")
    io, ii = s.split("relu.i", mr, tail="overlap")
    s.reorder(jo, io, ii, ji)
    s.parallel(jo)
    s.compute_at("C", io, "register")
    i0, j0 = s.decompose_reduction("C", "mm.i")
    s.reorder("mm.k", "mm.i", "mm.j")
    s.pack("B", jo, "mm.k", "mm.j")
    for j in (ji, "mm.j", j0):
        outer, inner = s.split(j, lanes)
        s.vectorize(inner)
        s.unroll(outer)
    for i in (ii, "mm.i", i0):
        s.unroll(i)
    return s


@pytest.mark.parametrize(
    "m, n, k, mr, nr, lanes",
    [
        (13, 50, 7, 8, 48, 16),
        (13, 50, 7, 4, 16, 8),
        (16, 96, 5, 8, 48, 16),
        (3, 9, 4, 3, 8, 4),
    ],
)
def test_tiled_matmul(m, n, k, mr, nr, lanes, check_same):
    kernel = matmul(m, n, k)
    check_same(kernel, tiled(kernel, mr, nr, lanes), exact=True)


def test_the_big_one_has_the_intended_shape():
    s = tiled(matmul(128, 768, 768), 8, 48, 16)
    text = repr(s.kernel)
    assert "alloc C: float32[8, 48] in register" in text
    assert "alloc B.pack: float32[16, 768, 48]" in text
    assert "min" not in text, "these tiles divide the extents"


def test_accumulators_of_an_output_are_written_back(check_same):
    kernel = matmul(13, 50, 7, epilogue=False)
    s = Schedule(kernel)
    io, ii = s.split("mm.i", 4, tail="overlap")
    jo, ji = s.split("mm.j", 16, tail="overlap")
    s.reorder(jo, io, ii, ji)
    with pytest.raises(
        ScheduleError, match="this parallel loop has a loop-carried dependence"
    ):
        s.parallel(jo)  # two threads would update one element where tiles overlap
    acc = s.cache_write("C", io)
    s.parallel(jo)
    s.decompose_reduction(acc, ii)
    s.reorder("mm.k", ii, ji)
    s.vectorize(ji)
    s.vectorize(f"{acc}.w1")
    check_same(kernel, s, exact=True)
    assert f"alloc {acc}: float32[4, 16] in register" in repr(s.kernel)


def test_an_output_as_an_intermediate_and_a_copy(check_same):
    kernel = matmul(13, 50, 7, epilogue=False)
    s = Schedule(kernel)
    acc = s.cache_write("C", name="acc")
    jo, _ = s.split("acc.w1", 16, tail="overlap")
    io, _ = s.split("acc.w0", 4, tail="overlap")
    s.reorder(jo, io, "acc.w0.i")
    s.compute_at(acc, io, "register")
    check_same(kernel, s, exact=True)


@pytest.mark.parametrize("tail", ["guard", "cut", "overlap"])
def test_tails(tail, check_same):
    kernel = matmul(13, 10, 7)
    s = Schedule(kernel)
    io = s.split("relu.i", 4, tail=tail)[0]
    s.split("relu.j", 4, tail="guard")
    if tail != "cut":
        s.compute_at("C", io)
    check_same(kernel, s, exact=True)


def test_reduction_in_blocks(check_same):
    kernel = matmul(6, 5, 13, epilogue=False)
    s = Schedule(kernel)
    s.decompose_reduction("C", "mm.i")
    ko, ki = s.split("mm.k", 4, tail="guard")
    s.reorder("mm.i", "mm.j", ko)
    s.reorder(ko, "mm.i", "mm.j")
    s.cache_read("A", ko, "stack")
    assert ki == "mm.k.i"
    check_same(kernel, s)


def test_wide_accumulators_of_a_narrow_product(check_same):
    """float16 results from float32 sums: the scalar accumulator becomes a register tile."""
    f16 = dtypes.float16
    a, b = Buffer("A", (13, 6), f32), Buffer("B", (6, 20), f32)
    c, d = Buffer("C", (13, 20), f16), Buffer("D", (13, 20), f16)
    product = reduce_("mm", c, (6,), "add", lambda i, j, k: a[i, k] * b[k, j])
    twice = map_("twice", d, lambda i, j: c[i, j] + c[i, j])
    kernel = lower("narrow", [product, twice], [a, b, d], [d])
    s = Schedule(kernel)
    io, ii = s.split("twice.i", 4, tail="overlap")
    jo, ji = s.split("twice.j", 8, tail="overlap")
    s.reorder(jo, io, ii, ji)
    s.parallel(jo)
    s.compute_at("C", io, "register")
    s.expand("C.acc", "mm.j")
    s.expand("C.acc", "mm.i")
    s.decompose_reduction("C.acc", "mm.i")
    s.fission("mm.j", 1)
    s.fission("mm.i", 1)
    s.reorder("mm.k", "mm.i", "mm.j")
    s.vectorize("mm.j")
    check_same(kernel, s, exact=True)
    assert "alloc C.acc: float32[4, 8, 1] in register" in repr(s.kernel)


def test_three_fused_loops_in_parallel(check_same, monkeypatch):
    """Batch, row tiles and column tiles as one parallel loop, proven without isl."""
    a, b, c = (
        Buffer("A", (3, 13, 6), f32),
        Buffer("B", (3, 6, 20), f32),
        Buffer("C", (3, 13, 20), f32),
    )
    product = reduce_("mm", c, (6,), "add", lambda n, i, j, k: a[n, i, k] * b[n, k, j])
    kernel = lower("batched", [product], [a, b, c], [c])
    s = Schedule(kernel)
    acc = s.cache_write("C", name="acc")
    io, _ = s.split("acc.w1", 4, tail="overlap")
    jo, _ = s.split("acc.w2", 8, tail="overlap")
    s.reorder("acc.w0", io, jo, "acc.w1.i")
    s.compute_at(acc, jo, "register")
    top = s.fuse(s.fuse("acc.w0", io), jo)

    def no_isl(*_):
        raise AssertionError("the lemma decides this")

    monkeypatch.setattr("tilewright.loops.analysis.question.ask", no_isl)
    s.parallel(top)
    check_same(kernel, s, exact=True)
