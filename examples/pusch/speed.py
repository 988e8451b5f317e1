"""Detection, compiled and in NumPy, timed in turns: gram matrix, matched filter, solution.

python examples/pusch/speed.py [subcarriers [threads [rounds [4x4 16x8 ...]]]]

NumPy does the same work with batched `matmul` and `linalg.solve` in single precision, one solve
with all data symbols as right-hand sides. It is spared what is not that work: its arrays lie as it
likes them, the adjoint of the channel is at hand, and nothing is made unbiased.
"""

# ruff: noqa: E402 (the number of threads is fixed first)
import os
import sys

given = sys.argv[1:]
layouts = given[3:] or ["4x4", "16x8"]
numbers = [*given[:3], *["3276", "2", "15"][len(given) :]]
subcarriers, threads, rounds = map(int, numbers)
for library in ("OPENBLAS", "MKL", "OMP"):
    os.environ[f"{library}_NUM_THREADS"] = str(threads)

from collections.abc import Callable
from statistics import median
from time import perf_counter, sleep

import numpy as np
from accuracy import accuracy
from channel import Channel
from receiver import Receiver, blocked, joined
from slot import Layout, send


def interleaved(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each way; in every round each runs twice, and the second run counts."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            # The threads of the library before, which wait in loops, fall asleep first.
            sleep(0.1)
            run()
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return times


def compare(layout: Layout) -> None:
    """Time and check one layout, by Cholesky and by LU."""
    slot = send(layout, Channel(), 20.0, np.random.default_rng(0))
    h, y = slot.channel[0].astype(np.complex64), slot.received[layout.pilots :]
    batch = np.ascontiguousarray(np.moveaxis(h, -1, 0))
    adjoint = np.ascontiguousarray(batch.conj().swapaxes(1, 2))
    right = np.ascontiguousarray(y.transpose(2, 1, 0).astype(np.complex64))
    white = np.float32(slot.noise) * np.eye(layout.layers, dtype=np.complex64)

    def numpy() -> np.ndarray:
        return np.linalg.solve(adjoint @ batch + white, adjoint @ right)

    channel, received = blocked(h), blocked(slot.received)
    receivers = {
        method: Receiver(layout, method, threads) for method in ("cholesky", "lu")
    }
    ways: dict[str, Callable[[], object]] = {"NumPy": numpy}
    for method, receiver in receivers.items():
        ways[method] = lambda r=receiver: r.detect(channel, received, slot.noise)
    print(
        f"{layout.antennas} x {layout.layers}, {layout.subcarriers} x {layout.symbols}:"
    )
    for method, receiver in receivers.items():
        ways[method]()
        found = joined(receiver.solutions, 0, layout.subcarriers).swapaxes(0, 1)
        error, bound = accuracy(h, y.astype(np.complex64), slot.noise, found)
        worst = (error / bound).max()
        print(f"  {method:<9} error {error.max():.1e}, {worst:.3f} of the bound")
    seconds = interleaved(ways)
    print(f"  {'':<9}{'median':>12}{'':>10}{'least':>12}")
    for name, found in seconds.items():
        columns = [
            f"{kind(found) * 1e3:>9.3f} ms{kind(seconds['NumPy']) / kind(found):>8.1f} x"
            for kind in (median, min)
        ]
        print(f"  {name:<9}{''.join(columns)}")


for layout in layouts:
    antennas, layers = map(int, layout.split("x"))
    compare(Layout(subcarriers, antennas, layers))
