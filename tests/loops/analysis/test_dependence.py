"""Dependences: the lemma and isl against an enumeration of all pairs of iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes as d
from tilewright.base.errors import VerifyError
from tilewright.compute import isl as compute_isl
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Buffer,
    Expr,
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
from tilewright.loops.analysis import isl, question
from tilewright.loops.analysis.access import Access, guarded_accesses
from tilewright.loops.analysis.dependence import (
    can_fission,
    can_parallelize,
    can_reorder,
)
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.question import conflicting
from tilewright.loops.analysis.terms import quotients
from tilewright.loops.analysis.verdict import Illegal, Legal, Unknown
from tilewright.loops.nodes import (
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    loop,
)
from tilewright.loops.verify import verify

F = d.float32
ADD = reducer("add", F)
ZERO, ONE = const(0.0, F), const(1.0, F)


@st.composite
def index(draw: st.DrawFn, loops: list[Var]) -> Expr:
    """Non-negative, so that any offset is inside a buffer that is large enough."""
    e: Expr = const(draw(st.integers(0, 3)))
    for v in draw(st.lists(st.sampled_from(loops), min_size=0, max_size=3)):
        part: Expr = v * draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
        if draw(st.integers(0, 3)) == 0:
            part = draw(st.sampled_from([v // 2, v % 2, v // 2 % 2, v // 4]))
        e = e + part
    return e


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Two or three loops around one to three statements on two buffers."""
    loops = [var(n) for n in "ijk"[: draw(st.integers(2, 3))]]
    a, b = Buffer("a", (99, 99), F), Buffer("b", (99,), F)

    def place() -> tuple[Buffer, tuple[Expr, ...]]:
        buffer = draw(st.sampled_from([a, b]))
        return buffer, tuple(draw(index(loops)) for _ in buffer.shape)

    stmts: list[Stmt] = []
    for _ in range(draw(st.integers(1, 2))):
        target, at = place()
        source, source_at = place()
        value = source[source_at]
        stmt: Stmt = Store(target, at, value)
        if draw(st.booleans()):
            stmt = Update((target,), (at,), (value,), ADD)
        if draw(st.integers(0, 3)) == 0:
            stmt = If(
                Lt(draw(index(loops)), const(draw(st.integers(1, 6)))), stmt, None
            )
        stmts.append(stmt)
    body = block(*stmts)
    for v in reversed(loops):
        body = loop(v, draw(st.integers(1, 4)), body)
    return Kernel("k", (a, b), (a, b), body)


def nest(kernel: Kernel) -> list[For]:
    found, s = [], kernel.body
    while isinstance(s, For):
        found.append(s)
        s = s.body
    return found


def touched(
    access: Access, loops: list[For]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(iteration, element) of every execution of an access."""
    for point in product(*(range(f.trips or 0) for f in loops)):
        env = {f.var: p for f, p in zip(loops, point, strict=True)}
        if all(bool(evaluate(c, env)) == holds for c, holds in access.guards):
            yield point, tuple(int(evaluate(i, env)) for i in access.index)


def meetings(
    a: Access, b: Access, loops: list[For]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    second = list(touched(b, loops))
    for p, x in touched(a, loops):
        for q, y in second:
            if x == y:
                yield p, q


@settings(max_examples=100, deadline=None)
@given(kernels(), st.data())
def test_parallel_against_enumeration(kernel: Kernel, data: st.DataObject) -> None:
    loops = nest(kernel)
    n = data.draw(st.integers(0, len(loops) - 1))
    meet = any(
        p[:n] == q[:n] and p[n] != q[n]
        for a, b in conflicting(kernel, loops[n])
        for p, q in meetings(a, b, loops)
    )
    verdict = can_parallelize(kernel, loops[n])
    assert type(verdict) is (Illegal if meet else Legal), verdict.reason


@settings(max_examples=100, deadline=None)
@given(kernels())
def test_reorder_against_enumeration(kernel: Kernel) -> None:
    loops = nest(kernel)
    backwards = any(
        p < q and any(x > y for x, y in zip(p, q, strict=True))
        for a, b in conflicting(kernel, loops[-1])
        for one, two in meetings(a, b, loops)
        for p, q in ((one, two), (two, one))
    )
    verdict = can_reorder(kernel, loops)
    assert type(verdict) is (Illegal if backwards else Legal), verdict.reason


@settings(max_examples=100, deadline=None)
@given(kernels(), st.data())
def test_lemma_against_enumeration_and_isl(kernel: Kernel, data: st.DataObject) -> None:
    loops = nest(kernel)
    n = data.draw(st.integers(0, len(loops) - 1))
    band = loops[n:]
    for a, b in conflicting(kernel, band[-1]):
        same = agreeing(a, b, [f.var for f in band])
        together = [(p, q) for p, q in meetings(a, b, loops) if p[:n] == q[:n]]
        if same is None:
            assert not together
            continue
        for k, f in enumerate(band):
            if f.var in same:
                assert all(p[n + k] == q[n + k] for p, q in together)
                assert (
                    isl.ask(a, b, band, lambda p, q, k=k: f"{p[k]} != {q[k]}") is None
                )


def test_the_lemma_sees_through_tiling_and_fusion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One fused parallel loop over tiles of three dimensions needs no isl."""
    x, f, i, j, k = Buffer("x", (4, 40, 30), F), var("f"), var("i"), var("j"), var("k")
    at = (f // 20, f // 5 % 4 * 10 + i, f % 5 * 6 + j)
    body = block(Store(x, at, ZERO), loop(k, 9, Update((x,), (at,), (ONE,), ADD)))
    kernel = Kernel(
        "k", (x,), (x,), loop(f, 80, loop(i, 10, loop(j, 6, body)), "parallel")
    )

    def refuse(*_: object) -> None:
        raise AssertionError("asked isl")

    monkeypatch.setattr(question, "ask", refuse)
    for name in "fij":
        assert can_parallelize(kernel, name)
    assert can_reorder(kernel, ["f", "i", "j"])


def test_guards_widen_the_distance_of_the_other_access() -> None:
    """Within i < 2 the index has digits; the other store, at every i, reaches its elements."""
    x, i, j = Buffer("x", (40,), F), var("i"), var("j")
    at = i + j * 2
    first = If(Lt(i, const(2)), Store(x, (at,), ZERO), None)
    kernel = Kernel(
        "g", (x,), (x,), loop(i, 8, loop(j, 4, block(first, Store(x, (at,), ONE))))
    )
    assert isinstance(can_parallelize(kernel, "i"), Illegal)
    assert isinstance(can_reorder(kernel, ["i", "j"]), Illegal)


def stencil() -> Kernel:
    x, i, j = Buffer("x", (20, 20), F), var("i"), var("j")
    return Kernel(
        "s", (x,), (x,), loop(i, 18, loop(j, 18, Store(x, (i + 1, j), x[i, j + 1])))
    )


def test_a_refusal_names_two_iterations_and_the_element() -> None:
    verdict = can_reorder(stencil(), ["i", "j"])
    assert isinstance(verdict, Illegal)
    first, second = verdict.witness.first, verdict.witness.second
    assert first["i"] < second["i"] and first["j"] > second["j"]
    assert verdict.witness.place in verdict.reason
    assert can_parallelize(stencil(), "j")
    assert isinstance(can_parallelize(stencil(), "i"), Illegal)


def test_updates_commute_with_updates_only() -> None:
    x, y, k = Buffer("x", (8,), F), Buffer("y", (1,), F), var("k")
    step = Update((y,), ((const(0),),), (x[k],), ADD)
    assert can_parallelize(Kernel("s", (x, y), (y,), loop(k, 8, step)), "k")
    reading = block(step, Store(x, (k,), y[0]))
    assert not can_parallelize(Kernel("s", (x, y), (x, y), loop(k, 8, reading)), "k")
    other = block(step, Update((y,), ((const(0),),), (x[k],), reducer("max", F)))
    assert not can_parallelize(Kernel("s", (x, y), (y,), loop(k, 8, other)), "k")


def test_operators_of_one_name_that_do_otherwise_do_not_commute() -> None:
    x, y, k = Buffer("x", (8,), F), Buffer("y", (1,), F), var("k")
    a, b = var("a", F), var("b", F)
    twin = Reducer("add", (a,), (b,), (a + b,), ADD.identity)
    largest = replace(twin, result=(Max(a, b),))

    def both(op: Reducer) -> Kernel:
        steps = (Update((y,), ((const(0),),), (x[k],), r) for r in (ADD, op))
        return Kernel("s", (x, y), (y,), loop(k, 8, block(*steps)))

    assert can_parallelize(both(twin), "k")
    assert not can_parallelize(both(largest), "k")


def test_operators_that_do_not_commute_keep_their_order() -> None:
    """The last value that is not zero: associative, and the order of its operands matters."""
    x, y, i, k = Buffer("x", (3, 8), F), Buffer("y", (1,), F), var("i"), var("k")
    a, b = var("a", F), var("b", F)
    last = Reducer(
        "last", (a,), (b,), (Select(b.ne(0.0), b, a),), (ZERO,), commutative=False
    )
    free = replace(last, commutative=True)

    def kernel(*steps: Reducer) -> Kernel:
        body = block(*(Update((y,), ((const(0),),), (x[i, k],), op) for op in steps))
        return Kernel("s", (x, y), (y,), loop(i, 3, loop(k, 8, body)))

    assert can_parallelize(kernel(free), "k") and can_reorder(kernel(free), ["i", "k"])
    for steps in ([last], [last, free]):
        assert not can_parallelize(kernel(*steps), "k")
        assert not can_reorder(kernel(*steps), ["i", "k"])
    assert not can_parallelize(kernel(free, last), "k")


def test_what_is_made_once_is_one_value_with_a_parameter() -> None:
    """argmax of a parameter and an intermediate: allocated outside of all loops, or in each."""
    x, y, i, k = Buffer("x", (4,), F), Buffer("y", (4,), F), var("i"), var("k")
    place = Buffer("t", (4,), d.int32)
    op = arg_reducer("argmax", F, d.int32)
    at = (const(0),)
    step = Update((y, place), (at, at), (x[k], k.astype(d.int32)), op)
    outside = Alloc(place, loop(i, 2, loop(k, 4, step)))
    inside = loop(i, 2, Alloc(place, loop(k, 4, step)))
    assert can_parallelize(Kernel("s", (x, y), (y,), outside), "k")
    assert not can_parallelize(Kernel("s", (x, y), (y,), inside), "k")


def test_a_buffer_of_each_iteration_is_private() -> None:
    x, t, i = Buffer("x", (8,), F), Buffer("t", (1,), F), var("i")
    inner = block(Store(t, (const(0),), x[i]), Store(x, (i,), t[0]))
    assert can_parallelize(Kernel("p", (x,), (x,), loop(i, 8, Alloc(t, inner))), "i")
    assert not can_parallelize(
        Kernel("p", (x,), (x,), Alloc(t, loop(i, 8, inner))), "i"
    )


def test_data_dependent_writes_are_unknown() -> None:
    x, at, i = Buffer("x", (8,), F), Buffer("at", (8,), d.int64), var("i")
    kernel = Kernel(
        "scatter", (at, x), (x,), loop(i, 8, Store(x, (at[i],), const(0.0, F)))
    )
    assert isinstance(can_parallelize(kernel, "i"), Unknown)


TILE, LANE = var("o"), var("i")
X, Y = Buffer("x", (10,), F), Buffer("y", (10,), F)
PROMISED, WRITTEN = Overlap(TILE * 4, const(6)) + LANE, Min(TILE * 4, const(6)) + LANE


def tiles(*body: Stmt) -> Kernel:
    """Statements at elements 0..9 of x and y, in tiles of 4."""
    return Kernel("t", (X, Y), (Y,), loop(TILE, 3, loop(LANE, 4, block(*body))))


def test_overlapping_tiles_store_equal_values() -> None:
    kernel = tiles(Store(Y, (PROMISED,), X[PROMISED]))
    assert can_parallelize(kernel, "o") and can_reorder(kernel, ["o", "i"])


def test_a_minimum_of_the_user_promises_nothing() -> None:
    """y[min(o*4, 6) + i] = o stores other values where tiles overlap."""
    kernel = tiles(Store(Y, (WRITTEN,), TILE.astype(F)))
    assert isinstance(can_parallelize(kernel, "o"), Illegal)
    assert isinstance(can_reorder(kernel, ["o", "i"]), Illegal)


def test_the_promise_is_about_plain_stores_of_one_statement() -> None:
    adding = Update((Y,), ((PROMISED,),), (X[PROMISED],), reducer("max", F))
    start = Store(Y, (PROMISED,), const(0.0, F))
    assert not can_parallelize(tiles(start, adding), "o")
    again = Store(Y, (PROMISED,), X[PROMISED])
    assert not can_parallelize(tiles(start, again), "o")
    reading = Store(Y, (PROMISED,), Y[PROMISED] + ONE)
    assert not can_parallelize(tiles(reading), "o", lambda b: False)


def test_the_promise_is_about_the_tiles_asked_for() -> None:
    """The promise covers the requested tile size; tiles of another size conflict elsewhere."""
    other = Overlap(TILE * 4, const(5)) + LANE
    body = Store(Y, (PROMISED,), X[PROMISED]), Store(X, (other,), Y[other])
    kernel = replace(tiles(*body), outputs=(X, Y))
    assert not can_reorder(kernel, ["o", "i"])


def test_fission_of_overlapping_tiles() -> None:
    """Elements may be read after they are stored again, not stored again after a later write."""
    z = Buffer("z", (10,), F)
    first = Store(Y, (PROMISED,), X[PROMISED])

    j = var("j")
    at = Overlap(TILE * 4, const(6)) + j
    parts = loop(LANE, 4, first), loop(j, 4, Store(z, (at,), Y[at]))
    assert can_fission(
        Kernel("f", (X, Y, z), (Y, z), loop(TILE, 3, block(*parts))), "o", 1
    )
    parts = loop(LANE, 4, first), loop(j, 4, Store(Y, (at,), Y[at] + ONE))
    assert not can_fission(
        Kernel("f", (X, Y), (Y,), loop(TILE, 3, block(*parts))), "o", 1
    )


# -- proofs by the lemma alone


def lemma(first: Stmt, second: Stmt, *around: For) -> tuple[set[str] | None, ...]:
    """The loops around both statements that agree wherever both access the same element of Y."""
    body = block(first, second)
    for f in reversed(around):
        body = f.replace(body=body)
    kernel = Kernel("k", (X, Y, COUNT), (Y,), body)
    band = nest(kernel)[-1:]
    a, b = (a for a in guarded_accesses(kernel.body) if a.buffer is Y)
    found = (agreeing(*both, [f.var for f in band]) for both in ((a, b), (b, a)))
    return tuple(None if same is None else {v.name for v in same} for same in found)


def run(v: Var, extent: int | Expr) -> For:
    return loop(v, extent, Store(X, (const(0),), ZERO))


def set_to(index: Expr) -> Stmt:
    return Store(Y, (index,), ONE)


def twice(index: Expr) -> tuple[Stmt, Stmt]:
    return Store(Y, (index,), ZERO), Store(Y, (index,), ONE)


COUNT, OUTER, V = Buffer("n", (1,), d.int64), var("o"), var("v")
BOTH: tuple[set[str] | None, ...] = ({"v"}, {"v"})


def test_what_is_one_apart_never_meets() -> None:
    assert lemma(set_to(V * 2), set_to(V * 2 + 1), run(V, 4)) == (None, None)
    assert lemma(set_to(V), set_to(V + 1), run(V, 4)) == (set(), set())


def test_what_is_made_of_outer_loops_is_fixed() -> None:
    """A digit of one of them, in all distances of 0, leaves the inner index alone."""
    assert lemma(*twice(OUTER // 2 * 4 + V), run(OUTER, 4), run(V, 8)) == BOTH
    # A digit of both loops tells of the inner one.
    x, first = (OUTER + V) // 4, (OUTER + V) % 4
    assert lemma(*twice(x * 16 + first), run(OUTER, 4), run(V, 8)) == BOTH


def test_an_outer_loop_may_count_more_in_one_access() -> None:
    """o*2 + v and o + v access one element in iterations v that are o apart."""
    assert lemma(
        set_to(OUTER * 2 + V), set_to(OUTER + V), run(OUTER, 3), run(V, 4)
    ) == (
        set(),
        set(),
    )
    assert (
        lemma(
            set_to(OUTER * 2 + V * 3), set_to(OUTER + V * 3), run(OUTER, 3), run(V, 4)
        )
        == BOTH
    )


def test_a_loop_around_one_access_only() -> None:
    inner = loop(LANE, 7, set_to(V * 8 + LANE + 1))
    assert lemma(set_to(V * 8), inner, run(V, 4)) == (None, None)


def test_a_loop_of_unknown_extent_is_a_digit() -> None:
    bounded = If(Lt(V, const(4)), set_to(V), None)
    assert lemma(set_to(V), bounded, run(V, COUNT[0])) == BOTH


def test_a_guard_around_one_access_bounds_its_instances_only() -> None:
    """Within v < 2 the remainder is v, and no quotient but 0; elsewhere 4 % 4 + 4 // 4 is 1 too."""
    first = If(Lt(V, const(2)), set_to(V % 4 + V // 4), None)
    assert lemma(first, set_to(V % 4 + V // 4), run(V, 8)) == (set(), set())


def test_memory_of_an_iteration_says_something_else_in_another_one() -> None:
    """y[t[0] + v] with t[0] = 3 - v is one element."""
    t = Buffer("t", (1,), d.int64)
    at = const(0)
    body = Alloc(t, block(Store(t, (at,), 3 - V), Store(Y, (t[at] + V,), ONE)))
    verdict = can_parallelize(Kernel("k", (Y,), (Y,), loop(V, 4, body)), "v")
    assert isinstance(verdict, Unknown) and verdict.limit == "affine"


def test_tiles_that_are_not_the_same_are_read_as_they_are() -> None:
    """x[6] is in tile 1 of those that end at 6, and in tile 2 of those that end at 5."""
    other = Overlap(TILE * 4, const(5)) + LANE
    a, b = guarded_accesses(tiles(Store(X, (other,), X[PROMISED])).body)
    assert agreeing(a, b, [TILE, LANE], without_overlap=True) == set()
    assert agreeing(b, b, [TILE, LANE], without_overlap=True) == {TILE, LANE}


SHIFTED = Overlap(TILE * 4, const(5)) + LANE
# Indices of T in x, and in y, which is x in other tiles: those that force one x, and others.
Parts = Callable[[Any, Any], tuple[Any, ...]]
WHOLE: list[Parts] = [
    lambda x, y: (x // 2, x % 2),
    lambda x, y: (4 - x // 3, 1 + x % 3 * 2),
    lambda x, y: (x % 2, x // 4, x // 2 % 2),
]
APART: list[Parts] = [
    lambda x, y: (x // 2,),
    lambda x, y: (x % 2,),
    lambda x, y: (x // 2 + x % 2,),
    lambda x, y: (x // 4, x % 2),
    lambda x, y: (x // 2, y % 2),
    lambda x, y: (x // 4, x // 2 % 2),
    lambda x, y: (x // 4 % 2, x % 4),
]


@pytest.mark.parametrize("parts", [*WHOLE, *APART])
def test_starts_in_quotients_and_remainders(parts: Parts) -> None:
    """T[parts] = X[x] is of one x for an element, or tiles at the same time store others."""
    t = Buffer("T", (10, 10, 10), F)
    index = parts(PROMISED, SHIFTED)
    place = (*index, *(const(0) for _ in range(3 - len(index))))
    kernel = tiles(Store(t, place, X[PROMISED]))
    kernel = replace(kernel, params=(X, t), outputs=(t,))
    points = [(o, i) for o in range(3) for i in range(4)]
    found = [(min(4 * o, 6) + i, min(4 * o, 5) + i) for o, i in points]
    elements = {(parts(x, y), x) for x, y in found}
    promised = len(elements) == len({element for element, _ in elements})
    assert promised == (parts in WHOLE)
    verdict = can_parallelize(kernel, "o")
    assert bool(verdict) == promised
    if isinstance(verdict, Illegal):
        assert verdict.witness is not None
        (o, i), (p, q) = (
            at.values() for at in (verdict.witness.first, verdict.witness.second)
        )
        one, two = ((min(4 * t, 6) + n, min(4 * t, 5) + n) for t, n in ((o, i), (p, q)))
        assert parts(*one) == parts(*two)
    (write,) = (a for a in guarded_accesses(kernel.body) if a.writes)
    same = agreeing(write, write, [TILE, LANE], without_overlap=True)
    assert (same == {TILE, LANE}) == promised
    answer = isl.ask(
        write,
        write,
        nest(kernel)[:1],
        lambda p, q: f"{p[0]} != {q[0]}",
        without_overlap=True,
    )
    assert (answer is None) == promised


def test_parts_that_two_accesses_count_differently_are_not_joined() -> None:
    """y[2 * (x // 2), x % 2] for x = 2 is y[x // 2, x % 2] for x = 4: in two tiles."""
    t = Buffer("T", (10, 10), F)
    half, rest = PROMISED // 2, PROMISED % 2
    body = Store(t, (half * 2, rest), t[half, rest])
    a, b = guarded_accesses(tiles(body).body)
    assert agreeing(a, b, [TILE, LANE], without_overlap=True) == set()
    for place in ((half, rest * 2), (half * 2, rest * 2)):
        a, b = guarded_accesses(tiles(Store(t, place, t[half, rest])).body)
        assert agreeing(a, b, [TILE, LANE], without_overlap=True) == set()
    a, b = guarded_accesses(tiles(Store(t, (half * 2, rest), t[half, rest * 2])).body)
    assert agreeing(a, b, [TILE, LANE], without_overlap=True) == set()


def test_what_with_a_remainder_makes_the_whole() -> None:
    three, four = const(3), const(4)
    assert quotients(Mod(V, four)) == (V // 4,)
    assert quotients(Mod(V // 3, four)) == (V // 3 // 4, V // 12)
    assert quotients(Mod(V // OUTER, four)) == (V // OUTER // 4,)
    assert quotients(Mod(V, OUTER)) == (V // OUTER,)
    for odd in (const(0), const(-3)):
        assert not quotients(Mod(V, odd))
    assert quotients(Mod(V // 4, three))[1] is quotients(Mod(V // 3, four))[1]


def test_without_a_promise_tiles_overlap() -> None:
    kernel = tiles(Store(Y, (PROMISED,), X[PROMISED]))
    band = nest(kernel)[:1]
    (write,) = (a for a in guarded_accesses(kernel.body) if a.writes)

    def other(p: Sequence[str], q: Sequence[str]) -> str:
        return f"{p[0]} != {q[0]}"

    verdict = isl.ask(write, write, band, other)
    assert isinstance(verdict, Illegal)
    assert isl.ask(write, write, band, other, without_overlap=True) is None


def test_the_form_of_a_promise_is_verified() -> None:
    for odd in (
        Overlap(TILE * 4, LANE),
        Overlap(Buffer("n", (3,), d.int64)[TILE], const(6)),
    ):
        kernel = tiles(Store(Y, (odd,), ZERO))
        if isinstance(odd.lhs, Load):
            kernel = replace(kernel, params=(X, odd.lhs.buffer, Y))
        with pytest.raises(
            VerifyError, match="is not a start of a tile, which is a sum of"
        ):
            verify(kernel)


def test_fission() -> None:
    x, y, i = Buffer("x", (9,), F), Buffer("y", (9,), F), var("i")

    def kernel(offset: int) -> Kernel:
        first, second = Store(x, (i,), const(1.0, F)), Store(y, (i,), x[i + offset])
        return Kernel("f", (x, y), (x, y), loop(i, 8, block(first, second)))

    assert can_fission(kernel(0), "i", 1)
    assert isinstance(can_fission(kernel(1), "i", 1), Illegal)
    with pytest.raises(VerifyError, match="no statement boundary 2"):
        can_fission(kernel(0), "i", 2)


def test_an_unknown_loop_is_named() -> None:
    with pytest.raises(VerifyError, match="no loop z"):
        can_parallelize(stencil(), "z")


def test_verdicts_are_true_when_legal() -> None:
    assert can_parallelize(stencil(), "j") and not can_parallelize(stencil(), "i")


def test_within_the_operation_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_isl, "MAX_OPERATIONS", 1)
    verdict = can_reorder(stencil(), ["i", "j"])
    assert isinstance(verdict, Unknown) and verdict.limit == "operations"
    assert "operation limit" in verdict.reason
    x, i = Buffer("x", (8,), F), var("i")
    odd = loop(i, 9, If((i % 2).eq(1), Store(x, (i,), ZERO), None))
    with pytest.raises(
        VerifyError, match=r"not proven inside 0\.\.7 within the operation limit"
    ):
        verify(Kernel("k", (x,), (x,), odd))
