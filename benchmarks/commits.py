"""The speed of these sources against those of another checkout: rounds interleaved, same cores.

A refactoring must not make compiled code slower:

    git worktree add ../before v0.1
    python -m benchmarks.commits ../before --networks '*'
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import harness, models
from tilewright.cli import rounds as timing

ROW = "{:16} x{}  before {:9.4f} ms  after {:9.4f} ms  before / after {:.3f}"


def task(name: str, threads: int, before: Path, directory: Path) -> timing.TimingJob:
    """A network that two engines run: `after`, these sources, and `before`, those of a checkout."""
    path, inputs = harness.prepare(name, directory)
    sources = {"after": harness.ROOT, "before": before}
    options = {k: {"sources": str(v.resolve() / "src")} for k, v in sources.items()}
    worker = "benchmarks.commit_worker"
    return timing.TimingJob(name, path, inputs, threads, options=options, worker=worker)


def shown(row: timing.RoundTable) -> str:
    """A line on one network; raises ClickException if it did not run or outputs differ."""
    if row.failed:
        raise click.ClickException(f"{row.network}: {row.failed}")
    error = row.error["after"]
    if not error < 1e-4:
        raise click.ClickException(
            f"{row.network}: outputs differ by {error:.1e} of their peak"
        )
    medians = [statistics.median(row.times[e]) for e in ("before", "after")]
    return ROW.format(row.network, row.threads, *medians, row.speed("before"))


@click.command(epilog="Example: python -m benchmarks.commits ../before --threads 1")
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@harness.networks_option
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--seconds", default=0.3, show_default=True, help="Seconds of calls per round."
)
@click.option(
    "--least", default=0.99, show_default=True, help="Least accepted geometric mean."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the model files.",
)
def main(
    before: Path,
    networks: Sequence[str],
    threads: int,
    rounds: int,
    seconds: float,
    least: float,
    directory: Path | None,
) -> None:
    """Time networks compiled by these sources and by those of BEFORE, a checkout.

    Exits with 1 if the geometric mean of before / after is below --least.
    """
    where = directory or models.default_directory()
    disturbed = timing.disturbance()
    if disturbed:
        click.echo(disturbed, err=True)
    speeds = []
    for name in networks:
        work = task(name, threads, before, where)
        row = timing.measure(work, ["after", "before"], rounds, seconds)
        click.echo(shown(row))
        speeds.append(row.speed("before") or math.nan)
    mean = math.exp(statistics.fmean(map(math.log, speeds)))
    click.echo(f"geometric mean {mean:.3f}, least {min(speeds):.3f}")
    sys.exit(0 if mean >= least else 1)


if __name__ == "__main__":
    main()
