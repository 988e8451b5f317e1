"""TVM's matrix products and a Winograd convolution in te, beside the same loops in TVM's TensorIR.

python -m benchmarks.te_programs [NAME ...] [--threads 1,2] [--rounds N]

The steps of TVM's tutorial on matrix products, from three loops to parallel tiles of packed data,
and a 3x3 convolution by Winograd's F(4,3). The definitions are the same lines in both packages; the
schedules are te's here and TensorIR's there, and make the same loops. Each program and number of
threads is a process of its own; both compile it, compute the same values, and are timed in
alternating rounds: one thread by its processor time, in which other work on the machine does not
show, several by the clock. A ratio is TVM's time over ours: above 1, this package is faster.
TVM is the package `apache-tvm`.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from benchmarks import te_gemm, te_winograd
from tilewright.cli.rounds import choose_cpus, disturbance
from tilewright.runtime.machine import processor_name

ROUND = 0.05  # seconds that one round of one package takes at least
TOLERANCE = 1e-4  # of the largest value: sums of float32 in another order
PROGRAMS = {p.name: p for p in (*te_gemm.PROGRAMS, te_winograd.PROGRAM)}


@dataclass(frozen=True)
class Side:
    """One package's program: its call, its result, and the seconds that compiling took."""

    call: Callable[[], object]
    result: Callable[[], np.ndarray[Any, Any]]
    seconds: float


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins at a cache line, as TVM's tensors do."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def ours(program: Any, arrays: Sequence[np.ndarray[Any, Any]], threads: int) -> Side:
    """The program built by this package."""
    from tilewright import te

    start = time.perf_counter()
    args, schedule = program.ours(te)
    function = te.build(schedule, args, threads=threads)
    seconds = time.perf_counter() - start
    held = [aligned(a) for a in (*arrays, np.zeros(args[-1].shape, np.float32))]
    return Side(lambda: function(*held), lambda: held[-1], seconds)


def theirs(program: Any, arrays: Sequence[np.ndarray[Any, Any]]) -> Side:
    """The program built by TVM for this processor."""
    import tvm
    from llvmlite import binding

    start = time.perf_counter()
    args, schedule = program.theirs(tvm)
    target = tvm.target.Target({"kind": "llvm", "mcpu": binding.get_host_cpu_name()})
    function = tvm.compile(schedule.mod, target=target)["main"]
    seconds = time.perf_counter() - start
    device = tvm.cpu()
    shape = tuple(map(int, args[-1].shape))
    held = [
        tvm.runtime.tensor(a, device) for a in (*arrays, np.zeros(shape, np.float32))
    ]
    return Side(lambda: function(*held), held[-1].numpy, seconds)


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One program in this process: its times, ratio and difference."""
    program = PROGRAMS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) for s in program.shapes]
    small = te_gemm.SMALL  # what is set up once in a process is no compile time
    ours(small, [], threads)
    theirs(small, [])
    sides = [ours(program, arrays, threads), theirs(program, arrays)]
    clock = time.process_time if threads == 1 else time.perf_counter
    once = [_timed(side.call, 1, clock) for side in sides]
    expected = program.expected(*arrays)
    largest = np.abs(expected).max()
    off = [float(np.abs(side.result() - expected).max() / largest) for side in sides]
    times = [max(1, math.ceil(ROUND / seconds)) for seconds in once]
    taken: list[list[float]] = [[], []]
    for n in range(rounds):
        for k in (0, 1) if n % 2 else (1, 0):
            taken[k].append(_timed(sides[k].call, times[k], clock))
    return {
        "ms": [statistics.median(s) * 1e3 for s in taken],
        "ratio": statistics.median(t / m for m, t in zip(*taken, strict=True)),
        "compile": [side.seconds for side in sides],
        "off": max(off),
    }


def _timed(call: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
    """Seconds per call."""
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


def measured(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One program in a process of its own; `error` is what went wrong there."""
    command = [sys.executable, "-m", "benchmarks.te_programs", name, "--serve"]
    command += ["--threads", str(threads), "--rounds", str(rounds)]
    cpus = ",".join(map(str, choose_cpus(threads)))
    with tempfile.TemporaryDirectory() as cache:
        extra = {"TVM_NUM_THREADS": str(threads), "TILEWRIGHT_CACHE_DIR": cache}
        found = subprocess.run(
            ["taskset", "-c", cpus, *command],
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
        )
    if found.returncode:
        lines = found.stderr.strip().splitlines() or [f"status {found.returncode}"]
        return {"error": lines[-1]}
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def row(name: str, result: dict[str, Any]) -> str:
    """One line of the table."""
    if "error" in result:
        return f"{name:22} {result['error']}"
    mine, other = result["ms"]
    compile_mine, compile_other = result["compile"]
    line = (
        f"{name:22} {mine:9.3f} {other:9.3f} {result['ratio']:6.2f} "
        f"{compile_mine:7.2f} {compile_other:7.2f}"
    )
    if result["off"] > TOLERANCE:
        return f"{line}  WRONG: differs by {result['off']:.1e}"
    return line


@click.command()
@click.argument("names", nargs=-1)
@click.option("--threads", default="1,2", help="numbers of threads, with commas")
@click.option("--rounds", default=7, help="rounds of each package")
@click.option("--serve", is_flag=True, hidden=True)
def main(names: tuple[str, ...], threads: str, rounds: int, serve: bool) -> None:
    """Times te programs beside TVM's."""
    counts = [int(n) for n in threads.split(",")]
    if serve:
        print(json.dumps(measure(names[0], counts[0], rounds)))
        return
    print(f"{processor_name()}, {os.cpu_count()} processors")
    said = disturbance()
    if said:
        print(said)
    for count in counts:
        print(f"\n{count} thread{'s' if count > 1 else ''}")
        print(f"{'':22} {'ms':>9} {'TVM':>9} {'ratio':>6} {'compile':>7} {'TVM':>7} s")
        ratios = []
        for name in names or PROGRAMS:
            result = measured(name, count, rounds)
            print(row(name, result), flush=True)
            if "ratio" in result and result["off"] <= TOLERANCE:
                ratios.append(result["ratio"])
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(
                f"geometric mean of {len(ratios)}: {mean:.2f}, least {min(ratios):.2f}"
            )


if __name__ == "__main__":
    main()
