"""Halide's apps as its own autoschedulers schedule them, against this package's, in the same run.

python -m benchmarks.autoschedulers [NAME ...] [--with Adams2019] [--rounds N] [--beam N]
                                     [--threads N]

The apps of `examples/halide_apps` without their schedules: each package gets the same definitions,
the same estimates and the name of an autoscheduler, and schedules for as many threads. `--beam` is
the width of Halide's search, whose own (32) takes minutes for some apps. Each app is its own
process. The outputs are compared, and both are timed in alternating rounds, by the processor's time
of a single thread or the wall time of several, on the same arrays, which begin at a cache line as
those that Halide allocates. `compile` is what searching and compiling took, ours and theirs; a
ratio is their time over ours: above 1, this package is faster. The other is the package `halide`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.harness import beside, rounds_option, served, threads_option
from benchmarks.turns import clock_of, pair, stopwatch
from examples.halide_apps import app as apps
from tilewright.cli.rounds import disturbance
from tilewright.runtime.buffer import empty
from tilewright.runtime.machine import processor_name

APPS: Final = (
    "blur",
    "unsharp",
    "harris",
    "local_laplacian",
    "bilateral_grid",
    "interpolate",
    "camera_pipe",
    "conv_layer",
)
# Halide's schedules compute whole vectors, and read outside of this app's input at its edges.
INSIDE: Final = {"harris": 32}  # pixels from the edges
VERBS: Final = (
    "split tile fuse reorder reorder_storage parallel vectorize unroll serial rename bound "
    "bound_extent align_bounds align_storage compute_at compute_root compute_inline store_at "
    "store_root store_in hoist_storage fold_storage compute_with atomic prefetch specialize "
    "allow_race_conditions async_ trace_stores clone_in in_"
).split()


class Nothing:
    """A stage to which no verb does anything."""

    def __getattr__(self, name: str) -> Callable[..., Nothing]:
        return lambda *_, **__: self


class Unscheduled:
    """A Halide module whose Funcs ignore verbs."""

    def __init__(self, module: Any) -> None:
        same = {name: lambda self, *_, **__: self for name in VERBS}
        stages = {"update": lambda self, *_: Nothing()}
        self._module = module
        self.Func = type("Func", (module.Func,), same | stages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def load(name: str) -> apps.App:
    """An app, over a region that the schedules of both can compute."""
    app = apps.load(name)
    edge = INSIDE.get(name)
    if edge is None:
        return app
    return replace(
        app, region=lambda w, h: ((edge, w - 2 * edge), (edge, h - 2 * edge))
    )


def pipeline(hl: Any, app: apps.App, images: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The output of an app without a schedule, with estimates, and its images."""
    output, params = apps.built(Unscheduled(hl), app, images)
    for param, array in zip(params, images, strict=True):
        param.set_estimates([hl.Range(0, n) for n in reversed(array.shape)])
    output.set_estimates([hl.Range(low, n) for low, n in app.region(*app.size)])
    return output, params


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared. beam: width of Halide's search; 0: its own."""

    scheduler: str
    rounds: int
    beam: int
    threads: int


def ours(asked: Asked, app: apps.App, images: tuple[Any, ...]) -> apps.Ready:
    """The app as this package schedules it under that name."""
    from tilewright import halide as hl

    output, _ = pipeline(hl, app, images)
    extra = {"parallelism": asked.threads}
    params = hl.AutoschedulerParams(asked.scheduler, extra)
    done = hl.Pipeline(output).apply_autoscheduler(hl.get_host_target(), params)
    held = {f"input{n}": array for n, array in enumerate(images)}
    function = done.function
    inputs = [held[b.name] for b in function.kernel.inputs]
    (result,) = function.kernel.outputs
    out = aligned(np.zeros(result.shape, result.dtype.numpy))
    return apps.Ready(lambda: function(*inputs, out), out)


def theirs(
    asked: Asked, app: apps.App, images: tuple[Any, ...], out: Any
) -> apps.Ready:
    """The app as Halide's autoscheduler schedules it, into `out`."""
    import halide as hl

    library = f"libautoschedule_{asked.scheduler.lower()}.so"
    hl.load_plugin(str(Path(hl.__file__).parent / "lib64" / library))
    output, alive = pipeline(hl, app, images)
    extra = {"parallelism": asked.threads}
    if asked.beam:
        extra["beam_size"] = asked.beam
    params = hl.AutoschedulerParams(asked.scheduler, extra)
    hl.Pipeline(output).apply_autoscheduler(hl.get_host_target(), params)
    output.compile_jit()
    buffer = hl.Buffer(out)
    buffer.set_min([low for low, _ in app.region(*app.size)])
    return apps.Ready(lambda: (output.realize(buffer), alive), out)


def aligned(array: apps.Array) -> apps.Array:
    """A copy that begins at a cache line."""
    found = empty(array.shape, array.dtype)
    found[...] = array
    return found


def measure(name: str, asked: Asked) -> dict[str, Any]:
    """One app in this process: times, ratio, difference; `compile` has searching with it."""
    app = load(name)
    images = tuple(map(aligned, app.images(np.random.default_rng(0), *app.size)))
    start = time.thread_time()
    mine = ours(asked, app, images)
    middle = time.thread_time()
    other = theirs(asked, app, images, aligned(mine.out))
    end = time.thread_time()
    clock = clock_of(asked.threads)
    once = [stopwatch(call, clock)() for call in (mine.call, other.call)]
    difference = apps.difference(mine.out, other.out)
    return {
        **pair(mine.call, other.call, asked.rounds, clock, once),
        "compile": [middle - start, end - middle],
        "difference": difference,
        "tolerance": app.tolerance,
    }


def measured(name: str, asked: Asked) -> dict[str, Any]:
    """One app in its own process; `error` is what went wrong there."""
    threads = str(asked.threads)
    extra = {"HL_NUM_THREADS": threads, "TILEWRIGHT_NUM_THREADS": threads}
    arguments = [name, "--with", asked.scheduler, "--rounds", str(asked.rounds)]
    arguments += ["--beam", str(asked.beam), "--threads", threads]
    return served("benchmarks.autoschedulers", arguments, asked.threads, extra)


@click.command(epilog="Example: python -m benchmarks.autoschedulers blur harris")
@click.argument("names", nargs=-1)
@click.option("--with", "scheduler", default="Adams2019")
@rounds_option(7)
@click.option("--beam", default=0, help="width of Halide's search; 0: its own")
@threads_option()
@click.option("--serve", is_flag=True, hidden=True)
def main(names: tuple[str, ...], serve: bool, **given: Any) -> None:
    """Times what Halide's autoscheduler and this package's make of the same apps."""
    asked = Asked(**given)
    if serve:
        print(json.dumps(measure(names[0], asked)))
        return
    threads = f"{asked.threads} thread{'s' if asked.threads > 1 else ''}"
    print(
        f"{processor_name()}, {os.cpu_count()} processors, {asked.scheduler}, {threads}"
    )
    said = disturbance()
    if said:
        print(said)
    beside("halide", names or APPS, partial(measured, asked=asked))


if __name__ == "__main__":
    main()
