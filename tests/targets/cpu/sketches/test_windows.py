"""The sketch of poolings that go axis by axis: its points keep the meaning; when it is taken."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.nodes import Computation
from tilewright.compute.separable_windows import separate
from tilewright.loops.lower import lower
from tilewright.operators import Buffer, map_, padded, reduce_
from tilewright.schedule.space import Sketch
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.rules import estimated_cost

AVX2 = machine("x86-64-v3")


def parts(last: bool, op: str, stride: int, extent: int = 9) -> list[Computation]:
    """A pooling 3x3 with a border of one, with a map behind a sum. last: channels last."""
    outputs = (extent - 1) // stride + 1
    x, t, y = (
        Buffer(n, (e, e, 10) if last else (3, e, e), float32)
        for n, e in (("x", extent), ("t", outputs), ("y", outputs))
    )

    def value(*i: object) -> object:
        *at, m, n = i
        c, p, q = (at[2], at[0], at[1]) if last else (at[0], at[1], at[2])
        place = (p * stride + m - 1, q * stride + n - 1)  # type: ignore[operator]
        return padded(
            x, (*place, c) if last else (c, *place), -1.0 if op == "max" else 0.0
        )

    found = separate(reduce_("pool", t if op == "add" else y, (3, 3), op, value))
    assert found is not None
    return [*found, map_("mean", y, lambda *i: t[i] / 9.0)] if op == "add" else [*found]


def sketch(steps: list[Computation], at: Context) -> Sketch:
    x, y = steps[0].accesses[0].buffer, steps[-1].outputs[0].tensor
    best = sketches(lower("pool", steps, params=[x, y], outputs=[y]), steps, at)[0]
    assert best.name == "windows"
    return best


@pytest.mark.covering(1)
@pytest.mark.parametrize("op", ["max", "add"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_points(last: bool, stride: int, op: str) -> None:
    small = replace(AVX2, l1=512)  # so that rows go by in parts
    for at in (Context(AVX2), Context(small)):
        point = sketch(parts(last, op, stride), at)
        for found in (point.default(), point.random(random.Random(stride))):
            found.schedule.verify()


def test_rows_as_long_as_a_cache_line_are_not_read_again_for_little() -> None:
    wide = replace(host(), vector_bits=512)
    near, strided = (parts(False, "add", stride, 40) for stride in (1, 2))
    assert classify(near).name == classify(strided).name == "windows"
    assert estimated_cost(near, Context(wide)) is None
    assert estimated_cost(near, Context(AVX2)) is not None
    assert estimated_cost(strided, Context(wide)) is not None
    assert estimated_cost(parts(True, "add", 1, 40), Context(wide)) is not None
