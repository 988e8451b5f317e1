"""Groups that are the same for all units of a size: one program per condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Load, Select, Var, const
from tilewright.plan.units import Units, units

N, M = Var("n", INDEX), Var("m", INDEX)
P, J, K = (Var(name, INDEX) for name in "pjk")
X, Y = Buffer("x", (N, 8), float32), Buffer("y", (N, 8), float32)
ROWS = Buffer("rows", (N * 4, 8), float32)
W, FIRST = Buffer("w", (8, 8), float32), Buffer("first", (8, 8), float32)
WHICH, PLACES = Buffer("which", (N,), int64), Buffer("places", (8,), int64)
LAST = Buffer("last", (8, N), float32)
INNER = Buffer("inner", (16, N, 8), float32)


def map_(out: Buffer, value: Expr, *, i: object = N, at: Sequence[Expr] = (P, J)):
    return Computation("m", (Dim(P, i), Dim(J, 8)), (Output(out, tuple(at), value),))


def product(x: Buffer = X, combine: str = "pw") -> Computation:
    value = Load(x, (P, K)) * Load(W, (K, J))
    dims = (Dim(P, N), Dim(J, 8), Dim(K, 8, combine))
    return Computation("p", dims, (Output(Y, (P, J), value),), reducer("add", float32))


def found(*group: Computation, constants: Sequence[Buffer] = (W,)) -> Units | None:
    own = {INNER, FIRST}
    touched = {b for c in group for b in (*c.inputs, *(o.tensor for o in c.outputs))}
    return units(group, touched - own, constants)


x = Load(X, (P, J))
column = Load(W, (J, J))
THE_SAME: dict[str, Callable[[], Sequence[Computation]]] = {
    "map": lambda: [map_(Y, x + column)],
    "product": lambda: [product()],
    "several rows a unit": lambda: [
        map_(ROWS, Load(X, (P // 4, J)), i=N * 4),
    ],
    "rows of a unit": lambda: [map_(Y, Load(ROWS, (P * 4 + 3, J)))],
    "the row within": lambda: [map_(ROWS, Load(W, (P % 4, J)), i=N * 4)],
    "an index of the unit": lambda: [map_(Y, Load(W, (Load(WHICH, (P,)), J)))],
    "inside, units further in": lambda: [
        map_(INNER, x, at=(const(3), P, J)),
        map_(Y, Load(INNER, (const(3), P, J))),
    ],
    "what constants make": lambda: [
        map_(FIRST, column * 2.0, i=8),
        map_(Y, x + Load(FIRST, (J, J))),
    ],
}


@pytest.mark.parametrize("name", THE_SAME)
def test_units_are_found(name: str) -> None:
    group = THE_SAME[name]()
    made = found(*group)
    assert made is not None
    assert made.sizes == (N,)
    assert made.steps.get(ROWS, {N: (0, 4)}) == {N: (0, 4)}
    assert made.steps.get(INNER, {N: (1, 1)}) == {N: (1, 1)}


BOTH, TABLE = Buffer("both", (M, N, 8), float32), Buffer("table", (N, 8), float32)
JOINT, HALF = Buffer("joint", (M * N, 8), float32), Buffer("half", (M, 8), float32)
PARTS = Buffer("parts", (M, M * N, 8), float32)
Q = Var("q", INDEX)


def over_both(value: Expr, out: Buffer = BOTH, at: Sequence[Expr] = (Q, P, J)):
    dims = (Dim(Q, M), Dim(P, N), Dim(J, 8))
    return Computation("b", dims, (Output(out, tuple(at), value),))


OF_TWO: dict[str, tuple[Callable[[], Sequence[Computation]], int]] = {
    "map": (lambda: [over_both(Load(BOTH, (Q, P, J)) * 2.0)], 2),
    "a table of one": (lambda: [over_both(Load(TABLE, (P, J)))], 2),
    "the outer one": (lambda: [over_both(Load(HALF, (Q, J)))], 2),
    "joint": (lambda: [map_(JOINT, Load(JOINT, (P, J)) * 2.0, i=M * N)], 1),
    "joint and parts": (lambda: [map_(JOINT, Load(BOTH, (P // N, P % N, J)), i=M * N)], 0),
    "one alone before": (
        lambda: [map_(INNER, Load(TABLE, (P, J)), at=(const(3), P, J)),
                 over_both(Load(INNER, (const(3), P, J)))], 0,
    ),
    "exchanged": (lambda: [over_both(Load(BOTH, (P, Q, J)))], 0),
    "another's number": (lambda: [over_both(Load(TABLE, (Q, J)))], 0),
    "one twice": (
        lambda: [over_both(Load(Buffer("s", (N, N, 8), float32), (const(0), P, J)))], 0,
    ),
    "a size of a tensor alone": (lambda: [map_(Y, Load(BOTH, (const(0), P, J)))], 0),
    "one row for all": (lambda: [over_both(Load(TABLE, (const(0), J)))], 0),
    "a product and a part of it": (
        lambda: [Computation(
            "c", (Dim(Q, M), Dim(P, M * N), Dim(J, 8)),
            (Output(PARTS, (Q, P, J), Load(PARTS, (Q, P, J)) * 2.0),),
        )], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TWO)
def test_units_of_two_sizes(name: str) -> None:
    make, count = OF_TWO[name]
    made = found(*make())
    assert len(() if made is None else made.sizes) == count
    if made is not None:
        assert set(made.of(5).values()) == {1, 5}
        assert made.of(5)[N] == 5


OTHERWISE: dict[str, Callable[[], Sequence[Computation]]] = {
    "no size": lambda: [map_(FIRST, column, i=8)],
    "two sizes": lambda: [map_(Y, x), map_(Buffer("z", (M, 8), float32), column, i=M)],
    "a size in two axes": lambda: [
        map_(Y, Load(Buffer("s", (N, N), float32), (P, P))),
    ],
    "one row more": lambda: [map_(Y, Load(Buffer("p", (N + 1, 8), float32), (P, J)))],
    "half of the rows": lambda: [
        map_(Y, Load(Buffer("h", (N // 2, 8), float32), (P // 2, J)))
    ],
    "two dimensions": lambda: [
        Computation(
            "c", (Dim(P, N), Dim(J, N)), (Output(Y, (P, const(0)), Load(X, (J, P))),)
        )
    ],
    "one point more": lambda: [map_(Y, x, i=N + 1)],
    "a sum over units": lambda: [
        Computation(
            "s",
            (Dim(J, 8), Dim(P, N, "pw")),
            (Output(FIRST, (const(0), J), x),),
            reducer("add", float32),
        )
    ],
    "a sum over as many, of each": lambda: [
        Computation(
            "s",
            (Dim(K, N, "pw"), Dim(P, N), Dim(J, 8)),
            (Output(Y, (P, J), x),),
            reducer("add", float32),
        )
    ],
    "a scan over units": lambda: [
        Computation(
            "s",
            (Dim(P, N, "ps"), Dim(J, 8)),
            (Output(Y, (P, J), x),),
            reducer("add", float32),
        )
    ],
    "backwards": lambda: [map_(Y, Load(X, (N - 1 - P, J)))],
    "how many there are": lambda: [map_(Y, x / Cast(N, float32))],
    "which one it is": lambda: [map_(Y, x + Cast(P, float32))],
    "the first ones": lambda: [map_(Y, Select(P < 3, x, const(0.0, float32)))],
    "one for all": lambda: [map_(Y, Load(X, (const(0), J)))],
    "every second row": lambda: [map_(Y, Load(ROWS, (P * 2, J)))],
    "a row of the table by its number": lambda: [map_(Y, Load(W, (P, J)))],
    "a row that memory names": lambda: [map_(Y, Load(X, (Load(PLACES, (J,)), J)))],
    "rows further on, as memory says": lambda: [
        map_(Y, Load(X, (P + Load(WHICH, (P,)), J))),
    ],
    "written twice as far": lambda: [map_(ROWS, x, at=(P * 2, J))],
    "written to one place": lambda: [
        map_(FIRST, x, at=(const(0), J)),
        map_(Y, x),
    ],
    "written by its number": lambda: [map_(FIRST, x)],
    "what no constant makes": lambda: [
        map_(FIRST, Load(Buffer("v", (8,), float32), (J,)), i=8),
        map_(Y, x + Load(FIRST, (J, J))),
    ],
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_not_the_same_for_all_units(name: str) -> None:
    assert found(*OTHERWISE[name]()) is None


def test_what_others_see_is_not_made_for_each_unit() -> None:
    shared = [map_(FIRST, column, i=8), map_(Y, x)]
    assert units(shared, (X, Y, W), (W,)) is not None
    assert units(shared, (X, Y, W, FIRST), (W,)) is None


def test_how_much_of_a_unit_lies_together() -> None:
    made = found(map_(INNER, x, at=(const(3), P, J)), map_(LAST, x, at=(J, P)))
    assert made is not None
    assert made.together(X) is made.together(W) is None
    assert made.together(INNER) == 8
    assert made.together(LAST) == 1
    two = found(over_both(Load(Buffer("back", (N, M, 8), float32), (P, Q, J))))
    assert two is not None
    assert two.together(BOTH) is None
    assert two.together(next(b for b in two.steps if b.name == "back")) == 1


def test_an_index_moves_by_the_rows_of_its_units() -> None:
    made = found(map_(Y, Load(ROWS, (P * 4 + 3, J))))
    assert made is not None
    u = Var("u", INDEX)
    row, column_of_it = made.from_(ROWS, (P * 4 + 3, J), {N: u})
    assert column_of_it is J
    assert repr(row) == repr(P * 4 + 3 + u * 4)
    assert made.from_(W, (P, J), {N: u}) == (P, J)
