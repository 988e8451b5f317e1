"""Derivatives that our own decompositions keep from PyTorch, beside its kernels."""

import math
import warnings

import pytest

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.torch_backend import backend
from tilewright.frontends.torch.aten.own.table import own_decompositions

torch = pytest.importorskip("torch")
INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def fresh():
    """Nothing that another test captured, and no graph that PyTorch runs without a word."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        yield


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 30])
def test_derivatives_of_digamma(n):
    """On both sides of zero, near poles and far from them. PyTorch's trigamma is less exact."""
    ours = own_decompositions()["aten.polygamma.default"]
    magnitudes = torch.cat([torch.rand(200) * 10, torch.tensor([1e-3, 20.3, 1e3])])
    x = torch.cat([magnitudes, -magnitudes[:-1]]).double()
    torch.testing.assert_close(ours(n, x), torch.polygamma(n, x), rtol=1e-9, atol=0.0)
    poles = torch.tensor([0.0, -1.0, -7.0, NAN])
    wanted = INF if n % 2 else -INF
    assert ours(n, poles).tolist()[:3] == [wanted] * 3
    assert ours(n, poles)[3].isnan()
    assert ours(n, torch.tensor([INF])) == 0


def test_the_second_derivative_of_digamma_is_compiled():
    def function(x):
        return torch.polygamma(1, x) * 2 + torch.digamma(x)

    x = (torch.rand(5) + 0.2).requires_grad_()
    found = torch.compile(function, backend=backend)(x).sum()
    wanted = function(x).sum()
    torch.testing.assert_close(found, wanted)
    got, want = (torch.autograd.grad(y, x)[0] for y in (found, wanted))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


MASKS = {
    "a mask of its shape": ((4, 5), (4, 5), (4, 5)),
    "a mask of rows": ((4, 5), (4, 1), (3, 7)),
    "a source of another shape": ((3, 4), (3, 4), (20,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_gradients_of_masked_elements(name, dynamic):
    """Elements behind the last that is put have none."""
    shape, places, source = MASKS[name]
    mask = torch.rand(places) > 0.5

    def function(x, s):
        return x.masked_scatter(mask, s).sin()

    x, s = (torch.randn(n).requires_grad_() for n in (shape, source))
    weights = torch.randn(shape)
    found = torch.compile(function, backend=backend, dynamic=dynamic)(x, s)
    got = torch.autograd.grad((found * weights).sum(), (x, s))
    want = torch.autograd.grad((function(x, s) * weights).sum(), (x, s))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decimals", [-2, -1, 1, 3])
def test_rounded_to_decimals(decimals):
    """Halves are even; numbers that leave the range become NaN and infinite, as in PyTorch."""
    x = torch.cat([torch.randn(100) * 300, torch.tensor([0.25, 0.35, 1e38, INF, NAN])])
    found = torch.compile(lambda x: x.round(decimals=decimals), backend=backend)(x)
    torch.testing.assert_close(found, x.round(decimals=decimals), equal_nan=True)


def test_gradients_of_signs_and_of_no_elements():
    """An index without elements may have more axes than the tensor."""

    def function(x):
        none = torch.zeros(2, 0, dtype=torch.int64)
        return x.sgn() + x.square(), x.gather(0, none), x.scatter_add(0, none, x[:0])

    x = torch.randn(5).requires_grad_()
    run = torch.compile(function, backend=backend)
    for f in (run, function):
        signs, nothing, whole = f(x)
        assert nothing.shape == (2, 0)
        torch.testing.assert_close(whole, x)
        (gradient,) = torch.autograd.grad(signs.sum() + nothing.sum(), x)
        torch.testing.assert_close(gradient, 2 * x)
