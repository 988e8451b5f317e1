"""`tilewright demo`: compile a real network, check it, and time it against ONNX Runtime."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from tilewright.base import flags
from tilewright.base.text import human_bytes, human_count, human_time, plural
from tilewright.cli import resnet, rounds
from tilewright.cli.engines import missing
from tilewright.cli.model import compile_model
from tilewright.cli.options import AMOUNT, CommandOptions, compile_options, json_option
from tilewright.cli.output import dump, note, progress, say
from tilewright.runtime.threads import thread_count

if TYPE_CHECKING:
    from tilewright.runtime.executable import Executable

# Largest difference from the reference, relative to its peak.
BAR: Final = 1e-4
PEER: Final = "onnxruntime"


@click.command()
@click.option("--rounds", "count", default=7, show_default=True, type=click.IntRange(1))
@click.option(
    "--seconds",
    type=AMOUNT,
    default="0.5",
    show_default=True,
    help="Duration of one round.",
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the files."
)
@compile_options("mcpu", "threads", "math", "memory_limit", "sanitize")
@json_option
def command(
    count: int,
    seconds: float,
    keep: Path | None,
    options: CommandOptions,
    as_json: bool,
) -> int:
    """Compile and run ResNet-50 (seeded weights), check it, and time it against ONNX Runtime.

    Without ONNX Runtime, the outputs are compared with a float64 reference instead.

    \b
    Example:
      tilewright demo
      tilewright demo --threads 1 --keep demo-files
    """

    def tell(text: str) -> None:
        if not as_json:
            say(text)

    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        report = _demonstrate(folder, count, seconds, options, tell)
    if as_json:
        dump(report)
    return 0 if report["ok"] else 1


def _demonstrate(
    folder: Path, count: int, seconds: float, options: CommandOptions, tell: Any
) -> dict[str, Any]:
    threads = thread_count(options.threads)
    options = replace(options, threads=threads)
    path = folder / "resnet50.onnx"
    with progress("writing ResNet-50"):
        path.write_bytes(resnet.build())
    tell(f"network   ResNet-50, seeded weights, {human_bytes(path.stat().st_size)}")
    exe, first = _timed_compile(path, options, folder / "empty-cache")
    kernels, flops = (
        plural(len(exe.model.kernels), "kernel"),
        sum(k.flops for k in exe.model.kernels),
    )
    tell(
        f"compile   {human_time(first)}: {kernels}, {human_count(flops, 'FLOP')} a run, "
        f"{human_bytes(exe.peak_bytes)} of memory"
    )
    exe, again = _timed_compile(path, options, folder / "empty-cache")
    tell(f"again     {human_time(again)}, from the kernel cache")
    artifact = folder / "resnet50.tw"
    exe.save(artifact)
    start = time.perf_counter()
    from tilewright.runtime.executable import load

    exe = load(artifact, threads=threads)
    loaded = time.perf_counter() - start
    tell(
        f"artifact  {human_bytes(artifact.stat().st_size)}, loads in {human_time(loaded)}"
    )
    report: dict[str, Any] = {
        "network": "resnet50",
        "threads": threads,
        "compile_seconds": first,
        "cached_compile_seconds": again,
        "load_seconds": loaded,
        "kernels": kernels,
        "peak_bytes": exe.peak_bytes,
    }
    reason = missing(PEER)
    if reason is None:
        return report | _beside(folder, artifact, threads, count, seconds, tell)
    tell(f"{PEER} is {reason}")
    return report | _alone(exe, path, count, tell)


def _timed_compile(
    path: Path, options: CommandOptions, cache: Path
) -> tuple[Executable, float]:
    """Compile with a separate kernel cache, which is empty at first."""
    before = os.environ.get(flags.CACHE_DIR.name, "")
    os.environ[flags.CACHE_DIR.name] = str(cache)
    try:
        start = time.perf_counter()
        exe = compile_model(path, options, path.name)
        return exe, time.perf_counter() - start
    finally:
        os.environ[flags.CACHE_DIR.name] = before


def _beside(
    folder: Path, artifact: Path, threads: int, count: int, seconds: float, tell: Any
) -> dict[str, Any]:
    """Both engines, each in its own process, in interleaved rounds."""
    data = folder / "inputs.npz"
    np.savez(data, **{"in.image": resnet.image()})  # type: ignore[arg-type]
    models = {"tilewright": artifact}
    task = rounds.TimingJob(
        "resnet50", folder / "resnet50.onnx", data, threads, models=models
    )
    disturbed = rounds.disturbance()
    if disturbed:
        note(disturbed)
    with progress(f"timing against {PEER}"):
        row = rounds.measure(task, ["tilewright", PEER], count, seconds)
    for engine, why in row.failed.items():
        tell(f"{engine} failed: {why}")
    error, speed = row.error.get("tilewright"), row.speed(PEER)
    ok = not row.failed and error is not None and error <= BAR
    if error is not None:
        verdict = "ok" if ok else f"over {BAR:.0e}"
        tell(
            f"check     differs from {PEER} by at most {error:.1e} of the peak: {verdict}"
        )
    ours, theirs = row.median("tilewright"), row.median(PEER)
    if ours is not None and theirs is not None and speed is not None:
        tell(
            f"time      {ours:.2f} ms, {PEER} {theirs:.2f} ms: {speed:.2f} of its speed "
            f"(threads: {threads}, medians of {plural(count, 'interleaved round')})"
        )
    return {"ok": ok, "speed": speed, "difference": error, "row": asdict(row)}


def _alone(exe: Executable, path: Path, count: int, tell: Any) -> dict[str, Any]:
    """Against the float64 reference, timed separately."""
    from tilewright.cli.diverge import reference
    from tilewright.frontends.onnx.load import load

    image = resnet.image()
    with progress("computing the float64 reference"):
        expected = reference(load(path), {"image": image})
    error = rounds.difference([np.asarray(exe(image))], [np.asarray(expected[0])])
    times = []
    for _ in range(max(3, count)):
        start = time.perf_counter()
        exe(image)
        times.append(time.perf_counter() - start)
    ok, median = error <= BAR, float(np.median(times))
    verdict = "ok" if ok else f"over {BAR:.0e}"
    tell(
        f"check     differs from float64 by at most {error:.1e} of the peak: {verdict}"
    )
    tell(
        f"time      {median * 1e3:.2f} ms (threads: {exe.threads}, median of {len(times)} runs)"
    )
    return {"ok": ok, "difference": error, "milliseconds": median * 1e3}
