"""Complex inputs and results of the graphs of `torch.compile`."""

import warnings

import pytest

from tilewright.base.errors import TilewrightWarning
from tilewright.driver.torch_backend import backend

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fresh():
    """Nothing that another test captured, and no graph that PyTorch runs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "PyTorch runs a graph", TilewrightWarning)
        yield


def numbers(*shape, dtype=torch.complex64):
    return torch.randn(*shape, dtype=dtype)


GIVEN = {
    "plain": numbers(3, 4),
    "double": numbers(3, 4, dtype=torch.complex128),
    "conjugate": numbers(3, 4).conj(),
    "transposed": numbers(4, 3).t(),
    "part": numbers(6, 9)[1::2, ::2][:, :4],
}


@pytest.mark.parametrize("name", GIVEN)
def test_complex_inputs_and_results(name):
    """New numbers, conjugate ones, the input itself and views of it, and real parts."""

    def function(z):
        return z * 2, z.conj() - 1, z, z[1:].mT, z.real + 1, (z + 1).mT

    z = GIVEN[name]
    with torch.no_grad():
        found = torch.compile(function, backend=backend)(z)
    wanted = function(z)
    torch.testing.assert_close(found, wanted)
    assert [f.stride() for f in found[2:]] == [w.stride() for w in wanted[2:]]
    assert [f.data_ptr() for f in found[2:4]] == [w.data_ptr() for w in wanted[2:4]]


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0,)])
def test_complex_results_without_elements(shape):
    """NumPy's strides of these are zeros, which PyTorch does not take for pairs."""
    x = numbers(*shape)
    with torch.no_grad():
        found = torch.compile(lambda x: x * 2, backend=backend)(x)
    torch.testing.assert_close(found, x * 2)


def test_complex_weights_that_change_are_seen():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(numbers(3))
    run = torch.compile(lambda x: (module.weight * x).abs(), backend=backend)
    x = torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), (module.weight * x).abs())
            module.weight.mul_(2j)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_through_complex_numbers(dynamic):
    """Forward graphs keep complex numbers for backward graphs. Zero has no direction."""

    def function(x):
        return torch.polar(x.abs(), x.exp()) * 2, torch.complex(x, x * x).abs()

    run = torch.compile(function, backend=backend, dynamic=dynamic)
    for rows in (2, 3):
        found = []
        given = torch.randn(rows, 4)
        given[0, 1] = 0
        for f in (run, function):
            x = given.clone().requires_grad_()
            z, size = f(x)
            loss = z.abs().square().sum() + size.sum() + z.imag.sum()
            found.append((z, size, *torch.autograd.grad(loss, x)))
        torch.testing.assert_close(*found)


def test_the_direction_of_complex_numbers():
    given = [0, 3 + 4j, -2j, 1e30 + 1e30j, -1e-30]
    z = torch.tensor(given, dtype=torch.complex64)
    run = torch.compile(torch.sgn, backend=backend)
    torch.testing.assert_close(run(z), torch.sgn(z.to(torch.complex128)).to(z.dtype))


def test_powers_of_zero():
    """By its logarithm: to the power of zero it is no number."""
    z = torch.zeros(5, dtype=torch.complex64)
    powers = torch.tensor([0j, 2, 1 + 1j, -1, 0.5])
    found = torch.compile(torch.pow, backend=backend)(z, powers)
    unknown = complex("nan+nanj")
    torch.testing.assert_close(
        found[[0, 1, 2, 4]], torch.tensor([unknown, 0, 0, 0]), equal_nan=True
    )
    assert found[3].real == torch.inf


INF, NAN = float("inf"), float("nan")
SPECIALS = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN]


@pytest.mark.parametrize("name", ["exp", "sqrt"])
def test_functions_of_infinite_parts(name):
    """As those of PyTorch and C99 are; zeros of both signs are equal here."""
    parts = torch.tensor(SPECIALS)
    z = torch.complex(*torch.meshgrid(parts, parts, indexing="ij")).flatten()
    function = getattr(torch, name)
    found, want = torch.compile(function, backend=backend)(z), function(z)
    for got, right in ((found.real, want.real), (found.imag, want.imag)):
        torch.testing.assert_close(got, right, equal_nan=True)


@pytest.mark.parametrize("power", [INF, -INF])
def test_powers_by_infinity(power):
    parts = torch.tensor(
        [1j, 1 + 1j, -1j, 0.5, 3, -2, complex(INF, 0), complex(0, INF)]
    )
    found = torch.compile(lambda z: z**power, backend=backend)(parts)
    want = parts**power
    for got, right in ((found.real, want.real), (found.imag, want.imag)):
        torch.testing.assert_close(got, right, equal_nan=True)


@pytest.mark.parametrize("axes", [(0, 1), (1,)], ids=str)
def test_gradients_of_sums_of_complex_numbers(axes):
    """They are expanded: pairs of numbers stay together in memory."""
    found = []
    z = numbers(3, 4)
    for f in (torch.compile(torch.sum, backend=backend), torch.sum):
        given = z.clone().requires_grad_()
        y = f(given, axes)
        loss = (y.real * y.imag).sum()
        found.append(torch.autograd.grad(loss, given))
    torch.testing.assert_close(*found)
