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


def test_results_whose_extents_depend_on_the_data_run_natively():
    def function(a):
        kinds = torch.unique(a, return_inverse=True, return_counts=True)
        runs = torch.unique_consecutive(a, return_counts=True)
        return *kinds, *runs, torch.logcumsumexp(a.float(), 0)

    a = torch.tensor([7, 7, 1, 3, 3, 3, 1])
    for got, want in zip(compiled(function, a), function(a), strict=True):
        torch.testing.assert_close(got, want)
