"""Operators that our own decompositions and rules keep from PyTorch, beside its kernels.

Bit for bit where they only move or count bits.
"""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
A = torch.ops.aten

from tests.frontends.aten.tensors import x  # noqa: E402
from tests.frontends.test_aten import Function, check, run  # noqa: E402
from tilewright.base.errors import TilewrightWarning  # noqa: E402
from tilewright.driver.torch_backend import backend  # noqa: E402
from tilewright.frontends.torch.aten.own_decompositions import DECOMPOSITIONS  # noqa: E402

NAN, INF = float("nan"), float("inf")
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 1.5, -2.5, 0.3, 1024.0, 2e-38, 3.4e38, INF, -INF, NAN),
    *(1e-45, -3e-45, 6e-8, 1e-38, 5e-324, -1e-310, 1.7e308, 65504.0),
)
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def fresh():
    """Nothing that another test captured, and no graph that PyTorch runs without a word."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "PyTorch runs a graph", TilewrightWarning)
        yield


def bits(found):
    """All numbers that are not NaN, by their bits; NaN have several."""
    array = np.where(np.isnan(found), found.dtype.type(0), found)
    return array.view(f"i{array.itemsize}")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_next_float(dtype):
    a = torch.tensor(FLOATS, dtype=torch.float64).to(dtype)
    given = a[:, None], a[None]
    program = torch.export.export(Function(torch.nextafter), given)
    graph, found = run(program, given)
    got = found[graph.outputs[0].name].astype(np.float64)
    want = torch.nextafter(*given).double().numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_mantissa_and_exponent(dtype):
    a = torch.tensor(FLOATS, dtype=torch.float64).to(dtype)
    program = torch.export.export(Function(lambda a: tuple(torch.frexp(a))), (a,))
    graph, found = run(program, (a,))
    mantissa, exponent = [found[v.name] for v in graph.outputs]
    want = torch.frexp(a)
    np.testing.assert_array_equal(exponent, want.exponent.numpy())
    got = mantissa.astype(np.float64)
    np.testing.assert_array_equal(bits(got), bits(want.mantissa.double().numpy()))


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


def test_windows_of_short_floats_start_where_those_of_torch_do():
    operator = A.fractional_max_pool3d.default
    kernel, size = (1, 2, 2), (2, 4, 4)
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        a = torch.randn(2000, 3, 9, 9).to(dtype)
        samples = torch.rand(1, 2000, 3).to(dtype)
        wanted = operator(a, kernel, size, samples)
        found = DECOMPOSITIONS["aten.fractional_max_pool3d.default"](
            a, kernel, size, samples
        )
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 3, 5), 0), ((4, 3, 5), 2), ((4,), 0)], ids=str
)
def test_normalized_weights_and_their_gradients(shape, dim):
    size = [n if a == dim else 1 for a, n in enumerate(shape)]

    def function(gradient, v, g):
        found, norms = A._weight_norm_interface(v, g, dim)
        back = A._weight_norm_interface_backward(gradient, v, g, norms, dim)
        return found, norms, *back

    given = x(*shape), x(*shape, seed=1), x(*size, seed=2)
    program = torch.export.export(Function(function), given)
    check(program, given, function(*given))


def test_a_bilinear_layer_and_its_gradients():
    def function(gradient, a, w, b):
        y = F.bilinear(a, b, w)
        how = [1, 3], [0], [1, 2], [2, 3]
        turned = A._trilinear(a, gradient, b, [1, 3], [2, 3], [1, 2], [0])
        return y, A._trilinear(a, w, b, *how), turned

    given = x(5, 2), x(5, 3), x(2, 3, 4, seed=1), x(5, 4, seed=2)
    program = torch.export.export(Function(function), given)
    check(program, given, function(*given))


BAGS = {
    "sums": {"mode": "sum"},
    "means": {"mode": "mean", "padding_idx": 1},
    "all offsets": {"mode": "mean", "include_last_offset": True},
    "factors": {"mode": "sum", "padding_idx": 1, "per_sample_weights": x(8)},
}


@pytest.mark.parametrize("name", BAGS)
def test_bags_of_embeddings_are_trained(name):
    """The second bag is empty, and a row is twice in one."""
    how = BAGS[name]
    offsets = [0, 3, 3, 5, *([8] if "include_last_offset" in how else [])]

    def function(weight, factors):
        given = {**how, "per_sample_weights": factors}
        rows = torch.tensor([0, 1, 1, 5, 2, 6, 0, 1])
        return F.embedding_bag(rows, weight, torch.tensor(offsets), **given)

    weight = x(7, 3, seed=1).requires_grad_()
    factors = how.get("per_sample_weights")
    leaves = [weight, *([] if factors is None else [factors.requires_grad_()])]
    found = []
    for f in (torch.compile(function, backend=backend), function):
        y = f(weight, factors)
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("how", [{"mode": "max"}, {"scale_grad_by_freq": True}])
def test_other_bags_are_left_to_torch(how):
    def function(weight):
        rows, offsets = torch.tensor([0, 1, 1, 5]), torch.tensor([0, 3])
        return F.embedding_bag(rows, weight, offsets, **how)

    weight, found = x(7, 3).requires_grad_(), []
    run = torch.compile(function, backend=backend)
    for f in (run, function):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "PyTorch runs a graph.*embedding_bag")
            found.append(torch.autograd.grad(f(weight).square().sum(), weight))
    torch.testing.assert_close(*found)


def test_a_sum_of_sizes():
    """PyTorch writes a sum of three extents as a function of its own."""

    def function(a, b, c):
        d = torch.cat([a, b, c])
        return d, d * d.shape[0]

    run = torch.compile(function, backend=backend, dynamic=True)
    for n in (2, 3):
        given = x(n, 2), x(n + 1, 2), x(n + 4, 2)
        torch.testing.assert_close(run(*given), function(*given))


@pytest.mark.filterwarnings("ignore:.*fall back to the host.*DFT")
def test_real_transforms_of_batches():
    """The extent of a complex tensor is that of its parts. An inverse transform runs on the host,
    not in PyTorch.
    """

    def function(a):
        return torch.fft.irfft2(torch.fft.rfft2(a))

    run = torch.compile(function, backend=backend, dynamic=True)
    for n in (2, 3):
        torch.testing.assert_close(run(x(n, 4, 6)), function(x(n, 4, 6)))


def test_drawn_slopes():
    """Between the bounds, and one for numbers that are positive or NaN."""

    def function(a):
        return F.rrelu(a, 0.25, 0.5, training=True)

    a = torch.tensor([[NAN, 2.0, -1.0, -0.0, -4.0]]).repeat(64, 1).requires_grad_()
    y = torch.compile(function, backend=backend)(a)
    (slope,) = torch.autograd.grad(y.sum(), a)
    assert y[:, 0].isnan().all() and (slope[:, :2] == 1).all()
    low = slope[:, 2:].flatten()
    assert ((low >= 0.25) & (low <= 0.5)).all()
    assert len(low.unique()) > 150
    torch.testing.assert_close(y[:, 1:], (a * slope)[:, 1:])


def test_without_training_the_slope_is_the_mean_one():
    given = (x(3, 4),)
    program = torch.export.export(Function(lambda a: F.rrelu(a, 0.25, 0.5)), given)
    check(program, given, F.leaky_relu(*given, 0.375))
