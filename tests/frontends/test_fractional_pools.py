"""Fractional max pooling, beside PyTorch's."""

import warnings

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
A = torch.ops.aten

from tests.frontends.aten.tensors import x  # noqa: E402
from tests.frontends.test_aten import Function, check  # noqa: E402
from tilewright.base.errors import TilewrightWarning  # noqa: E402
from tilewright.driver.torch_backend import backend  # noqa: E402
from tilewright.frontends.torch.aten.own.table import own_decompositions  # noqa: E402

NAN = float("nan")


@pytest.fixture(autouse=True)
def fresh():
    """Nothing that another test captured, and no graph that PyTorch runs without a word."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "PyTorch runs a graph", TilewrightWarning)
        yield


def planes(kernel, size):
    """Windows overlap, and the greatest of one may be NaN."""

    def function(a, samples, gradient):
        best, places = A.fractional_max_pool2d(a, kernel, size, samples)
        how = gradient, a, kernel, size, places
        return best, places, A.fractional_max_pool2d_backward(*how)

    return function


POOLS = {
    "planes": (planes([2, 3], [4, 5]), x(2, 3, 9, 11), (2, 3, 2), (2, 3, 4, 5)),
    "no batch": (planes([2, 2], [3, 1]), x(3, 8, 7), (1, 3, 2), (3, 3, 1)),
    "overlapping": (planes([2, 2], [5, 5]), x(1, 2, 6, 6), (1, 2, 2), (1, 2, 5, 5)),
    "volumes": (
        lambda a, s, g: A.fractional_max_pool3d(a, [2, 3, 2], [3, 4, 2], s),
        x(2, 2, 6, 7, 8),
        (2, 2, 3),
        (1,),
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_fractional_pooling(name):
    function, a, samples, gradient = POOLS[name]
    torch.manual_seed(0)
    a = a.clone()
    a.view(-1)[7] = NAN
    given = a, torch.rand(samples), torch.randn(gradient)
    program = torch.export.export(Function(function), given)
    check(program, given, function(*given))


def test_fractional_pooling_of_an_empty_batch():
    def function(a):
        return F.fractional_max_pool2d(a, 2, output_size=(3, 4))

    a = torch.randn(0, 2, 6, 7)
    assert torch.compile(function, backend=backend)(a).shape == (0, 2, 3, 4)


def test_windows_of_short_floats_start_where_those_of_torch_do():
    operator = A.fractional_max_pool3d.default
    kernel, size = (1, 2, 2), (2, 4, 4)
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        a = torch.randn(2000, 3, 9, 9).to(dtype)
        samples = torch.rand(1, 2000, 3).to(dtype)
        wanted = operator(a, kernel, size, samples)
        found = own_decompositions()["aten.fractional_max_pool3d.default"](
            a, kernel, size, samples
        )
        assert all(map(torch.equal, found, wanted))
