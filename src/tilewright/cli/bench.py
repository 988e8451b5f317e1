"""`tilewright bench`: time a model against other engines, in interleaved rounds."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from tilewright.base.errors import UnsupportedError
from tilewright.base.memory import memory_limit
from tilewright.base.text import listing, plural
from tilewright.cli import inputs, rounds
from tilewright.cli.engines import ENGINES, TORCH, missing
from tilewright.cli.model import Files, extents, is_artifact, load_given, prepare
from tilewright.cli.options import (
    AMOUNT,
    COMPILE,
    CommandOptions,
    compile_options,
    input_options,
    json_option,
    model_argument,
)
from tilewright.cli.output import dump, note, progress, say, table
from tilewright.frontends import torch
from tilewright.runtime.device import HOST
from tilewright.runtime.devices import is_simulated
from tilewright.runtime.threads import thread_count
from tilewright.targets import registry

_NO_PROGRAM: Final = (
    "PyTorch runs no ONNX files; give the program that torch.export.save wrote"
)
_NO_ENGINE: Final = (
    "it reads no .tw files; give the model that the file was compiled from"
)


@click.command()
@model_argument
@click.option(
    "--against",
    default="onnxruntime",
    show_default=True,
    help=f"Engines, separated by commas: {', '.join(ENGINES)}; '' for none.",
)
@click.option("--rounds", "count", default=7, show_default=True, type=click.IntRange(1))
@click.option(
    "--seconds",
    type=AMOUNT,
    default="0.5",
    show_default=True,
    help="Duration of one round.",
)
@click.option(
    "--concurrency",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Concurrent callers; above 1, the speed compares calls per second.",
)
@input_options
@compile_options(
    *(name for name in COMPILE if name not in ("scales", "jit")), ranges=True
)
@json_option
def command(
    model: Path,
    against: str,
    count: int,
    seconds: float,
    concurrency: int,
    files: Files,
    archive: Path | None,
    seed: int,
    options: CommandOptions,
    as_json: bool,
) -> int:
    """Time MODEL (.onnx, .pt2, .tw) against other engines, and compare their outputs.

    Each engine has its own process on the same processors; one runs while the others are stopped.
    The speed is the other engine's time divided by ours: the median of the ratios of all rounds.
    PyTorch runs the program saved by torch.export.save, the others its ONNX form; an artifact (.tw)
    is timed alone.

    \b
    Examples:
      tilewright bench model.onnx --threads 2
      tilewright bench model.onnx --dim batch=1..64
      tilewright bench model.onnx --threads 1 --concurrency 8
      tilewright bench model.pt2 --against onnxruntime,openvino,torch_eager,torch_compile
    """
    if not is_artifact(model):
        _check_timed(registry.target(options.target, options.mcpu).device)
    peers = _peers(against, model)
    with tempfile.TemporaryDirectory() as scratch:
        file = _for_all(model, Path(scratch), options)
        feeds, dims, options = _given(model, file, options, files, archive, seed)
        data = Path(scratch) / "inputs.npz"
        np.savez(data, **{f"in.{name}": value for name, value in feeds.items()})
        task = rounds.TimingJob(
            model.name,
            file,
            data,
            thread_count(options.threads),
            dims,
            models=dict.fromkeys(TORCH, model),
            options=_engine_options(model, options),
            callers=concurrency,
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


def _check_timed(device: str) -> None:
    """Raise UnsupportedError for a device whose times are simulated."""
    if device == HOST or not is_simulated(device):
        return
    raise UnsupportedError(
        f"{device!r} is simulated, and engines are timed",
        code="TW-TARGET",
        hint="known: cpu, cuda, opencl; `tilewright run --profile` shows simulated cycles",
    )


def _given(
    model: Path,
    file: Path,
    options: CommandOptions,
    files: Files,
    archive: Path | None,
    seed: int,
) -> tuple[dict[str, Any], dict[str, int], CommandOptions]:
    """The inputs, the sizes that they give to free dimensions, and the options with these sizes.

    file: the model's ONNX form. An artifact has its sizes already.
    """
    if is_artifact(model):
        feeds, options = _of_artifact(model, options, files, archive, seed)
        return feeds, {}, options
    graph, options = load_given(file, options, files, archive)
    from tilewright.driver.dims import greatest_of

    most = greatest_of(options.ranges)
    described = inputs.of_graph(graph)
    feeds = inputs.gather(described, files, archive, seed, options.dims, most)
    return feeds, extents(graph, feeds), options


def _of_artifact(
    model: Path,
    options: CommandOptions,
    files: Files,
    archive: Path | None,
    seed: int,
) -> tuple[dict[str, Any], CommandOptions]:
    """The inputs of an artifact, and the options with its threads.

    Raises UnsupportedError for one of a simulated device.
    """
    prepared = prepare(model, options, files, archive, seed)
    for device in prepared.executable.model.devices:
        _check_timed(device)
    return prepared.feeds, replace(options, threads=prepared.executable.threads)


def _for_all(model: Path, folder: Path, options: CommandOptions) -> Path:
    """The file for the engines that read ONNX: the model, or one in `folder` made from it."""
    if model.suffix != torch.SUFFIX:
        return model
    made = folder / "model.onnx"
    with progress(f"exporting {model.name}"):
        limit = memory_limit(options.memory_limit)
        program = torch.load(model, memory_limit=limit, trust=options.trust)
        made.write_bytes(torch.to_onnx(program))
    return made


def _engine_options(model: Path, options: CommandOptions) -> dict[str, Any]:
    """What each engine is told. In bfloat16, OpenVINO computes as it does by default."""
    told = {engine: {"trust": options.trust} for engine in TORCH}
    own = {} if is_artifact(model) else _how(options)
    peer = {"precision": "bf16"} if options.precision == "bfloat16" else {}
    return {"tilewright": own, "openvino": peer, **told}


def _how(options: CommandOptions) -> dict[str, Any]:
    """The options of compilation, which only our engine has."""
    shared = ("threads", "dims")
    given = options.keywords() | options.reading()
    own = {name: value for name, value in given.items() if name not in shared}
    # The worker reads JSON, which has no tuples.
    ranges = {n: [isinstance(e, tuple), e] for n, e in options.ranges.items()}
    return own | ({"ranges": ranges} if ranges else {})


def _peers(against: str, model: Path) -> list[str]:
    """The engines that can be used; each of the others is skipped with a note.

    Raises click.BadParameter for an unknown engine.
    """
    asked = [name.strip() for name in against.split(",") if name.strip()]
    unknown = [name for name in asked if name not in ENGINES]
    if unknown:
        raise click.BadParameter(
            f"there is no engine {listing(unknown)}; the engines are {', '.join(ENGINES)}",
            param_hint="--against",
        )
    reasons = {name: missing(name) for name in asked}
    if is_artifact(model):
        reasons |= {name: _NO_ENGINE for name in asked if name != "tilewright"}
    elif model.suffix != torch.SUFFIX:
        reasons |= {name: _NO_PROGRAM for name in asked if name in TORCH}
    left_out = [
        f"{name} is skipped: {reason}" for name, reason in reasons.items() if reason
    ]
    if asked and len(left_out) == len(reasons):
        left_out.append("no other engine is left: tilewright is timed alone")
    for line in left_out:
        note(line)
    return [name for name in asked if reasons[name] is None]


def report(row: rounds.RoundTable) -> str:
    """A row as a table with a line per engine, and the failures."""
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
                *(f"{row.percentiles[engine][p]:.3f}" for p in rounds.PERCENTILES),
                f"{np.median(row.rates.get(engine) or 1e3 / np.array(times)):,.0f}",
                "" if speed is None else f"{speed:.2f}",
                "" if error is None else f"{error:.1e}",
                f"{row.load_seconds[engine]:.2f}",
            ]
        )
    heading = ["engine", "ms", "least", *rounds.PERCENTILES, "per s"]
    heading += ["our speed", "difference", "load s"]
    threads = plural(row.threads, "thread")
    rounds_done = max((len(times) for times in row.times.values()), default=0)
    text = table(heading, lines, "<" + ">" * len(heading))
    if row.callers > 1:
        threads = f"{row.callers} callers at a time, {threads} each"
    text += f"\n\n{row.network}, {threads}, medians of {plural(rounds_done, 'interleaved round')}"
    failures = [f"\n{engine} failed: {why}" for engine, why in row.failed.items()]
    return text + "".join(failures)
