"""Sketches of random Computations: whatever their parameters, the result stays the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.driver.build_kernel import build_kernel
from tilewright.expr.nodes import Buffer, call
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Point, Sketch
from tilewright.schedule.space.patterns import parts
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.registry import target
from tilewright.testing.random_kernels import plain, random_computations

f32 = dtypes.float32


def product(m: int, n: int, k: int) -> list[Computation]:
    a, b, t, y = (
        Buffer(name, s, f32)
        for name, s in zip("ABTY", [(m, k), (k, n), (m, n), (m, n)], strict=True)
    )
    return [
        reduce_("mm", t, (k,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        map_("relu", y, lambda i, j: t[i, j] * t[i, j]),
    ]


def softmax(m: int, n: int) -> list[Computation]:
    x, e, y = (Buffer(name, (m, n), f32) for name in "XEY")
    big, total = Buffer("M", (m,), f32), Buffer("Z", (m,), f32)
    return [
        reduce_("m", big, (n,), "max", lambda i, j: x[i, j]),
        map_("e", e, lambda i, j: call("exp", x[i, j] - big[i])),
        reduce_("z", total, (n,), "add", lambda i, j: e[i, j]),
        map_("y", y, lambda i, j: e[i, j] / total[i]),
    ]


def draw(sketch: Sketch, r: random.Random) -> Point | None:
    """A random point; None where a primitive refuses it."""
    try:
        return sketch.random(r)
    except ScheduleError as error:
        assert error.where
        return None


def native(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = [
        rng.standard_normal(b.shape).astype("float32")
        if b.dtype.is_float
        else rng.integers(-4, 5, b.shape).astype("int32")
        for b in kernel.inputs
    ]
    results = Executable(build_kernel(kernel, target("cpu")), threads=2)(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def check(
    computations: Sequence[Computation], results, r: random.Random, draws: int
) -> int:
    """Compare points of every sketch with the plain nests; the number of those compared."""
    kernel = plain(computations)
    want, want_native = results(kernel), native(kernel)
    count = 0
    for sketch in sketches(kernel, computations, Context(Small())):
        for point in [draw(sketch, r) for _ in range(draws)]:
            if point is None:
                continue
            count += 1
            after = point.schedule.kernel
            verify(after)
            for a, b in zip(
                (*want, *want_native), (*results(after), *native(after)), strict=True
            ):
                np.testing.assert_allclose(
                    b, a, rtol=2e-5, atol=2e-5, err_msg=str(point.values)
                )
            assert repr(sketch.at(point.values).schedule.kernel) == repr(after)
    return count


@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_random_points_of_random_computations(results, count):
    r = random.Random(0)
    checks = [check(random_computations(r), results, r, 2) for _ in range(count)]
    assert sum(checks) > 2 * count


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_many_random_points_of_random_computations(batch, results):
    r = random.Random(batch + 1)
    for _ in range(100):
        check(random_computations(r), results, r, 4)


@pytest.mark.parametrize("points", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_random_points_of_a_product_and_a_softmax(results, points):
    r = random.Random(0)
    assert check(product(12, 17, 9), results, r, points) >= 2 * points
    assert check(softmax(7, 19), results, r, points) >= 2 * points


def test_the_parameters_of_a_product():
    computations = product(12, 16, 8)
    best = sketches(plain(computations), computations, Context(Small()))[0]
    assert best.name == "tiled"
    names = [p.name for p in best.default().parameters]
    assert {"mm.tile", "mm.block", "pack.B", "pack.A", "mm.unroll"} < set(names)
    assert names[0] == "mm.tile" and len(set(names)) == len(names)
    point = best.at({"mm.tile": (4, 2), "mm.block": 1, "pack.B": True})
    assert "b.pack" in str(point.schedule).lower() and "for relu.i.o in 3" in str(
        point.schedule
    )
    with pytest.raises(
        ScheduleError, match=r"parameter mm\.block: 2 is not possible here"
    ):
        best.at({"mm.tile": (4, 2), "mm.block": 2})


def test_a_sequence_of_no_kind_is_cut_into_parts():
    computations = [*product(6, 8, 5)]
    last = computations[-1].outputs[0].tensor
    y, z, w = Buffer("S", (6,), f32), Buffer("Z", (6, 8), f32), Buffer("W", (6, 8), f32)
    computations += [
        reduce_("s", y, (8,), "add", lambda i, j: last[i, j]),
        map_("z", z, lambda i, j: last[i, j] / y[i]),
        reduce_(
            "w",
            w,
            (8,),
            "add",
            lambda i, j: z[i, j],
            extents=(6,),
            combine=PS,
            index=lambda i, j: (i, j),
        ),
    ]
    found = [
        s.name for s in sketches(plain(computations), computations, Context(Small()))
    ]
    assert found == ["parts", "plain"]
    assert [k.name for k in parts(computations)] == ["tiled", "rows", "scan"]


def test_a_map_that_is_read_once_is_computed_there(results):
    x, t, u, y = (Buffer(n, (6, 8), f32) for n in "XTUY")
    z = Buffer("Z", (6,), f32)
    computations = [
        map_("t", t, lambda i, j: x[i, j] * x[i, j]),
        reduce_("z", z, (8,), "add", lambda i, j: t[i, j]),
        map_("u", u, lambda i, j: x[i, j] + z[i]),
        reduce_("y", y, (8,), "add", lambda i, j, k: u[i, k] * x[k % 6, j]),
    ]
    kernel = plain(computations)
    cut = next(
        s for s in sketches(kernel, computations, Context(Small())) if s.name == "parts"
    )
    point = cut.default()
    assert point.values["inline.T"] and not point.values["inline.U"]
    assert "alloc T" not in str(point.schedule) and "U: " in str(point.schedule)
    every = cut.at({"inline.U": True})
    for p in (point, every, cut.at({"inline.T": False})):
        for want, got in zip(results(kernel), results(p.schedule.kernel), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def read_once(rows: int, vectors: int, terms: int, along: bool) -> list[Computation]:
    """A matrix that is read once times vectors; along: whether the vectors of a tile go along its
    rows, which takes a copy of it."""
    m, v = Buffer("M", (rows, terms), f32), Buffer("V", (vectors, terms), f32)
    if along:
        y = Buffer("Y", (vectors, rows), f32)
        return [reduce_("mv", y, (terms,), "add", lambda j, i, k: m[i, k] * v[j, k])]
    y = Buffer("Y", (rows, vectors), f32)
    return [reduce_("mv", y, (terms,), "add", lambda i, j, k: m[i, k] * v[j, k])]


@pytest.mark.parametrize(
    ("vectors", "terms", "along", "first"),
    [
        (1, 8, True, "rows"),
        (1, 7, True, "tiled"),  # less than two vectors of four
        (2, 64, False, "rows"),
        (2, 63, False, "tiled"),  # less than 32 terms for each of two sums
        (2, 63, True, "rows"),  # a copy for tiles takes longer
        (9, 512, True, "tiled"),  # of more vectors it is worth one
    ],
)
def test_a_matrix_that_is_read_once_is_read_in_its_rows(vectors, terms, along, first):
    computations = read_once(4096, vectors, terms, along)
    kernel = plain(computations)
    m = next(b for b in kernel.params if b.name == "M")
    assert sketches(kernel, computations, Context(Small()))[0].name == first
    assert sketches(kernel, computations, Context(Small(), {m}))[0].name == "tiled"


def test_vectors_go_along_what_is_contiguous_in_operand_and_result(results):
    a, b, c = (
        Buffer(n, s, f32)
        for n, s in zip("ABC", [(8, 6), (16, 8), (16, 6)], strict=True)
    )
    computations = [
        reduce_(
            "mm", c, (8,), "add", lambda i, j, k: a[k, i] * b[j, k],
            extents=(6, 16), index=lambda i, j: (j, i),
        )
    ]  # fmt: skip
    kernel = plain(computations)
    point = sketches(kernel, computations, Context(Small()))[0].default()
    assert "for mm.i in 4 vector" in str(point.schedule)
    for want, got in zip(results(kernel), results(point.schedule.kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_a_batch_dimension_may_stand_between_rows_and_columns(results):
    a, w = Buffer("A", (9, 3, 5), f32), Buffer("W", (3, 5, 8), f32)
    y = Buffer("Y", (9, 3, 8), f32)
    f = lambda i, n, j, k: a[i, n, k] * w[n, k, j]  # noqa: E731
    computations = [reduce_("bmm", y, (5,), "add", f)]
    kernel = plain(computations)
    best = sketches(kernel, computations, Context(Small(), {w}))[0]
    assert best.name == "tiled"
    for want, got in zip(
        results(kernel), results(best.default().schedule.kernel), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_exact_arithmetic_has_no_sketch_that_regroups():
    computations = softmax(4, 8)
    kernel = plain(computations)
    found = [
        s.name for s in sketches(kernel, computations, Context(Small(), exact=True))
    ]
    assert found == ["parts", "plain"]
    exact = sketches(kernel, computations, Context(Small(), exact=True))[0].default()
    assert "rfactor" not in str(exact.schedule.trace)


def test_windows_that_overlap_are_no_matrix_that_is_read_once():
    x, w, y = (
        Buffer("X", (6, 10, 10), f32),
        Buffer("W", (6, 3, 3), f32),
        Buffer("Y", (6, 8, 8), f32),
    )
    depthwise = reduce_(
        "dw", y, (3, 3), "add", lambda c, i, j, h, v: x[c, i + h, j + v] * w[c, h, v]
    )
    found = sketches(plain([depthwise]), [depthwise], Context(Small(), {w}))
    assert found[0].name == "tiled"


@pytest.mark.parametrize("shape", [(37,), (4, 9), (7, 5)], ids=str)
def test_a_total_is_made_of_parts(shape, results):
    x, y = Buffer("X", shape, f32), Buffer("Y", (1,), f32)
    f = (lambda z, i: x[i]) if len(shape) == 1 else (lambda z, i, j: x[i, j])
    computations = [reduce_("sum", y, shape, "add", f)]
    kernel = plain(computations)
    sketch = sketches(kernel, computations, Context(Small()))[0]
    assert sketch.default().values["sum.parts"] == 1
    point = sketch.at({"sum.parts": 2})
    assert "parallel" in str(point.schedule)
    verify(point.schedule.kernel)
    for run in (results, native):
        np.testing.assert_allclose(
            run(point.schedule.kernel), run(kernel), rtol=2e-5, atol=2e-5
        )


def test_large_totals_use_all_cores_by_default():
    x, y = Buffer("X", (1 << 18,), f32), Buffer("Y", (1,), f32)
    computations = [reduce_("sum", y, x.shape, "add", lambda z, i: x[i])]
    sketch = sketches(plain(computations), computations, Context(Small()))[0]
    assert sketch.default().values["sum.parts"] == Small().cores
