"""Native code for one function, and errors in units in the last place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.targets.cpu.native import prepare
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Buffer, Call, const, var
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu.machine import CpuMachine

Array = np.ndarray[Any, Any]
LANES = 16


def compiled(
    function: str,
    dtype: DType,
    arity: int,
    n: int,
    *constants: float,
    lanes: int = LANES,
    machine: CpuMachine | None = None,
) -> Callable[..., Array]:
    """The function of `arity` arrays of n elements (a multiple of `lanes`), as a vectorized kernel.

    constants: arguments that follow the arrays.
    """
    inputs = [Buffer(f"x{k}", (n,), dtype) for k in range(arity)]
    output = Buffer("out", (n,), dtype)
    i, lane = var("i"), var("lane")
    index = i * lanes + lane
    arguments = (*(b[index] for b in inputs), *(const(c, dtype) for c in constants))
    store = Store(output, (index,), Call(function, arguments))
    body = loop(i, n // lanes, loop(lane, lanes, store, "vector"))
    run = prepare(
        Kernel(f"{function}_{dtype}", (*inputs, output), (output,), body), machine
    )

    def call(*arrays: Array) -> Array:
        result = np.empty(n, dtype.numpy)
        assert run(*arrays, result) == 0
        return result

    return call


def errors(got: Array, high: Array, low: Array | float = 0.0) -> Array:
    """Distance of `got` from high + low in units in the last place of its dtype.

    high: float64. Infinite where one of the two is NaN, or zero or infinite with another sign, or
    where one is infinite although the other is not within rounding of the largest number.
    """
    digits, least = (24, -149) if got.dtype == np.float32 else (53, -1074)
    with np.errstate(all="ignore"):
        wide = got.astype(np.float64)
        rounded = high.astype(got.dtype)
        exponent = np.maximum(np.frexp(high)[1] - digits, least)
        distance = np.abs((wide - high) - low)
        ulps = np.ldexp(np.ldexp(distance, -exponent // 2), -exponent - -exponent // 2)
        infinite = np.isinf(got) | np.isinf(rounded)
        ulps = np.where(
            infinite, np.where(_next_to_infinity(got, rounded), 1.0, np.inf), ulps
        )
        ulps = np.where(
            got == rounded, np.where(infinite, 0.0, np.minimum(ulps, 1.0)), ulps
        )
        ulps = np.where(np.signbit(got) != np.signbit(rounded), np.inf, ulps)
    both = np.isnan(got) & np.isnan(rounded)
    return np.where(
        both, 0.0, np.where(np.isnan(got) | np.isnan(rounded), np.inf, ulps)
    )


def _next_to_infinity(a: Array, b: Array) -> Any:
    """Whether one is infinite and the other infinite or the largest finite number."""
    largest = np.finfo(a.dtype).max
    return (np.abs(a) >= largest) & (np.abs(b) >= largest)


def strata(dtype: DType, each: int, seed: int = 0) -> Array:
    """Every exponent and sign with random mantissas, ordinary ranges, and special values."""
    rng = np.random.default_rng(seed)
    t = dtype.numpy.type
    unsigned, mantissa = (np.uint32, 23) if dtype.bits == 32 else (np.uint64, 52)
    exponents = np.arange(1 << (dtype.bits - mantissa), dtype=unsigned).repeat(each)
    fraction = rng.integers(0, 1 << mantissa, exponents.size, unsigned)
    every = ((exponents << unsigned(mantissa)) | fraction).view(t)
    ranges = [
        rng.uniform(-a, a, 40 * each)
        for a in (0.01, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0, 750.0)
    ]
    near_one = 1 + rng.uniform(-1, 1, 40 * each) * 10.0 ** rng.uniform(
        -16, -1, 40 * each
    )
    tiny, largest = np.finfo(t).smallest_subnormal, np.finfo(t).max
    values = [
        0.0,
        1.0,
        0.5,
        2.0,
        np.inf,
        np.nan,
        tiny,
        largest,
        np.finfo(t).tiny,
        0.25,
        3.0,
        10.0,
    ]
    limits = [
        88.7,
        88.73,
        89.0,
        103.9,
        104.1,
        127.0,
        128.0,
        149.0,
        709.7,
        709.79,
        710.5,
        745.1,
    ]
    halves = np.arange(1, 80) * (np.pi / 4)
    with np.errstate(over="ignore"):
        special = np.concatenate(
            [values, limits, halves, 2.0 ** np.arange(-60, 60)]
        ).astype(t)
        x = np.concatenate(
            [every, *ranges, near_one, special, -special], dtype=t, casting="unsafe"
        )
    return np.resize(x, -(-x.size // LANES) * LANES)
