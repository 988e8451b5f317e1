"""The kernel interpreter on kernels written by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.base import dtypes as d
from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import (
    Add,
    And,
    Buffer,
    Cast,
    Const,
    Le,
    Lt,
    Mul,
    Not,
    Select,
    const,
    var,
)
from tilewright.loops.interp import run
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.printer import show, show_kernel

F = d.float32
ZERO = const(0.0, F)


def of(body: Stmt, *params: Buffer) -> Kernel:
    return Kernel("k", params, params, body)


def test_insertion_sort_with_while(golden) -> None:
    """What is not a homomorphism is written in the loop IR directly."""
    x, at = Buffer("x", (8,), F), Buffer("at", (1,), d.int64, "register")
    key, i = Buffer("key", (1,), F, "register"), var("i")
    here = at[0]
    going = Select(Lt(const(0), here), Lt(key[0], x[here - 1]), const(False, d.bool_))
    shift = block(Store(x, (here,), x[here - 1]), Store(at, (const(0),), here - 1))
    body = block(
        Store(at, (const(0),), i),
        Store(key, (const(0),), x[i]),
        While(going, shift),
        Store(x, (here,), key[0]),
    )
    kernel = of(Alloc(at, Alloc(key, loop(i, 8, body))), x)
    golden("kernel_insertion_sort", show_kernel(kernel))
    data = np.random.default_rng(1).random(8).astype(np.float32)
    values = data.copy()
    run(kernel, {x: values})
    np.testing.assert_array_equal(values, np.sort(data))


def test_every_kind_of_loop_means_the_same(golden) -> None:
    x, i = Buffer("x", (4,), F), var("i")
    for kind in ("serial", "parallel", "vector", "unroll"):
        stmt = loop(i, 4, Store(x, (i,), Cast(i * i, F)), kind)
        golden(f"loop_{kind}", show(stmt))
        values = np.zeros(4, np.float32)
        run(of(stmt, x), {x: values})
        assert values.tolist() == [0, 1, 4, 9]


def test_if_else_and_empty_block(golden) -> None:
    x, i = Buffer("x", (4,), F), var("i")
    stmt = loop(i, 4, If(Not(Lt(i, const(2))), Store(x, (i,), const(7.0, F)), block()))
    golden("if_else", show(stmt))
    values = np.ones(4, np.float32)
    run(of(stmt, x), {x: values})
    assert values.tolist() == [1, 1, 7, 7]


def test_arg_reduction_updates_both_buffers() -> None:
    x, v, p, k = (
        Buffer("x", (5,), F),
        Buffer("v", (1,), F),
        Buffer("p", (1,), d.int64),
        var("k"),
    )
    op = arg_reducer("argmax", F, d.int64)
    start = [Store(b, (const(0),), c) for b, c in zip((v, p), op.identity, strict=True)]
    kernel = of(
        block(*start, loop(k, 5, Update((v, p), ((const(0),),) * 2, (x[k], k), op))),
        x,
        v,
        p,
    )
    best, place = np.zeros(1, np.float32), np.zeros(1, np.int64)
    run(kernel, {x: np.array([1, 4, 2, 4, 0], np.float32), v: best, p: place})
    assert (best[0], place[0]) == (4, 1)


def test_nests_deeper_than_python_allows() -> None:
    x = Buffer("x", (1,), d.int64)
    loops = [var(f"i{n}") for n in range(30)]
    total = loops[0]
    for v in loops[1:]:
        total = Add(total, v)
    body: Stmt = Update((x,), ((const(0),),), (total,), reducer("add", d.int64))
    for n, v in reversed(list(enumerate(loops))):
        body = loop(v, 2 if n % 10 == 0 else 1, body)
    values = np.zeros(1, np.int64)
    run(of(body, x), {x: values})
    assert values[0] == 12


def test_int64_wraps() -> None:
    x, y = Buffer("x", (1,), d.int64), Buffer("y", (1,), d.int64)
    kernel = of(Store(y, (const(0),), Mul(x[0], const(3)) + 1), x, y)
    values = np.array([2**62], np.int64)
    out = np.zeros(1, np.int64)
    run(kernel, {x: values, y: out})
    with np.errstate(over="ignore"):
        assert out[0] == values[0] * np.int64(3) + np.int64(1)


@pytest.mark.parametrize(
    "t", [d.bfloat16, d.float8_e4m3fn, d.int4, d.uint64, d.bool_, d.float16]
)
def test_values_of_every_kind_of_dtype(t: d.DType) -> None:
    x, y, i = Buffer("x", (4,), t), Buffer("y", (4,), t), var("i")
    even = (i % 2).eq(0)
    kernel = of(loop(i, 4, Store(y, (i,), Select(even, x[i], const(1, t)))), x, y)
    values = np.array([0, 0, 1, 1]).astype(t.numpy)
    out = np.zeros(4, t.numpy)
    run(kernel, {x: values, y: out})
    assert out.astype(np.float64).tolist() == [0, 1, 1, 1]


def test_constants_that_compare_equal_stay_apart() -> None:
    x, y = Buffer("x", (2,), F), Buffer("y", (2,), d.int32)
    one = const(1, d.int32)
    kernel = of(
        block(
            Store(x, (const(0),), const(0.0, F)),
            Store(x, (const(1),), Const(-0.0, F)),
            Store(y, (const(0),), one),
            Store(y, (const(1),), Select(const(True, d.bool_), one, one)),
        ),
        x,
        y,
    )
    floats, ints = np.ones(2, np.float32), np.zeros(2, np.int32)
    run(kernel, {x: floats, y: ints})
    assert np.signbit(floats).tolist() == [False, True] and ints.tolist() == [1, 1]


def test_a_checked_read_out_of_range() -> None:
    x, at, y = Buffer("x", (4,), F), Buffer("at", (1,), d.int64), Buffer("y", (1,), F)
    kernel = of(Store(y, (const(0),), x[at[0]]), x, at, y)
    arrays = {
        x: np.arange(4, dtype=np.float32),
        at: np.array([3]),
        y: np.zeros(1, np.float32),
    }
    run(kernel, arrays)
    assert arrays[y][0] == 3
    for bad in (4, -1):
        arrays[at][0] = bad
        with pytest.raises(
            ExecutionError, match=f"x: index {bad} of dimension 0 is outside 0..3"
        ):
            run(kernel, arrays)


def test_what_a_condition_says_of_memory_ends_with_a_write() -> None:
    x, at = Buffer("x", (4,), F), Buffer("at", (1,), d.int64)
    inside = And(Le(const(0), at[0]), Lt(at[0], const(4)))
    body = block(Store(at, (const(0),), const(9)), Store(x, (at[0],), ZERO))
    arrays = {x: np.zeros(4, np.float32), at: np.zeros(1, np.int64)}
    with pytest.raises(ExecutionError, match="index 9"):
        run(of(If(inside, body, None), x, at), arrays)


def test_allocated_contents_are_undefined_each_time() -> None:
    x, t, i = Buffer("x", (3,), F), Buffer("t", (1,), F), var("i")
    body = Alloc(t, block(Store(x, (i,), t[0]), Store(t, (const(0),), const(1.0, F))))
    values = np.zeros(3, np.float32)
    run(of(loop(i, 3, body), x), {x: values})
    assert np.isnan(values).all()


def test_an_update_in_a_narrow_float_rounds_each_step() -> None:
    y, k = Buffer("y", (1,), d.bfloat16), var("k")
    step = Update(
        (y,), ((const(0),),), (const(1.0, d.bfloat16),), reducer("add", d.bfloat16)
    )
    out = np.zeros(1, ml_dtypes.bfloat16)
    run(of(loop(k, 300, step), y), {y: out})
    assert float(out[0]) == 256


def test_arguments_are_checked() -> None:
    x = Buffer("x", (4,), F)
    kernel = of(block(), x)
    with pytest.raises(InputError, match="no array for x"):
        run(kernel, {})
    with pytest.raises(InputError, match=r"was given an array float64\[4\]"):
        run(kernel, {x: np.zeros(4)})
    with pytest.raises(InputError, match="not contiguous"):
        run(kernel, {x: np.zeros((4, 2), np.float32)[:, 0]})
