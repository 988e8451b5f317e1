"""ResNet-18's convolutions C2 to C12 on VTA, with and without virtual threads, as a roofline.

Layers are numbered as in TVM's paper (Chen et al., OSDI 2018, figure 10). Each is scheduled by
default for the bandwidth at hand, translated and run on the timing simulator; both results must be
equal. Utilization is the share of the cycles in which the matrix unit would be busy with the
layer's products alone. `--board` compares the times with the least that the processor of a PYNQ-Z1
takes for the same layers.

python examples/vta_roofline.py [--layers C2,C12] [--sweep] [--board] [--picture roofline.png]

The picture needs Pillow.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.targets.vta import (
    Convolution,
    Requantize,
    TimingParameters,
    VtaProgram,
    convolution,
    schedule,
)
from tilewright.targets.vta.board import CORTEX_A9
from tilewright.targets.vta.device import CLOCK

PEAK = 256  # products per cycle
BANDWIDTHS = (2, 4, 8, 16, 32)  # bytes per cycle
LAYERS = {  # height and width, channels in and out, kernel, stride
    "C2": (56, 64, 64, 3, 1),
    "C3": (56, 64, 64, 1, 1),
    "C4": (56, 64, 128, 3, 2),
    "C5": (56, 64, 128, 1, 2),
    "C6": (28, 128, 128, 3, 1),
    "C7": (28, 128, 256, 3, 2),
    "C8": (28, 128, 256, 1, 2),
    "C9": (14, 256, 256, 3, 1),
    "C10": (14, 256, 512, 3, 2),
    "C11": (14, 256, 512, 1, 2),
    "C12": (7, 512, 512, 3, 1),
}


@dataclass
class Point:
    """A layer as it ran: products per byte of DRAM, and per cycle."""

    intensity: float
    rate: float

    @property
    def utilization(self) -> float:
        return self.rate / PEAK


def convolution_of(name):
    size, inputs, outputs, kernel, stride = LAYERS[name]
    return Convolution(
        inputs, outputs, (size,) * 2, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 2
    )


def measure(name, threads, bandwidth):
    """Its point, and its result."""
    shape = convolution_of(name)
    layer = convolution(shape, Requantize(7, bias=False), name)
    timing = TimingParameters(dram_bytes_per_cycle=bandwidth)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-128, 128, b.shape, np.int8) for b in layer.params]
    program = VtaProgram(schedule(layer, threads, timing).kernel)
    ran = program.time(arrays, timing)
    c = ran.counters
    moved = (
        c.inp_load_nbytes + c.wgt_load_nbytes + c.acc_load_nbytes + c.uop_load_nbytes
    )
    return Point(
        shape.macs / (moved + c.out_store_nbytes), shape.macs / ran.cycles
    ), arrays[-1]


def table(names, bandwidth):
    """Both points of every layer, printed."""
    print(f"{bandwidth} bytes per cycle")
    print("layer   products/byte   utilization: one thread   two threads")
    points = {}
    for name in names:
        (one, first), (two, second) = (measure(name, n, bandwidth) for n in (1, 2))
        assert (first == second).all(), name
        points[name] = one, two
        print(
            f"{name:<6} {two.intensity:>14.1f} {one.utilization:>25.1%} {two.utilization:>13.1%}"
        )
    best = [max(p[k].utilization for p in points.values()) for k in (0, 1)]
    print(f"best   {'':>14} {best[0]:>25.1%} {best[1]:>13.1%}\n")
    return points


def board(names):
    """Milliseconds of every layer on VTA, and the least of both cores of the board's processor."""
    print("layer   VTA    Cortex-A9: float32          int8")
    total = [0.0, 0.0, 0.0]
    for name in names:
        shape = convolution_of(name)
        point, _ = measure(name, 2, 8)
        times = [shape.macs / point.rate / CLOCK]
        times += [CORTEX_A9.seconds(shape, dtype) for dtype in ("float32", "int8")]
        total = [t + seconds for t, seconds in zip(total, times)]
        print(compared(name, times))
    print(compared("all", total))


def compared(name, times):
    vta, *others = times
    columns = (f"{1e3 * t:6.2f} ms ({t / vta:4.1f} x)" for t in others)
    return f"{name:<5} {1e3 * vta:6.2f} ms  " + "    ".join(columns)


WIDTH, HEIGHT, MARGIN = 800, 520, 70
SCALE = 3  # drawn larger, then made smaller: smooth lines
LOW, HIGH = (8, 64), (256, 320)  # of both axes: products per byte, products per cycle
TICKS = (8, 16, 32, 64, 128, 256), (64, 128, 256)
BLACK, GRAY, LIGHT, BLUE = "#000000", "#8a8a8a", "#dddddd", "#1b6ca8"


class Plot:
    """A picture with logarithmic axes, drawn with Pillow."""

    def __init__(self):
        from PIL import Image, ImageDraw, ImageFont

        self.image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
        self.draw = ImageDraw.Draw(self.image)
        self.font = ImageFont.load_default(13 * SCALE)

    def place(self, intensity, rate):
        """Where a point is in the picture."""
        across, up = (
            math.log2(value / low) / math.log2(high / low)
            for value, low, high in zip((intensity, rate), LOW, HIGH)
        )
        x, y = (
            MARGIN + across * (WIDTH - 1.5 * MARGIN),
            HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN),
        )
        return x * SCALE, y * SCALE

    def line(self, points, color, width=1.5):
        at = [self.place(*point) for point in points]
        self.draw.line(at, fill=color, width=round(width * SCALE), joint="curve")

    def dot(self, point, color):
        x, y = self.place(*point)
        r = 4.5 * SCALE
        self.draw.ellipse((x - r, y - r, x + r, y + r), fill=color)

    def text(self, at, words, color=BLACK, anchor="mm"):
        """Words beside a place in the picture's own units."""
        x, y = (SCALE * value for value in at)
        self.draw.text((x, y), words, fill=color, font=self.font, anchor=anchor)

    def label(self, point, words, color):
        x, y = self.place(*point)
        self.text((x / SCALE, y / SCALE + 13), words, color)

    def axes(self):
        for value in TICKS[0]:
            self.line([(value, LOW[1]), (value, HIGH[1])], LIGHT, 1)
            self.text(
                (self.place(value, 1)[0] / SCALE, HEIGHT - MARGIN + 14), str(value)
            )
        for value in TICKS[1]:
            self.line([(LOW[0], value), (HIGH[0], value)], LIGHT, 1)
            self.text(
                (MARGIN - 8, self.place(1, value)[1] / SCALE), str(value), anchor="rm"
            )
        self.line([(LOW[0], HIGH[1]), LOW, (HIGH[0], LOW[1])], BLACK)
        self.text((WIDTH / 2, HEIGHT - 26), "products per byte of DRAM")

    def save(self, path):
        self.image.resize((WIDTH, HEIGHT)).save(path)


def picture(points, bandwidth, path):
    """The roofline as PNG: gray without virtual threads, blue with two."""
    plot = Plot()
    plot.axes()
    ridge = PEAK / bandwidth
    roof = [(max(LOW[0], LOW[1] / bandwidth), max(LOW[1], LOW[0] * bandwidth))]
    plot.line([*roof, (ridge, PEAK), (HIGH[0], PEAK)], BLACK, 2)
    for one, two in points.values():
        plot.line([(p.intensity, p.rate) for p in (one, two)], LIGHT, 2)
    for name, (one, two) in points.items():
        plot.dot((one.intensity, one.rate), GRAY)
        plot.dot((two.intensity, two.rate), BLUE)
        plot.label((two.intensity, two.rate), name, BLUE)
    plot.text(
        (MARGIN, 26), f"products per cycle, at {bandwidth} bytes per cycle", anchor="lm"
    )
    plot.text((MARGIN + 330, 26), "without virtual threads", GRAY, "lm")
    plot.text((MARGIN + 520, 26), "with two", BLUE, "lm")
    plot.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--sweep", action="store_true", help="all bandwidths")
    parser.add_argument(
        "--board", action="store_true", help="beside the board's processor"
    )
    parser.add_argument(
        "--picture", type=Path, help="the roofline at 8 bytes per cycle, a PNG"
    )
    arguments = parser.parse_args()
    names = arguments.layers.split(",")
    if arguments.board:
        board(names)
        return
    for bandwidth in BANDWIDTHS if arguments.sweep else (8,):
        points = table(names, bandwidth)
        if bandwidth == 8 and arguments.picture:
            picture(points, bandwidth, arguments.picture)


if __name__ == "__main__":
    main()
