"""Streaming schedules: the published table, intervals, blocks, and time against simulation."""

import random
import time
from fractions import Fraction
from itertools import pairwise

import pytest

from tests.dataflow.graphs import ANY, WHOLE, convolution, random_graph
from tilewright.base.errors import ExecutionError, InputError
from tilewright.dataflow import (
    TaskGraphBuilder,
    nonstreaming_makespan,
    schedule,
    simulate,
    timing,
)
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import intervals

TABLE = {
    ("mv", 16): (129024, 145728),
    ("mv", 128): (129024, 35136),
    ("op", 16): (222486, 194113),
    ("op", 128): (222486, 107713),
    ("lmv", 16): (150486, 35713),
    ("lmv", 128): (150486, 35713),
}
PARTS = {("op", 16): 28225, ("op", 128): 24769, ("lmv", 16): 35713, ("lmv", 128): 35713}


@pytest.mark.parametrize("heuristic", ["lts", "rlx"])
@pytest.mark.parametrize(("expansion", "pes"), TABLE)
def test_the_published_table(expansion: str, pes: int, heuristic: str) -> None:
    graph = convolution(expansion).build("array")
    found = schedule(graph, pes, heuristic)
    assert (graph.io(free=("image",)), found.makespan) == TABLE[expansion, pes]


@pytest.mark.parametrize(("expansion", "pes"), PARTS)
def test_the_table_with_each_edge_carrying_its_own_part(
    expansion: str, pes: int
) -> None:
    found = schedule(convolution(expansion).build("part"), pes)
    assert found.makespan == PARTS[expansion, pes] == simulate(found).makespan


def chain(volumes: list[int], buffers: tuple[int, ...] = ()) -> TaskGraph:
    """Tasks in a row; `volumes` are those of the edges, the first from memory, the last to it."""
    b = TaskGraphBuilder("chain")
    names = [b.source("in")]
    names += [
        b.buffer(f"n{n}") if n in buffers else b.add(f"n{n}")
        for n in range(1, len(volumes))
    ]
    names.append(b.sink("out"))
    for (source, target), volume in zip(pairwise(names), volumes, strict=True):
        b.connect(source, target, volume)
    return b.build("part")


def test_a_stream_moves_at_the_pace_of_the_fattest() -> None:
    found = schedule(chain([16, 16, 16, 8, 7, 23]), 8, "rlx").steady
    ratios = [Fraction(r) for r in ("1", "23/16", "23/16", "23/8", "23/7", "1")]
    assert [found.of(e) for e in range(6)] == ratios


def test_a_buffer_cuts_the_streams() -> None:
    graph = chain([128, 64, 32, 16, 16], buffers=(2,))
    streams = [e in (1, 3) for e in range(5)]
    assert [intervals(graph, streams).of(e) for e in range(4)] == [1, 2, 1, 2]


def test_a_block_has_at_most_as_many_tasks_as_there_are_elements() -> None:
    for seed in range(100):
        graph = random_graph(seed, ANY)
        for heuristic in ("lts", "rlx"):
            found = schedule(graph, 3, heuristic)
            for block in found.blocks:
                tasks = [n for n in block if graph.nodes[n].role is Role.COMPUTE]
                assert len(tasks) <= 3
                assert len({found.element[n] for n in tasks}) == len(tasks)
            assert sum(map(len, found.blocks)) == len(graph.nodes) - 2


def test_rlx_fills_every_block_but_the_last() -> None:
    for seed in range(100):
        graph = random_graph(seed, ANY, buffers=False)
        blocks = schedule(graph, 3, "rlx").blocks
        assert all(len(block) == 3 for block in blocks[:-1])


def errors(graphs: int, rates: list[Fraction], *, chain: bool) -> list[float]:
    """By how much of the simulated makespans those of the schedules are longer, in order."""
    found = []
    for seed in range(graphs):
        plan = schedule(random_graph(seed, rates, chain=chain), 1 + seed % 20)
        found.append(plan.makespan / simulate(plan).makespan - 1)
    return sorted(found)


COUNTS = [
    pytest.param(60, id="60"),
    pytest.param(1000, id="1000", marks=pytest.mark.slow),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("chain", [True, False], ids=["chains", "graphs"])
@pytest.mark.parametrize("rates", [WHOLE, ANY], ids=["whole", "any"])
@pytest.mark.parametrize("graphs", COUNTS)
def test_short_streams_take_the_time_the_schedule_says(
    graphs: int, rates: list[Fraction], chain: bool
) -> None:
    assert set(errors(graphs, rates, chain=chain)) == {0.0}


@pytest.mark.parametrize("chain", [True, False], ids=["chains", "graphs"])
@pytest.mark.parametrize("graphs", COUNTS)
def test_the_steady_state_is_near_and_hardly_optimistic(
    graphs: int, chain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signed error of the times of long streams, which are not followed."""
    monkeypatch.setattr(timing, "FOLLOWED", 0)
    signed = errors(graphs, ANY, chain=chain)
    size = sorted(map(abs, signed))
    assert size[graphs // 2] <= 0.03
    assert size[graphs * 95 // 100] <= 0.12
    assert signed[0] >= -0.05
    elementwise = errors(graphs // 2, [Fraction(1)], chain=chain)
    assert set(elementwise) == {0.0}


def test_list_schedules_start_no_later_than_gangs() -> None:
    for seed in range(60):
        graph = random_graph(seed, WHOLE)
        gang, free = (schedule(graph, 4, "lts", d) for d in ("gang", "list"))
        assert free.makespan <= gang.makespan
        assert simulate(free).makespan <= simulate(gang).makespan


@pytest.mark.parametrize("heuristic", ["lts", "rlx"])
def test_no_deadlock_with_the_computed_fifos(heuristic: str) -> None:
    for seed in range(200, 280):
        graph = random_graph(seed, ANY)
        gang, free = (
            schedule(graph, 1 + seed % 20, heuristic, d) for d in ("gang", "list")
        )
        assert simulate(gang).makespan == gang.makespan
        assert simulate(free).makespan <= free.makespan


@pytest.mark.parametrize("graphs", [90, pytest.param(300, marks=pytest.mark.slow)])
def test_some_graphs_deadlock_with_fifos_of_one(graphs: int) -> None:
    stuck = 0
    for seed in range(graphs):
        found = schedule(random_graph(seed, WHOLE), 16)
        try:
            simulate(found, [min(size, 1) for size in found.fifos])
        except ExecutionError as e:
            assert "waits for room on" in str(e)
            stuck += 1
    assert stuck > graphs // 15


def test_a_simulation_needs_a_size_for_each_edge() -> None:
    with pytest.raises(InputError, match="1 sizes of FIFOs for 2 edges"):
        simulate(schedule(chain([8, 8]), 2), [1])


def test_the_baseline_runs_what_is_ready_by_rank() -> None:
    graph = chain([8, 8, 8, 8])
    assert nonstreaming_makespan(graph, 1) == nonstreaming_makespan(graph, 4) == 24
    found = schedule(graph, 4)
    assert (found.makespan, found.speedup, found.slr) == (10, 2.4, 10 / 24)


def test_a_schedule_needs_an_element_and_known_names() -> None:
    graph = chain([8, 8])
    with pytest.raises(InputError, match="0 processing elements"):
        schedule(graph, 0)
    with pytest.raises(InputError, match="no heuristic 'best'"):
        schedule(graph, 1, "best")


@pytest.mark.slow
@pytest.mark.parametrize("heuristic", ["lts", "rlx"])
def test_a_hundred_thousand_tasks_are_scheduled_in_half_a_minute(
    heuristic: str,
) -> None:
    rng = random.Random(0)
    b = TaskGraphBuilder("large")
    b.source("in")
    b.sink("out")
    layer = [b.add(f"n0_{k}") for k in range(100)]
    for name in layer:
        b.connect("in", name, 64)
    for depth in range(1, 1000):
        above, layer = layer, [b.add(f"n{depth}_{k}") for k in range(100)]
        for k, name in enumerate(layer):
            for source in dict.fromkeys((above[k], rng.choice(above))):
                b.connect(source, name, 64)
    for name in layer:
        b.connect(name, "out", 64)
    graph = b.build("part")
    assert graph.tasks == 100_000
    begin = time.process_time()
    plan = schedule(graph, 256, heuristic)
    assert plan.makespan * 256 >= graph.total_work and max(plan.fifos) > 0
    assert time.process_time() - begin < 30
