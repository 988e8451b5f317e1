"""Sweeps over whole streams find what the simulation element by element finds, deadlocks too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction

import pytest

from tests.dataflow.graphs import random_graph
from tests.dataflow.models import lenet
from tests.dataflow.test_schedule import ANY, WHOLE
from tilewright.base.errors import ExecutionError
from tilewright.dataflow import TaskGraphBuilder, schedule, simulate
from tilewright.dataflow.lower import network, program
from tilewright.dataflow.schedule import TaskSchedule
from tilewright.dataflow.simulate import Simulation, _Run


def one_by_one(plan: TaskSchedule, fifos: Sequence[int]) -> Simulation | None:
    """The simulation element by element; None in a deadlock."""
    run = _Run(plan, fifos)
    try:
        for block in plan.blocks:
            run.block(block)
    except ExecutionError:
        return None
    return Simulation(run.start, run.last, max(run.last, default=0))


def swept(plan: TaskSchedule, fifos: Sequence[int]) -> Simulation | None:
    """The simulation by sweeps alone; None where one does not settle."""
    run = _Run(plan, fifos)
    if not all(run.sweep(block) for block in plan.blocks):
        return None
    return Simulation(run.start, run.last, max(run.last, default=0))


SEEDS = [range(22), pytest.param(range(22, 50), marks=pytest.mark.slow)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("discipline", ["gang", "list"])
@pytest.mark.parametrize(
    "rates", [[Fraction(1)], WHOLE, ANY], ids=["one", "whole", "any"]
)
def test_both_find_the_same_times(
    rates: list[Fraction], discipline: str, seeds: range
) -> None:
    settled = stuck = 0
    for seed in seeds:
        plan = schedule(random_graph(seed, rates), 1 + seed % 20, "rlx", discipline)
        for room in (10**9, 7, 2, 1, 0):
            fifos = [min(size, room) for size in plan.fifos]
            expected, found = one_by_one(plan, fifos), swept(plan, fifos)
            assert found is None or found == expected, (seed, room)
            settled += found is not None and any(fifos) and fifos != plan.fifos
            stuck += expected is None
        assert swept(plan, plan.fifos) is not None
    assert settled > 5 and stuck > 5


def test_a_circle_within_one_cycle_is_a_deadlock() -> None:
    """Output 4 of `t` waits for `a`, which waits for all of `u`, whose output 8 waits until `v` has
    read its element 4, which is that of `t`: each as early as the other, and neither ever."""
    b = TaskGraphBuilder("circle")
    for name in ("x", "z"):
        b.source(name)
    for name in ("t", "u", "a", "v"):
        b.add(name)
    b.buffer("stored")
    for name in ("y", "w"):
        b.sink(name)
    for source, target in [
        ("x", "t"), ("z", "u"), ("t", "a"), ("t", "v"), ("u", "v"), ("u", "stored"),
        ("stored", "a"), ("a", "y"), ("v", "w"),
    ]:  # fmt: skip
        b.connect(source, target, 8)
    plan = schedule(b.build("part"), 4)
    ends = [
        [plan.graph.nodes[n].name for n in (e.source, e.target)]
        for e in plan.graph.edges
    ]
    for before_a in range(1, 9):
        for before_v in range(1, 9):
            sizes = {("t", "a"): before_a, ("u", "v"): before_v, ("t", "v"): 8}
            fifos = [sizes.get((source, target), 0) for source, target in ends]
            expected = one_by_one(plan, fifos)
            assert swept(plan, fifos) == expected
            assert (expected is None) == (before_a + before_v < 8)


def test_long_streams_are_quick() -> None:
    net = network(lenet())
    chosen = {
        s.name: o
        for s in net.stages
        for o in ("mv", "loop")
        if o in net.choices[s.name]
    }
    plan = schedule(program(net, chosen, "array").graph, 64)
    assert plan.graph.tasks > 200
    begin = time.process_time()
    simulate(plan)
    assert time.process_time() - begin < 2
