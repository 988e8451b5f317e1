"""A built function outside of the process that built it: artifacts, C headers and objects."""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import te as t
from tilewright.base.dtypes import float16
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.lang.function import Function
from tilewright.loops.lower import lower
from tilewright.operators import Buffer, map_
from tilewright.runtime.loader import link

N = 24
RNG = np.random.default_rng(0)
ARRAYS = [RNG.standard_normal((N, N), np.float32) for _ in range(2)]
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def product() -> Function:
    """A matrix product with parallel rows, each through scratch memory of its thread."""
    A, B = t.placeholder((N, N), name="A"), t.placeholder((N, N), name="B")
    k = t.reduce_axis((0, N), name="k")
    C = t.compute((N, N), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k), name="C")
    s = t.create_schedule(C.op)
    row = s.cache_write(C, "global")
    y, _ = s[C].op.axis
    s[row].compute_at(s[C], y)
    s[C].parallel(y)
    made = t.build(s, [A, B, C], threads=2)
    assert isinstance(made, Function)
    return made


def test_a_saved_function_is_a_model(product: Function, tmp_path: Path) -> None:
    product.save(tmp_path / "product.tw")
    loaded = tw.load(tmp_path / "product.tw", threads=1)
    expected, found = np.empty((N, N), np.float32), np.empty((N, N), np.float32)
    product(*ARRAYS, expected)
    np.testing.assert_array_equal(loaded(*ARRAYS), expected)
    assert loaded(*ARRAYS, out=found) is found
    np.testing.assert_array_equal(found, expected)


def test_profile_leaves_the_arrays_alone(product: Function) -> None:
    c = np.full((N, N), 7, np.float32)
    profile = product.profile(*ARRAYS, c, repeat=2)
    assert [row.name for row in profile.rows] == ["C"] and profile.repeat == 2
    assert profile.rows[0].flops == 2 * N**3 and (c == 7).all()
    with pytest.raises(InputError, match="2 arrays given, 3 expected"):
        product.profile(*ARRAYS)


@pytest.mark.parametrize("verb", ["profile", "save"])
def test_what_is_interpreted_has_no_code(product: Function, verb: str) -> None:
    with pytest.raises(InputError, match=r'no native code.*target="cpu"'):
        getattr(Function(product.kernel, "interp"), verb)("x")


def _call(
    function: ctypes._FuncPointer, arrays: list[np.ndarray], *first: object
) -> int:
    return int(function(*first, *(ctypes.c_void_p(a.ctypes.data) for a in arrays)))


def test_a_c_function_without_scratch_memory(tmp_path: Path) -> None:
    """It needs no library at all: our own loader takes it."""
    x, y = (
        Buffer("x", (N,), tw.dtype_of("int8")),
        Buffer("y", (N,), tw.dtype_of("int8")),
    )
    kernel = lower("twice", [map_("twice", y, lambda i: x[i] + x[i])], [x, y], [y])
    header, code = Function(kernel).export_c(tmp_path / "twice")
    assert (
        "int twice(\n    const int8_t *x /* [24] */,\n    int8_t *y"
        in header.read_text()
    )
    image = link([code.read_bytes()])
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    given, found = np.arange(N, dtype=np.int8), np.zeros(N, np.int8)
    assert call(image.address("twice"))(given.ctypes.data, found.ctypes.data) == 0
    np.testing.assert_array_equal(found, 2 * given)


@needs_cc
def test_a_c_program_shares_out_parallel_loops(
    product: Function, tmp_path: Path
) -> None:
    _, code = product.export_c(tmp_path / "product")
    (tmp_path / "main.c").write_text(_MAIN)
    library = tmp_path / "libproduct.so"
    command = ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]
    files = [str(library), str(tmp_path / "main.c"), str(code)]
    subprocess.run([*command, *files], check=True)
    loaded = ctypes.CDLL(str(library))
    expected = np.empty((N, N), np.float32)
    product(*ARRAYS, expected)
    for threads, parts in ((3, 3), (1, 0), (-2, 0)):
        found = np.zeros((N, N), np.float32)
        assert _call(loaded.shared, [*ARRAYS, found], threads) == parts
        np.testing.assert_array_equal(found, expected)
    found = np.zeros((N, N), np.float32)
    assert _call(loaded.product, [*ARRAYS, found]) == 0
    np.testing.assert_array_equal(found, expected)


@needs_cc
def test_memory_that_is_refused(product: Function, tmp_path: Path) -> None:
    """Scratch memory grows with the threads: more of them than there is memory for."""
    _, code = product.export_c(tmp_path / "product")
    library = tmp_path / "libproduct.so"
    subprocess.run(["cc", "-shared", "-o", library, code], check=True)
    found = np.zeros((N, N), np.float32)
    huge = ctypes.c_int(2**31 - 1)
    function = ctypes.CDLL(str(library)).product_parallel
    with _little_memory():
        status = _call(function, [*ARRAYS, found], ctypes.c_void_p(1), huge)
    assert status == -1 and not found.any()


@contextmanager
def _little_memory() -> Iterator[None]:
    """Less address space than what is asked for."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_names_and_types_that_c_does_not_have(tmp_path: Path) -> None:
    half, out = Buffer("half", (4,), float16), Buffer("for", (4,), float16)
    f = Function(
        lower("halves", [map_("halves", out, lambda i: half[i])], [half, out], [out])
    )
    with pytest.raises(UnsupportedError, match=r"half: float16\[4\].*C does not have"):
        f.export_c(tmp_path / "halves")
    for name in ("2x", "a-b", "int", "schlüssel"):
        with pytest.raises(InputError, match="is not a name in C"):
            f.export_c(tmp_path / "halves", name)
    assert not list(tmp_path.iterdir())
    x, y = (
        Buffer("a.b", (4,), tw.dtype_of("float32")),
        Buffer("a_b", (4,), tw.dtype_of("float32")),
    )
    z = Buffer("for", (4,), tw.dtype_of("float32"))
    kernel = lower("sums", [map_("sums", z, lambda i: x[i] + y[i])], [x, y, z], [z])
    header, _ = Function(kernel).export_c(tmp_path / "sums", "add_up")
    text = header.read_text()
    assert "int add_up(" in text
    for name in ("*a_b /*", "*a_b_ /*", "float *for_ /*"):
        assert name in text


_MAIN = """
#include "product.h"
static int parts;
static void in_turn(tilewright_context *c, tilewright_task *task, void *closure, int64_t count) {
    for (int64_t n = 0; n < c->threads; n++, parts++)
        task(closure, n, n * count / c->threads, (n + 1) * count / c->threads);
}
int shared(int threads, const float *a, const float *b, float *c) {
    parts = 0;
    int failed = product_parallel(in_turn, threads, a, b, c);
    return failed ? failed : parts;
}
"""


def test_a_c_function_has_fixed_sizes(tmp_path: Path) -> None:
    n = t.var("n")
    A = t.placeholder((n,), name="A")
    B = t.compute((n,), lambda i: A[i] + 1.0, name="B")
    made = t.build(t.create_schedule(B.op), [A, B])
    assert isinstance(made, Function)
    with pytest.raises(UnsupportedError, match="known only to a call"):
        made.export_c(tmp_path / "add")
    assert not list(tmp_path.iterdir())
