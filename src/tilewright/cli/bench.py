"""`tilewright bench`: a model side by side with other engines, rounds interleaved."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright.base.errors import InputError
from tilewright.cli import inputs, rounds
from tilewright.cli.engines import ENGINES, missing
from tilewright.cli.model import extents, is_artifact, load_graph
from tilewright.cli.options import (
    CompileOptions,
    compile_options,
    input_options,
    json_option,
    model_argument,
)
from tilewright.cli.output import dump, note, progress, say, table
from tilewright.runtime.threads import thread_count


@click.command()
@model_argument
@click.option(
    "--against", default="onnxruntime", show_default=True, help="Engines, commas between them."
)
@click.option("--rounds", "count", default=7, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.5, show_default=True, help="Of calls in one round.")
@input_options
@compile_options
@json_option
def command(
    model: Path,
    against: str,
    count: int,
    seconds: float,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Time MODEL (.onnx) beside other engines, and compare their outputs.

    Each engine has a process of its own on the same processors; one runs while the others are
    stopped. Speed is the peer's time over ours, the median of the rounds' ratios.

    \b
    Example:
      tilewright bench model.onnx --against onnxruntime --threads 2
    """
    peers = _peers(against)
    if is_artifact(model):
        raise InputError("other engines read no .tw files", where=str(model), hint="Give the .onnx")
    graph = load_graph(model, options.memory_limit)
    feeds = inputs.gather(inputs.of_graph(graph), files, archive, seed, options.dims)
    threads = thread_count(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "inputs.npz"
        np.savez(data, **{f"in.{name}": value for name, value in feeds.items()})  # type: ignore[arg-type]
        task = rounds.Task(
            model.name,
            model,
            data,
            threads,
            extents(graph, feeds),
            options={"tilewright": _how(options)},
        )
        disturbed = rounds.disturbance()
        if disturbed:
            note(disturbed)
        with progress(f"timing {model.name}"):
            row = rounds.measure(task, ["tilewright", *peers], count, seconds)
    if as_json:
        dump(asdict(row) | {"speed": {peer: row.speed(peer) for peer in peers}})
    else:
        say(report(row))
    return 1 if row.failed else 0


def _how(options: CompileOptions) -> dict[str, Any]:
    """The options that say how our engine compiles, and the others do not have."""
    shared = ("threads", "dims")
    return {name: value for name, value in options.keywords().items() if name not in shared}


def _peers(against: str) -> list[str]:
    """The engines that can be used; those that cannot are said, with the reason."""
    asked = [name.strip() for name in against.split(",") if name.strip()]
    usable = []
    for name in asked:
        reason = missing(name)
        if reason is None:
            usable.append(name)
        elif name in ENGINES or len(asked) > 1:
            note(f"{name} is left out: {reason}")
        else:
            raise click.BadParameter(f"{name}: {reason}", param_hint="--against")
    return usable


def report(row: rounds.Row) -> str:
    """A row as a table with a line per engine, and what failed."""
    lines: list[list[str]] = []
    for engine in row.engines:
        if engine in row.failed:
            continue
        times: list[float] = row.times[engine]
        speed = row.speed(engine) if engine != row.engines[0] else None
        error: Any = row.error.get(engine)
        lines.append(
            [
                engine,
                f"{np.median(times):.3f}",
                f"{min(times):.3f}",
                "" if speed is None else f"{speed:.2f}",
                "" if error is None else f"{error:.1e}",
                f"{row.load_seconds[engine]:.2f}",
            ]
        )
    heading = ["engine", "ms", "least", "our speed", "difference", "load s"]
    threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
    rounds_done = max((len(times) for times in row.times.values()), default=0)
    text = table(heading, lines, "<>>>>>")
    text += f"\n\n{row.network}, {threads}, medians of {rounds_done} interleaved rounds"
    failures = [f"\n{engine} failed: {why}" for engine, why in row.failed.items()]
    return text + "".join(failures)
