"""Halide's apps by the `halide` package and here: same lines, same schedule, same run.

python -m benchmarks.halide_apps [NAME ...] [--threads 1,2] [--rounds N]

Each app and number of threads is its own process. Both modules compile the app, fill the same
output, which must be equal (floats: within the app's tolerance), and are timed in alternating
rounds: one thread by its processor time, in which other work on the machine does not show, several
by the clock. A ratio is their time over ours: above 1, this package is faster.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.harness import beside, served
from examples.halide_apps import app as apps
from tilewright.cli.rounds import disturbance
from tilewright.runtime.machine import processor_name

ROUND = 0.05  # seconds that one round of one module takes at least


def timed(call: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
    """Seconds per call, of a clock."""
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


def warm_up(hl: Any) -> None:
    """Load and set up Halide once per process, so that it is no part of an app's compile time."""
    x, f, g = hl.Var("x"), hl.Func("f"), hl.Func("g")
    f[x] = x
    g[x] = f[x] + f[x + 1]
    f.compute_root()
    g.vectorize(x, 8)
    g.realize([64])


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One app in this process: its times, ratio and difference."""
    import halide

    from tilewright import halide as here

    app = apps.load(name)
    images = app.images(np.random.default_rng(0), *app.size)
    warm_up(here)
    warm_up(halide)
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    mine = apps.ours(app, app.size, images)
    middle = clock()
    other = apps.theirs(halide, app, app.size, images, np.zeros_like(mine.out))
    end = clock()
    calls = [mine.call, other.call]
    once = [timed(c, 1, clock) for c in calls]
    difference = apps.difference(mine.out, other.out)
    times = [max(1, math.ceil(ROUND / seconds)) for seconds in once]
    seconds: list[list[float]] = [[], []]
    for n in range(rounds):
        for k in (0, 1) if n % 2 else (1, 0):
            seconds[k].append(timed(calls[k], times[k], clock))
    return {
        "ms": [statistics.median(s) * 1e3 for s in seconds],
        "ratio": statistics.median(t / m for m, t in zip(*seconds, strict=True)),
        "compile": [middle - start, end - middle],
        "difference": difference,
        "tolerance": app.tolerance,
    }


def measured(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One app in its own process; `error` is what went wrong there."""
    count = str(threads)
    extra = {"HL_NUM_THREADS": count, "TILEWRIGHT_NUM_THREADS": count}
    arguments = [name, "--threads", count, "--rounds", str(rounds)]
    return served("benchmarks.halide_apps", arguments, threads, extra)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--threads", default="1,2", help="numbers of threads, with commas")
@click.option("--rounds", default=7, help="rounds of each module")
@click.option("--serve", is_flag=True, hidden=True)
def main(names: tuple[str, ...], threads: str, rounds: int, serve: bool) -> None:
    """Times Halide's apps side by side."""
    counts = [int(n) for n in threads.split(",")]
    if serve:
        print(json.dumps(measure(names[0], counts[0], rounds)))
        return
    print(f"{processor_name()}, {os.cpu_count()} processors")
    said = disturbance()
    if said:
        print(said)
    for count in counts:
        print(f"\n{count} thread{'s' if count > 1 else ''}")
        beside(
            "halide",
            names or apps.names(),
            partial(measured, threads=count, rounds=rounds),
        )


if __name__ == "__main__":
    main()
