"""The blocks of a VTA layer as a space, with simulated cycles as cost."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tilewright.base.errors import ScheduleError
from tilewright.loops.lower import lower
from tilewright.search import SearchLimits, evolve
from tilewright.search.evolve import Breeding
from tilewright.targets import registry
from tilewright.targets.vta.compiled import VtaProgram
from tilewright.targets.vta.layers import (
    Convolution,
    LayerProgram,
    Requantize,
    convolution,
)
from tilewright.targets.vta.schedules import schedule
from tilewright.tune.base import Candidate
from tilewright.tune.space.simulated import Simulated, kernels

VTA = registry.target("vta")


def layer(c: Convolution) -> tuple[LayerProgram, Simulated]:
    made = convolution(c, Requantize(7))
    kernel = lower(
        made.name, made.computations, params=made.params, outputs=made.params[-1:]
    )
    return made, kernels(VTA, kernel, made.computations)


def test_the_default_is_what_the_rule_chooses():
    made, of = layer(Convolution(32, 32, (14, 14), (3, 3), (1, 1), (1, 1)))
    space = of.space
    point = space.schedule(space.default())
    assert repr(point.schedule.kernel) == repr(schedule(made).kernel)
    assert not [p for p in point.parameters if p.value != p.default]


@pytest.mark.slow
def test_every_block_of_a_small_layer_is_right_and_one_is_as_fast_as_the_rules():
    made, of = layer(Convolution(16, 16, (4, 4)))
    space = of.space
    rng = np.random.default_rng(0)
    given = []
    for b in made.params[:-1]:
        small = rng.integers(-3, 4, b.shape)
        given.append(small.astype(b.dtype.numpy))
    results = []
    found = {}
    for candidate in space:
        kernel = space.schedule(candidate).schedule.kernel
        y = np.full(made.params[-1].shape, 99, made.params[-1].dtype.numpy)
        VtaProgram(kernel).check([*given, y])
        results.append(y)
        found[candidate] = of.cost(candidate)
    assert len(results) == space.size == 21
    assert all(np.array_equal(y, results[0]) for y in results)
    assert min(found.values()) <= found[space.default()]
    assert len(set(found.values())) > 5


@pytest.mark.slow
def test_a_search_without_the_rule_finds_as_much():
    _, of = layer(Convolution(32, 64, (14, 14), (3, 3), (1, 1), (1, 1)))
    space = of.space
    r = Random(0)
    starts = [space.sample(r) for _ in range(8)]
    found = evolve(
        starts,
        Breeding(space.neighbor, space.cross),
        lambda several: [of.cost(c) for c in several],
        size=8,
        key=lambda c: c.key,
        limits=SearchLimits(evaluations=100),
    )
    assert found.cost <= of.cost(space.default())


def test_what_does_not_fit_is_not_offered():
    _, of = layer(Convolution(128, 128, (56, 56), (3, 3), (1, 1), (1, 1)))
    space = of.space
    point = space.schedule(space.default())
    offered = {p.name: p.candidates for p in point.parameters}
    assert (
        max(offered["tile.j"]) == 56
    )  # with two tiles of channels, but not with eight
    whole = {**point.values, "tile.i": 8, "tile.j": 56, "tile.k": 56}
    with pytest.raises(
        ScheduleError, match=r"parameter tile\.k: 56 is not possible here"
    ):
        space.schedule(Candidate("blocks", whole))
