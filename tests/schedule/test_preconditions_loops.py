"""pipeline, pad, fuse: one program per condition that fails, or just holds, and it alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedule.awkward import ARGMAX, buffer, number, over
from tests.schedule.preconditions import (
    B7,
    B8,
    FIRST,
    FIRSTS,
    P7,
    W7,
    X7,
    ZERO,
    F,
    I,
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
    at,
    best,
    check,
    i,
    i32,
    j,
    own,
    put,
    put2,
    t,
    to_n,
    u,
)
from tilewright.expr.nodes import (
    And,
    Buffer,
    Cast,
    Expr,
    Lt,
    Min,
    Mod,
    Select,
    Var,
    const,
)
from tilewright.loops.nodes import Alloc, If, Stmt, Unit, While, block


def two(
    first: Callable[[Var], Stmt], second: Callable[[Var], Stmt], extent: int = 7
) -> Stmt:
    return i(lambda i: block(first(i), second(i)), extent)


def both_best(i: Var) -> Stmt:
    """The value is the iteration's own, the place is kept: steps do not commute."""
    return Alloc(t, block(FIRSTS[0], best(t, I, X[i], i), best(t, I, Z[i], i + 9)))


LATE, EARLY = ("pipeline", "i", 0, 1), ("pipeline", "i", 1, 0)
PIPELINE: Rows = [
    (
        i(
            lambda i: own(
                t, FIRST, add(t, ZERO, X[i]), add(t, ZERO, Z[i]), put(Y, i, t[0])
            )
        ),
        ("pipeline", "i", 0, 1, 0, 1),
        None,
    ),
    (two(lambda i: put(Y, i, X[i]), lambda i: put(Z, i, Y[i])), LATE, None),
    (two(lambda i: put(Y, i, X[i]), lambda i: put(Z, i, Y[i])), EARLY, "must precede"),
    # At one time, the statements run in the order of the text.
    (
        two(lambda i: put(Y, i, X[i]), lambda i: put(Z, i, Y[i + 1])),
        LATE,
        "must precede",
    ),
    (two(lambda i: put(Z, i, Y[i + 1]), lambda i: put(Y, i, X[i])), EARLY, None),
    (two(lambda i: put(Z, i, Y[i]), lambda i: put(Y, i, X[i])), EARLY, "must precede"),
    (
        two(lambda i: put(Y, i, X[i]), lambda i: put(Y, i + 1, Z[i])),
        LATE,
        "must precede",
    ),
    (two(lambda i: put(Y, i + 1, X[i]), lambda i: put(Y, i, Z[i])), LATE, None),
    (
        two(lambda i: put(Y, i + 1, Y[i] + 1), lambda i: put(Z, i, Y[i + 2]), 6),
        LATE,
        "must prec",
    ),
    (two(lambda i: put(Y, i + 1, Y[i] + 1), lambda i: put(Z, i, Y[i + 1])), LATE, None),
    # Values that decide whether a statement runs, and where it writes.
    (
        two(
            lambda i: put(F, ZERO, X[i]), lambda i: If(F[0] < 0, put(Y, i, X[i]), None)
        ),
        LATE,
        "pre",
    ),
    (
        two(lambda i: put(Y, P[i] - 1, X[i]), lambda i: put(Z, i, Y[i])),
        LATE,
        "must precede",
    ),
    # Steps of one reduction commute, unless an iteration stores another value with the result.
    (two(lambda i: add(F, ZERO, X[i]), lambda i: add(F, ZERO, Z[i])), LATE, None),
    (two(lambda i: best(F, I, X[i], i), lambda i: best(F, I, Z[i], i + 9)), LATE, None),
    (
        i(both_best),
        ("pipeline", "i", 0, 0, 1),
        "must precede, *: one updates I|must precede",
    ),
    # Memory of the iteration's own: as many copies as iterations use it at a time.
    (i(lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0]))), LATE, None),
    (
        i(lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0]))),
        ("pipeline", "i", 0, 5),
        None,
    ),
    (i(lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0]))), EARLY, "must precede"),
    (
        i(
            lambda i: own(
                t,
                put(t, ZERO, X[i]),
                put(Y, i, t[0]),
                put(t, ZERO, X[7]),
                put(Z, i, t[0]),
            )
        ),
        ("pipeline", "i", 0, 1, 0, 1),
        "must precede",
    ),
    (
        i(
            lambda i: block(
                *(own(t, put(t, ZERO, X[i]), put(b, i, t[0])) for b in (Y, Z))
            )
        ),
        ("pipeline", "i", 0, 1, 1, 2),
        "allocated in 2 places of loop i",
    ),
    # Loops that are too short, of unknown length, of nothing.
    (two(lambda i: put(Y, i, X[i]), lambda i: put(Z, i, Y[i]), 2), LATE, None),
    (
        two(lambda i: put(Y, i, X[i]), lambda i: put(Z, i, Y[i]), 1),
        LATE,
        "not one per statement",
    ),
    (
        two(lambda i: put(Y, i, X[i]), lambda i: put(Z, i, Y[i]), 0),
        LATE,
        "not one per statement",
    ),
    (
        block(put(Y, ZERO, X[0]), i(lambda i: block())),
        ("pipeline", "i"),
        "not one per statement",
    ),
    (
        to_n("i", lambda i: block(put(Y, i, X[i]), put(Z, i, Y[i]))),
        LATE,
        "is not a constant",
    ),
]


def summed(value: Callable[[Var], Expr], extent: int = 7) -> Stmt:
    return i(lambda i: add(F, ZERO, value(i)), extent)


def beyond_two(b: Buffer, i: Var) -> Expr:
    """An element, for the first three the place of no value."""
    return Select(Lt(const(2), i), b[i], ARGMAX.identity[1])


def by_private(use: Callable[[Var], Stmt], place: Callable[[Var], Expr]) -> Stmt:
    return i(lambda i: own(at, put(at, ZERO, place(i)), use(i)), 7)


PAD = ("pad", "i", 4)
PADS: Rows = [
    (i(lambda i: If(Lt(ZERO, i), put(Y, i, X7[i - 1]), None), 7), PAD, None),
    (i(lambda i: put(Y, i + 1, X7[i]), 7), PAD, None),
    (i(lambda i: own(S, put(S, i + 1, X7[i]), add(F, ZERO, S[i + 1])), 7), PAD, None),
    (summed(lambda i: X[i]), PAD, None),
    (summed(lambda i: X7[i], 5), PAD, None),
    (summed(lambda i: X7[i], 6), PAD, None),
    (summed(lambda i: Cast(B8[i], i32)), PAD, None),
    (
        summed(
            lambda i: (
                Select(Lt(const(2), i), X[Mod(P7[i], const(8))], const(0, i32)) * W7[i]
            )
        ),
        PAD,
        None,
    ),
    (
        i(
            lambda i: own(
                u,
                put(u, ZERO, Select(Lt(const(2), i), X7[i], const(5, i32))),
                add(F, ZERO, u[0]),
            ),
            7,
        ),
        PAD,
        None,
    ),
    (
        i(
            lambda i: own(
                u,
                put(u, ZERO, Select(And(B7[i], Lt(i, const(7))), X7[i], const(5, i32))),
                add(F, ZERO, u[0]),
            ),
            7,
        ),
        PAD,
        None,
    ),
    (
        i(
            lambda i: best(F, I, X[i] + number(i) * 100, beyond_two(P7, i)),
            7,
        ),
        PAD,
        None,
    ),
    (summed(lambda i: X7[i]), PAD, None),
    (i(lambda i: put(Y, i, X7[i]), 7), PAD, None),
    (i(lambda i: put(Y, const(3), X7[i]), 7), PAD, None),
    (i(lambda i: put(Y, i, X[i]), 0), PAD, None),
    (i(lambda i: put(Y, i, X[i]), 1), PAD, None),
    (summed(lambda i: X[0], 1), PAD, None),
    (to_n("i", lambda i: put(Y, i, X[i])), PAD, "is not a constant"),
    (
        i(lambda i: to_n("j", lambda j: put2(W, i, j, X[j])), 7),
        PAD,
        "is not a constant",
    ),
    (i(lambda i: Unit("piece", None, (), put(Y, i, X[i])), 7), PAD, "piece is inside"),
    (
        i(lambda i: put(Y, i, X[i]), 7),
        ("pad", "i", -1),
        "is not a number of iterations",
    ),
    (
        own(
            t,
            i(
                lambda i: block(
                    FIRST,
                    While(
                        Lt(t[0], const(3, i32)),
                        block(add(t, ZERO, const(1, i32)), add(F, ZERO, X7[i])),
                    ),
                ),
                7,
            ),
        ),
        PAD,
        "a while loop is inside",
    ),
    # A guard on the loop, which will be true in more iterations.
    (i(lambda i: j(lambda j: If(Lt(j, i), add(F, ZERO, X[j]), None), 8), 7), PAD, None),
    (
        i(lambda i: j(lambda j: If(Lt(j, i), add(F, ZERO, X7[j]), None), 8), 8),
        ("pad", "i", 3),
        "owes its safety",
    ),
    # A step that is neutral because a factor is read outside: the others must not be.
    (summed(lambda i: X7[i] * W7[i]), PAD, None),
    (summed(lambda i: Select(B7[i], X7[i], const(0, i32))), PAD, None),
    (
        summed(
            lambda i: (Select(Lt(const(2), i), X7[i], const(0, i32)) + X7[i]) * W7[i]
        ),
        PAD,
        None,
    ),
    (summed(lambda i: X[Mod(P[Min(i, const(6))], const(8))] * W7[i]), PAD, None),
    (
        i(
            lambda i: j(
                lambda j: add(F, ZERO, X[Mod(as_index(X7[i]), const(8))] * W7[i]), 2
            ),
            7,
        ),
        PAD,
        None,
    ),
    (summed(lambda i: X7[i] + 1), PAD, None),
    (summed(lambda i: X[i] + 1), PAD, None),
    (summed(lambda i: Select(Lt(i, const(3)), X7[i], const(5, i32))), PAD, None),
    # Several results, one of which is private to the iteration.
    (
        block(*FIRSTS[1:], i(lambda i: own(t, FIRSTS[0], best(t, I, X7[i], i)), 7)),
        PAD,
        None,
    ),
    (i(lambda i: own(I, FIRSTS[1], best(F, I, X7[i] - 9, i)), 7), PAD, None),
    (i(lambda i: best(F, I, X7[i], i), 7), PAD, None),
    # Values of the loop decide which elements are read and written.
    (
        by_private(
            lambda i: own(u, put(u, ZERO, X[at[0]]), add(F, ZERO, u[0])),
            lambda i: P[i] - 1,
        ),
        PAD,
        None,
    ),
    (
        by_private(
            lambda i: add(Y, at[0], X7[i]),
            lambda i: Select(Lt(i, const(7)), i, const(99)),
        ),
        PAD,
        None,
    ),
    (by_private(lambda i: put(Y, at[0], X7[i]), lambda i: P[i] - 1), PAD, None),
    # Memory for a value in its own buffer, unless that memory holds another element.
    (
        own(
            T, i(lambda i: put(T, i + 1, X7[i]), 7), j(lambda j: put(Y, j, T[j + 1]), 7)
        ),
        PAD,
        None,
    ),
    (
        own(
            T,
            put(T, const(7), X[3]),
            i(lambda i: put(T, i, X7[i]), 7),
            j(lambda j: put(Y, j, T[j])),
        ),
        PAD,
        None,
    ),
    (
        own(
            T,
            i(lambda i: block(put(T, i + 1, X7[i]), put(T, i, X7[i])), 7),
            j(lambda j: put(Y, j, T[j])),
        ),
        PAD,
        None,
    ),
    (
        block(
            Alloc(buffer("T", 2), put(Z, ZERO, X[0])),
            own(
                T,
                i(lambda i: put(T, i + 1, X7[i]), 7),
                j(lambda j: put(Y, j, T[j + 1]), 7),
            ),
        ),
        PAD,
        None,
    ),
    (i(lambda i: put(Y, i, X7[i]), 7, "parallel"), PAD, None),
]
FUSED = ("fuse", "i", "j")
FUSE: Rows = [
    (i(lambda i: j(lambda j: put2(W, i, j, X[j])), 0), FUSED, None),
    (i(lambda i: j(lambda j: put2(W, i, j, X[j]), 0)), FUSED, None),
    (i(lambda i: j(lambda j: put2(W, i, j, X[j]), 1)), FUSED, None),
    (
        i(lambda i: If(Lt(i, const(5)), j(lambda j: put2(W, i, j, X[j]), 3), None)),
        FUSED,
        None,
    ),
    (i(lambda i: j(lambda j: put(Y, P[j] - 1, X[i]))), FUSED, None),
    (
        i(lambda i: j(lambda j: over("k", 2, lambda k: put2(W, i, j, number(k))))),
        ("fuse", "i", "k"),
        "is not the loop directly inside",
    ),
    (
        i(lambda i: Alloc(t, j(lambda j: put2(W, i, j, X[j])))),
        FUSED,
        "not perfectly nested",
    ),
]
ROWS = [
    (f"{step[0]} {n}", body, step, message)
    for rows in (PIPELINE, PADS, FUSE)
    for n, (body, step, message) in enumerate(rows)
]


@pytest.mark.parametrize(
    "body, step, message", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_condition(body, step, message):
    check(body, step, message)
