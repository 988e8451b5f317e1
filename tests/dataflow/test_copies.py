"""Nodes that stand for several equal tasks: nothing changes when these are told apart."""

import pytest

from tests.dataflow.graphs import ANY, random_graph
from tilewright.base.errors import InputError
from tilewright.dataflow import (
    TaskGraphBuilder,
    nonstreaming_makespan,
    schedule,
    simulate,
    streaming_depth,
)
from tilewright.dataflow.copies import expanded
from tilewright.dataflow.text import from_json, parse, show, to_json

COUNTS = (1, 1, 1, 2, 7, 30)
SEEDS = [range(25), pytest.param(range(25, 150), marks=pytest.mark.slow)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("heuristic", ["lts", "rlx"])
def test_tasks_told_apart_are_scheduled_the_same(heuristic: str, seeds: range) -> None:
    for seed in seeds:
        graph = random_graph(seed, ANY, counts=COUNTS)
        apart = expanded(graph)
        assert (apart.tasks, len(apart.edges)) == (graph.tasks, graph.streams)
        for pes in (1, 3, 8, 40):
            one, all_ = schedule(graph, pes, heuristic), schedule(apart, pes, heuristic)
            assert one.graph.tasks == graph.tasks
            assert one.makespan == all_.makespan, (seed, pes)
            assert one.rounds == len(all_.blocks)
            assert one.fifo_space == sum(all_.fifos)
            assert one.speedup == all_.speedup


def test_tasks_told_apart_are_simulated_the_same() -> None:
    for seed in range(40):
        graph = random_graph(seed, ANY, counts=(1, 3, 9))
        for pes in (2, 16):
            one, all_ = schedule(graph, pes), schedule(expanded(graph), pes)
            assert simulate(one).makespan == simulate(all_).makespan


def test_bounds_io_and_baseline_are_those_of_the_tasks_apart() -> None:
    for seed in range(100):
        graph = random_graph(seed, ANY, counts=COUNTS)
        apart = expanded(graph)
        assert graph.io() == apart.io()
        assert streaming_depth(graph) == streaming_depth(apart)
        for pes in (1, 5):
            assert nonstreaming_makespan(graph, pes) == nonstreaming_makespan(
                apart, pes
            )


def test_a_list_schedule_tells_tasks_apart() -> None:
    graph = random_graph(3, ANY, counts=COUNTS)
    assert schedule(graph, 8, "lts", "list").graph.tasks == len(
        [n for n in expanded(graph).nodes if n.role == "compute"]
    )


def test_counts_are_part_of_the_text() -> None:
    for seed in range(20):
        text = show(random_graph(seed, ANY, counts=COUNTS))
        assert show(parse(text)) == text
        assert show(from_json(to_json(parse(text)))) == text


def test_memory_is_there_once() -> None:
    b = TaskGraphBuilder("g")
    b.source("x")
    b.add("f", count=0)
    b.connect("x", "f", 4)
    b.sink("y")
    b.connect("f", "y", 4)
    with pytest.raises(InputError, match="compute f has a count of 0"):
        b.build("part")
    text = "graph g volume=part\nsource x x2\nsink y\nx -> y: 3"
    with pytest.raises(InputError, match="source x has a count of 2"):
        parse(text)
