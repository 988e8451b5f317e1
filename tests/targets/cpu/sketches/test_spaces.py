"""Random points of every sketch: each computes the same as the plain nests, and each parameter in
the table of meanings occurs with another value than its default."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.compute.test_online_softmax import Attention
from tests.targets.cpu.sketches.machines import Small
from tests.targets.cpu.sketches.test_columns import reduced
from tests.targets.cpu.sketches.test_defaults import attention
from tests.targets.cpu.sketches.test_dot_products import product as bytes_product
from tests.targets.cpu.sketches.test_fusion import blur, perceptron
from tests.targets.cpu.sketches.test_interleaved import grouped
from tests.targets.cpu.sketches.test_register_transpose import permuted
from tests.targets.cpu.sketches.test_scans import running
from tests.targets.cpu.sketches.test_sketches import product, softmax
from tests.targets.cpu.sketches.test_turned import few_results
from tests.targets.cpu.sketches.test_windows import parts
from tests.targets.cpu.sketches.test_winograd import layer
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.online_softmax import online_softmax
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.parser import parse
from tilewright.loops.verify import verify
from tilewright.schedule.space import Point, Sketch
from tilewright.schedule.space.meanings import MEANINGS, ChoiceMeaning, meaning, page
from tilewright.targets.cpu.machine import CpuMachine, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.machines import MACHINES
from tilewright.testing.random_kernels import plain

PAGE = Path(__file__).parents[4] / "docs" / "schedules.md"
V3 = machine("x86-64-v3")


@dataclass(frozen=True, slots=True)
class Program:
    """kernel: the plain nests of the Computations. constants: of its parameters."""

    kernel: Kernel
    computations: Sequence[Computation] = ()
    constants: Collection[Buffer] = ()

    def sketches(self, on: CpuMachine) -> Sequence[Sketch]:
        at = Context(on, self.constants)
        return sketches(self.kernel, self.computations, at)


def of(computations: Sequence[Computation], *constants: Buffer) -> Program:
    return Program(plain(computations), computations, constants)


def convolution() -> Program:
    x, w = Buffer("x", (2, 6, 5, 3), float32), Buffer("w", (9, 3, 3, 3), float32)
    y = Buffer("y", (2, 6, 5, 9), float32)
    c = reduce_(
        "conv", y, (3, 3, 3), "add", lambda n, h, v, q, c, i, j:
        padded(x, (n, h + i - 1, v + j - 1, c), 0.0) * w[q, c, i, j],
    )  # fmt: skip
    return of([c], w)


def filtered() -> Program:
    steps, inputs, out, weights = layer(1, 6, 6, 16, 32, 2)
    return Program(lower("k", steps, [*inputs, out], [out]), steps, {weights})


def scores() -> Program:
    steps, inputs, out, _ = attention(9, 7, 8, scaled=True)
    return Program(lower("k", steps, [*inputs, out], [out]), steps)


def blocks_of_scores() -> Program:
    return streamed(Attention(keys=132, rows=9))


def few_queries() -> Program:
    return streamed(Attention(keys=132, rows=2, size=20))


def streamed(a: Attention) -> Program:
    steps = online_softmax(a.group, 66)
    assert steps is not None
    params = [a.q, a.k, a.v, a.m, a.y]
    return Program(lower("k", steps, params, [a.y]), list(steps))


def grouped_product() -> Program:
    steps, weights = grouped(8, 3, 8, 5)
    return of(steps, weights)


def given() -> Program:
    text = """
kernel copied(x: float32[6, 24]) -> y: float32[6, 24], z: float32[6]:
  for i in 6:
    for j in 24:
      y[i, j] = x[i, j] * 2.0
  for n in 6:
    z[n] = 0.0
    for m in 24:
      z[n] add= x[n, m]
"""
    return Program(parse(text.strip().splitlines()))


def doubled(n: int) -> Program:
    x, y = Buffer("x", (n,), float32), Buffer("y", (n,), float32)
    return of([map_("twice", y, lambda i: x[i] + x[i])])


def total(n: int) -> Program:
    x, y = Buffer("x", (n,), float32), Buffer("y", (1,), float32)
    return of([reduce_("sum", y, (n,), "add", lambda z, i: x[i])])


PROGRAMS: dict[str, Callable[[], Program]] = {
    "product": lambda: of(product(12, 17, 40)),
    "convolution": convolution,
    "few results": lambda: of(few_results()),
    "groups": grouped_product,
    "winograd": filtered,
    "attention": scores,
    "streaming attention": blocks_of_scores,
    "streaming attention in parts": blocks_of_scores,
    "few queries": few_queries,
    "softmax": lambda: of(softmax(7, 19)),
    "windows of vectors": lambda: of(parts(True, "max", 1)),
    "windows of rows": lambda: of(parts(False, "max", 1)),
    "columns": lambda: of(reduced((256, 6), (0,))),
    "permuted": lambda: of([permuted((130, 90), (1, 0))]),
    "scans": lambda: of([running((6, 20), 0)]),
    "rows of scans": lambda: of([running((9, 5), 1)]),
    "two products": lambda: of(perceptron(12, 8, 10, 9)),
    "blur": lambda: of(blur(10, 11)),
    "bytes": lambda: of(bytes_product(6, 20, 16)),
    "map": lambda: doubled(3000),
    "total": lambda: total(999),
    "given": given,
}
ON = {
    "winograd": V3,
    "permuted": V3,
    "bytes": MACHINES["cascadelake"].target().machine,
    "streaming attention in parts": MACHINES["embedded"].target().machine,
}


def drawn(sketch: Sketch, r: random.Random) -> Point | None:
    """A random point; None where a primitive refuses it."""
    try:
        return sketch.random(r)
    except ScheduleError:
        return None


def changed(point: Point) -> set[ChoiceMeaning]:
    """The rows of the table whose parameters have another value than their default."""
    found = {meaning(p.name) for p in point.parameters if p.value != p.default}
    assert None not in found, point.values
    return {m for m in found if m is not None}


def checked(name: str, results, on: CpuMachine, draws: int) -> set[ChoiceMeaning]:
    """Compare random points of sketches with the plain nests. Returns the changed parameters."""
    r, program = random.Random(name), PROGRAMS[name]()
    want = results(program.kernel)
    met: set[ChoiceMeaning] = set()
    for sketch in program.sketches(on):
        points = [drawn(sketch, r) for _ in range(draws)]
        for point in [p for p in points if p is not None]:
            verify(point.schedule.kernel)
            got = results(point.schedule.kernel)
            for a, b in zip(got, want, strict=True):
                shown = f"{sketch.name} {point.values}"
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=shown)
            met |= changed(point)
    return met


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_points_compute_the_same(name: str, results) -> None:
    assert checked(name, results, ON.get(name, Small()), 3)


@pytest.mark.slow
@pytest.mark.parametrize("on", MACHINES)
def test_many_random_points_compute_the_same(on: str, results) -> None:
    described = MACHINES[on].target().machine
    for name in PROGRAMS:
        assert checked(name, results, described, 8)


# Parameters of kernels with their own tests: test_register_transpose, test_fusion,
# test_narrow_rows.
ELSEWHERE = {
    "pack.<buffer>.strip",
    "slide.<buffer>",
    "convert.<buffer>",
    "convert.<buffer>.made",
    "convert.<buffer>.tiles",
}


def offered(sketch: Sketch, r: random.Random) -> set[str]:
    """The forms of parameters with several values, of the default and of random points."""
    found = [drawn(sketch, r) for _ in range(4)]
    with suppress(
        ScheduleError
    ):  # a sketch that no rule takes may have no default here
        found.append(sketch.default())
    asked = [p for point in found if point is not None for p in point.parameters]
    known = {meaning(p.name) for p in asked if len(p.candidates) > 1}
    return {m.form for m in known if m is not None}


@pytest.mark.slow
def test_every_parameter_of_the_table_is_met() -> None:
    found: set[str] = set()
    for name, make in PROGRAMS.items():
        for sketch in make().sketches(ON.get(name, Small())):
            found |= offered(sketch, random.Random(name))
    assert {m.form for m in MEANINGS} - found == ELSEWHERE


def test_the_page_has_the_table() -> None:
    assert page() in PAGE.read_text(encoding="utf-8")


def test_a_name_is_of_its_first_form() -> None:
    forms = {name: meaning(name) for name in ("pack.x.tiles", "pack.x", "fuse.y.i")}
    assert {name: m and m.form for name, m in forms.items()} == {
        "pack.x.tiles": "pack.<buffer>.tiles",
        "pack.x": "pack.<buffer>",
        "fuse.y.i": "fuse.<last>.<dim>",
    }
    assert meaning("PRT.COR") is None
