"""ResNet-18's convolutions C2 to C12 on VTA, with and without virtual threads, as a roofline.

Layers are numbered as in TVM's paper (Chen et al., OSDI 2018, figure 10). Each is scheduled by
default for the bandwidth at hand, translated and run on the timing simulator; both results must be
equal. Utilisation is the share of the cycles in which the matrix unit would be busy with the
layer's products alone.

python examples/vta_roofline.py [--layers C2,C12] [--sweep] [--picture roofline.svg]
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.targets.vta import (
    Convolution,
    Program,
    Requantise,
    TimingParameters,
    convolution,
    schedule,
)

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
    def utilisation(self) -> float:
        return self.rate / PEAK


def measure(name, threads, bandwidth):
    """Its point, and its result."""
    size, inputs, outputs, kernel, stride = LAYERS[name]
    shape = Convolution(
        inputs, outputs, (size,) * 2, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 2
    )
    layer = convolution(shape, Requantise(7, bias=False), name)
    timing = TimingParameters(dram_bytes_per_cycle=bandwidth)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-128, 128, b.shape, np.int8) for b in layer.params]
    program = Program(schedule(layer, threads, timing).kernel)
    ran = program.time(arrays, timing)
    c = ran.counters
    moved = c.inp_load_nbytes + c.wgt_load_nbytes + c.acc_load_nbytes + c.uop_load_nbytes
    return Point(shape.macs / (moved + c.out_store_nbytes), shape.macs / ran.cycles), arrays[-1]


def table(names, bandwidth):
    """Both points of every layer, printed."""
    print(f"{bandwidth} bytes per cycle")
    print("layer   products/byte   utilisation: one thread   two threads")
    points = {}
    for name in names:
        (one, first), (two, second) = (measure(name, n, bandwidth) for n in (1, 2))
        assert (first == second).all(), name
        points[name] = one, two
        print(f"{name:<6} {two.intensity:>14.1f} {one.utilisation:>25.1%} {two.utilisation:>13.1%}")
    best = [max(p[k].utilisation for p in points.values()) for k in (0, 1)]
    print(f"best   {'':>14} {best[0]:>25.1%} {best[1]:>13.1%}\n")
    return points


WIDTH, HEIGHT, MARGIN = 720, 480, 60
LOW, HIGH = (4, 8), (512, 320)  # of both axes: products per byte, products per cycle


def place(intensity, rate):
    """Where a point is in the picture; both axes are logarithmic."""
    across, up = (
        (math.log2(value) - math.log2(low)) / (math.log2(high) - math.log2(low))
        for value, low, high in zip((intensity, rate), LOW, HIGH)
    )
    return MARGIN + across * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)


def dot(x, y, colour, label):
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
        f'<text x="{x + 6:.1f}" y="{y - 4:.1f}" fill="{colour}">{label}</text>'
    )


def picture(points, bandwidth):
    """The roofline as SVG: grey without virtual threads, blue with two."""
    ridge = PEAK / bandwidth
    corners = [place(LOW[0], LOW[0] * bandwidth), place(ridge, PEAK), place(HIGH[0], PEAK)]
    roof = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    left, base = MARGIN, HEIGHT - MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<path d="M{left},{MARGIN} V{base} H{WIDTH - MARGIN}" fill="none" stroke="#888"/>',
        f'<polyline points="{roof}" fill="none" stroke="black"/>',
    ]
    for value in (4, 8, 16, 32, 64, 128, 256, 512):
        x, _ = place(value, PEAK)
        parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{value}</text>')
    for value in (8, 16, 32, 64, 128, 256):
        _, y = place(LOW[0], value)
        parts.append(f'<text x="{left - 6}" y="{y:.1f}" text-anchor="end">{value}</text>')
    for name, (one, two) in points.items():
        (x0, y0), (x1, y1) = (place(p.intensity, p.rate) for p in (one, two))
        parts.append(f'<path d="M{x0:.1f},{y0:.1f} L{x1:.1f},{y1:.1f}" stroke="#bbb"/>')
        parts += [dot(x0, y0, "#999", ""), dot(x1, y1, "#1b6ca8", name)]
    middle = WIDTH / 2
    parts += [
        f'<text x="{middle}" y="{HEIGHT - 20}" text-anchor="middle">products per byte</text>',
        f'<text x="{left}" y="{MARGIN - 14}">products per cycle: grey without virtual threads, '
        "blue with two</text>",
        "</svg>",
    ]
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--sweep", action="store_true", help="all bandwidths")
    parser.add_argument("--picture", type=Path, help="the roofline at 8 bytes per cycle, as SVG")
    arguments = parser.parse_args()
    names = arguments.layers.split(",")
    for bandwidth in BANDWIDTHS if arguments.sweep else (8,):
        points = table(names, bandwidth)
        if bandwidth == 8 and arguments.picture:
            arguments.picture.write_text(picture(points, bandwidth))


if __name__ == "__main__":
    main()
