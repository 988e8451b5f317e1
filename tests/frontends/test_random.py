"""Random numbers of exported programs: their range and moments, and that runs differ."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tests.frontends.aten.tensors import x  # noqa: E402
from tests.frontends.test_aten import Function, run  # noqa: E402

ONES = torch.ones(64, 64)


def empty():
    return torch.empty(64, 64)


# function, mean, standard deviation, least, greatest
DRAWN = {
    "rand": (lambda a: torch.rand(64, 64), 0.5, 0.289, 0, 1),
    "rand_like": (lambda a: torch.rand_like(a), 0.5, 0.289, 0, 1),
    "double": (lambda a: torch.rand_like(a.double()), 0.5, 0.289, 0, 1),
    "short": (lambda a: torch.rand_like(a.bfloat16()).float(), 0.5, 0.289, 0, 1),
    "randn": (lambda a: torch.randn(64, 64), 0, 1, -7, 7),
    "normal": (lambda a: torch.normal(3.0, 2.0, (64, 64)), 3, 2, -11, 17),
    "normal_": (lambda a: empty().normal_(3, 2), 3, 2, -11, 17),
    "uniform_": (lambda a: empty().uniform_(-3, 1), -1, 1.155, -3, 1),
    "exponential_": (lambda a: empty().exponential_(2), 0.5, 0.5, 0, 17),
    "short exponential_": (
        lambda a: empty().bfloat16().exponential_(2).float(),
        *(0.5, 0.5, 1e-9, 17),
    ),
    "geometric_": (lambda a: empty().geometric_(0.25), 4, 3.46, 1, 80),
    "log_normal_": (lambda a: empty().log_normal_(0, 0.5), 1.133, 0.604, 0.02, 50),
    "multinomial": (
        lambda a: torch.multinomial(a[:, :4] * torch.arange(4), 64, True).float(),
        *(2.333, 0.745, 1, 3),
    ),
    "integers": (lambda a: torch.randint(-2, 3, (64, 64)), 0, 1.414, -2, 2),
    "integers like": (lambda a: torch.randint_like(a, 5), 2, 1.414, 0, 4),
    "bernoulli": (lambda a: torch.bernoulli(a * 0.3), 0.3, 0.458, 0, 1),
    "bernoulli p": (lambda a: torch.bernoulli(a, 0.3), 0.3, 0.458, 0, 1),
    "dropout": (lambda a: F.dropout(a, 0.2, True), 1, 0.5, 0, 1.25),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers(name):
    function, mean, deviation, least, greatest = DRAWN[name]
    program = torch.export.export(Function(function), (ONES,))
    graph, found = run(program, (ONES,))
    first = found[graph.outputs[0].name]
    _, again = run(program, (ONES,))
    assert first.dtype == function(ONES).numpy().dtype
    assert first.shape == (64, 64)
    assert first.min() >= least and first.max() <= greatest
    # 4,096 numbers: six standard errors.
    np.testing.assert_allclose(first.mean(), mean, atol=deviation * 6 / 64)
    np.testing.assert_allclose(first.std(), deviation, rtol=0.15)
    assert (first != again[graph.outputs[0].name]).any()


def test_a_random_permutation():
    def function(a):
        return torch.randperm(64)

    program = torch.export.export(Function(function), (ONES,))
    runs = [run(program, (ONES,)) for _ in range(2)]
    first, again = [found[graph.outputs[0].name] for graph, found in runs]
    assert sorted(first) == sorted(again) == list(range(64))
    assert (first != again).any()


def test_random_numbers_of_an_open_extent():
    rows = torch.export.Dim("rows")
    shapes = {"args": ({0: rows},)}
    program = torch.export.export(
        Function(lambda a: torch.rand_like(a)), (x(3, 4),), dynamic_shapes=shapes
    )
    graph, found = run(program, (x(3, 4),), s77=3)
    assert found[graph.outputs[0].name].shape == (3, 4)
