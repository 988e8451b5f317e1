"""Operators written in te, each with what NumPy says; sizes are odd on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import te as t


@dataclass(frozen=True)
class Case:
    """Tensors of a program, inputs first, and its reference on arrays."""

    inputs: tuple[t.Tensor, ...]
    outputs: tuple[t.Tensor, ...]
    reference: Callable[..., Any]

    @property
    def args(self) -> list[t.Tensor]:
        return [*self.inputs, *self.outputs]

    def arrays(self, seed: int = 0) -> list[Any]:
        """Random inputs, and outputs full of a value that nothing computes."""
        rng = np.random.default_rng(seed)
        made = []
        for x in self.inputs:
            if x.dtype.is_float:
                made.append(rng.standard_normal(x.shape).astype(x.dtype.numpy))
            else:
                made.append(rng.integers(0, 4, x.shape).astype(x.dtype.numpy))
        return [*made, *(np.full(y.shape, 77, y.dtype.numpy) for y in self.outputs)]

    def check(self, f: Callable[..., Any]) -> None:
        """`f` on arrays agrees with the reference."""
        arrays = self.arrays()
        f(*arrays)
        n = len(self.inputs)
        wanted = self.reference(*arrays[:n])
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, want in zip(arrays[n:], wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def matmul(m: int = 13, n: int = 19, p: int = 17) -> Case:
    A, B = t.placeholder((m, p)), t.placeholder((p, n))
    k = t.reduce_axis((0, p))
    C = t.compute((m, n), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k))
    return Case((A, B), (C,), np.matmul)


def batched_matmul() -> Case:
    A, B = t.placeholder((3, 5, 7)), t.placeholder((3, 7, 9))
    k = t.reduce_axis((0, 7))
    C = t.compute((3, 5, 9), lambda b, y, x: t.sum(A[b, y, k] * B[b, k, x], axis=k))
    return Case((A, B), (C,), np.matmul)


def conv2d() -> Case:
    X, W = t.placeholder((1, 3, 7, 9)), t.placeholder((4, 3, 3, 3))
    pad = t.compute(
        (1, 3, 9, 11),
        lambda n, c, y, x: t.if_then_else(
            t.all(y >= 1, y < 8, x >= 1, x < 10), X[n, c, y - 1, x - 1], 0.0
        ),
    )
    c, dy, dx = t.reduce_axis((0, 3)), t.reduce_axis((0, 3)), t.reduce_axis((0, 3))
    Y = t.compute(
        (1, 4, 7, 9),
        lambda n, f, y, x: t.sum(
            pad[n, c, y + dy, x + dx] * W[f, c, dy, dx], axis=[c, dy, dx]
        ),
    )

    def reference(x: Any, w: Any) -> Any:
        wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
        return np.einsum("ncyxij,fcij->nfyx", windows, w)

    return Case((X, W), (Y,), reference)


def softmax(m: int = 5, n: int = 11) -> Case:
    X = t.placeholder((m, n))
    k = t.reduce_axis((0, n))
    top = t.compute((m,), lambda i: t.max(X[i, k], axis=k))
    e = t.compute((m, n), lambda i, j: t.exp(X[i, j] - top[i]))
    total = t.compute((m,), lambda i: t.sum(e[i, k], axis=k))
    Y = t.compute((m, n), lambda i, j: e[i, j] / total[i])

    def reference(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return Case((X,), (Y,), reference)


def layer_norm(m: int = 5, n: int = 12) -> Case:
    X, gamma, beta = t.placeholder((m, n)), t.placeholder((n,)), t.placeholder((n,))
    k = t.reduce_axis((0, n))
    total = t.compute((m,), lambda i: t.sum(X[i, k], axis=k))
    mean = t.compute((m,), lambda i: total[i] / n)
    square = t.compute(
        (m,), lambda i: t.sum((X[i, k] - mean[i]) * (X[i, k] - mean[i]), axis=k)
    )
    Y = t.compute(
        (m, n),
        lambda i, j: (
            (X[i, j] - mean[i]) / t.sqrt(square[i] / n + 1e-5) * gamma[j] + beta[j]
        ),
    )

    def reference(x: Any, g: Any, b: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * g + b

    return Case((X, gamma, beta), (Y,), reference)


def argmax() -> Case:
    X = t.placeholder((4, 9))
    k = t.reduce_axis((0, 9))
    V, I = t.compute((4,), lambda i: t.argmax(X[i, k], axis=k))  # noqa: E741
    return Case((X,), (V, I), lambda x: (x.max(1), x.argmax(1)))


def prefix_scan() -> Case:
    X = t.placeholder((3, 8))
    Y = t.compute((3, 8), lambda i, j: t.scan_op(t.sum)(X[i, j], axis=j))
    return Case((X,), (Y,), lambda x: np.cumsum(x, 1))


def recurrence() -> Case:
    X, state = t.placeholder((6, 5)), t.placeholder((6, 5))
    init = t.compute((1, 5), lambda _, i: X[0, i])
    half = t.compute((6, 5), lambda s, i: state[s - 1, i] * 0.5)
    update = t.compute((6, 5), lambda s, i: half[s, i] + X[s, i])
    Y = t.scan(init, update, state, inputs=[X])

    def reference(x: Any) -> Any:
        y = x.copy()
        for s in range(1, len(x)):
            y[s] = 0.5 * y[s - 1] + x[s]
        return y

    return Case((X,), (Y,), reference)


def two_states() -> Case:
    """Two sequences that read each other, from two given slices on; A is bound by a default."""
    A, start = t.placeholder((7, 3)), t.placeholder((2, 3))
    p, q = t.placeholder((7, 3)), t.placeholder((7, 3))
    zero = t.compute((2, 3), lambda s, i: 0.0)
    P = t.compute((7, 3), lambda s, i, A=A: p[s - 1, i] - q[s - 2, i] + A[s, i])
    Q = t.compute((7, 3), lambda s, i: q[s - 1, i] + p[s - 2, i] * 0.25)
    X, Y = t.scan([start, zero], [P, Q], [p, q], inputs=[A])

    def reference(a: Any, start: Any) -> Any:
        x, y = np.zeros((7, 3)), np.zeros((7, 3))
        x[:2] = start
        for s in range(2, 7):
            x[s] = x[s - 1] - y[s - 2] + a[s]
            y[s] = y[s - 1] + x[s - 2] * 0.25
        return x, y

    return Case((A, start), (X, Y), reference)


def custom_reducer() -> Case:
    """Products and sums of affine maps: x -> a x + b, composed over k."""
    A, B = t.placeholder((4, 6)), t.placeholder((4, 6))
    k = t.reduce_axis((0, 6))
    after = t.comm_reducer(
        lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1]),
        lambda a, b: (t.const(1, a), t.const(0, b)),
        name="after",
        commutative=False,
    )
    P, Q = t.compute((4,), lambda i: after((A[i, k], B[i, k]), axis=k))

    def reference(a: Any, b: Any) -> Any:
        p, q = np.ones(4), np.zeros(4)
        for n in range(6):
            p, q = p * a[:, n], q * a[:, n] + b[:, n]
        return p, q

    return Case((A, B), (P, Q), reference)


def several_outputs() -> Case:
    X = t.placeholder((4, 5))
    P, Q = t.compute((4, 5), lambda i, j: (X[i, j] + 1.0, X[i, j] * X[i, j]))
    return Case((X,), (P, Q), lambda x: (x + 1, x * x))


def max_pool() -> Case:
    X = t.placeholder((2, 8, 10))
    dy, dx = t.reduce_axis((0, 2)), t.reduce_axis((0, 2))
    Y = t.compute(
        (2, 4, 5), lambda c, y, x: t.max(X[c, 2 * y + dy, 2 * x + dx], axis=[dy, dx])
    )
    return Case((X,), (Y,), lambda x: x.reshape(2, 4, 2, 5, 2).max((2, 4)))


def gather() -> Case:
    X, I = t.placeholder((4, 6)), t.placeholder((7,), "int32")  # noqa: E741
    Y = t.compute((7, 6), lambda i, j: X[I[i], j])
    return Case((X, I), (Y,), lambda x, i: x[i])


def digits() -> Case:
    """A reshape and a transpose by floor division and remainder."""
    X = t.placeholder((24,))
    Y = t.compute((4, 6), lambda i, j: X[(i * 6 + j) // 3 + (j % 3) * 8])
    return Case((X,), (Y,), lambda x: x.reshape(3, 8).T.reshape(4, 6))


def counted() -> Case:
    """A condition reduced, and a sum over the points that satisfy one; integers."""
    X = t.placeholder((5, 7), "int32")
    k = t.reduce_axis((0, 7))
    N = t.compute((5,), lambda i: t.any(X[i, k] > 2, axis=k))
    S = t.compute((5,), lambda i: t.sum(X[i, k], axis=k, where=X[i, k] > 1))
    Y = t.compute((5,), lambda i: t.if_then_else(N[i], S[i], -1))
    return Case(
        (X,), (Y,), lambda x: np.where((x > 2).any(1), np.where(x > 1, x, 0).sum(1), -1)
    )


def part_of_a_domain() -> Case:
    X = t.placeholder((5, 9))
    k = t.reduce_axis((2, 7))
    Y = t.compute((5,), lambda i: t.prod(X[i, k], axis=k))
    return Case((X,), (Y,), lambda x: x[:, 2:7].prod(1))


def elementwise() -> Case:
    X = t.placeholder((4, 6))
    Y = t.compute(
        (4, 6),
        lambda i, j: (
            t.max(
                t.tanh(X[i, j]), t.sigmoid(X[i, j]).astype("float64").astype("float32")
            )
            + t.min(0.5, t.abs(X[i, j]), t.floor(X[i, j]))
            + t.erf(X(i, j))
            + t.rsqrt(t.max(t.min_value("float32"), X[i, j] * X[i, j] + 1.0))
        ),
    )

    def reference(x: Any) -> Any:
        import math

        erf = np.vectorize(math.erf)(x)
        low = np.minimum(np.minimum(0.5, np.abs(x)), np.floor(x))
        return (
            np.maximum(np.tanh(x), 1 / (1 + np.exp(-x)))
            + low
            + erf
            + 1 / np.sqrt(x * x + 1)
        )

    return Case((X,), (Y,), reference)


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        matmul,
        batched_matmul,
        conv2d,
        softmax,
        layer_norm,
        argmax,
        prefix_scan,
        recurrence,
        two_states,
        custom_reducer,
        several_outputs,
        max_pool,
        gather,
        digits,
        counted,
        part_of_a_domain,
        elementwise,
    )
}
