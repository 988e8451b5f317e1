"""Quantised networks: products on the machine, bit for bit the CPU's, and near the float model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import tilewright as tw
from tilewright.base.errors import InputError
from tilewright.cli import resnet
from tilewright.frontends.onnx import load
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph
from tilewright.loops.lower import lower
from tilewright.targets.vta.layers import Layer
from tilewright.targets.vta.network import Network, Simulated
from tilewright.targets.vta.partition import partition
from tilewright.targets.vta.quantised import dequantise, exponent_of, quantise

SMALL = """
<ir_version: 10, opset_import: ["" : 21]>
small (float[1, 3, 12, 12] image) => (float[1, 10] y)
<int64[2] shape = {1, 288}> {
  a = Conv<pads=[1,1,1,1]>(image, w1, b1)
  ar = Relu(a)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(ar)
  b = Conv<pads=[1,1,1,1]>(p, w2, b2)
  s = Add(b, p)
  sr = Relu(s)
  c = Conv<strides=[2,2]>(sr, w3)
  m = Conv<pads=[1,1,1,1], group=32>(c, w6)
  d = Conv<pads=[1,1,1,1], group=4>(m, w4)
  f = Reshape(d, shape)
  y = Gemm<transB=1>(f, w5, b5)
}
"""
WEIGHTS = {
    "w1": (20, 3, 3, 3),
    "b1": (20,),
    "w2": (20, 20, 3, 3),
    "b2": (20,),
    "w3": (32, 20, 1, 1),
    "w4": (32, 8, 3, 3),
    "w6": (32, 1, 3, 3),
    "w5": (10, 288),
    "b5": (10,),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = onnx.parser.parse_model(SMALL)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(model)


def images(count: int) -> list[dict[str, NDArray]]:
    rng = np.random.default_rng(1)
    return [{"image": rng.standard_normal((1, 3, 12, 12), np.float32)} for _ in range(count)]


def compiled(layer: Layer, arrays: Sequence[NDArray]) -> None:
    """The layer's formula as the CPU target compiles it."""
    kernel = lower(layer.name, layer.computations, params=layer.params, outputs=layer.params[-1:])
    tw.compile(kernel, threads=1)(*arrays[:-1], out=arrays[-1])


def test_the_machine_computes_what_the_cpu_does(graph: Graph) -> None:
    *samples, image = images(3)
    network = Network(graph, samples)
    (y,) = network(image)
    (same,) = network(image, compiled)
    (alone,) = network(image, Simulated(threads=1))
    np.testing.assert_array_equal(y, same)
    np.testing.assert_array_equal(y, alone)
    (real,) = evaluate(graph, image).values()
    assert np.corrcoef(y.ravel(), real.ravel())[0, 1] > 0.98
    done = [s.counters[0] for s in network.steps if s.product is not None]
    assert all(c.alu_counter > 0 for c in done)
    assert sum(c.gemm_counter > 0 for c in done) == 4


@pytest.mark.slow
def test_a_resnet_50() -> None:
    """All of its convolutions and pooling; batch normalisation is folded into the weights."""
    graph = load(resnet.build())
    given = {graph.inputs[0].name: resnet.image()}
    network = Network(graph, [given])
    (y,) = network(given)
    (same,) = network(given, compiled)
    np.testing.assert_array_equal(y, same)
    on_machine = [s.part.main.op_type for s in network.steps if s.product is not None]
    assert (on_machine.count("Conv"), on_machine.count("MaxPool")) == (53, 1)
    (real,) = evaluate(network.graph, given).values()
    assert np.corrcoef(y.ravel(), real.ravel())[0, 1] > 0.95


def test_the_report_says_what_runs_where(graph: Graph) -> None:
    lines = Network(graph, images(1)).report.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["vta", "Conv+Relu"],
        ["vta", "MaxPool"],
        ["vta", "Conv+Add+Relu"],
        ["vta", "Conv"],
        ["vta", "Conv"],
        ["cpu", "Conv"],
        ["cpu", "Reshape"],
        ["vta", "Gemm"],
    ]
    assert lines[5].endswith("it has 4 groups")


REFUSED = {
    "Conv<dilations=[2,2]>(x, w)": "it is dilated",
    "Conv<pads=[1,1,0,0]>(x, w)": "its padding is not the same on both sides",
    'Conv<auto_pad="SAME_UPPER">(x, w)': "its padding is implicit",
    "Conv(x, v)": "its weights are not constant",
    "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)": (
        "its padding is not zero, and its data may be negative"
    ),
    "MaxPool<kernel_shape=[2,2], ceil_mode=1>(x)": "it gives indices, or rounds its extents up",
    "Sigmoid(x)": "Sigmoid is no product and no pooling",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_stays_on_the_cpu(call: str) -> None:
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    one (float[1, 2, 6, 6] x, float[2, 2, 3, 3] v) => (float[1, 2, ?, ?] y) {{ y = {call} }}
    """)
    w = np.ones((2, 2, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    (part,) = partition(load(model))
    assert (part.main, part.why) == (None, REFUSED[call])


def test_what_cannot_be_quantised(graph: Graph) -> None:
    with pytest.raises(InputError, match="no samples"):
        Network(graph, [])


def test_batches() -> None:
    """Rows of a matrix are points of an image; convolutions take one image at a time."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    two (float[2, 1, 4, 4] x, float[2, 3, 40] m) => (float[2, 1, 4, 4] y, float[2, 3, 20] n) {
      y = Conv(x, w)
      n = MatMul(m, v)
    }
    """)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (1, 1, 1, 1), "v": (40, 20)}.items():
        array = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    graph = load(model)
    given = {"x": np.ones((2, 1, 4, 4), np.float32), "m": rng.random((2, 3, 40), np.float32)}
    network = Network(graph, [given])
    assert [s.why for s in network.steps] == ["it has a batch of 2", ""]
    for mine, real in zip(network(given), evaluate(graph, given).values(), strict=True):
        np.testing.assert_allclose(mine, real, atol=0.05 * np.abs(real).max())


def test_bytes_round_halves_up_and_come_back() -> None:
    exact = np.arange(-128, 128) / 16
    np.testing.assert_array_equal(dequantise(quantise(exact, 4), 4), exact)
    np.testing.assert_array_equal(quantise(np.array([0.5, -0.5, 1.5, 1e9]), 0), [1, 0, 2, 127])
    assert exponent_of(127.0) == 0
    assert exponent_of(1.0) == 6
    assert exponent_of(0.0) == 0
