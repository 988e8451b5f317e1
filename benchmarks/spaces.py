"""The space of every distinct kernel: sketches, parameters, and how many points there are.

    python -m benchmarks.spaces --models 'resnet18,minilm' --threads 1

Sizes are the product of the numbers of choices on the way of each sketch's default, summed over
sketches: exact where choices are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.harness import directory_option, names_option, threads_option
from benchmarks.models import NAMES, RECIPES, build
from tilewright.base.text import columns
from tilewright.driver.tasks import tasks
from tilewright.tune.base import Task
from tilewright.tune.space import SketchSpace

SMALL = 16  # points, under which a space holds little


@dataclass(frozen=True)
class Size:
    """points: of the default sketch and of all. parameters: of the default sketch, with choices."""

    key: str
    kernel: str
    sketch: str
    points: tuple[int, int]
    parameters: tuple[str, ...]

    @property
    def row(self) -> list[str]:
        """Cells of the table."""
        own, every = (f"{n:.3g}" for n in self.points)
        return [self.kernel, self.sketch, own, every, ", ".join(self.parameters)]


def sizes(task: Task) -> Size:
    """The sizes of a task's space."""
    space = task.space
    assert isinstance(space, SketchSpace)
    default = space.default()
    walks = {name: tree.walk(lambda m: m.default) for name, tree in space.trees.items()}
    own = walks[default.sketch]
    names = [f"{met.name} {len(met.candidates)}" for met, _ in own.path]
    kept = [w.branching for w in walks.values() if w.end.refused is None]
    return Size(
        task.key,
        task.name,
        default.sketch,
        (own.branching, sum(kept)),
        tuple(n for n in names if not n.endswith(" 1")),
    )


HEADER = ["kernel", "sketch", "points", "with all sketches", "parameters"]


def found(names: Sequence[str], at: Path, mcpu: str, threads: int) -> list[Size]:
    """The spaces of models, each distinct kernel of all of them once."""
    known: dict[str, Size] = {}
    for name in names:
        model = build(name, at)
        for task in tasks(model, mcpu=mcpu, threads=threads):
            if task.key not in known:
                known[task.key] = sizes(task)
    return list(known.values())


@click.command(epilog="Example: python -m benchmarks.spaces --models 'resnet18,minilm'")
@names_option("--models", tuple(NAMES), default=",".join(RECIPES))
@click.option("--mcpu", default="native", show_default=True)
@threads_option()
@click.option("--small", is_flag=True, help="Only those of fewer than 16 points.")
@directory_option
def main(
    models: Sequence[str], mcpu: str, threads: int, small: bool, directory: Path
) -> None:
    """Print the space of every distinct kernel of networks and operators."""
    every = found(models, directory, mcpu, threads)
    few = [size for size in every if size.points[1] < SMALL]
    print(columns([HEADER, *(size.row for size in (few if small else every))], "<<>>"))
    middle = sorted(size.points[1] for size in every)[len(every) // 2]
    print(
        f"{len(every)} kernels, the median has {middle:.3g} points, {len(few)} have fewer than "
        f"{SMALL}"
    )


if __name__ == "__main__":
    main()
