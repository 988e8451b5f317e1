"""Fusion: for each condition a list of groups that would be wrong, or slower, without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.plan.test_passes import COSTS, masked, same, stage
from tilewright.base.dtypes import float32, int32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Select, Var, call, const
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.fuse import (
    MAX_LOADS,
    MAX_NODES,
    MAX_WRITTEN,
    fuse,
    inline_views,
)
from tilewright.plan.verify import verify_steps

One = Callable[[Expr], Expr]
X, T, U, Y, Z = (Buffer(n, (8,), float32) for n in "xtuyz")
A, B, C = (Buffer(n, (4, 8), float32) for n in "abc")
S, R = Buffer("s", (4,), float32), Buffer("r", (4,), float32)
ONE, Q = Buffer("o", (1,), float32), Buffer("q", (4,), float32)
W, D = Buffer("w", (9,), float32), Buffer("d", (4, 9), float32)
PAIRS = Buffer("pairs", (8, 2), float32)
FLAT, WIDE = Buffer("flat", (8, 4), float32), Buffer("wide", (4, 8, 9), float32)


def each(out: Buffer, source: Buffer, f: One = lambda v: v * 2.0) -> FusionGroup:
    return stage(out.name, map_(out.name, out, lambda *i: f(source[i])))


def sums(
    out: Buffer, value: Callable[[Expr, Expr], Expr], by: str = "add"
) -> Computation:
    return reduce_(out.name, out, (8,), by, value)


def rows(out: Buffer, source: Buffer, by: str = "add") -> Computation:
    return sums(out, lambda i, k: source[i, k], by)


def twice(source: Buffer) -> FusionGroup:
    return stage("pairs", map_("pairs", PAIRS, lambda i, j: source[i] * 2.0))


def crossed(out: Buffer, source: Buffer) -> FusionGroup:
    """Each row nine times."""
    value: Callable[..., Expr] = lambda i, j, k: source[i, k] - W[j]  # noqa: E731
    return stage(out.name, reduce_(out.name, out, (8,), "max", value))


def product(source: Buffer) -> Computation:
    factor = Buffer("f", (8, 9), float32)
    return reduce_("p", D, (8,), "add", lambda i, j, k: source[i, k] * factor[k, j])


def repeated(count: int) -> One:
    """So many nodes, and one for the factor."""

    def made(v: Expr) -> Expr:
        for _ in range(count):
            v = v * 2.0
        return v

    return made


def squared(count: int, added: int = 0) -> One:
    """Whose parts are shared: written out, 3 * 2 ** count - 1 nodes of one read."""

    def made(v: Expr) -> Expr:
        read = v
        for _ in range(count):
            v = v * v
        v = v + read if added else v
        for _ in range(added):
            v = v + 1.0
        return v

    return made


def total(out: Buffer, first: Buffer, others: str) -> FusionGroup:
    buffers = [Buffer(n, out.shape, float32) for n in others]

    def value(*i: Expr) -> Expr:
        v: Expr = first[i]
        for b in buffers:
            v = v + b[i]
        return v

    return stage(out.name, map_(out.name, out, value))


def digits(source: Buffer) -> Callable[[Expr, Expr], Expr]:
    """A matrix of 8 columns in the memory of one of 4."""
    return lambda i, k: source[(i * 8 + k) // 4, (i * 8 + k) % 4]


def by_digits(out: Buffer, source: Buffer) -> FusionGroup:
    return stage(out.name, map_(out.name, out, digits(source)))


def half(v: Expr) -> Expr:
    return v * v + 1.0


def at(i: Expr) -> Expr:
    return Cast(PLACES[i], INDEX) % 8


LEFT = 150
FULL = MAX_NODES - 3 - LEFT  # but the read, its index and the factor
WRITTEN = (MAX_WRITTEN - (3 * 2**9 - 1) - 3 * 2**4) // 2  # but squares and the read
LETTERS = "abcdefghijklmnopq"
PLACES = Buffer("places", (8,), int32)
GATHERED = stage("t", map_("t", T, lambda i: X[at(i)]))
CHOSEN = stage("t", map_("t", T, lambda i: Select(i < 3, X[i], U[i])))
READERS = [each(Y, T), each(Z, T)]
# Groups, results, and how many Computations each group has afterwards.
FUSED: dict[str, tuple[Sequence[FusionGroup], Sequence[Buffer], list[int]]] = {
    "a map into its reader": ([each(T, X), each(Y, T)], [Y], [1]),
    "a costly one, too": ([each(T, X, lambda v: call("exp", v)), each(Y, T)], [Y], [1]),
    "what is read twice": ([each(T, X, half), twice(T)], [PAIRS], [1]),
    "a costly one": ([each(T, X, lambda v: call("exp", v)), twice(T)], [PAIRS], [1, 1]),
    "a result stays": ([each(T, X), each(Y, T)], [T, Y], [1, 1]),
    "what nobody reads goes": ([each(T, X), each(Y, X)], [Y], [1]),
    "arithmetic for two": ([each(T, X), *READERS], [Y, Z], [1, 1, 1]),
    "a choice of two tensors for two": ([CHOSEN, *READERS], [Y, Z], [1, 1, 1]),
    "a look-up for two": ([GATHERED, *READERS], [Y, Z], [1, 1, 1]),
    "what one of two cannot take": (
        [by_digits(A, FLAT), each(B, A), stage("s", rows(S, A))], [B, S], [1, 1, 1]),
    "as many reads": ([total(T, X, LETTERS[:7]), total(Y, T, LETTERS[7:15])], [Y], [1]),
    "a read more": ([total(T, X, LETTERS[:7]), total(Y, T, LETTERS[7:16])], [Y], [1, 1]),
    "as many nodes": ([each(T, X, repeated(LEFT)), each(Y, T, repeated(FULL))], [Y], [1]),
    "a node more": ([each(T, X, repeated(LEFT)), each(Y, T, repeated(FULL + 1))], [Y], [1, 1]),
    "as much when written out": (
        [each(T, X, squared(4)), each(Y, T, squared(5, WRITTEN))], [Y], [1]),
    "more when written out": (
        [each(T, X, squared(4)), each(Y, T, squared(5, WRITTEN + 1))], [Y], [1, 1]),
    "digits in a map": ([by_digits(A, FLAT), each(B, A)], [B], [1]),
    "digits in a sum": ([by_digits(A, FLAT), stage("s", rows(S, A))], [S], [1, 1]),
    "a reduction behind a map of its group": (
        [stage("s", rows(S, A)),
         stage("two", map_("r", R, lambda i: S[i] * 2.0),
               reduce_("o", ONE, (4,), "add", lambda i, k: R[k]))],
        [ONE], [1, 2]),
    "a sum in another order": (
        [stage("s", rows(S, A)), stage("r", map_("r", R, lambda i: S[3 - i]))], [R], [1, 1]),
    "a map behind a sum": ([stage("s", rows(S, A)), each(R, S)], [R], [2]),
    "a map behind a group that ends in one": (
        [stage("two", rows(S, A), map_("r", R, lambda i: S[i] * 2.0)), each(Q, R)], [Q], [2]),
    "a large map behind a sum": (
        [stage("s", rows(S, A)), total(R, S, LETTERS[:MAX_LOADS])], [R], [1, 1]),
    "two maps behind a sum, too large as one": (
        [stage("s", rows(S, A)), each(R, S, repeated(200)),
         each(Q, R, repeated(200))],
        [Q], [2, 1]),
    "a map before sums of rows": (
        [each(B, A, half), stage("two", rows(S, B), rows(R, B, "max"))], [S, R], [3]),
    "a map before a sum": ([each(B, A), stage("s", rows(S, B))], [S], [1]),
    "a map in another order before sums of rows": (
        [stage("b", map_("b", B, lambda i, j: A[i, j] * 2.0, index=lambda i, j: (i, 7 - j))),
         stage("two", rows(S, B), rows(R, B, "max"))], [S, R], [1, 2]),
    "a large map before a large sum": (
        [each(B, A, repeated(200)),
         stage("s", sums(S, lambda i, k: repeated(200)(B[i, k])))], [S], [1, 1]),
    "rows that are read again and again": ([each(B, A, half), crossed(D, B)], [D], [2]),
    "masked rows that are read again and again": (
        [stage("b", map_("b", B, lambda i, j: Select(C[i, j] > 0.0, A[i, j], const(0.0, float32)))),
         crossed(D, B)], [D], [1, 1]),
    "a map before a product": ([each(B, A), stage("p", product(B))], [D], [1, 1]),
    "a map before a product and a sum": (
        [each(B, A), stage("two", product(B), rows(S, B))], [D, S], [1, 2]),
    "a map before a wider map": (
        [each(B, A), stage("wide", map_("wide", WIDE, lambda i, j, k: B[i, j] * W[k]))],
        [WIDE], [1, 1]),
    "the second of two sums before sums of rows": (
        [stage("two", sums(S, lambda i, k: A[i, k] * 2.0),
               reduce_("b", B, (4,), "add", lambda i, j, k: A[k, j] - S[i])),
         stage("more", rows(R, B), rows(Q, B, "max"))],
        [R, Q], [2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused_means_the_same(name: str) -> None:
    steps, results, counts = FUSED[name]
    after = fuse(steps, frozenset(results), COSTS.repeated)
    assert all(isinstance(s, FusionGroup) for s in after)
    assert [len(s.computations) for s in after if isinstance(s, FusionGroup)] == counts
    made = {b for s in steps for b in s.writes}
    given = dict.fromkeys(b for s in steps for b in s.reads if b not in made)
    same(steps, after, list(given), results)


CENTERED = stage("b", rows(S, A), map_("b", B, lambda i, j: A[i, j] - S[i]))
TURNED, APART = Buffer("turned", (8, 4), float32), Buffer("apart", (2, 2, 8), float32)
SQUARE = Buffer("square", (2, 2), float32)
LONE = [Buffer(n, (), float32) for n in "lmn"]
# A group, a map of its result, and the dimensions of both as one.
BEHIND: dict[str, tuple[FusionGroup, Computation, tuple[int, ...]]] = {
    "rows, put elsewhere": (
        CENTERED, map_("apart", APART, lambda i, j, k: B[j * 2 + i, k] * 2.0), (4, 8)),
    "columns": (CENTERED, map_("turned", TURNED, lambda j, i: B[i, j] * 2.0), (8, 4)),
    "a number": (
        stage("r", reduce_("s", LONE[0], (4, 8), "add", lambda i, k: A[i, k]),
              map_("r", LONE[1], lambda: LONE[0][()] * 2.0)),
        map_("last", LONE[2], lambda: LONE[1][()] + 1.0), ()),
    "a number of each row": (
        stage("r", rows(S, A), map_("r", R, lambda i: S[i] * 2.0)),
        map_("square", SQUARE, lambda i, j: R[i * 2 + j] + 1.0), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_a_map_of_rows_stays_over_them(name: str) -> None:
    """What they have in common is then computed once, however they are ordered in the result."""
    group, behind, dims = BEHIND[name]
    steps, result = [group, stage("behind", behind)], behind.outputs[0].tensor
    (after,) = fuse(steps, frozenset({result}), COSTS.repeated)
    assert isinstance(after, FusionGroup)
    assert tuple(d.extent for d in after.computations[-1].dims) == dims
    same(steps, [after], [A], [result])


def copying(out: Buffer, source: Buffer) -> FusionGroup:
    """A loop program, which fusion leaves as it is."""
    i, j = Var("i", INDEX), Var("j", INDEX)
    body = loop(i, 4, loop(j, 8, Store(out, (i, j), source[i, j])))
    kernel = Kernel("copying", (source, out), (out,), body)
    return FusionGroup("copying", (), kernel=kernel)


@pytest.mark.parametrize(
    "steps",
    [
        [stage("b", map_("b", B, lambda i, j: A[3 - i, j])), copying(C, B)],
        [each(B, A, half), copying(C, B)],
        [copying(B, A), each(C, B)],
    ],
    ids=["moved before", "computed before", "behind"],
)
def test_a_loop_program_stays_as_it_is(steps: list[FusionGroup]) -> None:
    after = fuse(steps, frozenset({C}), COSTS.repeated)
    assert after == steps
    verify_steps(after, [A], [C])


def test_a_tensor_that_two_groups_write_stays() -> None:
    again = map_("again", T, lambda i: X[i] + 1.0, extents=(4,))
    steps = [each(T, X), stage("again", again), each(Y, T)]
    assert fuse(steps, frozenset({Y}), COSTS.repeated) == steps


def test_a_group_does_not_wait_if_one_of_its_results_is_read_meanwhile() -> None:
    """Though nobody reads another one."""
    unread = Buffer("n", (4,), float32)
    results = [Buffer("early", (4,), float32), Buffer("late", (4,), float32)]
    both = stage("both", rows(unread, A), rows(S, A, "max"), rows(R, A, "min"))
    steps = [both, each(results[0], S), each(results[1], R)]
    after = fuse(steps, frozenset(results), COSTS.repeated)
    same(steps, after, [A], results)


def test_masked_rows_are_stored_if_one_of_their_readers_reads_them_often() -> None:
    image, once = Buffer("t", (4, 6, 6), float32), Buffer("once", (4, 6), float32)
    often = Buffer("often", (4, 6, 9), float32)
    steps = [
        masked(image),
        stage(
            "both",
            reduce_("once", once, (6,), "add", lambda c, i, k: image[c, i, k]),
            reduce_(
                "often", often, (6,), "max", lambda c, i, j, k: image[c, i, k] - W[j]
            ),
        ),
    ]
    assert len(fuse(steps, frozenset({once, often}), COSTS.repeated)) == 2


ROWS = Buffer("rows", (2, 4, 4), float32)
EMPTY = [Buffer(n, (0,), float32) for n in "pq"]
# The map, and whether it only keeps what its tensor has in memory.
VIEWS: dict[str, tuple[Computation, bool]] = {
    "in one dimension more": (
        map_("v", ROWS, lambda i, j, k: A[i * 2 + j // 2, j % 2 * 4 + k]), True),
    "turned": (map_("v", T, lambda i: X[7 - i]), False),
    "a part": (map_("v", S, lambda i: X[i]), False),
    "computed": (map_("v", T, lambda i: X[i] * 2.0), False),
    "looked up": (map_("v", T, lambda i: X[at(i)]), False),
    "nothing": (map_("v", EMPTY[0], lambda i: EMPTY[1][i]), False),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_keeps_the_order_in_memory(name: str) -> None:
    view, is_view = VIEWS[name]
    (out,) = view.outputs
    result = Buffer("result", out.tensor.shape, float32)
    after = inline_views(
        [stage("v", view), each(result, out.tensor)], frozenset({result})
    )
    assert len(after) == (1 if is_view else 2)
