"""The speed of these sources against those of another checkout: rounds interleaved, same cores.

A refactoring must not make compiled code slower:

    git worktree add ../before v0.1
    python -m benchmarks.commits ../before --networks '*'

`--models` takes files instead, each with its inputs beside it as `benchmarks.zoo --check export`
writes them; `--against` times peers in the same rounds.
"""

from __future__ import annotations

import glob
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import harness
from tilewright.cli import rounds as timing

ROW = "{:16} x{}  before {:9.4f} ms  after {:9.4f} ms  before / after {:.3f}"
OURS = ("before", "after")
TORCH = ("torch_eager", "torch_compile")  # run a program of PyTorch beside the model


def task(
    model: Path,
    threads: int,
    before: Path,
    against: Sequence[str] = (),
) -> timing.TimingJob:
    """A model that two engines run: `after`, these sources, and `before`, those of a checkout.

    against: peers, which run from these sources.
    """
    sources = dict.fromkeys(("after", *against), harness.ROOT) | {"before": before}
    options: dict[str, dict[str, Any]]
    options = {k: {"sources": str(v.resolve() / "src")} for k, v in sources.items()}
    programs = {name: model.with_suffix(".pt2") for name in TORCH if name in against}
    for name in OURS:
        options[name]["fallback"] = "error"
    for name in programs:
        options[name]["trust"] = True
    return timing.TimingJob(
        model.stem,
        model,
        harness.inputs_of(model),
        threads,
        models=programs,
        options=options,
        worker="benchmarks.commit_worker",
    )


def reference(inputs: Path) -> list[timing.Array] | None:
    """The outputs in float64 beside the inputs; None if there are none."""
    if not inputs.exists():
        raise click.ClickException(
            f"{inputs} is missing: np.savez({inputs.name!r}, **{{'in.NAME': array}})"
        )
    with np.load(inputs) as archive:
        names = [f"out.{i}" for i in range(len(archive.files))]
        return [archive[name] for name in names if name in archive.files] or None


def shown(row: timing.RoundTable) -> str:
    """A line on one network; raises ClickException if it did not run or outputs differ.

    A peer's failure is shown in its place.
    """
    for name in OURS:
        if name in row.failed:
            raise click.ClickException(f"{row.network}: {row.failed}")
    error = max(row.error.get(name, 0.0) for name in OURS)
    if not all(row.error.get(name, 0.0) < 1e-4 for name in OURS):
        raise click.ClickException(
            f"{row.network}: outputs differ by {error:.1e} of their peak"
        )
    medians = [statistics.median(row.times[e]) for e in OURS]
    peers = "".join(
        f"  {name} {row.failed.get(name) or format(row.speed(name), '.2f')}"
        for name in row.engines
        if name not in OURS
    )
    line = ROW.format(row.network, row.threads, *medians, row.speed("before"))
    return line + peers


def mean(speeds: Sequence[float]) -> str:
    """The geometric mean and the least."""
    middle = statistics.geometric_mean(speeds)
    return f"geometric mean {middle:.3f}, least {min(speeds):.3f}"


@click.command(epilog="Example: python -m benchmarks.commits ../before --threads 1")
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@harness.networks_option
@click.option("--models", "paths", help="ONNX files instead, with * and commas.")
@click.option("--against", default="", help="Peers to time, commas between them.")
@harness.threads_option()
@harness.rounds_option(9)
@click.option(
    "--seconds", default=0.3, show_default=True, help="Seconds of calls per round."
)
@click.option(
    "--least", default=0.99, show_default=True, help="Least accepted geometric mean."
)
@harness.directory_option
def main(
    before: Path,
    networks: Sequence[str],
    paths: str | None,
    against: str,
    threads: int,
    rounds: int,
    seconds: float,
    least: float,
    directory: Path,
) -> None:
    """Time networks compiled by these sources and by those of BEFORE, a checkout.

    Exits with 1 if the geometric mean of before / after is below --least.
    """
    peers = against.split(",") if against else []
    disturbed = timing.disturbance()
    if disturbed:
        click.echo(disturbed, err=True)
    speeds, leads = [], []
    for model in files(paths) if paths else _networks(networks, directory):
        work = task(model, threads, before, peers)
        right = reference(work.inputs)
        row = timing.measure(work, ["after", *peers, "before"], rounds, seconds, right)
        click.echo(shown(row))
        speeds.append(row.speed("before") or math.nan)
        leads.append(lead(row))
    click.echo(mean(speeds))
    known = [found for found in leads if found is not None]
    if known:
        click.echo(f"over the fastest peer: {mean(known)}")
    sys.exit(0 if statistics.geometric_mean(speeds) >= least else 1)


def lead(row: timing.RoundTable) -> float | None:
    """How many times faster than the fastest peer these sources are; None without a peer."""
    found = [row.speed(name) for name in row.engines if name not in OURS]
    return min((speed for speed in found if speed is not None), default=None)


def files(patterns: str) -> list[Path]:
    """The files that patterns match; BadParameter if a pattern matches none."""
    found: list[Path] = []
    for pattern in patterns.split(","):
        matched = sorted(map(Path, glob.glob(pattern)))
        if not matched:
            raise click.BadParameter(f"no file {pattern}")
        found += matched
    return found


def _networks(names: Sequence[str], directory: Path) -> Iterator[Path]:
    return (harness.prepare(name, directory)[0] for name in names)


if __name__ == "__main__":
    main()
