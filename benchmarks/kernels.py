"""Which kernels of a network fall short of the machine (python -m benchmarks.kernels resnet50)."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import harness, models, peak

# Kernels over this share of the time are to reach this part of the peak or of the bandwidth.
SHARE, BAR = 0.03, 0.80
# Of the inner loop's instructions (tilewright.runtime.mix.Mix).
COUNTS = ("fmas", "vectors", "loads", "stores", "spills")


def measure(
    name: str, directory: Path, peaks: peak.Peaks, repeat: int, mcpu: str = "native"
) -> list[dict[str, Any]]:
    """The kernels over SHARE of the network's time on one thread, the longest first.

    fma: share of the multiply-add peak. stream: share of the bandwidth of the level that holds
    what the kernel touches. mix: the instructions of its inner loop.
    """
    import tilewright as tw

    exe = tw.compile(models.build(name, directory), threads=1, mcpu=mcpu)
    profile = exe.profile(*models.inputs(name).values(), repeat=repeat)
    rows = sorted(profile.rows, key=lambda row: -row.seconds)
    return [
        {
            "network": name, "kernel": row.name, "kind": row.kind, "us": row.seconds * 1e6,
            "share": row.share, "gflops": row.gflops, "gbs": row.gbs,
            "fma": row.gflops / peaks.gflops, "stream": row.gbs / peaks.bandwidth(row.bytes),
            "mix": None if row.mix is None else asdict(row.mix),
        }
        for row in rows if row.share > SHARE
    ]  # fmt: skip


def falls_short(row: dict[str, Any]) -> bool:
    """Whether a kernel reaches neither bar."""
    return max(row["fma"], row["stream"]) < BAR


@click.command(epilog="Example: python -m benchmarks.kernels resnet50 softmax_4096x768")
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(models.NAMES)))
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Of the model files.")
@click.option("--repeat", default=10, show_default=True, type=click.IntRange(min=1))
@click.option("--mcpu", default="native", show_default=True, help="As of `tilewright compile`.")
@click.option("--check", is_flag=True, help=f"Exit with 1 where a kernel is under {BAR}.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def main(
    names: tuple[str, ...], directory: Path | None, repeat: int, mcpu: str, check: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the kernels over 3% of the time beside this core's measured peaks (one thread)."""
    peaks = peak.measure()
    directory = directory or models.default_directory()
    rows = [row for name in names for row in measure(name, directory, peaks, repeat, mcpu)]
    if as_json:
        facts = {"machine": harness.machine(), "peaks": asdict(peaks), "rows": rows}
        click.echo(json.dumps(facts))
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(_table(rows, peaks))
    sys.exit(1 if check and any(map(falls_short, rows)) else 0)


def _table(rows: list[dict[str, Any]], peaks: peak.Peaks) -> Table:
    rates = ", ".join(f"{rate:.0f}" for _, rate in peaks.gbs)
    view = Table(title=f"One core: {peaks.gflops:.0f} GFLOP/s; {rates} GB/s by level of cache")
    for heading in ("network", "kernel"):
        view.add_column(heading)
    for heading in ("us", "share", "GFLOP/s", "of FMA", "GB/s", "of stream", *COUNTS):
        view.add_column(heading, justify="right")
    for row in rows:
        cells = [row["network"], row["kernel"], f"{row['us']:.1f}", f"{row['share']:.0%}"]
        cells += [f"{row['gflops']:.0f}", f"{row['fma']:.0%}", f"{row['gbs']:.1f}"]
        cells += [f"{row['stream']:.0%}", *(str((row["mix"] or {}).get(c, "")) for c in COUNTS)]
        view.add_row(*cells, style="red" if falls_short(row) else None)
    return view


if __name__ == "__main__":
    main()
