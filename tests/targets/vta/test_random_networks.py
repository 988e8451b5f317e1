"""Random networks: the machine's results are those of the CPU's integers, by either arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.targets.vta.networks import Network
from tilewright.frontends.onnx import load
from tilewright.graph.nodes import Graph

ALONE = ("Relu", "Sigmoid", "Neg")


@dataclass
class Model:
    """Statements in ONNX's text form, the shapes of what they make, and weights."""

    lines: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: dict[str, NDArray] = field(default_factory=dict)

    def add(self, call: str, shape: tuple[int, ...]) -> None:
        name = f"t{len(self.shapes)}"
        self.lines.append(f"{name} = {call}")
        self.shapes[name] = shape

    def weight(self, shape: tuple[int, ...], seed: int) -> str:
        name = f"w{len(self.weights)}"
        array = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(
            max(shape[-1], 4)
        )
        self.weights[name] = array.astype(np.float32)
        return name


def window(
    draw: st.DrawFn, size: tuple[int, ...]
) -> tuple[str, list[int], tuple[int, ...]]:
    """Attributes, the kernel and the extents of the result."""
    kernel = [draw(st.integers(1, min(3, n))) for n in size]
    strides = [draw(st.integers(1, 2)) for _ in size]
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    out = tuple(
        (n + a + b - k) // s + 1
        for n, k, s, a, b in zip(size, kernel, strides, pads[:2], pads[2:], strict=True)
    )
    return f"strides={strides}, pads={pads}", kernel, out


def step(draw: st.DrawFn, m: Model) -> None:
    """One more operation on the last tensor."""
    name, shape = list(m.shapes.items())[-1]
    batch, channels, *size = shape
    kind = draw(st.sampled_from(["conv", "conv", "depthwise", "pool", "add", *ALONE]))
    seed = draw(st.integers(0, 99))
    if kind in ALONE:
        m.add(f"{kind}({name})", shape)
    elif kind == "add":
        same = [n for n, s in m.shapes.items() if s == shape]
        m.add(f"Add({name}, {draw(st.sampled_from(same))})", shape)
    elif kind == "pool":
        attributes, kernel, out = window(draw, tuple(size))
        m.add(
            f"MaxPool<kernel_shape={kernel}, {attributes}>({name})",
            (batch, channels, *out),
        )
    else:
        attributes, kernel, out = window(draw, tuple(size))
        groups = channels if kind == "depthwise" else 1
        outputs = (
            channels if kind == "depthwise" else draw(st.sampled_from([1, 5, 16, 20]))
        )
        w = m.weight((outputs, channels // groups, *kernel), seed)
        b = f", {m.weight((outputs,), seed)}" if draw(st.booleans()) else ""
        m.add(
            f"Conv<group={groups}, {attributes}>({name}, {w}{b})",
            (batch, outputs, *out),
        )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    m = Model()
    shape = tuple(
        draw(st.integers(low, high)) for low, high in ((1, 2), (1, 18), (2, 9), (2, 9))
    )
    m.shapes["x"] = shape
    for _ in range(draw(st.integers(2, 5))):
        step(draw, m)
    name, shape = list(m.shapes.items())[-1]
    columns = int(np.prod(shape[1:]))
    w, b = m.weight((columns, 7), 0), m.weight((7,), 1)
    body = "\n".join((*m.lines, f"f = Flatten({name})", f"y = Gemm(f, {w}, {b})"))
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    n (float{list(m.shapes["x"])} x) => (float[?, 7] y) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    for weight, array in m.weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, weight))
    return load(model)


@settings(deadline=None, max_examples=4)
@given(
    graphs(),
    st.sampled_from(["shift", "multiplier", "channel"]),
    st.sampled_from([1, 2]),
)
def test_the_machine_and_the_cpu_agree(graph: Graph, by: str, threads: int) -> None:
    check(graph, by, threads)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    graphs(),
    st.sampled_from(["shift", "multiplier", "channel"]),
    st.sampled_from([1, 2]),
)
def test_many_of_them(graph: Graph, by: str, threads: int) -> None:
    check(graph, by, threads)


def check(graph: Graph, by: str, threads: int) -> None:
    (x,) = graph.inputs
    inputs = {
        x.name: np.random.default_rng(0).standard_normal(x.extents).astype(np.float32)
    }
    network = Network(graph, [inputs], by=by, threads=threads)
    assert any(p.device == "vta" for p in network.placements), network.placements
    (y,) = network(inputs)
    (same,) = network.on_cpu(inputs)
    np.testing.assert_array_equal(y, same)
    again = Network(graph, [], network.scales, by)
    np.testing.assert_array_equal(y, again(inputs)[0])
