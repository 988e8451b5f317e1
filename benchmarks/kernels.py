"""Which kernels of a network fall short of the machine, and why (python -m benchmarks.kernels)."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import causes, counts, harness, models, peak
from benchmarks.causes import BAR

# Kernels over this share of the time are to reach BAR of the peak or of the bandwidth.
SHARE = 0.03
# Of the inner loop's instructions (tilewright.runtime.instruction_mix.Mix).
COUNTS = ("fmas", "vectors", "loads", "stores", "spills")


def measure(
    name: str, directory: Path, peaks: peak.Peaks, repeat: int, mcpu: str = "native"
) -> list[dict[str, Any]]:
    """The kernels over SHARE of the network's time on one thread, the longest first.

    Each in its fastest of `repeat` runs, as the peaks are the best of theirs.
    fma, stream, weights, others, transforms, epilogue, lanes: see `causes.Facts`. mix: the
    instructions of its inner loop. causes: of one that falls short.
    """
    import tilewright as tw
    from tilewright.targets.cpu.machine import machine

    path = models.build(name, directory)
    exe = tw.compile(path, threads=1, mcpu=mcpu)
    inputs = models.inputs(name).values()
    runs = [exe.profile(*inputs, repeat=1).rows for _ in range(repeat)]
    best = [
        min(times, key=lambda row: row.seconds) for times in zip(*runs, strict=True)
    ]
    total = sum(row.seconds for row in best)
    over = (row for row in best if row.seconds > SHARE * total)
    rows = sorted(over, key=lambda row: -row.seconds)
    vector = machine(mcpu).vector_bits // 8
    known = causes.facts(rows, counts.counted(path, mcpu), peaks, vector)
    return [
        {
            "network": name, "kernel": row.name, "kind": row.kind, "us": row.seconds * 1e6,
            "share": row.seconds / total, "gflops": row.gflops, "gbs": row.gbs,
            "fma": f.fma, "stream": f.stream, "weights": f.weights, "others": f.others,
            "transforms": f.transforms, "epilogue": f.epilogue, "lanes": f.lanes,
            "mix": None if row.mix is None else asdict(row.mix),
            "falls_short": f.falls_short, "causes": causes.causes(f),
        }
        for row, f in zip(rows, known, strict=True)
    ]  # fmt: skip


def _names(_context: object, _parameter: object, given: Sequence[str]) -> list[str]:
    return (
        harness.chosen(",".join(given), models.NAMES) if given else list(models.RECIPES)
    )


@click.command(epilog="Example: python -m benchmarks.kernels resnet50 'softmax*'")
@click.argument("names", nargs=-1, callback=_names)
@harness.directory_option
@click.option("--repeat", default=20, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--mcpu", default="native", show_default=True, help="As for `tilewright compile`."
)
@click.option("--check", is_flag=True, help=f"Exit with 1 if a kernel is under {BAR}.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON in place of the tables."
)
def main(
    names: list[str],
    directory: Path,
    repeat: int,
    mcpu: str,
    check: bool,
    as_json: bool,
) -> None:
    """Show the kernels over 3% of the time against this core's measured peaks (one thread).

    NAMES are networks and operators or patterns of them; by default all networks.
    """
    peaks = peak.measure()
    rows: list[dict[str, Any]] = []
    for name in names:
        click.echo(f"measuring {name}", err=True)
        rows += measure(name, directory, peaks, repeat, mcpu)
    short = [row for row in rows if row["falls_short"]]
    if as_json:
        facts = {"machine": harness.machine(), "peaks": asdict(peaks), "rows": rows}
        click.echo(json.dumps(facts))
    else:
        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(_table(rows, peaks))
        console.print(_exceptions(short))
        console.print(_summary(rows, short), highlight=False)
    sys.exit(1 if check and short else 0)


def _exceptions(short: list[dict[str, Any]]) -> Table:
    """The kernels that reach neither bar, with the causes."""
    view = Table(title=f"Kernels that reach {BAR:.0%} of neither")
    for heading in ("network", "kernel", "of FMA", "of stream", "causes"):
        view.add_column(heading)
    for row in short:
        told = "; ".join(
            f"{name} ({how})" if how else name for name, how in row["causes"].items()
        )
        cells = (f"{row['fma']:.0%}", f"{row['stream']:.0%}", told)
        view.add_row(row["network"], row["kernel"], *cells)
    return view


def _summary(rows: list[dict[str, Any]], short: list[dict[str, Any]]) -> str:
    """How many reach a bar, and how often each cause was found."""
    counts = Counter(name for row in short for name in row["causes"])
    listed = ", ".join(f"{name} {n}" for name, n in counts.most_common())
    reached = f"{len(rows) - len(short)} of {len(rows)} kernels reach a bar"
    return f"{reached}; causes: {listed}" if listed else reached


def _table(rows: list[dict[str, Any]], peaks: peak.Peaks) -> Table:
    rates = ", ".join(f"{rate:.0f}" for _, rate in peaks.gbs)
    view = Table(
        title=f"One core: {peaks.gflops:.0f} GFLOP/s; {rates} GB/s by level of cache"
    )
    for heading in ("network", "kernel"):
        view.add_column(heading)
    for heading in ("us", "share", "GFLOP/s", "of FMA", "GB/s", "of stream", *COUNTS):
        view.add_column(heading, justify="right")
    for row in rows:
        cells = [
            row["network"],
            row["kernel"],
            f"{row['us']:.1f}",
            f"{row['share']:.0%}",
        ]
        cells += [f"{row['gflops']:.0f}", f"{row['fma']:.0%}", f"{row['gbs']:.1f}"]
        cells += [
            f"{row['stream']:.0%}",
            *(str((row["mix"] or {}).get(c, "")) for c in COUNTS),
        ]
        view.add_row(*cells, style="red" if row["falls_short"] else None)
    return view


if __name__ == "__main__":
    main()
