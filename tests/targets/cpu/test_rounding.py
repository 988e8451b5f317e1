"""Quantization in native code against what it says: ties, their neighbors, what is not a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer, Cast, Expr, call, var
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.llvm.emit_rounding import factors
from tilewright.targets.registry import target

BYTES = [dtypes.int8, dtypes.uint8]
DIVISORS = [1.0, 1 / 32, 0.03584708645939827, 1.7e-5, 3.0, 12345.678]
SPECIAL = [
    0.0,
    -0.0,
    np.nan,
    np.inf,
    -np.inf,
    3e38,
    -3e38,
    1e-42,
    -1e-42,
    2.0**31,
    -(2.0**31),
]


def near_ties(divisor: float, most: int) -> np.ndarray[Any, Any]:
    """Quotients of a half and the three floats on each side of it, and special values."""
    halves = (np.arange(-most, most) + 0.5) * np.float32(divisor)
    found = [halves.astype(np.float32)]
    for end in (-np.inf, np.inf):
        x = found[0]
        for _ in range(3):
            x = np.nextafter(x, np.float32(end))
            found.append(x)
    x = np.concatenate([*found, np.array(SPECIAL, np.float32)])
    return np.resize(x, -(-x.size // 64) * 64)


def check(x: np.ndarray[Any, Any], result: Expr, lanes: int, level: str | None) -> None:
    """Native code of the function of `a` in loops of `lanes`, bit by bit as the interpreter's."""
    if level is not None and not target("cpu", level).runs_here:
        pytest.skip(f"this processor has not the instructions of {level}")
    a = Buffer("a", x.shape, dtypes.float32)
    out = Buffer("out", x.shape, result.dtype)
    i, lane = var("i"), var("lane")
    at = i * lanes + lane
    store = Store(out, (at,), substitute(result, {A: a[at]}))
    body = loop(i, x.size // lanes, loop(lane, lanes, store, "vector"))
    arrays = {a: x, out: np.zeros(x.shape, result.dtype.numpy)}
    on = host() if level is None else machine(level)
    assert (
        run_native(
            Kernel("k", (a, out), (out,), body), arrays, contract=False, machine=on
        )
        == 0
    )
    with np.errstate(all="ignore"):
        want = np.asarray(evaluate(result, {A: x}))
    got = arrays[out]
    if result.dtype.is_float:
        got, want = (v.astype(np.float32).view(np.uint32) for v in (got, want))
    np.testing.assert_array_equal(got, want)


A = var("a", dtypes.float32)


def quantized(divisor: float, offset: int, target: DType) -> Expr:
    ratio = A if divisor == 1 else A / divisor
    total = call("round_even", ratio)
    return Cast(total + float(offset) if offset else total, target)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("level", [None, "x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("lanes", [16, 64])
@pytest.mark.parametrize("target", BYTES, ids=str)
@pytest.mark.parametrize("divisor", DIVISORS)
def test_bytes(divisor: float, target: DType, lanes: int, level: str | None) -> None:
    for offset in (0, 4, -9, int(target.min), 128):
        check(near_ties(divisor, 400), quantized(divisor, offset, target), lanes, level)


@pytest.mark.parametrize("target", [dtypes.int16, dtypes.uint16], ids=str)
@pytest.mark.parametrize("divisor", [1 / 32, 0.0007])
def test_sixteen_bits(divisor: float, target: DType) -> None:
    for offset in (0, 777):
        check(near_ties(divisor, 70_000), quantized(divisor, offset, target), 16, None)


@pytest.mark.parametrize("target", BYTES, ids=str)
def test_only_signed_bytes_of_a_register_have_an_upper_clamp(target: DType) -> None:
    """What is out of range is converted to 2**31: more than any unsigned byte, the least signed."""
    a, out = Buffer("a", (16,), dtypes.float32), Buffer("out", (16,), target)
    lane = var("lane")
    result = substitute(quantized(0.037, 9, target), {A: a[lane]})
    body = loop(lane, 16, Store(out, (lane,), result), "vector")
    text = assembly(Kernel("k", (a, out), (out,), body), machine("x86-64-v4"))
    assert "vmaxps" in text
    assert ("vminps" in text, "vpmovusdb" in text) == (
        (True, False) if target.min else (False, True)
    )


@pytest.mark.parametrize("level", [None, "x86-64-v3"])
@pytest.mark.parametrize("target", BYTES, ids=str)
def test_dequantized_at_once(target: DType, level: str | None) -> None:
    """Neither a number that is not one nor a negative zero is seen behind the integer."""
    for offset, less in ((0, 0), (9, 9), (128, 128), (4, 7)):
        whole = Cast(quantized(0.037, offset, target), dtypes.float32)
        for result in (whole, whole - float(less), (whole - float(less)) * 0.0246):
            check(near_ties(0.037, 300), result, 16, level)


def test_division_is_left_where_a_quotient_is_too_near_to_the_middle_of_two_floats() -> (
    None
):
    rng = np.random.default_rng(0)
    drawn = rng.uniform(0.5, 1, 20_000).astype(np.float32)
    left = [float(c) for c in drawn if factors(float(c), 383) is None]
    assert 0 < len(left) < len(drawn) // 100
    for c in left[:3]:
        check(near_ties(c, 400), quantized(c, 0, dtypes.uint8), 16, None)
    for c in (0.0, -0.5, float("inf"), float("nan"), 2.0**100, 2.0**-100):
        assert factors(c, 383) is None
