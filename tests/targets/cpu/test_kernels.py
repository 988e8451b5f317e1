"""Loops, vectors, masks, reductions, allocations and regions against the loop interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.native import prepare, run_native
from tilewright.base import dtypes
from tilewright.base.dtypes import DType, float32, int32, int64
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import (
    Buffer,
    Cast,
    Const,
    Expr,
    FloorDiv,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Var,
    const,
    var,
)
from tilewright.loops import interp
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
from tilewright.runtime.abi import STATUS_INDEX
from tilewright.targets.cpu.compile import assembly, compile_kernel
from tilewright.targets.cpu.frame_layout import THREADS_APART
from tilewright.targets.cpu.machine import LEVELS, host, machine

Arrays = dict[Buffer, np.ndarray[Any, Any]]


def data(b: Buffer, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if b.dtype.is_float:
        return rng.integers(-8, 8, b.shape).astype(b.dtype.numpy)
    return rng.integers(0, 8, b.shape).astype(b.dtype.numpy)


def check(
    params: list[Buffer], outputs: list[Buffer], body: Stmt, **given: Any
) -> Arrays:
    """Native code and the interpreter leave the same contents in every parameter."""
    kernel = Kernel("k", tuple(params), tuple(outputs), body)
    before = {b: given.get(b.name, data(b, n)) for n, b in enumerate(params)}
    expected = {b: a.copy() for b, a in before.items()}
    interp.run(kernel, expected)
    for threads in (1, 3):
        got = {b: a.copy() for b, a in before.items()}
        assert run_native(kernel, got, threads=threads) == 0
        for b in params:
            np.testing.assert_array_equal(
                got[b], expected[b], err_msg=f"{b!r}, {threads} threads"
            )
    return got


EXTENTS = [1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 48, 64, 100]
N = 400


@pytest.mark.covering(1)
@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize(
    "dtype", [float32, dtypes.int8, dtypes.bfloat16, dtypes.bool_], ids=str
)
def test_vector_extents(extent: int, dtype: DType) -> None:
    """Contiguous, invariant, strided, reversed and permuted accesses at any vector width."""
    a, b = Buffer("a", (N,), dtype), Buffer("b", (8, extent), dtype)
    v = var("v")
    reads = [
        a[v + 3],
        a[5],
        a[v * 2],
        a[v * 3 + 1],
        a[(extent - 1) - v],
        a[FloorDiv(v, const(3))],
    ]
    stores = [Store(b, (const(n), v), r) for n, r in enumerate(reads)]
    stores.append(Store(b, (const(6), (extent - 1) - v), a[v]))
    stores.append(Store(b, (const(7), v), a[Mod(v * 7, const(11))]))
    check([a, b], [b], loop(v, extent, block(*stores), "vector"))


def test_strided_stores() -> None:
    a, b = Buffer("a", (16,), float32), Buffer("b", (16, 3), float32)
    v, w = var("v"), var("w")
    body = block(
        loop(v, 16, Store(b, (v, const(1)), a[v]), "vector"),
        loop(w, 16, Store(b, (Mod(w * 3, const(16)), const(2)), a[w]), "vector"),
    )
    check([a, b], [b], body)


@pytest.mark.parametrize("extent", [5, 16, 40])
@pytest.mark.parametrize(
    "dtype", [float32, dtypes.float64, dtypes.float16, dtypes.int8, int64], ids=str
)
def test_masks(extent: int, dtype: DType) -> None:
    """Branches and selects that differ by lane guard their loads and stores."""
    a, b = Buffer("a", (20,), dtype), Buffer("b", (4, 64), dtype)
    v, i = var("v"), var("i")
    inside = Lt(v + i, const(20))
    guarded = Select(inside, a[v + i], const(0, dtype))
    body = block(
        Store(b, (const(0), v), guarded * 2),
        Store(b, (const(1), v), Select(inside, const(7, dtype), a[Min(v, const(3))])),
        If(
            inside,
            block(
                Store(b, (const(2), v), a[v + i] + 1),
                If(Lt(a[v + i], const(0, dtype)), Store(b, (const(3), v), a[i]), None),
            ),
            Store(b, (const(2), v), const(-5, dtype)),
        ),
    )
    check([a, b], [b], loop(i, 4, loop(v, extent, body, "vector")))


def test_padding_with_uniform_condition() -> None:
    """A row outside the image gives zeros for a whole vector, without touching memory."""
    x, y = Buffer("x", (4, 16), float32), Buffer("y", (6, 16), float32)
    i, v = var("i"), var("v")
    inside = (i >= 1) & (i < 5)
    value = Select(inside, x[i - 1, v], const(0, float32))
    check([x, y], [y], loop(i, 6, loop(v, 16, Store(y, (i, v), value), "vector")))
    other = Select(inside, x[i - 1, v], const(3, float32))
    check([x, y], [y], loop(i, 6, loop(v, 16, Store(y, (i, v), other), "vector")))


REDUCERS: list[tuple[Reducer, DType]] = [
    *((reducer(n, float32), float32) for n in ("add", "max", "min")),
    *(
        (reducer(n, int32), int32)
        for n in ("add", "mul", "max", "min", "and", "or", "xor")
    ),
    *((reducer(n, dtypes.bool_), dtypes.bool_) for n in ("and", "or", "xor")),
    (reducer("max", dtypes.uint8), dtypes.uint8),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("extent", [1, 3, 8, 13, 16, 64])
@pytest.mark.parametrize("case", REDUCERS, ids=lambda c: f"{c[0].name}-{c[1]}")
def test_lane_reductions(case: tuple[Reducer, DType], extent: int) -> None:
    op, dtype = case
    a, b = Buffer("a", (3, extent), dtype), Buffer("b", (2, 3), dtype)
    i, v = var("i"), var("v")
    some = Lt(Mod(v, const(3)), const(2))
    body = block(
        Update((b,), ((const(0), i),), (a[i, v],), op),
        If(some, Update((b,), ((const(1), i),), (a[i, v],), op), None),
    )
    check([a, b], [b], loop(i, 3, loop(v, extent, body, "vector")))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("extent", [1, 7, 16, 30])
def test_arg_reductions(name: str, last: bool, extent: int) -> None:
    op = arg_reducer(name, float32, int64, last)
    a = Buffer("a", (2, extent), float32)
    best, where = Buffer("best", (2,), float32), Buffer("where", (2,), int64)
    i, v = var("i"), var("v")
    first: list[Stmt] = [
        Store(best, (i,), op.identity[0]),
        Store(where, (i,), op.identity[1]),
    ]
    step = Update((best, where), ((i,),) * 2, (a[i, v], v), op)
    x = data(a)
    x[1, extent // 2] = np.nan
    check(
        [a, best, where],
        [best, where],
        loop(i, 2, block(*first, loop(v, extent, step, "vector"))),
        a=x,
    )


@pytest.mark.parametrize("kind", ["serial", "vector"])
@pytest.mark.parametrize(
    "places",
    [
        lambda i, v: ((i, v), (const(12) - v, i)),
        lambda i, v: ((i, v), (i * 2, const(0))),
        lambda i, v: ((i, const(1)), (const(3), i)),
        lambda i, v: ((i, v), (v * 3 % 13, i)),
    ],
    ids=["apart", "one meets", "all meet", "scattered"],
)
def test_each_value_of_a_reduction_lies_where_its_own_index_says(
    kind: str, places: Any
) -> None:
    op = arg_reducer("argmax", float32, int64)
    a, i, v = Buffer("a", (2, 13), float32), var("i"), var("v")
    best, where = Buffer("best", (2, 13), float32), Buffer("where", (13, 2), int64)
    step = Update((best, where), places(i, v), (a[i, v], v), op)
    check([a, best, where], [best, where], loop(i, 2, loop(v, 13, step, kind)))


def test_order_is_kept_for_reducers_that_do_not_commute() -> None:
    """Composition of affine maps x -> p*x + q: associative, not commutative."""
    p1, q1, p2, q2 = (var(n, int32) for n in ("p1", "q1", "p2", "q2"))
    op = Reducer(
        "compose",
        (p1, q1),
        (p2, q2),
        (p1 * p2, q1 * p2 + q2),
        (Const(1, int32), Const(0, int32)),
        commutative=False,
    )
    p, q = Buffer("p", (13,), int32), Buffer("q", (13,), int32)
    op_p, op_q = Buffer("op_p", (1,), int32), Buffer("op_q", (1,), int32)
    v = var("v")
    body = block(
        Store(op_p, (const(0),), const(1, int32)),
        Store(op_q, (const(0),), const(0, int32)),
        loop(
            v, 13, Update((op_p, op_q), ((const(0),),) * 2, (p[v], q[v]), op), "vector"
        ),
    )
    check([p, q, op_p, op_q], [op_p, op_q], body)


def test_colliding_updates() -> None:
    """A histogram: lanes that meet at one element are combined one after another."""
    index, h = Buffer("index", (50,), int64), Buffer("h", (8,), float32)
    v = var("v")
    body = loop(
        v,
        50,
        Update((h,), ((index[v],),), (Cast(v, float32),), reducer("add", float32)),
        "vector",
    )
    check([index, h], [h], body)


def matmul(
    kind: str, threads_kind: str, dtype: DType = float32
) -> tuple[list[Buffer], Stmt]:
    m, n, k = 6, 32, 20
    a, b, c = (
        Buffer("a", (m, k), dtype),
        Buffer("b", (k, n), dtype),
        Buffer("c", (m, n), dtype),
    )
    acc = Buffer("acc", (2, 16), float32, kind)
    io, jo, p, i, v, i0, v0, i1, v1 = (
        var(x) for x in "io jo p i v i0 v0 i1 v1".split()
    )
    product = Mul(Cast(a[io * 2 + i, p], float32), Cast(b[p, jo * 16 + v], float32))
    body = Alloc(
        acc,
        block(
            loop(
                i0,
                2,
                loop(v0, 16, Store(acc, (i0, v0), const(0, float32)), "vector"),
                "unroll",
            ),
            loop(
                p,
                k,
                loop(
                    i,
                    2,
                    loop(
                        v,
                        16,
                        Update((acc,), ((i, v),), (product,), reducer("add", float32)),
                        "vector",
                    ),
                    "unroll",
                ),
            ),
            loop(
                i1,
                2,
                loop(
                    v1,
                    16,
                    Store(
                        c,
                        (io * 2 + i1, jo * 16 + v1),
                        Cast(Max(acc[i1, v1], const(0, float32)), dtype),
                    ),
                    "vector",
                ),
                "unroll",
            ),
        ),
    )
    return [a, b, c], loop(io, 3, loop(jo, 2, body), threads_kind)


@pytest.mark.covering(1)
@pytest.mark.parametrize("scope", ["register", "stack", "global"])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("dtype", [float32, dtypes.float16], ids=str)
def test_tiled_matmul(scope: str, kind: str, dtype: DType) -> None:
    params, body = matmul(scope, kind, dtype)
    check(params, [params[2]], body)


def test_private_buffers_of_lanes() -> None:
    """An allocation inside a vector loop exists once per lane, whatever the scope."""
    a, b = Buffer("a", (8, 20), float32), Buffer("b", (20,), float32)
    for scope in ("register", "stack", "global"):
        t = Buffer("t", (2,), float32, scope)
        v, k = var("v"), var("k")
        body = Alloc(
            t,
            block(
                Store(t, (const(0),), const(0, float32)),
                Store(t, (const(1),), a[0, v]),
                loop(
                    k,
                    8,
                    Update((t,), ((const(0),),), (a[k, v],), reducer("add", float32)),
                ),
                If(
                    Lt(t[0], const(0, float32)),
                    Update(
                        (t,),
                        ((const(1),),),
                        (const(9, float32),),
                        reducer("add", float32),
                    ),
                    None,
                ),
                Store(b, (v,), t[0] * t[Mod(v, const(2))]),
            ),
        )
        check([a, b], [b], loop(v, 20, body, "vector"))


def test_a_parallel_loop_that_runs_once_uses_the_workspace() -> None:
    a, b = Buffer("a", (5,), float32), Buffer("b", (5,), float32)
    t = Buffer("t", (5,), float32)
    i, j, k = var("i"), var("j"), var("k")
    body = Alloc(
        t, block(loop(j, 5, Store(t, (j,), a[j] * 2)), loop(k, 5, Store(b, (k,), t[k])))
    )
    check([a, b], [b], loop(i, 1, body, "parallel"))


def test_values_are_not_kept_across_writes() -> None:
    a, b = Buffer("a", (4,), float32), Buffer("b", (4,), float32)
    i, j = var("i"), var("j")
    body = block(
        Store(b, (const(0),), a[0]),
        loop(i, 3, block(Store(b, (i + 1,), a[0]), Store(a, (const(0),), a[0] + 1))),
        If(
            Lt(a[0], const(5, float32)),
            Store(a, (const(1),), a[0]),
            Store(a, (const(2),), a[0]),
        ),
        loop(j, 4, Update((b,), ((j,),), (a[1] + a[2],), reducer("add", float32))),
    )
    check([a, b], [a, b], body)


def test_while_and_dynamic_extents() -> None:
    n, a, b = (
        Buffer("n", (3,), int64),
        Buffer("a", (8,), float32),
        Buffer("b", (3,), float32),
    )
    count = Buffer("count", (1,), int64, "stack")
    i, j = var("i"), var("j")
    body = block(
        Store(b, (const(2),), const(0, float32)),
        loop(
            j,
            n[0],
            Update(
                (b,), ((const(2),),), (a[Min(j, const(7))],), reducer("add", float32)
            ),
        ),
        loop(i, n[1], Store(b, (const(1),), a[i])),
        Alloc(
            count,
            block(
                Store(count, (const(0),), n[0]),
                While(
                    Lt(const(0), count[0]),
                    block(
                        Update((b,), ((const(0),),), (a[0],), reducer("add", float32)),
                        Store(count, (const(0),), count[0] - 2),
                    ),
                ),
            ),
        ),
    )
    for counts in ([5, 0, 0], [0, 3, 0], [7, 8, 0]):
        check([n, a, b], [b], body, n=np.array(counts, np.int64))


@pytest.mark.parametrize("kind", ["serial", "vector"])
def test_checked_reads(kind: str) -> None:
    """An index read from data is tested; a bad one is reported and never followed."""
    index, a = Buffer("index", (16,), int64), Buffer("a", (10,), float32)
    b = Buffer("b", (16,), float32)
    v = var("v")
    kernel = Kernel(
        "k", (index, a, b), (b,), loop(v, 16, Store(b, (v,), a[index[v]]), kind)
    )
    run = prepare(kernel)
    values, out = np.arange(10, dtype=np.float32), np.zeros(16, np.float32)
    good = np.arange(16) % 10
    assert run(good, values, out) == 0
    np.testing.assert_array_equal(out, values[good])
    for wrong in (10, -1, 1 << 60, -(1 << 63)):
        bad = good.copy()
        bad[11] = wrong
        assert run(bad, values, out) == 1 << 8 | STATUS_INDEX
    scatter = Kernel(
        "s", (index, a, b), (b,), loop(v, 16, Store(b, (index[v],), a[0]), kind)
    )
    run = prepare(scatter)
    out[:] = 0
    assert run(good, values + 1, out) == 0 and out[:10].all() and not out[10:].any()
    bad = good.copy()
    bad[3] = 16
    assert run(bad, values, out) == 1 << 8 | STATUS_INDEX


@pytest.mark.parametrize("kind", ["serial", "vector"])
def test_checked_reads_only_where_chosen(kind: str) -> None:
    index, a, b = (
        Buffer("index", (16,), int64),
        Buffer("a", (10,), float32),
        Buffer("b", (16,), float32),
    )
    v = var("v")
    value = Select(Lt(index[v], const(10)), a[index[v]], const(-1, float32))
    given = np.arange(16)
    check([index, a, b], [b], loop(v, 16, Store(b, (v,), value), kind), index=given)
    branch = If(Lt(index[v], const(10)), Store(b, (v,), a[index[v]]), None)
    check([index, a, b], [b], loop(v, 16, branch, kind), index=given)


def test_empty_buffers() -> None:
    index, a, b = (
        Buffer("index", (4,), int64),
        Buffer("a", (0,), float32),
        Buffer("b", (4,), float32),
    )
    v, w = var("v"), var("w")
    body = block(
        loop(w, 0, Store(b, (w,), a[w])),
        loop(v, 4, Store(b, (v,), a[index[v]]), "vector"),
    )
    run = prepare(Kernel("k", (index, a, b), (b,), body))
    assert (
        run(np.zeros(4, np.int64), np.zeros(0, np.float32), np.zeros(4, np.float32))
        != 0
    )


def test_regions_have_own_memory_per_thread() -> None:
    a, b = Buffer("a", (7, 40), float32), Buffer("b", (7, 40), float32)
    shared = Buffer("shared", (40,), float32)
    mine, also = Buffer("mine", (40,), float32), Buffer("also", (40,), float32)
    outer, add = var("outer"), reducer("add", float32)
    i, j, k, m = (var(n) for n in "ijkm")
    region = loop(
        i,
        7,
        block(
            Alloc(mine, block(
                loop(j, 40, Store(mine, (j,), a[i, j] + shared[j]), "vector"),
                loop(k, 40, Update((b,), ((i, k),), (mine[39 - k] + Cast(outer, float32),), add)),
            )),
            Alloc(also, block(
                loop(m, 40, Store(also, (m,), a[i, m])),
                Store(b, (i, const(3)), also[5]),
            )),
        ),
        "parallel",
    )  # fmt: skip
    s = var("s")
    body = Alloc(
        shared, block(loop(s, 40, Store(shared, (s,), a[0, s])), loop(outer, 2, region))
    )
    check([a, b], [b], body)
    made = compile_kernel(Kernel("k", (a, b), (b,), body), host())
    assert made.workspace_bytes == 192
    # A processor that fetches ahead of its own part stays out of the next one.
    assert made.workspace_per_thread == 192 + THREADS_APART


def test_large_stack_buffers_go_to_the_workspace() -> None:
    b = Buffer("b", (4,), float32)
    big = Buffer("big", (1 << 16,), float32, "stack")
    i = var("i")
    body = Alloc(
        big,
        loop(
            i,
            4,
            block(
                Store(big, (i * 9000,), const(2, float32)),
                Store(b, (i,), big[i * 9000]),
            ),
        ),
    )
    check([b], [b], body)
    assert (
        compile_kernel(Kernel("k", (b,), (b,), body), host()).workspace_bytes == 1 << 18
    )


def test_nested_vector_loops() -> None:
    a, b = Buffer("a", (4, 8), float32), Buffer("b", (8, 4), float32)
    v, w = var("v"), var("w")
    check(
        [a, b],
        [b],
        loop(v, 4, loop(w, 8, Store(b, (w, v), a[v, w]), "vector"), "vector"),
    )


LOADED = [n for n, (a, _) in LEVELS.items() if a in ("x86_64", "aarch64", "riscv64")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mcpu", LOADED)
def test_other_processors_assemble(mcpu: str) -> None:
    """Every level gives an object without external symbols, for float32 and float16."""
    for dtype in (float32, dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3fn):
        params, body = matmul("register", "parallel", dtype)
        kernel = Kernel("k", tuple(params), (params[2],), body)
        assert compile_kernel(kernel, machine(mcpu)).object_bytes[:4] == b"\x7fELF"
    assert "k:" in assembly(kernel, machine(mcpu))


@pytest.mark.skipif(not host().has("avx512f"), reason="the tile is for AVX-512")
def test_register_tile_stays_in_registers() -> None:
    m, nv, k = 8, 3, 64
    a, b = Buffer("a", (m, k), float32), Buffer("b", (k, nv * 16), float32)
    c, acc = (
        Buffer("c", (m, nv * 16), float32),
        Buffer("acc", (m, nv * 16), float32, "register"),
    )

    def nest(prefix: str, body: Callable[[Var, Expr], Stmt]) -> Stmt:
        i, j, v = (var(prefix + n) for n in "ijv")
        inner = loop(j, nv, loop(v, 16, body(i, j * 16 + v), "vector"), "unroll")
        return loop(i, m, inner, "unroll")

    p = var("p")
    add = reducer("add", float32)
    body = Alloc(
        acc,
        block(
            nest("z", lambda i, j: Store(acc, (i, j), const(0, float32))),
            loop(
                p,
                k,
                nest(
                    "u",
                    lambda i, j: Update((acc,), ((i, j),), (a[i, p] * b[p, j],), add),
                ),
            ),
            nest("s", lambda i, j: Store(c, (i, j), acc[i, j])),
        ),
    )
    check([a, b, c], [c], body)
    text = assembly(Kernel("k", (a, b, c), (c,), body), host())
    assert text.count("vfmadd") == m * nv and "rsp" not in text
    assert text.count("vbroadcastss") == m
