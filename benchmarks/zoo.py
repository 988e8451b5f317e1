"""About a hundred unmodified networks: correct results, then times against Inductor and the peers.

    python -m benchmarks.zoo                                # every network through the importer
    python -m benchmarks.zoo --check dynamo --only 'timm/*' # torch.compile(backend="tilewright")
    python -m benchmarks.zoo --check train                  # gradients through torch.compile
    python -m benchmarks.zoo --check speed                  # against PyTorch and ONNX Runtime
    python -m benchmarks.zoo --check race --list hundred    # torch.compile: ours against Inductor
    python -m benchmarks.zoo --check export --folder files  # for benchmarks.commits --models
    python -m benchmarks.zoo --list drawn                   # another list, drawn by lot

Each network has its own process, with limits of time and memory; a line of JSON is written when it
ends, and finished networks are not run again. A result is correct if its distance from PyTorch in
float64, relative to the largest element, is below the tolerance or a few times that of PyTorch
itself in float32. Networks of missing packages are skipped, with a message.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.harness import child_environment

CHECKS: Final = ("import", "dynamo", "train", "speed", "race", "export")
_GIGABYTE: Final = 1 << 30


def finished(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of a file by network and check; the last one of each counts."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            found[row["model"], row["check"]] = row
        except (json.JSONDecodeError, KeyError):
            continue  # the line being written when the run was broken off
    return found


def run(
    name: str, check: str, options: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Run one network in its own process; returns its row, even on failure."""
    command = [sys.executable, "-m", "benchmarks.zoo", "--serve", name]
    command += ["--check", check, *options]
    start = time.perf_counter()
    row: dict[str, Any] = {"model": name, "check": check}
    try:
        found = subprocess.run(
            command,
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        row |= {"status": "timeout", "message": f"over {seconds:g} s"}
    else:
        lines = [t for t in found.stdout.splitlines() if t.startswith('{"status"')]
        said = (found.stderr.strip().splitlines() or [""])[-1]
        failed = {"status": "error", "message": f"status {found.returncode}: {said}"}
        row |= json.loads(lines[-1]) if lines else failed
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def serve(
    name: str,
    check: str,
    full: bool,
    threads: Sequence[int],
    peers: Sequence[str],
    folder: Path,
) -> dict[str, Any]:
    """The row of one network, in this process."""
    from benchmarks import zoo_checks, zoo_export, zoo_lists, zoo_models, zoo_speed

    entry = zoo_lists.named(name)
    if importlib.util.find_spec(entry.library) is None:
        return {"status": "skipped", "message": f"{entry.library} is not installed"}
    try:
        module, inputs = zoo_models.build(entry, full)
        if check == "export":
            path = folder / f"{name.replace('/', '.')}.onnx"
            return zoo_export.written(module, inputs, path)
        checks: dict[str, Any] = {
            **zoo_checks.CHECKS,
            "speed": partial(zoo_speed.timed, peers=peers),
            "race": partial(zoo_speed.raced, peers=peers),
        }
        row: dict[str, Any] = checks[check](module, inputs, threads)
        return row
    except Exception as error:
        if os.environ.get("TILEWRIGHT_DEBUG"):
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        return {"status": "error", "message": f"{type(error).__name__}: {first}"[:600]}


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The number of networks per status, the means of speeds, and each failure."""
    kinds = sorted({row["status"] for row in rows})
    yield ", ".join(f"{sum(r['status'] == k for r in rows)} {k}" for k in kinds)
    for peer in sorted({name for row in rows for name in row.get("speed", ())}):
        of = {r["model"]: r["speed"][peer] for r in rows if peer in r.get("speed", ())}
        least = min(of, key=lambda name: of[name])
        yield (
            f"against {peer}: {statistics.geometric_mean(of.values()):.2f} in the "
            f"geometric mean of {len(of)}, lowest {of[least]:.2f} ({least})"
        )
    for row in rows:
        if row["status"] not in ("ok", "skipped"):
            yield f"{row['model']}: {row['status']}: {row.get('message', '')}"


@click.command(epilog="Example: python -m benchmarks.zoo --only 'timm/res*'")
@click.option("--check", type=click.Choice(CHECKS), default="import", show_default=True)
@click.option("--only", default="*", help="Names of networks, with * and commas.")
@click.option("--out", type=click.Path(path_type=Path), default="zoo.jsonl")
@click.option("--again", is_flag=True, help="Rows that are not right are run again.")
@click.option("--full", is_flag=True, help="The networks as their authors have them.")
@click.option("--threads", default="1", show_default=True, help="Commas between them.")
@click.option("--limit", default=180.0, show_default=True, help="Seconds for each.")
@click.option("--memory", default=8.0, show_default=True, help="Gigabytes for each.")
@click.option("--preload", default="", help="A module that is imported first.")
@click.option("--peers", default="", help="Those to time, commas between; or all.")
@click.option(
    "--list",
    "which",
    type=click.Choice(("first", "drawn", "again", "others", "fields", "hundred")),
    default="first",
)
@click.option("--folder", type=click.Path(path_type=Path), default="zoo_files")
@click.option("--serve", "served", hidden=True)
def main(
    check: str,
    only: str,
    out: Path,
    again: bool,
    full: bool,
    threads: str,
    limit: float,
    memory: float,
    preload: str,
    peers: str,
    which: str,
    folder: Path,
    served: str | None,
) -> None:
    """Run the networks, print each result, and write rows of JSON."""
    numbers = [int(n) for n in threads.split(",")]
    if preload:
        importlib.import_module(preload)
    if served is not None:
        most = int(memory * _GIGABYTE)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        timed = peers.split(",") if peers else ()
        print(json.dumps(serve(served, check, full, numbers, timed, folder)))
        return
    from benchmarks import zoo_lists

    options = ["--threads", threads, "--memory", str(memory), "--preload", preload]
    options += ["--full"] if full else []
    options += ["--peers", peers] if peers else []
    options += ["--folder", str(folder)]
    known, rows = finished(out), []
    for entry in zoo_lists.LISTS[which]:
        if not any(fnmatch.fnmatch(entry.name, p) for p in only.split(",")):
            continue
        row = known.get((entry.name, check))
        if row is None or (again and row["status"] != "ok"):
            row = run(entry.name, check, options, limit)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(json.dumps(row))
        rows.append(row)
    for line in summary(rows):
        click.echo(line)


if __name__ == "__main__":
    main()
