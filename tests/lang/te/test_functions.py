"""Scalar functions and operators of te, compiled and interpreted, beside NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, ScheduleError

FLOATS = np.array(
    [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        0.49999997,
        3.25,
        100.0,
        1e8,
        np.inf,
        -np.inf,
        np.nan,
    ],
    np.float32,
)
POSITIVE = np.abs(FLOATS) + np.float32(0.125)
INTS = np.array([0, 1, -1, 7, -8, 100, -100, 127, -128, 64, -64, 5], np.int8)
AMOUNTS = np.array([0, 1, 2, 3, 7, 8, 9, -1, 100, 4, 6, -128], np.int8)
BYTES, BY = INTS.view(np.uint8), AMOUNTS.view(np.uint8)
CONDITIONS = np.array([True, False, True, False])
OTHERS = np.array([True, True, False, False])


def _rounded(x: Any) -> Any:
    return np.trunc(x) + np.where(np.abs(x - np.trunc(x)) >= 0.5, np.copysign(1, x), 0)


def _shifted(left: bool) -> Callable[[Any, Any], Any]:
    """NumPy's shifts, whose negative amounts C leaves open; here they empty a number too."""

    def shift(a: Any, b: Any) -> Any:
        wide = a.astype(np.int64)
        fits = (b >= 0) & (b < 8)
        n = np.where(fits, b, 0).astype(np.int64)
        if left:
            return np.where(fits, wide << n, 0).astype(a.dtype)
        return np.where(fits, wide >> n, np.where(wide < 0, -1, 0)).astype(a.dtype)

    return shift


def _ceildiv(a: Any, b: Any) -> Any:
    wide = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
    return np.where(b == 0, 0, -(-wide[0] // wide[1])).astype(a.dtype)


# name: the function on expressions, on arrays, and its operands.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "round": (t.round, _rounded, (FLOATS,)),
    "nearbyint": (t.nearbyint, np.rint, (FLOATS,)),
    "trunc": (t.trunc, np.trunc, (FLOATS,)),
    "isfinite": (t.isfinite, np.isfinite, (FLOATS,)),
    "isnan": (t.isnan, np.isnan, (FLOATS,)),
    "isinf": (t.isinf, np.isinf, (FLOATS,)),
    "log10": (t.log10, np.log10, (POSITIVE,)),
    "exp10": (t.exp10, lambda x: np.power(10, x), (FLOATS[:9],)),
    "power": (t.power, np.power, (POSITIVE, FLOATS)),
    "hypot": (t.hypot, np.hypot, (FLOATS[:10], POSITIVE[:10])),
    "logaddexp": (t.logaddexp, np.logaddexp, (FLOATS, POSITIVE[::-1].copy())),
    "ldexp": (lambda x: t.ldexp(x, 3), lambda x: np.ldexp(x, 3), (FLOATS,)),
    "add": (t.add, np.add, (FLOATS, POSITIVE)),
    "subtract": (t.subtract, np.subtract, (FLOATS[:11], POSITIVE[:11])),
    "multiply": (t.multiply, np.multiply, (FLOATS, POSITIVE)),
    "divide": (t.divide, np.divide, (FLOATS[:11], POSITIVE[:11])),
    "ceildiv": (t.ceildiv, _ceildiv, (INTS, np.abs(AMOUNTS >> 1))),
    "ceildiv_u8": (t.ceildiv, _ceildiv, (BYTES, BY)),
    "shl": (lambda a, b: a << b, _shifted(True), (INTS, AMOUNTS)),
    "shr": (lambda a, b: a >> b, _shifted(False), (INTS, AMOUNTS)),
    "shl_u8": (lambda a, b: a << b, _shifted(True), (BYTES, BY)),
    "shr_u8": (lambda a, b: a >> b, _shifted(False), (BYTES, BY)),
    "shift_left": (lambda a: t.shift_left(a, 3), lambda a: a << np.int8(3), (INTS,)),
    "shift_right": (lambda a: t.shift_right(a, 3), lambda a: a >> np.int8(3), (INTS,)),
    "one_shifted": (lambda b: 1 << b, lambda b: _shifted(True)(np.ones_like(b), b), (AMOUNTS,)),
    "and": (lambda a, b: a & b, np.bitwise_and, (INTS, AMOUNTS)),
    "or": (lambda a, b: t.bitwise_or(a, b), np.bitwise_or, (INTS, AMOUNTS)),
    "xor": (lambda a, b: a ^ b, np.bitwise_xor, (INTS, AMOUNTS)),
    "not": (t.bitwise_not, np.invert, (INTS,)),
    "mask": (lambda a: 15 & a | 64, lambda a: (np.int8(15) & a) | np.int8(64), (INTS,)),
    "conditions": (lambda p, q: (p & ~q) ^ (p | q), lambda p, q: (p & ~q) ^ (p | q),
                   (CONDITIONS, OTHERS)),
    "likely": (lambda a: t.if_then_else(t.likely(a > 0), a, 0), lambda a: np.maximum(a, 0),
               (INTS,)),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy(name: str, target: str) -> None:
    function, reference, arrays = CASES[name]
    n = len(arrays[0])
    operands = [
        t.placeholder((n,), a.dtype.name, f"A{k}") for k, a in enumerate(arrays)
    ]
    result = t.compute((n,), lambda i: function(*(a[i] for a in operands)), name="C")
    with np.errstate(all="ignore"):
        wanted = np.asarray(reference(*arrays)).astype(result.dtype.numpy)
    got = np.empty(n, result.dtype.numpy)
    t.build(t.create_schedule(result), [*operands, result], target=target)(*arrays, got)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted)


def test_a_size_by_its_old_name() -> None:
    n = t.size_var("n")
    A = t.placeholder((n,), name="A")
    C = t.compute((n,), lambda i: A[i] * 2, name="C")
    out = np.empty(3, np.float32)
    t.build(t.create_schedule(C), [A, C])(np.ones(3, np.float32), out)
    assert out.tolist() == [2, 2, 2]


def test_infinity_and_bits() -> None:
    assert t.infinity("float16").value == np.inf
    assert t.reinterpret("int32", t.const(1.0, "float32")).dtype.name == "int32"


def test_an_operator_of_ones_own_keeps_its_laws() -> None:
    k = t.reduce_axis((0, 8), "k")
    A = t.placeholder((8,), name="A")
    zero = lambda dtype: t.const(0, dtype)  # noqa: E731
    wrong = {
        "not associative": lambda a, b: a + b + a * a * b,
        "not neutral": lambda a, b: a - b,
    }
    for message, combine in wrong.items():
        op = t.comm_reducer(combine, zero, name="odd")
        with pytest.raises(
            InputError, match=rf"operator odd: .*{message}, at"
        ) as raised:
            t.compute((1,), lambda i, op=op: op(A[k], axis=k), name="C")
        assert raised.value.code == "TW-OPERATOR" and raised.value.hint
    first = lambda a, b: t.if_then_else(a.eq(0), b, a)  # noqa: E731
    with pytest.raises(InputError, match="does not commute"):
        said = t.comm_reducer(first, zero, commutative=True)
        t.compute((1,), lambda i: said(A[k], axis=k), name="C")
    C = t.compute((1,), lambda i: t.comm_reducer(first, zero)(A[k], axis=k), name="C")
    s = t.create_schedule(C)
    with pytest.raises(ScheduleError, match="does not commute"):
        s.rfactor(C, s[C].split(k, 2)[1])
    out = np.empty(1, np.float32)
    t.build(t.create_schedule(C), [A, C])(np.arange(8, dtype=np.float32), out)
    assert out[0] == 1
    with pytest.raises(InputError, match="expected a function of 2 operands"):
        t.comm_reducer(lambda a: a, zero)
