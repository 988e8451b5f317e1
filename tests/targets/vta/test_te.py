"""Programs in te on the machine: schedules by hand, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright as tw
from tilewright.base.errors import CompileError
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.targets import registry
from tilewright.targets.vta import (
    ACC,
    INP,
    WGT,
    Convolution,
    Requantize,
    VtaProgram,
    convolution,
    schedule,
)
from tilewright.targets.vta.isa import Gemm

t = tw.te
M, N, K = 32, 4, 8  # rows, tiles of columns, tiles of the sum


def product(
    threads: bool = True, tensorized: bool = True
) -> tuple[Schedule, list[Tensor]]:
    """C = clip(A . B^T >> 7), in blocks of 8 rows by 2 tiles, 2 tiles of the sum at a time."""
    A = t.placeholder((M, K, 16), "int8", name="A")
    B = t.placeholder((N, K, 16, 16), "int8", name="B")
    k, d = t.reduce_axis((0, K)), t.reduce_axis((0, 16))
    P = t.compute(
        (M, N, 16),
        lambda i, j, o: t.sum(
            A[i, k, d].astype("int32") * B[j, k, o, d].astype("int32"), [k, d]
        ),
        name="P",
    )
    C = t.compute(
        P.shape, lambda *v: t.max(t.min(P[v] >> 7, 127), -128).astype("int8"), name="C"
    )
    s = t.create_schedule(C.op)
    AL, BL = s.cache_read(A, INP, [P]), s.cache_read(B, WGT, [P])
    s[P].set_scope(ACC)
    i, j, o = s[C].op.axis
    io, jo, ii, ji = s[C].tile(i, j, 8, 2)
    s[C].reorder(io, jo, ii, ji, o)
    if threads:
        s[C].bind(jo, "vthread")
    s[P].compute_at(s[C], jo)
    pi, pj, po = s[P].op.axis
    ko, ki = s[P].split(k, 2)
    s[P].reorder(ko, pi, pj, ki, po, d)
    s[AL].compute_at(s[P], ko)
    s[BL].compute_at(s[P], ko)
    if tensorized:
        s[P].tensorize(po, "vta.gemm")
    return s, [A, B, C]


def numbers(*shape: int) -> NDArray[np.int8]:
    return np.random.default_rng(sum(shape)).integers(-128, 128, shape, np.int8)


def expected(a: NDArray[np.int8], b: NDArray[np.int8]) -> NDArray[np.int8]:
    total = np.einsum("ikd,jkod->ijo", a.astype(np.int32), b.astype(np.int32))
    return np.clip(total >> 7, -128, 127).astype(np.int8)


@pytest.mark.parametrize("threads", [False, True], ids=["one", "two"])
def test_a_product(threads: bool) -> None:
    s, args = product(threads)
    f = t.build(s, args, target="vta")
    a, b, c = numbers(M, K, 16), numbers(N, K, 16, 16), numbers(M, N, 16)
    f(a, b, c)
    np.testing.assert_array_equal(c, expected(a, b))


def test_a_kernel_is_compiled_to_an_executable(tmp_path: Path) -> None:
    s, args = product()
    a, b = numbers(M, K, 16), numbers(N, K, 16, 16)
    exe = tw.compile(t.lower(s, args), target="vta")
    exe.save(tmp_path / "k.tw")
    for made in (exe, tw.load(tmp_path / "k.tw")):
        np.testing.assert_array_equal(made(a, b), expected(a, b))
    (row,) = exe.profile(a, b, repeat=1).simulated
    assert row.name == "C" and row.cycles


def test_its_instructions(golden: Callable[[str, str], None]) -> None:
    s, args = product()
    program = VtaProgram(t.lower(s, args))
    arrays = [numbers(M, K, 16), numbers(N, K, 16, 16), np.zeros((M, N, 16), np.int8)]
    program.check(arrays)
    golden("vta_product", program.text)


def test_loops_of_the_instruction_are_used() -> None:
    s, args = product()
    program = VtaProgram(t.lower(s, args))
    gemms = [i for i in program.instructions if isinstance(i, Gemm) and not i.reset_reg]
    assert len(gemms) == (M // 8) * (N // 2) * (K // 2)
    assert all(
        (i.iter_out, i.iter_in, i.uop_end - i.uop_bgn) == (8, 2, 2) for i in gemms
    )


def test_the_trace_has_the_intrinsic_by_name() -> None:
    assert "vta.gemm" in registry.intrinsics("vta")


def lanes(
    value: Callable[..., object], dtype: str = "int8"
) -> tuple[Schedule, list[Tensor]]:
    """Y = value(x, r) on wide copies of two operands."""
    X, R = (t.placeholder((4, 16), "int8", name=n) for n in "XR")
    XW = t.compute((4, 16), lambda *v: X[v].astype("int32"), name="XW")
    RW = t.compute((4, 16), lambda *v: R[v].astype("int32"), name="RW")
    Y = t.compute((4, 16), lambda *v: value(XW[v], RW[v]).astype(dtype), name="Y")
    s = t.create_schedule(Y.op)
    s[XW].set_scope(ACC)
    s[RW].set_scope(ACC)
    return s, [X, R, Y]


OPERATIONS: dict[str, Callable] = {
    "add": lambda x, r: x + r,
    "subtract": lambda x, r: x - r,
    "subtract 5": lambda x, r: x + r - 5,
    "multiply": lambda x, r: x * r,
    "max and min": lambda x, r: t.max(t.min(x, 100), r),
    "shift": lambda x, r: ((x << 3) + r) >> 2,
    "negate": lambda x, r: -x + r,
    "square": lambda x, r: x * x + r,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_lane_operations(name: str) -> None:
    s, args = lanes(OPERATIONS[name])
    kernel = t.lower(s, args)
    x, r = numbers(4, 16), numbers(16, 4).reshape(4, 16)
    y, same = np.zeros((4, 16), np.int8), np.zeros((4, 16), np.int8)
    VtaProgram(kernel).check([x, r, y])
    t.build(s, args, target="interp")(x, r, same)
    np.testing.assert_array_equal(y, same)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x, r: (x >> 1) + x + r, "does not compute"),
        (lambda x, r: x + r + 100000, "does not compute"),
        (lambda x, r: x // 3 + r, "does not compute"),
    ],
    ids=["a value that is gone", "a constant", "a quotient"],
)
def test_lanes_that_the_alu_has_not(value: Callable, message: str) -> None:
    s, args = lanes(value)
    with pytest.raises(CompileError, match=message):
        VtaProgram(t.lower(s, args))


def test_what_no_instruction_does() -> None:
    s, args = product(tensorized=False)
    with pytest.raises(CompileError, match="ALU does not compute") as error:
        VtaProgram(t.lower(s, args))
    assert error.value.code == "TW-VTA-ALU"
    X = t.placeholder((4, 16), "int8", name="X")
    Y = t.compute((4, 16), lambda *v: X[v], name="Y")
    with pytest.raises(CompileError, match="no instruction") as error:
        VtaProgram(t.lower(t.create_schedule(Y.op), [X, Y]))
    assert error.value.code == "TW-VTA-SCALAR"


def test_more_than_the_chip_holds() -> None:
    X = t.placeholder((5000, 16), "int8", name="X")
    XW = t.compute(X.shape, lambda *v: X[v].astype("int32"), name="XW")
    Y = t.compute(X.shape, lambda *v: XW[v].astype("int8"), name="Y")
    s = t.create_schedule(Y.op)
    s[XW].set_scope(ACC)
    with pytest.raises(CompileError, match="needs 5000 elements of"):
        VtaProgram(t.lower(s, [X, Y]))


def test_tiles_are_whole() -> None:
    X = t.placeholder((4, 24), "int8", name="X")
    XW = t.compute(X.shape, lambda *v: X[v].astype("int32"), name="XW")
    Y = t.compute(X.shape, lambda *v: XW[v].astype("int8"), name="Y")
    s = t.create_schedule(Y.op)
    s[XW].set_scope(ACC)
    with pytest.raises(CompileError, match="elements of 16"):
        VtaProgram(t.lower(s, [X, Y]))


def test_a_value_that_is_read_again_after_an_operation_in_its_place() -> None:
    X = t.placeholder((4, 16), "int8", name="X")
    XW = t.compute(X.shape, lambda *v: X[v].astype("int32"), name="XW")
    Y = t.compute(X.shape, lambda *v: (XW[v] >> 1).astype("int8"), name="Y")
    Z = t.compute(X.shape, lambda *v: (XW[v] >> 2).astype("int8"), name="Z")
    s = t.create_schedule([Y.op, Z.op])
    s[XW].set_scope(ACC)
    with pytest.raises(CompileError, match="read after a lane operation") as error:
        VtaProgram(t.lower(s, [X, Y, Z]))
    assert error.value.code == "TW-VTA-SPENT"


def test_max_pooling() -> None:
    X = t.placeholder((8, 8, 16), "int8", name="X")
    XW = t.compute(X.shape, lambda *v: X[v].astype("int32"), name="XW")
    dy, dx = t.reduce_axis((0, 2)), t.reduce_axis((0, 2))
    P = t.compute(
        (4, 4, 16),
        lambda y, x, c: t.max(XW[2 * y + dy, 2 * x + dx, c], axis=[dy, dx]),
        name="P",
    )
    Y = t.compute(P.shape, lambda *v: P[v].astype("int8"), name="Y")
    s = t.create_schedule(Y.op)
    s[XW].set_scope(ACC)
    s[P].set_scope(ACC)
    y, x, c = s[P].op.axis
    s[P].reorder(dy, dx, y, x, c)
    x_in, out = numbers(8, 8, 16), np.zeros((4, 4, 16), np.int8)
    VtaProgram(t.lower(s, [X, Y])).check([x_in, out])
    np.testing.assert_array_equal(out, x_in.reshape(4, 2, 4, 2, 16).max((1, 3)))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution(stride: int) -> None:
    """Padding as a separate stage in the memory of the inputs, as in VTA's tutorials."""
    size, out = 8, 8 // stride
    X = t.placeholder((2, size, size, 16), "int8", name="X")
    W = t.placeholder((4, 2, 3, 3, 16, 16), "int8", name="W")
    zero = t.const(0, "int8")

    def inside(i: tw.te.Expr) -> tw.te.Expr:
        return t.all(i >= 1, i < size + 1)

    pad = t.compute(
        (2, size + 2, size + 2, 16),
        lambda c, y, x, d: t.if_then_else(
            t.all(inside(y), inside(x)), X[c, y - 1, x - 1, d], zero
        ),
        name="pad",
    )
    c, dy, dx, d = (t.reduce_axis((0, n)) for n in (2, 3, 3, 16))
    P = t.compute(
        (4, out, out, 16),
        lambda o, y, x, n: t.sum(
            pad[c, y * stride + dy, x * stride + dx, d].astype("int32")
            * W[o, c, dy, dx, n, d].astype("int32"),
            [c, dy, dx, d],
        ),
        name="P",
    )
    Y = t.compute(
        P.shape, lambda *v: t.min(t.max(P[v], 0) >> 9, 127).astype("int8"), name="Y"
    )
    s = t.create_schedule(Y.op)
    s[pad].set_scope(INP)
    WL = s.cache_read(W, WGT, [P])
    s[P].set_scope(ACC)
    o, y, x, n = s[Y].op.axis
    oo, yo, oi, yi = s[Y].tile(o, y, 2, 4)
    s[Y].reorder(oo, yo, oi, yi, x, n)
    s[Y].bind(oo, "vthread")
    s[P].compute_at(s[Y], yo)
    po, py, px, pl = s[P].op.axis
    s[P].reorder(c, po, py, px, dy, dx, pl, d)
    s[pad].compute_at(s[P], c)
    s[WL].compute_at(s[P], c)
    s[P].tensorize(pl, "vta.gemm")
    a, b = numbers(2, size, size, 16), numbers(4, 2, 3, 3, 16, 16)
    found, same = (np.zeros((4, out, out, 16), np.int8) for _ in range(2))
    VtaProgram(t.lower(s, [X, W, Y])).check([a, b, found])
    shape = Convolution(32, 64, (size, size), (3, 3), (stride, stride), (1, 1))
    program = VtaProgram(
        schedule(convolution(shape, Requantize(9, relu=True, bias=False))).kernel
    )
    program([a, b, same])
    np.testing.assert_array_equal(found, same)


def test_loads_wait_for_stores_through_dram() -> None:
    """Load and store are not neighbors: the compute module passes the token on."""
    X = t.placeholder((8, 16), "int8", name="X")
    W = t.placeholder((16, 16), "int8", name="W")
    XW = t.compute(X.shape, lambda *v: X[v].astype("int32"), name="XW")
    Y = t.compute(X.shape, lambda *v: (XW[v] >> 3).astype("int8"), name="Y")
    d = t.reduce_axis((0, 16))
    P = t.compute(
        (8, 16),
        lambda i, o: t.sum(Y[i, d].astype("int32") * W[o, d].astype("int32"), axis=d),
        name="P",
    )
    Z = t.compute(P.shape, lambda *v: (P[v] >> 6).astype("int8"), name="Z")
    s = t.create_schedule(Z.op)
    s[XW].set_scope(ACC)
    s.cache_read(Y, INP, [P])
    s.cache_read(W, WGT, [P])
    s[P].set_scope(ACC)
    s[P].tensorize(s[P].op.axis[1], "vta.gemm")
    x, w, z = numbers(8, 16), numbers(16, 16), np.zeros((8, 16), np.int8)
    VtaProgram(t.lower(s, [X, W, Z])).check([x, w, z])
    y = (x >> 3).astype(np.int32)
    np.testing.assert_array_equal(z, ((y @ w.T.astype(np.int32)) >> 6).astype(np.int8))


def test_batch_normalization_and_what_follows() -> None:
    """A factor and a summand per channel, a residual, ReLU, shift and clip, after a product."""
    A = t.placeholder((8, 2, 16), "int8", name="A")
    B = t.placeholder((3, 2, 16, 16), "int8", name="B")
    F, G = (t.placeholder((3, 16), "int32", name=n) for n in "FG")
    R = t.placeholder((8, 3, 16), "int8", name="R")
    k, d = t.reduce_axis((0, 2)), t.reduce_axis((0, 16))
    P = t.compute(
        (8, 3, 16),
        lambda i, j, o: t.sum(
            A[i, k, d].astype("int32") * B[j, k, o, d].astype("int32"), [k, d]
        ),
        name="P",
    )
    RW = t.compute(R.shape, lambda *v: R[v].astype("int32"), name="RW")
    Y = t.compute(
        P.shape,
        lambda i, j, o: t.min(
            t.max((P[i, j, o] >> 4) * F[j, o] + G[j, o] + (RW[i, j, o] << 6), 0) >> 9,
            127,
        ).astype("int8"),
        name="Y",
    )
    s = t.create_schedule(Y.op)
    s.cache_read(A, INP, [P])
    s.cache_read(B, WGT, [P])
    FL, GL = s.cache_read(F, ACC, [Y]), s.cache_read(G, ACC, [Y])
    for stage in (P, RW):
        s[stage].set_scope(ACC)
    i, j, o = s[Y].op.axis
    s[Y].reorder(j, i, o)
    for stage in (P, RW, FL, GL):
        s[stage].compute_at(s[Y], j)
    pi, pj, po = s[P].op.axis
    s[P].reorder(k, pi, pj, po, d)
    s[P].tensorize(po, "vta.gemm")
    a, b, r = numbers(8, 2, 16), numbers(3, 2, 16, 16), numbers(8, 3, 16)
    f, g = (numbers(3, 16).astype(np.int32) * n for n in (1, 50))
    y = np.zeros((8, 3, 16), np.int8)
    VtaProgram(t.lower(s, [A, B, F, G, R, Y])).check([a, b, f, g, r, y])
    sums = np.einsum("ikd,jkod->ijo", a.astype(np.int32), b.astype(np.int32)) >> 4
    total = np.maximum(sums * f + g + (r.astype(np.int32) << 6), 0)
    np.testing.assert_array_equal(y, np.minimum(total >> 9, 127))


def test_a_depthwise_convolution() -> None:
    """Products of lanes on the ALU, summed up step by step."""
    X = t.placeholder((6, 6, 16), "int8", name="X")
    W = t.placeholder((3, 3, 16), "int8", name="W")
    XW = t.compute(X.shape, lambda *v: X[v].astype("int32"), name="XW")
    WW = t.compute(W.shape, lambda *v: W[v].astype("int32"), name="WW")
    T = t.compute(
        (4, 4, 3, 3, 16),
        lambda y, x, dy, dx, c: XW[y + dy, x + dx, c] * WW[dy, dx, c],
        name="T",
    )
    dy, dx = t.reduce_axis((0, 3)), t.reduce_axis((0, 3))
    P = t.compute(
        (4, 4, 16), lambda y, x, c: t.sum(T[y, x, dy, dx, c], axis=[dy, dx]), name="P"
    )
    Y = t.compute(
        P.shape, lambda *v: t.max(t.min(P[v] >> 8, 127), 0).astype("int8"), name="Y"
    )
    s = t.create_schedule(Y.op)
    for stage in (XW, WW, T, P):
        s[stage].set_scope(ACC)
    y, x, c = s[P].op.axis
    s[P].reorder(dy, dx, y, x, c)
    s[T].compute_at(s[P], dx)
    x_in, w, out = numbers(6, 6, 16), numbers(3, 3, 16), np.zeros((4, 4, 16), np.int8)
    VtaProgram(t.lower(s, [X, W, Y])).check([x_in, w, out])
    view = np.lib.stride_tricks.sliding_window_view(
        x_in.astype(np.int32), (3, 3), (0, 1)
    )
    total = np.einsum("yxckl,klc->yxc", view, w.astype(np.int32))
    np.testing.assert_array_equal(out, np.clip(total >> 8, 0, 127))
