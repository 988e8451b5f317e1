"""Operands of two dtypes become one as in TVM (`BinaryOpMatchTypes`), wherever a body is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError

N = 6
KINDS = "int8 uint8 int32 int64 float16 float32 float64 bool"
P = {kind: t.placeholder((N,), kind, name=f"x_{kind}") for kind in KINDS.split()}
VALUES = np.array([0, 1, 2, 3, 5, 7])
CASES: dict[str, tuple[Any, str]] = {
    "int8+int32": (lambda i, a: a("int8") + a("int32"), "int32"),
    "int32+int8": (lambda i, a: a("int32") + a("int8"), "int32"),
    "uint8+int8": (lambda i, a: a("uint8") + a("int8"), "int8"),
    "int8*uint8": (lambda i, a: a("int8") * a("uint8"), "int8"),
    "uint8-int32": (lambda i, a: a("uint8") - a("int32"), "int32"),
    "int64+int32": (lambda i, a: a("int64") + a("int32"), "int64"),
    "float16*float32": (lambda i, a: a("float16") * a("float32"), "float32"),
    "float32-float64": (lambda i, a: a("float32") - a("float64"), "float64"),
    "int64*float16": (lambda i, a: a("int64") * a("float16"), "float16"),
    "bool+int8": (lambda i, a: a("bool") + a("int8"), "int8"),
    "index+int8": (lambda i, a: i + a("int8"), "int32"),
    "int32+index": (lambda i, a: a("int32") + (i * 2 + 1), "int32"),
    "int64+index": (lambda i, a: a("int64") + i, "int64"),
    "float32*index": (lambda i, a: a("float32") * i, "float32"),
    "index*2.0": (lambda i, a: i * 2.0, "float32"),
    "1.5-int32": (lambda i, a: 1.5 - a("int32"), "float32"),
    "int8+1": (lambda i, a: a("int8") + 1, "int8"),
    "power": (lambda i, a: t.power(a("float32"), a("int32")), "float32"),
    "max": (lambda i, a: t.max(a("int32"), 2.5, i), "float32"),
    "less": (lambda i, a: t.if_then_else(i < a("int32"), a("int8"), 0.5), "float32"),
    "equal": (lambda i, a: t.if_then_else(a("int8").eq(i), i, a("int64")), "int64"),
}


def _expected(name: str) -> Any:
    def a(kind: str) -> Any:
        return VALUES.astype(kind).astype(np.float64)

    i = np.arange(N, dtype=np.float64)
    by_hand = {
        "power": lambda: a("float32") ** a("int32"),
        "max": lambda: np.maximum(np.maximum(a("int32"), 2.5), i),
        "less": lambda: np.where(i < a("int32"), a("int8"), 0.5),
        "equal": lambda: np.where(a("int8") == i, i, a("int64")),
    }
    return by_hand[name]() if name in by_hand else CASES[name][0](i, a)


@pytest.mark.parametrize("name", CASES)
def test_the_dtype_is_that_of_tvm(name: str) -> None:
    body, kind = CASES[name]
    C = t.compute((N,), lambda i: body(i, lambda k: P[k][i]), name="C")
    assert str(C.dtype) == kind
    computation = t.computation(C.op)
    assert t.show(t.parse(t.show(computation))) == t.show(computation)
    inputs = list(C.op.input_tensors)
    arrays = [VALUES.astype(str(x.dtype)) for x in inputs]
    found = np.empty(N, kind)
    t.build(t.create_schedule(C.op), [*inputs, C])(*arrays, found)
    np.testing.assert_allclose(found.astype(np.float64), _expected(name), rtol=1e-3)


def test_in_scripts_too() -> None:
    @t.hybrid.script
    def scaled(a: Any) -> Any:
        c = output_tensor((6,), "float32")  # type: ignore[name-defined]  # noqa: F821
        for i in range(6):
            c[i] = a[i] * i + 0.5
        return c

    C = scaled(P["float32"])
    found = np.empty(N, np.float32)
    values = VALUES.astype(np.float32)
    t.build(t.create_schedule(C.op), [P["float32"], C])(values, found)
    np.testing.assert_array_equal(found, values * np.arange(N) + 0.5)


def test_outside_of_a_body_nothing_is_converted() -> None:
    n = t.var("n")
    with pytest.raises(TypeError, match="operands are int64 and float32"):
        _ = n + t.const(0.5)
    with pytest.raises(InputError, match="not a valid int64"):
        _ = n * 0.5


def test_what_has_no_common_dtype_is_refused() -> None:
    z = t.placeholder((N,), "complex64", name="z")
    with pytest.raises(InputError, match="operands are complex64 and int32"):
        t.compute((N,), lambda i: z[i] + P["int32"][i])
    with pytest.raises(InputError, match=r"z.* is complex64, .* is int32"):
        t.compute((N,), lambda i: t.power(z[i], P["int32"][i]))
