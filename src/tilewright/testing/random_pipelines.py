"""Random pipelines of images, as Halide's generator makes them (Adams et al. 2019).

Each stage is of a kind drawn from `pipeline_stages.KINDS`, of two earlier stages that are drawn as
well, late ones more often. What nothing reads in the end is an output, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.testing.graphs import Case
from tilewright.testing.networks.builder import Net
from tilewright.testing.pipeline_stages import KINDS, Array, ImageStage, given

TRIES: Final = 20  # of stages, for each that is wanted
EXTENTS: Final = (64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class DrawnPipeline:
    """A random model. kinds: the kind of stage of each value of the graph."""

    case: Case
    kinds: Mapping[str, str]

    def kind_of(self, sources: Sequence[str]) -> str:
        """The kind of a kernel from these nodes: that of the last known node, or `other`."""
        names = [s.rpartition("-> ")[2] for s in sources]
        known = [self.kinds[n] for n in names if n in self.kinds]
        return known[-1] if known else "other"


@dataclass(frozen=True)
class RandomPipeline(DrawnPipeline):
    """A pipeline. stages: its outputs, each with its NumPy meaning."""

    stages: Sequence[ImageStage]

    @property
    def meaning(self) -> Sequence[Array]:
        """The outputs, by NumPy in float64."""
        return [s.meaning for s in self.stages]


def pipeline(
    seed: int,
    height: int,
    width: int,
    stages: int = 8,
    kinds: Sequence[str] = tuple(KINDS),
) -> RandomPipeline:
    """The pipeline of a seed: an input [1, 3, height, width] and a limited number of stages.

    kinds: the kinds of stages to draw from. Equal arguments make equal pipelines, weights included.
    requires: height and width are multiples of 32.
    """
    r = random.Random(f"pipeline {seed} {height} {width} {stages} {kinds}")
    net = Net(f"pipeline{seed}")
    made = [given(net, 1, 3, height, width)]
    known: dict[str, str] = {}
    unread: dict[ImageStage, None] = {}
    for _ in range(TRIES * stages):
        if len(made) > stages:
            break
        f = _late(r, made)
        g = _late(r, made)
        kind = r.choice(list(kinds))
        before = len(net.operations)
        stage = KINDS[kind](r, f, g)
        if stage is None:
            continue
        for operation in net.operations[before:]:
            known.update((v.name, kind) for v in operation.outputs if v is not None)
        made.append(stage)
        unread[stage] = None
        read = [f]
        if kind in ("binary", "slice"):
            read = [f, g]
        for x in read:
            unread.pop(x, None)
    if not unread:
        raise InputError(
            "no stage of these kinds fits an image of this size",
            where=f"a pipeline of {height} x {width}",
            hint="take more kinds",
        )
    outputs = [s.tensor for s in unread]
    found = net.case(outputs)
    return RandomPipeline(found, known, tuple(unread))


def drawn_pipeline(seed: int) -> RandomPipeline:
    """A pipeline whose size depends on the seed."""
    r = random.Random(f"size {seed}")
    height = r.choice(EXTENTS)
    width = r.choice(EXTENTS)
    stages = r.randint(3, 10)
    return pipeline(seed, height, width, stages)


def _late(r: random.Random, made: Sequence[ImageStage]) -> ImageStage:
    """The later of two: pipelines become long, and not only wide."""
    return made[max(r.randrange(len(made)), r.randrange(len(made)))]
