"""Normal forms: golden examples, equal values on random expressions, depth and speed."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.expr import patterns
from tilewright.expr import simplify as simplify_module
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Add,
    And,
    Buffer,
    Cast,
    Div,
    Eq,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Rem,
    Select,
    Shl,
    Sub,
    Xor,
    const,
    var,
)
from tilewright.expr.simplify import simplify
from tilewright.ir import node
from tilewright.ir.node import postorder

i, j, k, f = (var(n) for n in "ijkf")
A = Buffer("A", (64, 64), dtypes.float32)
V = Buffer("V", (64,), dtypes.int64)
ZERO = const(0.0, dtypes.float32)

GOLDEN = [
    (const(2) + i, "i + 2"),
    (i - 3 + j, "i + j - 3"),
    (j + (i - j), "i"),
    ((i + 3) * 4 - 12, "i * 4"),
    (i * 4 + j + i * 4, "i * 8 + j"),
    ((i * 8 + j) - i * 8, "j"),
    (const(3) - i, "-i + 3"),
    ((i + j) * 4 // 4, "i + j"),
    ((i * 8 + j * 4 + k) // 4, "i * 2 + j + k // 4"),
    ((i * 8 + j * 4 + k + 9) % 4, "(k + 1) % 4"),
    (f // 64 * 64 + f // 8 % 8 * 8 + f % 8, "f"),
    (i // 4 // 8, "i // 32"),
    (i % 32 // 4, "i // 4 % 8"),
    (i * 6 % 9, "i * 6 % 9"),
    (i // 0, "0"),
    (Min(Min(i, const(7)), const(3)), "min(i, 3)"),
    (Max(i + 2, i + 5), "i + 5"),
    (const(0) <= i - 1, "1 <= i"),
    (i * 4 + 3 < 16, "i < 4"),
    ((i < 8) & (i < 5), "i < 5"),
    (~(i < 5), "5 <= i"),
    (Select(i.eq(i), A[i, j], ZERO), "A[i, j]"),
    (Select(~(i < 3), A[i, j], ZERO), "select(3 <= i, A[i, j], 0.0)"),
    (Select(i < j, i, j), "min(i, j)"),
    (A[i + 0, j * 1] + ZERO, "A[i, j] + 0.0"),
    (A[i, j] + -ZERO, "A[i, j]"),
    (A[i, j] * ZERO, "A[i, j] * 0.0"),
    (A[i, j] - A[i, j], "A[i, j] - A[i, j]"),
    (1.0 * A[i, j], "A[i, j]"),
    (-(-A[i, j]), "A[i, j]"),
    (Cast(i + 0, dtypes.int64), "i"),
    # Loaded values may overflow: rules of index arithmetic leave them alone.
    (V[i] * 4 // 4, "V[i] * 4 // 4"),
    (V[i] + 1 <= V[i], "V[i] + 1 <= V[i]"),
]


@pytest.mark.parametrize(("e", "text"), GOLDEN, ids=[f"{e!r}" for e, _ in GOLDEN])
def test_golden(e, text):
    assert repr(simplify(e)) == text
    assert simplify(simplify(e)) is simplify(e)


BOUNDED = [
    ((i * 4 + j) // 4, {j: (0, 3)}, "i"),
    ((i * 4 + j) % 4, {j: (0, 3)}, "j"),
    ((i * 8 + j * 2 + k) // 4, {k: (0, 1)}, "i * 2 + j // 2"),
    ((i * 8 + j * 2 + k) % 4, {k: (0, 1)}, "j % 2 * 2 + k"),
    ((i + 8) % 8, {i: (0, 7)}, "i"),
    ((i - 1) // 8, {i: (1, 8)}, "0"),
    (i % 8, {i: (8, 15)}, "i - 8"),
    (Min(i * 4 + 4, const(16)), {i: (0, 3)}, "i * 4 + 4"),
    (Min(i * 4 + 4, const(16)), {i: (0, 4)}, "min(i * 4 + 4, 16)"),
    (Max(i, const(0)), {i: (0, 3)}, "i"),
    (Max(i - j, const(0)), {i: (0, 3), j: (4, 9)}, "0"),
    (Select((i >= 0) & (i < 4), A[i, j], ZERO), {i: (0, 3)}, "A[i, j]"),
    (Select((i >= 0) & (i < 4), A[i, j], ZERO), {i: (4, 7)}, "0.0"),
    (
        Select((i >= 0) & (i < 4), A[i, j], ZERO),
        {i: (0, 4)},
        "select(i < 4, A[i, j], 0.0)",
    ),
    (
        Select(i < 4, A[i % 4, j], A[i - 4, j]),
        {i: (0, 7)},
        "select(i < 4, A[i, j], A[i - 4, j])",
    ),
    (
        Select(i < 4, A[i, j], A[i % 4, j]),
        {i: (0, 7)},
        "select(i < 4, A[i, j], A[i - 4, j])",
    ),
    (
        Select(i < 4, Select(i < 6, A[i, j], ZERO), ZERO),
        {},
        "select(i < 4, A[i, j], 0.0)",
    ),
    (Select(V[i] < 4, A[i, j], ZERO), {i: (0, 7)}, "select(V[i] < 4, A[i, j], 0.0)"),
    (Div(i, const(4)) + Rem(i, const(4)), {i: (0, 7)}, "i // 4 + i % 4"),
    (Div(i, const(4)), {i: (-1, 7)}, "i / 4"),
    (i.eq(j), {i: (0, 3), j: (4, 5)}, "false"),
    (i.ne(j), {i: (0, 3), j: (4, 5)}, "true"),
]


def _loads(buffer, index):
    """A value for each place; any place may be read."""
    if buffer is V:
        return np.asarray(index[0] % 7, np.int64)
    return np.asarray(index[0] * 100 + index[1], np.float32)


@pytest.mark.parametrize(
    ("e", "env", "text"), BOUNDED, ids=[f"{e!r} {v}" for e, v, _ in BOUNDED]
)
def test_bounds_decide(e, env, text):
    result = simplify(e, env)
    assert repr(result) == text
    points = [
        np.arange(lo, hi + 1) for lo, hi in (env.get(v, (-9, 9)) for v in (i, j, k))
    ]
    grid = dict(zip((i, j, k), (g.ravel() for g in np.meshgrid(*points)), strict=True))
    assert np.all(evaluate(e, grid, _loads) == evaluate(result, grid, _loads))


def test_without_bounds_nothing_is_assumed():
    e = (i * 4 + j) // 4
    simplify(e, {j: (0, 3)})
    assert repr(simplify(e)) == "i + j // 4"


# -- random expressions: equal before and after

INT_KINDS = (Add, Sub, Mul, FloorDiv, Mod, Rem, Div, Min, Max)
BIT_KINDS = (And, Or, Xor, Shl)
COMPARES = (Lt, Le, Eq, Ne)


def expressions(variables, dtype, kinds, low, high):
    numbers = st.integers(low, high).map(lambda n: const(n, dtype))
    leaves = st.one_of(st.sampled_from(variables), numbers)

    def conditions(inner):
        compare = st.builds(
            lambda kind, a, b: kind(a, b), st.sampled_from(COMPARES), inner, inner
        )
        return st.one_of(
            compare,
            compare.map(Not),
            st.builds(And, compare, compare),
            st.builds(Or, compare, compare),
        )

    def extend(inner):
        return st.one_of(
            st.builds(
                lambda kind, a, b: kind(a, b), st.sampled_from(kinds), inner, inner
            ),
            st.builds(
                lambda kind, a, b: kind(a, b), st.sampled_from(kinds), inner, numbers
            ),
            inner.map(Neg),
            st.builds(Select, conditions(inner), inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=16)


def same_values(e, result, env):
    a, b = np.broadcast_arrays(evaluate(e, env), evaluate(result, env))
    assert np.array_equal(a, b), f"{e!r} became {result!r}"


@settings(max_examples=300, deadline=None)
@given(expressions([i, j, k], dtypes.int64, INT_KINDS, -9, 9))
def test_index_expressions_keep_their_values(e):
    rng = np.random.default_rng(1)
    env = {v: rng.integers(-20, 20, 64) for v in (i, j, k)}
    same_values(e, simplify(e), env)


@settings(max_examples=200, deadline=None)
@given(expressions([i, j, k], dtypes.int64, INT_KINDS, -9, 9))
def test_bounded_index_expressions_keep_their_values(e):
    rng = np.random.default_rng(1)
    env = {i: (0, 7), j: (-3, 4), k: (5, 5)}
    points = {v: rng.integers(lo, hi + 1, 64) for v, (lo, hi) in env.items()}
    same_values(e, simplify(e, env), points)


@pytest.mark.representatives("uint8", "int4")  # one that wraps at zero, one with a sign
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int4], ids=str)
def test_narrow_integers_keep_their_values(dtype):
    x, y = var("x", dtype), var("y", dtype)
    lo, hi = int(dtype.min), int(dtype.max)
    values = np.arange(lo, hi + 1, max(1, (hi - lo) // 40), dtype=np.int64)
    grid = np.meshgrid(values, values)
    env = {x: grid[0].ravel(), y: grid[1].ravel()}

    @settings(max_examples=100, deadline=None)
    @given(expressions([x, y], dtype, INT_KINDS + BIT_KINDS, max(lo, -9), min(hi, 9)))
    def run(e):
        same_values(e, simplify(e), env)
        same_values(e, simplify(e, {}), env)

    run()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_floats_keep_every_bit(data):
    x, y = var("x", dtypes.float32), var("y", dtypes.float32)
    numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("nan")])
    leaves = st.one_of(
        st.sampled_from([x, y]), numbers.map(lambda n: const(n, dtypes.float32))
    )
    kinds = st.sampled_from([Add, Sub, Mul, Div])
    tree = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda kind, a, b: kind(a, b), kinds, inner, inner),
            inner.map(Neg),
            st.builds(lambda a, b: Select(a < b, a, b), inner, inner),
        ),
        max_leaves=8,
    )
    e = data.draw(tree)
    points = np.array(
        [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32
    )
    grid = np.meshgrid(points, points)
    env = {x: grid[0].ravel(), y: grid[1].ravel()}
    a, b = np.broadcast_arrays(evaluate(e, env), evaluate(simplify(e), env))
    same = (a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))
    assert same.all(), f"{e!r} became {simplify(e)!r}"


# -- depth and speed


def test_a_chain_40_000_deep():
    e = i
    for _ in range(10_000):
        e = Min((e + 0) * j - 0, k)
    assert sum(1 for _ in postorder(e)) > 30_000
    result = simplify(e)
    assert sum(1 for _ in postorder(result)) == 20_003


def test_a_sum_of_thousands_of_terms_is_not_quadratic():
    e = i
    for n in range(20_000):
        e = e + (var("t") if n % 2 else const(1))
    start = time.process_time()
    simplify(e)
    assert time.process_time() - start < 5


def test_a_schedule_expression_takes_well_under_a_millisecond():
    row = i * 64 + j * 8 + k
    place = row // 64 * 64 + row % 64 // 8 * 8 + row % 8
    env = {i: (0, 15), j: (0, 7), k: (0, 7)}
    times = []
    for _ in range(20):
        start = time.perf_counter()
        result = simplify(place, env)
        times.append(time.perf_counter() - start)
    assert repr(result) == "i * 64 + j * 8 + k"
    assert min(times) < 1e-3


# ---------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("env", [None, {}, {i: (0, 99)}])
def test_what_is_kept_of_other_expressions_is_bounded(monkeypatch, env):
    """As many as one likes: what is kept stays below the limit and what one of them adds."""
    limit, added = 200, 50
    monkeypatch.setattr(simplify_module, "_MEMO_LIMIT", limit)
    monkeypatch.setattr(patterns, "_FACTS_LIMIT", limit)
    memo = simplify_module._memo
    if env is not None:
        memo = simplify_module._memo_under(frozenset(env.items()))
    most, alive = 0, []
    for n in range(2, 500):
        simplify((i * n + n) // (n + 1) + Max(i - n, const(n)) % (n + 3), env)
        most = max(most, len(memo), len(patterns._index_terms))
        alive.append(len(node._table))
    assert limit < most <= limit + added
    assert max(alive[len(alive) // 2 :]) <= max(alive[: len(alive) // 2]) + added
