"""Networks of float32 computed in bfloat16, by Tilewright and by OpenVINO.

    python -m benchmarks.bfloat16 --networks 'resnet*,minilm'

OpenVINO does so without being asked on a processor that multiplies pairs of bfloat16; Tilewright
with `precision="bfloat16"`. Calls alternate in one process. The differences are from Tilewright's
float32, relative to its largest result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import tilewright as tw
from benchmarks import harness, models, peers
from benchmarks.fusion import difference, listed
from benchmarks.turns import by_turns, stopwatch

ROW = (
    "{:14} float32 {:8.2f} ms  bfloat16 {:8.2f}  openvino {:8.2f}  speed {:.3f}  "
    "difference {:.4f} {:.4f}"
)
WORST = 0.05  # a difference beyond is no rounding

Calls = Sequence[Callable[[], list[Any]]]


def calls_of(name: str, directory: Path, threads: int) -> Calls:
    """Tilewright in float32 and bfloat16, and OpenVINO in bfloat16."""
    model, feeds = models.build(name, directory), models.inputs(name)
    full = tw.compile(model, threads=threads)
    half = tw.compile(model, threads=threads, precision="bfloat16")
    peer = peers.openvino_bf16(model, threads)
    return (
        lambda: listed(full(feeds)),
        lambda: listed(half(feeds)),
        lambda: peer(feeds),
    )


def times(calls: Calls, rounds: int) -> list[float]:
    """The median milliseconds of each, interleaved."""
    timed = dict(enumerate(map(stopwatch, calls)))
    taken = by_turns(timed, rounds)
    return [1e3 * statistics.median(own) for own in taken.values()]


def furthest(found: list[Any], wanted: list[Any]) -> float:
    """The largest difference of any output."""
    return max(map(difference, found, wanted))


@click.command(epilog="Example: python -m benchmarks.bfloat16 --networks 'resnet*'")
@harness.networks_option
@harness.threads_option()
@harness.rounds_option(31)
@harness.directory_option
def main(networks: Sequence[str], threads: int, rounds: int, directory: Path) -> None:
    """Time networks in bfloat16 beside OpenVINO's."""
    speeds = []
    for name in networks:
        calls = calls_of(name, directory, threads)
        want, ours, theirs = (call() for call in calls)
        errors = furthest(ours, want), furthest(theirs, want)
        if not max(errors) < WORST:
            raise click.ClickException(f"{name}: results differ by {max(errors):.2g}")
        full, half, peer = times(calls, rounds)
        speeds.append(peer / half)
        click.echo(ROW.format(name, full, half, peer, speeds[-1], *errors))
    mean = math.exp(statistics.fmean(map(math.log, speeds)))
    click.echo(f"geometric mean {mean:.3f}, least {min(speeds):.3f}")


if __name__ == "__main__":
    main()
