"""float32 functions against NumPy in float64: strata always, all 2**32 inputs in the slow test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.math.measure import Array, compiled, errors, strata
from tilewright.base.dtypes import float32
from tilewright.targets.cpu.machine import host
from tilewright.targets.llvm.math import AVX512, EXPANSIONS, MAX_ULP

CHUNK = 1 << 18


def _sigmoid(x: Array) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _erf(x: Array) -> Any:
    torch = pytest.importorskip("torch")
    return torch.special.erf(torch.from_numpy(x)).numpy()


SPECIAL: dict[str, Callable[[Array], Any]] = {"sigmoid": _sigmoid, "erf": _erf}
UNARY = sorted(
    f for f, d in EXPANSIONS if d == "float32" and f not in ("pow", "arctan2")
)
# Checked on all 2**32 inputs; the others on a sixteenth of them.
EXHAUSTIVE = ("cos", "erf", "exp", "log", "sigmoid", "sin", "tanh")


def reference(function: str, x: Array) -> Any:
    with np.errstate(all="ignore"):
        return SPECIAL.get(function, getattr(np, function, None))(x.astype(np.float64))


def check(function: str, *inputs: Array, got: Array, want: Array) -> None:
    ulps = errors(got, want)
    worst = int(ulps.argmax())
    assert ulps[worst] <= MAX_ULP[function, "float32"], (
        f"{function}({', '.join(repr(x[worst]) for x in inputs)}) = {got[worst]!r}, "
        f"expected {want[worst]!r}: {ulps[worst]:.3f} ulp"
    )


@pytest.mark.parametrize("function", UNARY)
def test_strata(function: str) -> None:
    x = strata(float32, 100)
    got = compiled(function, float32, 1, x.size)(x)
    check(function, x, got=got, want=reference(function, x))


@pytest.mark.parametrize("function", sorted(f for f, _ in AVX512))
def test_strata_without_avx512(function: str) -> None:
    machine = replace(
        host(), features=tuple(f for f in host().features if "avx512" not in f)
    )
    x = strata(float32, 100)
    got = compiled(function, float32, 1, x.size, machine=machine)(x)
    check(function, x, got=got, want=reference(function, x))


@pytest.mark.parametrize("lanes", [1, 3, 8, 17, 32, 40])
@pytest.mark.parametrize("function", sorted(f for f, _ in AVX512))
def test_vectors_of_any_lanes_agree(function: str, lanes: int) -> None:
    x = np.linspace(-6, 6, 12 * lanes, dtype=np.float32)
    got = compiled(function, float32, 1, x.size, lanes=lanes)(x)
    check(function, x, got=got, want=reference(function, x))


@pytest.mark.slow
@pytest.mark.parametrize("function", UNARY)
def test_all_inputs(function: str) -> None:
    f = compiled(function, float32, 1, CHUNK)
    step = 1 if function in EXHAUSTIVE else 16
    first = np.arange(CHUNK, dtype=np.uint64) * np.uint64(step)
    for n in range((1 << 32) // (CHUNK * step)):
        offset = np.uint64(n * CHUNK * step + n % step)
        x = (first + offset).astype(np.uint32).view(np.float32)
        got, want = f(x), reference(function, x)
        with np.errstate(all="ignore"):
            steps = np.abs(got.view(np.int32) - want.astype(np.float32).view(np.int32))
        # The neighbor of the rounded value is within 1.5 ulp; NaN and signs show as many steps.
        far = np.flatnonzero((steps > 1) | (steps < 0))
        if far.size:
            check(function, x[far], got=got[far], want=want[far])


POINTS = [
    0.0,
    1.0,
    2.0,
    0.5,
    3.0,
    2.5,
    0.1,
    1e-45,
    1e30,
    16777215.0,
    16777216.0,
    math.inf,
    math.nan,
]


@pytest.mark.parametrize("function", ["pow", "arctan2"])
def test_two_arguments(function: str) -> None:
    rng = np.random.default_rng(0)
    special = np.array([s * v for v in POINTS for s in (1, -1)], np.float32)
    grid = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    base = np.exp(rng.uniform(-90, 88, 30000))
    exponent = rng.uniform(-105, 105, 30000) / np.log(base)
    near = np.stack([rng.uniform(-3, 3, 30000), np.rint(rng.uniform(-60, 60, 30000))])
    both = np.concatenate([grid, [base, exponent], [exponent, base], near], axis=1)
    x, y = both[:, : both.shape[1] // 16 * 16].astype(np.float32)
    got = compiled(function, float32, 2, x.size)(x, y)
    name = {"pow": "power"}.get(function, function)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x.astype(np.float64), y.astype(np.float64))
    check(function, x, y, got=got, want=want)


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
def test_constant_exponent(exponent: float) -> None:
    x = strata(float32, 4)
    got = compiled("pow", float32, 1, x.size, exponent)(x)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), np.full(x.size, exponent))
    check("pow", x, got=got, want=want)


def test_bounded_by_one() -> None:
    """Results never leave the interval that the mathematical function has."""
    x = strata(float32, 64)
    x = x[~np.isnan(x)]
    x = x[: x.size // 16 * 16]
    for function in ("erf", "tanh", "sigmoid", "sin", "cos"):
        finite = (
            np.where(np.isinf(x), np.float32(1), x) if function in ("sin", "cos") else x
        )
        assert np.abs(compiled(function, float32, 1, x.size)(finite)).max() <= 1
