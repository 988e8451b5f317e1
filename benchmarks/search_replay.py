"""Compares search methods on recorded times: exactly, with many seeds, without measuring.

    python -m benchmarks.search_methods --store FOLDER --fill 161 --methods evolutionary transfer
    python -m benchmarks.search_replay FOLDER [--filled 161] [--seeds N] [--trials N] [--effort N]
                                       [--start default|random] [--methods NAME ...] [--json]
                                       [--settle ROUNDS]

The first command measures programs of each operator: draws from its space, the default's neighbors,
and what searches propose. The second searches among these alone. Random candidates are the draws,
so that `random` is a random search of the space; a candidate's neighbors are the recorded ones that
differ from it in the fewest parameters, so that only searches get to what searches found. Each
method begins with the default (`--start default`) or with the same random program. Shown are the
medians over seeds of the trials until one takes at most 1/0.95 of the best recorded time, the first
trial included.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from benchmarks.metaschedule import OPERATORS
from benchmarks.search_store import (
    NEAR,
    MeasuredStore,
    Shop,
    candidates,
    program_of,
    settle,
    task_of,
)
from tilewright.base.errors import InputError, ScheduleError
from tilewright.schedule.space import Point
from tilewright.targets.registry import target
from tilewright.tune.base import Candidate, Measurement, Sample, Status, Task, Trial
from tilewright.tune.features.facts import Facts
from tilewright.tune.models import make
from tilewright.tune.strategies import ConfidenceBounds, ProgramMaker, Setup, strategy
from tilewright.tune.tuner import BATCH

NEAREST: Final = 8  # recorded candidates near one
# The strategy, and the cost model if it is guided by one.
METHODS: Final[Mapping[str, tuple[str, str | None]]] = {
    "random": ("random", None),
    "cooling": ("cooling", None),
    "annealing": ("annealing", "trees-advised"),
    "evolutionary": ("evolutionary", "trees-advised"),
    "gaussian-process": ("evolutionary", "gaussian-process"),
    "transfer": ("evolutionary", "trees-pretrained"),
}

FACTS: Final = Facts.of(target("cpu", "native", threads=1))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared. effort: schedules per trial. random: each search begins with a random
    program, and not with the default."""

    methods: Sequence[str]
    seeds: int
    trials: int
    effort: int
    random: bool


class RecordedSpace:
    """The recorded candidates of a space. first: takes the place of the default. drawn: those that
    were drawn from the space."""

    def __init__(self, recorded: Sequence[Candidate], drawn: Sequence[Candidate]):
        self._recorded: Final = recorded
        self._drawn: Final = drawn
        self._first = recorded[0]
        self._places: Final = {c.key: n for n, c in enumerate(recorded)}
        self._codes: Final = _codes(recorded)

    def starting(self, first: Candidate) -> RecordedSpace:
        """The same space with another first candidate."""
        found = copy.copy(self)
        found._first = first
        return found

    @property
    def size(self) -> int:
        """The number of candidates that can be listed."""
        return len(self._drawn)

    def default(self) -> Candidate:
        """The first candidate of a search."""
        return self._first

    def sample(self, random: Random) -> Candidate:
        """One that was drawn from the space."""
        return random.choice(self._drawn)

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """One of the NEAREST, which differ in the fewest parameters."""
        place = self._places[candidate.key]
        return self._near(self._codes[place], {place}, random)

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """One of the nearest to a child with each parameter from `a` or `b`."""
        places = [self._places[c.key] for c in (a, b)]
        rows = self._codes[places]
        parents = [random.randrange(2) for _ in rows[0]]
        return self._near(rows[parents, range(len(parents))], set(places), random)

    def _near(self, codes: Any, known: set[int], random: Random) -> Candidate:
        differing = (self._codes != codes).sum(axis=1)
        order = np.argsort(differing, kind="stable").tolist()
        near = [n for n in order if n not in known][:NEAREST]
        found: Candidate = self._recorded[random.choice(near)]
        return found

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._drawn)  # nobody would list the others


def _codes(recorded: Sequence[Candidate]) -> Any:
    """A number for each parameter's value, 0 where a candidate lacks it: [candidates, names]."""
    values = [json.loads(c.key) for c in recorded]
    names = sorted({name for given in values for name in given})
    known = {"null": 0}

    def code(value: Any) -> int:
        return known.setdefault(json.dumps(value), len(known))

    return np.array([[code(given.get(name)) for name in names] for given in values])


@dataclass(frozen=True, eq=False)
class Recording:
    """An operator's recorded programs. seconds: by candidates' keys. default: None if its program
    was not measured. drawn: from the space."""

    space: RecordedSpace
    programs: ProgramMaker
    seconds: Mapping[str, float]
    default: Candidate | None
    drawn: Sequence[Candidate]

    @property
    def best(self) -> float:
        """The least seconds of all."""
        return min(self.seconds.values())

    def near(self, candidate: Candidate) -> float:
        """How near the best a candidate is, as a part of the best."""
        return self.best / self.seconds[candidate.key]


def recording(task: Task, store: MeasuredStore, filled: int) -> Recording:
    """What a store records of a task.

    Left out are candidates of which this version makes another program than was measured.
    filled: the count that `fill` had. Raises InputError if most of its draws are missing.
    """
    recorded: dict[str, Candidate] = {}
    points: dict[str, Point] = {}
    seconds: dict[str, float] = {}
    programs = ProgramMaker(replace(task, schedule=lambda c: points[c.key]))
    for digest, candidate in store.candidates.items():
        try:
            point = task.schedule(candidate)
        except ScheduleError:
            continue  # recorded by a version with another space
        if program_of(task, point) == digest:
            points[candidate.key] = point
            recorded[digest] = candidate
            seconds[candidate.key] = store.times[digest]

    def found(candidate: Candidate) -> Candidate | None:
        try:
            return recorded.get(program_of(task, task.schedule(candidate)))
        except ScheduleError:
            return None

    default = found(task.space.default())
    random = [c for c, drawn in candidates(task, filled).items() if drawn]
    drawn = [c for c in map(found, random) if c is not None]
    if len(drawn) < len(random) // 2:
        raise InputError(
            f"{len(drawn)} of {len(random)} draws were measured",
            where=str(store.path),
            hint=f"first run benchmarks.search_methods with --fill {filled}",
        )
    space = RecordedSpace(list(recorded.values()), drawn)
    return Recording(space, programs, seconds, default, drawn)


def stored(path: Path, task: Task, rounds: int) -> MeasuredStore:
    """The store of a file, settled in so many rounds at most."""
    if rounds:
        with Shop() as shop:
            settle(MeasuredStore(path, shop), task, shop, rounds)
    return MeasuredStore(path, lambda task, points: iter(()))


def trials(found: Recording, method: str, seed: int, asked: Asked) -> float:
    """The trials of one search until one is near the best; infinite if none is."""
    by, model = METHODS[method]
    first = Random(seed).choice(found.drawn) if asked.random else _default(found)
    made = None if model is None else make(model, FACTS, seed)
    foresight = None if made is None else ConfidenceBounds(found.programs, made)
    space = found.space.starting(first)
    searching = strategy(by, Setup(space, foresight, (), seed, asked.effort))
    used, unlearned = 0, list[Sample]()
    while used < asked.trials:
        # As in `tune`, the first round is one candidate.
        batch = searching.propose(min(BATCH, asked.trials - used) if used else 1)
        if not batch:
            break
        near = [n for n, c in enumerate(batch, 1) if found.near(c) >= NEAR]
        if near:
            return used + near[0]
        used += len(batch)
        told = [_trial(c, found.seconds[c.key]) for c in batch]
        unlearned += [_sample(found, t) for t in told]
        if made is not None and len(unlearned) > 1:
            made.update(unlearned)
            unlearned.clear()
        searching.tell(told)
    return inf


def _default(found: Recording) -> Candidate:
    if found.default is None:
        raise InputError(
            "the default's program was not measured",
            hint="fill the store again, or take --start random",
        )
    return found.default


def _trial(candidate: Candidate, seconds: float) -> Trial:
    status = Status.CRASH if seconds == inf else Status.OK
    return Trial(candidate, Measurement(status, (seconds,)))


def _sample(found: Recording, trial: Trial) -> Sample:
    program = found.programs.find(trial.candidate)
    assert program is not None
    return Sample("", program.kernel, trial.measurement.seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """An operator. default: how near the best it is; None if unknown. draws: how many, and the
    share of them that are near the best. trials: by method, the medians over seeds; infinite if not
    reached."""

    operator: str
    best: float
    programs: int
    default: float | None
    draws: int
    near: float
    trials: dict[str, float]


def compared(name: str, found: Recording, asked: Asked) -> Row:
    """How many trials each method needs for an operator."""
    needed = {
        method: statistics.median(
            trials(found, method, seed, asked) for seed in range(asked.seeds)
        )
        for method in asked.methods
    }
    near = statistics.mean(found.near(c) >= NEAR for c in found.drawn)
    default = None if found.default is None else found.near(found.default)
    drawn, programs = len(found.drawn), len(found.seconds)
    return Row(name, found.best, programs, default, drawn, near, needed)


def halved(rows: Sequence[Row], method: str, other: str) -> int:
    """The operators for which a method needs at most half of another's trials."""
    return sum(
        r.trials[method] < inf and 2 * r.trials[method] <= r.trials[other] for r in rows
    )


def show(row: Row) -> None:
    """One line of the table."""
    shown = " ".join(
        f"{'-' if t == inf else f'{t:.0f}':>12}" for t in row.trials.values()
    )
    default = "-" if row.default is None else f"{row.default:.2f}"
    print(
        f"{row.operator:16} {row.best * 1e6:8.1f} {row.programs:8} {default:>7} "
        f"{row.draws:5} {row.near:5.0%} {shown}",
        flush=True,
    )


def main() -> None:
    """Prints a line for each operator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--filled", type=int, default=161)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--effort", type=int, default=4)
    parser.add_argument("--start", choices=("default", "random"), default="random")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--operators", nargs="+", choices=OPERATORS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--settle", type=int, default=0, metavar="ROUNDS")
    given = parser.parse_args()
    asked = Asked(
        given.methods,
        given.seeds,
        given.trials,
        given.effort,
        given.start == "random",
    )
    if not given.json:
        heads = " ".join(f"{m:>12}" for m in asked.methods)
        print(f"{'operator':16} {'best us':>8} programs default draws  near {heads}")
    rows = []
    for name in given.operators or OPERATORS:
        task = task_of(name)
        store = stored(given.store / f"{name}.jsonl", task, given.settle)
        found = recording(task, store, given.filled)
        rows.append(compared(name, found, asked))
        if given.json:
            print(json.dumps(asdict(rows[-1])), flush=True)
        else:
            show(rows[-1])
    if not given.json:
        for method in asked.methods:
            others = [
                f"{halved(rows, method, m)} of {m}"
                for m in asked.methods
                if m != method
            ]
            print(f"{method} needs at most half of the trials: {', '.join(others)}")


if __name__ == "__main__":
    main()
