"""C functions of the user's own inside of kernels: on numbers, and on addresses."""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te as t
from tilewright.base.errors import (
    ArtifactError,
    CompileError,
    InputError,
    UnsupportedError,
)
from tilewright.lang.te import c_functions

LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler on this system"
)
x = np.random.default_rng(3).standard_normal(37, dtype=np.float32)
TEXT = """
#include <stdint.h>
float mixed(float x, int64_t i, double scale) { return x * (float)scale + (float)i; }
float half(void) { return 0.5f; }
int32_t low(uint64_t x) { return (int32_t)(x >> 3); }
int rows(float *out, const float *a, const float *b, int stride, float factor) {
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 8; ++i) out[i] += factor * a[k] * b[k * stride + i];
  return 1;
}
void clear(float *out) { for (int i = 0; i < 8; ++i) out[i] = 0; }
"""


def hypot(y: Any) -> Any:
    X = t.placeholder((37,), name="X")
    made = t.compute((37,), lambda i: y(X[i]), name="Y")
    return X, made


@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize("lanes", [1, 8])
def test_a_function_of_a_shared_library(target: str, lanes: int) -> None:
    X, Y = hypot(lambda v: t.call_pure_extern("float32", LIBRARY.hypotf, v, 3.0))
    s = t.create_schedule(Y.op)
    if lanes > 1:
        s[Y].vectorize(s[Y].split(Y.op.axis[0], lanes)[1])
    found = np.empty_like(x)
    t.build(s, [X, Y], target=target)(x, found)
    np.testing.assert_allclose(found, np.hypot(x, np.float32(3)), rtol=1e-6)


def test_a_registered_name_on_several_threads_for_any_size() -> None:
    t.register_func("tests.hypot", LIBRARY.hypot, override=True)
    n = t.var("n")
    X = t.placeholder((n,), "float64", name="X")
    Y = t.compute(
        (n,), lambda i: t.call_pure_extern("float64", "tests.hypot", X[i], 4.0)
    )
    s = t.create_schedule(Y.op)
    s[Y].parallel(s[Y].split(Y.op.axis[0], 8)[0])
    f = t.build(s, [X, Y], threads=2)
    for size in (1, 8, 37):
        given = x[:size].astype(np.float64)
        found = np.empty_like(given)
        f(given, found)
        np.testing.assert_allclose(found, np.hypot(given, 4), rtol=1e-14)


@needs_compiler
def test_a_text_in_c_with_arguments_of_several_types() -> None:
    own = t.compile_c(TEXT)
    X, Y = hypot(lambda v: v)
    Y = t.compute(
        (37,),
        lambda i: t.call_pure_extern(
            "float32", own.mixed, X[i], i, t.const(0.5, "float64")
        ),
        name="Y",
    )
    Z = t.compute(
        (37,),
        lambda i: t.call_pure_extern("int32", own.low, t.cast("uint64", i * 40)),
        name="Z",
    )
    for target in ("cpu", "interp"):
        y, z = np.empty_like(x), np.empty(37, np.int32)
        s = t.create_schedule([Y.op, Z.op])
        s[Y].vectorize(s[Y].split(Y.op.axis[0], 4)[1])
        t.build(s, [X, Y, Z], target=target)(x, y, z)
        np.testing.assert_allclose(y, x / 2 + np.arange(37), rtol=1e-6)
        np.testing.assert_array_equal(z, np.arange(37) * 5)


@needs_compiler
@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_a_function_without_arguments(target: str) -> None:
    own = t.compile_c(TEXT)
    X, Y = hypot(lambda v: v * t.call_pure_extern("float32", own.half))
    s = t.create_schedule(Y.op)
    s[Y].vectorize(s[Y].split(Y.op.axis[0], 8)[1])
    found = np.empty_like(x)
    t.build(s, [X, Y], target=target)(x, found)
    np.testing.assert_array_equal(found, x / 2)


def product(declare: bool, factor: float = 1.0) -> tuple[Any, list[Any]]:
    own = t.compile_c(TEXT)
    if declare:
        pointers = [ctypes.c_void_p] * 3
        own.rows.argtypes = [*pointers, ctypes.c_int, ctypes.c_float]
    a, b = t.placeholder((4,), name="a"), t.placeholder((4, 8), name="b")
    k = t.reduce_axis((0, 4), name="k")
    out = t.compute((8,), lambda i: t.sum(a[k] * b[k, i], axis=k), name="out")

    def lower(inputs: Any, outputs: Any) -> Any:
        v, w = inputs
        to = outputs[0].access_ptr("rw")
        given = (to, v.access_ptr("r"), w.access_ptr("r"), w.strides[0], factor)
        reset = t.call_extern("int32", own.clear, outputs[0].access_ptr("w"))
        return None, reset, t.call_extern("int32", own.rows, *given)

    name = f"tests.c.rows.{id(own)}"
    intrinsic = t.decl_tensor_intrinsic(out.op, lower, name=name)
    A, B = t.placeholder((6, 8), name="A"), t.placeholder((8, 16), name="B")
    r = t.reduce_axis((0, 8), name="r")
    C = t.compute((6, 16), lambda i, j: t.sum(A[i, r] * B[r, j], axis=r), name="C")
    s = t.create_schedule(C.op)
    i, j = s[C].op.axis
    jo, ji = s[C].split(j, 8)
    ko, ki = s[C].split(r, 4)
    s[C].reorder(i, jo, ko, ji, ki)
    s[C].tensorize(ji, intrinsic)
    s[C].parallel(i)
    return s, [A, B, C]


@needs_compiler
def test_addresses_strides_and_numbers() -> None:
    """As TVM's tutorial of tensorize has it; twice as much where the code computes that."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n, dtype=np.float32) for n in ((6, 8), (8, 16)))
    for factor in (1.0, 2.0):
        s, args = product(True, factor)
        found = np.empty((6, 16), np.float32)
        t.build(s, args)(a, b, found)
        np.testing.assert_allclose(found, factor * (a @ b), rtol=1e-5, atol=1e-5)
    own = np.empty((6, 16), np.float32)
    t.build(s, args, target="interp")(a, b, own)
    np.testing.assert_allclose(own, a @ b, rtol=1e-5, atol=1e-5)


def test_schedules_of_code_of_this_process_are_not_measured(tmp_path: Path) -> None:
    X, Y = hypot(lambda v: t.call_pure_extern("float32", LIBRARY.hypotf, v, 3.0))
    f = t.build(t.create_schedule(Y.op), [X, Y])
    message = r"tune Y: it calls functions of this process: hypotf; .* llvm=text"
    with pytest.raises(UnsupportedError, match=message):
        f.tune(trials=1, records=tmp_path / "r.sqlite")


def test_code_of_this_process_is_not_written_to_files(tmp_path: Path) -> None:
    X, Y = hypot(lambda v: t.call_pure_extern("float32", LIBRARY.hypotf, v, 3.0))
    s = t.create_schedule(Y.op)
    f = t.build(s, [X, Y])
    message = "functions of this process"
    with pytest.raises(ArtifactError, match=f"{message}: hypotf"):
        f.save(tmp_path / "f.tw")
    with pytest.raises(ArtifactError, match=message):
        tw.compile(t.lower(s, [X, Y])).save(tmp_path / "g.tw")
    with pytest.raises(UnsupportedError, match=message):
        f.export_c(tmp_path / "f")
    assert not list(tmp_path.iterdir())
    with pytest.raises(CompileError, match="function of this process"):
        i = s[Y].op.axis[0]
        s[Y].bind(i, t.thread_axis("threadIdx.x"))
        t.build(s, [X, Y], target="cuda").source("asm")


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X = t.placeholder((4,), "float16", name="X")
    call = t.call_pure_extern
    with pytest.raises(InputError, match=r"call of hypotf: a value of float16"):
        t.compute((4,), lambda i: call("float32", LIBRARY.hypotf, X[i], 3.0))
    with pytest.raises(InputError, match="len is not a C function"):
        t.compute((4,), lambda i: call("float32", len, i))
    pow_ = ctypes.CDLL(ctypes.util.find_library("m")).pow
    pow_.argtypes, pow_.restype = [ctypes.c_double] * 2, ctypes.c_double
    with pytest.raises(InputError, match="declared otherwise"):
        t.compute((4,), lambda i: call("float64", pow_, i, 3.0))
    s = t.create_schedule(t.compute((4,), lambda i: i * 2, name="Y").op)
    with pytest.raises(UnsupportedError, match=r"import_llvm.*compile_c"):
        stage = s.stages[0]
        stage.pragma(stage.op.axis[0], "import_llvm", "...")
    monkeypatch.setattr(c_functions.shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"no C compiler.*ctypes.CDLL"):
        t.compile_c(TEXT)


@needs_compiler
def test_what_the_compiler_refuses() -> None:
    with pytest.raises(
        CompileError, match=r"the C compiler refuses the text: .*own\.c"
    ):
        t.compile_c("float f(")
    own = t.compile_c(TEXT)
    own.rows.argtypes = [ctypes.c_void_p]
    with pytest.raises(InputError, match="2 arguments given, 1 declared"):
        c_functions.instruction(own.rows, [1, 2])
    own.rows.argtypes = [ctypes.c_void_p, ctypes.c_int]
    with pytest.raises(InputError, match="argument 0 is declared as c_void_p"):
        c_functions.instruction(own.rows, [1, 2])
