"""Groups that may be made by some rows at a time: which they are, and a case per condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tilewright.base.dtypes import float32
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Call,
    Expr,
    Le,
    Load,
    Select,
    Var,
    const,
)
from tilewright.plan.rows import rows

N, M = Var("n", INDEX), Var("m", INDEX)
H, R, J, C, U = (Var(name, INDEX) for name in "hijcu")
HEADS, DEPTH = 2, 16
Q, V, Y = (Buffer(name, (HEADS, N, DEPTH), float32) for name in "qvy")
K = Buffer("k", (HEADS, DEPTH, N), float32)
S, T, E, P = (Buffer(name, (HEADS, N, N), float32) for name in "step")
A, Z = (Buffer(name, (HEADS, N, 1), float32) for name in "az")
MEAN = Buffer("o", (HEADS, N, DEPTH), float32)
ROW = (Dim(H, HEADS), Dim(R, N))
SCORE = (*ROW, Dim(J, N))


def made(
    to: Buffer, dims: Sequence[Dim], index: Sequence[Expr], value: Expr, by: str = ""
) -> Computation:
    out = Output(to, tuple(index), value)
    return Computation(
        to.name, tuple(dims), (out,), reducer(by, float32) if by else None
    )


def attention() -> list[Computation]:
    """Causal attention, of queries to the keys before them, as separate Computations."""
    summed = Dim(J, N, "pw")
    row = (H, R, const(0))
    here = (H, R, J)
    score = Select(Le(J, R), Load(S, here) * 0.25, const(-1e4, float32))
    product = Load(Q, (H, R, C)) * Load(K, (H, C, J))
    mean = Load(P, here) * Load(V, (H, J, C))
    return [
        made(S, (*SCORE, Dim(C, DEPTH, "pw")), here, product, "add"),
        made(T, SCORE, here, score),
        made(A, (*ROW, Dim(U, 1), summed), (H, R, U), Load(T, here), "max"),
        made(E, SCORE, here, Call("exp", (Load(T, here) - Load(A, row),))),
        made(Z, (*ROW, Dim(U, 1), summed), (H, R, U), Load(E, here), "add"),
        made(P, SCORE, here, Load(E, here) / Load(Z, row)),
        made(MEAN, (*ROW, Dim(C, DEPTH), summed), (H, R, C), mean, "add"),
        made(Y, (*ROW, Dim(C, DEPTH)), (H, R, C), Load(MEAN, (H, R, C)) * 2.0),
    ]  # fmt: skip


def valued(group: list[Computation], n: int, value: Expr) -> list[Computation]:
    """The group where a Computation has another value."""
    (out,) = group[n].outputs
    changed = replace(group[n], outputs=(replace(out, value=value),))
    return [*group[:n], changed, *group[n + 1 :]]


def indexed(group: list[Computation], n: int, *index: Any) -> list[Computation]:
    """The group where a Computation writes at another place."""
    (out,) = group[n].outputs
    changed = replace(group[n], outputs=(replace(out, index=index),))
    return [*group[:n], changed, *group[n + 1 :]]


def test_attention_has_the_rows_of_its_queries() -> None:
    found = rows(attention(), [Q, K, V, Y])
    assert found is not None
    assert found.size is N
    assert dict(found.axes) == dict.fromkeys((S, T, A, E, Z, P, MEAN), 1)
    taken = {"s_4"}
    some = found.some(4, U * const(4, INDEX), taken)
    assert [b.extents for c in some[:2] for b in (o.tensor for o in c.outputs)] == [
        (HEADS, 4, N),
        (HEADS, 4, N),
    ]
    assert some[0].outputs[0].tensor.name == "s_4_2"
    assert len({c.name for c in some} | taken) >= len(some)
    assert U in some[1].free  # a mask by position knows which row it is
    assert some[-1].outputs[0].tensor is Y


SEEN = Load(S, (H, R, J))
OTHERS: dict[str, Callable[[list[Computation]], list[Computation]]] = {
    "a row before": lambda g: valued(g, 7, Load(MEAN, (H, R - 1, C)) * 2.0),
    "all rows": lambda g: valued(g, 3, Load(T, (H, J, R)) - Load(A, (H, R, const(0)))),
    "one row of all": lambda g: valued(g, 7, Load(MEAN, (H, const(0), C)) * 2.0),
    "another row written": lambda g: indexed(g, 5, H, N - 1 - R, J),
    "two rows in an index": lambda g: valued(
        g, 7, Load(MEAN, (H, R, C)) * Load(P, (H, R, R))
    ),
    "its own result": lambda g: valued(g, 0, Load(Y, (H, R, C)) * Load(K, (H, C, J))),
    "no wide tensor": lambda _: [
        made(MEAN, SCORE[:2], (H, R, const(0)), Load(Q, (H, R, const(0)))),
        made(Y, SCORE[:2], (H, R, const(0)), Load(MEAN, (H, R, const(0)))),
    ],
    "some rows written again": lambda g: [
        *g[:2],
        made(T, (Dim(H, HEADS), Dim(R, M), Dim(J, N)), (H, R, J), const(0.0, float32)),
        *g[2:],
    ],
    "sums over the rows before": lambda g: [
        g[0],
        made(T, (Dim(H, HEADS), Dim(R, N, "ps"), Dim(J, N)), (H, R, J), SEEN, "add"),
        *g[2:],
    ],
    "rows of another number": lambda g: [
        *g[:7],
        replace(g[7], dims=(Dim(H, HEADS), Dim(R, M), Dim(C, DEPTH))),
    ],
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_condition_counts(name: str) -> None:
    assert rows(OTHERS[name](attention()), [Q, K, V, Y]) is None


def test_the_last_is_a_map() -> None:
    assert rows(attention()[:-1], [Q, K, V, MEAN]) is None


def test_what_others_see_is_not_made_by_rows() -> None:
    assert rows(attention(), [Q, K, V, P, Y]) is None
