"""pack, expand, duplicate, fold_storage: one program per condition that fails or just holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.schedule.awkward import over
from tests.schedule.preconditions import (
    FIRST,
    ONE,
    X7,
    ZERO,
    F,
    N,
    P,
    Rows,
    T,
    W,
    X,
    Y,
    Z,
    add,
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
    u,
    used,
    v,
)
from tilewright.expr.nodes import Expr, Lt, Mod, Var, const
from tilewright.loops.nodes import If, Stmt, While, block

PACK: Rows = [
    (
        i(lambda i: block(over("o", 1, lambda o: put(Y, i, X[i])), put(Z, i, X[i]))),
        ("pack", "X", "i", "o"),
        None,
    ),
    (
        over("o", 1, lambda o: i(lambda i: put(Y, i, X[o * 8 + i]))),
        ("pack", "X", "i"),
        None,
    ),
    (i(lambda i: put(Y, i, X[i])), ("pack", "X", "i"), None),
    (
        i(lambda i: put(Y, i, X[i] + X[7 - i])),
        ("pack", "X", "i"),
        "holds 2 different reads of X, and 2 of them",
    ),
    (
        i(lambda i: j(lambda j: put2(W, i, j, X[i] + X[7 - i]))),
        ("pack", "X", "j"),
        "holds 2 different reads of X, and 0 of them",
    ),
    # Of several reads, the one that depends on exactly these loops.
    (i(lambda i: put(Y, i, X[7 - i] + X[3])), ("pack", "X", "i"), None),
    (
        i(lambda i: j(lambda j: put2(W, i, j, X[i] - X[j] * X[2]))),
        ("pack", "X", "j"),
        None,
    ),
    (i(lambda i: put(Y, i, Z[0])), ("pack", "X7", "i"), "no buffer 'X7'"),
    (
        i(lambda i: block(put(Y, i, X[i]), j(lambda j: put2(W, i, j, X[i])))),
        ("pack", "X", "i", "j"),
        r"unused \['j'\]",
    ),
    (
        i(lambda i: j(lambda j: put2(W, i, j, X[j]))),
        ("pack", "X", "i"),
        r"unnamed \['j'\]",
    ),
    (i(lambda i: put(Y, i, X[P[i] - 1])), ("pack", "X", "i"), r"unnamed \['P\[i\]'\]"),
    (to_n("i", lambda i: put(Y, i, X[i])), ("pack", "X", "i"), "is not a constant"),
    # In place, and where a later iteration of a loop around changes it.
    (i(lambda i: put(Y, i, Y[i] * 2)), ("pack", "Y", "i"), "still being written"),
    (
        v(lambda v: block(j(lambda j: put2(W, v, j, Y[j])), put(Y, v, X[v]))),
        ("pack", "Y", "j"),
        "still being written",
    ),
    (
        v(lambda v: block(put(Y, v, X[v]), j(lambda j: put2(W, v, j, Y[j])))),
        ("pack", "Y", "j"),
        None,
    ),
    # The copy reads no more than there is, and once where a loop runs once.
    (
        i(lambda i: If(Lt(i, const(7)), put(Y, i, X7[i]), None)),
        ("pack", "X7", "i"),
        None,
    ),
    (
        over("o", 1, lambda o: i(lambda i: put(Y, i, X[o * 8 + i]))),
        ("pack", "X", "o", "i"),
        None,
    ),
    # Others go on reading the buffer; its read in the same place of a loop is the copy's too.
    (
        block(i(lambda i: put(Y, i, X[7 - i])), j(lambda j: put(Z, j, X[j]))),
        ("pack", "X", "i"),
        None,
    ),
]
EXPAND: Rows = [
    (
        i(lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0]))),
        ("expand", "t", "i"),
        None,
    ),
    (
        i(lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0])), 0),
        ("expand", "t", "i"),
        None,
    ),
    (
        i(lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0])), kind="parallel"),
        ("expand", "t", "i"),
        None,
    ),
    (
        i(lambda i: j(lambda j: own(t, put(t, ZERO, X[j]), put2(W, i, j, t[0])))),
        ("expand", "t", "i"),
        "not the innermost loop around",
    ),
    (
        i(lambda i: put(Y, i, X[i])),
        ("expand", "Y", "i"),
        "not the innermost loop around",
    ),
    (
        to_n("i", lambda i: own(t, put(t, ZERO, X[i]), put(Y, i, t[0]))),
        ("expand", "t", "i"),
        "is not a constant",
    ),
    (
        i(
            lambda i: block(
                own(t, put(t, ZERO, X[i]), put2(W, i, ZERO, t[0])),
                j(
                    lambda j: own(t, put(t, ZERO, X[j]), put2(W, i, j, t[0])),
                    kind="parallel",
                ),
            )
        ),
        ("expand", "t", "i"),
        "allocated in 2 places of loop i",
    ),
    (
        own(
            t,
            FIRST,
            While(
                Lt(t[0], const(3, i32)),
                block(
                    i(lambda i: own(u, put(u, ZERO, X[i] + t[0]), put(Y, i, u[0]))),
                    add(t, ZERO, X[0] * X[0] + 1),
                ),
            ),
        ),
        ("expand", "u", "i"),
        None,
    ),
]


def run_sums(i: Var) -> Stmt:
    return block(add(t, ZERO, X[i]), put(T, i, t[0]))


DUPLICATE: Rows = [
    (own(T, made(), used()), ("duplicate", "T", "v"), None),
    (
        own(T, made(), v(lambda v: put(Y, v, X[v]))),
        ("duplicate", "T", "v"),
        "does not use it",
    ),
    (
        own(T, made(), v(lambda v: block(put(Y, v, T[v]), put(T, v, X[v])))),
        ("duplicate", "T", "v"),
        "also writes it",
    ),
    (
        own(
            T,
            put(T, ZERO, X[5]),
            j(
                lambda j: block(
                    i(lambda i: put(T, i + 1, X[i]), 7),
                    v(lambda v: put2(W, j, v, T[v])),
                )
            ),
        ),
        ("duplicate", "T", "v"),
        "is not after all nests",
    ),
    (
        own(T, made(), used(), put(T, ZERO, X[5]), put(Z, ZERO, T[0])),
        ("duplicate", "T", "v"),
        "is not after all nests",
    ),
    (
        own(T, i(lambda i: block(put(T, i, X[i]), add(Z, ZERO, X[i]))), used()),
        ("duplicate", "T", "v"),
        "also writes Z, which is not an intermediate",
    ),
    (
        block(own(T, made(), put(Z, ZERO, T[0])), v(lambda v: put(Y, v, X[v]))),
        ("duplicate", "T", "v"),
        "does not exist",
    ),
    # The copy is made next to the original, before its operands change.
    (
        own(T, made(lambda i: Z[i]), put(Z, ZERO, X[0]), used()),
        ("duplicate", "T", "v"),
        None,
    ),
    # Like the original, it continues from its previous value.
    (
        own(T, made(), j(lambda j: put(T, j, T[j] + T[7 - j])), used()),
        ("duplicate", "T", "v"),
        None,
    ),
    (
        own(T, made(), If(F[0] < 0, put(T, ZERO, T[1]), None), used()),
        ("duplicate", "T", "v"),
        None,
    ),
    (own(T, own(t, FIRST, i(run_sums)), used()), ("duplicate", "T", "v"), None),
]


def fold(factor: int) -> tuple[str, str, int, int]:
    return ("fold_storage", "T", 0, factor)


def ring(read: Callable[[Var], Expr], ahead: int = 1, kind: str = "serial") -> Stmt:
    """T[i + ahead] is made and T read in each iteration."""
    return i(
        lambda i: block(put(T, i + ahead, X[i]), put(Y, i, read(i))), 8 - ahead, kind
    )


START = put(T, ZERO, X[7])
FOLD: Rows = [
    (
        own(T, i(lambda i: block(put(T, i * 2, X[i]), put(Y, i, T[i])), 4)),
        fold(2),
        "4 rows are alive",
    ),
    (
        own(
            T,
            i(
                lambda i: block(
                    over("k", 2, lambda k: put(T, i * 2 + k, X[i])),
                    put(Y, i, T[i * 2] + T[i * 2 + 1]),
                ),
                4,
            ),
        ),
        fold(2),
        None,
    ),
    (
        own(
            T,
            i(
                lambda i: block(
                    over("k", 2, lambda k: put(T, i * 2 + k, X[i])),
                    put(Y, i, T[i * 2] + T[i * 2 + 1]),
                ),
                4,
            ),
        ),
        fold(1),
        "2 rows are alive",
    ),
    (own(T, START, ring(lambda i: T[i] + T[i + 1])), fold(2), None),
    (
        own(T, START, ring(lambda i: T[i] + T[i + 1])),
        fold(1),
        "2 rows are alive at once in loop i",
    ),
    (own(T, ring(lambda i: T[i], 0)), fold(1), None),
    # Statements that do not access it do not affect its liveness.
    (
        own(T, START, put(Z, ZERO, X[0]), ring(lambda i: T[i] + T[i + 1])),
        fold(2),
        None,
    ),
    (own(T, START, put(T, ONE, X[6]), ring(lambda i: T[i], 2)), fold(3), None),
    (
        own(T, START, put(T, ONE, X[6]), ring(lambda i: T[i], 2)),
        fold(2),
        "3 rows are alive",
    ),
    # Values written before a loop are live in it, and values it writes are live after it.
    (
        own(T, put(T, const(5), X[7]), START, ring(lambda i: T[i])),
        fold(4),
        "6 rows are alive",
    ),
    (own(T, START, ring(lambda i: T[i]), put(Z, ZERO, T[7])), fold(2), None),
    (
        own(T, START, ring(lambda i: T[i]), put(Z, ZERO, T[5])),
        fold(2),
        "3 rows are alive at once",
    ),
    (own(T, made(), used()), fold(4), "8 rows are alive at once"),
    # Rows that do not move forward together are all alive.
    (
        own(T, START, ring(lambda i: T[i] + T[0])),
        fold(4),
        "8 rows are alive at once in loop i",
    ),
    (
        own(T, i(lambda i: block(put(T, 7 - i, X[i]), put(Y, i, T[7 - i])))),
        fold(4),
        "8 rows are",
    ),
    (own(T, START, ring(lambda i: T[P[i] - 1])), fold(4), "dimension 0 has no bounds"),
    (
        own(T, START, ring(lambda i: T[Mod(P[i], const(8))])),
        fold(4),
        "8 rows are alive",
    ),
    (
        own(T, ring(lambda i: T[i], 0, "parallel")),
        fold(4),
        "8 rows are alive at once in loop i",
    ),
    (
        own(T, to_n("i", lambda i: block(put(T, i, X[i]), put(Y, i, T[i])))),
        fold(2),
        "alive|no bou",
    ),
    (
        own(
            t,
            FIRST,
            own(
                T,
                START,
                While(
                    Lt(t[0], const(7, i32)),
                    block(
                        put(Y, ZERO, T[Mod(N[0], const(8))]),
                        put(T, Mod(N[0] + 1, const(8)), X[1]),
                        add(t, ZERO, const(1, i32)),
                    ),
                ),
            ),
        ),
        fold(4),
        "8 rows are alive at once in a statement",
    ),
]
ROWS = [
    (f"{step[0]} {n}", body, step, message)
    for rows in (PACK, EXPAND, DUPLICATE, FOLD)
    for n, (body, step, message) in enumerate(rows)
]


@pytest.mark.parametrize(
    "body, step, message", [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_condition(body, step, message):
    check(body, step, message)
