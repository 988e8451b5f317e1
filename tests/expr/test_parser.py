"""Expressions from their text: what is printed is read back, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base import dtypes as d
from tilewright.base.errors import InputError
from tilewright.expr import nodes as n
from tilewright.expr.nodes import Buffer, Expr, Var, const
from tilewright.expr.parser import parse
from tilewright.expr.printer import show

K, J = Var("i", d.int64), Var("j", d.int64)
X, Y = Var("x", d.float32), Var("y", d.float32)
B, U, H = Var("b", d.bool_), Var("u", d.uint8), Var("h", d.bfloat16)
A = Buffer("t.last", (4, 5), d.float32)
NAMES = {"i": K, "j": J, "x": X, "y": Y, "b": B, "u": U, "h": H, "t.last": A}

EXPRESSIONS: list[Expr] = [
    (K + J) * const(3) - K // const(2) % const(5),
    n.Sub(K, n.Sub(J, K)),
    n.Sub(U, const(3, d.uint8)),
    n.Neg(const(3)) + const(-3),
    -(X + Y) / (X - const(-1.5, d.float32)),
    const(float("-inf"), d.float32) + n.Max(X, const(float("nan"), d.float32)),
    const(float("inf"), d.float64).astype(d.float32) * const(1e-05, d.float32),
    n.Select((K < J) & ~B | K.eq(J), A[K, J + 1], const(0.0, d.float32)),
    n.Rem(K, J) + n.Min(K, J) + n.Overlap(K, const(2)),
    n.Call("fma", (X, Y, X)) + n.Call("exp", (n.Neg(X),)),
    n.Bitcast(X, d.int32) ^ const(7, d.int32) << const(2, d.int32),
    H.astype(d.float32) + U.astype(d.float32),
    n.Select(const(True, d.bool_), K.ne(J), K <= J),
    const(True, d.bool_) & (X < Y),
]


@pytest.mark.parametrize("e", EXPRESSIONS, ids=show)
def test_what_is_printed_is_read_back(e: Expr) -> None:
    assert parse(show(e), NAMES) is e


def test_a_difference_of_signed_integers_is_read_as_a_sum() -> None:
    assert parse(show(n.Sub(K, const(3))), NAMES) is K + const(-3)


@st.composite
def sums(draw: st.DrawFn, depth: int = 4) -> Expr:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([K, J, const(2), const(-7)]))
    kind = draw(st.sampled_from([n.Add, n.Mul, n.FloorDiv, n.Mod, n.Min, n.And, n.Shl]))
    return kind(draw(sums(depth - 1)), draw(sums(depth - 1)))


@given(sums())
def test_so_is_what_stands_in_any_place(e: Expr) -> None:
    assert parse(show(e), NAMES) is e


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i + ", "expected an expression, found the end in column 4"),
        ("i j", "expected the end of the line, found 'j' in column 3"),
        ("q * 2", "expected an expression, found 'q' in column 1"),
        ("t.last[i, j", "expected ',', found the end"),
        ("t.last[i]", "t.last has 2 dimensions, indexed with 1"),
        ("min(i)", r"expected 2 argument\(s\), found 1"),
        ("i + x", "operands are int64 and float32"),
        ("3_q7", "expected the short name of a dtype"),
        ("i…", "found '…' in column 2"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        parse(text, NAMES)
    assert error.value.code == "TW-SYNTAX"
