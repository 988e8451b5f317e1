"""Lengths: one normal form for equal values, exact division, conditions decided or kept."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.base.errors import InputError
from tilewright.expr.nodes import Expr, FloorDiv
from tilewright.lift.lengths import Condition, decide, evaluate, holds, length, normal

N, M, K = (length(name) for name in "NMK")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((N // M) * M, N),
        ((N * M) // M, N),
        (N + M - N, M),
        ((N + 1) * (N + 1), N * N + 2 * N + 1),
        ((N * K + N) // (K + 1), N),
        ((N // (K + 1)) * (K + 1), N),
        ((N - 3 + 2) // 2 * 2 + 1, N),
        ((N // 4) // 2, N // 8),
        (M * N * 2, N * (M + M)),
        (N // N, 1 + 0 * N),
    ],
    ids=lambda e: repr(e),
)
def test_one_value_has_one_normal_form(one: Expr, other: Expr) -> None:
    assert normal(one) is normal(other)


def test_a_name_is_one_length() -> None:
    assert length("N") is N
    assert length("N") is not length("M")


SIZES = st.integers(1, 30)


@given(SIZES, SIZES, SIZES, st.integers(1, 5), st.integers(-4, 4))
def test_the_normal_form_keeps_the_value(
    n: int, m: int, k: int, c: int, d: int
) -> None:
    e = ((N * c + M) * (K + 2) + d) * M
    sizes = {N: n, M: m, K: k}
    assert evaluate(normal(e), sizes) == ((n * c + m) * (k + 2) + d) * m


@given(SIZES, SIZES, SIZES)
def test_exact_division_keeps_the_value(n: int, m: int, k: int) -> None:
    assume(n % m == 0)
    sizes = {N: n, M: m, K: k}
    assert evaluate(normal((N // M) * K + K), sizes) == n // m * k + k


def test_division_with_a_rest_is_refused_with_the_number() -> None:
    with pytest.raises(InputError, match=r"length N // M is 7/2, not a whole number"):
        evaluate(normal(FloorDiv(N, M)), {N: 7, M: 2})


def test_a_length_without_a_size_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"the length N has no size.*sizes=\{'N'"):
        evaluate(N, {})


@pytest.mark.parametrize(
    ("kind", "left", "right", "decided"),
    [
        ("divides", M, N * M, True),
        ("divides", length(4), length(30), False),
        ("divides", M, N, None),
        ("at most", N, N + M, True),
        ("at most", N + 1, N, False),
        ("at most", length(3), N, None),
    ],
    ids=str,
)
def test_conditions(kind: str, left: Expr, right: Expr, decided: bool | None) -> None:
    c = Condition(kind, normal(left), normal(right), "Split(M)")
    assert decide(c) is decided
    if decided is None:
        assert not holds(c, {N: 2, M: 3})
        assert holds(c, {N: 6, M: 3})
