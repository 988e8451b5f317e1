"""Fusion as a parameter: parts of a kernel computed in blocks of what reads them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tilewright.base import dtypes, events
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Buffer, Max, const
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.runtime.executable import Executable
from tilewright.schedule import Trace, replay
from tilewright.schedule.space import Point, Sketch
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.registry import target
from tilewright.testing.random_kernels import plain, random_computations

f32 = dtypes.float32
V3 = machine("x86-64-v3")


@dataclass(frozen=True, slots=True)
class Plain(Small):
    """One core, no transposing instructions."""

    l2: int = 1024
    cores: int = 1

    def transpose(self, dtype: dtypes.DType) -> str | None:
        return None


def blur(h: int, w: int) -> list[Computation]:
    x, t = Buffer("X", (h + 2, w + 2), f32), Buffer("BX", (h + 2, w), f32)
    y, third = Buffer("Y", (h, w), f32), const(1 / 3, f32)
    return [
        map_("bx", t, lambda i, j: (x[i, j] + x[i, j + 1] + x[i, j + 2]) * third),
        map_("by", y, lambda i, j: (t[i, j] + t[i + 1, j] + t[i + 2, j]) * third),
    ]


def perceptron(m: int, k: int, h: int, n: int) -> list[Computation]:
    """Product, bias, ReLU, product."""
    x, w, b, v = (
        Buffer(name, s, f32)
        for name, s in zip("XWBV", [(m, k), (k, h), (h,), (h, n)], strict=True)
    )
    t, u, y = (
        Buffer(name, s, f32)
        for name, s in zip("TUY", [(m, h), (m, h), (m, n)], strict=True)
    )
    return [
        reduce_("mm1", t, (k,), "add", lambda i, j, k: x[i, k] * w[k, j]),
        map_("relu", u, lambda i, j: Max(t[i, j] + b[j], const(0.0, f32))),
        reduce_("mm2", y, (h,), "add", lambda i, j, k: u[i, k] * v[k, j]),
    ]


def pooled(n: int, c: int, o: int) -> list[Computation]:
    """A 3x3 convolution and the maximum of each 2x2 of its results."""
    x, w = Buffer("X", (n + 2, n + 2, c), f32), Buffer("W", (3, 3, c, o), f32)
    t, y = Buffer("T", (n, n, o), f32), Buffer("Y", (n // 2, n // 2, o), f32)
    f = lambda i, j, o, p, q, k: x[i + p, j + q, k] * w[p, q, k, o]  # noqa: E731
    return [
        reduce_("conv", t, (3, 3, c), "add", f),
        reduce_(
            "pool", y, (2, 2), "max", lambda i, j, o, p, q: t[2 * i + p, 2 * j + q, o]
        ),
    ]


def sketch_of(computations: Sequence[Computation], at: Context) -> Sketch | None:
    found = sketches(plain(computations), computations, at)
    return next((s for s in found if s.name == "parts"), None)


def native(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(b.shape).astype("float32")
        if b.dtype.is_float
        else rng.integers(-4, 5, b.shape).astype("int32")
        for b in kernel.inputs
    ]
    results = Executable(build_kernel(kernel, target("cpu")), threads=2)(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def same(point: Point, results) -> None:
    """Interpreted and compiled, a point computes what the plain nests do; and its trace replays."""
    before, after = point.schedule.original, point.schedule.kernel
    verify(after)
    for run in (results, native):
        for want, got in zip(run(before), run(after), strict=True):
            np.testing.assert_allclose(
                got, want, rtol=2e-5, atol=2e-5, err_msg=str(point.values)
            )
    again = replay(before, Trace.from_json(point.schedule.trace.to_json()))
    assert repr(again) == repr(after)


def candidates(point: Point, name: str) -> tuple[object, ...]:
    return next(p.candidates for p in point.parameters if p.name == name)


def places(point: Point) -> list[object]:
    """Where intermediate results are computed that are not at the root."""
    return [
        v for name, v in point.values.items() if name.startswith("at.") and v != "root"
    ]


CASES = {
    "blur in tiles": (
        blur(12, 20),
        {"fuse.by.i": 4, "fuse.by.j": 8, "at.BX": "by.j.o"},
    ),
    "blur in rows": (blur(12, 20), {"fuse.by.i": 4, "fuse.by.j": 8, "at.BX": "by.i.o"}),
    "blur in odd tiles": (
        blur(11, 13),
        {"fuse.by.i": 4, "fuse.by.j": 8, "at.BX": "by.j.o"},
    ),
    "blur in two levels": (
        blur(12, 20),
        {"fuse.by.i": 6, "fuse.by.j": 8, "fuse.by.i.inner": 2, "at.BX": "by.i.i.o"},
    ),
    "blur in a sliding window": (
        blur(12, 20),
        {
            "fuse.by.i": 6,
            "fuse.by.i.inner": 1,
            "at.BX": "by.i.o",
            "slide.BX": "by.i.i.o",
        },
    ),
    "two products": (perceptron(12, 6, 8, 8), {"fuse.mm2.i": 4, "at.U": "Y.acc.w0.o"}),
    "odd products": (perceptron(9, 5, 7, 6), {"fuse.mm2.i": 4, "at.U": "Y.acc.w0.o"}),
    "convolution and pooling": (
        pooled(8, 3, 8),
        {"fuse.pool.i": 2, "at.T": "Y.acc.w0.o"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_producers_in_blocks_of_their_consumers(case, results):
    computations, values = CASES[case]
    sketch = sketch_of(computations, Context(Plain()))
    assert sketch is not None
    same(sketch.at(values), results)


def test_the_blur_with_its_first_stage_in_each_tile(golden):
    sketch = sketch_of(blur(64, 128), Context(V3))
    assert sketch is not None
    point = sketch.at(
        {"fuse.by.i": 16, "fuse.by.j": 64, "at.BX": "by.j.o", "bx.vectors": 1}
    )
    assert candidates(point, "inline.BX") == (True, False)
    assert candidates(point, "at.BX") == ("root", "by.i.o", "by.j.o")
    golden("fused_blur", str(point.schedule))


def test_a_sliding_window_computes_each_row_of_a_block_once():
    sketch = sketch_of(blur(12, 20), Context(Plain()))
    assert sketch is not None
    place = {"fuse.by.i": 6, "fuse.by.i.inner": 1, "at.BX": "by.i.o"}
    point = sketch.at(place | {"slide.BX": "by.i.i.o"})
    assert candidates(point, "slide.BX") == (None, "by.i.i.o")
    assert "for bx.i.warm in 2" in str(point.schedule) and "for bx.i in 1" in str(
        point.schedule
    )
    assert "slide.BX" not in sketch.at(place | {"at.BX": "by.i.i.o"}).values


def test_a_copy_of_what_a_block_reads(results):
    sketch = sketch_of(blur(12, 20), Context(Plain()))
    assert sketch is not None
    place = {"fuse.by.i": 4, "fuse.by.j": 8, "at.BX": "by.j.o"}
    point = sketch.at(place | {"stage.X.by.j.o": True})
    assert "alloc X.local: float32[6, 10] in stack" in str(point.schedule)
    same(point, results)


def test_parts_of_two_readers_stay_where_both_find_them():
    x, t, y = (Buffer(n, (8, 8), f32) for n in "XTY")
    r = Buffer("R", (8,), f32)
    computations = [
        reduce_("t", t, (8,), "add", lambda i, j, k: x[i, k] * x[k, j]),
        reduce_("r", r, (8,), "max", lambda i, j: t[i, j]),
        reduce_("y", y, (8,), "add", lambda i, j, k: t[k, j] * r[i]),
    ]
    sketch = sketch_of(computations, Context(Plain()))
    assert sketch is not None
    point = sketch.at({"fuse.y.i": 4})
    assert "at.T" not in point.values
    assert candidates(point, "at.R") == ("root", "Y.acc.w0.o")
    with pytest.raises(
        ScheduleError, match=r"parameter at\.R: 'y\.i' is not possible here"
    ):
        sketch.at({"fuse.y.i": 4, "at.R": "y.i"})


def test_scans_have_no_blocks():
    x, t, y = (Buffer(n, (8, 8), f32) for n in "XTY")
    read = lambda i, j: t[i, j]  # noqa: E731
    computations = [
        reduce_("t", t, (8,), "add", lambda i, j, k: x[i, k] * x[k, j]),
        reduce_(
            "y",
            y,
            (8,),
            "add",
            read,
            extents=(8,),
            combine=PS,
            index=lambda i, j: (i, j),
        ),
    ]
    sketch = sketch_of(computations, Context(Plain()))
    assert sketch is not None
    assert not any(name.startswith("fuse.") for name in sketch.default().values)


def test_by_default_results_that_would_leave_the_cache_stay_in_it():
    large, small = (sketch_of(pooled(n, 3, 32), Context(V3)) for n in (112, 28))
    assert large is not None and small is not None
    assert places(large.default()) == ["Y.acc.w0.o"]
    assert "alloc T: float32[8, 112, 32]" in str(large.default().schedule)
    assert places(small.default()) == []


def test_by_default_little_is_computed_twice():
    """Blocks of one row of an image with rows that wide would compute each row three times."""
    sketch = sketch_of(blur(64, 1 << 14), Context(V3))
    assert sketch is not None
    assert places(sketch.default()) == []


def test_by_default_no_guard_is_in_the_way_of_tiles():
    """The first block of a padded pooling needs a row that does not exist."""
    x, w = Buffer("X", (224, 32, 3), f32), Buffer("W", (3, 32), f32)
    t, y = Buffer("T", (224, 32, 32), f32), Buffer("Y", (112, 32, 32), f32)
    computations = [
        reduce_("t", t, (3,), "add", lambda i, j, c, k: x[i, j, k] * w[k, c]),
        reduce_(
            "y",
            y,
            (3,),
            "max",
            lambda i, j, c, k: padded(t, (2 * i + k - 1, j, c), 0.0),
        ),
    ]
    sketch = sketch_of(computations, Context(V3))
    assert sketch is not None
    assert places(sketch.default()) == []


def test_a_rule_that_is_refused_leaves_the_other_parts_alone(results):
    """A block at the border needs rows that do not exist: the guard is in the way of tiles."""
    x, t, y = (
        Buffer("X", (7, 4), f32),
        Buffer("T", (7, 8), f32),
        Buffer("Y", (4, 8), f32),
    )
    w = Buffer("W", (4, 8), f32)
    computations = [
        reduce_("t", t, (4,), "add", lambda i, j, k: x[i, k] * w[k, j]),
        reduce_(
            "y", y, (2,), "max", lambda i, j, k: padded(t, (2 * i + k - 1, j), 0.0)
        ),
    ]
    sketch = sketch_of(computations, Context(Plain()))
    assert sketch is not None
    with events.record() as found:
        point = sketch.at({"fuse.y.i": 1, "at.T": "Y.acc.w0.o", "t.tile": (2, 1)})
    assert [e.fields["part"] for e in found if e.kind == "kept-plain"] == ["t"]
    assert "if 0 <=" in str(point.schedule)
    assert "Y.acc: float32[1, 8] in register" in str(point.schedule)
    same(point, results)


def random_points(seed: int, draws: int, results) -> int:
    """Compare random points of a random sequence; how many of them fuse anything."""
    r = random.Random(seed)
    computations = random_computations(r)
    sketch = sketch_of(computations, Context(Plain()))
    points = [sketch.random(r) for _ in range(draws)] if sketch is not None else []
    for point in points:
        same(point, results)
    return sum(bool(places(p)) for p in points)


def test_no_random_point_is_refused_and_all_compute_the_same(results):
    assert sum(random_points(seed, 2, results) for seed in range(8)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_many_random_points(batch, results):
    assert (
        sum(random_points(seed, 4, results) for seed in range(100 + batch, 500, 8))
        >= 25
    )
