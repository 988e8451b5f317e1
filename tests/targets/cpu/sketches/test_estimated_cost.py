"""Expected times are nanoseconds, near what the arithmetic takes at the peak of the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.targets.cpu.sketches.test_sketches import product
from tests.targets.cpu.sketches.test_windows import parts
from tests.targets.cpu.sketches.test_winograd import layer
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, estimated_cost

AVX2 = machine("x86-64-v3")
PEAK = 2 * AVX2.lanes(float32) * AVX2.clock  # multiply-adds per nanosecond


def pooled() -> list[Computation]:
    x, y = Buffer("x", (64, 34, 34), float32), Buffer("y", (64, 32, 32), float32)
    return [reduce_("pool", y, (3, 3), "max", lambda c, p, q, m, n: x[c, p + m, q + n])]


def doubled() -> list[Computation]:
    x, y = Buffer("x", (64, 1024), float32), Buffer("y", (64, 1024), float32)
    return [map_("double", y, lambda i, j: x[i, j] + x[i, j])]


# Computations, the kind they are, and the operations on elements that they need.
FORMS: dict[str, tuple[str, Sequence[Computation], int]] = {
    "product": ("tiled", product(256, 256, 256), 256**3),
    "windows": ("windows", parts(True, "max", 1, 40), 2 * 2 * 40 * 40 * 10),
    "whole windows": ("tiled", pooled(), 9 * 64 * 32 * 32),
    "winograd": ("winograd", layer(1, 28, 28, 64, 64)[0], 16 * 14 * 14 * 64 * 64),
    "map": ("map", doubled(), 64 * 1024),
}


@pytest.mark.parametrize("name", FORMS)
def test_times_are_nanoseconds(name: str) -> None:
    kind, computations, operations = FORMS[name]
    assert classify(computations).name == kind
    expected = estimated_cost(computations, Context(AVX2))
    assert expected is not None
    assert 0.7 < expected / (operations / PEAK) < 5
    slow = estimated_cost(computations, Context(replace(AVX2, clock=AVX2.clock / 2)))
    assert slow is not None and math.isclose(slow, 2 * expected)


@pytest.mark.parametrize("machine_name", ["x86-64-v3", "znver4", "znver5"])
@pytest.mark.parametrize("name", FORMS)
def test_it_does_not_matter_which_part_of_a_tensor_is_filled(
    name: str, machine_name: str
) -> None:
    """See `plan.questions.Cost`: passes ask once for all layers of a dense block."""
    *before, last = FORMS[name][1]
    (out,) = last.outputs
    tensor = out.tensor
    larger = Buffer(tensor.name, (tensor.shape[0] + 99, *tensor.shape[1:]), float32)

    def cost(place: int) -> float | None:
        index = (out.index[0] + place, *out.index[1:])
        moved = replace(out, tensor=larger, index=index)
        filled = [*before, replace(last, outputs=(moved,))]
        return estimated_cost(filled, Context(machine(machine_name)))

    assert len({cost(place) for place in (1, 2, 3, 16, 99)}) == 1


@pytest.mark.parametrize("name", ["x86-64-v3", "znver4", "znver5"])
def test_groups_that_fill_a_part_of_a_vector_are_charged_for_it_once(name: str) -> None:
    """Four columns of 32 groups: two vectors of four lanes issue per cycle on all of these."""
    x, w = Buffer("x", (56, 56, 32, 36), float32), Buffer("w", (32, 4, 36), float32)
    y = Buffer("y", (56, 56, 32, 4), float32)
    one = reduce_(
        "conv", y, (36,), "add", lambda p, q, g, j, k: x[p, q, g, k] * w[g, j, k]
    )
    at = Context(machine(name), constants={w})
    expected = estimated_cost([one], at)
    assert expected is not None
    peak = 2 * 4 * at.machine.clock  # multiply-adds per nanosecond
    assert 0.7 < expected / (math.prod(d.extent for d in one.dims) / peak) < 2.5
