"""Seconds to compile a network, with an empty cache and again from the cache, and the artifact.

--stages: time by stage. --tiers: until the first result of a model that is interpreted at first.
--peers: against the time of ONNX Runtime and OpenVINO to load the model.
"""

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
from benchmarks.harness import (
    compile_byte_code,
    directory_option,
    networks_option,
    prepare,
    threads_option,
)
from benchmarks.probe import ProbeFailed, fresh

# Seconds on two cores: with an empty cache, and again.
COLD = {"lenet": 1.0, "resnet50": 3.5, "densenet121": 9.0, "bert_base": 6.0}
PEERS = ("onnxruntime", "openvino")
CACHED = 0.5


def measure(name: str, directory: Path, threads: int) -> dict[str, Any]:
    """Cold and cached compile seconds, cold peak memory, and the size of the artifact and of the
    model's file, each compile in a fresh process."""
    path = models.build(name, directory)
    with tempfile.TemporaryDirectory() as folder:
        env = {"TILEWRIGHT_CACHE_DIR": f"{folder}/cache"}
        artifact = Path(folder) / "model.tw"
        cold = fresh("compile", path, threads, artifact, env=env)
        cached = fresh("compile", path, threads, "-", env=env)
        size = artifact.stat().st_size
    return {"network": name, "cold_seconds": cold["compile_seconds"],
            "cold_processor_seconds": cold["processor_seconds"],
            "cached_seconds": cached["compile_seconds"],
            "artifact_megabytes": size / 1e6, "model_megabytes": path.stat().st_size / 1e6,
            "peak_megabytes": cold["peak_megabytes"]}  # fmt: skip


def stages(name: str, directory: Path, threads: int) -> dict[str, float]:
    """Seconds of each stage of a cold compile in a fresh process; see `probe.stages`."""
    path = models.build(name, directory)
    with tempfile.TemporaryDirectory() as cache:
        env = {"TILEWRIGHT_CACHE_DIR": cache}
        found: dict[str, float] = fresh("stages", path, threads, env=env)
    return found


def tiers(name: str, directory: Path, threads: int) -> dict[str, float]:
    """Seconds of compilation in tiers in a fresh process; see `probe.tiers`."""
    path, inputs = prepare(name, directory)
    with tempfile.TemporaryDirectory() as cache:
        env = {"TILEWRIGHT_CACHE_DIR": cache}
        found: dict[str, float] = fresh("tiers", path, inputs, threads, env=env)
    return found


def peer(engine: str, name: str, directory: Path, threads: int) -> float:
    """Seconds in which another engine loads the model, without its import."""
    path, inputs = prepare(name, directory)
    return float(fresh("load", engine, path, inputs, threads)["load_seconds"])


def missed(row: dict[str, Any]) -> list[str]:
    """The missed bars, one sentence each."""
    bars = {"cold": COLD.get(row["network"]), "cached": CACHED}
    return [
        f"{row['network']}: {kind} {row[f'{kind}_seconds']:.2f} s, bar {bar} s"
        for kind, bar in bars.items()
        if bar is not None and row[f"{kind}_seconds"] > bar
    ]


@click.command(epilog="Example: python -m benchmarks.compile_time --networks resnet50")
@networks_option
@threads_option(2)
@directory_option
@click.option("--stages", "by_stage", is_flag=True, help="Where the time goes.")
@click.option("--tiers", "in_tiers", is_flag=True, help="Until the first result.")
@click.option("--peers", is_flag=True, help="Compare with ONNX Runtime and OpenVINO.")
@click.option("--check", is_flag=True, help="Exit with 1 if a bar is missed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per network.")
def main(
    networks: list[str],
    threads: int,
    directory: Path,
    by_stage: bool,
    in_tiers: bool,
    peers: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Compile each network with an empty kernel cache, and again from the cache."""
    found: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    compile_byte_code()
    for name in networks:
        folder = directory
        try:
            row = measure(name, folder, threads)
            if peers:
                row["peers"] = {e: peer(e, name, folder, threads) for e in PEERS}
            if by_stage:
                row["stages"] = stages(name, folder, threads)
            if in_tiers:
                row["tiers"] = tiers(name, folder, threads)
        except ProbeFailed as failure:
            problems.append(f"{name}: {failure}")
            continue
        problems += missed(row)
        if as_json:
            click.echo(json.dumps(row))
        found[name] = shown(row)
    if not as_json:
        Console().print(table(found))
    for problem in problems:
        click.echo(f"missed: {problem}", err=True)
    sys.exit(1 if check and problems else 0)


def table(found: dict[str, dict[str, str]]) -> Table:
    """A column for each network."""
    view = Table(title="Compile time, seconds")
    view.add_column()
    for name in found:
        view.add_column(name, justify="right")
    for line in next(iter(found.values()), {}):
        view.add_row(line, *(cells[line] for cells in found.values()))
    return view


def shown(row: dict[str, Any]) -> dict[str, str]:
    """The lines of a network's column."""
    size, model = row["artifact_megabytes"], row["model_megabytes"]
    return {
        "cold": f"{row['cold_seconds']:.2f}",
        "of all processors": f"{row['cold_processor_seconds']:.2f}",
        "cached": f"{row['cached_seconds']:.2f}",
        **{e: f"{s:.2f}" for e, s in row.get("peers", {}).items()},
        "artifact, MB": f"{size:.1f}",
        "times the model's file": f"{size / model:.2f}",
        "peak, MB": f"{row['peak_megabytes']:.0f}",
        **{stage: f"{s:.2f}" for stage, s in row.get("stages", {}).items()},
        **{f"tiered: {k}": f"{s:.3f}" for k, s in row.get("tiers", {}).items()},
    }


if __name__ == "__main__":
    main()
