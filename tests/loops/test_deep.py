"""Terms whose trees double at each step, in every room: what walks trees would not end."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.expr.bounds import bounds
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Expr,
    Max,
    Min,
    Select,
    Var,
    const,
)
from tilewright.expr.reads import reads
from tilewright.expr.rounding import RoundingBounds, near
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule
from tilewright.targets.registry import target

STEPS = 24
LENGTH = 8
A, B = Buffer("a", (LENGTH,), float32), Buffer("b", (LENGTH,), float32)
AT = Var("i", INDEX)
QUARTER = const(0.25, float32)


def polynomial() -> Expr:
    z: Expr = A[AT]
    for _ in range(STEPS):
        z = z * z + QUARTER
    return z


def chosen_by_itself() -> Expr:
    z: Expr = A[AT]
    for _ in range(STEPS):
        z = Select(z < QUARTER, z * z + QUARTER, z)
    return z


def chosen_by_place() -> Expr:
    z: Expr = Select(AT < 4, A[AT + 4], A[AT])
    for n in range(STEPS):
        z = Select((AT * (n + 3)) % 7 < 3, z * z, z + QUARTER)
    return z


def guarded_reads() -> Expr:
    z: Expr = A[AT]
    for n in range(STEPS):
        near_by = AT + n % 5
        z = Select(z < QUARTER, Select(near_by < LENGTH, A[near_by] * z, z), z * z)
    return z


def index_of_products() -> Expr:
    j: Expr = AT
    for _ in range(STEPS):
        j = (j * j + j) % LENGTH
    return A[j]


def index_of_choices(steps: int = STEPS) -> Expr:
    j: Expr = AT
    for _ in range(steps):
        j = Select(j < 4, (j + 1) % LENGTH, j - 1)
    return A[Max(Min(j, const(LENGTH - 1)), const(0))]


def index_of_minima(steps: int = STEPS) -> Expr:
    j: Expr = AT
    for _ in range(steps):
        j = Min(j + j, j // 2 + j)
    return A[Max(Min(j, const(LENGTH - 1)), const(0))]


TERMS = (
    *(polynomial, chosen_by_itself, chosen_by_place, guarded_reads),
    index_of_products,
    *(
        pytest.param(t, marks=pytest.mark.slow)
        for t in (index_of_choices, index_of_minima)
    ),
)


@pytest.mark.parametrize("make", TERMS)
def test_every_room_takes_a_deep_term(make):
    value = make()
    range_of_i = {AT: (0, LENGTH - 1)}
    bounds(value, range_of_i)
    simplify(value)
    assert len(repr(value)) < 100_000
    moved = substitute(value, {AT: const(3)})
    assert not any(isinstance(n, Var) for n in postorder(moved))
    assert list(reads((value,), range_of_i))

    kernel = Kernel("deep", (A, B), (B,), loop(AT, LENGTH, Store(B, (AT,), value)))
    verify(kernel)
    a = np.linspace(0.05, 0.4, LENGTH, dtype=np.float32)
    arrays = {A: a, B: np.empty_like(a)}
    run(kernel, arrays)

    index = np.arange(LENGTH)
    by_points = evaluate(value, {AT: index}, lambda b, at: a[at[0]])
    np.testing.assert_array_equal(by_points, arrays[B])
    bound = near(
        value, {AT: RoundingBounds(index)}, lambda b, at: RoundingBounds(a[at[0]])
    )
    assert bound.value.shape == (LENGTH,)

    s = Schedule(kernel)
    s.split("i", 4)
    s.vectorize("i.i")
    s.parallel("i.o")
    cpu = target("cpu", "x86-64-v3")
    for scheduled in (kernel, s.kernel):
        assert len(cpu.text(scheduled, "deep", "llvm")) < 2_000_000


@pytest.mark.representatives("index_of_minima-16")
@pytest.mark.parametrize("steps", [16, pytest.param(STEPS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [index_of_choices, index_of_minima])
def test_simplifying_within_bounds(make, steps):
    """Of three or four reads of the step before in each."""
    found = simplify(make(steps), {AT: (0, LENGTH - 1)})
    assert sum(1 for _ in postorder(found)) < 40 * steps


def test_bounds_tell_the_cases_of_a_chain_apart():
    """What is not shared stays exact: each select of a chain is one case."""
    j: Expr = const(0)
    for n in range(16):
        j = Select(AT < n, AT + (16 - n), j)
    assert bounds(j, {AT: (0, 15)}) == (0, 15)


def test_a_deep_term_keeps_the_innermost_condition_of_each_read():
    for read in reads((guarded_reads(),), {AT: (0, LENGTH - 1)}):
        low, high = bounds(read.load.index[0], read.ranges)
        assert low is not None and low >= 0
        assert high is not None and high < LENGTH
