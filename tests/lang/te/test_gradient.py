"""gradient: against differences in float64, for computes of every form that has a derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, UnsupportedError

RNG = np.random.default_rng(6)


def run(out: Sequence[t.Tensor], given: dict[t.Tensor, np.ndarray]) -> list[np.ndarray]:
    s = t.create_schedule([x.op for x in out])
    read = [x for x in given if x in s.inputs]
    found = [np.empty(tuple(x.shape), x.dtype.numpy) for x in out]
    t.build(s, [*read, *out], target="interp")(*(given[x] for x in read), *found)
    return found


def tensors(*shapes: tuple[int, ...]) -> list[t.Tensor]:
    return [t.placeholder(s, "float64", name=f"X{n}") for n, s in enumerate(shapes)]


def matmul(A, B):
    k = t.reduce_axis((0, 4), name="k")
    return t.compute((3, 5), lambda i, j: t.sum(A[i, k] * B[k, j], axis=k), name="C")


def padded_convolution(X, W):
    r = t.reduce_axis((0, 3), name="r")
    read = lambda i: t.if_then_else(t.all(i > 0, i < 7), X[i - 1], 0.0)  # noqa: E731
    return t.compute((6,), lambda i: t.sum(read(i + r) * W[r], axis=r), name="C")


def softmax(X):
    k = t.reduce_axis((0, 4), name="k")
    top = t.compute((3,), lambda i: t.max(X[i, k], axis=k), name="top")
    e = t.compute((3, 4), lambda i, j: t.exp(X[i, j] - top[i]), name="e")
    total = t.compute((3,), lambda i: t.sum(e[i, k], axis=k), name="total")
    return t.compute((3, 4), lambda i, j: e[i, j] / total[i], name="Y")


def functions(X):
    def value(i):
        x = X[i]
        one = t.tanh(x) * t.sigmoid(x) + t.erf(x) - t.sqrt(x * x + 1.0) / t.exp(x)
        two = t.log(x * x + 2.0) + t.sin(x) * t.cos(2.0 * x) + t.atan(x) + t.abs(x)
        return t.max(one, two) + t.power(x * x + 0.5, x) - t.min(x, 0.3) + t.floor(x)

    return t.compute((7,), value, name="Y")


def transposed_twice(X):
    return t.compute((4, 4), lambda i, j: X[j, i] * X[i, j] + X[i, i] * 2.0, name="Y")


def shared(X):
    Y = t.compute((5,), lambda i: X[i] * X[i], name="Y")
    return t.compute((5,), lambda i: Y[i] * X[4 - i] + Y[i], name="Z")


def least(X):
    k, m = t.reduce_axis((1, 4), name="k"), t.reduce_axis((0, 2), name="m")
    return t.compute((2,), lambda i: t.min(X[i, k, m] * 3.0, axis=[k, m]), name="L")


def a_part(X):
    """Only some elements are read, by an axis that begins later and ends earlier."""
    k = t.reduce_axis((1, 4), name="k")
    return t.compute((2,), lambda i: t.sum(X[i, k] * X[i, k], axis=k), name="P")


def product(X):
    k = t.reduce_axis((0, 4), name="k")
    return t.compute((3,), lambda i: t.prod(X[i, k] * 2.0, axis=k), name="P")


def product_of_squares(X, W):
    k, j = t.reduce_axis((0, 3), name="k"), t.reduce_axis((0, 2), name="j")
    factor = lambda i: X[i + k] * X[i + k] - W[j]  # noqa: E731
    return t.compute((2,), lambda i: t.prod(factor(i), axis=[k, j]), name="P")


def greatest_of_a_tuple(X):
    k = t.reduce_axis((0, 5), name="k")
    V, _ = t.compute((3,), lambda i: t.argmax(t.sin(X[i, k]) * 2.0, axis=k), name="V")
    return t.compute((3,), lambda i: V[i] * V[i], name="Y")


def least_of_a_tuple(X):
    k = t.reduce_axis((0, 6), name="k")
    V, _ = t.compute((1,), lambda i: t.argmin(X[k] + X[0], axis=k), name="V")
    return t.compute((1,), lambda i: V[i] * 2.0, name="Y")


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "matmul": (matmul, ((3, 4), (4, 5))),
    "convolution": (padded_convolution, ((6,), (3,))),
    "softmax": (softmax, ((3, 4),)),
    "functions": (functions, ((7,),)),
    "two reads": (transposed_twice, ((4, 4),)),
    "shared": (shared, ((5,),)),
    "a part": (a_part, ((3, 6),)),
    "least": (least, ((2, 5, 2),)),
    "product": (product, ((3, 4),)),
    "products": (product_of_squares, ((4,), (2,))),
    "argmax": (greatest_of_a_tuple, ((3, 5),)),
    "argmin": (least_of_a_tuple, ((6,),)),
}


def differences(make, inputs, given, n):
    """The Jacobian by the n-th input, (*output.shape, *input.shape)."""
    out = make(*inputs)
    columns = []
    for place in np.ndindex(given[n].shape):
        two = []
        for by in (1e-5, -1e-5):
            moved = [a.copy() for a in given]
            moved[n][place] += by
            two.append(run([out], dict(zip(inputs, moved, strict=True)))[0])
        columns.append((two[0] - two[1]) / 2e-5)
    return np.stack(columns, -1).reshape(*out.shape, *given[n].shape)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_jacobians_and_products(name):
    make, shapes = CASES[name]
    inputs = tensors(*shapes)
    given = [RNG.standard_normal(s) for s in shapes]
    known = dict(zip(inputs, given, strict=True))
    out = make(*inputs)
    wanted = [differences(make, inputs, given, n) for n in range(len(inputs))]
    for found, want in zip(run(t.gradient(out, inputs), known), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)
    head = t.placeholder(tuple(out.shape), "float64", name="H")
    weights = RNG.standard_normal(tuple(out.shape))
    made = t.gradient(out, inputs, head)
    for found, want in zip(run(made, known | {head: weights}), wanted, strict=True):
        sums = np.tensordot(weights, want, weights.ndim)
        np.testing.assert_allclose(found, sums, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("zeros", [(), (1,), (1, 3)])
def test_factors_of_a_product_that_are_0(zeros):
    [X] = tensors((4,))
    k = t.reduce_axis((0, 4), name="k")
    P = t.compute((1,), lambda i: t.prod(X[k], axis=k), name="P")
    x = np.array([2.0, -3.0, 5.0, 0.5])
    x[list(zeros)] = 0.0
    [found] = run(t.gradient(P, X), {X: x})
    want = [np.prod(np.delete(x, n)) for n in range(4)]
    np.testing.assert_allclose(found, [want], rtol=1e-12)


def test_one_of_equal_elements_is_the_greatest():
    [X] = tensors((4,))
    k = t.reduce_axis((0, 4), name="k")
    V, _ = t.compute((1,), lambda i: t.argmax(X[k], axis=k), name="V")
    [found] = run(t.gradient(V, X), {X: np.array([1.0, 3.0, 3.0, 2.0])})
    np.testing.assert_array_equal(found, [[0.0, 1.0, 0.0, 0.0]])


def test_a_matrix_products_gradient_is_matrix_products():
    A, B = tensors((3, 4), (4, 5))
    head = t.placeholder((3, 5), "float64", name="H")
    dA, dB = t.gradient(matmul(A, B), [A, B], head)
    assert t.show(t.computation(dA.op)).count("sum(") == 1
    s = t.create_schedule([dA.op, dB.op])
    s[dA].vectorize(s[dA].op.axis[1])
    assert "X0" not in [x.name for x in dA.op.inputs]
    assert "dC_dX0.i1 in 4 vector" in str(s)


def test_sizes_that_a_call_decides():
    n, m = t.var("n"), t.var("m")
    A, H = t.placeholder((n, m), name="A"), t.placeholder((n,), name="H")
    k = t.reduce_axis((0, m), name="k")
    S = t.compute((n,), lambda i: t.sum(t.exp(A[i, k]), axis=k), name="S")
    shifted = t.compute((n,), lambda i: S[i] * S[n - 1 - i], name="R")
    for out, want in (
        (S, lambda e, h: h[:, None] * e),
        (shifted, lambda e, h: ((h + h[::-1]) * e.sum(1)[::-1])[:, None] * e),
    ):
        [dA] = t.gradient(out, A, H)
        f = t.build(t.create_schedule(dA.op), [A, H, dA])
        for shape in ((3, 4), (2, 5)):
            a = RNG.standard_normal(shape).astype(np.float32)
            h = RNG.standard_normal(shape[:1]).astype(np.float32)
            found = np.empty(shape, np.float32)
            f(a, h, found)
            np.testing.assert_allclose(found, want(np.exp(a), h), rtol=1e-4)


def test_what_an_output_does_not_depend_on():
    A, B, C = tensors((3, 4), (4, 5), (2,))
    [dC] = t.gradient(matmul(A, B), C)
    assert run([dC], {})[0].shape == (3, 5, 2) and not run([dC], {})[0].any()


def test_what_has_no_gradient():
    [X] = tensors((4,))
    k = t.reduce_axis((0, 4), name="k")
    both = t.comm_reducer(
        lambda a, b: a + b + a * b, lambda d: t.const(0, d), name="max"
    )
    ends = t.compute((1,), lambda i: both(X[k], axis=k), name="P")
    with pytest.raises(UnsupportedError, match="P reduces by max"):
        t.gradient(ends, X)
    gamma = t.compute((4,), lambda i: t.tgamma(X[i]), name="G")
    with pytest.raises(UnsupportedError, match="gamma has no derivative"):
        t.gradient(gamma, X)
    called = t.extern((4,), [X], lambda i, o: t.call_packed(print, i[0]), name="E")
    with pytest.raises(UnsupportedError, match="E has no derivative"):
        t.gradient(called, X)
    with pytest.raises(InputError, match="does not end with the shape"):
        t.gradient(gamma, X, t.placeholder((3,), "float64"))
    with pytest.raises(InputError, match="not a tensor of floats"):
        t.gradient(t.compute((4,), lambda i: i, name="I"), X)
