"""Side by side with the best peers over networks and operators (python -m benchmarks.bench)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from benchmarks import harness, models, peers, reference, score, show
from tilewright.cli import rounds as timing
from tilewright.cli.rounds import RoundTable, TimingJob


@dataclass(frozen=True)
class Settings:
    """How rows are measured. against: in place of the required peers; probed: also if near."""

    directory: Path
    ours: str
    against: tuple[str, ...] | None
    probed: tuple[str, ...]
    rounds: int
    seconds: float
    reference: bool


def prepare(
    name: str, threads: int, how: Settings
) -> tuple[TimingJob, list[np.ndarray] | None]:
    """The timed functions, and the outputs in float64 (None: compare with a peer's)."""
    path, inputs = harness.prepare(name, how.directory)
    task = TimingJob(name, path, inputs, threads, worker="benchmarks.worker")
    return task, reference.outputs(name, path) if how.reference else None


def near(
    task: TimingJob, wanted: Sequence[str], yardstick: str, store: harness.Rows
) -> list[str]:
    """The engines that one round finds at most FAR_BEHIND times slower than `yardstick`.

    The round is kept in `store`: an engine is probed once per network and versions. Why an engine
    is left out is reported on standard error.
    """
    left_out = {e: reason for e in wanted if (reason := peers.missing(e)) is not None}
    usable = [engine for engine in wanted if engine not in left_out]
    if usable:
        row = _probe(task, [yardstick, *usable], store)
        for engine in usable:
            behind = next(iter(row.ratios(engine)), None)
            if behind is None:
                left_out[engine] = row.failed.get(engine, f"no time of {yardstick}")
            elif behind > peers.FAR_BEHIND:
                left_out[engine] = f"{behind:.0f} times behind {yardstick}"
    for engine, reason in left_out.items():
        click.echo(f"{task.name} x{task.threads}: without {engine}: {reason}", err=True)
    return [engine for engine in usable if engine not in left_out]


def _probe(task: TimingJob, engines: list[str], store: harness.Rows) -> RoundTable:
    parts = ["probe", task.name, models.recipe_hash(task.name), task.threads, *engines]
    key = "|".join(map(str, [*parts, harness.versions()]))
    row = store.rows.get(key)
    if row is None:
        row = timing.measure(task, engines, 1, 0.1)
        row.key = key
        store.add(row)
    return row


def measure(
    name: str,
    threads: int,
    how: Settings,
    version: str,
    store: harness.Rows,
    fresh: bool,
) -> RoundTable:
    """The row of a network or operator, from the store unless it is missing or `fresh`."""
    task, expected = prepare(name, threads, how)
    wanted = score.required(name, how.against)
    absent = {
        peer: reason for peer in wanted if (reason := peers.missing(peer)) is not None
    }
    engines = [how.ours, *(peer for peer in wanted if peer not in absent)]
    guests = near(task, how.probed, wanted[0], store)
    engines += guests
    setting = [
        name,
        models.recipe_hash(name),
        threads,
        *engines,
        how.rounds,
        how.seconds,
    ]
    key = "|".join(map(str, [*setting, how.reference, version, harness.versions()]))
    row = None if fresh or absent else store.get(key)
    if row is None:
        row = timing.measure(task, engines, how.rounds, how.seconds, expected)
        row.engines += absent
        row.failed |= absent
        _drop_wrong(row, guests)
        row.facts = harness.provenance(version)
        row.key = key
        store.add(row)
    return row


def _drop_wrong(row: RoundTable, guests: Sequence[str]) -> None:
    """Leave out guests that failed or gave wrong outputs: only a required peer makes a row void."""
    wrong = [g for g in guests if g in row.failed or not score.agrees(row, g)]
    for guest in wrong:
        row.failed.pop(guest, None)
        row.times.pop(guest, None)


def _engines(
    _context: object, _parameter: object, value: str | None
) -> tuple[str, ...] | None:
    names = tuple(value.split(",")) if value else ()
    unknown = [name for name in names if name not in peers.ENGINES]
    if unknown:
        known = ", ".join(peers.ENGINES)
        raise click.BadParameter(f"no engine {', '.join(unknown)}; there are {known}")
    return names or None


OPERATORS = (*models.OPERATORS, *models.QUANTIZED, *models.NETWORKS)


@click.command(
    epilog="Example: python -m benchmarks.bench --networks 'lenet*' --threads 1,2"
)
@harness.names_option("--networks", tuple(models.RECIPES))
@harness.names_option("--operators", OPERATORS)
@harness.thread_counts_option()
@harness.rounds_option(9)
@click.option(
    "--seconds", default=0.5, show_default=True, help="Seconds of calls per round."
)
@click.option("--ours", default="tilewright", show_default=True,
              type=click.Choice(list(peers.ENGINES)))  # fmt: skip
@click.option(
    "--against", callback=_engines, help="Engines in place of the required peers."
)
@click.option(
    "--probe", callback=_engines, help="Engines that take part if their speed is close."
)
@harness.directory_option
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory of the results."
)
@click.option(
    "--reference/--no-reference",
    default=True,
    help="Errors relative to float64, else to a peer.",
)
@click.option(
    "--fresh", is_flag=True, help="Measure again even if rows.jsonl has the row."
)
@click.option("--check", is_flag=True, help="Exit with 1 if a bar is missed.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON in place of the table."
)
def main(
    networks: list[str] | None, operators: list[str] | None, threads: list[int], rounds: int,
    seconds: float, ours: str, against: tuple[str, ...] | None, probe: tuple[str, ...] | None,
    directory: Path, out: Path | None, reference: bool, fresh: bool, check: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Time networks and operators against the peers: same cores, same threads, rounds interleaved.

    Everything is measured unless --networks or --operators selects some; an interrupted run resumes
    where it stopped.
    """
    names = [*(networks or ()), *(operators or ())] or [*models.RECIPES, *OPERATORS]
    out = out or models.default_directory() / "results"
    how = Settings(directory, ours, against, probe or (), rounds, seconds, reference)
    store = harness.Rows(out / "rows.jsonl")
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    facts = {"machine": harness.machine(), "started": started}
    version = harness.source_hash()
    console = Console(stderr=True)
    disturbed = timing.disturbance()
    if disturbed:
        console.print(disturbed, highlight=False)
    rows: list[RoundTable] = []
    for name in names:
        for count in threads:
            with console.status(f"{name}, {count} threads"):
                row = measure(name, count, how, version, store, fresh)
            rows.append(row)
            told = show.number(score.lead(row), ".2f")
            console.print(
                f"{name} x{count}: {told} of {score.fastest(row)}", highlight=False
            )
    missed, summary = score.missed(rows), score.summary(rows)
    result = {**facts, "summary": summary, "missed": missed,
              "rows": [asdict(row) | {"lead": score.lead(row)} for row in rows]}  # fmt: skip
    (out / "bench.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )
    show.write_picture(rows, out / "bench.svg")
    if as_json:
        click.echo(json.dumps(result))
    else:
        _report(rows, summary, missed, out)
    sys.exit(1 if check and missed else 0)


def _report(
    rows: list[RoundTable],
    groups: list[dict[str, Any]],
    missed: list[str],
    out: Path,
) -> None:
    """Print the table, the summary lines and the missed bars."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(show.table(rows))
    for group in groups:
        mean, least = (
            show.number(group[key], ".2f") for key in ("geometric_mean", "minimum")
        )
        console.print(
            f"{group['kind']} x{group['threads']}: geometric mean {mean}, minimum {least} of the "
            f"fastest peer's speed ({group['void']} of {group['rows']} rows void)",
            highlight=False,
        )
    for sentence in missed:
        console.print(f"missed: {sentence}", highlight=False, markup=False)
    console.print(f"written: {out}/rows.jsonl, bench.json, bench.svg", highlight=False)


if __name__ == "__main__":
    main()
