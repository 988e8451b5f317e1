"""Side by side with another engine over the benchmark networks (python -m benchmarks.bench)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import harness, models
from tilewright.cli import rounds as timing
from tilewright.cli.engines import ENGINES
from tilewright.cli.rounds import Row, Task

# What "fast enough" means, as shares of the peer's speed.
GEOMETRIC_MEAN_BAR = 0.8
EACH_BAR = 0.5
# Largest difference from the float64 reference (or from the peer), relative to the peak.
ERROR_BAR = 1e-4


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    facts: dict[str, Any] = {"system": platform.platform(), "python": platform.python_version()}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            facts["processor"] = line.partition(":")[2].strip()
        if line.startswith("flags"):
            wide = ("avx2", "fma", "avx512f", "avx512_vnni", "amx_tile")
            facts["features"] = [f for f in wide if f in line.split()]
    facts["cpus"] = sorted(os.sched_getaffinity(0))
    facts["load"] = os.getloadavg()[0]
    for package in ("onnxruntime", "onnx", "numpy", "llvmlite"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    return facts


def prepare(name: str, directory: Path) -> tuple[Path, Path]:
    """The model file and the file of its inputs (`in.<name>`), made where they are missing."""
    path = models.build(name, directory)
    inputs = directory / f"{name}.inputs.npz"
    np.savez(inputs, **{f"in.{k}": v for k, v in models.inputs(name).items()})  # type: ignore[arg-type]
    return path, inputs


def reference_outputs(name: str, path: Path) -> list[np.ndarray]:
    """The outputs in float64, computed once per model file."""
    from benchmarks import reference

    return reference.outputs(name, path)


def summary(rows: list[Row], peer: str) -> dict[str, Any]:
    """Geometric mean and minimum of the speed ratios per thread count, and over everything."""
    result: dict[str, Any] = {}
    for threads in [*sorted({row.threads for row in rows}), None]:
        chosen = [row for row in rows if threads in (None, row.threads)]
        speeds = [s for row in chosen if (s := row.speed(peer)) is not None]
        group = "all" if threads is None else f"threads={threads}"
        result[group] = {
            "geometric_mean": harness.geometric_mean(speeds) if speeds else None,
            "minimum": min(speeds, default=None),
            "rows": len(chosen),
            "without_ratio": len(chosen) - len(speeds),
        }
    return result


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(rows: list[Row], engines: list[str]) -> Table:
    """The rows as a table; speed is the peer's time over ours, above 1 we are faster."""
    view = Table(
        title="Milliseconds per call (median of rounds); speed = peer / ours", expand=False
    )
    for heading in ("network", "threads"):
        view.add_column(heading)
    for engine in engines:
        view.add_column(f"{engine} ms", justify="right")
    for peer in engines[1:]:
        view.add_column(f"speed vs {peer}", justify="right")
        view.add_column("quartiles", justify="right")
    view.add_column("error", justify="right")
    view.add_column("load s", justify="right")
    for row in rows:
        cells = [row.network, str(row.threads)]
        for engine in engines:
            times = row.times.get(engine)
            cells.append(_number(statistics.median(times) if times else None, ".3f"))
        for peer in engines[1:]:
            ratios = sorted(row.ratios(peer))
            cells.append(_number(row.speed(peer), ".2f"))
            ends = (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]) if ratios else None
            cells.append(f"{ends[0]:.2f}-{ends[1]:.2f}" if ends else "-")
        cells.append(_number(row.error.get(engines[0]), ".1e"))
        cells.append(_number(row.load_seconds.get(engines[0]), ".2f"))
        view.add_row(*cells)
    return view


def verdict(rows: list[Row], peer: str) -> list[str]:
    """What is missed of the bars, one sentence each; empty if all are met."""
    ours = rows[0].engines[0] if rows else ""
    missed = [f"{r.network} x{r.threads}: {e} failed: {why}" for r in rows
              for e, why in r.failed.items()]  # fmt: skip
    for row in rows:
        speed, error = row.speed(peer), row.error.get(ours)
        if speed is not None and speed < EACH_BAR:
            missed.append(f"{row.network} x{row.threads}: speed {speed:.2f}, bar {EACH_BAR}")
        if error is not None and not error <= ERROR_BAR:
            missed.append(f"{row.network} x{row.threads}: error {error:.1e}, bar {ERROR_BAR:.0e}")
    for group, facts in summary(rows, peer).items():
        mean = facts["geometric_mean"]
        if mean is not None and mean < GEOMETRIC_MEAN_BAR:
            missed.append(f"{group}: geometric mean {mean:.2f}, bar {GEOMETRIC_MEAN_BAR}")
    return missed


def _integers(_context: object, _parameter: object, value: str) -> list[int]:
    try:
        numbers = [int(v) for v in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: expected numbers like 1,2") from error
    if min(numbers) < 1:
        raise click.BadParameter(f"{value!r}: a thread count is at least 1")
    return numbers


def _networks(_context: object, _parameter: object, value: str | None) -> list[str]:
    names = value.split(",") if value else list(models.STANDARD)
    unknown = [name for name in names if name not in models.RECIPES]
    if unknown:
        raise click.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(models.RECIPES)}")
    return names


networks_option = click.option(
    "--networks", callback=_networks, help="Names with commas between; else the standard eight."
)


@click.command(epilog="Example: python -m benchmarks.bench --networks lenet,resnet50 --threads 1,2")
@networks_option
@click.option("--threads", default="1,2", callback=_integers, show_default=True)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=0.5, show_default=True, help="Of calls in one round.")
@click.option("--ours", default="tilewright", show_default=True, type=click.Choice(list(ENGINES)))
@click.option("--against", default="onnxruntime", show_default=True, help="Engines with commas.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Of the model files.")
@click.option("--out", type=click.Path(path_type=Path), help="Where rows.jsonl, bench.json go.")
@click.option("--reference/--no-reference", default=True, help="Errors from float64, else a peer.")
@click.option("--fresh", is_flag=True, help="Measure again what rows.jsonl already has.")
@click.option("--check", is_flag=True, help="Exit with 1 where a bar is missed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def main(
    networks: list[str], threads: list[int], rounds: int, seconds: float, ours: str, against: str,
    directory: Path | None, out: Path | None, reference: bool, fresh: bool, check: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Time networks side by side: same cores, same threads, rounds interleaved."""
    engines = [ours, *against.split(",")]
    unknown = [e for e in engines if e not in ENGINES]
    if unknown:
        raise click.UsageError(f"no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    directory = directory or models.default_directory()
    out = out or models.default_directory() / "results"
    store = harness.Rows(out / "rows.jsonl")
    facts: dict[str, Any] = {
        "machine": machine(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    names = timing.labels(engines)
    version = harness.source_hash()
    console = Console(stderr=True)
    rows: list[Row] = []
    for network in networks:
        path, inputs = prepare(network, directory)
        expected = reference_outputs(network, path) if reference else None
        for count in threads:
            setting = [network, models.recipe_hash(network), count, *engines, rounds, seconds]
            key = "|".join(map(str, [*setting, reference, version]))
            row = None if fresh else store.get(key)
            if row is None:
                with console.status(f"{network}, {count} threads"):
                    task = Task(network, path, inputs, count)
                    row = timing.measure(task, engines, rounds, seconds, expected)
                row.key = key
                store.add(row)
            rows.append(row)
            _say(console, row, names)
    missed = verdict(rows, names[1])
    facts["summary"] = {peer: summary(rows, peer) for peer in names[1:]}
    result = {**facts, "missed": missed, "rows": [asdict(row) for row in rows]}
    (out / "bench.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(result))
    else:
        _report(rows, names, facts["summary"], missed, out)
    sys.exit(1 if check and missed else 0)


def _say(console: Console, row: Row, names: list[str]) -> None:
    speeds = ", ".join(f"{_number(row.speed(p), '.2f')} of {p}" for p in names[1:])
    console.print(f"{row.network} x{row.threads}: {speeds}", highlight=False)


def _report(
    rows: list[Row], names: list[str], found: dict[str, Any], missed: list[str], out: Path
) -> None:  # fmt: skip
    """The table, the summary lines and what is missed, on standard output."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table(rows, names))
    for peer in names[1:]:
        for group, facts in found[peer].items():
            mean, least = facts["geometric_mean"], facts["minimum"]
            console.print(
                f"{group}: geometric mean {_number(mean, '.2f')}, minimum {_number(least, '.2f')} "
                f"of {peer}'s speed ({facts['without_ratio']} of {facts['rows']} rows without)",
                highlight=False,
            )
    for sentence in missed:
        console.print(f"missed: {sentence}", highlight=False, markup=False)
    console.print(f"written: {out / 'bench.json'}", highlight=False)


if __name__ == "__main__":
    main()
