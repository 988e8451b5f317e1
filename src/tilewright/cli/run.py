"""`tilewright run`: compile a model or load an artifact, run it, report results and times."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
import numpy as np

from tilewright.base.files import write_whole
from tilewright.base.text import human_bytes, human_time, plural
from tilewright.cli import derivation, interrupt, quantized, records
from tilewright.cli.model import Prepared, extents, is_artifact, prepare, specialized
from tilewright.cli.options import (
    COMPILE,
    OUT,
    CommandOptions,
    compile_options,
    input_options,
    json_option,
    model_argument,
    refuse,
)
from tilewright.cli.output import dump, expect_suffix, note, progress, say, table
from tilewright.runtime.devices import is_simulated

if TYPE_CHECKING:
    from tilewright.driver.schedule_records import ScheduleRecord
    from tilewright.runtime.profile import Profile


_REPEAT: Final = 10


@click.command()
@model_argument
@input_options
@click.option(
    "--repeat",
    type=click.IntRange(1),
    help=f"Number of timed runs; default: {_REPEAT}, or 1 on a simulated device.",
)
@click.option(
    "--profile", "profiled", is_flag=True, help="Report the time of each kernel."
)
@click.option(
    "--roofline",
    is_flag=True,
    help="With --profile: also report shares of the machine's peak.",
)
@click.option(
    "--why", is_flag=True, help="With --profile: explain the schedule of each kernel."
)
@click.option(
    "--tiered",
    is_flag=True,
    help="Run once before the model is compiled, by interpreting it, and time that.",
)
@click.option("--trace", type=OUT, help="Write one run as a Chrome trace (Perfetto).")
@click.option("-o", "--output", type=OUT, help="Write the outputs to an .npz file.")
@compile_options(*COMPILE)
@json_option
def command(
    model: Path,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    repeat: int | None,
    profiled: bool,
    roofline: bool,
    why: bool,
    tiered: bool,
    trace: Path | None,
    output: Path | None,
    options: CommandOptions,
    as_json: bool,
) -> None:
    """Run MODEL (.onnx, .pt2 or .tw) on given or random inputs, and time it.

    \b
    Example:
      tilewright run model.onnx --input image=cat.npy -o outputs.npz
      tilewright run model.onnx --dim batch=8 --profile
      tilewright run model.onnx --profile --why
    """
    _refuse_meaningless(model, profiled)
    if output is not None:
        expect_suffix(output, (".npz",), "outputs are an .npz file of NumPy")
    prepared = prepare(model, options, files, archive, seed, tiered)
    exe, feeds = prepared.executable, prepared.feeds
    simulated = any(map(is_simulated, exe.model.devices))
    repeat = repeat or (1 if simulated else _REPEAT)
    names = [tensor.name for tensor in exe.outputs]
    with progress(f"running {model.name}"):
        with interrupt.native_code():
            outputs = dict(zip(names, exe.run(feeds)))
            times = _time(prepared, repeat)
        profile = _profile(prepared, repeat, roofline) if profiled or trace else None
        reasons = _why(prepared, profile) if why and profile else []
        parts = quantized.lines(exe.placements)
        off = _off(prepared, outputs) if simulated else ({}, {})
    if output is not None:
        write_whole(output, lambda file: _save(file, outputs))
    if trace is not None and profile is not None:
        text = json.dumps(profile.chrome_trace())
        write_whole(trace, lambda file: file.write(text.encode()))
    if as_json:
        shown = (
            json.loads(profile.to_json()) if profiled and profile is not None else None
        )
        schedules = {"schedules": [r.to_dict() for r in reasons]} if why else {}
        said = _report(prepared, outputs, times) | {"profile": shown} | schedules
        if parts:
            said |= {"parts": parts, "largest_error": off[0], "largest": off[1]}
        dump(said)
        return
    quantized.show(parts, *off)
    _show(prepared, outputs, times)
    if profiled:
        say(f"\n{profile}")
    if why:
        _explain(exe.model.meta.get("substitutions"), reasons)


def _refuse_meaningless(model: Path, profiled: bool) -> None:
    """Reject options that would have no effect with the others, or for this file."""
    if not profiled:
        refuse(["roofline"], "it adds a column to --profile", "Add --profile")
        refuse(["why"], "it explains what --profile shows", "Add --profile")
    if is_artifact(model):
        where = str(model)
        refuse(
            ["why"],
            "an artifact holds code, not its schedules",
            "Give the model",
            where,
        )
        refuse(["tiered"], "an artifact is compiled", "Leave it out", where)


def _explain(steps: Any, reasons: list[ScheduleRecord]) -> None:
    """Report how the graph was rewritten, if it was, and why kernels have their schedules."""
    if steps:
        say(f"\n{derivation.steps_table(steps)}")
    for record in reasons:
        say(
            "\n".join([f"\n{record.kernel}", *(f"  {line}" for line in record.reasons)])
        )


def _off(
    prepared: Prepared, outputs: dict[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """The differences of the outputs from the float model's, and the largest values."""
    if prepared.compiled is None:
        return {}, {}
    graph, options = prepared.compiled
    return quantized.errors(specialized(graph, options.dims), prepared.feeds, outputs)


def _save(file: IO[bytes], outputs: dict[str, Any]) -> None:
    """Write arrays by name to an .npz file."""
    np.savez(file, **{name: np.asarray(value) for name, value in outputs.items()})  # type: ignore[arg-type]


def _why(prepared: Prepared, profile: Profile) -> list[ScheduleRecord]:
    """How the kernels are scheduled, the slowest first."""
    from tilewright.driver import schedules

    assert prepared.compiled is not None
    graph, options = prepared.compiled
    how = options.keywords()
    if not prepared.executable.model.sizes:  # the code is of this shape alone
        how["dims"] = {**extents(graph, prepared.feeds), **options.dims}
    found: dict[str, list[ScheduleRecord]] = {}
    for record in schedules(graph, **how):
        found.setdefault(record.kernel, []).append(record)
    rows = sorted(profile.rows, key=lambda r: -r.seconds)
    names = dict.fromkeys(r.name for r in rows)
    return [record for name in names for record in found.get(name, ())]


def _profile(prepared: Prepared, repeat: int, roofline: bool) -> Profile:
    exe = prepared.executable
    peaks: dict[str, Any] = {}
    if roofline:
        from tilewright.cli import roofline as machine
        from tilewright.cli.doctor import caches

        found = machine.measure(exe.threads)
        if found.note:
            note(f"warning: {found.note}")
        peaks["peak_gflops"] = found.gflops
        # Data in the caches are not bound by memory bandwidth.
        if exe.peak_bytes > max(caches().values(), default=0):
            peaks["peak_gbs"] = found.gbs
        peaks["device_peaks"] = _device_peaks(prepared)
    with interrupt.native_code():
        return exe.profile(prepared.feeds, repeat=repeat, **peaks)


def _device_peaks(prepared: Prepared) -> dict[str, tuple[float, float]]:
    """Those of the target's device as described; an artifact holds no description."""
    if prepared.compiled is None:
        return {}
    from tilewright.driver.compilation import target_of
    from tilewright.driver.options import Options

    given = {**prepared.compiled[1].keywords(), "records": False}
    given.pop("dims")  # of the model, as it was read
    found = target_of(Options.of(given)).peaks
    on = prepared.executable.model.devices
    return {} if found is None else dict.fromkeys(on, found)


def _time(prepared: Prepared, repeat: int) -> list[float]:
    exe, feeds = prepared.executable, prepared.feeds
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return times


def describe(value: Any) -> dict[str, Any]:
    """Dtype, shape, minimum, maximum and mean of an array, and how many values are not finite."""
    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__}
    facts: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    if value.size == 0 or value.dtype == object or value.dtype.kind == "c":
        return facts
    wide = value.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if finite.size:
        facts |= {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}
    return facts | {"not_finite": wide.size - finite.size}


def _report(
    prepared: Prepared, outputs: dict[str, Any], times: list[float]
) -> dict[str, Any]:
    exe = prepared.executable
    return {
        "outputs": {name: describe(value) for name, value in outputs.items()},
        "load_seconds" if prepared.loaded else "compile_seconds": prepared.seconds,
        "first_result_seconds": prepared.first_result,
        "seconds": {
            "median": statistics.median(times),
            "min": min(times),
            "p90": float(np.quantile(times, 0.9)),
            "runs": len(times),
        },
        "threads": exe.threads,
        "peak_bytes": exe.peak_bytes,
        "tuned": exe.model.meta.get("tuned", []),
        "substitutions": exe.model.meta.get("substitutions", []),
    }


def _show(prepared: Prepared, outputs: dict[str, Any], times: list[float]) -> None:
    rows = []
    for name, value in outputs.items():
        facts = describe(value)
        if "dtype" not in facts:
            rows.append([name, facts["type"]])
            continue
        numbers = [
            f"{facts[k]:.6g}" if k in facts else "-" for k in ("min", "max", "mean")
        ]
        shape = f"{facts['dtype']}[{', '.join(map(str, facts['shape']))}]"
        bad = facts.get("not_finite")
        rows.append([name, shape, *numbers, f"{bad} not finite" if bad else ""])
    say(table(["output", "type", "min", "max", "mean", ""], rows, "<<>>><"))
    exe = prepared.executable
    verb = "loaded" if prepared.loaded else "compiled"
    threads = plural(exe.threads, "thread")
    first = prepared.first_result
    early = "" if first is None else f"first result in {human_time(first)}; "
    say(
        f"\n{early}{verb} in {human_time(prepared.seconds)}; a run takes "
        f"{human_time(statistics.median(times))} (median of {len(times)}, minimum "
        f"{human_time(min(times))}) on {threads}, {human_bytes(exe.peak_bytes)} of memory"
    )
    meta = exe.model.meta
    for line in (records.used_line(meta), derivation.used_line(meta)):
        if line:
            say(line)
