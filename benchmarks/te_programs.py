"""TVM's matrix products and a Winograd convolution in te, against the same loops in TVM's TensorIR.

python -m benchmarks.te_programs [NAME ...] [--threads 1,2] [--rounds N]

The steps of TVM's tutorial on matrix products, from three loops to parallel tiles of packed data,
and a 3x3 convolution by Winograd's F(4,3). The definitions are the same lines in both packages; the
schedules are te's here and TensorIR's there, and make the same loops. Each program and number of
threads is its own process; both compile it, compute the same values in the same memory (where
columns are read, the pages that it consists of are worth a fifth), and are timed in alternating
rounds: one thread by its processor time, in which other work on the machine does not show, several
by the clock. A ratio is TVM's time over ours: above 1, this package is faster.
TVM is the package `apache-tvm`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks import te_gemm, te_winograd
from benchmarks.harness import beside, rounds_option, served, thread_counts_option
from benchmarks.turns import pair, stopwatch
from tilewright.cli.rounds import disturbance
from tilewright.runtime.machine import processor_name

TOLERANCE = 1e-4  # of the largest value: sums of float32 in another order
PROGRAMS = {p.name: p for p in (*te_gemm.PROGRAMS, te_winograd.PROGRAM)}


@dataclass(frozen=True)
class Side:
    """One package's program: its call, and the seconds that compiling took."""

    call: Callable[[], object]
    seconds: float


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins at a cache line, as TVM's tensors do."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy: np.ndarray[Any, Any] = memory[start : start + array.nbytes].view(array.dtype)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy


def ours(program: Any, arrays: Sequence[np.ndarray[Any, Any]], threads: int) -> Side:
    """The program built by this package, on these arrays, the result last."""
    from tilewright import te

    start = time.perf_counter()
    args, schedule = program.ours(te)
    function = te.build(schedule, args, threads=threads)
    seconds = time.perf_counter() - start
    return Side(lambda: function(*arrays), seconds)


def theirs(program: Any, arrays: Sequence[np.ndarray[Any, Any]]) -> Side:
    """The program built by TVM for this processor, on the same memory."""
    import tvm
    from llvmlite import binding

    start = time.perf_counter()
    _, schedule = program.theirs(tvm)
    target = tvm.target.Target({"kind": "llvm", "mcpu": binding.get_host_cpu_name()})
    function = tvm.compile(schedule.mod, target=target)["main"]
    seconds = time.perf_counter() - start
    held = [tvm.runtime.from_dlpack(a) for a in arrays]
    return Side(lambda: function(*held), seconds)


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One program in this process: its times, ratio and difference."""
    program = PROGRAMS[name]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s, np.float32) for s in program.shapes]
    expected = program.expected(*inputs)
    result = np.zeros(expected.shape, np.float32)
    arrays = [aligned(a) for a in (*inputs, result)]
    small = te_gemm.SMALL  # what is set up once in a process is not a compile time
    ours(small, [], threads)
    theirs(small, [])
    sides = [ours(program, arrays, threads), theirs(program, arrays)]
    clock = time.process_time if threads == 1 else time.perf_counter
    return compared(sides, arrays[-1], expected, rounds, clock)


def compared(
    sides: Sequence[Side],
    result: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Two programs in alternating rounds, ours first: times, ratio and difference.

    result: the memory that both write.
    """
    once, off = [], []
    for side in sides:
        result[...] = np.nan
        once.append(stopwatch(side.call, clock)())
        off.append(float(np.abs(result - expected).max()))
    mine, other = (side.call for side in sides)
    return {
        **pair(mine, other, rounds, clock, once),
        "compile": [side.seconds for side in sides],
        "difference": float(np.max(off)) / float(np.abs(expected).max()),
        "tolerance": TOLERANCE,
    }


def measured(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One program in its own process; `error` is what went wrong there."""
    arguments = [name, "--threads", str(threads), "--rounds", str(rounds)]
    extra = {"TVM_NUM_THREADS": str(threads)}
    return served("benchmarks.te_programs", arguments, threads, extra)


@click.command()
@click.argument("names", nargs=-1)
@thread_counts_option()
@rounds_option(7)
@click.option("--serve", is_flag=True, hidden=True)
def main(names: tuple[str, ...], threads: list[int], rounds: int, serve: bool) -> None:
    """Times te programs against TVM's."""
    if serve:
        print(json.dumps(measure(names[0], threads[0], rounds)))
        return
    print(f"{processor_name()}, {os.cpu_count()} processors")
    said = disturbance()
    if said:
        print(said)
    for count in threads:
        print(f"\n{count} thread{'s' if count > 1 else ''}")
        beside(
            "TVM", names or PROGRAMS, partial(measured, threads=count, rounds=rounds)
        )


if __name__ == "__main__":
    main()
