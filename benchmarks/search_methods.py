"""Compares search methods: how many trials each needs to come near the optimum.

    python -m benchmarks.search_methods [--trials N] [--seeds N] [--effort N] [--methods NAME ...]
                                        [--recorded FILE ...] [--record NAME FILE] [--json]

Synthetic landscapes: `bowl` (a million places, separable), `cliffs` (tiles against caches),
`rugged` (a bowl with fixed noise), `holes` (a bowl of which a third is rejected). A trial's rounds
have 5% noise. The guided methods share one model, a Gaussian process that only learns from trials;
`-without` is the same method without a model. For each method the medians over seeds are shown: of
the trials until a candidate takes at most 1/0.95 of the best, and of how near the optimum the best
of the first 32 and 128 trials are. `--recorded` adds landscapes of measured times, which `--record`
makes: it measures candidates of an operator of `benchmarks.metaschedule`, or of the first kernel of
a model's file, with real-time priority where that is permitted: half of them random, half the
default with a few parameters changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from random import Random

from benchmarks.metaschedule import OPERATORS, arguments
from tilewright import te
from tilewright.base.errors import InputError, ScheduleError
from tilewright.driver.tasks import tasks
from tilewright.lang.function import Function
from tilewright.testing import recorded
from tilewright.testing.landscapes import (
    Landscape,
    LearningModel,
    TableRunner,
    bowl,
    cliffs,
    rugged,
)
from tilewright.tune.base import Candidate, Job, Status, Task
from tilewright.tune.building import BuildAhead, Numbered
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.priority import check_realtime
from tilewright.tune.pretrained import near
from tilewright.tune.strategies import ProgramMaker
from tilewright.tune.tuner import Tuning, TuningTools

NEAR = 0.95
LOOKS = (32, 128)  # trials
METHODS = (
    "evolutionary",
    "annealing",
    "tree",
    "mcts",
    "bandit",
    "evolutionary-without",
    "random",
)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians. trials: to 95% of the best, infinite if not reached. near: the best of the first
    trials, as a part of the best there is. schedules, seconds: of a run, without measuring."""

    landscape: str
    method: str
    trials: float
    near: tuple[float, ...]
    schedules: float
    seconds: float


def landscapes(files: Sequence[Path]) -> dict[str, Landscape]:
    """The landscapes, by name."""
    wide = (10,) * 6
    made = {
        "bowl": Landscape(wide, bowl),
        "cliffs": Landscape((8,) * 6, cliffs),
        "rugged": Landscape((8,) * 6, rugged),
        "holes": Landscape(wide, bowl, lambda place: sum(place) % 3 == 2),
    }
    return made | {path.stem: recorded.read(path) for path in files}


def least(land: Landscape) -> float:
    """The best time of a landscape: known of records and bowls, else of all places."""
    if isinstance(land, recorded.Recorded):
        return min(land.times.values())
    if land.time is bowl:
        return 1.0
    return min(land.seconds(c) for c in land)


def run(land: Landscape, method: str, trials: int, seed: int, effort: int) -> Tuning:
    """One search with this many trials."""
    by, _, without = method.partition("-")
    model = None if without else LearningModel(land.sides)
    tools = TuningTools(TableRunner(land, 0.05), model=model)
    tuning = Tuning(land.task(), tools, by=by, seed=seed, effort=effort)
    while tuning.used < trials and not tuning.through:
        tuning.step(min(16, trials - tuning.used))
    return tuning


def compared(
    name: str, land: Landscape, method: str, best: float, asked: argparse.Namespace
) -> Row:
    """The medians of several seeds. best: the least time of the landscape."""
    needed: list[float] = []
    near: list[list[float]] = [[] for _ in LOOKS]
    schedules: list[float] = []
    seconds: list[float] = []
    for seed in range(asked.seeds):
        start = time.process_time()
        tuning = run(land, method, asked.trials, seed, asked.effort)
        seconds.append(time.process_time() - start)
        schedules.append(tuning.programs.made)
        ok = [t for t in tuning.trials if t.measurement.status is not Status.REFUSED]
        times = [land.seconds(t.candidate) for t in ok]
        hits = (n for n, taken in enumerate(times, 1) if taken <= best / NEAR)
        needed.append(next(hits, inf))
        for found, look in zip(near, LOOKS, strict=True):
            found.append(best / min(times[:look]))
    return Row(
        name,
        method,
        statistics.median(needed),
        tuple(map(statistics.median, near)),
        statistics.median(schedules),
        statistics.median(seconds),
    )


def task_of(name: str) -> Task:
    """The task of an operator, or of the first kernel of a model's file."""
    if name not in OPERATORS:
        return tasks(name, threads=1)[0]
    args = arguments(te, OPERATORS[name])
    schedule = te.create_schedule(args[-1].op)
    function = te.build(schedule, args, threads=1, auto=True, records=False)
    assert isinstance(function, Function) and function.origin is not None
    return function.origin.program.task()


def candidates(task: Task, count: int) -> list[Candidate]:
    """The default, and as many random ones as such near it."""
    random = Random(0)
    default = task.space.default()
    found = {default: None}
    for _ in range(2 * count):
        if len(found) >= count:
            break
        found[task.space.sample(random)] = None
        found[near(task, default, random)] = None
    return list(found)[:count]


def timing() -> Timing:
    """With real-time priority if that is permitted."""
    try:
        check_realtime()
    except InputError:
        return Timing()
    return Timing(realtime=True)


def record(name: str, path: Path, count: int) -> None:
    """Writes times of candidates of a task, one line each."""
    task = task_of(name)
    wanted = candidates(task, count)
    maker = ProgramMaker(task)

    def points() -> Iterator[Numbered]:
        for number, candidate in enumerate(wanted):
            try:
                yield number, maker.point(candidate)
            except ScheduleError:
                continue

    with LocalRunner(timing=timing()) as runner, path.open("w") as file:
        built = BuildAhead(ProgramBuilder(runner.spare))(task, points())
        jobs = (job for _, job in built if isinstance(job, Job))
        for number, found in runner.measure(jobs):
            if found.seconds < inf:
                row = {"key": wanted[number].key, "seconds": found.seconds}
                print(json.dumps(row), file=file, flush=True)


def show(row: Row) -> None:
    """One line of the table."""
    trials = "-" if row.trials == inf else f"{row.trials:.0f}"
    near = " ".join(f"{n:8.3f}" for n in row.near)
    print(
        f"{row.landscape:10} {row.method:22} {trials:>6} {near} "
        f"{row.schedules:9.0f} {row.seconds:7.1f}",
        flush=True,
    )


def main() -> None:
    """Prints a line for each landscape and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--effort", type=int, default=16)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--landscapes", nargs="+")
    parser.add_argument("--recorded", type=Path, nargs="+", default=())
    parser.add_argument("--record", nargs=2, metavar=("NAME", "FILE"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.record:
        record(asked.record[0], Path(asked.record[1]), asked.trials)
        return
    looks = " ".join(f"of {n:5}" for n in LOOKS)
    if not asked.json:
        print(f"{'landscape':10} {'method':22} trials {looks} schedules seconds")
    for name, land in landscapes(asked.recorded).items():
        if asked.landscapes and name not in asked.landscapes:
            continue
        best = least(land)
        for method in asked.methods:
            row = compared(name, land, method, best, asked)
            if asked.json:
                print(json.dumps(asdict(row)))
            else:
                show(row)


if __name__ == "__main__":
    main()
