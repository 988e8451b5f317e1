"""Compares search methods: how many trials each needs to come near the optimum.

    python -m benchmarks.search_methods [--trials N] [--seeds N] [--effort N] [--methods NAME ...]
                                        [--landscapes NAME ...] [--json]
    python -m benchmarks.search_methods --store FOLDER [--operators NAME ...] [--fill N]
                                        [--least N] ...

Synthetic landscapes: `bowl` (a million places, separable), `cliffs` (tiles against caches),
`rugged` (a bowl with fixed noise), `holes` (a bowl of which a third is rejected). A trial's rounds
have 5% noise. The guided methods share one model, a Gaussian process that only learns from trials;
`-without` is the same method without a model. For each method the medians over seeds are shown: of
the trials until a candidate takes at most 1/0.95 of the best, and of how near the optimum the best
of the first 32 and 128 trials are.

With `--store`, the operators of `benchmarks.metaschedule` are searched, each with its own space and
the cost model of `tune`; `transfer` is `evolutionary` with a model that starts from the pretrained
one. Each program is measured once, with real-time priority where that is permitted, and kept in a
file of the folder, which all methods and later runs read. Shown are the trials after the default's
until 95% of the best known, and how near the best the first 16 of them are. `--fill` measures as
many programs first, half of them random and half near the default. A method's runs end near the
best that is known of any method, after `--least` trials or later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

from benchmarks.metaschedule import OPERATORS
from benchmarks.search_store import (
    NEAR,
    MeasuredStore,
    NoRunner,
    Shop,
    fill,
    program_of,
    task_of,
)
from tilewright.targets.registry import target
from tilewright.testing.landscapes import (
    Landscape,
    LearningModel,
    TableRunner,
    bowl,
    cliffs,
    rugged,
)
from tilewright.tune.base import Status, Task
from tilewright.tune.features.facts import Facts
from tilewright.tune.models import make
from tilewright.tune.tuner import BATCH, Tuning, TuningTools

LOOKS = (32, 128)  # trials
METHODS = (
    "evolutionary",
    "annealing",
    "tree",
    "mcts",
    "bandit",
    "evolutionary-without",
    "random",
    "gaussian-process",
    "transfer",
)
# Of operators: the strategy, and the cost model if it is guided by one.
SEARCHES: Mapping[str, tuple[str, str | None]] = {
    "random": ("random", None),
    "bandit": ("bandit", None),
    "annealing": ("annealing", "trees-advised"),
    "evolutionary": ("evolutionary", "trees-advised"),
    "gaussian-process": ("evolutionary", "gaussian-process"),
    "transfer": ("evolutionary", "trees-pretrained"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One search. effort: schedules per trial."""

    seed: int
    effort: int


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


def landscapes() -> dict[str, Landscape]:
    """The landscapes, by name."""
    wide = (10,) * 6
    return {
        "bowl": Landscape(wide, bowl),
        "cliffs": Landscape((8,) * 6, cliffs),
        "rugged": Landscape((8,) * 6, rugged),
        "holes": Landscape(wide, bowl, lambda place: sum(place) % 3 == 2),
    }


def least(land: Landscape) -> float:
    """The best time of a landscape: known of bowls, else of all places."""
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


@dataclass(frozen=True, slots=True)
class Reached:
    """Trials of an operator until 95% of the best known. default: how near the best the default is,
    which does not count as found. trials: by method, the medians over seeds; infinite if not
    reached. near: how near the best the first BATCH trials after the default are. programs:
    measured."""

    operator: str
    best: float
    default: float
    trials: dict[str, float]
    near: dict[str, float]
    programs: int


def tuning_of(task: Task, method: str, build: MeasuredStore, asked: Asked) -> Tuning:
    """A search of an operator, before its first trial."""
    by, model = SEARCHES[method]
    facts = Facts.of(target("cpu", "native", threads=1))
    made = None if model is None else make(model, facts, asked.seed)
    tools = TuningTools(NoRunner(), build, model=made)
    return Tuning(task, tools, by=by, seed=asked.seed, effort=asked.effort)


def first_near(tuning: Tuning, best: float) -> float:
    """The number of trials after the default's until one takes at most 1/NEAR of the best; infinite
    if there is none."""
    counted = [t for t in tuning.trials if t.measurement.status is not Status.REFUSED]
    times = (t.measurement.seconds for t in counted[1:])
    hits = (n for n, taken in enumerate(times, 1) if taken <= best / NEAR)
    return next(hits, inf)


def near_first(tuning: Tuning, best: float) -> float:
    """How near the best the first round of a search is, as a part of the best."""
    return best / min(t.measurement.seconds for t in tuning.trials[1 : BATCH + 1])


def searched(
    name: str, store: MeasuredStore, methods: Sequence[str], asked: argparse.Namespace
) -> Reached:
    """How many trials each method needs for an operator. All take turns, each until it is near the
    best that any has found, and has had its least number of trials."""
    task = task_of(name)
    fill(store, task, asked.fill)
    tunings = {
        (method, seed): tuning_of(task, method, store, Asked(seed, asked.effort))
        for method in methods
        for seed in range(asked.seeds)
    }

    def is_open(tuning: Tuning) -> bool:
        near = first_near(tuning, store.best) < inf and tuning.used >= asked.least
        return not tuning.through and tuning.used < asked.trials and not near

    while open_ := [t for t in tunings.values() if is_open(t)]:
        for tuning in open_:
            # As in `tune`, the first round is the default alone.
            count = BATCH if tuning.bests else 1
            tuning.step(min(count, asked.trials - tuning.used))

    def median(method: str, of: Callable[[Tuning, float], float]) -> float:
        found = [of(tunings[method, s], store.best) for s in range(asked.seeds)]
        return statistics.median(found)

    default = store.times[program_of(task, task.schedule(task.space.default()))]
    return Reached(
        name,
        store.best,
        store.best / default,
        {method: median(method, first_near) for method in methods},
        {method: median(method, near_first) for method in methods},
        len(store.times),
    )


def search_operators(asked: argparse.Namespace) -> None:
    """Prints a line for each operator."""
    methods = [m for m in asked.methods if m in SEARCHES]
    asked.store.mkdir(parents=True, exist_ok=True)
    heads = " ".join(f"{m:>12}" for m in methods)
    if not asked.json:
        print(f"{'operator':16} {'best us':>9} default programs {heads}")
    with Shop() as shop:
        for name in asked.operators or OPERATORS:
            store = MeasuredStore(asked.store / f"{name}.jsonl", shop)
            found = searched(name, store, methods, asked)
            if asked.json:
                print(json.dumps(asdict(found)), flush=True)
                continue
            trials = " ".join(
                f"{_shown(found.trials[m]):>6} {found.near[m]:5.2f}" for m in methods
            )
            print(
                f"{name:16} {found.best * 1e6:9.1f} {found.default:7.3f} "
                f"{found.programs:8} {trials}",
                flush=True,
            )


def _shown(trials: float) -> str:
    return "-" if trials == inf else f"{trials:.0f}"


def show(row: Row) -> None:
    """One line of the table."""
    trials = _shown(row.trials)
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
    parser.add_argument("--store", type=Path)
    parser.add_argument("--operators", nargs="+", choices=OPERATORS)
    parser.add_argument("--fill", type=int, default=0)
    parser.add_argument("--least", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.store:
        search_operators(asked)
        return
    looks = " ".join(f"of {n:5}" for n in LOOKS)
    if not asked.json:
        print(f"{'landscape':10} {'method':22} trials {looks} schedules seconds")
    for name, land in landscapes().items():
        if asked.landscapes and name not in asked.landscapes:
            continue
        best = least(land)
        for method in asked.methods:
            if method in ("gaussian-process", "transfer"):
                continue  # a formula has no features of programs
            row = compared(name, land, method, best, asked)
            if asked.json:
                print(json.dumps(asdict(row)))
            else:
                show(row)


if __name__ == "__main__":
    main()
