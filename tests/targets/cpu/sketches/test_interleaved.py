"""Results that interleave, as shuffled channels do: equal, and in lines of one thread each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tests.targets.cpu.sketches.test_sketches import native
from tilewright.base.dtypes import DType, bfloat16, float32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow
from tilewright.expr.nodes import Add, Buffer, const
from tilewright.ir.node import substitute
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Unit, loop
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of, walk
from tilewright.schedule.space import Sketch
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, register_transpose, sketches
from tilewright.testing.random_kernels import plain

UNTOUCHED = 77.0
LINE = Small().line


@dataclass(frozen=True, slots=True)
class Caches(Small):
    """Holds what the tiles of all groups read and make."""

    l1: int = 1 << 13
    l2: int = 1 << 16


def grouped(
    rows: int,
    groups: int,
    width: int,
    depth: int,
    shuffled: bool = True,
    dtype: DType = float32,
) -> tuple[list[Computation], Buffer]:
    """A product per group, and a map that stores the groups' results shuffled or not; weights."""
    x, w = (
        Buffer("X", (rows, groups, depth), float32),
        Buffer("W", (groups, width, depth), float32),
    )
    t, b = (
        Buffer("T", (rows, groups, width), float32),
        Buffer("B", (groups, width), float32),
    )
    total = reduce_(
        "mm", t, (depth,), "add", lambda r, g, j, k: x[r, g, k] * w[g, j, k]
    )
    value = lambda r, g, j: cast(t[r, g, j] + b[g, j], dtype)  # noqa: E731
    if shuffled:
        y = Buffer("Y", (rows, width, groups), dtype)
        behind = map_("y", y, lambda r, j, g: value(r, g, j))
    else:
        behind = map_("y", Buffer("Y", t.shape, dtype), value)
    aligned = follow(total, behind)
    assert aligned is not None
    return [total, aligned], w


def sketch(computations: list[Computation], w: Buffer, machine: Small) -> Sketch:
    found = sketches(plain(computations), computations, Context(machine, {w}))[0]
    assert found.name == "tiled"
    return found


def lines(kernel: Kernel, share: int) -> set[int]:
    """The cache lines of the output that one of two threads writes."""
    outer = next(f for f in loops_of(kernel.body) if f.kind == "parallel")
    assert outer.trips is not None
    first = -(-outer.trips // 2)
    start, count = (0, first) if share == 0 else (first, outer.trips - first)
    body = substitute(outer.body, {outer.var: Add(outer.var, const(start))})
    whole = substitute(kernel.body, {outer: loop(outer.var, count, body)})
    part = replace(kernel, body=whole)
    arrays = {p: np.zeros(p.shape, p.dtype.numpy) for p in kernel.params}
    (out,) = kernel.outputs
    arrays[out].fill(UNTOUCHED)
    run(part, arrays)
    written = np.flatnonzero(arrays[out].reshape(-1) != UNTOUCHED)
    return set((written * out.dtype.itemsize // LINE).tolist())


SHAPES = [(28, 4, 36), (20, 2, 16), (49, 8, 17), (36, 2, 48)]


@pytest.mark.parametrize(("rows", "groups", "width"), SHAPES, ids=str)
def test_two_threads_hardly_share_a_line(rows, groups, width):
    computations, w = grouped(rows, groups, width, 6)
    point = sketch(computations, w, Caches()).at({"mm.parallel": True})
    assert point.values["mm.interleaved"]
    first, second = (lines(point.schedule.kernel, n) for n in (0, 1))
    assert len(first & second) <= rows  # where one's columns end


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_both_choices_agree(whole, groups, dtype, results):
    computations, w = grouped(23, groups, 18, 5, dtype=dtype)
    kernel = plain(computations)
    schedule = sketch(computations, w, Caches()).at({"mm.interleaved": whole}).schedule
    after = schedule.kernel
    verify(after)
    assert (schedule.loops.index("y.g") > schedule.loops.index("y.j.o")) == whole
    for a, *both in zip(results(kernel), results(after), native(after), strict=True):
        for b in both:
            np.testing.assert_allclose(
                b, a, rtol=2e-2 if dtype is bfloat16 else 2e-5, atol=2e-5
            )


def test_groups_within_rows_leave_the_rows_to_the_threads():
    computations, w = grouped(64, 4, 40, 6, shuffled=False)
    point = sketch(computations, w, Caches()).at({"mm.parallel": True})
    assert "mm.interleaved" not in point.values
    outer = next(
        f for f in loops_of(point.schedule.kernel.body) if f.kind == "parallel"
    )
    assert outer.var.name.startswith("y.r.o")
    first, second = (lines(point.schedule.kernel, n) for n in (0, 1))
    assert (
        len(first & second) <= 40 * 4 // (LINE // 4) + 2
    )  # of the row where the threads meet


def test_what_does_not_fit_the_caches_stays_as_it_was():
    computations, w = grouped(23, 4, 18, 5)
    assert sketch(computations, w, Small()).default().values["mm.interleaved"] is False


@pytest.mark.parametrize("channels", [16, 24, 21])
def test_phases_leave_their_tiles_in_rows_of_results(channels, results):
    """As in a transposed convolution stored channel-first: `y[c, i, 2 * j + q]`."""
    x, w = Buffer("X", (6, 9, 23), float32), Buffer("W", (2, channels, 6), float32)
    t, y = (
        Buffer("T", (9, 23, 2, channels), float32),
        Buffer("Y", (channels, 9, 23, 2), float32),
    )
    total = reduce_("mm", t, (6,), "add", lambda i, j, q, c, k: x[k, i, j] * w[q, c, k])
    behind = follow(total, map_("y", y, lambda c, i, j, q: t[i, j, q, c] + 1.0))
    assert behind is not None
    kernel = plain([total, behind])
    after = (
        sketch([total, behind], w, Caches())
        .at({"mm.interleaved": True})
        .schedule.kernel
    )
    verify(after)
    (unit,) = (found.stmt for found in walk(after.body) if isinstance(found.stmt, Unit))
    assert all(
        size > 2 for size in unit.intrinsic.sizes
    )  # rows are not of two phases only
    for a, b in zip(results(kernel), native(after), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def one_channel(phases: int, channels: int, images: int) -> list[Computation]:
    """Windows of 1x3 over a batch of images of one channel, a few results per pixel, rounded."""
    x, w = (
        Buffer("X", (images, 8, phases + 2), float32),
        Buffer("W", (channels, 3), float32),
    )
    t, y = (
        Buffer(name, (images, 8, phases, channels), dtype)
        for name, dtype in (("T", float32), ("Y", bfloat16))
    )
    total = reduce_(
        "mm", t, (3,), "add", lambda n, i, j, c, k: x[n, i, j + k] * w[c, k]
    )
    return [total, map_("y", y, lambda *i: cast(t[i], bfloat16))]


def transposed_sizes(kernel: Kernel) -> set[tuple[int, ...]]:
    """Of the tiles that leave their buffers transposed."""
    units = (found.stmt for found in walk(kernel.body))
    return {u.intrinsic.sizes for u in units if isinstance(u, Unit) and u.intrinsic}


@pytest.mark.parametrize("mcpu", ["znver4", "sapphirerapids"])
def test_a_tile_of_many_results_leaves_in_parts(mcpu):
    """All results of a row of pixels by all images would be too much code for one transposition."""
    group = one_channel(28, 6, 64)
    at = Context(machine(mcpu), {group[0].inputs[1]})
    point = sketches(plain(group), group, at)[0].at(
        {"mm.vector": "n", "mm.interleaved": True, "mm.tile": (6, 4)}
    )
    largest = max(transposed_sizes(point.schedule.kernel), key=math.prod)
    assert largest == (64, 56)  # of 168 rows
    assembly(point.schedule.kernel, at.machine)


def test_parts_of_such_a_tile_overlap(monkeypatch, results):
    """Where they do not divide the rows: the results are the same."""
    monkeypatch.setattr(register_transpose, "LARGEST", 128)
    group = one_channel(12, 3, 16)
    kernel = plain(group)
    at = Context(machine("znver4"), {group[0].inputs[1]})
    after = (
        sketches(kernel, group, at)[0]
        .at({"mm.vector": "n", "mm.interleaved": True})
        .schedule.kernel
    )
    verify(after)
    assert (16, 8) in transposed_sizes(after)  # of 36 rows
    for a, b in zip(results(kernel), results(after), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-2, atol=2e-5)
