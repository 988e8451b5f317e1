"""A description of this processor for the compiler: its clock, its memory, when threads pay.

python -m benchmarks.calibrate machine.toml
TILEWRIGHT_MACHINE=machine.toml tilewright run model.onnx

Everything but `share_ns` is measured on one core, and is the best of many short rounds, so that
other work on the machine changes little; `share_ns` needs all cores at once, and an idle machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
import numpy as np

from benchmarks.native_loops import (
    Loops,
    best,
    clock,
    loops,
    multiply_latency,
    multiply_rate,
    read_rate,
)
from tilewright.base.dtypes import float32
from tilewright.runtime.machine import processor_name

HIDDEN = 3  # of three cycles of columns that come late, arithmetic hides two
WAITED = 1.1  # a tile with just as many accumulators as the latency takes loses a tenth
MADE_FROM: Final = {"far_byte": "far_bytes"}
FAR = 3  # second caches: data of so many comes from after one
SIZES = tuple(range(16, 260, 8))  # sides of the products by which threads are judged
GAIN = 1.05  # of the speed of one thread: threads are worth it


def product(
    side: int, threads: int, machine: Path | None = None
) -> Callable[[], object]:
    """A product of square matrices, the second one constant, to be called."""
    import tilewright as tw
    from tilewright.frontends.onnx.author import Author

    author = Author("product")
    x = author.input("x", float32, (side, side))
    weight = author.weight("w", np.full((side, side), 0.5, np.float32))
    author.output(author.node("MatMul", [x, weight], "y"), float32, (side, side))
    exe = tw.compile(author.model(), threads=threads, machine=machine, cache=False)
    data, out = (
        np.full((side, side), 0.25, np.float32),
        np.empty((side, side), np.float32),
    )
    return lambda: exe(data, out=out)


def break_even(threads: int) -> float | None:
    """Nanoseconds of the least work on one core from which on threads are faster; None if never.

    Products of growing size run on one thread and on all; a call's own time is taken off.
    """
    with tempfile.TemporaryDirectory() as folder:
        eager = Path(folder) / "machine.toml"
        eager.write_text("[costs]\nshare_ns = 0.001\n")
        call = best(product(2, 1))
        found = None
        for side in SIZES:
            alone, together = (best(product(side, n, eager)) for n in (1, threads))
            if alone < GAIN * together:
                found = None
            elif found is None:
                found = max(1.0, (alone - call) * 1e9)
    return found


def facts(p: Loops) -> dict[str, float]:
    """Facts of the processor: sizes reported by the system, the clock as measured."""
    from tilewright.targets.cpu.machine import host

    here = host()
    line = Path("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size")
    size = int(line.read_text()) if line.exists() else here.line
    return {
        "l1": here.l1,
        "l2": here.l2,
        "l3": here.l3,
        "line": size,
        "clock": clock(p),
    }


def costs(p: Loops, given: Mapping[str, float], threads: int) -> dict[str, float]:
    """Constants of cost (`targets/cpu/cost.py`), from a processor's facts.

    Without those of the kind of core: these were swept on kernels. A rate of reads alone is a bound
    for what arrives beside arithmetic.
    """
    from tilewright.targets.cpu.machine import host

    near, far = int(given["l2"]) // 2, FAR * int(given["l2"])
    far_bytes = read_rate(p, far) / given["clock"]
    multiplied = multiply_rate(p) / 2 / given["clock"] * float32.itemsize
    found = {
        "multiplied": multiplied,
        "latency": WAITED * multiply_latency(p) * given["clock"],
        "second_bytes": read_rate(p, near) / given["clock"],
        "far_bytes": far_bytes,
        "far_byte": 1 / (HIDDEN * far_bytes),
    }
    side = 256
    call, whole = best(product(2, 1)), best(product(side, 1))
    found["product_ns"] = (whole - call) * 1e9 / side**3
    if threads > 1 and (share := break_even(threads)) is not None:
        found["share_ns"] = share
    return without_swept(found, dict(host().measured))


def without_swept(
    found: Mapping[str, float], swept: Mapping[str, float]
) -> dict[str, float]:
    """What was measured, but for constants that were swept, and what is made from one of them:
    kernels were timed with these and the default of the other."""
    return {
        name: value
        for name, value in found.items()
        if name not in swept and MADE_FROM.get(name) not in swept
    }


def description(threads: int) -> str:
    """The description of this processor, as TOML."""
    p = loops()
    known = facts(p)
    measured = costs(p, known, threads)
    lines = [f"# python -m benchmarks.calibrate, {time.strftime('%Y-%m-%d')}"]
    lines.append(f"processor = {processor_name()!r}".replace("'", '"'))
    lines += [_line(name, value) for name, value in known.items()]
    lines += ["", "[costs]", *(_line(name, value) for name, value in measured.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: float) -> str:
    return f"{name} = {value}" if isinstance(value, int) else f"{name} = {value:.4g}"


@click.command(
    epilog="Example: python -m benchmarks.calibrate machine.toml --threads 2"
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Default: the cores available to this process.",
)
def main(file: Path, threads: int | None) -> None:
    """Measure this processor for a minute and write its description to FILE."""
    from tilewright.runtime.threads import thread_count

    text = description(thread_count(threads))
    file.write_text(text, encoding="utf-8")
    click.echo(text, nl=False)


if __name__ == "__main__":
    main()
