"""Functions and counts of PyTorch, compiled: against exact values, and with open extents."""

import mpmath
import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")

EXACT = {
    "i0e": lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x),
    "i1e": lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x),
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
}
SECOND = {
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
    "modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "modified_bessel_k1": lambda x: mpmath.besselk(1, x),
    "scaled_modified_bessel_k0": lambda x: mpmath.exp(x) * mpmath.besselk(0, x),
    "scaled_modified_bessel_k1": lambda x: mpmath.exp(x) * mpmath.besselk(1, x),
}
# Both sides of the borders between two series, zeros of the functions, and far away. PyTorch 2.13's
# own J0 is off by 2.6e-7 at 5.25.
POINTS = np.array(
    [-1e-9, 0.3, 2.404825557695773, -3.83, 5.25, 7.99, 8, 8.01, -17, 60, 300], float
)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def compiled(function, *inputs):
    return tw.compile(Function(function), inputs, threads=1, cache=False)(*inputs)


@pytest.mark.parametrize("name", EXACT)
def test_bessel_functions_are_near_exact_ones(name):
    found = compiled(getattr(torch.special, name), torch.from_numpy(POINTS))
    with mpmath.workdps(40):
        want = np.array([float(EXACT[name](mpmath.mpf(float(v)))) for v in POINTS])
    if "bessel" in name:  # near zeros, the error is that of the argument
        np.testing.assert_allclose(found, want, rtol=1e-14, atol=2e-15)
    else:
        np.testing.assert_allclose(found, want, rtol=4e-15)


@pytest.mark.parametrize("name", SECOND)
def test_bessel_functions_of_the_second_kind_are_near_exact_ones(name):
    """Also beside the border of the modified ones, at zeros of the others, and where one grows."""
    more = [1e-300, 1e-20, 1.99, 2, 2.01, 0.8935769662791675, 2.197141326031017]
    points = np.concatenate([np.abs(POINTS), more])
    found = compiled(getattr(torch.special, name), torch.from_numpy(points))
    with mpmath.workdps(40):
        want = np.array([float(SECOND[name](mpmath.mpf(float(v)))) for v in points])
    if name.startswith("bessel"):
        np.testing.assert_allclose(found, want, rtol=1e-14, atol=2e-15)
    else:  # exp(-300) itself is off by the rounding of its argument
        np.testing.assert_allclose(found, want, rtol=1e-14)


def test_results_whose_extents_depend_on_the_data_run_natively():
    def function(a):
        kinds = torch.unique(a, return_inverse=True, return_counts=True)
        runs = torch.unique_consecutive(a, return_counts=True)
        return *kinds, *runs, torch.logcumsumexp(a.float(), 0)

    a = torch.tensor([7, 7, 1, 3, 3, 3, 1])
    for got, want in zip(compiled(function, a), function(a), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_running_sums_of_short_floats_are_kept_in_float32(dtype):
    """Rounded at each step, they would stop to grow."""
    a = torch.zeros(400, dtype=getattr(torch, dtype))
    found = compiled(lambda a: torch.logcumsumexp(a, 0), a)
    want = torch.arange(1, 401, dtype=torch.float64).log()
    torch.testing.assert_close(found, want.to(found.dtype), rtol=2**-8, atol=0)


def test_distinct_rows_of_bfloat16():
    a = torch.tensor([[2.0, 1.0], [-1.0, 3.0], [2.0, 1.0]], dtype=torch.bfloat16)

    def function(a):
        return torch.unique(a, dim=0, return_inverse=True, return_counts=True)

    for got, want in zip(compiled(function, a), function(a), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["i0", "i1"])
def test_modified_bessel_functions_train(name):
    """Also in steps compiled here; far out they overflow as PyTorch's do."""
    function = getattr(torch.special, name)
    far = torch.tensor([-torch.inf, -2000.0, -700.0, 700.0, 2000.0, torch.nan]).double()
    torch.testing.assert_close(
        compiled(function, far), function(far), rtol=1e-12, atol=0, equal_nan=True
    )

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([-8.5, -1.0, 0.5, 3.0]))

        def forward(self, x):
            return function(self.w) * x

    model, x = Model(), torch.tensor([0.01, 1, 2, 0.1])
    step = tw.compile_training_step(
        model, "mean_squared_error", tw.optim.SGD(1.0), (x,), threads=1, cache=False
    )
    step.step(x, torch.ones(4))
    ((model(x) - 1) ** 2).mean().backward()
    want = model.w - model.w.grad
    np.testing.assert_allclose(step.parameters["w"], want.detach(), rtol=1e-5)
