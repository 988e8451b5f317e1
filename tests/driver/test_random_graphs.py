"""Random graphs compiled and run agree with the same graph in float64."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.testing.differential import check
from tilewright.testing.random_graphs import random_case

SEEDS = range(100)
SLOW = range(1000, 2000)


@pytest.mark.sampled(26)
@pytest.mark.parametrize("seed", SEEDS)
def test_agrees_with_the_truth(seed, tmp_path):
    case = random_case(seed, None if seed % 10 == 0 else 6)
    threads = (1, 2) if seed % 5 == 0 else (1,)
    path = str(tmp_path / "m.tw") if seed % 10 == 1 else None
    assert not check(case.graph, case.inputs, threads=threads, path=path)


@pytest.mark.parametrize("seed", [1948, 2003])
def test_what_once_failed(seed):
    """A join of products of vectors; a pooling behind two convolutions that are merged."""
    case = random_case(seed)
    assert not check(case.graph, case.inputs)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_result_depends_on_what_else_is_asked_for(seed):
    case = random_case(seed, 8)
    made = tuple(v for op in case.graph.operations for v in op.writes)
    assert not check(replace(case.graph, outputs=made), case.inputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(120, 135))
def test_exact_math(seed):
    case = random_case(seed, 6)
    assert not check(case.graph, case.inputs, math="exact")


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(5_000, 1_000_000))
def test_any_graph_agrees(seed):
    case = random_case(seed)
    assert not check(case.graph, case.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLOW.start, SLOW.stop, 50))
def test_many(start, tmp_path):
    wrong = {}
    for seed in range(start, start + 50):
        case = random_case(seed)
        threads = (1, 2) if seed % 4 == 0 else (1,)
        path = str(tmp_path / "m.tw") if seed % 5 == 0 else None
        lines = check(case.graph, case.inputs, threads=threads, path=path)
        if lines:
            wrong[seed] = lines
    assert not wrong
