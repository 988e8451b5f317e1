"""Bit error rates against the signal-to-noise ratio, as a table and a picture.

python examples/pusch/error_rate.py [--subcarriers 3276] [--errors 1000] [--slots 8]
    [--profiles A,B,C] [--modulations QPSK,16QAM,64QAM,256QAM] [--antennas 4] [--layers 4]
    [--picture error_rate.svg]

Each point has at least so many errors, over at least so many draws of the channel. The reference is
`reference.py`, NumPy in double precision, on the same draws of bits, channel and noise. `differ`
counts the bits on which the two disagree. The last column is how far the two curves are apart, in
dB: their distance in log error rate, over the slope of the reference's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import reference
from channel import Channel
from curves import Curve, picture
from receiver import Receiver
from slot import Layout, Slot, send

# Signal-to-noise ratios in dB at which error rates are of interest.
RANGES = {
    "QPSK": (0, 21, 3),
    "16QAM": (6, 27, 3),
    "64QAM": (12, 33, 3),
    "256QAM": (18, 36, 3),
}
MOST = 200  # slots for one point


@dataclass(frozen=True)
class Point:
    """One signal-to-noise ratio: bits sent, each receiver's errors, where the two disagree."""

    snr: float
    bits: int
    compiled: int
    double: int
    differ: int


def by_reference(layout: Layout, slot: Slot) -> np.ndarray:
    """Likelihood ratios (bits, layers, data symbols, subcarriers) in double precision."""
    h = reference.estimate(layout, slot)
    x, variance = reference.detect(h, slot.received[layout.pilots :], slot.noise)
    return reference.demap(x, variance, layout.modulation)


def measure(
    receiver: Receiver, channel: Channel, snr: float, least: int, slots: int = 1
) -> Point:
    """One point of a curve: slots of seeds 0, 1, ... until they and errors are enough."""
    layout = receiver.layout
    bits = compiled = double = differ = 0
    for draw in range(MOST):
        slot = send(layout, channel, snr, np.random.default_rng(draw))
        ratios = receiver(slot.received, slot.pilots[: layout.pilots], slot.noise)
        ours, theirs = ratios < 0, by_reference(layout, slot) < 0
        bits += slot.bits.size
        compiled += np.count_nonzero(ours != slot.bits)
        double += np.count_nonzero(theirs != slot.bits)
        differ += np.count_nonzero(ours != theirs)
        if min(compiled, double) >= least and draw + 1 >= slots:
            break
    return Point(snr, bits, compiled, double, differ)


def gaps(points: list[Point]) -> list[float]:
    """How far the curves are apart at each point, in dB. Positive: the compiled one is worse."""
    double = np.log10([p.double / p.bits for p in points])
    slope = np.gradient(double, [p.snr for p in points])
    return list(
        (double - np.log10([p.compiled / p.bits for p in points])) / slope + 0.0
    )


def curve(
    layout: Layout,
    channel: Channel,
    least: int,
    slots: int = 1,
    method: str = "cholesky",
) -> Iterator[tuple[Point, float]]:
    """The points of one curve and their gaps, printed."""
    first, last, step = RANGES[layout.modulation]
    receiver = Receiver(layout, method)
    points = [
        measure(receiver, channel, snr, least, slots)
        for snr in range(first, last + 1, step)
    ]
    print(
        f"\nTDL-{channel.profile}, {layout.modulation}, {layout.antennas} x {layout.layers}"
    )
    print(f"{'SNR/dB':>8}{'errors':>10}{'rate':>11}{'differ':>8}{'gap/dB':>10}")
    for point, gap in zip(points, gaps(points), strict=True):
        rate = f"{point.compiled / point.bits:>11.3e}{point.differ:>8}"
        print(f"{point.snr:>8}{point.compiled:>10}{rate}{gap:>10.5f}")
        yield point, gap


def main() -> None:
    parser = argparse.ArgumentParser()
    sizes = {
        "subcarriers": 3276,
        "errors": 1000,
        "slots": 8,
        "antennas": 4,
        "layers": 4,
    }
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profiles", default="A,B,C")
    parser.add_argument("--modulations", default=",".join(RANGES))
    parser.add_argument("--picture", type=Path, default=Path("error_rate.svg"))
    given = parser.parse_args()
    layout = Layout(given.subcarriers, given.antennas, given.layers)
    curves, worst = [], 0.0
    for profile in given.profiles.split(","):
        for modulation in given.modulations.split(","):
            one = replace(layout, modulation=modulation)
            found = list(curve(one, Channel(profile), given.errors, given.slots))
            points = [(point.snr, point.compiled / point.bits) for point, _ in found]
            curves.append(Curve(f"TDL-{profile} {modulation}", points))
            worst = max(worst, *(abs(gap) for _, gap in found))
    given.picture.write_text(picture(curves))
    print(f"\nlargest gap: {worst:.5f} dB\n{given.picture.name} written")


if __name__ == "__main__":
    main()
