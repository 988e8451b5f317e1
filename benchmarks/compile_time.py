"""Seconds to compile a network, with an empty cache and again from the cache."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import models
from benchmarks.harness import compile_byte_code, networks_option
from benchmarks.probe import ProbeFailed, fresh

# Seconds on two cores: with an empty cache, and again.
COLD = {"lenet": 1.0, "resnet50": 3.5, "densenet121": 9.0, "bert_base": 6.0}
CACHED = 0.5


def measure(name: str, directory: Path, threads: int) -> dict[str, Any]:
    """Cold and cached compile seconds and cold peak memory, each compile in a fresh process."""
    path = models.build(name, directory)
    with tempfile.TemporaryDirectory() as cache:
        env = {"TILEWRIGHT_CACHE_DIR": cache}
        cold = fresh("compile", path, threads, "-", env=env)
        cached = fresh("compile", path, threads, "-", env=env)
        size = sum(f.stat().st_size for f in Path(cache).rglob("*") if f.is_file())
    return {"network": name, "cold_seconds": cold["compile_seconds"],
            "cached_seconds": cached["compile_seconds"], "cache_megabytes": size / 1e6,
            "peak_megabytes": cold["peak_megabytes"]}  # fmt: skip


def missed(row: dict[str, Any]) -> list[str]:
    """What is missed of the bars, one sentence each."""
    bars = {"cold": COLD.get(row["network"]), "cached": CACHED}
    return [
        f"{row['network']}: {kind} {row[f'{kind}_seconds']:.2f} s, bar {bar} s"
        for kind, bar in bars.items()
        if bar is not None and row[f"{kind}_seconds"] > bar
    ]


@click.command(epilog="Example: python -m benchmarks.compile_time --networks resnet50")
@networks_option
@click.option("--threads", default=2, show_default=True)
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Of the model files."
)
@click.option("--check", is_flag=True, help="Exit with 1 where a bar is missed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per network.")
def main(
    networks: list[str],
    threads: int,
    directory: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    """Compile each network with an empty kernel cache, and again from the cache."""
    view = Table(title="Compile time, seconds")
    for heading in ("network", "cold", "cached", "cached/cold", "cache MB", "peak MB"):
        view.add_column(heading, justify="left" if heading == "network" else "right")
    problems: list[str] = []
    compile_byte_code()
    for name in networks:
        try:
            row = measure(name, directory or models.default_directory(), threads)
        except ProbeFailed as failure:
            problems.append(f"{name}: {failure}")
            continue
        problems += missed(row)
        if as_json:
            click.echo(json.dumps(row))
        cold, cached = row["cold_seconds"], row["cached_seconds"]
        view.add_row(name, f"{cold:.2f}", f"{cached:.2f}", f"{cached / cold:.2f}",
                     f"{row['cache_megabytes']:.1f}", f"{row['peak_megabytes']:.0f}")  # fmt: skip
    if not as_json:
        Console().print(view)
    for problem in problems:
        click.echo(f"missed: {problem}", err=True)
    sys.exit(1 if check and problems else 0)


if __name__ == "__main__":
    main()
