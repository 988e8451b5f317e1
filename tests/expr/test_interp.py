"""The expression interpreter against plain Python, dtype by dtype."""

from __future__ import annotations

import math
import operator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes as d
from tilewright.base.errors import ExecutionError
from tilewright.expr import nodes as n
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Bitcast, Buffer, Call, Cast, Select, const, var

INTS = [t for t in d.ALL if t.is_int]


def wrapped(value: int, t: d.DType) -> int:
    low = value & ((1 << t.bits) - 1)
    return low - (1 << t.bits) if t.is_signed and low >> (t.bits - 1) else low


def truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def shifted_right(a: int, b: int) -> int:
    return a >> min(b, 64)


PYTHON = {
    n.Add: operator.add,
    n.Sub: operator.sub,
    n.Mul: operator.mul,
    n.Div: lambda a, b: truncated(a, b) if b else 0,
    n.FloorDiv: lambda a, b: a // b if b else 0,
    n.Mod: lambda a, b: a % b if b else 0,
    n.Rem: lambda a, b: a - truncated(a, b) * b if b else 0,
    n.Min: min,
    n.Max: max,
    n.And: operator.and_,
    n.Or: operator.or_,
    n.Xor: operator.xor,
}


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(INTS), st.sampled_from(list(PYTHON)))
def test_integers_wrap_and_division_is_total(data, t: d.DType, node) -> None:
    numbers = st.integers(int(t.min), int(t.max)) | st.sampled_from(
        [0, int(t.min), int(t.max)]
    )
    a, b = data.draw(numbers), data.draw(numbers | st.just(wrapped(-1, t)))
    found = evaluate(node(const(a, t), const(b, t)), {})
    assert found.dtype == t.numpy
    assert int(found) == wrapped(PYTHON[node](a, b), t)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(INTS))
def test_shifts(data, t: d.DType) -> None:
    a = data.draw(st.integers(int(t.min), int(t.max)))
    b = data.draw(st.integers(0, min(int(t.max), 70)))
    left = evaluate(n.Shl(const(a, t), const(b, t)), {})
    right = evaluate(n.Shr(const(a, t), const(b, t)), {})
    assert int(left) == (wrapped(a << b, t) if b < t.bits else 0)
    assert int(right) == shifted_right(a, b)


@pytest.mark.parametrize("t", INTS)
def test_unary_and_popcount(t: d.DType) -> None:
    for a in {int(t.min), int(t.max), 0, 1}:
        assert int(evaluate(n.Neg(const(a, t)), {})) == wrapped(-a, t)
        assert int(evaluate(n.Not(const(a, t)), {})) == wrapped(~a, t)
        bits = bin(a & ((1 << t.bits) - 1)).count("1")
        assert int(evaluate(Call("popcount", (const(a, t),)), {})) == wrapped(bits, t)


@pytest.mark.parametrize("target", INTS)
@pytest.mark.parametrize(
    "x", [0.0, 1.9, -1.9, 300.5, -3e30, 3e30, math.inf, -math.inf, math.nan]
)
def test_float_to_int_truncates_and_saturates(x: float, target: d.DType) -> None:
    found = int(evaluate(Cast(const(x, d.float32), target), {}))
    if math.isnan(x):
        assert found == 0
    else:
        exact = float(np.float32(x))
        clamped = min(max(exact, float(target.min)), float(target.max))
        assert found == min(max(int(clamped), int(target.min)), int(target.max))


@pytest.mark.parametrize("source", INTS)
@pytest.mark.parametrize("target", INTS)
def test_int_to_int_wraps(source: d.DType, target: d.DType) -> None:
    for a in (int(source.min), int(source.max), 1):
        assert int(evaluate(Cast(const(a, source), target), {})) == wrapped(a, target)


def test_to_bool_is_unequal_to_zero() -> None:
    assert evaluate(Cast(const(math.nan, d.float32), d.bool_), {})
    assert not evaluate(Cast(const(-0.0, d.float32), d.bool_), {})
    assert evaluate(Cast(const(-3, d.int4), d.bool_), {})


@pytest.mark.parametrize("t", [x for x in d.ALL if x.is_float and x.bits <= 16])
def test_narrow_floats_round_once_per_operation(t: d.DType) -> None:
    values = np.array([0.5, 1.0, 1.5, 2.0, 3.0]).astype(t.numpy)
    a, b = var("a", t), var("b", t)
    env = {a: values[:, None], b: values[None]}
    found = evaluate(a * b + a, env)
    x, y = (v.astype(np.float32) for v in (values[:, None], values[None]))
    product = (x * y).astype(t.numpy).astype(np.float32)
    expected = (product + x).astype(t.numpy)
    assert found.dtype == t.numpy
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("gamma", 5.0, 24.0),
        ("gamma", -0.0, -math.inf),
        ("gamma", -1.0, math.nan),
        ("gamma", 200.0, math.inf),
        ("lgamma", 0.0, math.inf),
        ("lgamma", -3.0, math.inf),
        ("erf", math.inf, 1.0),
        ("sigmoid", -1e4, 0.0),
        ("sigmoid", math.nan, math.nan),
        ("round_even", 2.5, 2.0),
    ],
)
def test_functions_at_their_edges(name: str, x: float, expected: float) -> None:
    found = evaluate(Call(name, (const(x, d.float64),)), {})
    np.testing.assert_array_equal(found, np.float64(expected))


@pytest.mark.parametrize("t", [d.float32, d.float64])
def test_pow_is_that_of_c_where_the_exponent_is_a_constant(t: d.DType) -> None:
    x = var("x", t)
    found = evaluate(
        Call("pow", (x, const(0.5, t))), {x: np.array([-np.inf, -0.0, 4.0], t.numpy)}
    )
    np.testing.assert_array_equal(found, np.array([np.inf, 0.0, 2.0], t.numpy))
    assert not np.signbit(found).any()
    assert evaluate(Call("pow", (const(-math.inf, t), const(0.5, t))), {}) == math.inf


def test_min_max_propagate_nan() -> None:
    nan, one = const(math.nan, d.float32), const(1.0, d.float32)
    for node in (n.Min, n.Max):
        assert np.isnan(evaluate(node(nan, one), {}))
        assert np.isnan(evaluate(node(one, nan), {}))


def test_bitcast() -> None:
    assert evaluate(Bitcast(const(1.0, d.float32), d.int32), {}) == 0x3F800000
    assert evaluate(Bitcast(const(-1, d.int4), d.uint4), {}) == 15
    back = evaluate(Bitcast(const(0x3F80, d.uint16), d.bfloat16), {})
    assert back == 1 and back.dtype == ml_dtypes.bfloat16


def test_a_load_in_the_other_arm_is_not_performed() -> None:
    x = Buffer("x", (4,), d.float32)
    data = np.arange(4, dtype=np.float32)
    i, j = var("i"), var("j")
    inside = n.And(n.Le(const(0), i - 1), n.Lt(i - 1, const(4)))
    e = Select(inside, x[i - 1], const(-1.0, d.float32)) + x[j]

    def load(buffer, index):
        assert np.all((index[0] >= 0) & (index[0] < 4))
        return data[index]

    env = {i: np.arange(6)[:, None], j: np.arange(2)[None]}
    expected = np.array([-1, 0, 1, 2, 3, -1])[:, None] + np.array([0, 1])[None]
    np.testing.assert_array_equal(evaluate(e, env, load), expected)
    assert evaluate(e, {i: 0, j: 1}, load) == 0


def test_unbound_variable_and_missing_memory() -> None:
    with pytest.raises(ExecutionError, match="variable i has no value"):
        evaluate(var("i") + 1, {})
    with pytest.raises(ExecutionError, match="x is read"):
        evaluate(Buffer("x", (1,), d.int8)[0], {})
