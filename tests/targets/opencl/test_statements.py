"""OpenCL C of every statement does what it says, in launches written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.opencl.running import X, launched, run
from tilewright.base.dtypes import float16, float32, int32, int64
from tilewright.base.errors import CompileError
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Buffer,
    Cast,
    Const,
    Lt,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.loops.launch import AXIS, Barrier, CombineThreads
from tilewright.loops.nodes import (
    Alloc,
    If,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)
from tilewright.targets.opencl.emit import emit

ZERO = const(0)
SUM = reducer("add", float32)


def test_loops_guards_and_registers():
    """Each thread adds up a part of its row, of as many elements as its number says."""
    x, y = Buffer("x", (8, 5), float32), Buffer("y", (8,), float32)
    acc = Buffer("acc", (2,), float32, "register")
    k = Var("k", INDEX)
    body = Alloc(
        acc,
        block(
            Store(acc, (const(1),), const(0.0, float32)),
            loop(
                k,
                5,
                If(Lt(k, X), Update((acc,), ((const(1),),), (x[X, k],), SUM), None),
            ),
            If(Lt(X, const(3)), Store(y, (X,), acc[1]), Store(y, (X,), -acc[1])),
        ),
    )
    given = np.random.default_rng(0).standard_normal((8, 5)).astype("f")
    found = run(launched(body, [x, y], threads=8), {x: given})[y]
    wanted = [given[n, :n].sum(dtype="f") * (1 if n < 3 else -1) for n in range(8)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_an_extent_that_depends_on_a_loop():
    y = Buffer("y", (6, 6), int32)
    i, j = Var("i", INDEX), Var("j", INDEX)
    fill = loop(i, 6, loop(j, i + 1, Store(y, (i, j), const(1, int32))))
    found = run(launched(fill, [y]), {y: np.zeros((6, 6), np.int32)})[y]
    assert (found == np.tril(np.ones((6, 6)))).all()


def test_an_extent_counts_as_it_is_when_the_loop_begins():
    n, y = Buffer("n", (1,), int64), Buffer("y", (1,), int64)
    step = block(
        Update((y,), ((ZERO,),), (const(1, int64),), reducer("add", int64)),
        Store(n, (ZERO,), ZERO),
    )
    found = run(
        launched(loop(Var("k", INDEX), n[0], step), [n, y]),
        {n: np.array([5]), y: np.array([0])},
    )
    assert found[y][0] == 5 and found[n][0] == 0


def test_a_loop_while_memory_says_so():
    n, y = Buffer("n", (1,), int32), Buffer("y", (1,), int32)
    halve = block(
        Store(n, (ZERO,), n[0] // 2),
        Update((y,), ((ZERO,),), (const(1, int32),), reducer("add", int32)),
    )
    program = launched(While(Lt(const(0, int32), n[0]), halve), [n, y])
    found = run(program, {n: np.array([37], np.int32), y: np.array([0], np.int32)})
    assert found[y][0] == 6


def argmax():
    a, i, b, j = Var("a", float32), Var("i", int32), Var("b", float32), Var("j", int32)
    larger = Lt(a, b)
    return Reducer(
        "argmax",
        (a, i),
        (b, j),
        (Select(larger, b, a), Select(larger, j, i)),
        (Const(float("-inf"), float32), Const(0, int32)),
        commutative=False,
    )


def test_components_change_together():
    """The second is decided by the first as it was before."""
    x = Buffer("x", (4, 7), float32)
    best, at = Buffer("best", (4,), float32), Buffer("at", (4,), int32)
    k = Var("k", INDEX)
    step = Update((best, at), ((X,), (X,)), (x[X, k], Cast(k, int32)), argmax())
    start = block(
        Store(best, (X,), const(float("-inf"), float32)),
        Store(at, (X,), const(0, int32)),
    )
    given = np.random.default_rng(1).standard_normal((4, 7)).astype("f")
    found = run(
        launched(block(start, loop(k, 7, step)), [x, best, at], threads=4), {x: given}
    )
    assert (found[at] == given.argmax(1)).all()
    assert (found[best] == given.max(1)).all()


@pytest.mark.parametrize("scope", ["shared", "global"])
def test_what_the_other_threads_wrote_is_there_behind_a_barrier(scope):
    x, y = Buffer("x", (64,), float32), Buffer("y", (64,), float32)
    held = Buffer("held", (64,), float32, "shared" if scope == "shared" else "global")
    turned = block(
        Store(held, (X,), x[X]), Barrier(scope), Store(y, (X,), held[const(63) - X])
    )
    shared = [held] if scope == "shared" else []
    params = [x, y] if shared else [x, y, held]
    given = np.arange(64, dtype="f")
    found = run(launched(turned, params, threads=64, shared=shared), {x: given})
    assert (found[y] == given[::-1]).all()


@pytest.mark.covering(1)
@pytest.mark.parametrize("width", [2, 8, 32])
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_neighbors_combine_in_order(width, dtype):
    """Of a reducer that does not commute: affine maps, one after another."""
    p, q, r, s = (Var(n, dtype) for n in "pqrs")
    affine = Reducer(
        "compose",
        (p, q),
        (r, s),
        (Mul(p, r), Add(Mul(q, r), s)),
        (const(1, dtype), const(0, dtype)),
        commutative=False,
    )
    x = Buffer("x", (2, 32), dtype)
    y = Buffer("y", (2, 32), dtype)
    a, b = (Buffer(n, (1,), dtype, "register") for n in "ab")
    body = Alloc(
        a,
        Alloc(
            b,
            block(
                Store(a, (ZERO,), x[0, X]),
                Store(b, (ZERO,), x[1, X]),
                CombineThreads((a, b), ((ZERO,), (ZERO,)), affine, width),
                Store(y, (ZERO, X), a[0]),
                Store(y, (const(1), X), b[0]),
            ),
        ),
    )
    given = np.random.default_rng(2).integers(-1, 2, (2, 32)).astype(dtype.numpy)
    found = run(launched(body, [x, y], threads=32), {x: given})[y]
    for first in range(0, 32, width):
        m, c = 1.0, 0.0
        for n in range(first, first + width):
            m, c = m * float(given[0, n]), c * float(given[0, n]) + float(given[1, n])
        assert (found[0, first : first + width] == m).all()
        assert (found[1, first : first + width] == c).all()


def test_a_grid_of_three_axes():
    y = Buffer("y", (3, 4, 5), int32)
    z, w, v = (AXIS[f"blockIdx.{a}"] for a in "zyx")
    value = Cast(z * 100 + w * 10 + v, int32)
    program = launched(Store(y, (z, w, v), value), [y])
    (launch,) = program.launches
    object.__setattr__(launch, "grid", (5, 4, 3))
    found = run(program, {})[y]
    assert found[2, 3, 4] == 234 and found[0, 0, 1] == 1


def test_nothing_is_launched_for_an_empty_grid():
    y = Buffer("y", (0,), int32)
    program = launched(Store(y, (X,), const(1, int32)), [y], blocks=0)
    assert not emit(program).launches
    assert run(program, {})[y].size == 0


def test_a_block_that_is_kept_together_is_its_body():
    y = Buffer("y", (1,), int32)
    body = Store(y, (ZERO,), const(4, int32))
    assert run(launched(Unit("kept", None, (), body), [y]), {})[y][0] == 4


def test_too_much_memory_of_a_thread_is_refused():
    big = Buffer("big", (1 << 16,), float32, "register")
    y = Buffer("y", (1,), float32)
    body = Alloc(big, Store(y, (ZERO,), big[0]))
    with pytest.raises(CompileError, match=r"big takes 262,144 bytes of each thread"):
        emit(launched(body, [y]))


def test_numbers_of_more_blocks_than_32_bits_hold():
    y = Buffer("y", ((1 << 31) + 1,), int32)
    store = Store(y, (AXIS["blockIdx.x"],), const(1, int32))
    source = emit(launched(store, [y], blocks=y.size)).text
    assert "const long blockIdx_x_0 = (long)get_group_id(0);" in source
