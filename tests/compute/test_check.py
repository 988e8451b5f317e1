"""Every invariant of a Computation, broken once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from tilewright.base import dtypes as d
from tilewright.base.errors import VerifyError
from tilewright.compute import check as check_module
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.check import check, has_own_digits, leaving
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import (
    Buffer,
    Cast,
    Expr,
    Load,
    Lt,
    Max,
    Min,
    Select,
    Var,
    const,
    var,
)
from tilewright.testing.computations import computations

F = d.float32
X, Y = Buffer("x", (4, 4), F), Buffer("y", (4,), F)
R, S = var("i"), var("j")
ADD = reducer("add", F)


def one(index: Expr, value: Expr, *dims: Dim, op: Reducer | None = None) -> Computation:
    return Computation("c", dims, (Output(Y, (index,), value),), op)


def first(t: d.DType) -> Reducer:
    """The left operand: associative, but not commutative."""
    a, b = var("a", t), var("b", t)
    return Reducer("first", (a,), (b,), (a,), (const(0, t),), commutative=False)  # type: ignore[arg-type]


BROKEN = [
    (one(R, Y[R], Dim(R, 4, "max")), "TW-DIMS", "dimension i combines by 'max'"),
    (one(R, Y[R], Dim(R, -1)), "TW-DIMS", "dimension i has the extent -1"),
    (one(R, Y[R], Dim(R, 4), Dim(R, 4)), "TW-DIMS", "dimension i occurs twice"),
    (one(R, Y[R], Dim(Var("i", d.int32), 4)), "TW-DIMS", "dimension i is int32"),
    (Computation("c", (), ()), "TW-OUTPUTS", "no output"),
    (one(R, Y[S], Dim(R, 4)), "TW-UNBOUND", "j in y is not a dimension"),
    (
        one(R, X[R, S], Dim(R, 4), Dim(S, 4, PW)),
        "TW-OPERATOR",
        "j is pw, without a reducer",
    ),
    (
        one(R, X[R, S], Dim(R, 4), Dim(S, 4, PW), op=arg_reducer("argmax", F, d.int64)),
        "TW-OPERATOR",
        "argmax has 2 components, the computation 1 output",
    ),
    (
        one(const(0), X[R, S], Dim(R, 4, PW), Dim(S, 4, PW), op=first(F)),
        "TW-OPERATOR",
        "first does not commute, but combines several dimensions: i, j",
    ),
    (one(R, R, Dim(R, 4)), "TW-TYPE", "the value for y is int64, y float32; cast it"),
    (
        one(R, X[R, S], Dim(R, 4), Dim(S, 4, PW), op=reducer("add", d.float64)),
        "TW-TYPE",
        "the operand of add float64",
    ),
    (
        one(R, Load(Y, (Cast(R, d.int32),)), Dim(R, 4)),
        "TW-TYPE",
        "index i32.i. of y is int32",
    ),
    (
        one(S, X[R, S], Dim(R, 4), Dim(S, 4, PW), op=ADD),
        "TW-OUT-VIEW",
        "y is indexed by j, which is reduced",
    ),
    (one(R, Y[R + 1], Dim(R, 4)), "TW-BOUNDS", "dimension 0 of y leaves 0..3"),
    (one(R + 1, Y[R], Dim(R, 4)), "TW-BOUNDS", "dimension 0 of y leaves 0..3"),
    (
        one(R // 2, Y[R], Dim(R, 4)),
        "TW-INJECTIVE",
        "several points of i write one element of y: at i = 0 and at i = 1",
    ),
    (
        one(R + S, X[R, S], Dim(R, 2), Dim(S, 2)),
        "TW-INJECTIVE",
        "several points of i, j write one element of y",
    ),
    (
        Computation(
            "c",
            (Dim(R, 4),),
            (Output(Y, (R,), Y[R]), Output(Y, (const(3) - R,), Y[R])),
            None,
        ),
        "TW-INJECTIVE",
        "two outputs write one element of y",
    ),
]


@pytest.mark.parametrize(("c", "code", "message"), BROKEN)
def test_rejects(c: Computation, code: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        check(c)
    assert caught.value.code == code
    assert str(caught.value).startswith("computation c: ")


def test_an_index_from_data_cannot_be_written() -> None:
    at = Buffer("at", (4,), d.int64)
    with pytest.raises(VerifyError, match="depends on data"):
        check(one(at[R], Y[R], Dim(R, 4)))


@pytest.mark.parametrize(
    "clamp", [lambda i: Min(i, const(3)), lambda i: Max(i, const(0))]
)
def test_an_index_from_data_is_left_to_run_time(clamp: Any) -> None:
    at = Buffer("at", (4,), d.int64)
    check(one(R, Y[clamp(at[R])], Dim(R, 4)))


def test_how_far_an_index_leaves() -> None:
    guarded = Select(Lt(R, const(3)), Y[R * 2 - 1], Y[R])
    (found,) = leaving(one(R, guarded, Dim(R, 4)))
    assert (found.axis, found.extent, found.low, found.high) == (0, 4, -1, 3)
    assert [(x.low, x.high) for x in leaving(one(R, Y[R + 1] + Y[R], Dim(R, 4)))] == [
        (1, 4)
    ]
    assert [(x.low, x.high) for x in leaving(one(R + 1, Y[R], Dim(R, 4)))] == [(1, 4)]


@pytest.mark.parametrize(
    "c",
    [
        one(R, X[R, S], Dim(R, 4), Dim(S, 4, PW), op=first(F)),
        one(R, X[R, S], Dim(R, 4, PS), Dim(S, 4, PW), op=first(F)),
        one(R * 2 + S, X[R, S], Dim(R, 2), Dim(S, 2)),
        one(const(3) - R, Y[R], Dim(R, 4)),
        one((R * 3) % 4, Y[R], Dim(R, 4)),
        one(R, Y[R + 9], Dim(R, 0)),
        map_("pad", X, lambda i, j: padded(X, (i - 1, i + j - 2), 0.0)),
        reduce_("sum", Y, (4,), "add", lambda i, k: X[k, i]),
    ],
)
def test_accepts(c: Computation) -> None:
    check(c)


@settings(max_examples=100, deadline=None)
@given(computations())
def test_the_lemma_on_injectivity_is_right(c: Computation) -> None:
    """Against an enumeration, on the computation with each output index also folded by two."""
    for o in c.outputs:
        for index in (o.index, tuple(i // 2 for i in o.index)):
            changed = Output(o.tensor, index, o.value)
            if has_own_digits(replace(c, outputs=(changed,)), changed):
                points = [{}]
                for dim in c.dims:
                    if dim.combine in (CC, PS):
                        points = [
                            {**p, dim.var: n} for p in points for n in range(dim.extent)
                        ]
                seen = {tuple(int(evaluate(i, p)) for i in index) for p in points}
                assert len(seen) == len(points)


def test_a_guard_that_always_fails_needs_no_tensor() -> None:
    value = Select(const(False, d.bool_), Y[R + 9], const(0.0, F))
    check(one(R, value, Dim(R, 4)))


@pytest.mark.parametrize(
    ("one", "two", "separate"),
    [
        ((const(0), R), (const(1), R), True),
        ((const(1), R), (const(1), S), False),
        ((R * 2,), (R * 2 + 1,), True),
        ((R * 2,), (S * 4 + 3,), True),
        ((R * 2,), (S * 4 + 2,), False),
        ((R * 3 + S * 2,), (R * 3 + S * 2 + 1,), False),
        ((R * 2, S), (R + 1, S), False),
        ((R * 2, S * 2), (R, S * 2 + 1), True),
    ],
)
def test_two_outputs_of_one_tensor(one: Any, two: Any, separate: bool) -> None:
    y = Buffer("y", (24,) * len(one), F)
    outputs = (Output(y, one, X[0, 0]), Output(y, two, X[0, 0]))
    assert check_module._are_separate(*outputs) is separate
    c = Computation("c", (Dim(R, 3), Dim(S, 3)), outputs[:1])
    places = [{tuple(evaluate(i, {R: r, S: s}) for i in o.index) for r in range(3)
               for s in range(3)} for o in outputs]  # fmt: skip
    assert not (separate and places[0] & places[1])
    assert (check_module._conflict(c, *outputs) is None) is not bool(
        places[0] & places[1]
    )
