"""What is decided on other machines: tiles fit, caches are not overrun, no thread is idle.

The figures are what a schedule asks of the machine it was made for, by counting; so they hold for
processors that no test runs on. A core gets some 10 bytes per cycle from behind its second cache
(Cascade Lake), and two vector multiply-adds per cycle want to be fed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.sketches.test_sketches import product
from tilewright.base.dtypes import float32
from tilewright.base.events import record
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.driver.compilation import optimize
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan, questions
from tilewright.expr.nodes import Buffer, Expr, Select, const
from tilewright.loops.walk import loops_of
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.split_sums import split_deep_sums
from tilewright.plan.passes.split_windows import split_windows
from tilewright.schedule.space import Point
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine as named
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.machines import MACHINES
from tilewright.testing.networks import NETWORKS
from tilewright.testing.random_kernels import plain

FAR = 10.0  # bytes per cycle of a core from behind its second cache
SIZES = [256, 512, 768, 1024, 2048]


def decided(name: str, m: int, n: int, k: int) -> tuple[Point, Any]:
    """The default schedule of a product of two inputs, and the machine."""
    machine = MACHINES[name].target().machine  # type: ignore[attr-defined]
    computations = product(m, n, k)
    sketch = sketches(plain(computations), computations, Context(machine))[0]
    return sketch.default(), machine


@pytest.mark.parametrize("written", [1, 4, 8])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 96), (5, 40, 96)])
def test_steps_of_products_are_written_out_where_that_gains(
    m: int, n: int, k: int, written: int
) -> None:
    """The default; a sum without products, and one of an odd number of them, keep their loops."""
    machine = replace(named("x86-64-v4"), measured=(("written", written),))

    def steps(computations: list[Computation]) -> int:
        found = sketches(plain(computations), computations, Context(machine))[0]
        return int(found.default().values.get(f"{computations[0].name}.unroll", 1))

    assert steps(product(m, n, k)) == written
    assert steps(product(m, n, 97 * 11)) == 1
    x, y = Buffer("X", (k, m, n), float32), Buffer("Y", (m, n), float32)
    assert steps([reduce_("sum", y, (k,), "add", lambda i, j, n: x[n, i, j])]) == 1


def far_bytes(point: Point, machine: Any, m: int, n: int, k: int) -> float:
    """Bytes per cycle from behind the second cache, at two vector multiply-adds per cycle."""
    rows, vectors = point.values["mm.tile"]
    lanes = machine.lanes(float32)
    width, panel = vectors * lanes, k * vectors * lanes * 4
    packed = point.values["pack.B"]
    costs = cost_model(machine)
    full = costs.full * machine.l2
    kept = panel <= full and (packed or costs.stays(k, 4 * n))
    columns = 0 if kept else 4 / rows
    return 2 * lanes * (columns + (0 if m * k * 4 <= full else 4 / width))


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MACHINES)
def test_products_stay_within_what_the_machine_gives(name: str, size: int) -> None:
    point, machine = decided(name, size, size, size)
    rows, vectors = point.values["mm.tile"]
    assert rows * vectors + vectors + 1 <= machine.registers
    assert rows * vectors >= 6, "too few accumulators to hide what an instruction takes"
    few = (
        size / rows < cost_model(machine).panel_uses
    )  # a copy of the panels would cost as much as it gains
    assert far_bytes(point, machine, size, size, size) <= FAR * (1.5 if few else 1.0)
    parallel = [f for f in loops_of(point.schedule.kernel.body) if f.kind == "parallel"]
    assert parallel
    for f in parallel:
        assert f.trips is not None
        turns = math.ceil(f.trips / machine.cores)
        assert f.trips / (turns * machine.cores) >= 0.7, f"{f.var.name}: idle threads"


def test_the_count_sees_panels_that_displace_themselves() -> None:
    """What was decided before: 1024 rows 4 kB apart, never copied."""
    point, machine = decided("cascadelake", 1024, 1024, 1024)
    sketch = sketches(
        plain(product(1024, 1024, 1024)), product(1024, 1024, 1024), Context(machine)
    )
    before = sketch[0].at({**point.values, "pack.B": False})
    assert far_bytes(before, machine, 1024, 1024, 1024) > FAR


@pytest.mark.parametrize(
    ("rows", "pitch", "l2", "kept"),
    [(1024, 4096, 1 << 20, False), (512, 2048, 1 << 20, False), (768, 3072, 1 << 20, True),
     (256, 1024, 1 << 20, True), (1024, 4160, 1 << 20, True), (200, 4096, 1 << 20, True),
     (512, 2048, 1 << 18, False), (5000, 0, 1 << 18, True)],
)  # fmt: skip
def test_rows_a_power_of_two_apart_share_few_places(
    rows: int, pitch: int, l2: int, kept: bool
) -> None:
    assert cost_model(replace(named("x86-64-v4"), l2=l2)).stays(rows, pitch) is kept


# -- deep sums


def dilated(channels: int, out: int, size: int, dilation: int) -> Computation:
    """A 3x3 convolution with padding of one image."""
    x, w = (
        Buffer("x", (channels, size, size), float32),
        Buffer("w", (out, channels, 3, 3), float32),
    )
    y = Buffer("y", (out, size, size), float32)

    def value(o, i, j, c, m, n):  # type: ignore[no-untyped-def]
        a, b = i + m * dilation - dilation, j + n * dilation - dilation
        inside = (
            (const(0) <= a) & (a < const(size)) & (const(0) <= b) & (b < const(size))
        )
        return Select(inside, x[c, a, b], const(0.0, float32)) * w[o, c, m, n]

    return reduce_("conv", y, (channels, 3, 3), "add", value)


DEEP_SUM = 256


def in_parts(name: str, c: Computation) -> list[Any]:
    target = MACHINES[name].target()
    weights = [b for b in c.inputs if b.name == "w"]
    stage = FusionGroup("conv", (c,), ("conv",))
    with record() as events:
        steps = split_deep_sums(
            [stage], weights, questions(target).estimated_cost, DEEP_SUM
        )
    told = [e.fields["parts"] for e in events if e.kind == "split-sum"]
    assert len(steps) == 1 + len(told) and (told or steps == [stage])
    return told


@pytest.mark.parametrize("name", MACHINES)
def test_deep_convolutions_are_summed_in_parts_that_a_cache_keeps(name: str) -> None:
    machine = MACHINES[name].target().machine  # type: ignore[attr-defined]
    c = dilated(2048, 256, 28, 12)
    told = in_parts(name, c)
    if machine.l2 >= 16 << 20:  # that keeps most of it as it is
        return
    (parts,) = told
    lanes = machine.lanes(float32)
    assert 2048 // parts * 9 * lanes * 4 <= cost_model(machine).full * machine.l2
    assert 2048 * 9 // parts >= DEEP_SUM


@pytest.mark.parametrize("name", ["haswell", "cascadelake", "znver4", "large-caches"])
def test_what_a_cache_keeps_is_summed_at_once(name: str) -> None:
    assert not in_parts(name, dilated(16, 32, 14, 1))


def channels_last(channels: int, size: int, dilation: int) -> Computation:
    """A 3x3 convolution whose padding is stored."""
    side = size + 2 * dilation
    x = Buffer("x", (side, side, channels), float32)
    w = Buffer("w", (32, 3, 3, channels), float32)
    y = Buffer("y", (size, size, 32), float32)

    def value(i, j, o, m, n, c):  # type: ignore[no-untyped-def]
        return x[i + m * dilation, j + n * dilation, c] * w[o, m, n, c]

    return reduce_("conv", y, (3, 3, channels), "add", value)


@pytest.mark.parametrize("name", ["haswell", "alderlake", "znver4"])
def test_columns_of_a_window_without_gaps_are_one_piece(name: str) -> None:
    """A window with gaps reads nine pieces, not three; then parts of a sum may pay."""
    cost = questions(MACHINES[name].target()).estimated_cost
    dense, gaps = (channels_last(256, 56, dilation) for dilation in (1, 2))
    times = [cost((c,)) for c in (dense, gaps)]
    assert times[0] is not None and times[1] is not None and times[0] < times[1]
    assert not in_parts(name, dense)
    assert bool(in_parts(name, gaps)) is (name == "alderlake")


def plans(name: str, math: str) -> Counter[str]:
    """The kinds of events in planning a network for a machine with a small second cache."""
    target = MACHINES["cascadelake"].target()
    with record() as events:
        graph = optimize(NETWORKS[name]().graph, Options(math=math), target)
        make_plan(graph, target, math)
    return Counter(e.kind for e in events)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("deep_convolution", "split-sum"), ("dilated_head", "split-window")],
)
def test_the_driver_does_so_by_default(name: str, kind: str) -> None:
    assert plans(name, "default")[kind] == 1
    assert plans(name, "exact")[kind] == 0


# -- windows over padding


def by_position(name: str, c: Computation) -> bool:
    """Whether a machine computes a convolution by window position."""
    target = MACHINES[name].target()
    weights = {b: np.ones(b.shape, np.float32) for b in c.inputs if b.name == "w"}
    asked = questions(target)
    group = FusionGroup("conv", (c,), ("conv",))
    steps = split_windows(
        [group], weights, asked.estimated_cost, asked.costs.window_gain
    )
    return len(steps) > 1


# each width of vectors
@pytest.mark.representatives("embedded", "nehalem", "zen2", "sapphirerapids")
@pytest.mark.parametrize("name", MACHINES)
def test_wide_dilations_over_small_images_are_computed_by_position(name: str) -> None:
    """Of 9 products per result, 1.7 are with data at 12 apart over 14, 7.7 at 1 apart."""
    assert by_position(name, dilated(960, 256, 14, 12))
    assert by_position(name, dilated(64, 64, 28, 12))
    assert not by_position(name, dilated(64, 64, 14, 1))
    assert not by_position(name, dilated(64, 64, 56, 2))


def gates(weights: tuple[str, ...]) -> list[Computation]:
    """Three sums of each place, which one map joins; the order of the weights' axes."""
    sizes = {"k": 64, "g": 3, "n": 48}
    x = Buffer("X", (4, 64), float32)
    w = Buffer("W", tuple(sizes[a] for a in weights), float32)
    s, y = Buffer("S", (4, 3, 48), float32), Buffer("Y", (4, 48), float32)

    def term(b: Expr, g: Expr, n: Expr, k: Expr) -> Expr:
        at = {"k": k, "g": g, "n": n}
        return x[b, k] * w[tuple(at[a] for a in weights)]

    return [
        reduce_("s", s, (64,), "add", term),
        map_("y", y, lambda b, n: s[b, 0, n] * s[b, 1, n] + s[b, 2, n]),
    ]


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(
    ("weights", "chosen"), [("kgn", "parts"), ("gkn", "parts"), ("gnk", "rows")]
)
def test_sums_are_not_along_rows_that_another_operand_is_read_across(
    weights: str, chosen: str, name: str
) -> None:
    machine = MACHINES[name].target().machine  # type: ignore[attr-defined]
    made = gates(tuple(weights))
    assert sketches(plain(made), made, Context(machine))[0].name == chosen
