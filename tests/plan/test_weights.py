"""Weights of a device's convolutions with channels last: the same results, and which ones stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.interp import evaluate
from tilewright.plan.nodes import HOST, DeviceCopy, FusionGroup, Plan
from tilewright.plan.passes.weights import weights_last
from tilewright.plan.verify import verify

GPU = "gpu"


def cost(group: Sequence[Computation], constants: Collection[Buffer] = ()) -> float:
    """Weights whose last axis is the third one are slow."""
    (c,) = group
    return 100.0 if any(b.shape[-1] == 3 for b in c.inputs if b in constants) else 50.0


def alike(group: Sequence[Computation], constants: Collection[Buffer] = ()) -> float:
    return 100.0


def plan(depthwise: bool = False) -> Plan:
    """A convolution of a row on a device."""
    channels, window = 4, 3
    x = Buffer("x", (channels, 8), float32)
    w = Buffer("w", (5, channels, window), float32)
    out = Buffer("y_gpu", (5, 9 - window), float32)

    def value(m, i, *r):
        if depthwise:
            return x_gpu[m % channels, i + r[0]] * w[m, m % channels, r[0]]
        return x_gpu[r[0], i + r[1]] * w[m, r[0], r[1]]

    x_gpu = Buffer("x_gpu", x.shape, float32)
    sums = (window,) if depthwise else (channels, window)
    c = reduce_("conv", out, sums, "add", value)
    y = Buffer("y", out.shape, float32)
    names = {b: Value(b.name, float32, b.shape) for b in (x, w, y)}
    array = np.random.default_rng(0).integers(-9, 9, w.shape).astype(np.float32)
    graph = Graph("g", (names[x],), (names[y],), (), {names[w]: array})
    return Plan(
        graph,
        (
            DeviceCopy(x, x_gpu),
            FusionGroup("conv", (c,), device=GPU),
            DeviceCopy(out, y),
        ),
        {v: b for b, v in names.items()},
        {w: array},
        dict.fromkeys((x_gpu, w, out), GPU),
    )


def results(p: Plan) -> np.ndarray:
    verify(p)
    x = np.random.default_rng(1).integers(-9, 9, p.graph.inputs[0].shape)
    (found,) = evaluate(p, {"x": x.astype(np.float32)}, OnnxFallback())
    return found


def read(p: Plan) -> Buffer:
    """The weights that the convolution reads."""
    (group,) = p.groups
    (w,) = (b for b in group.reads if b in p.data)
    return w


def test_weights_are_transposed_where_that_pays():
    before = plan()
    with events.record() as log:
        after = weights_last(before, GPU, cost, 1.05)
    (event,) = [e for e in log if e.kind == "weights-last"]
    assert event.fields == {"tensor": "w", "readers": ["conv"]}
    w = read(after)
    assert w.shape == (5, 3, 4)
    assert after.devices[w] == GPU
    assert np.array_equal(results(after), results(before))


def also_by_a_map(p: Plan) -> Plan:
    w = read(p)
    twice = map_("twice", Buffer("z", w.shape, float32), lambda i, j, k: w[i, j, k] * 2)
    return replace(p, steps=(*p.steps, FusionGroup("twice", (twice,), device=GPU)))


def as_a_result(p: Plan) -> Plan:
    w = read(p)
    there = Buffer("v", w.shape, float32)
    return replace(p, steps=(*p.steps, DeviceCopy(w, there)))


def on_the_host(p: Plan) -> Plan:
    return replace(p, devices={**p.devices, read(p): HOST})


STAY = {
    "no gain": (plan(), alike),
    "another device": (on_the_host(plan()), cost),
    "a map reads them": (also_by_a_map(plan()), cost),
    "they are copied": (as_a_result(plan()), cost),
    "channels are not summed": (plan(depthwise=True), cost),
}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name):
    before, asked = STAY[name]
    with events.record() as log:
        assert weights_last(before, GPU, asked, 1.05) is before
    assert not log
