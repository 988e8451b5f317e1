"""float64 functions against mpmath on strata of all exponents."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.targets.cpu.math.measure import Array, compiled, errors, strata
from tilewright.base.dtypes import float64
from tilewright.targets.llvm.math import EXPANSIONS, MAX_ULP

Exact = Callable[..., Any]

NAMES = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "pow": "power",
}
SPECIAL: dict[str, Exact] = {
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x, 2),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
}
UNARY = sorted(
    f for f, d in EXPANSIONS if d == "float64" and f not in ("pow", "arctan2")
)


def reference(function: str, *inputs: Array) -> tuple[Array, Array]:
    """The value as a sum of two float64: NumPy decides what is finite, mpmath the digits."""
    of_numpy = {"erf": np.vectorize(math.erf), "pow": np.power, "sigmoid": _sigmoid}
    rough = of_numpy.get(function, getattr(np, function, None))
    exact = SPECIAL.get(function, getattr(mpmath, NAMES.get(function, function), None))
    with np.errstate(all="ignore"):
        high = np.array(rough(*inputs))
    low = np.zeros_like(high)
    ordinary = np.logical_and.reduce(
        [np.isfinite(x) & (x != 0) for x in (high, *inputs)]
    )
    with mpmath.workprec(300):
        for i in np.flatnonzero(ordinary):
            value = mpmath.re(exact(*(mpmath.mpf(float(x[i])) for x in inputs)))
            high[i] = float(value)
            low[i] = float(value - mpmath.mpf(float(high[i])))
    return high, low


def _sigmoid(x: Array) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def check(function: str, *inputs: Array) -> None:
    got = compiled(function, float64, len(inputs), inputs[0].size)(*inputs)
    high, low = reference(function, *inputs)
    ulps = errors(got, high, low)
    worst = int(ulps.argmax())
    assert ulps[worst] <= MAX_ULP[function, "float64"], (
        f"{function}({', '.join(repr(x[worst]) for x in inputs)}) = {got[worst]!r}, "
        f"expected {high[worst]!r}: {ulps[worst]:.3f} ulp"
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("function", UNARY)
def test_strata(function: str) -> None:
    check(function, strata(float64, 2))


@pytest.mark.slow
@pytest.mark.parametrize("function", UNARY)
def test_more(function: str) -> None:
    check(function, strata(float64, 20, seed=1))


POINTS = [
    0.0,
    1.0,
    2.0,
    0.5,
    3.0,
    2.5,
    0.1,
    5e-324,
    1e300,
    2.0**53 - 1,
    2.0**53,
    math.inf,
    math.nan,
]


@pytest.mark.parametrize("function", ["pow", "arctan2"])
def test_two_arguments(function: str) -> None:
    rng = np.random.default_rng(0)
    special = np.array([s * v for v in POINTS for s in (1, -1)])
    grid = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    base = np.exp(rng.uniform(-700, 700, 1000))
    exponent = rng.uniform(-745, 745, 1000) / np.log(base)
    near = np.stack([rng.uniform(-3, 3, 1000), np.rint(rng.uniform(-60, 60, 1000))])
    both = np.concatenate([grid, [base, exponent], [exponent, base], near], axis=1)
    x, y = np.ascontiguousarray(both[:, : both.shape[1] // 16 * 16])
    check(function, x, y)
