"""Functions of the user's own, in Python and C, between the compiled parts of a program."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, ScheduleError, UnsupportedError
from tilewright.loops.nodes import Kernel

RNG = np.random.default_rng(8)
a, b = RNG.standard_normal((2, 6, 6), dtype=np.float32)
A, B = t.placeholder((6, 6), name="A"), t.placeholder((6, 6), name="B")


def matmul(x: Any, y: Any, out: Any) -> None:
    out[...] = x @ y


def product(x: t.Tensor, y: t.Tensor, name: str = "P") -> t.Tensor:
    call = lambda ins, outs: t.call_packed(matmul, *ins, *outs)  # noqa: E731
    return t.extern((6, 6), [x, y], call, name=name)


def run(out: t.Tensor, *args: t.Tensor, **options: Any) -> np.ndarray:
    found = np.empty(tuple(out.shape), out.dtype.numpy)
    s = t.create_schedule(out.op)
    t.build(s, [*args, out], **options)(*(a, b)[: len(args)], found)
    return found


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_a_python_function_between_two_kernels(target: str) -> None:
    C = t.compute((6, 6), lambda i, j: A[i, j] * 2.0, name="C")
    P = product(C, B)
    D = t.compute((6, 6), lambda i, j: P[i, j] + C[i, j], name="D")
    want = (2 * a) @ b + 2 * a
    np.testing.assert_allclose(run(D, A, B, target=target), want, rtol=1e-5)


def test_two_calls_and_what_is_compiled_together() -> None:
    P = product(A, B)
    E = t.compute(
        (6, 6), lambda i, j: A[i, j] + 1.0, name="E"
    )  # needed after the calls only
    Q = product(P, A, "Q")
    D = t.compute((6, 6), lambda i, j: Q[i, j] * E[i, j], name="D")
    s = t.create_schedule(D.op)
    s[E].compute_at(s[D], s[D].op.axis[0])
    shown = str(s)
    assert shown.startswith("call matmul(A, B, P)\ncall matmul(P, A, Q)\nkernel D(")
    assert "  for D.i in 6:\n    alloc E: float32[1, 6]" in shown
    found = np.empty((6, 6), np.float32)
    t.build(s, [D, A, B])(found, a, b)
    np.testing.assert_allclose(found, a @ b @ a * (a + 1), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"P is made by a call.*build"):
        t.lower(s, [A, B, D])


def test_a_producer_cannot_move_past_a_call() -> None:
    C = t.compute((6, 6), lambda i, j: A[i, j] * 2.0, name="C")
    P = product(C, B)
    D = t.compute((6, 6), lambda i, j: P[i, j] + C[i, j], name="D")
    s = t.create_schedule(D.op)
    s[C].compute_at(s[D], s[D].op.axis[0])
    with pytest.raises(ScheduleError, match="a call of a function is between it and D"):
        t.build(s, [A, B, D])


def test_a_c_function() -> None:
    source = ctypes.CFUNCTYPE(
        None, *[ctypes.c_void_p] * 2, ctypes.c_double, ctypes.c_int64
    )

    def scale(x: int, out: int, factor: float, count: int) -> None:
        of = ctypes.c_float * count
        for n, value in enumerate(of.from_address(x)):
            of.from_address(out)[n] = value * factor

    native = source(scale)
    one = t.extern(
        (6, 6),
        [A],
        lambda ins, outs: t.call_extern("int32", native, ins[0], outs[0], 3.0, 36),
        name="one",
    )
    np.testing.assert_allclose(run(one, A), a * 3, rtol=1e-6)
    libc = ctypes.CDLL(None)
    copied = t.extern(
        (6, 6), [A], lambda ins, outs: t.call_packed(libc.memcpy, outs[0], ins[0], 144)
    )
    np.testing.assert_array_equal(run(copied, A), a)
    with pytest.raises(InputError, match="matmul is not a C function"):
        t.call_extern("int32", matmul)


def test_a_function_by_its_name_and_several_outputs() -> None:
    @t.register_func("tests.split")
    def split(x: Any, low: Any, high: Any, at: float) -> None:
        low[...] = np.minimum(x, at)
        high[...] = x > at

    low, high = t.extern(
        [(6, 6), (6, 6)],
        [A],
        lambda ins, outs: [t.call_packed("tests.split", ins[0], *outs, 0.5)],
        dtype=["float32", "bool"],
        name="S",
    )
    found, above = np.empty((6, 6), np.float32), np.empty((6, 6), bool)
    t.build(t.create_schedule([low.op]), [A, low, high])(a, found, above)
    np.testing.assert_array_equal(found, np.minimum(a, 0.5))
    np.testing.assert_array_equal(above, a > 0.5)
    with pytest.raises(InputError, match=r"there is a function 'tests.split'"):
        t.register_func("tests.split", split)


def test_inputs_are_read_only() -> None:
    def wrong(x: Any, out: Any) -> None:
        x[...] = 0

    C = t.extern((6, 6), [A], lambda ins, outs: t.call_packed(wrong, *ins, *outs))
    with pytest.raises(ValueError, match="read-only"):
        run(C, A)


def kernel() -> Kernel:
    X = t.placeholder((6, 6), name="X")
    k = t.reduce_axis((0, 6), name="k")
    Y = t.compute((6, 6), lambda i, j: t.sum(X[i, k] * X[j, k], axis=k), name="Y")
    return t.create_prim_func([X, Y])


def test_a_kernel_is_a_part_of_the_program() -> None:
    C = t.compute(
        (6, 6), lambda i, j: A[i, j] * 2.0, name="Y"
    )  # the kernel's own names
    G = t.extern_primfunc([C], kernel(), name="G")
    H = t.extern_primfunc([G], kernel(), name="H")
    D = t.compute((6, 6), lambda i, j: H[i, j] + 1.0, name="D")
    s = t.create_schedule(D.op)
    s[C].compute_at(s[D], s[D].op.axis[0])
    with pytest.raises(ScheduleError):
        str(s)  # the kernel between them reads all of it
    s = t.create_schedule(D.op)
    i, j = s[G].op.axis
    s[G].parallel(s[G].split(i, 2)[0])
    s[D].vectorize(s[D].op.axis[1])
    found = np.empty((6, 6), np.float32)
    t.build(s, [A, D])(a, found)
    g = 4 * a @ a.T
    np.testing.assert_allclose(found, g @ g.T + 1, rtol=1e-4)
    assert "in 3 parallel" in str(s)
    with pytest.raises(ScheduleError, match="j is not a loop of H"):
        s[H].vectorize(j)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: t.extern((3,), [A], lambda i, o: None), "the function returns None"),
        (lambda: t.call_packed("tests.nothing"), "no function 'tests.nothing'"),
        (
            lambda: t.extern(
                (3,), [A], lambda i, o: t.call_packed(matmul, B, o[0]), name="C"
            ),
            "reads B, no input",
        ),
        (
            lambda: t.extern(
                (3,),
                [A, t.placeholder((2,), "int32")],
                lambda i, o: t.call_packed(matmul, *o),
            ),
            "no common dtype",
        ),
        (lambda: t.extern_primfunc([t.placeholder((2, 2))], kernel()), "kernel takes"),
        (lambda: t.call_packed(matmul, [1]), r"the argument \[1\]"),
    ],
)
def test_what_does_not_fit(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_calls_are_not_scheduled_automatically() -> None:
    P = product(A, B)
    with pytest.raises(ScheduleError, match="this program calls functions"):
        t.build(t.create_schedule(P.op), [A, B, P], auto=True)
    with pytest.raises(UnsupportedError, match="SpecializedCondition"):
        t.SpecializedCondition()


def test_arrays_that_do_not_fit() -> None:
    P = product(A, B)
    f = t.build(t.create_schedule(P.op), [A, B, P])
    with pytest.raises(InputError, match="2 arrays given, 3 expected"):
        f(a, b)
    with pytest.raises(InputError, match=r"B.*was given an array float64"):
        f(a, b.astype(np.float64), np.empty((6, 6), np.float32))


def test_sizes_may_be_open() -> None:
    n = t.var("n")
    A = t.placeholder((n, 3), name="A")
    twice = t.compute((n, 3), lambda i, j: A[i, j] * 2.0)
    ordered = t.extern(
        (n, 3),
        [twice],
        lambda ins, outs: t.call_packed(_sorted, ins[0], outs[0]),
    )
    C = t.compute((n, 3), lambda i, j: ordered[i, j] + 1.0)
    f = t.build(t.create_schedule(C.op), [A, C])
    for rows in (4, 7, 0):
        a = np.random.default_rng(rows).standard_normal((rows, 3), dtype=np.float32)
        c = np.empty_like(a)
        f(a, c)
        np.testing.assert_array_equal(c, np.sort(a * 2, axis=0) + 1)


def _sorted(a: np.ndarray, out: np.ndarray) -> None:
    out[...] = np.sort(a, axis=0)
