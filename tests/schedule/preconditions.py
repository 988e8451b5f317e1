"""Programs that differ in one condition of a primitive, and what a step must make of them.

A row is a program, a step, and what is refused about it (None: the result is the same).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.awkward import ADD, ARGMAX, buffer, over
from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Cast, Expr, Min, Var, const
from tilewright.loops.analysis.access import accesses
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.interp import run
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store, Update, block, loop
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule, Step

i32, i64 = dtypes.int32, dtypes.int64
X, Y, Z, W = buffer("X", 8), buffer("Y", 8), buffer("Z", 8), buffer("W", 8, 8)
X7, W7, B7 = buffer("X7", 7), buffer("W7", 7), Buffer("B7", (7,), dtypes.bool_)
P, N, I = Buffer("P", (8,), i64), Buffer("N", (1,), i64), Buffer("I", (1,), i64)  # noqa: E741
F = buffer("F", 1)
T, S, D = buffer("T", 8), buffer("S", 8), buffer("D", 8, 8)
t, u, at = buffer("t", 1), buffer("u", 1), Buffer("at", (1,), i64)
ZERO, ONE = const(0), const(1)


def kernel(body: Stmt) -> Kernel:
    """A program on all the buffers that it does not allocate; what it writes are its outputs."""
    inner = allocated(body)
    used = dict.fromkeys(a.buffer for a in accesses(body) if a.buffer not in inner)
    written = {a.buffer for a in accesses(body) if a.writes}
    outputs = tuple(b for b in used if b in written)
    return Kernel(
        "k", tuple(b for b in used if b not in written) + outputs, outputs, body
    )


def results(k: Kernel, seed: int) -> list[np.ndarray]:
    """Outputs of a run; N is 2 or 3, P a shuffle of the numbers 1 to 8."""
    rng = np.random.default_rng(seed)
    arrays = {b: rng.integers(-4, 5, b.shape).astype(b.dtype.numpy) for b in k.params}
    arrays |= {b: (rng.permutation(8) + 1) for b in k.params if b is P}
    arrays |= {b: rng.integers(2, 4, 1) for b in k.params if b is N}
    run(k, arrays)
    return [arrays[b] for b in k.outputs]


def as_index(e: Expr) -> Expr:
    return Cast(e, i64)


def put(b: Buffer, i: Expr, value: Expr) -> Stmt:
    return Store(b, (i,), value)


def put2(b: Buffer, i: Expr, j: Expr, value: Expr) -> Stmt:
    return Store(b, (i, j), value)


def add(b: Buffer, i: Expr, value: Expr) -> Stmt:
    return Update((b,), ((i,),), (value,), ADD)


def best(values: Buffer, places: Buffer, value: Expr, place: Expr) -> Stmt:
    return Update((values, places), ((ZERO,), (ZERO,)), (value, place), ARGMAX)


def i(body: Callable[[Var], Stmt], extent: int = 8, kind: str = "serial") -> Stmt:
    return over("i", extent, body, kind)


def j(body: Callable[[Var], Stmt], extent: int = 8, kind: str = "serial") -> Stmt:
    return over("j", extent, body, kind)


def v(body: Callable[[Var], Stmt], extent: int = 8, kind: str = "serial") -> Stmt:
    return over("v", extent, body, kind)


def to_n(name: str, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name, i64)
    return loop(var, Min(N[0], const(4)), body(var))


def own(b: Buffer, *body: Stmt) -> Stmt:
    return Alloc(b, block(*body))


P7, B8 = Buffer("P7", (7,), i64), Buffer("B8", (8,), dtypes.bool_)
FIRST, FIRSTS = (
    put(t, ZERO, const(0, i32)),
    [Store(b, (ZERO,), c) for b, c in zip((t, I), ARGMAX.identity, strict=True)],
)
Rows = list[tuple[Stmt, tuple[object, ...], str | None]]


def made(value: Callable[[Var], Expr] = lambda i: X[i] * 2, extent: int = 8) -> Stmt:
    """T[i] = value(i)."""
    return i(lambda i: put(T, i, value(i)), extent)


def used(extent: int = 7) -> Stmt:
    """Y[v] = T[v] + T[v + 1]."""
    return v(lambda v: put(Y, v, T[v] + T[v + 1]), extent)


def check(body: Stmt, step: tuple[object, ...], message: str | None) -> None:
    """The step on a program is refused with the message, or leaves every element of the outputs."""
    before = kernel(body)
    verify(before)
    s = Schedule(before)
    if message is not None:
        with pytest.raises(ScheduleError, match=message) as caught:
            s.apply(Step(str(step[0]), step[1:]))
        assert caught.value.hint and s.kernel is before
        return
    s.apply(Step(str(step[0]), step[1:]))
    verify(s.kernel)
    for seed in range(4):
        for want, got in zip(
            results(before, seed), results(s.kernel, seed), strict=True
        ):
            np.testing.assert_array_equal(got, want, err_msg=repr(s.kernel))
