"""MDH's directive: loops become the expression that the three parts would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import mdh
from tilewright.base.errors import InputError
from tilewright.lang.mdh import (
    Buffer,
    add,
    argmax,
    cc,
    combine_ops,
    exp,
    float32,
    inp,
    inp_view,
    int64,
    md_hom,
    mul,
    out,
    out_view,
    ps,
    pw,
    select,
)

ROWS, K = 6, 9
RNG = np.random.default_rng(0)


@mdh.mdh(
    out(w=Buffer[float32]),
    inp(M=Buffer[float32], v=Buffer[float32]),
    combine_ops(cc, pw(add)),
)
def mat_vec(w, M, v):
    """A matrix and a vector."""
    for i in range(ROWS):
        for k in range(K):
            w[i] = M[i, k] * v[k]


def test_the_papers_example_is_the_expression_of_three_parts() -> None:
    same = (
        out_view[float32](w=[lambda i, k: i])
        @ md_hom[ROWS, K](mul, (cc, pw(add)), name="mat_vec")
        @ inp_view[float32, float32](M=[lambda i, k: (i, k)], v=[lambda i, k: k])
    )
    assert mdh.equal(mat_vec, same) and repr(mat_vec) == repr(same)
    M, v = RNG.random((ROWS, K), np.float32), RNG.random(K, np.float32)
    w = np.empty(ROWS, np.float32)
    mdh.build(mat_vec)(M, v, w)
    np.testing.assert_allclose(w, M @ v, rtol=1e-5)


def test_a_generic_function_has_sizes_and_types_of_its_own() -> None:
    def product(T: Any, M: int, N: int, L: int) -> Any:
        @mdh.mdh(
            out(C=Buffer[T, [M, N]]),
            inp(A=Buffer[T, [M, L]], B=Buffer[T, L, N + 1]),
            combine_ops(cc, cc, pw(add)),
        )
        def mat_mul(C, A, B):
            for i in range(M):
                for j in range(N):
                    for k in range(L):
                        C[i, j] = A[i, k] * B[k, j]

        return mat_mul

    for T, M, N, L in ((float32, 3, 4, 5), (int64, 2, 7, 3)):
        made = product(T, M, N, L)
        a, b = (RNG.integers(0, 9, s).astype(T.numpy) for s in ((M, L), (L, N + 1)))
        c = np.empty((M, N), T.numpy)
        mdh.build(made)(a, b, c)
        np.testing.assert_allclose(c, (a @ b)[:, :N], rtol=1e-5)


def test_sizes_that_a_call_gives() -> None:
    @mdh.generic
    def MatVec(T, M, L):
        @mdh.mdh(
            out(w=Buffer[T, M]),
            inp(A=Buffer[T, [M, L]], v=Buffer[T, L]),
            combine_ops(cc, pw(add)),
        )
        def directive(w, A, v):
            for i in range(M):
                for k in range(L):
                    w[i] = A[i, k] * v[k]

        return directive

    f = mdh.build(MatVec[float32])
    for shape in ((3, 5), (17, 2)):
        a, v = RNG.random(shape, np.float32), RNG.random(shape[1], np.float32)
        w = np.empty(shape[0], np.float32)
        f(a, v, w)
        np.testing.assert_allclose(w, a @ v, rtol=1e-5)


def test_stencils_scans_several_results_and_statements() -> None:
    @mdh.mdh(out(y=Buffer[float32]), inp(x=Buffer[float32]), combine_ops(cc))
    def blur(y, x):
        for i in range(8):
            left = select(i < 1, 0.0, x[i - 1])
            total = left + x[i] + x[i + 1]
            y[i] = exp(total) + total

    x, y = RNG.random(9, np.float32), np.empty(8, np.float32)
    mdh.build(blur)(x, y)
    total = np.r_[0, x[:7]] + x[:8] + x[1:]
    np.testing.assert_allclose(y, np.exp(total) + total, rtol=1e-5)

    @mdh.mdh(
        out(v=Buffer[float32], at=Buffer[int64]),
        inp(x=Buffer[float32]),
        combine_ops(cc, pw(argmax)),
    )
    def best(v, at, x):
        for i in range(4):
            for k in range(7):
                v[i], at[i] = x[i, k], k

    x, v, at = (
        RNG.random((4, 7), np.float32),
        np.empty(4, np.float32),
        np.empty(4, np.int64),
    )
    mdh.build(best)(x, v, at)
    np.testing.assert_array_equal(at, x.argmax(1))

    @mdh.mdh(
        out(y=Buffer[float32]), inp(A=Buffer[float32]), combine_ops(ps(add), pw(add))
    )
    def mbbs(y, A):
        for i in range(4):
            for j in range(7):
                y[i] = A[i, j]

    y = np.empty(4, np.float32)
    mdh.build(mbbs)(x, y)
    np.testing.assert_allclose(y, x.sum(1).cumsum(), rtol=1e-5)

    @mdh.mdh(out(d=Buffer[float32]), inp(a=Buffer[float32]), combine_ops(pw(add)))
    def total_of(d, a):
        for k in range(5):
            d[()] = a[k] * a[k] + a[k]

    d = np.empty((), np.float32)
    mdh.build(total_of)(x[0, :5].copy(), d)
    np.testing.assert_allclose(d, (x[0, :5] ** 2 + x[0, :5]).sum(), rtol=1e-5)


def two(w, x):
    for i in range(4):
        w[i] = x[i]
    for i in range(4):
        w[i] = x[i]


def stepped(w, x):
    for i in range(0, 4, 2):
        w[i] = x[i]


def summed(w, x):
    for i in range(4):
        w[i] += x[i]


def twice(w, x):
    for i in range(4):
        w[i] = x[i]
        w[i] = x[i] * 2.0


def backwards(w, x):
    for i in range(4):
        x[i] = 1.0


def unused(w, x):
    for i in range(4):
        w[i] = 1.0


def silent(w, x):
    for i in range(4):
        x[i] * 2.0


def swapped(x, w):
    for i in range(4):
        w[i] = x[i]


def branching(w, x):
    for i in range(4):
        if x[i] > 0.0:
            w[i] = x[i]


def nested(w, x):
    for i in range(4):
        for _j in range(3):
            w[i] = x[i]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (two, "two: its body is not one loop"),
        (stepped, r"for i in range\(0, 4, 2\):.*a loop is `for i in range\(I\):`"),
        (summed, "w: a result is read; assign what is combined"),
        (twice, "w: one element is assigned twice"),
        (backwards, "x: an input is written"),
        (unused, "x: it is never read"),
        (silent, "w: it is never assigned"),
        (swapped, "takes x, w; its parameters are the buffers: w, x"),
        (branching, "select"),
        (nested, r"2 dimension\(s\), 1 combine operator"),
    ],
)
def test_what_is_not_a_nest_is_refused(body: Any, message: str) -> None:
    directive = mdh.mdh(out(w=Buffer[float32]), inp(x=Buffer[float32]), combine_ops(cc))
    with pytest.raises(InputError, match=message):
        directive(body)


def test_other_directives_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"a directive of out, combine_ops; write @mdh\(out"
    ):
        mdh.mdh(out(w=Buffer[float32]), combine_ops(cc))
    with pytest.raises(InputError, match=r"inp: x is 3; write inp\(x=Buffer"):
        inp(x=3)  # type: ignore[arg-type]
    scope: dict[str, Any] = {}
    exec("def f(w, x):\n    for i in range(4): w[i] = x[i]", scope)
    with pytest.raises(InputError, match="f: its source is not available"):
        mdh.mdh(out(w=Buffer[float32]), inp(x=Buffer[float32]), combine_ops(cc))(
            scope["f"]
        )
