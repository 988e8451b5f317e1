"""Instructions of the user's own, as LLVM's text, that `tensorize` puts into native code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import CompileError, InputError

# out[i] += factor * sum over k of a[k] * b[k, i], for 8 lanes; b's rows are `stride` apart.
TEXT = """
define void @rows(ptr %out, ptr %a, ptr %b, i64 %stride, double %factor) {
entry:
  %f = fptrunc double %factor to float
  %c1 = insertelement <8 x float> poison, float %f, i64 0
  %fs = shufflevector <8 x float> %c1, <8 x float> poison, <8 x i32> zeroinitializer
  %start = load <8 x float>, ptr %out, align 4
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %loop]
  %sum = phi <8 x float> [%start, %entry], [%new, %loop]
  %pa = getelementptr float, ptr %a, i64 %k
  %x = load float, ptr %pa, align 4
  %x1 = insertelement <8 x float> poison, float %x, i64 0
  %xs = shufflevector <8 x float> %x1, <8 x float> poison, <8 x i32> zeroinitializer
  %row = mul i64 %k, %stride
  %pb = getelementptr float, ptr %b, i64 %row
  %y = load <8 x float>, ptr %pb, align 4
  %xf = fmul <8 x float> %xs, %fs
  %new = call <8 x float> @llvm.fma.v8f32(<8 x float> %xf, <8 x float> %y, <8 x float> %sum)
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %loop, label %end
end:
  store <8 x float> %new, ptr %out, align 4
  ret void
}
"""
ZERO = """
define void @clear(ptr %out) {
  store <8 x float> zeroinitializer, ptr %out, align 4
  ret void
}
"""


def declared(text: str, name: str, factor: float = 1.0) -> Any:
    a, b = t.placeholder((4,), name="a"), t.placeholder((4, 8), name="b")
    k = t.reduce_axis((0, 4), name="k")
    out = t.compute((8,), lambda i: t.sum(a[k] * b[k, i], axis=k), name="out")

    def lower(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        x, y = inputs
        to = outputs[0].access_ptr("rw")
        args = (to, x.access_ptr("r"), y.access_ptr("r"), y.strides[0], factor)
        reset = t.hardware_intrinsic("clear", outputs[0].access_ptr("w"), llvm=ZERO)
        return None, reset, t.hardware_intrinsic("rows", *args, llvm=text)

    return t.decl_tensor_intrinsic(out.op, lower, name=name)


def product(intrinsic: Any) -> tuple[t.Schedule, list[t.Tensor]]:
    A, B = t.placeholder((6, 8), name="A"), t.placeholder((8, 16), name="B")
    k = t.reduce_axis((0, 8), name="k")
    C = t.compute((6, 16), lambda i, j: t.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = t.create_schedule(C.op)
    i, j = s[C].op.axis
    jo, ji = s[C].split(j, 8)
    ko, ki = s[C].split(k, 4)
    s[C].reorder(i, jo, ko, ji, ki)
    s[C].tensorize(ji, intrinsic)
    s[C].parallel(i)
    return s, [A, B, C]


def test_a_product_by_an_own_instruction() -> None:
    s, args = product(declared(TEXT, "tests.rows"))
    assert "rows(C[" in str(s)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n, dtype=np.float32) for n in ((6, 8), (8, 16)))
    found = []
    for target in ("cpu", "interp"):
        out = np.empty((6, 16), np.float32)
        f = t.build(s, args, target)
        f(a, b, out)
        found.append(out)
    np.testing.assert_allclose(found[0], a @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
    text = t.build(s, args).source("llvm")
    assert text.count("define internal void @rows.") == 1 and "call void @rows." in text


def test_what_the_text_says_is_what_runs() -> None:
    """A text that does not do what is described changes the result: nothing else computes it."""
    s, args = product(declared(TEXT, "tests.twice", 2.0))
    a, b = np.ones((6, 8), np.float32), np.ones((8, 16), np.float32)
    out = np.empty((6, 16), np.float32)
    t.build(s, args)(a, b, out)
    assert (out == 16).all()


def test_two_texts_of_one_name_are_two_functions() -> None:
    one = declared(TEXT, "tests.one")
    other = declared(
        TEXT.replace("ult i64 %next, 4", "ult i64 %next, 1"), "tests.other"
    )
    assert repr(one).replace("tests.one", "tests.other") != repr(other)


@pytest.mark.parametrize(
    "text, error, message",
    [
        (TEXT.replace("@rows(", "@row("), InputError, "does not define the function"),
        (TEXT.replace("fptrunc", "trunc"), CompileError, "LLVM rejects"),
        (
            "declare void @elsewhere()\n"
            + TEXT.replace("  ret void", "  call void @elsewhere()\n  ret void"),
            CompileError,
            "elsewhere",
        ),
    ],
)
def test_what_is_wrong_with_a_text(text: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        s, args = product(declared(text, f"tests.wrong.{message}"))
        t.build(s, args)
