"""Simulated machines: what their rules choose is in the spaces, and a search finds as much."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from tests.dataflow.models import model
from tests.targets.npu.programs import example, layer
from tilewright.base.dtypes import float32
from tilewright.base.errors import UnsupportedError
from tilewright.dataflow.evaluate import Method
from tilewright.dataflow.explore import explore
from tilewright.dataflow.lower import network
from tilewright.loops.lower import lower
from tilewright.operators import Buffer, map_
from tilewright.search import SearchLimits, evolve
from tilewright.search.evolve import Breeding
from tilewright.targets import npu, registry
from tilewright.targets.npu.asked import forms_of
from tilewright.targets.npu.exhaustive import combinations
from tilewright.tune.space.simulated import Simulated, expansions, kernels, mappings


def searched(of: Simulated, evaluations: int) -> float:
    """The least cost that evolution finds from random candidates, without the rule's."""
    r = Random(0)
    found = evolve(
        [of.space.sample(r) for _ in range(8)],
        Breeding(of.space.neighbor, of.space.cross),
        lambda several: [of.cost(c) for c in several],
        size=8,
        key=lambda c: c.key,
        limits=SearchLimits(evaluations=evaluations),
    )
    return found.cost


PROGRAMS = {
    "layer": lambda: layer(96, 64),
    "stencil": lambda: example().conv_stencil(4, 2, 5),
}


@pytest.mark.parametrize(("name", "machine"), [("layer", "bytes"), ("stencil", "full")])
def test_mappings_are_those_of_the_survey(name, machine):
    survey = npu.survey(PROGRAMS[name](), npu.MACHINES[machine])
    of = mappings(PROGRAMS[name](), npu.MACHINES[machine])
    costs = [c for c in map(of.cost, of.space) if c < inf]
    assert len(costs) == survey.count
    assert (min(costs), max(costs)) == (survey.best, survey.worst)
    assert of.cost(of.space.default()) < inf


def test_what_is_padded_to_is_used_as_it_is():
    """Of the program's own operators and of those that others leave."""
    program, machine = layer(96, 64), npu.MACHINES["full"]
    space = mappings(program, machine).space
    every = [
        choices
        for form in forms_of(program)
        for choices in combinations(machine, tuple(form.operators))
    ]
    assert space.count(limit=1000) == len(every) > 100


def test_a_search_finds_a_mapping_as_fast_as_the_rule():
    program, machine = layer(96, 64), npu.MACHINES["bytes"]
    rule = npu.map_onto(program, machine).timing.cycles
    assert searched(mappings(program, machine), 150) <= rule


def perceptron():
    lines = "h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)"
    text = "g (float[6,8] x) => (float[6,5] y) { " + lines + " }"
    return network(model(text, w=(8, 7), v=(7, 5)))


@pytest.mark.parametrize(
    "pes",
    # One after another, some at a time, and all at once.
    [
        pytest.param(1, marks=pytest.mark.slow),
        8,
        pytest.param(40, marks=pytest.mark.slow),
    ],
)
def test_expansions_are_those_of_the_exploration(pes):
    net = perceptron()
    exploration = explore(net, [pes])
    assert exploration.exact
    of = expansions(net, pes)
    assert of.space.size == len(exploration.points) * len(Method)
    assert min(map(of.cost, of.space)) == exploration.best(pes).makespan


def test_a_search_finds_an_expansion_as_fast_as_the_exploration():
    net = perceptron()
    of = expansions(net, 8)
    assert searched(of, 60) <= explore(net, [8]).best(8).makespan


def test_a_target_without_a_simulator_is_refused():
    x, y = (Buffer(name, (8,), float32) for name in "xy")
    double = map_("double", y, lambda i: x[i] + x[i])
    kernel = lower("k", [double], [x, y], [y])
    with pytest.raises(UnsupportedError, match="target 'cpu' has no simulator"):
        kernels(registry.target("cpu"), kernel, [double])
