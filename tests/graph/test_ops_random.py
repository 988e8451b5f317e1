"""Random numbers with a seed: the right distribution, the same at every run."""

import numpy as np
import pytest

from tests.graph.one_operator import model_of, run

N = 40_000


def drawn(op_type, inputs=(), **attributes):
    model = model_of(op_type, inputs, opset=22, **attributes)
    first, again = run(model, inputs), run(model, inputs)
    np.testing.assert_array_equal(first[0], again[0])
    return first[0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_uniform(dtype):
    number = {"float32": 1, "float16": 10, "float64": 11}[dtype]
    x = drawn(
        "RandomUniform", shape=[N // 4, 4], low=-1.0, high=3.0, seed=5.0, dtype=number
    )
    assert x.dtype == dtype
    x = x.astype(np.float64)
    assert x.min() >= -1
    assert x.max() <= 3
    counts, _ = np.histogram(x, 20, (-1, 3))
    assert abs(counts - N / 20).max() < 5 * (N / 20) ** 0.5
    assert abs(np.corrcoef(x.T) - np.eye(4)).max() < 0.05


def test_normal():
    x = drawn("RandomNormal", shape=[N], mean=2.0, scale=3.0, seed=1.0).astype(
        np.float64
    )
    z = (x - 2) / 3
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03
    assert abs((z**3).mean()) < 0.08
    assert abs((z**4).mean() - 3) < 0.2


def test_seeds_differ():
    like = np.zeros((N,), np.float32)
    one, two = (drawn("RandomNormalLike", [like], seed=s) for s in (1.0, 2.0))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03


def test_bernoulli():
    p = np.full(N, 0.3, np.float32)
    assert abs(drawn("Bernoulli", [p], seed=3.0).mean() - 0.3) < 0.02


def test_multinomial():
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0001]], np.float32)
    x = drawn("Multinomial", [np.log(p)], sample_size=N, seed=9.0, dtype=7)
    assert x.dtype == np.int64
    found = np.stack([np.bincount(row, minlength=3) for row in x]) / N
    np.testing.assert_allclose(found, p / p.sum(1, keepdims=True), atol=0.02)
