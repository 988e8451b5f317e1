"""What fusion brings: networks compiled as a whole against one operator at a time.

    python -m benchmarks.fusion --networks 'minilm,inception_v2'

Without fusion (`fusion=False`) each operator of the model as given has its own kernel, scheduled as
well as any other; a Reshape moves nothing. Calls alternate in one process, and outputs are
compared. One thread is timed by its processor time, which other work on
the machine hardly changes; several by the clock.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import tilewright as tw
from benchmarks import harness, models
from benchmarks.turns import by_turns, clock_of, stopwatch
from tilewright.cli import rounds as timing

ROW = "{:14} x{}  {:4} kernels {:9.4f} ms  fused {:4} kernels {:9.4f} ms  speed {:.3f}"
WORST = 1e-4  # of the peak of an output: sums are in another order


@dataclass(frozen=True)
class Compared:
    """Milliseconds of a call, a median of all, and kernels; first without fusion."""

    times: tuple[float, float]
    kernels: tuple[int, int]

    @property
    def speed(self) -> float:
        """How many times as fast fusion makes it."""
        return self.times[0] / self.times[1]


def compare(
    model: Path, feeds: Mapping[str, Any], threads: int, rounds: int
) -> Compared:
    """Time both forms of a model, interleaved; raises ClickException if outputs differ."""
    made: list[Any] = [
        tw.compile(model, fusion=fusion, threads=threads) for fusion in (False, True)
    ]
    results = [listed(exe(feeds)) for exe in made]
    for want, got in zip(*results, strict=True):
        error = difference(got, want)
        if not error < WORST:
            raise click.ClickException(
                f"{model.stem}: outputs differ by {error:.1e} of their peak"
            )
    clock = clock_of(threads)
    timed = {n: stopwatch(partial(e, feeds), clock) for n, e in enumerate(made)}
    seconds = by_turns(timed, rounds)
    apart, fused = (statistics.median(times) * 1e3 for times in seconds.values())
    kernels = [len(exe.model.kernels) for exe in made]
    return Compared((apart, fused), (kernels[0], kernels[1]))


def listed(results: Any) -> list[Any]:
    """The outputs of a call; of one output, it alone."""
    return [results] if isinstance(results, np.ndarray) else list(results)


def difference(got: Any, want: Any) -> float:
    """The largest difference relative to the largest value; 0 without elements."""
    peak = float(np.abs(want).max(initial=0.0)) or 1.0
    return float(np.abs(got - want).max(initial=0.0)) / peak


@click.command(epilog="Example: python -m benchmarks.fusion --networks 'lenet*'")
@harness.networks_option
@harness.threads_option()
@harness.rounds_option(31)
@click.option(
    "--least", default=1.5, show_default=True, help="Least accepted geometric mean."
)
@harness.directory_option
def main(
    networks: Sequence[str],
    threads: int,
    rounds: int,
    least: float,
    directory: Path,
) -> None:
    """Time networks with and without fusion.

    Exits with 1 if the geometric mean of the speeds is below --least.
    """
    disturbed = timing.disturbance()
    if disturbed:
        click.echo(disturbed, err=True)
    speeds = []
    for name in networks:
        row = compare(
            models.build(name, directory), models.inputs(name), threads, rounds
        )
        (before, after), (many, few) = row.times, row.kernels
        click.echo(ROW.format(name, threads, many, before, few, after, row.speed))
        speeds.append(row.speed)
    mean = math.exp(statistics.fmean(map(math.log, speeds)))
    click.echo(f"geometric mean {mean:.3f}, least {min(speeds):.3f}")
    sys.exit(0 if mean >= least else 1)


if __name__ == "__main__":
    main()
