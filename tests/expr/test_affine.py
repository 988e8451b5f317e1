"""Linear forms of index expressions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.expr.affine import affine, rejoined, to_expr
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Add, Const, Expr, Mul, Neg, Sub, const, var

X, Y = var("i"), var("j")


def linear() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([X, Y, X // 3, Y % 2]) | st.integers(-9, 9).map(const)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Add, inner, inner),
            st.builds(Sub, inner, inner),
            st.builds(Mul, inner, inner),
            st.builds(Neg, inner),
        ),
        max_leaves=8,
    )


@settings(max_examples=200, deadline=None)
@given(linear(), st.integers(-20, 20), st.integers(-20, 20))
def test_a_form_says_what_the_expression_says(e: Expr, i: int, j: int) -> None:
    env = {X: i, Y: j}
    form = affine(e)
    total = form.const + sum(c * int(evaluate(a, env)) for a, c in form.terms)
    assert total == int(evaluate(e, env)) == int(evaluate(to_expr(form), env))
    assert all(c != 0 for _, c in form.terms)


def test_terms_cancel_and_collect() -> None:
    assert affine(X * 8 + Y - X * 8 + 3) == affine(Y + 3)
    assert affine(X - X).is_const
    assert affine((X + Y) * 2 - Y).coefficient(Y) == 1
    assert affine(X // 8 * 8).terms == ((X // 8, 8),)


@settings(max_examples=100, deadline=None)
@given(
    linear(),
    st.integers(1, 9),
    st.integers(-3, 3),
    st.integers(-20, 20),
    st.integers(-20, 20),
)
def test_what_is_taken_apart_is_joined_again(
    e: Expr, size: int, k: int, i: int, j: int
) -> None:
    apart = e // size * (size * k) + Y + e % size * k
    form = rejoined(affine(apart))
    total = form.const + sum(c * int(evaluate(a, {X: i, Y: j})) for a, c in form.terms)
    assert total == int(evaluate(apart, {X: i, Y: j}))


@settings(max_examples=100, deadline=None)
@given(
    linear(),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(-3, 3),
    st.integers(-20, 20),
    st.integers(-20, 20),
)
def test_digits_are_joined_again(
    e: Expr, low: int, high: int, k: int, i: int, j: int
) -> None:
    apart = e // (low * high) * (high * k) + e // low % high * k
    form = rejoined(affine(apart))
    total = form.const + sum(c * int(evaluate(a, {X: i, Y: j})) for a, c in form.terms)
    assert total == int(evaluate(apart, {X: i, Y: j}))


def test_only_parts_that_fit_are_joined() -> None:
    assert rejoined(affine(X // 8 * 8 + X % 8)).terms == ((X, 1),)
    assert rejoined(affine((X + 3) // 8 * 16 + Y + (X + 3) % 8 * 2)) == affine(
        Y + X * 2 + 6
    )
    nested = X // 56 * 112 + X // 8 % 7 * 16 + X % 8 * 2
    assert rejoined(affine(nested)).terms == ((X, 2),)
    for other in (
        X // 55 * 7 + X // 8 % 7,
        X // 56 * 8 + X // 8 % 7,
        X // 56 * 7 + Y // 8 % 7,
        X // 56 * 7 + X // 7 % 7,
        X // 8 * 4 + X % 8,
        X // 8 * 8 + Y % 8,
        X // 8 * 8 + X % 4,
        X // 8 * 8,
        X // -6 * -3 + X // 2 % -3,  # at 1 it is 3, and X // 2 is 0
    ):
        assert rejoined(affine(other)) == affine(other)


def test_forms_are_cached_per_expression() -> None:
    e = X * 8 + Y
    assert affine(e) is affine(X * 8 + Y)


def test_narrow_integers_wrap_and_so_are_atoms() -> None:
    x = var("x", dtypes.int8)
    e = x + x
    assert affine(e).terms == ((e, 1),)


def test_text_order_of_to_expr() -> None:
    assert to_expr(affine(const(3) - X * 2)) is Add(Mul(X, const(-2)), const(3))
    assert to_expr(affine(X - 3)) is Sub(X, const(3))
    assert isinstance(to_expr(affine(X - X)), Const)
