"""Loops that are not serial, as threads may run them: a kind that is not a right one shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.expr.nodes import Buffer, Lt, const, var
from tilewright.loops.interp import run
from tilewright.loops.nodes import Alloc, For, If, Kernel, Stmt, Store, block, loop
from tilewright.testing.interleaved import backwards, interleaved

i32 = dtypes.int32
X, Y, Z = (Buffer(n, (6,), i32) for n in "XYZ")
T = Buffer("T", (1,), i32)
V, W, K = var("v"), var("w"), var("k")


def outputs(kernel: Kernel) -> list[list[int]]:
    arrays = {
        b: np.arange(6, dtype=np.int32) * n for n, b in enumerate(kernel.params, 1)
    }
    run(kernel, arrays)
    return [arrays[b].tolist() for b in kernel.outputs]


def together(*body: Stmt) -> Kernel:
    return Kernel("k", (X, Y, Z), (Y, Z), loop(V, 6, block(*body), "parallel"))


staged = Alloc(T, block(Store(T, (const(0),), X[V] * 2), Store(Y, (V,), T[0])))
RIGHT = [
    [Store(Y, (V,), X[V]), Store(Z, (V,), Y[V] + 1)],
    [staged],
    [loop(K, 2, Store(Y, (V,), Y[V] + K.astype(i32)))],
    [If(Lt(V, const(2)), Store(Y, (V,), X[V]), Store(Z, (V,), X[V]))],
    [If(Lt(Y[V], const(4, i32)), Store(Y, (V,), Y[V] * 9), None), Store(Z, (V,), Y[V])],
    [loop(W, V, Store(Y, (V,), Y[V] + X[W])), loop(K, 2, staged, "unroll")],
]
WRONG = [
    [Store(Y, (const(0),), X[V])],
    [Store(Y, (const(0),), X[V]), Store(Z, (V,), Y[0])],
    [Store(Y, (V,), Y[5 - V])],
    [If(Lt(V, const(3)), Store(Y, (V,), X[V]), Store(Z, (V,), Y[V - 3]))],
]


@pytest.mark.parametrize("body", RIGHT)
def test_what_may_run_together_does_the_same(body):
    for order in (backwards, interleaved):
        assert outputs(order(together(*body))) == outputs(together(*body))


@pytest.mark.parametrize("body", WRONG)
def test_what_may_not_does_not(body):
    kernel = together(*body)
    want = outputs(kernel)
    assert outputs(interleaved(kernel)) != want or outputs(backwards(kernel)) != want
    whole = kernel.body
    assert isinstance(whole, For)
    serial = replace(
        together(*body), body=For(whole.var, whole.extent, "serial", whole.body)
    )
    assert outputs(interleaved(serial)) == outputs(serial)
