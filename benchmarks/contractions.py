"""The contractions and stencils of MDH's papers, by the default schedule, against other engines.

    python -m benchmarks.contractions [NAME ...] [--threads 1,2] [--rounds 7]

Each case is one expression of `lang/mdh/syntax/catalog.py` at a size of TOPLAS 2024 (figure 17) or
PACT 2019. It is compared with the code that users would write: NumPy (`einsum` if it can express
it), PyTorch, and loops compiled by Numba; engines that are not installed are skipped. All run in
one process per number of threads, pinned to as many CPUs, their rounds interleaved; their results
are compared in the same run. A figure is the median of a round, and the ratio to ours.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import geometric_mean, median
from typing import Any

import click
import numpy as np

from benchmarks.contraction_cases import CASES, Case
from benchmarks.harness import child_environment, rounds_option, thread_counts_option
from benchmarks.turns import by_turns, stopwatch
from tilewright.lang import mdh
from tilewright.runtime.machine import processor_name

ENGINES = ("numpy", "torch", "numba")
WARMUP = (
    2  # calls of each engine before the first round, the first of which may compile
)
LIBRARIES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def installed(asked: str) -> list[str]:
    """The requested engines that can be imported."""
    return [e for e in asked.split(",") if importlib.util.find_spec(e) is not None]


def ours(case: Case, arrays: Sequence[Any], threads: int) -> Callable[[], Any]:
    """Our function on the arrays, into results that are allocated once, as the engines' are not
    where they have no way to say it."""
    expression = case.expression()
    results = [np.empty(b.shape, b.dtype.numpy) for b in expression.results]
    function = mdh.build(expression, threads=threads)

    def run() -> Any:
        function(*arrays, *results)
        return results

    return run


def runs(
    case: Case, threads: int, engines: Sequence[str]
) -> tuple[dict[str, Callable[[], Any]], float]:
    """The timed functions, by engine, and the seconds that our compiler took."""
    rng = np.random.default_rng(0)
    arrays = case.inputs(rng)
    start = time.perf_counter()
    found = {"tilewright": ours(case, arrays, threads)}
    seconds = time.perf_counter() - start
    for engine in engines:
        make = getattr(case, engine)
        found[engine] = make(*arrays)
    return found, seconds


def check(case: Case, found: Mapping[str, Callable[[], Any]]) -> None:
    """Raise ClickException if an engine's result is not ours."""
    mine = found["tilewright"]()
    for engine, run in found.items():
        theirs = run()
        for a, b in zip(mine, theirs, strict=True):
            b = np.asarray(b)
            if a.dtype.kind != "f":
                same = np.array_equal(a, b)
            else:
                atol = case.tolerance * float(np.abs(a).max())
                same = np.allclose(a, b, rtol=0, atol=atol)
            if not same:
                raise click.ClickException(f"{case.name}: {engine} has another result")


def measure(
    case: Case, threads: int, rounds: int, engines: Sequence[str]
) -> dict[str, float]:
    """Milliseconds of each engine: medians over interleaved rounds; `compile` is ours."""
    found, seconds = runs(case, threads, engines)
    for run in found.values():
        for _ in range(WARMUP):
            run()
    check(case, found)
    timed = {engine: stopwatch(run) for engine, run in found.items()}
    times = by_turns(timed, rounds)
    return {e: 1e3 * median(t) for e, t in times.items()} | {"compile": 1e3 * seconds}


def table(
    cases: Sequence[Case], threads: int, rounds: int, engines: Sequence[str]
) -> None:
    """Prints one line per case."""
    head = "".join(f"{e:>18}" for e in engines)
    click.echo(f"{'case':<14}{'ms':>9}{'GFLOP/s':>9}{'GB/s':>7}{head}  compile s")
    ratios: dict[str, list[float]] = {e: [] for e in engines}
    for case in cases:
        found = measure(case, threads, rounds, engines)
        mine = found["tilewright"]
        cells = []
        for engine in engines:
            ratio = found[engine] / mine
            ratios[engine].append(ratio)
            cells.append(f"{found[engine]:>10.2f} {ratio:>6.2f}x")
        rate = case.flops / mine / 1e6
        moved = case.nbytes / mine / 1e6
        text = f"{case.name:<14}{mine:>9.2f}{rate:>9.1f}{moved:>7.1f}{''.join(cells)}"
        click.echo(f"{text}  {found['compile'] / 1e3:.2f}")
    means = (f"{e} {geometric_mean(r):.2f}x" for e, r in ratios.items() if r)
    click.echo(f"geometric means of theirs / ours: {', '.join(means)}")


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@thread_counts_option()
@rounds_option(7)
@click.option("--engines", default=",".join(ENGINES), help="Engines to compare with.")
@click.option("--small", is_flag=True, help="Small sizes, as a smoke test.")
@click.option("--here", is_flag=True, hidden=True)
def main(
    names: tuple[str, ...],
    threads: list[int],
    rounds: int,
    engines: str,
    small: bool,
    here: bool,
) -> None:
    """See the module's docstring."""
    unknown = set(names) - {c.name for c in CASES}
    if unknown:
        known = ", ".join(c.name for c in CASES)
        raise click.ClickException(f"no case {', '.join(unknown)}; known: {known}")
    if here:
        cases = [
            c.small() if small else c for c in CASES if not names or c.name in names
        ]
        table(cases, threads[0], rounds, installed(engines))
        return
    click.echo(f"{processor_name()}, load {os.getloadavg()[0]:.1f}")
    cpus = sorted(os.sched_getaffinity(0))
    for n in threads:
        click.echo(f"\n{n} thread{'s' * (n > 1)}")
        options = ["--threads", str(n), "--rounds", str(rounds), "--engines", engines]
        options += ["--here", *["--small"] * small]
        command = [sys.executable, "-m", "benchmarks.contractions", *names, *options]
        # Threads of an idle engine must not spin on the CPUs of others.
        waiting = {"OMP_WAIT_POLICY": "passive"}
        environment = child_environment(dict.fromkeys(LIBRARIES, str(n)) | waiting)
        done = subprocess.run(
            command,
            env=environment,
            preexec_fn=partial(os.sched_setaffinity, 0, cpus[:n]),
        )
        if done.returncode:
            raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
