"""Lanes near one another: every pattern is picked right, and nothing around a buffer is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.guarded import guarded, in_a_child
from tests.targets.cpu.native import prepare, run_native
from tilewright.base.dtypes import DType, float32, int32, uint8, uint16
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Buffer,
    Expr,
    FloorDiv,
    Load,
    Lt,
    Max,
    Min,
    Mod,
    Overlap,
    Select,
    Var,
    const,
    var,
)
from tilewright.loops import interp
from tilewright.loops.nodes import If, Kernel, Stmt, Store, block, loop
from tilewright.loops.parser import parse
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.llvm.emit_near import MOST_PARTS, parts
from tilewright.targets.llvm.lanes import lanes_of, residue
from tilewright.targets.registry import target

V, O = var("v"), var("o")  # noqa: E741
Pattern = Callable[[Expr], Expr]
PATTERNS: dict[str, Pattern] = {
    "halves": lambda v: v // 2,
    "halves, odd": lambda v: (v + 1) // 2,
    "thirds": lambda v: (v + 5) // 3,
    "stride 2": lambda v: v * 2,
    "stride 2, odd": lambda v: v * 2 + 1,
    "stride 3": lambda v: v * 3 + 2,
    "stride -2": lambda v: v * -2,
    "backwards": lambda v: v * -1,
    "remainders": lambda v: v % 4,
    "swapped": lambda v: v // 2 * 2 + (v + 1) % 2,
    "upsampled": lambda v: (v // 2 + v % 2) * 2 + 1,
    "far": lambda v: v * 9,
    "columns": lambda v: v % 4 * 40 + v // 4,
    "columns of 3": lambda v: (v + 1) // 3 * 57 + (v + 1) % 3,
    "clamped": lambda v: Max(Min(v * 2 - 3, const(20)), const(0)),
}


def values(e: Expr, lanes: int, o: int = 0) -> list[int]:
    return [int(evaluate(e, {V: n, O: o})) for n in range(lanes)]


def here(mcpu: str) -> Any:
    if mcpu != "native" and not host().has("avx2"):
        pytest.skip("this processor has no AVX2")
    return host() if mcpu == "native" else machine(mcpu)


def run(body: Stmt, arrays: dict[Buffer, Any], out: Buffer, mcpu: str) -> None:
    inputs = [b for b in arrays if b is not out]
    kernel = Kernel("k", (*inputs, out), (out,), body)
    assert run_native(kernel, arrays, machine=here(mcpu)) == 0


def at_both_ends(array: Any) -> list[Any]:
    """Copies of an array: one that ends at a protected page, one that starts after it."""
    return [guarded(array, at_end) for at_end in (True, False)]


def permitted(lanes: int) -> list[range]:
    """All lanes, the first, the last."""
    few = lanes // 3
    return [range(lanes), range(lanes - few), range(few, lanes)]


def among(kept: range) -> Expr:
    return Lt(V, const(kept.stop)) & Lt(const(kept.start - 1), V)


def every(test: Callable[[str, Pattern], None]) -> None:
    """`test` of each pattern, by name."""
    for name, pattern in PATTERNS.items():
        test(name, pattern)


MACHINES = pytest.mark.parametrize("mcpu", ["native", "x86-64-v3"])
WIDTHS = pytest.mark.parametrize(
    ("dtype", "lanes", "mcpu"),
    [
        # Lanes that fill vectors, of one byte; some that do not, of four.
        pytest.param(float32, 16, "native", marks=pytest.mark.slow),
        (float32, 7, "x86-64-v3"),
        (uint8, 32, "native"),
    ],
    ids=str,
)


@WIDTHS
def test_loads_stay_inside(dtype: DType, lanes: int, mcpu: str) -> None:
    """All lanes, the first and the last of them, of arrays at protected pages."""

    def test(name: str, pattern: Pattern) -> None:
        b = Buffer("b", (lanes,), dtype)
        picked = values(pattern(V), lanes)
        for kept in permitted(lanes):
            # Fewer lanes have fewer elements: the others are outside of the array.
            chosen = [picked[k] for k in kept]
            low = min(chosen)
            a = Buffer("a", (max(chosen) - low + 1,), dtype)
            read: Expr = a[pattern(V) - low]
            if len(kept) < lanes:
                read = Select(among(kept), read, const(7, dtype))
            body = loop(V, lanes, Store(b, (V,), read), "vector")
            compiled = prepare(Kernel("k", (a, b), (b,), body), machine=here(mcpu))
            for given in at_both_ends(np.arange(a.size).astype(dtype.numpy) + 1):
                got = np.zeros(lanes, dtype.numpy)
                assert compiled(given, got) == 0
                want = [
                    given[p - low] if k in kept else 7 for k, p in enumerate(picked)
                ]
                np.testing.assert_array_equal(got, want, err_msg=name)

    in_a_child(lambda: every(test))


@WIDTHS
def test_stores_stay_inside(dtype: DType, lanes: int, mcpu: str) -> None:
    """Memory between the elements keeps its values; if two lanes store to one, the last wins."""

    def test(name: str, pattern: Pattern) -> None:
        b = Buffer("b", (lanes,), dtype)
        picked = values(pattern(V), lanes)
        for kept in permitted(lanes):
            chosen = [picked[k] for k in kept]
            low = min(chosen)
            a = Buffer("a", (max(chosen) - low + 1,), dtype)
            body: Stmt = Store(a, (pattern(V) - low,), b[V])
            if len(kept) < lanes:
                body = If(among(kept), body, None)
            body = loop(V, lanes, body, "vector")
            compiled = prepare(Kernel("k", (b, a), (a,), body), machine=here(mcpu))
            given = (np.arange(lanes) + 1).astype(dtype.numpy)
            want = np.full(a.size, 99, dtype.numpy)
            for k in kept:
                want[picked[k] - low] = given[k]
            for got in at_both_ends(np.full(a.size, 99, dtype.numpy)):
                assert compiled(given, got) == 0
                np.testing.assert_array_equal(got, want, err_msg=name)

    in_a_child(lambda: every(test))


@MACHINES
def test_whole_strides_are_read_only_inside_of_the_buffer(mcpu: str) -> None:
    """Even and odd elements share vectors, but not in front of the first row or after the last."""
    rows, lanes = 3, 8
    a = Buffer("a", (rows, 2 * lanes - 1), float32)
    b = Buffer("b", (rows, lanes), float32)

    def test() -> None:
        for first in (0, 1):
            count = lanes - first
            read = a[O, V * 2 + first]
            body = loop(O, rows, loop(V, count, Store(b, (O, V), read), "vector"))
            for given in at_both_ends(
                np.arange(a.size, dtype=np.float32).reshape(a.shape)
            ):
                got = np.zeros(b.shape, np.float32)
                run(body, {a: given, b: got}, b, mcpu)
                np.testing.assert_array_equal(got[:, :count], given[:, first::2])
        flat, two = Buffer("a", (2 * lanes,), float32), Buffer("b", (2, lanes), float32)
        read = flat[V * 2 + (const(1) - O)]
        body = loop(O, 2, loop(V, lanes, Store(two, (O, V), read), "vector"))
        for given in at_both_ends(np.arange(flat.size, dtype=np.float32)):
            got = np.zeros(two.shape, np.float32)
            run(body, {flat: given, two: got}, two, mcpu)
            np.testing.assert_array_equal(got, [given[1::2], given[::2]])

    in_a_child(test)


@MACHINES
def test_shared_vectors_are_loaded_again_after_a_store(mcpu: str) -> None:
    a, b = Buffer("a", (32,), float32), Buffer("b", (16,), float32)
    even, odd = a[V * 2], a[V * 2 + 1]
    first = Store(b, (V,), even + odd)
    change = Store(a, (V * 2,), b[V])
    again = Store(b, (V,), a[V * 2] - odd)
    body = loop(V, 16, block(first, change, again), "vector")
    given = np.arange(32, dtype=np.float32)
    x = given.copy()
    got = np.zeros(16, np.float32)
    kernel = Kernel("k", (a, b), (a, b), body)
    assert run_native(kernel, {a: x, b: got}, machine=here(mcpu)) == 0
    np.testing.assert_array_equal(got, given[::2] + given[1::2] - given[1::2])


@MACHINES
def test_gathers_in_32_bits_reach_far_and_back(mcpu: str) -> None:
    """Offsets of gathers that do not fit 32 bits keep 64, negative ones keep their sign."""
    index = Buffer("index", (16,), uint16)
    a, b = Buffer("a", (1 << 16,), float32), Buffer("b", (16,), float32)
    read = a[const(65535) - Load(index, (V,)).astype("int64")]
    body = loop(V, 16, Store(b, (V,), read), "vector")
    places = np.linspace(0, 65535, 16).astype(np.uint16)
    given = np.arange(1 << 16, dtype=np.float32)
    got = np.zeros(16, np.float32)
    run(body, {index: places, a: given, b: got}, b, mcpu)
    np.testing.assert_array_equal(got, 65535 - places.astype(np.float32))


@pytest.mark.parametrize(("size", "type"), [(1 << 29, "i32"), ((1 << 29) + 1, "i64")])
def test_gathers_of_large_buffers_have_wide_offsets(size: int, type: str) -> None:
    index = Buffer("index", (16,), int32)
    a, b = Buffer("a", (size,), float32), Buffer("b", (16,), float32)
    at = Min(Max(Load(index, (V,)).astype("int64"), const(0)), const(size - 1))
    body = loop(V, 16, Store(b, (V,), a[at]), "vector")
    text = target("cpu", "x86-64-v3").text(
        Kernel("k", (index, a, b), (b,), body), "k", "llvm"
    )
    assert f"ptr %p1, <16 x {type}>" in text


@pytest.mark.parametrize(
    ("e", "base", "steps"),
    [
        (O * 8 + V * 2 + 1, O * 8 + 1, (0, 2, 4, 6)),
        ((O * 8 + V + 3) // 2, O * 4 + 1, (0, 1, 1, 2)),
        ((O * 8 + V + 3) % 2, const(0), (1, 0, 1, 0)),
        ((Overlap(O * 4, const(10)) + V) // 2, None, (0, 0, 1, 1)),
        ((Mod(O, const(6)) * 1 - Mod(O, const(6)) + V) // 3, const(0), (0, 0, 0, 1)),
        (V % 3 - V // 3, const(0), (0, 1, 2, -1)),
    ],
)  # fmt: skip
def test_an_index_by_lane(e: Expr, base: Expr | None, steps: tuple[int, ...]) -> None:
    found = lanes_of(e, V, 4)
    assert found is not None
    for o in range(5):
        want = values(e, 4, o)
        at = int(evaluate(to_expr(found.base), {O: o}))
        assert [at + n for n in found.steps] == want
    if base is not None:
        form = found.base - affine(base)
        shift = form.const
        assert form.is_const and tuple(n + shift for n in found.steps) == steps


@pytest.mark.parametrize(
    "e",
    [
        (O + V) // 2,  # the residue of o is not known
        (Overlap(O * 4, const(9)) + V) // 2,  # 9 is odd, o * 4 is not
        FloorDiv(V, O),
        (O * 2 + V) // 4,
        Min(V, O),
        V * V,
    ],
)
def test_no_index_by_lane(e: Expr) -> None:
    assert lanes_of(e, V, 4) is None


def test_residues() -> None:
    def of(e: Expr, d: int) -> int | None:
        return residue(affine(e), d)

    x: Var = O
    assert of(x * 6 + 5, 3) == 2
    assert of(Min(x * 4, const(8)) + 3, 4) == 3
    assert of(Min(x * 4, const(9)), 4) is None
    assert of(Mod(x * 3, const(12)) + 1, 3) == 1
    assert of(Mod(x * 3, const(4)), 3) is None
    assert residue(Affine((), -1), 4) == 3


def test_covers_have_few_parts() -> None:
    assert parts([0, 9, 18, 27], 0, 27) is None
    found = parts(list(range(0, 32, 2)), 0, 31)
    assert found is not None and [p.start for p in found] == [0, 16]
    last = parts([0, 2, 4], 0, 4)
    assert last is not None and [p.start for p in last] == [0, 1]
    assert all(len(p.lanes) == 4 for p in last) and len(last) <= MOST_PARTS
    columns = [v % 4 * 40 + v // 4 for v in range(16)]
    runs = parts(columns, 0, 123)
    assert runs is not None and [p.start for p in runs] == [0, 40, 80, 120]
    assert [len(p.lanes) for p in runs] == [4] * 4
    assert parts([*columns[:-1], 200], 0, 200) is None  # of 4, 4, 4, 3 and 1
    assert parts([0, 40, 80, 120], 0, 120) is None  # no neighbors
    assert parts([1, 2, 57, 58, 59], 1, 59) is None  # of 2 and 3
    # Two runs: one is shorter, but so near another one that it seems to be long.
    near = [0, 1, *range(3, 9), *range(100, 104), *range(200, 204)]
    assert parts(near, 0, 203) is None


@pytest.mark.sampled(2)  # a byte, two and four; more and fewer lanes than a vector
@pytest.mark.parametrize(
    ("dtype", "count", "lanes"),
    [
        (uint8, 1024, 64),
        pytest.param(uint8, 1000, 32, marks=pytest.mark.slow),
        (uint8, 130, 70),
        pytest.param(uint8, 16, 5, marks=pytest.mark.slow),
        pytest.param(uint16, 512, 32, marks=pytest.mark.slow),
        (uint16, 77, 100),
        (float32, 128, 16),
        (float32, 33, 7),
        pytest.param(float32, 40, 48, marks=pytest.mark.slow),
        (uint8, 1025, 64),
        (float32, 200, 16),
    ],
    ids=str,
)
def test_small_tables(dtype: DType, count: int, lanes: int) -> None:
    """Every entry, from a table at a protected page; its first entries are skipped once."""
    repeats = -(-count // lanes)
    index = Buffer("index", (repeats * lanes,), uint16)
    b = Buffer("b", (repeats * lanes,), dtype)
    rng = np.random.default_rng(0)
    places = rng.permutation(np.resize(np.arange(count), repeats * lanes))

    def test() -> None:
        for skipped in (0, 3):
            a = Buffer("a", (2, count + skipped), dtype)
            at = O * lanes + V
            entry = Min(index[at].astype("int64"), const(count - 1)) + skipped
            entry = Max(entry, const(skipped))
            body = Store(b, (at,), a[O % 2, entry])
            nest = loop(O, repeats, loop(V, lanes, body, "vector"))
            compiled = prepare(Kernel("k", (index, a, b), (b,), nest))
            values = rng.integers(0, 200, a.shape).astype(dtype.numpy)
            for given in at_both_ends(values):
                got = np.zeros(b.shape, dtype.numpy)
                assert compiled(places.astype(np.uint16), given, got) == 0
                rows = np.arange(repeats * lanes) // lanes % 2
                np.testing.assert_array_equal(got, given[rows, places + skipped])

    in_a_child(test)


def test_tables_are_permuted_where_it_pays() -> None:
    index, out = Buffer("index", (64,), uint16), Buffer("out", (64,), uint8)
    cpu = target("cpu")
    if not host().has("avx512vbmi"):
        pytest.skip("this processor permutes no bytes")
    for count, permutes in ((1024, 8), (100, 1), (1025, 0)):
        table = Buffer("table", (count,), uint8)
        entry = Min(index[V].astype("int64"), const(count - 1))
        body = loop(V, 64, Store(out, (V,), table[entry]), "vector")
        text = cpu.text(Kernel("k", (index, table, out), (out,), body), "k", "llvm")
        assert text.count("= call <64 x i8> @llvm.x86.avx512.vpermi2var") == permutes


def test_no_more_of_a_table_is_read_than_the_buffer_has() -> None:
    """The bounds are wider than the lanes' values: V * V - 15 * V is between -56 and 0."""
    a, b = Buffer("a", (57,), uint8), Buffer("b", (16,), uint8)
    read = a[V * V - V * 15 + 56]
    body = loop(V, 16, Store(b, (V,), read), "vector")

    def test() -> None:
        compiled = prepare(Kernel("k", (a, b), (b,), body))
        for given in at_both_ends(np.arange(57, dtype=np.uint8)):
            got = np.zeros(16, np.uint8)
            assert compiled(given, got) == 0
            np.testing.assert_array_equal(got, [n * n - 15 * n + 56 for n in range(16)])

    in_a_child(test)


@pytest.mark.parametrize(
    "index", ["min(x, 16)", "x % 17", "max(x, 3) - 3", "x // 20 * 3 + 4"]
)
def test_a_loop_that_is_written_out_has_other_bounds_each_time(index: str) -> None:
    """Facts about x below 8 do not hold for x below 32; X ends at a guarded page."""
    text = f"""
kernel k(X: float32[29]) -> Y: float32[4, 32]:
  for y in 4:
    for x in y * 8 + 8:
      Y[y, x] = X[{index}]
"""
    k = parse(text.strip().split("\n"))
    s = Schedule(k)
    s.split("x", 8)
    s.vectorize("x.i")
    s.unroll("y")
    x = np.arange(29, dtype=np.float32) + 1
    want = np.zeros((4, 32), np.float32)
    interp.run(k, dict(zip(k.params, (x, want), strict=True)))

    def work() -> None:
        found = np.zeros_like(want)
        prepare(s.kernel)(guarded(x), found)
        np.testing.assert_array_equal(found, want)

    in_a_child(work)


def test_a_load_that_is_safe_in_the_first_copy_is_guarded_in_the_next() -> None:
    text = """
kernel k(X: float32[80]) -> Y: float32[2, 16, 8]:
  for u in 2 unroll:
    for i in u * 8 + 8:
      for v in 8 vector:
        if i * 8 + v < 80:
          Y[u, i, v] = X[i * 8 + v]
"""
    k = parse(text.strip().split("\n"))
    x = np.arange(80, dtype=np.float32)

    def work() -> None:
        found = np.zeros((2, 16, 8), np.float32)
        prepare(k)(guarded(x), found)
        np.testing.assert_array_equal(found[1].reshape(-1)[:80], x)
        assert not found[1, 10:].any()

    in_a_child(work)
