"""Cholesky and LU against NumPy, compiled and as task graphs."""

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


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 4, 4), (2, 3, 8, 8)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_multiply_back(shape: tuple[int, ...], dtype: str) -> None:
    a = definite(*shape, dtype=dtype)
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    [lower] = run(model_of("Cholesky", [a], domain="tilewright", opset=1), [a])
    np.testing.assert_allclose(lower, np.linalg.cholesky(a), rtol=tolerance, atol=tolerance)
    [packed] = run(model_of("LU", [a], domain="tilewright", opset=1), [a])
    np.testing.assert_allclose(triangles(packed), a, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("expansion", ["whole", "loop"])
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
    by_rows = program(network(graph), {"map": "loop"}).graph
    assert by_rows.tasks > by_columns.tasks


def test_a_matrix_that_is_not_square_is_refused() -> None:
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(ModelError, match="holds no square matrices"):
        load(model_of("LU", [a], domain="tilewright", opset=1))
