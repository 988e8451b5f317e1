"""Which single change of the rules' choice of a schedule makes kernels faster?

    python -m benchmarks.single_choices --networks resnet18,minilm --mcpu x86-64-v3

For the heaviest kernels of each network, the rules' choice is compared with variants that differ in
one parameter, or are the default of another sketch: every program is measured in several passes,
each time between two measurements of the rules' choice, and its results are compared with the
reference. A line is printed for each variant that is faster in every pass; the last lines show, for
each parameter, in how many kernels it could be changed, in how many that helped, and the geometric
mean with each kernel's best value. If a parameter helps many kernels, a rule about it is wrong; if
none helps, `benchmarks.ceiling` shows the effect of several at once.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any, Final

import click

from benchmarks import harness, models
from benchmarks.ceiling import TIMING, heaviest
from tilewright.tune.base import Candidate, Job, Task
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Timing
from tilewright.tune.space.sketch_space import SketchSpace

HELPS: Final = 1.02  # times as fast, in every pass
SKETCH: Final = "sketch"


@dataclass(frozen=True, slots=True)
class Change:
    """One parameter changed. name: without the part of the kernel that it is of."""

    name: str
    full_name: str
    old: Any
    new: Any
    candidate: Candidate

    @property
    def text(self) -> str:
        return f"{self.full_name}: {self.old} -> {self.new}"


def single_changes(task: Task, wanted: str, most: int) -> Iterator[Change]:
    """Changes of parameters that match a pattern; at most `most` values of each, evenly spread."""
    space, default = task.space, task.space.default()
    assert isinstance(space, SketchSpace)
    by_name: dict[str, list[Change]] = defaultdict(list)
    for other in space.neighbors(default):
        change = _change(default, other)
        if fnmatch(change.name, wanted):
            by_name[change.full_name].append(change)
    for found in by_name.values():
        step = max(1, math.ceil(len(found) / most))
        yield from found[::step]


def _change(default: Candidate, other: Candidate) -> Change:
    if default.sketch != other.sketch:
        return Change(SKETCH, SKETCH, default.sketch, other.sketch, other)
    name = next(n for n, v in default.values.items() if other.values.get(n) != v)
    short = name.partition(".")[
        0 if name.startswith(("pack.", "pad.", "stream.")) else 2
    ]
    return Change(short, name, default.values[name], other.values.get(name), other)


def gains(
    task: Task, changes: Sequence[Change], timing: Timing, passes: int
) -> list[list[float]]:
    """How many times as fast each change is, in each pass; 0 if it failed or was wrong."""
    expected = task.reference()
    runner = LocalRunner(timing=timing)
    builder = ProgramBuilder(runner.spare)
    try:
        default = task.schedule(task.space.default())
        points = [default, *(task.schedule(c.candidate) for c in changes)]
        made = dict(builder.build(enumerate(partial(task.build, p) for p in points)))
        usable = [n for n in range(1, len(points)) if not made[n].failure]
        found: list[list[float]] = [[] for _ in changes]
        for turn in range(passes):
            order = [0]
            for n in usable[:: -1 if turn % 2 else 1]:
                order += [n, 0]
            jobs = [Job(at, made[n].data, expected) for at, n in enumerate(order)]
            seconds = dict(sorted((at, m.seconds) for at, m in runner.measure(jobs)))
            for at in range(1, len(order), 2):
                rules = math.sqrt(seconds[at - 1] * seconds[at + 1])
                found[order[at] - 1].append(rules / seconds[at])
        return [f or [0.0] for f in found]
    finally:
        builder.close()
        runner.close()


@click.command(
    epilog="Example: python -m benchmarks.single_choices --networks lenet --only in_order"
)
@harness.networks_option
@click.option("--mcpu", "level", default="native")
@click.option("--kernels", default=2, help="Kernels per network, heaviest first.")
@click.option("--only", default="*", help="Parameters, as a pattern.")
@click.option("--most", default=3, help="Values of each parameter.")
@click.option("--passes", default=3)
@click.option("-v", "--verbose", is_flag=True, help="Also what does not help.")
def main(
    networks: list[str],
    level: str,
    kernels: int,
    only: str,
    most: int,
    passes: int,
    verbose: bool,
) -> None:
    """Change the rules' choice one parameter at a time."""
    best: dict[str, list[float]] = defaultdict(list)
    for name in networks:
        path, _ = harness.prepare(name, models.default_directory())
        for task, share, between in heaviest(path, models.inputs(name), level, kernels):
            changes = list(single_changes(task, only, most))
            if not changes:
                continue
            click.echo(f"{name} {task.name} ({share:.0%}), {len(changes)} changes")
            of: dict[str, float] = defaultdict(lambda: 1.0)
            found = gains(task, changes, TIMING(between), passes)
            for change, passed in zip(changes, found, strict=True):
                of[change.name] = max(of[change.name], _sure(passed))
                if verbose or _sure(passed) > 1:
                    times = ", ".join(f"{g:.3f}" for g in passed)
                    click.echo(f"    {change.text}: {times}")
            for parameter, gain in of.items():
                best[parameter].append(gain)
    for parameter, of_kernels in sorted(best.items()):
        helped = sum(g > 1 for g in of_kernels)
        mean = statistics.geometric_mean(of_kernels)
        click.echo(f"{parameter:20} {helped} of {len(of_kernels)} kernels, x{mean:.3f}")


def _sure(passed: Sequence[float]) -> float:
    """The gain if it was one in every pass, else 1."""
    return statistics.median(passed) if min(passed) > HELPS else 1.0


if __name__ == "__main__":
    main()
