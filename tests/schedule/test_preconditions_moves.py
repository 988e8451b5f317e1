"""slide, compute_at, store_at, reverse_compute_at: one program per condition of a move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedule.awkward import number, over
from tests.schedule.preconditions import (
    FIRST,
    ZERO,
    D,
    F,
    P,
    Rows,
    S,
    T,
    W,
    X,
    Y,
    Z,
    add,
    as_index,
    check,
    i,
    i32,
    j,
    made,
    own,
    put,
    put2,
    t,
    to_n,
    used,
    v,
)
from tilewright.expr.nodes import (
    Expr,
    Lt,
    Min,
    Mod,
    Select,
    Var,
    const,
)
from tilewright.loops.nodes import Alloc, If, Stmt, block


def run_sums(i: Var) -> Stmt:
    return block(add(t, ZERO, X[i]), put(T, i, t[0]))


def through(needed: Callable[[Var], Expr]) -> Stmt:
    """One loop computes T and S; a value of S that another loop needs changes T."""
    one = i(lambda i: block(put(T, i, X[i]), put(S, i, X[i] * 3)))
    return own(S, one, j(lambda j: put(T, j, T[j] + needed(j))))


def total() -> Stmt:
    """The sum of S, which is computed with T, is added to each element."""
    one = i(lambda i: block(put(T, i, X[i]), put(S, i, X[i] * 3)))
    all_ = over("a", 8, lambda a: add(t, ZERO, S[a]))
    return Alloc(S, own(t, FIRST, one, all_, j(lambda j: put(T, j, T[j] + t[0]))))


def begun() -> Stmt:
    """As `through`, with S a sum."""
    one = i(lambda i: block(put(T, i, X[i]), add(S, i, X[i] * 3)))
    zeros = over("a", 8, lambda a: put(S, a, const(0, i32)))
    return own(S, zeros, one, j(lambda j: put(T, j, T[j] + S[7 - j])))


def rows_and_columns() -> Stmt:
    """Values that are computed with the rows of D are added to its columns."""
    one = i(
        lambda i: block(
            over("k", 8, lambda k: put2(D, i, k, X[k])), put(S, i, X[i] * 3)
        )
    )
    two = j(lambda j: over("a", 8, lambda a: put2(D, a, j, D[a, j] + S[j])))
    return own(S, one, two)


def diagonal() -> Stmt:
    """Rows of zeros; each row's loop variable is the index of a column too."""
    row = lambda i: over("k", 8, lambda k: put2(D, i, k, const(0, i32)))  # noqa: E731
    return i(lambda i: block(row(i), put2(D, i, i, X[i])))


def shifted_rows(by: int) -> Stmt:
    """A value that was computed with T[j + by] changes T[j]."""
    one = i(lambda i: block(put(T, i, X[i]), put(S, i, X[i] * 3)), 8)
    return own(S, one, j(lambda j: put(T, j + by, T[j + by] + S[j + by]), 8 - by))


SLIDE = ("slide", "T", "v")
SLIDES: Rows = [
    (
        own(T, made(), v(lambda v: block(put(Y, v, T[v]), put(T, v + 1, X[v])), 7)),
        SLIDE,
        "also writes it",
    ),
    (
        own(
            T,
            over(
                "w",
                2,
                lambda w: block(
                    made(lambda i: X[i] + number(w)),
                    v(lambda v: put2(W, w, v, T[v + w * 2]), 4),
                ),
            ),
        ),
        SLIDE,
        "not a window that moves",
    ),
    (
        block(own(T, made(), put(Z, ZERO, T[0])), v(lambda v: put(Y, v, X[v]))),
        SLIDE,
        "not allocated around",
    ),
    (own(T, begun(), used()), SLIDE, "rest of the nest needs all of it"),
    (own(T, made(), used()), SLIDE, None),
    (own(T, made(), used(0)), SLIDE, "all of it is used before"),
    (own(T, made(), to_n("v", lambda v: put(Y, v, T[v]))), SLIDE, "is not a constant"),
    (
        own(T, made(), v(lambda v: put(Y, v, T[v]), 4, "unroll")),
        SLIDE,
        "no order to slide in",
    ),
    # The nests write nothing else, and read nothing that changes before the loop has ended.
    (
        own(
            T,
            i(lambda i: block(put(T, i, X[i]), put(Z, i, X[i]))),
            put(F, ZERO, Z[7]),
            used(),
        ),
        SLIDE,
        "also writes",
    ),
    (
        own(T, made(lambda i: Z[i]), put(Z, const(7), X[0]), used()),
        SLIDE,
        "changes before it is",
    ),
    (
        own(T, made(lambda i: Y[i]), v(lambda v: put(Y, v + 1, T[v]), 7)),
        SLIDE,
        "changes before it",
    ),
    (
        own(T, made(lambda i: Y[i]), used(), put(Y, ZERO, X[0])),
        SLIDE,
        "changes before it",
    ),
    # The loop runs as often as they do.
    (
        own(
            T,
            made(),
            If(F[0] < 0, used(), None),
            over("e", 8, lambda e: put(Z, e, T[e])),
        ),
        SLIDE,
        "a If is between",
    ),
    # A window: one dimension, one step forward.
    (
        own(
            D,
            i(lambda i: j(lambda j: put2(D, i, j, X[i] - X[j]))),
            v(lambda v: put(Y, v, D[v, v])),
        ),
        ("slide", "D", "v"),
        "moves through 2",
    ),
    (own(T, made(), v(lambda v: put(Y, v, T[3]))), SLIDE, "moves through 0"),
    (
        own(T, made(), v(lambda v: put(Y, v, T[7 - v]))),
        SLIDE,
        "not a window that moves",
    ),
    (
        own(T, made(), v(lambda v: put(Y, v, T[v] + T[7]))),
        SLIDE,
        "not a window that moves",
    ),
    (
        own(T, made(), v(lambda v: put(Y, v, T[v] + T[v * 2]), 4)),
        SLIDE,
        "leave rows of it out",
    ),
    (
        own(T, made(), v(lambda v: put(Y, v, T[v] + T[P[v] - 1]))),
        SLIDE,
        "not a window that moves|moves through",
    ),
    # Rows: one per iteration of one loop; all nests compute the same rows, each its own.
    (
        own(
            T, i(lambda i: put(T, i * 2, X[i]), 4), v(lambda v: put(Y, v, T[v * 2]), 4)
        ),
        SLIDE,
        "not one loop",
    ),
    (
        own(D, diagonal(), v(lambda v: put(Y, v, D[v, 0]))),
        ("slide", "D", "v"),
        None,
    ),
    (
        own(T, made(), j(lambda j: put(T, j + 1, X[j]), 7), used()),
        SLIDE,
        "different parts",
    ),
    (own(T, own(t, FIRST, i(run_sums)), used()), SLIDE, "rows depend on one another"),
    (own(T, through(lambda j: S[j]), used()), SLIDE, None),
    (
        own(T, through(lambda j: S[7 - j]), used()),
        SLIDE,
        "rest of the nest needs all of it",
    ),
    (own(T, total(), used()), SLIDE, "rest of the nest needs all of it"),
    (
        own(
            T,
            own(S, over("a", 8, lambda a: put(S, a, X[a])), made(lambda i: S[7 - i])),
            used(),
        ),
        SLIDE,
        None,
    ),
    # What is read before the loop, or after it, is computed by then; no more than there is.
    (own(T, made(), put(Z, ZERO, T[5]), used()), SLIDE, None),
    (
        own(T, made(), put(Z, ZERO, T[P[0] - 1]), used()),
        SLIDE,
        "has no bounds, before the loop",
    ),
    (own(T, made(), used(3), put(Z, ZERO, T[7])), SLIDE, None),
    (
        own(
            T,
            made(),
            v(
                lambda v: put(
                    Y, v, T[v] + Select(Lt(v, const(7)), T[Min(v, const(6)) + 1], X[0])
                )
            ),
        ),
        SLIDE,
        None,
    ),
    (
        own(T, made(), v(lambda v: put(Y, v, Select(Lt(v, const(7)), T[v + 1], X[0])))),
        SLIDE,
        None,
    ),
]


AT_V: list[tuple[object, ...]] = [
    ("compute_at", "T", "v"),
    ("store_at", "T", None, "v"),
]
MOVES: Rows = [
    (own(T, through(needed), used()), step, message)
    for step in AT_V
    for needed, message in (
        (lambda j: S[j], None),
        (lambda j: S[7 - j], "needs all of it"),
    )
] + [
    (
        own(D, rows_and_columns(), v(lambda v: put(Y, v, D[v, v] + D[v, v + 2]), 6)),
        ("compute_at", "D", "v"),
        "needs all of it",
    ),
    (
        own(
            D,
            rows_and_columns(),
            v(lambda v: over("w", 4, lambda w: put2(W, v, w, D[v, w]))),
        ),
        ("compute_at", "D", "w"),
        "needs all of it",
    ),
    (
        own(
            T,
            over("k", 2, lambda k: i(lambda i: put(T, i * 2 + k, X[i]), 4)),
            used(),
        ),
        ("store_at", "T", None, "v"),
        "is not one loop",
    ),
    # A loop variable that indexes two dimensions, of which one stays whole, or none.
    (
        own(
            D,
            diagonal(),
            v(lambda v: over("w", 8, lambda w: put2(W, v, w, D[v, w]))),
        ),
        ("compute_at", "D", "v"),
        None,
    ),
    (
        own(D, diagonal(), v(lambda v: put(Y, v, D[v, v]))),
        ("compute_at", "D", "v"),
        "is not one loop",
    ),
    (
        own(T, total(), used()),
        ("compute_at", "T", "v"),
        "rest of the nest needs all of it",
    ),
    (own(T, shifted_rows(0), used()), ("compute_at", "T", "v"), None),
    (
        own(T, shifted_rows(2), v(lambda v: put(Y, v, T[v]))),
        ("compute_at", "T", "v"),
        None,
    ),
    (
        own(
            T,
            i(lambda i: put(T, i, X[i])),
            own(
                S,
                j(lambda j: put(S, j, T[j])),
                over("a", 8, lambda a: put(T, a, S[a] * 2)),
            ),
            used(),
        ),
        ("compute_at", "T", "v"),
        None,
    ),
]


START = put(T, ZERO, X[7])
THERE = ("reverse_compute_at", "Y", "i")


def reads(value: Callable[[Var], Expr] = lambda j: T[j], extent: int = 8) -> Stmt:
    """Y[j] = value(j)."""
    return j(lambda j: put(Y, j, value(j)), extent)


REVERSE: Rows = [
    (own(T, made(), put(Y, ZERO, X[0]), reads()), THERE, None),
    (
        own(
            T,
            made(),
            put(F, ZERO, X[3]),
            put(Z, ZERO, F[0]),
            reads(lambda j: T[j] + Z[0]),
        ),
        THERE,
        "cannot come first",
    ),
    (own(T, over("o", 1, lambda o: made()), reads()), THERE, None),
    (
        own(T, over("f", 8, lambda f: put(T, f, X[7])), made(extent=7), reads()),
        THERE,
        "is not covered",
    ),
    (
        own(
            T,
            own(
                S,
                i(lambda i: block(put(T, i, X[i]), put(S, i, X[i]))),
                over(
                    "a", 8, lambda a: over("b", 8, lambda b: put2(W, a, b, T[a] - S[b]))
                ),
            ),
        ),
        ("reverse_compute_at", "W", "i"),
        "do not say when",
    ),
    (
        own(
            T,
            over("f", 8, lambda f: put(T, f, X[7])),
            over(
                "w",
                2,
                lambda w: block(
                    i(lambda i: put(T, i + w * 4, X[i]), 4),
                    j(lambda j: put2(W, w, j, T[j])),
                ),
            ),
        ),
        ("reverse_compute_at", "W", "i"),
        "not known to be covered",
    ),
    (own(T, made(), reads()), THERE, None),
    (own(T, made(extent=1), reads(extent=1)), THERE, None),
    (own(T, START, made(extent=0), reads(extent=1)), THERE, "has no iterations"),
    (
        own(T, to_n("i", lambda i: put(T, i, X[i])), reads(extent=2)),
        THERE,
        "is not a constant",
    ),
    # One sequence, and nothing else in common.
    (
        own(T, If(F[0] < 0, made(), None), reads()),
        THERE,
        "no nest that writes it follows",
    ),
    (own(T, made(lambda i: Y[7 - i]), reads()), THERE, "which the consumer writes"),
    (own(T, made(), put(Z, ZERO, Y[3]), reads()), THERE, None),
    (
        own(
            T,
            made(),
            put(F, ZERO, T[0]),
            put(Y, ZERO, F[0]),
            reads(lambda j: T[j] + Y[0] * 0),
        ),
        THERE,
        "cannot come first|depend",
    ),
    (
        own(T, made(), put(F, ZERO, T[0]), reads(lambda j: T[j] + F[0])),
        THERE,
        "cannot come first",
    ),
    (own(T, made(), reads(), put(T, ZERO, X[0]), put(Z, ZERO, T[0])), THERE, None),
    # Each loop selects a part, in one dimension, which is final there.
    (
        own(
            T, i(lambda i: over("k", 2, lambda k: put(T, i, X[i] + number(k)))), reads()
        ),
        ("reverse_compute_at", "Y", "k"),
        "computes the same part again",
    ),
    (
        own(T, i(lambda i: put(T, const(3), X[i])), reads(lambda j: T[3])),
        THERE,
        "computes the same part again",
    ),
    (
        own(D, i(lambda i: put2(D, i, i, X[i])), reads(lambda j: D[j, j])),
        THERE,
        "several dimensions select",
    ),
    (
        own(T, Alloc(t, block(made(), put(T, ZERO, X[5]))), reads()),
        THERE,
        "no nest|also written outside",
    ),
    (
        own(
            T,
            over(
                "k", 2, lambda k: block(i(lambda i: put(T, i, X[i])), put(T, k, X[5]))
            ),
            reads(),
        ),
        THERE,
        "also written outside loop i",
    ),
    # The consumer reads only the part that one of its loops selects.
    (own(T, made(), reads(lambda j: T[7 - j])), THERE, "is not one loop"),
    (own(T, made(), reads(lambda j: T[P[j] - 1])), THERE, "is not one loop"),
    (own(T, made(), reads(lambda j: T[3])), THERE, "is not one loop"),
    (own(T, made(), reads(lambda j: T[j] + T[j + 1], 7)), THERE, "needs another part"),
    (
        own(T, made(), j(lambda j: put(Y, ZERO, Y[0] * 2 + T[j]))),
        THERE,
        "depend on one another",
    ),
    (own(T, made(), j(lambda j: add(Y, ZERO, T[j]))), THERE, None),
    (own(T, made(), block(j(lambda j: put(Y, j, T[j])))), THERE, None),
    # All of the buffer, and only computed elements.
    (
        own(T, over("f", 8, lambda f: put(T, f, X[7])), made(extent=6), reads()),
        THERE,
        "is not covered",
    ),
    (
        own(
            T,
            over("f", 8, lambda f: put(T, f, X[7])),
            i(lambda i: put(T, i + 2, X[i]), 6),
            reads(),
        ),
        THERE,
        "is not covered",
    ),
    (
        own(
            T,
            over("f", 8, lambda f: put(T, f, X[7])),
            i(lambda i: put(T, i * 2, X[i]), 4),
            reads(extent=7),
        ),
        THERE,
        "is not covered",
    ),
    (own(T, made(), reads(extent=5)), THERE, None),
    (own(T, made(), j(lambda j: block(put(Y, j, T[j]), put(Z, j, X[j])))), THERE, None),
    (
        own(
            T, made(), Alloc(t, block(put(t, ZERO, X[0]), reads(lambda j: T[j] + t[0])))
        ),
        THERE,
        "do not say when",
    ),
    # Parts that overlap: each is made where it is used.
    (
        own(
            T, i(lambda i: block(put(T, i, X[i]), put(T, i + 1, X[i] + 1)), 7), reads()
        ),
        THERE,
        "is not computed there",
    ),
    (
        own(
            T, i(lambda i: over("k", 2, lambda k: put(T, i + k, X[i + k])), 7), reads()
        ),
        THERE,
        None,
    ),
    (
        own(T, i(lambda i: over("k", 2, lambda k: put(T, i + k, X[i])), 7), reads()),
        THERE,
        None,
    ),
    (
        own(
            T,
            i(lambda i: over("k", 2, lambda k: put(T, i + k, X[i])), 7),
            j(lambda j: add(Y, j, T[j])),
        ),
        THERE,
        "repeats iterations",
    ),
    (
        own(
            T,
            i(lambda i: over("k", 2, lambda k: put(T, i + k, X[i] * 0)), 7),
            reads(lambda j: X[Mod(as_index(T[j]), const(8))]),
        ),
        THERE,
        "is used as an index",
    ),
    # Loops that run at once.
    (
        own(
            T,
            i(lambda i: put(T, i, X[i]), kind="parallel"),
            j(lambda j: add(Y, ZERO, T[j])),
        ),
        THERE,
        "loop-carried dependence",
    ),
    (own(T, i(lambda i: put(T, i, X[i]), kind="parallel"), reads()), THERE, None),
    (
        own(
            D,
            i(lambda i: j(lambda j: put2(D, i, j, X[j])), kind="blockIdx.x"),
            over(
                "a",
                8,
                lambda a: over("b", 8, lambda b: put2(W, a, b, D[a, b]), "blockIdx.x"),
            ),
        ),
        ("reverse_compute_at", "W", "i"),
        "bound to blockIdx.x already",
    ),
]
ROWS = [
    (f"{step[0]} {n}", body, step, message)
    for rows in (SLIDES, MOVES, REVERSE)
    for n, (body, step, message) in enumerate(rows)
]


@pytest.mark.parametrize(
    "body, step, message", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_condition(body, step, message):
    check(body, step, message)
