"""Speed of the schedule language: what one primitive costs with its proof, and a whole replay.

    python -m benchmarks.schedule [--steps N]

Primitives: random legal and illegal requests on kernels of about 20 loops (a convolution, a
softmax and a product, tiled). Replay: the default schedule of a convolution and of a matrix
product. CPU time, milliseconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Max, call, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule, replay
from tilewright.targets.registry import target
from tilewright.testing.random_schedules import random_step

f32 = dtypes.float32


def convolution() -> tuple[Kernel, list[Computation], set[Buffer]]:
    """A padded 3x3 convolution, 64 channels, with bias and ReLU, channels last."""
    x, w = Buffer("X", (1, 56, 56, 64), f32), Buffer("W", (3, 3, 64, 64), f32)
    t, b, y = (Buffer(n, s, f32) for n, s in (
        ("T", (1, 56, 56, 64)), ("B", (64,)), ("Y", (1, 56, 56, 64))
    ))  # fmt: skip
    steps = [
        reduce_(
            "conv", t, (3, 3, 64), "add",
            lambda n, p, q, o, r, s, c: padded(x, (n, p + r - 1, q + s - 1, c), 0) * w[r, s, c, o],
        ),
        map_("relu", y, lambda n, p, q, o: Max(t[n, p, q, o] + b[o], const(0, f32))),
    ]  # fmt: skip
    return lower("conv", steps, [x, w, b, y], [y]), steps, {w, b}


def softmax_product() -> Kernel:
    """Softmax of the rows of a product of three matrices."""
    a, b, y = (Buffer(n, (64, 64), f32) for n in "ABY")
    p, q, e, o = (Buffer(n, (64, 64), f32) for n in "PQEO")
    m, z = Buffer("M", (64,), f32), Buffer("Z", (64,), f32)
    steps = [
        reduce_("p", p, (64,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        reduce_("q", q, (64,), "add", lambda i, j, k: p[i, k] * b[j, k]),
        reduce_("m", m, (64,), "max", lambda i, j: q[i, j]),
        map_("e", e, lambda i, j: call("exp", q[i, j] - m[i])),
        reduce_("z", z, (64,), "add", lambda i, j: e[i, j]),
        map_("o", o, lambda i, j: e[i, j] / z[i]),
        reduce_("y", y, (64,), "add", lambda i, j, k: o[i, k] * b[k, j]),
    ]
    return lower("softmax_product", steps, [a, b, y], [y])


def primitives(steps: int) -> dict[tuple[str, bool], list[float]]:
    """Milliseconds of each request, by primitive and whether it was permitted."""
    times: dict[tuple[str, bool], list[float]] = defaultdict(list)
    r, done, n = random.Random(0), 0, 0
    while done < steps:
        s = Schedule(softmax_product() if n % 2 else convolution()[0])
        n += 1
        while len(loops_of(s.kernel.body)) < 30 and done < steps:
            step = random_step(r, s.kernel)
            assert step is not None
            big = len(loops_of(s.kernel.body)) >= 15
            start = time.process_time()
            try:
                s.apply(step)
                legal = True
            except ScheduleError:
                legal = False
            if big:
                times[step.primitive, legal].append((time.process_time() - start) * 1e3)
            done += 1
            if r.random() < 0.02:
                break
    return times


def replays(rounds: int) -> tuple[int, float]:
    """Number of steps of the default schedule of a convolution, and milliseconds of a replay."""
    kernel, steps, constants = convolution()
    trace = target("cpu").default_schedule(kernel, steps, constants).trace
    times = []
    for _ in range(rounds):
        start = time.process_time()
        replay(kernel, trace)
        times.append((time.process_time() - start) * 1e3)
    return len(trace.steps), statistics.median(times)


def main() -> None:
    """Prints a row per primitive, then the totals and the replay."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=4000)
    times = primitives(parser.parse_args().steps)
    print(f"{'primitive':22} {'':8} {'count':>6} {'median':>8} {'95%':>8} {'worst':>8}")
    every: list[float] = []
    for (name, legal), found in sorted(times.items()):
        every += found
        _row(name, "legal" if legal else "refused", found)
    _row("all", "", every)
    count, ms = replays(9)
    print(
        f"replay of the default schedule of a convolution, {count} steps: {ms:.1f} ms"
    )


def _row(name: str, verdict: str, found: list[float]) -> None:
    found = sorted(found)
    at95 = found[min(len(found) - 1, int(0.95 * len(found)))]
    numbers = f"{statistics.median(found):8.2f} {at95:8.2f} {found[-1]:8.2f}"
    print(f"{name:22} {verdict:8} {len(found):6} {numbers}")


if __name__ == "__main__":
    main()
