"""Halide's apps by the `halide` package and here: same lines, same schedule, same run.

python -m benchmarks.halide_apps [NAME ...] [--threads 1,2] [--rounds N]

Each app and number of threads is its own process. Both modules compile the app, fill the same
output, which must be equal (floats: within the app's tolerance), and are timed in alternating
rounds: one thread by its processor time, in which other work on the machine does not show, several
by the clock. A ratio is their time over ours: above 1, this package is faster.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.harness import beside, rounds_option, served, thread_counts_option
from benchmarks.turns import pair, stopwatch
from examples.halide_apps import app as apps
from tilewright.cli.rounds import disturbance
from tilewright.runtime.machine import processor_name


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
    once = [stopwatch(call, clock)() for call in (mine.call, other.call)]
    difference = apps.difference(mine.out, other.out)
    return {
        **pair(mine.call, other.call, rounds, clock, once),
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
@thread_counts_option()
@rounds_option(7)
@click.option("--serve", is_flag=True, hidden=True)
def main(names: tuple[str, ...], threads: list[int], rounds: int, serve: bool) -> None:
    """Times Halide's apps side by side."""
    if serve:
        print(json.dumps(measure(names[0], threads[0], rounds)))
        return
    print(f"{processor_name()}, {os.cpu_count()} processors")
    said = disturbance()
    if said:
        print(said)
    for count in threads:
        print(f"\n{count} thread{'s' if count > 1 else ''}")
        beside(
            "halide",
            names or apps.names(),
            partial(measured, threads=count, rounds=rounds),
        )


if __name__ == "__main__":
    main()
