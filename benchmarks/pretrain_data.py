"""Measuring what a model is pretrained on: random models, each kernel by random schedules.

Some layers of networks and an image pipeline alternate, by ascending seeds. Two thirds of a
kernel's schedules are near the default, where the model will be used, and the others are anywhere.

All programs of a kernel are built first. Then all are measured in turn, in one order and in the
opposite one, those near the best TURNS times, and the fastest time of each counts: what disturbs
the machine for a while makes neither the default nor the others look slow.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.pretrain_rows import Row, Writer, packed, read
from tilewright.base.errors import InputError, ScheduleError, TilewrightError
from tilewright.driver.tasks import tasks
from tilewright.schedule.space import Point
from tilewright.targets.registry import target
from tilewright.testing.random_layers import KINDS, layer
from tilewright.testing.random_pipelines import DrawnPipeline, drawn_pipeline
from tilewright.tune.base import Candidate, Job, Measurement, Runner, Status, Task
from tilewright.tune.building import Build, BuildAhead
from tilewright.tune.features.facts import Facts
from tilewright.tune.features.fast import Fast
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Timing
from tilewright.tune.pretrained import near

# How often each kind is drawn: what networks spend their time on more often.
OFTEN: Final[Mapping[str, int]] = {
    "product": 3,
    "batched-product": 2,
    "convolution-1x1": 4,
    "convolution-3x3": 5,
    "convolution-strided": 2,
    "depthwise": 3,
    "layer-norm": 2,
}
DRAWN: Final = tuple(kind for kind in KINDS for _ in range(OFTEN.get(kind, 1)))
SOURCES: Final[Mapping[str, Callable[[int], DrawnPipeline]]] = {
    "layer": lambda seed: layer(seed, DRAWN),
    "pipeline": drawn_pipeline,
    **{kind: partial(layer, kinds=(kind,)) for kind in KINDS},
}
# Of a small network, whose weights the last cache holds from run to run, but no nearer one.
BETWEEN: Final = 8 << 20
# Many programs count for more than a sharp number of each.
TIMING: Final = Timing("network", BETWEEN, fewest=3, most=12, seconds=0.04, tight=0.02)
LAYERS: Final = 40  # for each pipeline, which has several kernels
SHORTEST: Final = 1e-5  # seconds of a default; of less, no other program is measured
TURNS: Final = 3  # how often each program of a kernel is measured
CLOSE: Final = 1.5  # times the seconds of the best; others are measured once
TRIES: Final = 4  # draws for each candidate that is wanted


def every_source(kinds: Sequence[str] = ()) -> Iterator[str]:
    """The names of all models, in measuring order. kinds: of operators, in turn; else all."""
    for seed in itertools.count():
        if kinds:
            yield from (f"{kind} {seed}" for kind in kinds)
            continue
        for n in range(LAYERS):
            yield f"layer {LAYERS * seed + n}"
        yield f"pipeline {seed}"


def drawn(source: str) -> DrawnPipeline:
    """The model of a name."""
    name, _, seed = source.partition(" ")
    return SOURCES[name](int(seed))


@dataclass
class Collector:
    """Measures programs until `end` of the clock.

    level: of the instructions. count: programs of each kernel. shortest: as SHORTEST. said: what
    became of them.
    """

    writer: Writer
    runner: Runner
    build: Build
    level: str
    machine: str
    count: int
    end: float
    shortest: float = SHORTEST
    clock: Callable[[], float] = time.monotonic
    said: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.features = Fast(Facts.of(target("cpu", self.level, threads=1)))

    @property
    def late(self) -> bool:
        """Whether no program is begun any more."""
        return self.clock() >= self.end

    def model(self, source: str, known: Collection[tuple[str, ...]]) -> None:
        """Measure the programs of a model that are not known yet."""
        made = drawn(source)
        try:
            found = tasks(made.case.graph, threads=1, mcpu=self.level)
        except TilewrightError as error:
            self.said[f"model refused: {type(error).__name__}"] += 1
            found = []
        for task in found:
            if self.late:
                return
            self._task(source, made.kind_of(task.sources), task, known)
        if not self.late:
            self.writer.finish(self.level, source)
            self.said["models"] += 1

    def _task(
        self, source: str, kind: str, task: Task, known: Collection[tuple[str, ...]]
    ) -> None:
        digest = hashlib.sha256(task.key.encode()).hexdigest()[:16]
        default = task.space.default()
        if (self.level, source, digest, default.key) in known:
            return  # with all others, which are written together
        try:
            found = self._measured(task, [task.schedule(default)])
            if found[0].seconds < self.shortest:
                self.said["short"] += 1
                return
            chosen = candidates(task, self.count)
            found = self._measured(task, [point for _, point in chosen])
        except TilewrightError as error:  # of its reference
            self.said[f"kernel refused: {type(error).__name__}"] += 1
            return
        # The default last: its row shows that all others are written.
        rows = list(zip(chosen, found, strict=True))
        for (candidate, point), of in reversed(rows):
            row = Row(
                source,
                kind,
                digest,
                self.level,
                self.machine,
                candidate.key,
                candidate == default,
                str(of.status),
                of.seconds if of.status is Status.OK else None,
                of.noise,
                packed(self.features.extract(task.program(point))[0]),
            )
            self.writer.add(row)
            self.said[row.status] += 1

    def _measured(self, task: Task, points: list[Point]) -> list[Measurement]:
        """The better of the measurements of each point."""
        jobs: list[Job] = []
        found: dict[int, Measurement] = {}
        for number, made in self.build(task, enumerate(points)):
            if isinstance(made, Measurement):
                found[number] = made
            else:
                jobs.append(made)
        for _ in range(TURNS):
            for number, of in self.runner.measure(jobs):
                found[number] = better(of, found.get(number, of))
            best = min((of.seconds for of in found.values()), default=0.0)
            again = (j for j in jobs if found[j.number].seconds <= CLOSE * best)
            jobs = [*again][::-1]
        return [found[n] for n in range(len(points))]


def better(a: Measurement, b: Measurement) -> Measurement:
    """The faster measurement, or the failed one if any: a program that failed once is wrong."""
    return min(a, b, key=lambda of: (of.status is Status.OK, of.seconds))


def candidates(task: Task, count: int) -> list[tuple[Candidate, Point]]:
    """The default, and other schedules, none twice: the same each time."""
    r = Random(task.key)
    default = task.space.default()
    found = {default: task.schedule(default)}
    refused: set[Candidate] = set()
    for n in range(TRIES * count):
        if len(found) >= count:
            break
        try:
            if n % 3 == 0:
                candidate = task.space.sample(r)
            else:
                candidate = near(task, default, r)
            if candidate not in found and candidate not in refused:
                found[candidate] = task.schedule(candidate)
        except ScheduleError:
            refused.add(candidate)
    return list(found.items())


def collect(
    path: Path,
    seconds: float,
    level: str,
    count: int,
    machine: Mapping[str, Any],
    say: Callable[[str], None] = lambda line: None,
    realtime: bool = False,
    kinds: Sequence[str] = (),
    shortest: float = SHORTEST,
) -> Counter[str]:
    """Measure programs for `seconds` and add them to the file; returns the count of each status.

    kinds: of operators; none: all, and pipelines. shortest: as SHORTEST. machine: its description
    in the file; `processor` is that of the rows. say: receives a line per model. realtime: programs
    run with real-time priority. Raises InputError if programs of the level cannot run, or real-time
    priority is not permitted.
    """
    if not target("cpu", level, threads=1).runs_here:
        raise InputError(
            f"this processor cannot run code for {level}",
            where="pretrain data",
            hint="take a lower level, such as x86-64-v3",
        )
    before = read([path] if path.exists() else [])
    processor = str(machine["processor"])
    known = {r.key for r in before.rows if r.machine == processor}
    end = time.monotonic() + seconds
    timing = replace(TIMING, realtime=realtime)
    with ExitStack() as open_:
        writer = Writer(path, {**machine, "level": level, "count": count})
        open_.callback(writer.close)
        runner = open_.enter_context(LocalRunner(timing=timing))
        builder = ProgramBuilder(runner.spare)
        open_.callback(builder.close)
        build = BuildAhead(builder)
        made = Collector(writer, runner, build, level, processor, count, end, shortest)
        for source in every_source(kinds):
            if made.late:
                break
            if (level, source) not in before.done:
                made.model(source, known)
                say(f"{source}: {dict(made.said)}")
    return made.said
