"""Kernels with sizes known only at run time: text, invariants, meaning, and code for all values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.guarded import guarded, in_a_child
from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import (
    InputError,
    ScheduleError,
    UnsupportedError,
    VerifyError,
)
from tilewright.compute.reducer import reducer
from tilewright.driver.sized import SizedExecutable
from tilewright.expr.nodes import (
    INDEX,
    MAX_SIZE,
    Buffer,
    Cast,
    Max,
    Min,
    Var,
    const,
)
from tilewright.loops.interp import run
from tilewright.loops.nodes import (
    SIZE,
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    for_sizes,
    loop,
)
from tilewright.loops.parser import parse
from tilewright.loops.sizes import at, solve, with_sizes
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule
from tilewright.schedule.full_tiles import full_tiles
from tilewright.targets.cpu.frame_layout import THREADS_APART, plan_memory
from tilewright.targets.registry import target

N, M, K = Var("n", INDEX), Var("m", INDEX), Var("k", INDEX)
X, Y = Buffer("X", (N, M), float32), Buffer("Y", (N, M), float32)
A, B = Buffer("A", (N, K), float32), Buffer("B", (K, M), float32)
ROW, COL, RED = Var("i", INDEX), Var("j", INDEX), Var("r", INDEX)
ADD = reducer("add", float32)
# Zero, one, less than a vector, one vector, primes, and multiples of the tiles used below.
SIZES = [(0, 3), (3, 0), (1, 1), (2, 5), (5, 16), (8, 32), (9, 19)]


def kernel(
    body: Stmt, params: Sequence[Buffer] = (X, Y), sizes: Sequence[Var] = (N, M)
) -> Kernel:
    return Kernel("k", tuple(params), (params[-1],), for_sizes(sizes, body))


def scaled() -> Kernel:
    value = X[ROW, COL] * 2.0 + 1.0
    return kernel(loop(ROW, N, loop(COL, M, Store(Y, (ROW, COL), value))))


def product() -> Kernel:
    step = Update((Y,), ((ROW, COL),), (A[ROW, RED] * B[RED, COL],), ADD)
    start = Store(Y, (ROW, COL), const(0.0, float32))
    nest = loop(ROW, N, loop(COL, M, block(start, loop(RED, K, step))))
    return kernel(nest, (A, B, Y), (N, M, K))


def staged() -> Kernel:
    """Row sums, in memory whose size the call decides; then each row minus its sum."""
    total = Buffer("T", (N,), float32)
    one = loop(
        ROW,
        N,
        block(
            Store(total, (ROW,), const(0.0, float32)),
            loop(COL, M, Update((total,), ((ROW,),), (X[ROW, COL],), ADD)),
        ),
    )
    i, j = Var("i2", INDEX), Var("j2", INDEX)
    two = loop(i, N, loop(j, M, Store(Y, (i, j), X[i, j] - total[i])))
    return kernel(Alloc(total, block(one, two)))


def tiles(s: Schedule) -> None:
    s.split("i", 4, "guard")
    s.split("j", 16, "guard")
    s.vectorize("j.i")
    s.parallel("i.o")


def cut(s: Schedule) -> None:
    s.split("j", 8, "cut")
    s.vectorize("j.i")
    s.split("j.t", 4, "guard")
    s.vectorize("j.t.i")


def register_tiles(s: Schedule) -> None:
    s.split("i", 4, "guard")
    s.split("j", 16, "guard")
    s.reorder("i.o", "j.o", "i.i", "j.i")
    s.cache_write("Y", "j.o", "register")
    s.decompose_reduction("Y.acc", "i.i")
    s.reorder("r", "i.i", "j.i")
    for name in ("i.i.init", "i.i", "Y.acc.w0"):
        s.unroll(name)
    for name in ("j.i.init", "j.i", "Y.acc.w1"):
        s.vectorize(name)


def fused(s: Schedule) -> None:
    """Tiles fused into one loop; only the outer loop had an open extent."""
    s.split("j", 4, "guard")
    s.fuse("j.o", "j.i")
    s.split("j.o_j.i", 16, "guard")
    s.vectorize("j.o_j.i.i")
    s.parallel("i")


def staged_rows(s: Schedule) -> None:
    s.split("i2", 4, "guard")
    s.compute_at("T", "i2.o", scope="stack")
    s.parallel("i2.o")


def staged_threads(s: Schedule) -> None:
    """One row of sums per thread, in memory whose size the call decides."""
    s.parallel("i2")
    s.cache_read("X", "i2")


CASES: list[tuple[Callable[[], Kernel], Callable[[Schedule], None] | None]] = [
    (scaled, tiles),
    (scaled, cut),
    (scaled, fused),
    (product, register_tiles),
    (staged, None),
    (staged, staged_rows),
    (staged, staged_threads),
]


def scheduled(
    make: Callable[[], Kernel], how: Callable[[Schedule], None] | None
) -> Kernel:
    s = Schedule(make())
    if how is not None:
        how(s)
    return s.kernel


def arrays(k: Kernel, n: int, m: int) -> list[Any]:
    rng = np.random.default_rng(n * 100 + m)
    sizes = {v: {"n": n, "m": m, "k": (n + m) // 2}[v.name] for v in k.sizes}
    shapes = [tuple(at(e, sizes) for e in b.extents) for b in k.params]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("make, how", CASES)
def test_text_reads_back_and_the_invariants_hold(make: Any, how: Any) -> None:
    k = scheduled(make, how)
    for one in (k, full_tiles(k)):
        verify(one)
        assert repr(parse(repr(one).splitlines())) == repr(one)


@pytest.mark.parametrize("make, how", CASES)
def test_one_piece_of_code_is_right_at_every_size(make: Any, how: Any) -> None:
    """And so are the interpreter and the kernel of these sizes, before and after the schedule."""
    plain, k = make(), scheduled(make, how)
    f = SizedExecutable(k, target("cpu"), threads=2)

    def work() -> None:
        for n, m in SIZES:
            given = arrays(k, n, m)
            expected = [a.copy() for a in given]
            run(plain, dict(zip(plain.params, expected, strict=True)))
            again = [a.copy() for a in given]
            run(k, dict(zip(k.params, again, strict=True)))
            np.testing.assert_allclose(again[-1], expected[-1], rtol=1e-4, atol=1e-4)
            for at_end in (True, False):
                held = [guarded(a, at_end) for a in given]
                f(*held[:-1], out=held[-1])
                np.testing.assert_allclose(held[-1], expected[-1], rtol=1e-4, atol=1e-4)
            assert f.in_place(tuple(held)) or 0 in (n, m)

    in_a_child(work)


def test_sizes_are_solved_and_every_extent_is_checked() -> None:
    padded = Buffer("P", (N + 2, 4), float32)
    k = kernel(
        loop(ROW, N, Store(Y, (ROW, const(0)), padded[ROW + 2, const(3)])),
        (padded, Y),
        (N, M),
    )
    assert solve(k, [(7, 4), (5, 3)]) == {N: 5, M: 3}
    for shapes, message in [
        ([(7, 4), (6, 3)], r"dimension 0 of P.*: expected 8 where n = 6, m = 3, got 7"),
        ([(7, 5), (5, 3)], r"dimension 1 of P.*: expected 4 where n = 5, m = 3, got 5"),
        ([(7,), (5, 3)], r"P.*: expected 2 dimensions, got 1"),
        ([(MAX_SIZE + 2, 4), (MAX_SIZE, 3)], f"expected less than {MAX_SIZE}"),
    ]:
        with pytest.raises(InputError, match=message):
            solve(k, shapes)
    with pytest.raises(InputError, match="no parameter has n alone as an extent"):
        SizedExecutable(
            kernel(
                block(), (Buffer("P", (N * 2,), float32), Buffer("Z", (M,), float32))
            ),
            target("cpu"),
        )


def test_given_sizes_make_a_kernel_of_numbers() -> None:
    k = with_sizes(scheduled(staged, staged_rows), {N: 6, M: 5})
    verify(k)
    assert not k.sizes and all(b.static for b in k.params)
    given = arrays(k, 6, 5)
    expected = given[0] - given[0].sum(1, keepdims=True)
    run(k, dict(zip(k.params, given, strict=True)))
    np.testing.assert_allclose(given[1], expected, rtol=1e-4, atol=1e-4)
    half = with_sizes(staged(), {M: 5})
    assert half.sizes == (N,) and "X: float32[n, 5]" in repr(half)
    with pytest.raises(InputError, match="the size n is -1"):
        with_sizes(staged(), {N: -1})


# -- faults that the verifier finds


def _data_extent() -> Kernel:
    count = Buffer("C", (1,), int64)
    inner = Buffer("T", (count[0],), float32)
    return kernel(Alloc(inner, block()), (count, Y))


WRONG = [
    (
        kernel(loop(ROW, N, Store(Y, (ROW, ROW), X[ROW, ROW]))),
        r"dimension 1 of X",
    ),
    (
        kernel(loop(ROW, N + 1, Store(Y, (ROW, const(0)), const(0.0, float32)))),
        "leaves 0..n - 1",
    ),
    (
        kernel(loop(ROW, N, loop(COL, M, Store(Y, (ROW, COL), X[ROW, COL + 1])))),
        "leaves 0..m - 1",
    ),
    (
        kernel(loop(ROW, M, Store(Y, (ROW, const(0)), const(0.0, float32)))),
        "leaves 0..n - 1",
    ),
    (
        kernel(
            loop(ROW, 4, loop(N, 8, block(), SIZE)), (Buffer("Z", (M,), float32),), (M,)
        ),
        "the size n is not around all else",
    ),
    (kernel(block(), sizes=(M,)), "n is not a size"),
    (_data_extent(), r"C\[0\] is not a size"),
    (
        Kernel(
            "k",
            (X, Y),
            (Y,),
            For(N, const(MAX_SIZE + 1), SIZE, loop(M, 8, block(), SIZE)),
        ),
        "not at most",
    ),
    (
        kernel(loop(ROW, 4, Alloc(Buffer("T", (ROW + 1,), float32), block()))),
        "i is not a size",
    ),
]


@pytest.mark.parametrize("k, message", WRONG)
def test_a_kernel_that_breaks_an_invariant_of_sizes_is_refused(
    k: Kernel, message: str
) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(k)


# -- requests that primitives refuse


def _triangle() -> Kernel:
    return kernel(
        loop(ROW, N, loop(COL, ROW, Store(Y, (ROW, const(0)), X[ROW, const(0)])))
    )


@pytest.mark.parametrize(
    "make, step, message",
    [
        (scaled, ("split", "n", 4), "it is a size, of which a call has one value"),
        (scaled, ("vectorize", "j"), "the extent m is not a constant"),
        (scaled, ("fuse", "i", "j"), "loop j: fuse: the extent m is not a constant"),
        (scaled, ("split", "i", 4), "4 is not known to divide n iterations"),
        (scaled, ("split", "i", 0, "guard"), "factor 0 is not positive"),
        (scaled, ("split", "i", 4, "overlap"), "there may be less than 4 of its n"),
        (_triangle, ("reorder", "j", "i"), "the extent i depends on i"),
    ],
)
def test_what_needs_a_number_is_refused_by_name(
    make: Any, step: Any, message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        getattr(Schedule(make()), step[0])(*step[1:])


def test_a_buffer_whose_extents_are_needed_is_named() -> None:
    with pytest.raises(
        UnsupportedError, match="buffer X: the extent n is known only to a call"
    ):
        assert X.shape


def test_an_extent_that_a_factor_divides_needs_no_guard() -> None:
    blocks = Buffer("W", (N * 8,), float32)
    body = loop(ROW, N * 8, Store(blocks, (ROW,), const(1.0, float32)))
    s = Schedule(kernel(body, (Y, blocks)))
    s.split("i", 8)
    assert "if" not in repr(s.kernel) and "for i.o in n:" in repr(s.kernel)
    verify(s.kernel)


def test_a_remainder_is_cut_off_only_where_there_is_one() -> None:
    """Of fewer than 2 columns, m - 2 is negative: its remainder by 8 is not."""
    s = Schedule(
        kernel(loop(COL, M - 2, Store(Y, (const(0), COL), const(0.0, float32))))
    )
    with pytest.raises(ScheduleError, match="may be negative"):
        s.split("j", 8, "cut")
    s.split("j", 8, "guard")


# -- full tiles without guards


def _text(k: Kernel) -> str:
    return repr(full_tiles(k))


def test_full_tiles_have_no_guards() -> None:
    s = Schedule(scaled())
    tiles(s)
    text = _text(s.kernel)
    full, rest = text.split("else:")
    assert "if i.o < n // 4:" in full and "for j.o in m // 16:" in full
    assert (
        full.count("if") == 2 and "i.i" in full
    )  # of the branch, and of the last columns
    assert rest.count("if") == 2  # of the rows, and of the last columns


def test_guards_of_two_extents_hold_where_both_do() -> None:
    """Tiles of n rows, with a statement that runs for the first m - 1 rows only."""
    out = Buffer("Z", (N, 2), float32)
    tile = Var("i.o", INDEX)
    i = tile * 4 + ROW
    first = Store(out, (i, const(0)), const(0.0, float32))
    second = Store(out, (i, const(1)), const(1.0, float32))
    body = If(i < N, block(first, If(i < M - 1, second, None)), None)
    k = kernel(loop(tile, (N + 3) // 4, loop(ROW, 4, body)), (X, out))
    assert "max(min(" in _text(k)
    for n, m in [(1, 2), (9, 2), (9, 5), (9, 20), (2, 2), (9, 0)]:
        x = np.zeros((n, m), np.float32)
        made = [np.full((n, 2), 7.0, np.float32) for _ in range(2)]
        for one, z in zip((k, full_tiles(k)), made, strict=True):
            run(one, {X: x, out: z})
        np.testing.assert_array_equal(made[0], made[1])


def test_what_is_no_guard_of_a_tile_stays() -> None:
    """A condition that falls as the loop runs, that depends on data, or without a size."""
    flags = Buffer("F", (N,), int64)
    for condition in (
        N - ROW < 3,
        flags[ROW] < N,
        flags[const(0)] + ROW < N,
        Cast(X[ROW, const(0)], INDEX) + ROW < N,
    ):
        body = loop(
            ROW, N, If(condition, Store(Y, (ROW, const(0)), const(0.0, float32)), None)
        )
        k = kernel(body, (flags, X, Y))
        assert _text(k) == repr(k)


# -- copies for some sizes


def test_a_copy_for_a_size_has_its_number() -> None:
    s = Schedule(scaled())
    tiles(s)
    made = s.specialize("m == 64 and n < 100")
    assert "j.o.s" in made
    copy, other = repr(s.kernel).split("\n      else:")
    assert "for j.o.s in 4:" in copy and "< m" not in copy
    assert "for j.o in (m + 15) // 16:" in other
    verify(s.kernel)
    f = SizedExecutable(s.kernel, target("cpu"), threads=1)
    for n, m in [(5, 64), (101, 64), (5, 63), (0, 64)]:
        x, y = arrays(s.kernel, n, m)
        f(x, out=y)
        np.testing.assert_allclose(y, x * 2 + 1, rtol=1e-6)


def test_a_copy_is_inside_of_all_sizes() -> None:
    """Whichever of them the condition names."""
    s = Schedule(scaled())
    s.specialize("n < 8")
    assert s.kernel.sizes == (N, M)
    verify(s.kernel)


def test_a_copy_for_less_than_a_size_keeps_it() -> None:
    s = Schedule(scaled())
    s.specialize("m < 8")
    assert "for j.s in m:" in repr(s.kernel)
    verify(s.kernel)


# -- programs that a weaker check would accept


def test_a_loop_that_data_count_is_not_split() -> None:
    count = Buffer("C", (1,), int64)
    k = kernel(loop(ROW, count[0], block()), (count, X, Y))
    with pytest.raises(ScheduleError, match=r"the extent C\[0\] depends on data"):
        Schedule(k).split("i", 4, "guard")


def test_what_a_nest_leaves_out_of_an_open_dimension_is_read_in() -> None:
    """All columns but the last: only a part of the buffer is staged."""
    body = loop(ROW, N, loop(COL, M - 1, Store(Y, (ROW, COL), X[ROW, COL])))
    s = Schedule(kernel(body))
    s.cache_write("Y")
    verify(s.kernel)
    x, y = arrays(s.kernel, 3, 4)
    expected = y.copy()
    expected[:, :-1] = x[:, :-1]
    run(s.kernel, {X: x, Y: y})
    np.testing.assert_array_equal(y, expected)


def test_a_part_from_the_first_row_on_may_be_longer_than_the_whole() -> None:
    """The first four of n sums, in each iteration; there may be two of them."""
    vector, out, total = (Buffer(name, (N,), float32) for name in "VZT")
    i, j = Var("i2", INDEX), Var("j2", INDEX)
    made = loop(ROW, N, Store(total, (ROW,), vector[ROW]))
    read = loop(i, N, loop(j, 4, If(j < N, Store(out, (i,), total[j]), None)))
    s = Schedule(kernel(Alloc(total, block(made, read)), (vector, out), (N,)))
    s.compute_at("T", "i2")
    verify(s.kernel)
    for n in (2, 6):
        x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
        run(s.kernel, {vector: x, out: y})
        np.testing.assert_array_equal(y, min(n, 4) - 1)


def test_the_workspace_grows_with_the_sizes() -> None:
    plan = plan_memory(scheduled(staged, staged_threads))
    assert at(plan.shared, {N: 1000, M: 7}) == 4032
    assert at(plan.thread, {N: 7, M: 1000}) == 4032 + THREADS_APART


def test_what_holds_in_a_loop_is_not_known_behind_it() -> None:
    """A loop over n runs where n is positive only; the last element is read where it is, too."""
    vector, out = Buffer("V", (N,), float32), Buffer("Z", (M,), float32)
    again = Var("again", INDEX)
    copy = loop(ROW, N, Store(out, (const(0),), vector[ROW]))
    last = loop(again, 4, If(0 < N, Store(out, (const(0),), vector[N - 1]), None))
    body = If(0 < M, block(copy, last), None)
    k = kernel(body, (vector, out))
    verify(k)
    f = SizedExecutable(k, target("cpu"), threads=1)

    def work() -> None:
        for n in (0, 3):
            v = guarded(np.arange(n, dtype=np.float32), at_end=False)
            z = np.full(1, 7, np.float32)
            f(v, out=z)
            assert z[0] == (n - 1 if n else 7)

    in_a_child(work)


def test_an_extent_may_be_negative_and_has_no_elements() -> None:
    """T[n - 200] for n = 10: later allocations have the offsets that they would have without T."""
    vector, out = Buffer("V", (N,), float32), Buffer("Z", (N,), float32)
    few, all_of = Buffer("T", (N - 200,), float32), Buffer("U", (N,), float32)
    first = loop(ROW, N - 200, Store(few, (ROW,), vector[ROW]))
    second = loop(COL, N, Store(all_of, (COL,), vector[COL] * 2.0))
    third = loop(RED, N, Store(out, (RED,), all_of[RED] + 1.0))
    k = kernel(
        Alloc(few, Alloc(all_of, block(first, second, third))), (vector, out), (N,)
    )
    f = SizedExecutable(k, target("cpu"), threads=1)
    assert at(plan_memory(k).shared, {N: 10}) == 64
    for n in (10, 3, 225):
        v = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(f(v), v * 2 + 1)


def test_what_is_read_of_an_open_dimension_is_no_larger_than_it() -> None:
    vector, out = Buffer("V", (N,), float32), Buffer("Z", (N,), float32)
    clamped = Max(Min(ROW + 1, N - 1), const(0))
    k = kernel(loop(ROW, N, Store(out, (ROW,), vector[clamped])), (vector, out), (N,))
    s = Schedule(k)
    s.cache_read("V", None)
    assert "V.local: float32[n]" in repr(s.kernel)
    x, z = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run(s.kernel, {vector: x, out: z})
    np.testing.assert_array_equal(z, [1, 2, 3, 3])


def test_an_extent_that_the_loop_changes_is_read_once() -> None:
    """Full tiles would read it again after they have changed it."""
    given, out = Buffer("P", (1,), int64), Buffer("Z", (64,), int64)
    count = Buffer("T", (1,), int64)
    first, other = Store(out, (ROW,), ROW + 1), Store(out, (ROW,), ROW + 100)
    shorter = Store(count, (const(0),), const(2))
    extent = Min(count[const(0)], const(60))
    steps = loop(ROW, extent, block(If(ROW < N, first, other), shorter))
    start = Store(count, (const(0),), given[const(0)])
    vector = Buffer("V", (N,), float32)
    k = kernel(Alloc(count, block(start, steps)), (vector, given, out), (N,))
    verify(k)
    z = np.zeros(64, np.int64)
    SizedExecutable(k, target("cpu"))(np.zeros(4, np.float32), np.array([20]), out=z)
    want = [*range(1, 5), *range(104, 120)]
    np.testing.assert_array_equal(z, want + [0] * 44)
