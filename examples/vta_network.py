"""A float model, quantised for VTA and run on its simulator: what ran where, and how long it takes.

Scales are powers of two, taken from random samples. The products' results are compared bit for bit
with the same integer formulas compiled for the CPU, the outputs with the float model's.

python examples/vta_network.py [model.onnx] [--listing] [--without-cpu]
"""

import argparse
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper

import tilewright as tw
from tilewright.frontends.onnx import load
from tilewright.graph.interp import evaluate
from tilewright.loops.lower import lower
from tilewright.targets.vta import Network, Program, schedule

LENET = """
<ir_version: 10, opset_import: ["" : 21]>
lenet (float[1, 1, 32, 32] image) => (float[1, 10] y) <int64[2] shape = {1, 400}> {
  a = Conv(image, w1, b1)
  b = Relu(a)
  c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
  d = Conv(c, w2, b2)
  e = Relu(d)
  f = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e)
  g = Reshape(f, shape)
  h = Gemm<transB=1>(g, w3, b3)
  i = Relu(h)
  j = Gemm<transB=1>(i, w4, b4)
  k = Relu(j)
  y = Gemm<transB=1>(k, w5, b5)
}
"""
SHAPES = ((6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84))


def lenet():
    """LeNet-5 with random weights."""
    model = onnx.parser.parse_model(LENET)
    rng = np.random.default_rng(0)
    for n, shape in enumerate(SHAPES, 1):
        scale = np.sqrt(2 / np.prod(shape[1:]))
        w = (rng.standard_normal(shape) * scale).astype(np.float32)
        b = (rng.standard_normal(shape[0]) * 0.1).astype(np.float32)
        for name, array in ((f"w{n}", w), (f"b{n}", b)):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


class Machine:
    """The simulated machine, which also says how long each layer takes."""

    def __init__(self):
        self.programs = {}
        self.cycles = 0

    def __call__(self, layer, arrays):
        if layer not in self.programs:
            self.programs[layer] = Program(schedule(layer).kernel)
        timing = self.programs[layer].time(arrays)
        self.cycles += timing.cycles
        return timing.counters


def on_cpu(layer, arrays):
    """A layer's formula, compiled for this computer."""
    kernel = lower(layer.name, layer.computations, layer.params, layer.params[-1:])
    tw.compile(kernel)(*arrays[:-1], out=arrays[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, help="default: LeNet with random weights")
    parser.add_argument("--listing", action="store_true", help="the first product's instructions")
    parser.add_argument("--without-cpu", action="store_true", help="do not compare bit for bit")
    arguments = parser.parse_args()
    graph = load(arguments.model or lenet())
    (image,) = graph.inputs
    rng = np.random.default_rng(0)
    *samples, x = (
        {image.name: rng.standard_normal(image.extents, dtype=np.float32)} for _ in range(3)
    )
    network = Network(graph, samples)
    print(network.report)
    machine = Machine()
    (y,) = network(x, machine)
    tiles = sum(s.counters[0].gemm_counter for s in network.steps if s.product)
    print(f"{tiles:,} products of a tile by a tile of weights in {machine.cycles:,} cycles")
    if not arguments.without_cpu:
        (same,) = network(x, on_cpu)
        print("equal to the CPU, bit for bit:", bool((y == same).all()))
    (real,) = evaluate(graph, x).values()
    print(f"correlation with the float model: {np.corrcoef(y.ravel(), real.ravel())[0, 1]:.4f}")
    if arguments.listing:
        print(next(iter(machine.programs.values())).text)


if __name__ == "__main__":
    main()
