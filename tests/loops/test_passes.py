"""Rewrites of whole kernels: what may share memory, and what is computed once and for all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer, Lt, Min, Mod, Var, const
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.interp import run
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.passes.hoist import hoist
from tilewright.loops.passes.in_place import overwritable
from tilewright.schedule.edit import rewrite

I64 = dtypes.int64
T, U, Y = (Buffer(n, (4, 4), I64) for n in "TUY")
P, Q, Z = (Buffer(n, (8,), I64) for n in "PQZ")
R, C = Var("r", I64), Var("c", I64)


def square(body: Stmt) -> Stmt:
    return loop(R, 4, loop(C, 4, body))


def row(body: Stmt, extent: int = 8) -> Stmt:
    return loop(R, extent, body)


ADDED = square(Store(Y, (R, C), T[R, C] + U[R, C]))
TRANSPOSED = square(Store(Y, (R, C), T[R, C] + T[C, R]))
HALF = square(Store(Y, (R, C), T[R, C] + U[C, R]))
SCATTERED = row(Store(Z, (Mod(P[R], const(8)),), Q[Mod(P[R], const(8))]))
GUARDED = row(If(Lt(P[7 - R], const(3)), Store(Z, (R,), Q[R] + 1), None))
CHOSEN = row(If(Lt(Q[R], const(3)), Store(Z, (R,), Q[R] + 1), None))
REPEATED = loop(C, 2, row(Store(Z, (R,), Q[R] + 1)))
FOLDED = row(Store(Z, (Mod(R, const(4)),), Q[Mod(R, const(4))] + 1))
LAST = Min(R * 4, const(4)) + C
OVERLAPPING = loop(R, 3, loop(C, 4, Store(Z, (LAST,), Q[LAST] + 1)))
SHARED_OUT = loop(R, 2, loop(C, 4, Store(Z, (R * 4 + C,), Q[R * 4 + C] + 1)))
PART = row(Store(Z, (R + 2,), Q[R + 2] + 1), 4)
SHIFTED = row(Store(Z, (R,), Q[R + 1] + 1), 7)
TWICE = block(row(Store(Z, (R,), Q[R])), loop(C, 8, Store(Z, (C,), Z[C] + Q[C])))
EXTENT = loop(R, P[0], Store(Z, (R,), Q[R]))
SUM = row(Update((Z,), ((R,),), (Q[R],), reducer("add", I64)))
PIECE = Unit("piece", None, (), row(Store(Z, (R,), Q[R])))
ENDLESS = While(Lt(Q[0], const(3)), row(Store(Z, (R,), Q[R])))


@pytest.mark.parametrize(
    "body, names",
    [
        (ADDED, "TU"),
        (TRANSPOSED, ""),
        (HALF, "T"),
        (SCATTERED, ""),
        (GUARDED, "Q"),
        (CHOSEN, ""),
        (REPEATED, ""),
        (FOLDED, ""),
        (OVERLAPPING, ""),
        (SHARED_OUT, "Q"),
        (PART, "Q"),
        (SHIFTED, ""),
        (TWICE, ""),
        (EXTENT, "Q"),
        (SUM, ""),
        (PIECE, "Q"),
        (ENDLESS, ""),
    ],
)
def test_which_inputs_the_output_may_overwrite(body, names):
    kernel = of(body)
    assert {b.name for b in overwritable(kernel)} == set(names)


@pytest.mark.parametrize(
    "body, names",
    [(ADDED, "TU"), (HALF, "T"), (GUARDED, "Q"), (SHARED_OUT, "Q"), (PART, "Q")],
)
def test_an_overwritten_input_gives_the_same_result(body, names):
    kernel, out = of(body), of(body).outputs[0]
    rng = np.random.default_rng(0)
    arrays = {b: rng.integers(0, 8, b.shape) for b in kernel.params}
    for b in (b for b in kernel.inputs if b.name in names):
        apart = {**arrays, out: arrays[b].copy()}
        run(kernel, apart)
        assert np.array_equal(_shared(kernel, b, arrays), apart[out])


def _shared(
    kernel: Kernel, source: Buffer, arrays: dict[Buffer, np.ndarray]
) -> np.ndarray:
    """The result where `source` is the memory of the output."""
    out = kernel.outputs[0]
    body = rewrite(kernel.body, {}, moves={source: lambda index: (out, index)})
    params = tuple(b for b in kernel.params if b is not source)
    memory = arrays[source].copy()
    run(Kernel("one", params, (out,), body), {**arrays, out: memory})
    return memory


def of(body: Stmt) -> Kernel:
    names = _names(body)
    inputs = [b for b in (T, U, P, Q) if b.name in names]
    out = Y if "Y" in names else Z
    return Kernel("k", (*inputs, out), (out,), body)


def _names(body: Stmt) -> set[str]:
    return {b.name for b in reads(body) | writes(body)}


def test_work_on_constants_is_split_off():
    made = row(Store(P, (R,), Q[R] * 2))
    kernel = _with_local(block(made, loop(C, 8, Store(Z, (C,), P[C] + 1))))
    found = hoist(kernel, {Q})
    assert [k.outputs for k in found.prepare] == [(P,)] and found.kernel.params == (
        P,
        Z,
    )
    _check_hoisted(kernel, found)


@pytest.mark.parametrize("again", [lambda k: Q[k] * 5, lambda k: P[k] + Q[k]])
def test_a_buffer_that_changes_after_its_first_use_stays(again: Callable):
    """Z[0:8] reads the first contents of P, W the second ones."""
    w, k, n = Buffer("W", (8,), I64), Var("k", I64), Var("n", I64)
    body = block(
        row(Store(P, (R,), Q[R] * 2)),
        loop(C, 8, Store(Z, (C,), P[C] + 1)),
        loop(k, 8, Store(P, (k,), again(k))),
        loop(n, 8, Store(w, (n,), P[n] + 1)),
    )
    kernel = Kernel("k", (Q, Z, w), (Z, w), Alloc(P, body))
    found = hoist(kernel, {Q})
    assert not found.prepare
    _check_hoisted(kernel, found)


def test_several_nests_before_the_first_use_are_split_off_together():
    """The padding first, then the inner part."""
    n = Var("n", I64)
    body = block(
        row(Store(P, (R,), const(7))),
        loop(C, 4, Store(P, (C + 2,), Q[C])),
        loop(n, 8, Store(Z, (n,), P[n] + 1)),
    )
    found = hoist(_with_local(body), {Q})
    assert len(found.prepare) == 1
    _check_hoisted(_with_local(body), found)


def test_what_depends_on_more_than_constants_stays():
    w, n = Buffer("W", (8,), I64), Var("n", I64)
    body = block(row(Store(P, (R,), Q[R] + w[R])), loop(n, 8, Store(Z, (n,), P[n])))
    kernel = Kernel("k", (Q, w, Z), (Z,), Alloc(P, body))
    assert not hoist(kernel, {Q}).prepare
    assert hoist(kernel, {Q, w}).prepare


def _with_local(body: Stmt) -> Kernel:
    return Kernel("k", (Q, Z), (Z,), Alloc(P, body))


def _check_hoisted(kernel: Kernel, found) -> None:
    rng = np.random.default_rng(0)
    arrays = {b: rng.integers(0, 8, b.shape) for b in kernel.params}
    parts = {b: a.copy() for b, a in arrays.items()}
    run(kernel, arrays)
    for k in found.prepare:
        parts[k.outputs[0]] = np.zeros(k.outputs[0].shape, np.int64)
        run(k, {b: parts[b] for b in k.params})
    run(found.kernel, {b: parts[b] for b in found.kernel.params})
    for b in kernel.outputs:
        assert np.array_equal(parts[b], arrays[b])
