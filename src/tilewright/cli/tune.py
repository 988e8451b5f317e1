"""`tilewright tune`: search for faster schedules of a model's kernels."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tilewright.base.files import write_whole
from tilewright.cli.inputs import gather, of_graph
from tilewright.cli.model import extents, load_given
from tilewright.cli.options import (
    AMOUNT,
    COMPILE,
    DURATION,
    OUT,
    PATH,
    CommandOptions,
    compile_options,
    input_options,
    json_option,
    model_argument,
    refuse,
)
from tilewright.cli.output import dump, note, say
from tilewright.cli.tune_progress import shown
from tilewright.runtime.threads import thread_count

if TYPE_CHECKING:
    from tilewright.cli.roofline import MachinePeaks
    from tilewright.report.tuning import Log


@click.command()
@model_argument
@click.option(
    "--trials", type=click.IntRange(1), help="Stop after this many measured programs."
)
@click.option(
    "--time",
    "seconds",
    type=DURATION,
    help="Stop after this time, such as 90s, 10m, 1.5h; default: 10m.",
)
@click.option(
    "--expected-gain",
    type=AMOUNT,
    default=0.0,
    help="Stop when the expected gain is below this share of the time.",
)
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    help="Tune only this kernel, by its name in profiles; may be repeated.",
)
@click.option(
    "--method",
    default="evolutionary",
    show_default=True,
    help="How to search: evolutionary, annealing, tree, mcts, bandit, random, exhaustive.",
)
@click.option(
    "--cost-model",
    help="Predicts times; default: gaussian-process, and in long runs trees-pretrained.",
)
@click.option(
    "--fleet", metavar="ADDRESS", help="Measure on a fleet; local:N: N workers here."
)
@click.option(
    "--device", default="cpu", show_default=True, help="The fleet's device to use."
)
@click.option("--keys", type=PATH, help="Folder of the fleet's keys.")
@click.option(
    "--realtime",
    is_flag=True,
    help="Time programs with real-time priority, which other programs do not disturb.",
)
@click.option("--report", type=OUT, help="Write an HTML report.")
@input_options
@compile_options(
    *(name for name in COMPILE if name not in ("schedules", "sanitize", "jit"))
)
@json_option
def command(
    model: Path,
    trials: int | None,
    seconds: float | None,
    expected_gain: float,
    kernels: tuple[str, ...],
    method: str,
    cost_model: str | None,
    fleet: str | None,
    device: str,
    keys: Path | None,
    realtime: bool,
    report: Path | None,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    options: CommandOptions,
    as_json: bool,
) -> None:
    """Search for faster schedules of MODEL's kernels; later compilations use them.

    Every measurement is recorded immediately. Ctrl-C ends the search after a final comparison of
    the best schedules; a second Ctrl-C ends it at once. The next call resumes.

    \b
    Example:
      tilewright tune model.onnx --time 10m
      tilewright tune model.onnx --trials 500 --threads 1 --report tuned.html
      tilewright tune model.onnx --fleet local:2
    """
    from tilewright.driver.tuning import How, tune

    _check_fleet(fleet)
    how = How(method, cost_model, fleet, device, keys, seed, realtime=realtime)
    graph, options = load_given(model, options, files, archive)
    feeds = gather(of_graph(graph), files, archive, seed, options.dims)
    options = replace(options, dim=tuple(extents(graph, feeds).items()))
    given = options.keywords()
    records = _records(given)
    peaks = partial(_peaks, fleet, options)
    with stopping() as asked, shown(as_json, seconds, peaks) as progress:
        found = tune(
            graph,
            trials=trials,
            seconds=seconds,
            expected_gain=expected_gain,
            kernels=kernels,
            feeds=feeds,
            name=model.name,
            records=records,
            until=asked,
            how=how,
            **given,
        )
    if report is not None:
        _write_page(report, found.to_dict(), progress.log, peaks())
    if as_json:
        dump(found.to_dict())
    else:
        say(f"{found}\nrecords: {found.records}")


def _peaks(fleet: str | None, options: CommandOptions) -> MachinePeaks | None:
    """Those of this machine, if it measures."""
    if fleet is not None or options.target != "cpu":
        return None
    from tilewright.cli import roofline

    return roofline.measure(thread_count(options.threads))


def _add_shares(found: dict[str, Any], peaks: MachinePeaks) -> None:
    """Add to each kernel its share of the roofline, and whether its bound is worth saying."""
    kernels = [k for k in found["kernels"] if k["bytes_moved"]]  # no forms
    # Kernels of one name may differ in their shapes.
    times = [
        k["calls"] * k["best_seconds"] if isfinite(k["best_seconds"]) else 0.0
        for k in kernels
    ]
    total = sum(times)
    for k, taken in zip(kernels, times, strict=True):
        best = {**k, "seconds": k["best_seconds"]}
        k["roofline"] = peaks.of(best)
        k["far"] = peaks.is_far(best, taken / (total or 1.0))
    found["peaks_note"] = peaks.note


def _check_fleet(address: str | None) -> None:
    """Raise OptionError for options of a fleet without one."""
    if address is None:
        refuse(["device", "keys"], "it is of a fleet", "Add --fleet ADDRESS")


def _records(given: dict[str, Any]) -> Any:
    """The file of records, taken out of the options: tuning writes it, compilations only read."""
    records = given.pop("records")
    if records is False:
        raise click.UsageError("--no-records: tuning needs its records", None)
    return records


def _write_page(
    file: Path, found: dict[str, Any], log: Log, peaks: MachinePeaks | None
) -> None:
    """Write an HTML report of the result and the events of the search."""
    from tilewright.report.tuning import page

    if peaks is not None:
        _add_shares(found, peaks)
    text = page(found, log)
    write_whole(file, lambda f: f.write(text.encode()))


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: the first one requests the end, the second one ends at once."""
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        note("stopping after this round; Ctrl-C again stops at once")

    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
