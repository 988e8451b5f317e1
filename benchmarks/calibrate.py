"""A description of this processor for the compiler: its clock, its memory, when threads pay.

python -m benchmarks.calibrate machine.toml
TILEWRIGHT_MACHINE=machine.toml tilewright run model.onnx

Everything but `share_ns` is measured on one core, and is the best of many short rounds, so that
other work on the machine changes little; `share_ns` needs all cores at once, and an idle machine.
"""

from __future__ import annotations

import ctypes
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from tilewright.base.dtypes import float32
from tilewright.cli.doctor import processor_name

SECONDS = 0.3  # of each measurement
BATCH = 1e-4  # seconds that can be told from those of reading the clock
STEPS = 4000  # of the chain of dependent operations, per call
CHAIN = 32  # pairs of them, a cycle each, that are written out
HIDDEN = 3  # of three cycles of columns that come late, arithmetic hides two
FAR = 3  # second caches: data of so many comes from behind one
SIZES = tuple(range(16, 260, 8))  # sides of the products by which threads are judged
GAIN = 1.05  # of the speed of one thread: threads are worth it

CODE = """
define i64 @chain(i64 %count, i64 %x0, i64 %y, i64 %z) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %v0 = phi i64 [ %x0, %entry ], [ %v{last}, %loop ]
{chain}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
  ret i64 %v{last}
}}
define void @read(ptr %from, i64 %count, i64 %repeats) {{
entry:
  br label %again
again:
  %r = phi i64 [ 0, %entry ], [ %rnext, %finished ]
  br label %loop
loop:
  %i = phi i64 [ 0, %again ], [ %next, %loop ]
  %at = getelementptr {vector}, ptr %from, i64 %i
{loads}
  %next = add i64 %i, 8
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %finished
finished:
  %rnext = add i64 %r, 1
  %rmore = icmp slt i64 %rnext, %repeats
  br i1 %rmore, label %again, label %exit
exit:
  ret void
}}
"""


@dataclass(frozen=True)
class Probes:
    """Native loops: see CODE."""

    chain: Callable[..., int]
    read: Callable[..., None]
    width: int  # bytes of a vector
    image: object  # keeps the code alive


def probes() -> Probes:
    """The loops, compiled for this processor."""
    from tilewright.runtime.loader import link
    from tilewright.targets.cpu.compile import compile_text
    from tilewright.targets.cpu.machine import host

    lanes = host().vector_bits // 64
    vector = f"<{lanes} x i64>"
    chain = "\n".join(
        f"  %u{n} = add i64 %v{n}, %y\n  %v{n + 1} = xor i64 %u{n}, %z"
        for n in range(CHAIN)
    )
    loads = "\n".join(
        f"  %p{n} = getelementptr {vector}, ptr %at, i64 {n}\n"
        f"  %w{n} = load volatile {vector}, ptr %p{n}, align 8"
        for n in range(8)
    )
    text = CODE.format(chain=chain, last=CHAIN, loads=loads, vector=vector)
    image = link([compile_text(text, host(), "probes")])
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    return Probes(
        ctypes.CFUNCTYPE(number, *[number] * 4)(image.address("chain")),
        ctypes.CFUNCTYPE(None, pointer, number, number)(image.address("read")),
        lanes * 8,
        image,
    )


def best(work: Callable[[], object]) -> float:
    """Seconds of one call: the least of many batches, each as short as the clock allows.

    Short ones, because other work on the machine interrupts few of them.
    """
    calls, found = 1, math.inf
    until = time.perf_counter() + SECONDS
    while found is math.inf or time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        taken = time.perf_counter() - start
        if taken < BATCH:
            calls *= 2
        else:
            found = min(found, taken / calls)
    return found


def clock(p: Probes) -> float:
    """Cycles per nanosecond: additions and exclusive ors, each of what the one before gives."""
    return STEPS * 2 * CHAIN / best(lambda: p.chain(STEPS, 1, 3, 5)) / 1e9


def bandwidth(p: Probes, size: int) -> float:
    """Bytes per nanosecond that one core reads of so many bytes, again and again."""
    data = np.ones(size, np.uint8)
    count = size // (8 * p.width) * 8
    repeats = max(1, (1 << 24) // size)
    seconds = best(lambda: p.read(data.ctypes.data, count, repeats))
    return repeats * count * p.width / seconds / 1e9


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


def facts(p: Probes) -> dict[str, float]:
    """What the processor is: sizes as the system says them, the clock as measured."""
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


def costs(p: Probes, given: Mapping[str, float], threads: int) -> dict[str, float]:
    """Constants of cost (`targets/cpu/cost.py`), from a processor's facts."""
    near, far = int(given["l2"]) // 2, FAR * int(given["l2"])
    far_bytes = bandwidth(p, far) / given["clock"]
    found = {
        "second_bytes": bandwidth(p, near) / given["clock"],
        "far_bytes": far_bytes,
        "far_byte": 1 / (HIDDEN * far_bytes),
    }
    side = 256
    call, whole = best(product(2, 1)), best(product(side, 1))
    found["product_ns"] = (whole - call) * 1e9 / side**3
    if threads > 1 and (share := break_even(threads)) is not None:
        found["share_ns"] = share
    return found


def description(threads: int) -> str:
    """The description of this processor, as TOML."""
    p = probes()
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
@click.option("--threads", type=click.IntRange(1), help="Default: what is really ours.")
def main(file: Path, threads: int | None) -> None:
    """Measure this processor for a minute and write its description to FILE."""
    from tilewright.runtime.threads import thread_count

    text = description(thread_count(threads))
    file.write_text(text, encoding="utf-8")
    click.echo(text, nl=False)


if __name__ == "__main__":
    main()
