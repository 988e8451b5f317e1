"""Operators that our own decompositions and rules keep from PyTorch, beside its kernels.

Bit for bit where they only move or count bits.
"""

import math
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

T = torch.tensor
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


@pytest.mark.parametrize("shape", [(3, 4), (7,), (2, 1, 3), (), (0, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_the_first_places_that_are_not_zero(shape, dtype):
    """Fewer than there are, and more, which are filled."""

    def function(a):
        parts = [torch.nonzero_static(a, size=n) for n in (0, 2, 20)]
        return *parts, torch.nonzero_static(a, size=9, fill_value=-7)

    a = (torch.arange(max(math.prod(shape), 1)) % 3).to(dtype)[: math.prod(shape)]
    a = a.reshape(shape)
    found = torch.compile(function, backend=backend)(a)
    for got, want in zip(found, function(a), strict=True):
        assert torch.equal(got, want)


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
    "maxima": {"mode": "max"},
    "maxima, some skipped": {"mode": "max", "padding_idx": 1},
    "maxima, all offsets": {"mode": "max", "include_last_offset": True},
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


def test_bags_by_frequency_are_left_to_torch():
    def function(weight):
        rows, offsets = torch.tensor([0, 1, 1, 5]), torch.tensor([0, 3])
        return F.embedding_bag(rows, weight, offsets, scale_grad_by_freq=True)

    weight, found = x(7, 3).requires_grad_(), []
    run = torch.compile(function, backend=backend)
    for f in (run, function):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "PyTorch runs a graph.*embedding_bag")
            found.append(torch.autograd.grad(f(weight).square().sum(), weight))
    torch.testing.assert_close(*found)


def trained(function, *given):
    """Results and gradients of floats, compiled and of PyTorch, which agree."""
    found = []
    for f in (torch.compile(function, backend=backend), function):
        leaves = [
            v.detach().clone().requires_grad_(v.is_floating_point()) for v in given
        ]
        y = f(*leaves)
        weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
        wanted = [v for v in leaves if v.requires_grad]
        gradients = (
            torch.autograd.grad((y * weights).sum(), wanted) if y.requires_grad else ()
        )
        found.append([y, *gradients])
    torch.testing.assert_close(*found, equal_nan=True)
    return found[0]


@pytest.mark.parametrize("initial", [None, 1.5])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments_of_rows_are_reduced(reduce, initial):
    """The second one is empty; equal maxima share the gradient. Of products it is PyTorch's."""
    counts = torch.tensor([2, 0, 1, 3])
    rows = torch.tensor([[1.0, 2], [3, 2], [-1, 5], [0.5, 0.5], [0.5, 7], [-2, 7]])

    def function(a):
        found = torch.segment_reduce(a, reduce, lengths=counts, initial=initial)
        return found.nan_to_num(0, 0, 0)

    with warnings.catch_warnings():
        if reduce == "prod":
            warnings.filterwarnings("ignore", "PyTorch runs a graph.*segment_reduce_b")
        trained(function, rows)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_rows_that_are_no_numbers_share_the_gradient(reduce):
    counts, rows = T([3, 2]), T([1.0, NAN, NAN, 2.0, 3.0])

    def function(a):
        return torch.segment_reduce(a, reduce, lengths=counts)

    trained(function, rows)


def test_rows_behind_the_last_segment_are_in_none():
    def function(a):
        count = torch.tensor([1, 2])
        return torch.segment_reduce(a, "max", lengths=count, unsafe=True)

    trained(function, x(5, 3))
    trained(lambda a: torch.segment_reduce(a, "sum", offsets=T([0, 1, 1, 4])), x(4))


@pytest.mark.parametrize(("counts", "why"), [([2, 2], "sum to"), ([-1, 6], "negative")])
def test_segments_have_all_rows(counts, why):
    """As PyTorch's kernel says, which checks neither on request."""

    def function(a, lengths, unsafe):
        return torch.segment_reduce(a, "sum", lengths=lengths, unsafe=unsafe)

    fast = torch.compile(function, backend=backend)
    torch.testing.assert_close(
        fast(x(5), T([2, 3]), False), function(x(5), T([2, 3]), False)
    )
    for each in function, fast:
        with pytest.raises(RuntimeError, match=why):
            each(x(5), T(counts), False)
    if counts == [2, 2]:
        torch.testing.assert_close(
            fast(x(5), T(counts), True), function(x(5), T(counts), True)
        )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("how", [(), (1.5, 2.0, -3.0)])
def test_complex_specials_become_numbers(dtype, how):
    """Each part by itself."""
    parts = torch.tensor([0.5, NAN, INF, -INF], dtype=dtype.to_real())
    z = torch.complex(*torch.meshgrid(parts, parts, indexing="ij"))
    found = torch.compile(torch.nan_to_num, backend=backend)(z, *how)
    torch.testing.assert_close(found, z.nan_to_num(*how), rtol=0, atol=0)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_triangular_systems_by_their_older_name(upper, transpose):
    def function(a, b):
        return torch.triangular_solve(b, a, upper, transpose, upper == transpose)[0]

    trained(function, x(2, 3, 3) + 3 * torch.eye(3), x(2, 3, 4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_triangles_and_sides_are_of_the_batches_of_both(dynamic):
    """The matrices are a result, too, one for each solution."""
    run = torch.compile(torch.triangular_solve, backend=backend, dynamic=dynamic)
    for sides, matrices in (((2, 4, 3), ()), ((4, 3), (2,)), ((2, 1, 4, 3), (3,))):
        a = (x(4, 4) + 3 * torch.eye(4)).expand(*matrices, 4, 4).clone()
        b = x(*sides)
        want = torch.triangular_solve(b, a)
        torch.testing.assert_close(tuple(run(b, a)), tuple(want))


def test_windows_and_frequencies_are_constants():
    def windows(a):
        held = torch.bartlett_window(5), torch.hamming_window(5, False, 0.5, 0.4)
        others = torch.kaiser_window(5, False, 3.0), torch.fft.fftfreq(5, 0.5)
        short = torch.hamming_window(5, dtype=torch.bfloat16)
        return torch.stack([*held, *others, torch.fft.rfftfreq(8)]) * a, short

    given = (x(5),)
    program = torch.export.export(Function(windows), given)
    check(program, given, windows(*given))


STEPS = torch.tensor([0.1, 0.2, 0.3])
ZEROS = torch.tensor([0, 3, -1], dtype=torch.int32)
# Below, between and above the bounds; ties, which an odd zero point rounds otherwise; NaN.
GRID = torch.tensor([[-9.0, 0.26, 9.0], [0.05, 0.1, 0.15], [0.449, NAN, -0.45]])
QUANTIZED = {
    "a number": lambda a: torch.fake_quantize_per_tensor_affine(a, 0.1, 3, 0, 15),
    "a tensor": lambda a: torch.fake_quantize_per_tensor_affine(
        a, STEPS[:1], ZEROS[1:2], 0, 15
    ),
    "a tensor without axes": lambda a: torch.fake_quantize_per_tensor_affine(
        a, STEPS[0], ZEROS[1], 0, 15
    ),
    "channels": lambda a: torch.fake_quantize_per_channel_affine(
        a, STEPS, ZEROS, 1, -8, 7
    ),
    "float zeros": lambda a: torch.fake_quantize_per_channel_affine(
        a, STEPS, ZEROS + 0.5, 0, -8, 7
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    # PyTorch rounds zero points that are floats to float16.
    [*((name, torch.float32) for name in QUANTIZED)]
    + [
        (n, t) for n in ("a number", "channels") for t in (torch.float16, torch.float64)
    ],
)
def test_simulated_quantization(name, dtype):
    """To the last bit: of float64, ties are others, and the results are multiples in float32."""
    found, gradient = trained(QUANTIZED[name], GRID.to(dtype))
    assert torch.equal(found.nan_to_num(), QUANTIZED[name](GRID.to(dtype)).nan_to_num())
    assert len(found.unique()) > 4
    assert 0 < (gradient != 0).sum() < 9


def test_simulated_quantization_that_is_off():
    def function(a, on):
        operator = A._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        return torch.cat(operator(a, STEPS[:1], ZEROS[:1], on, 0, 15))

    run = torch.compile(function, backend=backend)
    for on in (torch.tensor([0]), torch.tensor([1])):
        wanted = function(GRID, on)
        torch.testing.assert_close(run(GRID, on), wanted, equal_nan=True)


@pytest.mark.parametrize("axis", [None, 1], ids=["one scale", "one per channel"])
def test_learned_quantization(axis):
    """The zero points are between integers, one of them outside of the bounds."""

    def function(a, scale, zero):
        how = () if axis is None else (axis,)
        kind = "tensor" if axis is None else "channel"
        operator = getattr(torch, f"_fake_quantize_learnable_per_{kind}_affine")
        return operator(a, scale, zero, *how, 0, 15, 0.7)

    count = 1 if axis is None else 3
    trained(
        function,
        GRID.nan_to_num(0.3),
        STEPS[:count],
        torch.tensor([2.6, -0.8, 5.0])[:count],
    )


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, INF])
def test_gradients_of_distances(p):
    """Also where a row is the same, and where an entry of two rows is."""
    a, b = x(2, 5, 3), x(2, 4, 3, seed=1)
    b[0, 0] = a[0, 1]
    b[1, 1, 2] = a[1, 0, 2]
    trained(lambda a, b: torch.cdist(a, b, p=p), a, b)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, INF])
def test_gradients_of_distances_among_rows(p):
    a = x(5, 3)
    a[3] = a[1]
    trained(lambda a: F.pdist(a, p), a)


BORDERS = {
    "rows": (x(2, 3, 5), (2, 1)),
    "planes": (x(2, 3, 4, 5), (1, 2, 3, 0)),
    "cut off": (x(3, 4, 5), (-1, 2, 1, -2)),
    "volumes": (x(2, 3, 2, 3), (1, 1, 0, 2, 2, 1)),
}


@pytest.mark.parametrize("name", BORDERS)
def test_gradients_of_repeated_borders(name):
    a, padding = BORDERS[name]
    trained(lambda a: F.pad(a, padding, mode="replicate"), a)


POOLED = {
    "maxima to a size": (lambda a: F.adaptive_max_pool2d(a, (3, 2)), x(2, 3, 7, 5)),
    "maxima of rows": (lambda a: F.adaptive_max_pool1d(a, 3), x(2, 3, 7)),
    "maxima of volumes": (lambda a: F.adaptive_max_pool3d(a, 2), x(2, 3, 4, 5)),
    "resized smoothly": (
        lambda a: F.interpolate(a, size=(3, 4), mode="bilinear", antialias=True),
        x(1, 2, 7, 5),
    ),
    "resized by cubes": (
        lambda a: F.interpolate(a, size=(3, 9), mode="bicubic", antialias=True),
        x(1, 2, 7, 5),
    ),
    "the nearest of rows": (
        lambda a: F.interpolate(a, size=11, mode="nearest-exact"),
        x(1, 2, 7),
    ),
    "the nearest of volumes": (
        lambda a: F.interpolate(a, size=(3, 2, 5), mode="nearest-exact"),
        x(1, 2, 2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", POOLED)
def test_gradients_of_pooled_and_resized_tensors(name):
    trained(*POOLED[name])


def test_products_of_reflections():
    """All of them, fewer than there are columns, and those that are no reflections."""
    stored, taus = torch.geqrf(x(2, 5, 3))
    for weights in (taus, taus[:, :2], x(2, 3)):
        trained(torch.linalg.householder_product, stored, weights)
    run = torch.compile(torch.linalg.householder_product, backend=backend)
    torch.testing.assert_close(run(x(3, 2), x(0)), torch.eye(3, 2))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_a_matrix_times_reflections(left, transpose):
    stored, taus = torch.geqrf(x(5, 3))
    other = x(5, 2) if left else x(2, 5)
    trained(lambda *v: torch.ormqr(*v, left, transpose), stored, taus, other)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
def test_reductions_along_an_index(reduce, kept):
    index = torch.tensor([0, 2, 1, 1, 4])

    def function(a, b):
        return a.index_reduce(1, index, b, reduce, include_self=kept)

    trained(function, x(3, 6), x(3, 5, seed=1))


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("given", [(x(3), x(2)), (x(1)[0], x(2)[1])])
def test_reductions_along_a_short_index(given):
    """An index of int32, and one of what has no axes."""
    index = torch.zeros(given[1].numel(), dtype=torch.int32)
    run = torch.compile(
        lambda a, b: a.index_reduce(0, index, b, "amax"), backend=backend
    )
    a, b = given
    torch.testing.assert_close(run(a, b), a.index_reduce(0, index, b, "amax"))


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int32, torch.int64], ids=str
)
def test_divisors_and_multiples(dtype):
    """PyTorch's own multiples of the least int32 and int64 end the process."""
    about = torch.iinfo(dtype)
    numbers = [0, 1, 12, 18, 35, 97, about.min + 1, about.max, about.min]
    a = torch.tensor(numbers, dtype=dtype)
    for function, b in ((torch.gcd, a), (torch.lcm, a[:-1])):
        run = torch.compile(function, backend=backend)
        given = b[:, None], b
        torch.testing.assert_close(run(*given), function(*given))
        empty = b[:0], b[:1]
        torch.testing.assert_close(run(*empty), function(*empty))


@pytest.mark.parametrize("function", [torch.gcd, torch.lcm], ids=["gcd", "lcm"])
def test_divisors_of_two_types_have_the_wider_one(function):
    a = torch.tensor([12, -18, 100], dtype=torch.int8)
    b = torch.tensor([8, 300, 75000])
    run = torch.compile(function, backend=backend)
    for given in ((a, b), (b, a)):
        found = run(*given)
        assert torch.equal(found, function(*given)) and found.dtype is torch.int64


def test_a_sum_of_sizes():
    """PyTorch writes a sum of three extents as a function of its own."""

    def function(a, b, c):
        d = torch.cat([a, b, c])
        return d, d * d.shape[0]

    run = torch.compile(function, backend=backend, dynamic=True)
    for n in (2, 3):
        given = x(n, 2), x(n + 1, 2), x(n + 4, 2)
        torch.testing.assert_close(run(*given), function(*given))


def inverse_transforms(a):
    """Of halves, of several axes, of other lengths, and of all numbers."""
    half = torch.fft.rfft2(a)
    whole = torch.fft.ifft2(torch.fft.fft(a), norm="ortho")
    back = torch.fft.irfft(half, n=7, norm="forward"), torch.fft.irfft(half, n=1)
    return torch.fft.irfft2(half * (1 + 0.5j)), *back, whole.real, whole.imag


def test_inverse_transforms_are_native():
    """A warning says what falls back to the host: it is an error. So are their gradients."""
    warnings.simplefilter("error", TilewrightWarning)
    run = torch.compile(inverse_transforms, backend=backend, dynamic=True)
    for n in (2, 3):
        found = []
        for f in (run, inverse_transforms):
            a = x(n, 4, 6).requires_grad_()
            parts = f(a)
            loss = sum(p.square().sum() for p in parts)
            found.append([*parts, *torch.autograd.grad(loss, a)])
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


def transforms_of_open_lengths(a):
    """Of the axis whose extent is not known: forward and back, and divided in each way."""
    whole = torch.fft.fft2(a, norm="ortho")
    half = torch.fft.rfft(a, n=2 * a.shape[0], dim=0, norm="forward")
    back = torch.fft.irfft(half, n=2 * a.shape[0], dim=0)
    mean = torch.fft.ifft(half, dim=0)
    odd = torch.fft.irfft2(half, s=(a.shape[1], a.shape[0]), dim=(1, 0), norm="ortho")
    return whole.real, whole.imag, back, mean.real, mean.imag, odd


def test_transforms_of_open_lengths():
    """Every length has its own matrices. So have the gradients."""
    run = torch.compile(transforms_of_open_lengths, backend=backend, dynamic=True)
    for n in (5, 8):
        found = []
        for f in (run, transforms_of_open_lengths):
            a = x(n, 4).requires_grad_()
            parts = f(a)
            loss = sum(p.square().sum() for p in parts)
            found.append([*parts, *torch.autograd.grad(loss, a)])
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_zeta(dtype):
    """Of whole and other powers, at poles, below and above zero, and where terms vanish."""
    s = T([1.5, 2, 3, 4, 2.5, 1, 0.5, 7, 60, 1.0001, 500], dtype=dtype)[:, None]
    at = T([0.5, 1, 2, -0.5, -1.5, -2, 0, -0.0, 1e6, -7.25, 20, 1e-3, 3.7], dtype=dtype)
    found = torch.compile(torch.special.zeta, backend=backend)(s, at)
    exact = {torch.float64: 1e-11, torch.float32: 1e-6}[dtype]
    want = torch.special.zeta(s, at)
    torch.testing.assert_close(found, want, rtol=exact, atol=0, equal_nan=True)
    limits = T([1e30, 60.0, 2.0]), T([2.0, 3e38, INF])
    large = torch.compile(torch.special.zeta, backend=backend)(*limits)
    assert torch.equal(large, torch.zeros(3))


@pytest.mark.parametrize("order", [2.0, 1.0, INF, 0.5])
def test_rows_of_embeddings_are_shortened_where_they_are_read(order):
    """Those with a greater norm, once if they are read twice; the table keeps the change. Other
    rows keep their bits, among them one of exactly the norm, and one with NaN."""

    def read(places, weight):
        return F.embedding(places, weight, max_norm=2.0, norm_type=order)

    weight = torch.randn(8, 4) * 3
    weight[1] = T([2.0, 0, 0, 0])
    weight[2, 0] = NAN
    weight[3] *= 1e-3
    places = T([[0, 1, 0], [2, 3, 5]])
    tables = weight.clone(), weight.clone()
    found = torch.compile(read, backend=backend)(places, tables[0])
    torch.testing.assert_close(found, read(places, tables[1]), equal_nan=True)
    torch.testing.assert_close(*tables, equal_nan=True)
    kept = [1, 2, 3, 4, 6, 7]
    np.testing.assert_array_equal(
        bits(tables[0][kept].numpy()), bits(weight[kept].numpy())
    )
