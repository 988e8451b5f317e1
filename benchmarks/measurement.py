"""How accurate measurements of programs are: repeated, during builds, and as in a network.

    python -m benchmarks.measurement [twice] [beside] [network] [--programs N] [--threads N]
    python -m benchmarks.measurement network --network mobilenet_v2

twice: programs of several operators in two passes, each in another order: how far a program's two
times are apart, whether the ranking agrees (Kendall's tau), and trials per second. beside: one
program, alternately alone and while others are built on another core or on the same one. network:
each kernel of a network with hot caches and with the network's cache state, against its time within
the network.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import log
from random import Random
from typing import Any

import torch

import tilewright as tw
from benchmarks import harness, models
from benchmarks.operators import FLOAT32
from tilewright.base.text import columns
from tilewright.cli.rounds import disturbance
from tilewright.driver.tasks import tasks
from tilewright.runtime.threads import affinity
from tilewright.tune.base import Job, Measurement, Status, Task
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Timing

OPERATORS = (
    "matmul_512",
    "conv3x3_64x56",
    "conv1x1_256x56_64",
    "depthwise3x3_144x56",
    "softmax_4096x768",
    "layernorm_4096x768",
)
NEVER = float("inf")


def operator_task(name: str, threads: int) -> Task:
    """The kernel of an operator that does the most."""
    operator = FLOAT32[name]
    inputs = [torch.randn(shape) for shape in operator.shapes]
    found = tasks(operator.make().eval(), inputs, threads=threads)
    return max(found, key=lambda t: (t.operations, t.bytes_moved))


def programs(task: Task, count: int) -> list[Job]:
    """The default schedule and random ones, as far as there is code for them."""
    random, seen = Random(0), {task.space.default().key: task.space.default()}
    for _ in range(4 * count):
        if len(seen) < count:
            found = task.space.sample(random)
            seen.setdefault(found.key, found)
    points = [task.schedule(c) for c in seen.values()]
    makes = [task.reference, *(lambda p=p: task.build(p) for p in points)]
    made = dict(ProgramBuilder().build(enumerate(makes)))
    expected = made.pop(0).data
    return [
        Job(n, m.data, expected, m.seconds) for n, m in sorted(made.items()) if m.data
    ]


def measured(
    runner: LocalRunner, jobs: Sequence[Job], seed: int
) -> dict[int, Measurement]:
    """The jobs in an order of chance."""
    order = list(jobs)
    Random(seed).shuffle(order)
    return dict(runner.measure(order))


def twice(count: int, threads: int) -> str:
    """Two passes of every operator's programs: in full, and with a tuner's early stop of slow
    ones."""
    rows = [
        ["operator", "programs", "apart", "at most", "by anchor", "tau", "tau > 2%",
         "trials/s", "racing", "noise"]
    ]  # fmt: skip
    for name in OPERATORS:
        jobs = programs(operator_task(name, threads), count)
        runner = LocalRunner(threads, timing=Timing(worse=1e9))
        start = time.perf_counter()
        passes = [measured(runner, jobs, seed) for seed in (1, 2)]
        whole = 2 * len(jobs) / (time.perf_counter() - start)
        runner.close()
        racing = LocalRunner(threads)
        start = time.perf_counter()
        measured(racing, jobs, 3)
        raced = len(jobs) / (time.perf_counter() - start)
        racing.close()
        ok = [n for n in passes[0] if all(p[n].status is Status.OK for p in passes)]
        one, two = ([p[n].seconds for n in ok] for p in passes)
        by_anchor = [[p[n].seconds / max(1.0, p[n].noise) for n in ok] for p in passes]
        noise = statistics.median(p[n].noise for p in passes for n in ok)
        gaps = apart(one, two)
        rows.append(
            [name, f"{len(ok)}/{len(jobs)}", f"{statistics.median(gaps):.1%}",
             f"{max(gaps):.1%}", f"{statistics.median(apart(*by_anchor)):.1%}",
             f"{tau(one, two, 0.0):.2f}", f"{tau(one, two, 0.02):.2f}", f"{whole:.1f}",
             f"{raced:.1f}", f"{noise:.2f}"]
        )  # fmt: skip
    return columns(rows)


def apart(one: Sequence[float], two: Sequence[float]) -> list[float]:
    """How far two times of each program are apart, in parts of the smaller."""
    return [max(a, b) / min(a, b) - 1 for a, b in zip(one, two, strict=True)]


def tau(one: Sequence[float], two: Sequence[float], least: float) -> float:
    """Kendall's tau of two passes, over the pairs of programs that are `least` apart in both."""
    agree = total = 0
    for i, j in combinations(range(len(one)), 2):
        a, b = log(one[i] / one[j]), log(two[i] / two[j])
        if min(abs(a), abs(b)) > log(1 + least):
            total += 1
            agree += 1 if a * b > 0 else -1
    return agree / total if total else 1.0


def beside(rounds: int) -> str:
    """Times of programs while others are built, in parts of their times without that."""
    rows = [["operator", "builds on another core", "on the same core"]]
    others = sorted(affinity())[1:2]
    for name in OPERATORS:
        task = operator_task(name, 1)
        [job] = programs(task, 1)
        runner = LocalRunner(1, timing=Timing(worse=1e9))
        point = task.schedule(task.space.default())
        shares: dict[str, list[float]] = {"other": [], "same": []}
        for _ in range(rounds):
            for where, cpus in (("other", others), ("same", runner.cpus)):
                [(_, alone)] = runner.measure([job])
                busy = ProgramBuilder(cpus, ahead=2)
                builds: Any = busy.build(_endless(task, point))
                next(builds)
                [(_, found)] = runner.measure([job])
                builds.close()
                shares[where].append(found.seconds / alone.seconds)
        runner.close()
        rows.append([name, *(f"{statistics.median(s):.3f}" for s in shares.values())])
    return columns(rows)


def _endless(task: Task, point: Any) -> Iterator[tuple[int, Any]]:
    """Builds without an end; only those that a Builder runs ahead are made."""

    def many() -> bytes:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            task.build(point)
        return b""

    yield 0, lambda: b""
    for n in range(1, 3):
        yield n, many


def network(name: str, threads: int) -> str:
    """The kernels of a network, alone and within it."""
    path, _ = harness.prepare(name, models.default_directory())
    found = tasks(str(path), threads=threads)
    exe: Any = tw.compile(str(path), threads=threads, records=False)
    profile = exe.profile(models.inputs(name), repeat=30)
    seconds = {row.name: row.seconds for row in profile.rows}
    states = {
        "hot": Timing(),
        "a run between": Timing("network", exe.peak_bytes),
        "the last cache between": Timing("network"),
    }
    rows = [["kernel", "calls", "within, us", *states]]
    ratios: dict[str, list[float]] = {state: [] for state in states}
    for task in found:
        inside = statistics.mean(seconds[k] for k in task.kernels)
        [job] = programs(task, 1)
        shown = []
        for state, timing in states.items():
            with LocalRunner(threads, timing=timing) as runner:
                [(_, m)] = runner.measure([job])
            ratios[state].append(m.seconds / inside)
            shown.append(f"{ratios[state][-1]:.2f}")
        rows.append([task.name[:40], str(task.calls), f"{inside * 1e6:.1f}", *shown])
    off = [f"{statistics.mean(abs(log(x)) for x in r):.2f}" for r in ratios.values()]
    rows.append(["mean distance of the logarithms", "", "", *off])
    return columns(rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["twice", "beside", "network"])
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--network", default="shufflenet", help="for `network`")
    given = parser.parse_args()
    if (said := disturbance()) is not None:
        print(said)
    made = {
        "twice": lambda: twice(given.programs, given.threads),
        "beside": lambda: beside(given.programs),
        "network": lambda: network(given.network, given.threads),
    }
    for part in given.parts:
        print(f"\n{part}\n{made[part]()}")


if __name__ == "__main__":
    main()
