"""A float model, quantized for VTA and run on its simulator: what ran where, and how long it takes.

Scales are taken from random samples. The results are compared bit for bit with those of the same
quantized model compiled for the CPU alone, and with the float model's.

python examples/vta_network.py [model.onnx] [--by multiplier] [--listing] [--without-cpu]
    [--samples N] [--images N] [--streams FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper

import tilewright as tw
from tilewright.driver import text
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.runtime import devices
from tilewright.runtime.device import HostDevice
from tilewright.targets.base import Calibration
from tilewright.targets.vta import device
from tilewright.targets.vta.target import Vta

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


class Recorder:
    """The simulated device, which also writes what another simulator needs to run its launches."""

    def __init__(self, folder):
        self.folder = folder
        self.launches = 0

    def load(self, code):
        run, program = device.load(code), device.VtaProgram.from_bytes(code)

        def recorded(arrays, timed):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.launches += 1
            before = program.image(arrays)
            took = run(arrays, timed)
            parts = {"insn": program.stream, "before": before}
            parts["after"] = program.image(arrays)
            for suffix, data in parts.items():
                (self.folder / f"{self.launches:03}.{suffix}").write_bytes(data)
            return took

        return recorded


def decibels(exe, graph, images):
    """How far the float model's results are above the quantized model's errors."""
    signal = noise = 0.0
    for x in images:
        y, (real,) = exe(x), evaluate(graph, x).values()
        signal += (real.astype(np.float64) ** 2).sum()
        noise += ((y.astype(np.float64) - real) ** 2).sum()
    return 10 * np.log10(signal / noise)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "model", nargs="?", type=Path, help="default: LeNet with random weights"
    )
    parser.add_argument(
        "--listing", action="store_true", help="the code of all kernels"
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
    if arguments.streams is not None:
        load_program = Recorder(arguments.streams).load
        devices.register("vta", lambda: HostDevice("vta", load_program))
    given = {"samples": samples, "by": arguments.by}
    exe = tw.compile(graph, target="vta", **given)
    for placement in exe.placements:
        print(*placement, sep="  ")
    y = exe(x)
    cycles = sum(row.cycles for row in exe.profile(x, repeat=1).simulated)
    print(f"{len(exe.model.launches)} launches in {cycles:,} cycles")
    if not arguments.without_cpu:
        quantized = Vta().adapt(graph, Calibration(**given), OnnxFallback()).graph
        same = tw.compile(quantized)(x)
        print("equal to the CPU, bit for bit:", bool((y == same).all()))
    print(
        f"beside the float model: {decibels(exe, graph, images):.1f} dB over the error"
    )
    if arguments.listing:
        print(text(graph, "asm", target="vta", **given))


if __name__ == "__main__":
    main()
