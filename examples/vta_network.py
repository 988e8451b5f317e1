"""A float model, quantized for VTA and run on its simulator: what ran where, and how long it takes.

Scales are taken from random samples. The products' results are compared bit for bit with the same
integer formulas compiled for the CPU, the outputs with the float model's.

python examples/vta_network.py [model.onnx] [--by multiplier] [--listing] [--without-cpu]
    [--samples N] [--images N] [--streams FOLDER]
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
from tilewright.targets.vta import Network, Simulated

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

    def __init__(self, streams):
        self.simulated = Simulated()
        self.cycles = 0
        self.streams = streams
        self.launches = 0

    def __call__(self, layer, arrays):
        program = self.simulated.program(layer)
        if self.streams is not None:
            self.write(program, arrays)
        timing = program.time(arrays)
        self.cycles += timing.cycles
        return timing.counters

    def write(self, program, arrays):
        """The stream, and DRAM before and after it, for another simulator to run."""
        self.streams.mkdir(parents=True, exist_ok=True)
        self.launches += 1
        before, after = program.images(arrays)
        parts = {"insn": program.stream, "before": before, "after": after}
        for suffix, data in parts.items():
            (self.streams / f"{self.launches:03}.{suffix}").write_bytes(data)


def on_cpu(layer, arrays):
    """A layer's formula, compiled for this computer."""
    kernel = lower(layer.name, layer.computations, layer.params, layer.params[-1:])
    tw.compile(kernel)(*arrays[:-1], out=arrays[-1])


def decibels(network, graph, images):
    """How far the float model's results are above the network's errors."""
    signal = noise = 0.0
    for x in images:
        (y,), (real,) = network(x), evaluate(graph, x).values()
        signal += (real.astype(np.float64) ** 2).sum()
        noise += ((y.astype(np.float64) - real) ** 2).sum()
    return 10 * np.log10(signal / noise)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "model", nargs="?", type=Path, help="default: LeNet with random weights"
    )
    parser.add_argument(
        "--listing", action="store_true", help="the first product's instructions"
    )
    parser.add_argument(
        "--by",
        default="shift",
        help="how sums become bytes: shift, multiplier, channel",
    )
    parser.add_argument("--samples", type=int, default=3, help="to take scales from")
    parser.add_argument(
        "--images", type=int, default=1, help="to compare with the float model"
    )
    parser.add_argument(
        "--streams", type=Path, help="write every launch's stream and DRAM there"
    )
    parser.add_argument(
        "--without-cpu", action="store_true", help="do not compare bit for bit"
    )
    arguments = parser.parse_args()
    graph = load(arguments.model or lenet())
    (image,) = graph.inputs
    rng = np.random.default_rng(0)
    x, *images = (
        {image.name: rng.standard_normal(image.extents, dtype=np.float32)}
        for _ in range(arguments.images + arguments.samples)
    )
    images, samples = (
        [x, *images[: arguments.images - 1]],
        images[arguments.images - 1 :],
    )
    network = Network(graph, samples, by=arguments.by)
    print(network.report)
    machine = Machine(arguments.streams)
    (y,) = network(x, machine)
    tiles = sum(s.counters[0].gemm_counter for s in network.steps if s.product)
    print(
        f"{tiles:,} products of a tile by a tile of weights in {machine.cycles:,} cycles"
    )
    if not arguments.without_cpu:
        (same,) = network(x, on_cpu)
        print("equal to the CPU, bit for bit:", bool((y == same).all()))
    print(
        f"beside the float model: {decibels(network, graph, images):.1f} dB over the error"
    )
    if arguments.listing:
        first = next(s.product.layer for s in network.steps if s.product)
        print(machine.simulated.program(first).text)


if __name__ == "__main__":
    main()
