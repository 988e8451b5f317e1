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


FUNCTIONS = {
    **{n: getattr(torch, n) for n in "sin cos sinh cosh tanh tan sigmoid exp2".split()},
    "rsqrt": torch.rsqrt,
    "product": lambda z: z.prod(),
    "product of rows": lambda z: z.prod(1),
    "product kept": lambda z: z.prod(0, keepdim=True),
    "running product": lambda z: z.cumprod(1),
    "running product of columns": lambda z: z.cumprod(-2),
    "dot": lambda z: z[0].dot(z[1]),
    "norm": lambda z: torch.norm(z, 3),
    "by places in memory": lambda z: z.as_strided((2, 2), (1, 2)),
    "reflected": lambda z: torch.nn.functional.pad(z[None], (1, 2), "reflect"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_gradients(name):
    """Beside complex128, as near as eager PyTorch is."""
    function = FUNCTIONS[name]
    z = numbers(3, 5) * 2
    found = []
    kinds = [(torch.compile(function, backend=backend), z), (function, z)]
    for f, given in (*kinds, (function, z.to(torch.complex128))):
        x = given.clone().requires_grad_()
        y = f(x)
        flow = torch.linspace(1, 2, y.numel()).reshape(y.shape).to(y.dtype)
        if y.is_complex():
            flow = flow * (1 + 0.5j)
        found.append((y, *torch.autograd.grad(y, x, flow)))
    for got, eager, exact in zip(*found, strict=True):
        assert got.dtype == eager.dtype
        assert got.shape == eager.shape
        allowed = 4 * (eager - exact).abs().max() + 1e-6 * exact.abs().max()
        assert (got - exact).abs().max() <= allowed


def test_a_tangent_of_large_and_small_numbers():
    """The power of e does not overflow, and near zero nothing cancels."""
    given = [
        100 + 1j,
        -100 + 1j,
        1e30 - 0.5j,
        44 - 2j,
        1e-6 + 1e-6j,
        0,
        0.001 + 1.5707j,
    ]
    z = torch.tensor([*given, complex("inf")], dtype=torch.complex64)
    found = torch.compile(torch.tanh, backend=backend)(z)
    torch.testing.assert_close(found, torch.tanh(z.to(torch.complex128)).to(z.dtype))
    turned = torch.compile(torch.tan, backend=backend)(z[:-1] * 1j)
    torch.testing.assert_close(turned, 1j * found[:-1])


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_whether_complex_numbers_are_zero(name):
    function = getattr(torch, f"logical_{name}")

    def both(a, b):
        return function(a, b), function(a, b.real), torch.logical_not(a)

    a = torch.tensor([0, 1, 1j, 0, 2, 0])
    b = torch.tensor([0, 0, 1j, 3j, 1j, 2])
    for found, want in zip(torch.compile(both, backend=backend)(a, b), both(a, b)):
        assert torch.equal(found, want)


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


def test_logarithms_of_numbers_near_one_keep_their_small_parts():
    """By the logarithm of 1 + x, real parts below 1e-7 would be zero, and those of 1e-5 coarse."""
    x = torch.tensor(
        [1e-9 + 1e-9j, 1e-5 - 2e-5j, complex(-0.0, 0.0), -3e-8 + 1j, 0.2 - 0.3j, 3 + 4j]
    )
    found = torch.compile(torch.log1p, backend=backend)(x)
    exact = torch.log1p(x.to(torch.complex128)).to(x.dtype)
    for part in (torch.real, torch.imag):
        torch.testing.assert_close(part(found), part(exact), rtol=1e-6, atol=0)
        assert torch.equal(part(found).signbit(), part(exact).signbit())


def test_a_number_of_size_one_has_no_logarithm_but_its_angle():
    """1 + x is on the unit circle, where |1 + x|^2 - 1 rounds to zero with x far from it."""
    re = torch.arange(-127, 0) / 1024
    x = torch.complex(re, (-re * (re + 2)).sqrt())
    found = torch.compile(torch.log1p, backend=backend)(x)
    exact = torch.log1p(x.to(torch.complex128)).to(x.dtype)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-7)
