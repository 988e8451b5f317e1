"""Cholesky, LU and triangular solution against NumPy, compiled and as task graphs."""

from typing import Any

import numpy as np
import pytest

from tests.graph.one_operator import model_of, run
from tilewright.base.errors import ModelError
from tilewright.dataflow import schedule, simulate
from tilewright.dataflow.lower import network, program
from tilewright.frontends.onnx import load

RNG = np.random.default_rng(0)


def definite(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Well conditioned symmetric positive definite matrices."""
    a = RNG.standard_normal(shape)
    return (a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def triangles(packed: np.ndarray) -> np.ndarray:
    """The product of the two factors that LU packs into one matrix."""
    lower = np.tril(packed, -1) + np.eye(packed.shape[-1], dtype=packed.dtype)
    return lower @ np.triu(packed)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 4, 4), (2, 3, 8, 8)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_multiply_back(shape: tuple[int, ...], dtype: str) -> None:
    a = definite(*shape, dtype=dtype)
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    [lower] = run(model_of("Cholesky", [a], domain="tilewright", opset=1), [a])
    np.testing.assert_allclose(
        lower, np.linalg.cholesky(a), rtol=tolerance, atol=tolerance
    )
    [packed] = run(model_of("LU", [a], domain="tilewright", opset=1), [a])
    np.testing.assert_allclose(triangles(packed), a, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("expansion", ["whole", "loop", "operator"])
@pytest.mark.parametrize("operator", ["Cholesky", "LU"])
def test_their_tasks_compute_them(operator: str, expansion: str) -> None:
    a = definite(6, 6)
    graph = load(model_of(operator, [a], domain="tilewright", opset=1))
    found = program(network(graph), {"map": expansion})
    [got] = found.run({"x0": a}).values()
    want = np.linalg.cholesky(a) if operator == "Cholesky" else a
    np.testing.assert_allclose(
        got if operator == "Cholesky" else triangles(got), want, rtol=1e-4, atol=1e-4
    )
    plan = schedule(found.graph, 4)
    assert simulate(plan).makespan == plan.makespan


def test_columns_are_a_pivot_and_an_update_each() -> None:
    graph = load(model_of("Cholesky", [definite(6, 6)], domain="tilewright", opset=1))
    by_columns = program(network(graph), {"map": "whole"}).graph
    assert by_columns.tasks == 6 + 5
    assert program(network(graph), {"map": "operator"}).graph.tasks == 1
    by_rows = program(network(graph), {"map": "loop"}).graph
    assert by_rows.tasks > by_columns.tasks


FLAGS = [(u, t, d) for u in (0, 1) for t in (0, 1) for d in (0, 1)]


def solved(
    a: np.ndarray, b: np.ndarray, upper: int, transpose: int, unit: int
) -> np.ndarray:
    """By a general solution with the one triangle that counts."""
    kept = (np.triu if upper else np.tril)(a.astype(np.float64))
    if unit:
        kept = kept * (1 - np.eye(len(a))) + np.eye(len(a))
    return np.linalg.solve(kept.T if transpose else kept, b)


def model(a: np.ndarray, b: np.ndarray, flags: tuple[int, int, int]) -> Any:
    """One triangular solution."""
    named = dict(zip(("upper", "transpose", "unit"), flags, strict=True))
    return model_of("TriangularSolve", [a, b], domain="tilewright", opset=1, **named)


@pytest.mark.sampled(3)  # each flag set and not set
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_triangular_systems_are_solved(flags: tuple[int, int, int]) -> None:
    for n in (20, 5):  # in loops, and unrolled
        a = definite(n, n) / n
        a = np.tril(a) + np.triu(a, 1) / 2  # the triangles differ
        b = RNG.standard_normal((n, 3)).astype("float32")
        expected = solved(a, b, *flags)
        [found] = run(model(a, b, flags), [a, b])
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    for expansion in ("whole", "loop"):
        tasks = program(network(load(model(a, b, flags))), {"map": expansion})
        [found] = tasks.run({"x0": a, "x1": b}).values()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 8, 8)], ids=str)
def test_cholesky_and_two_triangular_solutions_solve(
    shape: tuple[int, ...], dtype: str
) -> None:
    a = definite(*shape, dtype=dtype)
    b = RNG.standard_normal((*shape[:-1], 4)).astype(dtype)
    [lower] = run(model_of("Cholesky", [a], domain="tilewright", opset=1), [a])
    [z] = run(model(lower, b, (0, 0, 0)), [lower, b])
    [x] = run(model(lower, z, (0, 1, 0)), [lower, z])
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(a @ x, b, rtol=tolerance, atol=tolerance)


def test_a_triangular_solution_is_a_row_and_an_update_each() -> None:
    a, b = definite(6, 6), np.zeros((6, 2), np.float32)
    graph = program(network(load(model(a, b, (0, 0, 0)))), {"map": "whole"}).graph
    assert graph.tasks == 6 + 5
    plan = schedule(graph, 4)
    assert simulate(plan).makespan == plan.makespan


@pytest.mark.parametrize(
    ("b", "flags", "message"),
    [
        (
            np.zeros((4, 2), "float32"),
            (0, 0, 0),
            r"right-hand sides \[4, 2\].*\[3, 3\]",
        ),
        (np.zeros((1, 3, 2), "float32"), (0, 0, 0), r"right-hand sides \[1, 3, 2\]"),
        (np.zeros((3, 2), "float64"), (0, 0, 0), "float64"),
        (np.zeros((3, 2), "float32"), (2, 0, 0), "upper is 2, expected 0 or 1"),
    ],
    ids=["rows", "batch", "dtype", "flag"],
)
def test_what_is_no_triangular_system_is_refused(
    b: np.ndarray, flags: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(model(definite(3, 3), b, flags))


def test_a_matrix_that_is_not_square_is_refused() -> None:
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(ModelError, match="does not hold square matrices"):
        load(model_of("LU", [a], domain="tilewright", opset=1))
