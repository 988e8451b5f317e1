"""The example accelerator, programmed in te: the program as its users write it."""

# ruff: noqa: RUF059 (tile and split are written out as users write them)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import CompileError
from tilewright.targets import vdla

Golden = Callable[[str, str], None]


def _steps(n: int, short: bool = False) -> tuple[t.Schedule, list[t.Tensor], list[str]]:
    """The schedule line by line, with what `print(s)` shows after each."""
    shown = []
    A, B, k = t.placeholder((n, n)), t.placeholder((n, n)), t.reduce_axis((0, n))
    C = t.compute((n, n), lambda y, x: t.sum(A[k, y] * B[k, x], axis=k))
    s = t.create_schedule(C.op)
    shown.append(str(s))
    CL = s.cache_write(C, vdla.acc_buffer)
    AL = s.cache_read(A, vdla.inp_buffer, [CL])
    BL = s.cache_read(B, vdla.inp_buffer, [CL])
    shown.append(str(s))
    y, x = s[C].op.axis
    yo, xo, yi, xi = s[C].tile(y, x, 8, 8)
    shown.append(str(s))
    s[CL].compute_at(s[C], xo)
    shown.append(str(s))
    cy, cx = s[CL].op.axis
    if short:
        _, _, ko, cy, cx, ki = s[CL].tile(cy, cx, k, 8, 8, 8)
    else:
        ko, ki = s[CL].split(k, 8)
        s[CL].reorder(ko, cy, cx, ki)
    shown.append(str(s))
    s[AL].compute_at(s[CL], ko)
    s[BL].compute_at(s[CL], ko)
    shown.append(str(s))
    s[CL].tensorize(cy, vdla.gemm8x8)
    shown.append(str(s))
    s[AL].tensorize(s[AL].op.axis[0], vdla.dma_copy2d)
    s[BL].tensorize(s[BL].op.axis[0], vdla.dma_copy2d)
    s[C].tensorize(yi, vdla.dma_copy2d)
    shown.append(str(s))
    return s, [A, B, C], shown


PROGRAM = """
A = t.placeholder((1024, 1024)); B = t.placeholder((1024, 1024)); k = t.reduce_axis((0, 1024))
C = t.compute((1024, 1024), lambda y, x: t.sum(A[k, y] * B[k, x], axis=k))
s = t.create_schedule(C.op)
CL = s.cache_write(C, vdla.acc_buffer)
AL = s.cache_read(A, vdla.inp_buffer, [CL]); BL = s.cache_read(B, vdla.inp_buffer, [CL])
y, x = s[C].op.axis; yo, xo, yi, xi = s[C].tile(y, x, 8, 8)
s[CL].compute_at(s[C], xo)
cy, cx = s[CL].op.axis; ko, ki = s[CL].split(k, 8); s[CL].reorder(ko, cy, cx, ki)
s[AL].compute_at(s[CL], ko); s[BL].compute_at(s[CL], ko)
s[CL].tensorize(cy, vdla.gemm8x8)
s[AL].tensorize(s[AL].op.axis[0], vdla.dma_copy2d)
s[BL].tensorize(s[BL].op.axis[0], vdla.dma_copy2d); s[C].tensorize(yi, vdla.dma_copy2d)
"""


@pytest.mark.parametrize("n", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_the_program_of_the_talks(n: int) -> None:
    """As it is written there, printed after each line."""
    scope: dict[str, Any] = {"t": t, "vdla": vdla}
    for line in PROGRAM.strip().replace("1024", str(n)).splitlines():
        exec(line, scope)
        if "s" in scope:
            assert str(scope["s"]).startswith(f"kernel C(A: float32[{n}, {n}], B: ")
    assert str(scope["s"]) == _steps(n)[2][-1]
    f = t.build(scope["s"], [scope["A"], scope["B"], scope["C"]], target="vdla")
    a, b = np.random.default_rng(0).standard_normal((2, n, n)).astype(np.float32)
    c = np.zeros_like(a)
    f(a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-3, atol=1e-3)


def test_each_line_shows_the_loops(golden: Golden) -> None:
    _, _, shown = _steps(1024)
    golden("te_vdla", "\n\n".join(shown))


@pytest.mark.parametrize("short", [False, True], ids=["tile2", "tile3"])
def test_product(short: bool) -> None:
    s, args, shown = _steps(64, short)
    f = t.build(s, args, target="vdla")
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    c = np.zeros_like(a)
    f(a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)
    assert shown[-1] == _steps(64)[2][-1]


def test_the_short_tile_before_the_cache() -> None:
    """As in the talks: the loops of `C` are made first and stay with the computation."""
    A, B, k = t.placeholder((32, 32)), t.placeholder((32, 32)), t.reduce_axis((0, 32))
    C = t.compute((32, 32), lambda y, x: t.sum(A[k, y] * B[k, x], axis=k))
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    yo, xo, ko, yi, xi, ki = s[C].tile(y, x, k, 8, 8, 8)
    CL = s.cache_write(C, vdla.acc_buffer)
    AL, BL = (s.cache_read(X, vdla.inp_buffer) for X in (A, B))
    out_y, out_x, in_y, _ = s[C].tile(*s[C].op.axis, 8, 8)
    s[CL].compute_at(s[C], out_x)
    s[AL].compute_at(s[CL], ko)
    s[BL].compute_at(s[CL], ko)
    s[CL].tensorize(yi, vdla.gemm8x8)
    for stage, loop in ((AL, s[AL].op.axis[0]), (BL, s[BL].op.axis[0]), (C, in_y)):
        s[stage].tensorize(loop, vdla.dma_copy2d)
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    c = np.zeros_like(a)
    t.build(s, [A, B, C], target="vdla")(a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)


def _declared() -> Any:
    """Chen et al., TVM, OSDI 2018, section 4.3: a product by rows of both operands."""
    w, x = t.placeholder((8, 8)), t.placeholder((8, 8))
    k = t.reduce_axis((0, 8))
    y = t.compute((8, 8), lambda i, j: t.sum(w[i, k] * x[j, k], axis=k))

    def lower(inputs: Any, outputs: Any) -> Any:
        ww_ptr, xx_ptr = inputs[0].access_ptr("r"), inputs[1].access_ptr("r")
        zz_ptr = outputs[0].access_ptr("w")
        compute = t.hardware_intrin("gemm8x8", ww_ptr, xx_ptr, zz_ptr)
        reset = t.hardware_intrin("fill_zero", zz_ptr)
        update = t.hardware_intrin(
            "fuse_gemm8x8_add", ww_ptr, xx_ptr, outputs[0].access_ptr("rw")
        )
        return compute, reset, update

    return t.decl_tensor_intrin(y.op, lower, name="rows.gemm8x8")


def test_declared_by_the_user() -> None:
    gemm8x8 = _declared()
    W, X, k = t.placeholder((16, 24)), t.placeholder((32, 24)), t.reduce_axis((0, 24))
    Y = t.compute((16, 32), lambda i, j: t.sum(W[i, k] * X[j, k], axis=k))
    s = t.create_schedule(Y.op)
    YL = s.cache_write(Y, "global")
    WL, XL = s.cache_read(W, "global"), s.cache_read(X, "global")
    i, j = s[Y].op.axis
    io, jo, ii, ji = s[Y].tile(i, j, 8, 8)
    s[YL].compute_at(s[Y], jo)
    yi, yj = s[YL].op.axis
    ko, ki = s[YL].split(k, 8)
    s[YL].reorder(ko, yi, yj, ki)
    s[WL].compute_at(s[YL], ko)
    s[XL].compute_at(s[YL], ko)
    s[YL].tensorize(yi, gemm8x8)
    assert "fill_zero(YL[0, 0])" in str(s)
    assert "fuse_gemm8x8_add(WL[0, 0], XL[0, 0], YL[0, 0])" in str(s)
    w, x = (
        np.random.default_rng(0).standard_normal((n, 24)).astype(np.float32)
        for n in (16, 32)
    )
    y = np.zeros((16, 32), np.float32)
    t.build(s, [W, X, Y], target="interp")(w, x, y)
    np.testing.assert_allclose(y, w @ x.T, rtol=1e-4, atol=1e-4)


def test_what_is_left_to_a_scalar_unit() -> None:
    A = t.placeholder((8, 8), name="A")
    C = t.compute((8, 8), lambda y, x: A[y, x] + 1.0)
    with pytest.raises(CompileError, match="no scalar unit"):
        t.build(t.create_schedule(C.op), [A, C], target="vdla")
