"""Load time and peak memory of a fresh process, an artifact against two runtimes' models."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import (
    compile_byte_code,
    directory_option,
    networks_option,
    prepare,
    threads_option,
)
from benchmarks.probe import ProbeFailed, fresh

# Seconds that loading may take on top of reading the file.
LOAD_BAR = 0.3
# Runtimes that load the model itself; the peak memory of the smaller one is the bar for ours.
PEERS = ("onnxruntime", "openvino")
ENGINES = ("tilewright", *PEERS)


def measure(name: str, directory: Path, threads: int, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` fresh processes per engine, the engines taking turns.

    A failed engine has its error text in place of numbers.
    """
    path, inputs = prepare(name, directory)
    with tempfile.TemporaryDirectory() as scratch:
        artifact = Path(scratch) / f"{name}.tw"
        row: dict[str, Any] = {
            "network": name,
            "model_megabytes": path.stat().st_size / 1e6,
        }
        files = {"tilewright": artifact, **dict.fromkeys(PEERS, path)}
        try:
            fresh("compile", path, threads, artifact)
            row["artifact_megabytes"] = artifact.stat().st_size / 1e6
        except ProbeFailed as failure:
            row["tilewright"] = str(failure)
            files.pop("tilewright")
        runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in files}
        for _ in range(repeats):
            for engine in list(runs):
                try:
                    runs[engine].append(
                        fresh("load", engine, files[engine], inputs, threads)
                    )
                except ProbeFailed as failure:
                    row[engine] = str(failure)
                    runs.pop(engine)
    for engine, found in runs.items():
        row[engine] = {
            key: statistics.median(run[key] for run in found) for key in found[0]
        }
    return row


def missed(row: dict[str, Any]) -> list[str]:
    """The missed bars, one sentence each."""
    failed = [
        f"{row['network']}: {e}: {row[e]}" for e in ENGINES if isinstance(row[e], str)
    ]
    if failed:
        return failed
    ours = row["tilewright"]
    result = []
    least = min(PEERS, key=lambda e: row[e]["peak_megabytes"])
    if ours["peak_megabytes"] > row[least]["peak_megabytes"]:
        result.append(f"{row['network']}: peak {ours['peak_megabytes']:.0f} MB, "
                      f"{least} {row[least]['peak_megabytes']:.0f} MB")  # fmt: skip
    if ours["load_seconds"] > LOAD_BAR + ours["read_seconds"]:
        result.append(f"{row['network']}: load {ours['load_seconds']:.2f} s, bar {LOAD_BAR} s "
                      f"and {ours['read_seconds']:.2f} s of reading")  # fmt: skip
    if ours["llvm_loaded"]:
        result.append(f"{row['network']}: loading the artifact imported llvmlite")
    return result


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "import s": lambda r: f"{r['import_seconds']:.3f}",
    "load s": lambda r: f"{r['load_seconds']:.3f}",
    "first call s": lambda r: f"{r['first_call_seconds']:.3f}",
    "peak MB": lambda r: f"{r['peak_megabytes']:.0f}",
}


@click.command(epilog="Example: python -m benchmarks.footprint --networks resnet50")
@networks_option
@threads_option()
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1))
@directory_option
@click.option("--check", is_flag=True, help="Exit with 1 if a bar is missed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per network.")
def main(
    networks: list[str], threads: int, repeats: int, directory: Path, check: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Load and run once in fresh processes: our artifact, and two runtimes with the model."""
    view = Table(
        title="A fresh process: import, load, first call, peak resident memory"
    )
    for heading in ("network", "engine", *COLUMNS):
        view.add_column(
            heading, justify="left" if heading in ("network", "engine") else "right"
        )
    problems: list[str] = []
    compile_byte_code()
    for name in networks:
        row = measure(name, directory, threads, repeats)
        problems += missed(row)
        if as_json:
            click.echo(json.dumps(row))
        for engine in ENGINES:
            found = row[engine]
            cells = ["-" for _ in COLUMNS] if isinstance(found, str) else [
                cell(found) for cell in COLUMNS.values()]  # fmt: skip
            view.add_row(name, engine, *cells)
    if not as_json:
        Console().print(view)
    for problem in problems:
        click.echo(f"missed: {problem}", err=True)
    sys.exit(1 if check and problems else 0)


if __name__ == "__main__":
    main()
