"""How much faster than the rules' choice is the best schedule that a search finds?

    python -m benchmarks.ceiling --networks resnet18,minilm --mcpu x86-64-v3 --mcpu native

The heaviest kernels of each network are searched separately, on one thread. A third of the trials
are random and a third are the rules' choice with a few parameters changed, independent of any
model's predictions; the others are bred as in `tune`. The best is compared with the rules' choice
again in interleaved runs, and every program's results with the reference. A line for each kernel
shows the gain, its confidence, and the parameters that differ; the last line of a level has the
geometric mean of confident gains.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import click

import tilewright as tw
from benchmarks import harness, models
from tilewright.driver.tasks import tasks
from tilewright.runtime.executable import Executable
from tilewright.targets.registry import target
from tilewright.tune.base import Candidate, Task
from tilewright.tune.building import BuildAhead
from tilewright.tune.features.facts import Facts
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Timing
from tilewright.tune.models import make
from tilewright.tune.pretrained import near
from tilewright.tune.tuner import TaskOutcome, Tuning, TuningTools

SURE: Final = 0.95
EFFORT: Final = 8  # schedules per trial
# Times a kernel under its network's cache state: many programs, each with low precision.
TIMING: Final = partial(Timing, "network", fewest=3, most=15, seconds=0.06, tight=0.02)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search for one kernel.

    share: of the network's time. seconds: of the rules' choice. gain: the speedup of the best in
    the final comparison. other: the parameters that differ, as [rules, best].
    """

    network: str
    kernel: str
    level: str
    share: float
    seconds: float
    gain: float
    confidence: float
    trials: int
    failed: int
    other: dict[str, list[Any]]

    @property
    def sure_gain(self) -> float:
        """The gain, or 1 if it is not certain that the best is faster."""
        return self.gain if self.confidence >= SURE else 1.0


def heaviest(
    path: Path, feeds: dict[str, Any], level: str, count: int
) -> Iterator[tuple[Task, float, int]]:
    """The heaviest kernels of a network, their shares of its time, and the bytes that a run
    touches."""
    options: dict[str, Any] = {"threads": 1, "mcpu": level, "records": False}
    exe = tw.compile(str(path), **options)
    assert isinstance(exe, Executable)
    rows = exe.profile(feeds, repeat=5).rows
    times = {row.name: row.seconds for row in rows}
    found = tasks(str(path), **options)
    cost = {t.key: sum(times.get(k, 0.0) for k in t.kernels) for t in found}
    ranked = sorted(found, key=lambda t: -cost[t.key])[:count]
    for task in ranked:
        yield task, cost[task.key] / sum(times.values()), exe.peak_bytes


def searched(
    task: Task, level: str, between: int, trials: int, seed: int
) -> TaskOutcome:
    """The outcome of a task after this many trials, with its best schedules measured again."""
    random, default = Random(f"{seed} {task.key}"), task.space.default()
    drawn: list[Candidate] = []
    for _ in range(trials // 3):
        drawn += [near(task, default, random), task.space.sample(random)]
    runner = LocalRunner(timing=TIMING(between))
    builder = ProgramBuilder(runner.spare)
    try:
        model = make(
            "trees-pretrained", Facts.of(target("cpu", level, threads=1)), seed
        )
        tools = TuningTools(runner, BuildAhead(builder), model=model)
        tuning = Tuning(task, tools, seeds=drawn, seed=seed, effort=EFFORT)
        while tuning.used < trials and not tuning.through:
            tuning.step()
        tuning.settle()
        return tuning.outcome()
    finally:
        builder.close()
        runner.close()


def changes(task: Task, best: Candidate) -> dict[str, list[Any]]:
    """The parameters that differ from the rules' choice, as [rules, best]."""
    rules = task.schedule(task.space.default())
    chosen = task.schedule(best)
    a, b = rules.values, chosen.values
    if rules.sketch != chosen.sketch:
        return {"sketch": [rules.sketch, chosen.sketch], **{k: [None, b[k]] for k in b}}
    names = [n for n in dict.fromkeys([*a, *b]) if a.get(n) != b.get(n)]
    return {n: [a.get(n), b.get(n)] for n in names}


def ceilings(
    name: str, level: str, kernels: int, trials: int, seed: int
) -> Iterator[Found]:
    """The heaviest kernels of a network, searched."""
    path, _ = harness.prepare(name, models.default_directory())
    feeds = models.inputs(name)
    for task, share, between in heaviest(path, feeds, level, kernels):
        outcome = searched(task, level, between, trials, seed)
        best, default = outcome.best, outcome.default
        if best is None or default is None:
            raise click.ClickException(f"{name}, {task.name}: no schedule ran")
        yield Found(
            name,
            task.name,
            level,
            share,
            default.measurement.seconds,
            outcome.gain,
            outcome.confidence,
            outcome.trials,
            sum(outcome.failed.values()),
            changes(task, best.candidate) if outcome.gain > 1 else {},
        )


def line(found: Found) -> str:
    """A row for people."""
    other = "; ".join(f"{n}: {a} -> {b}" for n, (a, b) in found.other.items())
    return (
        f"{found.network:13} {found.kernel[:38]:38} {found.level:10} "
        f"{found.share:5.0%} {found.seconds * 1e6:8.1f} us  x{found.gain:.3f} "
        f"({found.confidence:.0%}, {found.failed} of {found.trials} failed)  {other}"
    )


@click.command(
    epilog="Example: python -m benchmarks.ceiling --networks lenet --trials 32"
)
@harness.networks_option
@click.option("--mcpu", "levels", multiple=True, default=("native",))
@click.option("--kernels", default=2, help="Kernels per network, heaviest first.")
@click.option("--trials", default=96)
@click.option("--seed", default=0)
@click.option("--json", "as_json", is_flag=True, help="An object for each kernel.")
def main(
    networks: list[str],
    levels: tuple[str, ...],
    kernels: int,
    trials: int,
    seed: int,
    as_json: bool,
) -> None:
    """Search the heaviest kernels of networks, and print how much the rules leave on the table."""
    for level in levels:
        start, logs = time.monotonic(), []
        for name in networks:
            for found in ceilings(name, level, kernels, trials, seed):
                logs.append(math.log(found.sure_gain))
                click.echo(json.dumps(asdict(found)) if as_json else line(found))
        mean = math.exp(sum(logs) / len(logs))
        taken = time.monotonic() - start
        text = f"{level}: {len(logs)} kernels, x{mean:.3f} in the mean, {taken:.0f} s"
        click.echo(text, err=as_json)


if __name__ == "__main__":
    main()
