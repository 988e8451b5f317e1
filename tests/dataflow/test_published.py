"""The published graphs: their tasks and edges, and what is known of their schedules."""

from pathlib import Path

import pytest

from benchmarks.task_graphs import line, rows
from tilewright.base.errors import InputError
from tilewright.dataflow import TaskGraph, schedule, simulate
from tilewright.dataflow.graph import Role
from tilewright.dataflow.published import SHAPES, published


def edges(graph: TaskGraph) -> int:
    """Those between tasks."""
    roles = [node.role for node in graph.nodes]
    ends = [(roles[e.source], roles[e.target]) for e in graph.edges]
    return ends.count((Role.COMPUTE, Role.COMPUTE))


@pytest.mark.parametrize(("name", "size", "tasks"), [
    ("chain", 8, 8), ("fft", 32, 223), ("gaussian", 16, 135), ("cholesky", 8, 120),
])  # fmt: skip
def test_the_sizes_of_the_paper(name: str, size: int, tasks: int) -> None:
    assert published(name, size).tasks == tasks


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_tasks_and_edges(n: int) -> None:
    """By formulas: n; 2n - 1 + n log n; (n^2 + n - 2) / 2; n (n + 1) (n + 2) / 6 tasks."""
    levels = n.bit_length() - 1
    updates = n * (n - 1) // 2
    counts = {
        "chain": (n, n - 1),
        "fft": (2 * n - 1 + n * levels, 2 * n - 2 + 2 * n * levels),
        # A pivot and its updates; from the second on each also reads the step before.
        "gaussian": (n - 1 + updates, updates + (n - 2) + (n - 1) * (n - 2) // 2),
    }
    for name, expected in counts.items():
        graph = published(name, n)
        assert (graph.tasks, edges(graph)) == expected, name
    assert published("cholesky", n).tasks == n * (n + 1) * (n + 2) // 6


def test_the_edges_of_a_factorization_of_three_by_three_tiles() -> None:
    shape = SHAPES["cholesky"](3)
    assert shape == {
        "potrf0": [],
        "trsm1_0": ["potrf0"],
        "trsm2_0": ["potrf0"],
        "syrk1_0": ["trsm1_0"],
        "potrf1": ["syrk1_0"],
        "gemm2_1_0": ["trsm1_0", "trsm2_0"],
        "trsm2_1": ["potrf1", "gemm2_1_0"],
        "syrk2_0": ["trsm2_0"],
        "syrk2_1": ["trsm2_1", "syrk2_0"],
        "potrf2": ["syrk2_1"],
    }


def test_the_butterflies_of_four_points() -> None:
    shape = SHAPES["fft"](4)
    assert shape["level0_1"] == ["call2_1", "call2_0"]
    assert shape["level1_1"] == ["level0_1", "level0_3"]
    assert shape["call2_3"] == ["call1_1"]


def test_a_streamed_chain_takes_a_cycle_more_per_task() -> None:
    """W + n - 1 cycles on n elements, as the published model says; n W on one."""
    graph = published("chain", 8, volume=100)
    assert schedule(graph, 8).makespan == 107
    assert schedule(graph, 8).speedup == pytest.approx(800 / 107)
    assert schedule(graph, 1).makespan == 800
    assert schedule(graph, 8).sslr == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_schedules_are_what_the_simulator_takes(name: str, seed: int | None) -> None:
    graph = published(name, 4, volume=24, seed=seed)
    found = schedule(graph, 4)
    assert simulate(found).makespan == found.makespan


@pytest.mark.parametrize("name", SHAPES)
def test_random_rates_are_reproducible(name: str) -> None:
    first, again, other = (
        [(e.source, e.target, e.part) for e in published(name, 8, seed=s).edges]
        for s in (1, 1, 2)
    )
    assert first == again != other


def test_the_table_of_the_documentation() -> None:
    """The rows of the quickest graph, as the command prints them."""
    page = Path(__file__).parents[2] / "docs" / "dataflow.md"
    lines = page.read_text().splitlines()
    for row in rows("chain:8", 20):
        assert line(row) in lines


def test_another_graph_or_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"no graph 'mmm'.*known: chain, fft"):
        published("mmm", 4)
    with pytest.raises(InputError, match="an FFT of 12 points"):
        published("fft", 12)
    for size in (1, 2.5, -3):
        with pytest.raises(InputError, match="give a size of at least 2"):
            published("chain", size)  # type: ignore[arg-type]
