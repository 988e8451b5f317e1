"""Histograms of ranges that depend on the elements, and cubic samples beyond the border, beside
PyTorch's kernels."""

import warnings

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tests.frontends.aten.tensors import x  # noqa: E402
from tests.frontends.test_aten import Function, check  # noqa: E402
from tilewright.base.errors import TilewrightWarning  # noqa: E402
from tilewright.driver.torch_backend import backend  # noqa: E402

T = torch.tensor
NAN, INF = float("nan"), float("inf")
ENDS = T([-1.0, 0.0, 0.5, 2.0])
# On ends, outside of all, and no number at all.
PLACED = T([-1.0, 0.0, 0.5, 2.0, -3.0, 3.0, NAN, -0.5, 1.0, 0.25, 2.0])


@pytest.fixture(autouse=True)
def fresh():
    """Nothing that another test captured, and no graph that PyTorch runs."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "PyTorch runs a graph", TilewrightWarning)
        yield


HISTOGRAMS = {
    "counts": (lambda a: torch.histc(a, 7), x(40, 2)),
    "counts in float64": (lambda a: torch.histc(a, 7), x(40).double()),
    "counts of equal elements": (lambda a: torch.histc(a, 4), torch.full((9,), 3.0)),
    "counts where the range is one number": (lambda a: torch.histc(a, 4, 2, 2), x(40)),
    "counts of the greatest": (lambda a: torch.histc(a, 3), T([0.0, 1, 1, 2, 3, 3])),
    "counts of nothing": (lambda a: torch.histc(a, 3), torch.zeros(0)),
    "parts": (lambda a: torch.histogram(a, 5), x(40)),
    "parts of a matrix of float64": (lambda a: torch.histogram(a, 6), x(8, 9).double()),
    "parts of equal elements": (lambda a: torch.histogram(a, 5), torch.ones(9)),
    "parts of nothing": (lambda a: torch.histogram(a, 5), torch.zeros(0)),
    "parts of a range": (
        lambda a: torch.histogram(a, 4, range=(-1.0, 2.0)),
        PLACED,
    ),
    "parts of an empty range": (
        lambda a: torch.histogram(a, 4, range=(1.0, 1.0)),
        PLACED,
    ),
    "density": (lambda a: torch.histogram(a, 4, density=True), x(50)),
    "given ends": (lambda a, e: torch.histogram(a, e), PLACED, ENDS),
    "weights": (
        lambda a, e, w: torch.histogram(a, e, weight=w),
        PLACED,
        ENDS,
        x(11).abs(),
    ),
    "weights and density": (
        lambda a, e, w: torch.histogram(a, e, weight=w, density=True),
        PLACED,
        ENDS,
        x(11).abs(),
    ),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histogram(name):
    function, *given = HISTOGRAMS[name]
    found = torch.compile(function, backend=backend)(*given)
    torch.testing.assert_close(found, function(*given))


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_module_with_a_histogram(name):
    """Rules come first, so that one of `aten.histc` must refuse what is decomposed."""
    function, *given = HISTOGRAMS[name]
    program = torch.export.export(Function(function), tuple(given))
    check(program, tuple(given), function(*given))


def test_two_uses_of_one_operator_of_which_one_is_decomposed():
    """The rule that refuses the first of each takes the second."""

    def function(a, image, grid):
        sampled = [
            F.grid_sample(image, grid, mode, "border", False)
            for mode in ("bicubic", "bilinear")
        ]
        return torch.histc(a, 5), torch.histc(a, 4, -1, 1), *sampled

    given = x(40), x(2, 3, 7, 5), 2 * x(2, 4, 6, 2, seed=1)
    program = torch.export.export(Function(function), given)
    check(program, given, function(*given))


@pytest.mark.parametrize("odd", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("function", [torch.histc, torch.histogram])
def test_a_range_without_bounds_is_an_error(function, odd):
    """As in PyTorch."""
    given = T([1.0, odd, 2.0])
    for f in (function, torch.compile(function, backend=backend)):
        with pytest.raises(RuntimeError, match="not finite"):
            f(given, 4)


@pytest.mark.parametrize("corners", [False, True])
def test_a_cubic_filter_that_reaches_beyond_the_border(corners):
    """PyTorch repeats the border under the filter; ONNX moves the filter to the border."""

    def function(a, grid):
        return F.grid_sample(a, grid, "bicubic", "border", corners)

    given = x(2, 3, 7, 5), 2 * x(2, 4, 6, 2, seed=1)
    program = torch.export.export(Function(function), given)
    check(program, given, function(*given))
    found = torch.compile(function, backend=backend)(*given)
    torch.testing.assert_close(found, function(*given), rtol=1e-5, atol=1e-5)
