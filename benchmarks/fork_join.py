"""The cost of threads: a region inside a run, waking them, calls after a pause, two models at once.

python -m benchmarks.fork_join --threads 2
"""

from __future__ import annotations

import ctypes
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

# Median seconds; the share of their speed that two concurrent models keep.
FORK_JOIN, COLD_WAKE, TOGETHER = 1e-6, 100e-6, 0.9
REGIONS = 2000
PAUSE = 2e-3  # longer than workers spin
IDLE = 0.05  # a pause of a program that waits for its next input

# A region of `n` steps of work per iteration, called `count` times; and one in which iteration 0
# waits, for a bounded time, until another has begun.
REGION = """
define internal void @work(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
entry:
  %each = load i64, ptr %closure
  %count = sub i64 %end, %begin
  %n = mul i64 %each, %count
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  fence seq_cst
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}
define void @regions(ptr %ctx, ptr %closure, i64 %count, i64 %extent) {
entry:
  %parallel = load ptr, ptr %ctx
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %parallel(ptr %ctx, ptr @work, ptr %closure, i64 %extent)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
define internal void @meeting(ptr %closure, i64 %thread, i64 %begin, i64 %end) {
entry:
  %first = icmp eq i64 %begin, 0
  br i1 %first, label %wait, label %come
come:
  store atomic i64 1, ptr %closure release, align 8
  ret void
wait:
  %i = phi i64 [ 0, %entry ], [ %next, %wait ]
  %there = load atomic i64, ptr %closure acquire, align 8
  %next = add i64 %i, 1
  %missing = icmp eq i64 %there, 0
  %patient = icmp slt i64 %i, 50000000
  %again = and i1 %missing, %patient
  br i1 %again, label %wait, label %done
done:
  ret void
}
define void @meet(ptr %ctx, ptr %closure) {
  %parallel = load ptr, ptr %ctx
  call void %parallel(ptr %ctx, ptr @meeting, ptr %closure, i64 2)
  ret void
}
"""


class Regions:
    """The regions above on the process-wide pool with `threads` threads."""

    def __init__(self, threads: int) -> None:
        from tilewright.runtime import abi, pool
        from tilewright.runtime.loader import link
        from tilewright.targets.cpu.compile import compile_text
        from tilewright.targets.cpu.machine import host
        from tilewright.targets.cpu.pool import pool_object

        self._image = link([compile_text(REGION, host(), "regions")])
        self._pool = pool.shared(pool_object(platform.machine()))
        self._pool.ensure(threads)
        self._context = (ctypes.c_uint64 * abi.CTX_SLOTS)()
        self._context[abi.CTX_PARALLEL] = self._pool.parallel
        self._context[abi.CTX_POOL] = self._pool.state
        self._context[abi.CTX_THREADS] = threads
        self._closure = (ctypes.c_int64 * 1)()
        pointers = ctypes.c_void_p, ctypes.c_void_p
        self._many = ctypes.CFUNCTYPE(None, *pointers, *[ctypes.c_int64] * 2)(
            self._image.address("regions")
        )
        self._meet = ctypes.CFUNCTYPE(None, *pointers)(self._image.address("meet"))

    def seconds(self, steps: int, extent: int) -> float:
        """Seconds of one of many regions in a row, with `steps` of work per iteration."""
        self._closure[0] = steps
        start = time.perf_counter()
        self._many(
            ctypes.addressof(self._context),
            ctypes.addressof(self._closure),
            REGIONS,
            extent,
        )
        return (time.perf_counter() - start) / REGIONS

    def wake(self) -> float:
        """Seconds until a worker that slept has joined the first region."""
        time.sleep(PAUSE)
        self._closure[0] = 0
        start = time.perf_counter()
        self._meet(ctypes.addressof(self._context), ctypes.addressof(self._closure))
        return time.perf_counter() - start


def costs(threads: int, repeats: int) -> dict[str, float]:
    """Medians: an empty region, the overhead of a region on a thread's share, and a cold wake."""
    alone, team = Regions(1), Regions(threads)
    empty, added, wakes = [], [], []
    for _ in range(repeats):
        empty.append(team.seconds(0, threads))
        added.append(team.seconds(400, threads) - alone.seconds(400, 1))
        wakes.append(team.wake())
    return {
        "empty_seconds": statistics.median(empty),
        "empty_least": min(empty),
        "fork_join_seconds": statistics.median(added),
        "fork_join_least": min(added),
        "wake_seconds": statistics.median(wakes),
        "wake_least": min(wakes),
    }


def _calls(run: Callable[[], object], until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        run()
        count += 1
    return count


def _product(n: int, threads: int) -> Callable[[], Any]:
    """A product of n x n matrices as its own model, to be called."""
    import tilewright as tw
    from tilewright.frontends.onnx.author import Author

    author = Author("product")
    x = author.input("x", tw.dtype_of("float32"), (n, n))
    weight = author.weight("w", np.full((n, n), 0.5, np.float32))
    author.output(
        author.node("MatMul", [x, weight], "y"), tw.dtype_of("float32"), (n, n)
    )
    exe = tw.compile(author.model(), threads=threads)
    data, out = np.full((n, n), 0.25, np.float32), np.empty((n, n), np.float32)
    return lambda: exe(data, out=out)


def after_a_pause(threads: int, rounds: int) -> float:
    """The second call after a pause relative to a call among many: the ratio of median seconds."""
    run = _product(512, threads)

    def second() -> float:
        run()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    busy = statistics.median(second() for _ in range(rounds))
    paused = []
    for _ in range(rounds):
        time.sleep(IDLE)
        paused.append(second())
    return statistics.median(paused) / busy


def together(threads: int, seconds: float, rounds: int) -> float:
    """Total calls per second of two concurrent models relative to one alone: the median.

    Each model is a product on `threads` threads; the two are called by their own threads.
    """
    runs = [_product(256, threads) for _ in range(2)]
    ratios = []
    for _ in range(rounds):
        one = _calls(runs[0], time.perf_counter() + seconds)
        until = time.perf_counter() + seconds
        counts = [0, 0]

        def call(n: int, until: float = until, counts: list[int] = counts) -> None:
            counts[n] = _calls(runs[n], until)

        users = [threading.Thread(target=call, args=(n,)) for n in (0, 1)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        ratios.append(sum(counts) / max(1, one))
    return statistics.median(ratios)


def measure(threads: int, repeats: int) -> dict[str, Any]:
    """All measurements on `threads` threads."""
    return {
        "threads": threads,
        **costs(threads, repeats),
        "after_a_pause": after_a_pause(threads, 25),
        "together": together(threads, 0.2, 5),
    }


def missed(row: dict[str, Any]) -> list[str]:
    """The missed bars, one sentence each."""
    result = []
    for key, bar in (("fork_join_seconds", FORK_JOIN), ("wake_seconds", COLD_WAKE)):
        if row[key] > bar:
            result.append(f"{key} {row[key] * 1e6:.2f} us, bar {bar * 1e6:.0f} us")
    if row["together"] < TOGETHER:
        result.append(
            f"two at once do {row['together']:.2f} of one alone, bar {TOGETHER}"
        )
    return result


@click.command(epilog="Example: python -m benchmarks.fork_join --threads 2 --check")
@click.option("--threads", default=2, show_default=True, type=click.IntRange(min=2))
@click.option("--repeats", default=101, show_default=True, type=click.IntRange(min=1))
@click.option("--check", is_flag=True, help="Exit with 1 if a bar is missed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(threads: int, repeats: int, check: bool, as_json: bool) -> None:
    """Measure the cost of a parallel region, a cold wake and a second model."""
    row = measure(threads, repeats)
    if as_json:
        click.echo(json.dumps(row))
    else:
        us = {
            key: f"{value * 1e6:.2f} us"
            for key, value in row.items()
            if key != "threads"
        }
        click.echo(
            f"an empty region: {us['empty_seconds']} (least {us['empty_least']})"
        )
        click.echo(f"a region with work adds: {us['fork_join_seconds']} "
                   f"(least {us['fork_join_least']})")  # fmt: skip
        click.echo(f"a cold wake: {us['wake_seconds']} (least {us['wake_least']})")
        click.echo(
            f"a call after a pause: {row['after_a_pause']:.2f} times one among many"
        )
        click.echo(
            f"two models at once: {row['together']:.2f} of the calls of one alone"
        )
    problems = missed(row)
    for problem in problems:
        click.echo(f"missed: {problem}", err=True)
    sys.exit(1 if check and problems else 0)


if __name__ == "__main__":
    main()
