"""Every operation on every dtype, compiled as scalars and vectors, against the interpreter."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import run_native
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.expr import nodes
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Bitcast,
    Buffer,
    Call,
    Cast,
    Expr,
    Select,
    Var,
    call,
    const,
    var,
)
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Kernel, Store, block, loop
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.llvm.expansions import register_expansion

FLOATS = [d for d in dtypes.ALL if d.is_float and d.name != "float8_e8m0fnu"]
INTEGERS = [d for d in dtypes.ALL if d.is_int]
EVERY = [*FLOATS, *INTEGERS, dtypes.bool_]
LANES = 16
FEW = "float32 float16 float8_e4m3fn float4_e2m1fn int64 int32 int8 int4 uint8 uint2"


def some(of: list[DType]) -> list[Any]:
    """The fast tests need one of each kind."""
    return [
        d if d.name in FEW.split() else pytest.param(d, marks=pytest.mark.slow)
        for d in of
    ]


def samples(dtype: DType, seed: int, n: int = 64) -> np.ndarray[Any, Any]:
    """Random and special values."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_int:
        lo, hi = int(dtype.min), int(dtype.max)
        x = rng.integers(lo, hi, n, np.uint64 if lo == 0 else np.int64, endpoint=True)
        x[: n // 2] = rng.integers(max(lo, -9), min(hi, 9), n // 2, endpoint=True)
        special = [0, 1, lo, hi, 2, lo, hi, 0]
        x[n - len(special) :] = np.roll(np.array(special, x.dtype), seed)
        return x.astype(dtype.numpy)
    if dtype.bits <= 8:
        return rng.integers(0, 1 << dtype.bits, n, np.uint8).view(dtype.numpy)
    x = rng.normal(size=n) * 10.0 ** rng.integers(-3, 4, n)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        float(dtype.max),
        1e-42,
        6e-8,
        2.5,
        -2.5,
    ]
    x[: len(special)] = np.roll(special, seed)
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy)


def check(
    results: list[Expr], inputs: dict[Var, np.ndarray[Any, Any]], **options: Any
) -> None:
    """Compile all results as one kernel, scalar and vector loop, and compare bit for bit."""
    n = next(iter(inputs.values())).size
    buffers = {v: Buffer(v.name, (n,), v.dtype) for v in inputs}
    outputs = [Buffer(f"out{k}", (n,), r.dtype) for k, r in enumerate(results)]
    with np.errstate(all="ignore"):
        expected = [np.broadcast_to(evaluate(r, inputs), (n,)) for r in results]
    for kind in ("serial", "vector"):
        i = var("i")
        env: dict[Any, Any] = {v: b[i] for v, b in buffers.items()}
        stores = [
            Store(o, (i,), substitute(r, env))
            for o, r in zip(outputs, results, strict=True)
        ]
        extent = n if kind == "serial" else LANES
        body = block(*stores)
        if kind == "vector":
            j, v = var("j"), var("v")
            body = loop(
                j,
                n // extent,
                loop(v, extent, substitute(body, {i: j * extent + v}), "vector"),
            )
        else:
            body = loop(i, n, body)
        kernel = Kernel("ops", (*buffers.values(), *outputs), tuple(outputs), body)
        arrays = {buffers[v]: np.ascontiguousarray(x) for v, x in inputs.items()}
        arrays |= {o: np.zeros(n, o.dtype.numpy) for o in outputs}
        assert run_native(kernel, arrays, contract=False, **options) == 0
        for r, o, want in zip(results, outputs, expected, strict=True):
            same(arrays[o], want, o.dtype, f"{kind} {r!r}", inputs)


def same(got: Any, want: Any, dtype: DType, what: str, inputs: Any) -> None:
    """Equal bits, any NaN for a NaN, either zero for Min and Max."""
    want = np.asarray(want).astype(dtype.numpy)
    if dtype.is_float:
        g, w = (np.asarray(x).astype(np.float64) for x in (got, want))
        bad = ~((g == w) | (np.isnan(g) & np.isnan(w)))
    else:
        bad = got != want
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        operands = {v.name: x[at] for v, x in inputs.items()}
        pytest.fail(f"{what} {dtype} at {operands}: got {got[at]}, expected {want[at]}")


ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Min, nodes.Max)
DIVISION = (nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Rem)
COMPARES = (nodes.Lt, nodes.Le, nodes.Eq, nodes.Ne)
BITS = (nodes.And, nodes.Or, nodes.Xor, nodes.Shl, nodes.Shr)


@pytest.mark.parametrize("dtype", some([*FLOATS, *INTEGERS]), ids=str)
def test_binary(dtype: DType) -> None:
    a, b = var("a", dtype), var("b", dtype)
    kinds = [*ARITHMETIC, *COMPARES, *DIVISION, *(BITS if dtype.is_int else ())]
    results: list[Expr] = [k(a, b) for k in kinds]
    check(results, {a: samples(dtype, 1), b: samples(dtype, 2)})


@pytest.mark.covering(1)
@pytest.mark.skipif(host().arch != "x86_64", reason="the levels are of x86-64")
@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.float16, dtypes.int8], ids=str
)
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_lower_levels(level: str, dtype: DType) -> None:
    """Older processors lack instructions, not operations."""
    a, b, c = (var(n, dtype) for n in "abc")
    results: list[Expr] = [k(a, b) for k in (*ARITHMETIC, *COMPARES, *DIVISION)]
    if dtype.is_float:
        results += [call(n, a) for n in ("floor", "round_even", "sqrt")]
    if dtype is dtypes.float32:
        results += [Cast(a, t) for t in EVERY]
    check(
        results,
        {v: samples(dtype, n) for n, v in enumerate((a, b, c))},
        machine=machine(level),
    )


@pytest.mark.parametrize("dtype", some(INTEGERS), ids=str)
def test_constant_divisors(dtype: DType) -> None:
    a = var("a", dtype)
    top = int(dtype.max)
    divisors = [
        d for d in (0, 1, 2, 3, 4, 7, 10, top, -1, -2, -3) if dtype.is_signed or d >= 0
    ]
    divisors = [d for d in divisors if int(dtype.min) <= d <= top]
    check(
        [k(a, const(d, dtype)) for k in DIVISION for d in divisors],
        {a: samples(dtype, 3)},
    )


def test_bool() -> None:
    a, b = var("a", dtypes.bool_), var("b", dtypes.bool_)
    kinds = (nodes.And, nodes.Or, nodes.Xor, nodes.Min, nodes.Max, *COMPARES)
    results: list[Expr] = [k(a, b) for k in kinds]
    check(
        [*results, nodes.Not(a)],
        {a: samples(dtypes.bool_, 1), b: samples(dtypes.bool_, 2)},
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_unary(dtype: DType) -> None:
    a, b = var("a", dtype), var("b", dtype)
    results: list[Expr] = [nodes.Neg(a), call("abs", a)]
    if dtype.is_float:
        names = "floor ceil trunc round_even sqrt isnan isinf".split()
        results += [call(n, a) for n in names] + [call("copysign", a, b)]
    else:
        results += [nodes.Not(a), call("popcount", a)]
    results.append(Select(nodes.Lt(a, b), a, b))
    check(results, {a: samples(dtype, 4), b: samples(dtype, 5)})


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("level", [None, "x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("lanes", [1, 3, 8, 12, 16, 24, 37])
def test_scaling_by_powers_of_two(dtype: DType, level: str | None, lanes: int) -> None:
    """Results that overflow or are subnormal are rounded once; infinities, NaN and zeros stay."""
    if level is not None and host().arch != "x86_64":
        pytest.skip("a level of another architecture")
    n, i, lane = 4 * lanes, var("i"), var("lane")
    x, p, out = (Buffer(name, (n,), dtype) for name in ("x", "p", "out"))
    at = i * lanes + lane
    store = Store(out, (at,), Call("ldexp", (x[at], p[at])))
    kernel = Kernel(
        "ldexp", (x, p, out), (out,), loop(i, 4, loop(lane, lanes, store, "vector"))
    )
    a = np.resize(samples(dtype, lanes), n)
    powers = np.random.default_rng(lanes).integers(-200, 200, n)
    powers[-2:] = -4096, 4096
    rest = 0.75 if dtype is dtypes.float32 else 0.0  # a power is rounded down
    arrays = {x: a, p: (powers + rest).astype(dtype.numpy), out: np.zeros_like(a)}
    assert run_native(kernel, arrays, machine=machine(level or "native")) == 0
    with np.errstate(all="ignore"):
        want = np.ldexp(a.astype(np.float32), powers).astype(dtype.numpy)
    np.testing.assert_array_equal(
        arrays[out].astype(np.float32), want.astype(np.float32)
    )


def test_scaling_of_float64_is_refused() -> None:
    a = var("a", dtypes.float64)
    with pytest.raises(UnsupportedError, match="ldexp has no native code for float64"):
        check([Call("ldexp", (a, a))], {a: samples(dtypes.float64, 1)})


@pytest.mark.sampled(5)
@pytest.mark.parametrize("source", EVERY, ids=str)
def test_casts(source: DType) -> None:
    a = var("a", source)
    results: list[Expr] = [Cast(a, target) for target in EVERY]
    results += [Bitcast(a, t) for t in EVERY if t.bits == source.bits and not t.is_bool]
    check(results, {a: samples(source, 6)})


@pytest.mark.parametrize("source", [dtypes.float32, dtypes.float64], ids=str)
def test_casts_of_floats_that_bounds_keep_in_range(source: DType) -> None:
    """No saturation is left, but what is not a number is 0; just out of range it saturates."""
    a = var("a", source)
    results: list[Expr] = []
    for target in (t for t in INTEGERS if t.bits <= 32):
        for low, high in ((0, 0), (target.min, target.max), (-1, target.max + 1)):
            most, least = const(float(high), source), const(float(low), source)
            results.append(Cast(nodes.Max(nodes.Min(a, most), least), target))
            results.append(Cast(nodes.Min(Call("abs", (a,)), most), target))
    check(results, {a: samples(source, 6)})


@pytest.mark.parametrize(
    "start", [-(1 << 31), -77, (1 << 31) - 96, (1 << 31) - 95, 1 << 40]
)
@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16], ids=str
)
def test_indices_as_floats(dtype: DType, start: int) -> None:
    """Whether they fit 32 bits or not."""
    out = Buffer("out", (6 * LANES,), dtype)
    i, lane = var("i"), var("lane")
    at = i * LANES + lane
    store = Store(out, (at,), Cast(at + start, dtype))
    kernel = Kernel(
        "count", (out,), (out,), loop(i, 6, loop(lane, LANES, store, "vector"))
    )
    arrays = {out: np.zeros(out.shape, dtype.numpy)}
    assert run_native(kernel, arrays) == 0
    want = np.arange(start, start + out.size).astype(np.float64).astype(dtype.numpy)
    np.testing.assert_array_equal(
        arrays[out].astype(np.float64), want.astype(np.float64)
    )


@pytest.mark.covering(1)  # each level, each offset
@pytest.mark.parametrize("level", [None, "x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("offset", [0, 128, -5])
def test_rounding_to_narrow_integers_is_one_conversion(
    offset: int, level: str | None
) -> None:
    """Ties to even before the offset, saturation after it, 0 for what is not a number."""
    a = var("a", dtypes.float32)
    x = samples(dtypes.float32, 7)
    ties = np.arange(-300, 300, dtype=np.float32)[: x.size // 2] + np.float32(0.5)
    x[-ties.size :] = ties
    x[:4] = np.nan, np.inf, -np.inf, 3e9
    total = call("round_even", a) + float(offset) if offset else call("round_even", a)
    results: list[Expr] = [Cast(total, t) for t in INTEGERS]
    if host().arch == "x86_64" or level is None:
        check(results, {a: x}, machine=host() if level is None else machine(level))


def test_roundings_at_halfway() -> None:
    """Values between two neighbors of each narrow format, approached from float32 and float64."""
    for target in (d for d in FLOATS if d.bits < 32):
        if target.bits == 16:
            codes = np.arange(0, 0x7C00, 37, np.uint16).view(target.numpy)
        else:
            codes = np.arange(0, 1 << (target.bits - 1), dtype=np.uint8).view(
                target.numpy
            )
        points = codes.astype(np.float64)
        points = np.sort(points[np.isfinite(points)])
        middle = (points[:-1] + points[1:]) / 2
        near = [
            middle,
            np.nextafter(middle, np.inf),
            np.nextafter(middle, -np.inf),
            -middle,
        ]
        x = np.concatenate(near)
        x = np.resize(x, -(-x.size // LANES) * LANES)
        f32, f64 = var("f", dtypes.float32), var("d", dtypes.float64)
        check([Cast(f32, target)], {f32: x.astype(np.float32)})
        if target.name == "float16":
            check([Cast(f64, target)], {f64: x})


def test_exponent_format_reads() -> None:
    a = var("a", dtypes.float8_e8m0fnu)
    codes = np.arange(256, dtype=np.uint8).view(dtypes.float8_e8m0fnu.numpy)
    check([Cast(a, dtypes.float32)], {a: codes})
    with pytest.raises(UnsupportedError, match="float8_e8m0fnu"):
        check([nodes.Add(a, a)], {a: codes})


def test_fma() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (var(n, dtypes.float32) for n in "abc")
    x, y = (rng.normal(size=64).astype(np.float32) for _ in range(2))
    # The sum cancels, so that only the rounding error of the product is left.
    check([call("fma", a, b, c)], {a: x, b: y, c: -(x * y)})
    if host().arch == "x86_64":
        z = (rng.normal(size=64) * 10.0 ** rng.integers(-9, 9, 64)).astype(np.float32)
        old = machine("x86-64-v2")
        check([call("fma", a, b, c)], {a: x, b: y, c: -(x * y)}, machine=old)
        check([call("fma", a, b, c)], {a: x, b: y, c: z}, machine=old)
    double, n = dtypes.float64, 64
    p, q, r, out = (Buffer(name, (n,), double) for name in ("p", "q", "r", "out"))
    i = var("i")
    body = loop(i, n, Store(out, (i,), call("fma", p[i], q[i], r[i])))
    x, y = x.astype(np.float64) / 3, y.astype(np.float64) / 7
    arrays = {p: x, q: y, r: -(x * y), out: np.zeros(n)}
    run_native(Kernel("k", (p, q, r, out), (out,), body), arrays)
    exact = [
        float(Fraction(u) * Fraction(v) - Fraction(u * v))
        for u, v in zip(x, y, strict=True)
    ]
    np.testing.assert_array_equal(arrays[out], exact)


def test_expansions() -> None:
    """A function of the table is replaced by its expression; narrow floats go through float32."""
    register_expansion("gamma", "float32", lambda x: x * x + 0.25)
    x, h = var("x", dtypes.float32), var("h", dtypes.float16)
    n = 32
    for v in (x, h):
        a, out = Buffer("a", (n,), v.dtype), Buffer("out", (n,), v.dtype)
        i = var("i")
        body = loop(i, n, Store(out, (i,), Call("gamma", (a[i],))), "vector")
        data = np.linspace(-2, 2, n).astype(v.dtype.numpy)
        arrays = {a: data, out: np.zeros_like(data)}
        run_native(Kernel("k", (a, out), (out,), body), arrays, contract=False)
        wide = data.astype(np.float32)
        np.testing.assert_array_equal(
            arrays[out], (wide * wide + 0.25).astype(data.dtype)
        )


def test_missing_function_is_named() -> None:
    a = Buffer("a", (4,), dtypes.int32)
    i = var("i")
    kernel = Kernel("k", (a,), (a,), loop(i, 4, Store(a, (i,), call("lgamma", a[i]))))
    with pytest.raises(UnsupportedError, match=r"lgamma.*int32"):
        run_native(kernel, {a: np.zeros(4, np.int32)})
