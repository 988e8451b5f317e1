"""The pretrained model: what it learns from, and how it is trained (python -m benchmarks.pretrain).

    python -m benchmarks.pretrain data v3.jsonl --seconds 3600 --mcpu x86-64-v3
    python -m benchmarks.pretrain train v3.jsonl v4.jsonl -o pretrained.json

`data` measures random layers of networks and random image pipelines, each kernel with random
schedules, and immediately adds every program to the file: a killed run resumes where it stopped.
`train` fits trees to the programs, prints how good they are on unseen models, and writes the model
with its card.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from benchmarks import harness, pretrain_data, pretrain_fit
from tilewright.base.errors import TilewrightError
from tilewright.testing.random_layers import KINDS
from tilewright.tune.pretrained import LEAST, MARGIN


@click.group()
def main() -> None:
    """Measure programs, and train a model of them."""


@main.command(epilog="Example: python -m benchmarks.pretrain data v3.jsonl")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(0))
@click.option("--mcpu", default="native", show_default=True, help="Instructions.")
@click.option("--count", default=24, show_default=True, type=click.IntRange(2))
@click.option("--realtime", is_flag=True, help="Time with real-time priority.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS)),
    help="Only operators of this kind; may be repeated.",
)
@click.option(
    "--shortest",
    default=pretrain_data.SHORTEST,
    show_default=True,
    type=click.FloatRange(0),
    help="Skip kernels whose default takes less time (in seconds).",
)
def data(
    path: Path,
    seconds: float,
    mcpu: str,
    count: int,
    realtime: bool,
    kinds: tuple[str, ...],
    shortest: float,
) -> None:
    """Measure programs for --seconds, COUNT of each kernel, and add them to PATH."""
    machine = harness.machine()
    try:
        said = pretrain_data.collect(
            path, seconds, mcpu, count, machine, _say, realtime, kinds, shortest
        )
    except TilewrightError as error:
        raise click.ClickException(str(error)) from error
    click.echo(", ".join(f"{n} {what}" for what, n in said.most_common()))


@main.command(epilog="Example: python -m benchmarks.pretrain train v3.jsonl -o m.json")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path))
@click.option(
    "--objective",
    default="regression",
    show_default=True,
    type=click.Choice(["rank", "regression"]),
    help="By pairs, or squares of logarithms of seconds.",
)
@click.option("--prior/--no-prior", default=False, show_default=True)
@click.option("--rounds", default=150, show_default=True, type=click.IntRange(1))
@click.option("--members", default=6, show_default=True, type=click.IntRange(1))
@click.option("--margin", default=MARGIN, show_default=True, type=click.FloatRange(0))
@click.option("--least", default=LEAST, show_default=True, type=click.FloatRange(0))
@click.option(
    "--shortest",
    default=2e-5,
    show_default=True,
    type=click.FloatRange(0),
    help="Skip kernels whose default takes less time (in seconds).",
)
@click.option("--seed", default=0, show_default=True)
def train(
    paths: tuple[Path, ...],
    out: Path,
    objective: str,
    prior: bool,
    rounds: int,
    members: int,
    margin: float,
    least: float,
    shortest: float,
    seed: int,
) -> None:
    """Fit a model to the programs of PATHS, and say how good it is."""
    how = pretrain_fit.How(
        objective, prior, rounds, members, margin, least, shortest, seed
    )
    try:
        fitted = pretrain_fit.fit(paths, how)
        pretrain_fit.write(out, fitted, _command([*paths, out]))
    except TilewrightError as error:
        raise click.ClickException(str(error)) from error
    Console(width=110).print(pretrain_fit.table(fitted.results))
    click.echo(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


def _command(paths: Sequence[Path]) -> str:
    """This command, with files by name only: their folders mean nothing elsewhere."""
    names = {str(p): p.name for p in paths}
    given = [names.get(a, a) for a in sys.argv[1:]]
    return " ".join(["python -m benchmarks.pretrain", *given])


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
