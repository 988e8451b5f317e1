"""Digits by sizes that are not numbers: what is proven is so at all sizes; each condition
counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from tilewright.expr.bounds import less_than, refine
from tilewright.expr.interp import evaluate
from tilewright.expr.mixed_radix import inside, products
from tilewright.expr.nodes import INDEX, Const, Expr, Var

N, B, C, H, J, K, L = (Var(name, INDEX) for name in "nbchjkl")
THREE = Const(3, INDEX)
SIZES = {N: (0, None), B: (0, None), C: (0, None)}


def env(*below: tuple[Var, Expr]) -> dict[Any, Any]:
    """Sizes from 0 on, and variables from 0 up to below an expression of them."""
    found: dict[Any, Any] = dict(SIZES)
    for v, extent in below:
        found[v] = (0, None)
        if isinstance(extent, Const):
            found[v] = (0, int(extent.value.real) - 1)
        else:
            found |= less_than(v, extent)
    return found


PROVEN: dict[str, tuple[Expr, Expr, tuple[tuple[Var, Expr], ...]]] = {
    "put together": (H * N + J, B * N, ((H, B), (J, N))),
    "behind other rows": (
        C * C * 2 + H * (N * 2) + J * 2 + L // 7,
        C * C * 2 + B * N * 2,
        ((H, B), (J, N), (L, Const(14, INDEX))),
    ),
    "between other rows": (
        C * N + H * N + J,
        C * N + B * N + C * C,
        ((H, B), (J, N)),
    ),
    "in another order": (J + N * H, N * B, ((H, B), (J, N))),
    "three digits": (
        (H * N + J) * C + L,
        B * N * C,
        ((H, B), (J, N), (L, C)),
    ),
    "a number of rows": (H * N + J, 4 * N, ((H, Const(4, INDEX)), (J, N))),
    "with a number": (H * 4 * N + J, B * 4 * N, ((H, B), (J, N))),
    "high": (K // N, B, ((K, B * N),)),
    "low": (K % N, N, ((K, B * N),)),
    "the highest": (K // (B * N), Const(2, INDEX), ((K, 2 * B * N),)),
    "in the middle": (K // N % B, B, ((K, 2 * B * N),)),
    "high of three": (K // N, B * C, ((K, B * C * N),)),
    "high of a sum": (K // (N + 1), B + 2, ((K, (B + 2) * (N + 1)),)),
    "low of a sum": (K % (N + 1), N + 1, ((K, (B + 2) * (N + 1)),)),
    "high of a sum, multiplied out": (
        K // (N + 1),
        B + 2,
        ((K, B * N + B + N * 2 + 2),),
    ),
    "high of a scaled sum": (K // (N * 4 + 4), B, ((K, B * (N + 1) * 4),)),
    "high of a difference": (K // (N - N // 3), THREE * 2, ((K, N * 6 - N // 3 * 6),)),
    "low of a difference": (K % (N - N // 3), N, ((K, N * 6 - N // 3 * 6),)),
    "put together by a sum": (H * (N + 1) + J, B * N + B, ((H, B), (J, N + 1))),
    "a digit of a larger tensor": (K // N % B, B + 1, ((K, 2 * B * N),)),
    "put together by a number": (H * 3 + J, B * 3 + 6, ((H, B + 2), (J, THREE))),
    "by a number, below a sum": (
        H * (N * 6 + 12) + J * 3 + K // 7,
        (B + 2) * (N + 2) * 6,
        ((H, B + 2), (J, N * 2 + 4), (K, Const(21, INDEX))),
    ),
    "the first of two parts": (
        H * (N * 2 + 2) + J,
        B * (N + 1) * 3,
        ((H, B), (J, N * 2 + 2)),
    ),
    "behind another part": (
        (B + 2) * (N + 1) * 4 + H * (N * 2 + 2) + J,
        (B + 2) * (N + 1) * 7,
        ((H, B + 2), (J, N * 2 + 2)),
    ),
    "a variable behind a size": (J + B * 3, B * 5 + 2, ((J, B + 2),)),
    "times a variable": (J * 3 + C, N * 3 + C, ((J, N),)),
    "tiles of rows": (
        (J * 3 + K) * N + L,
        B * N,
        ((J, B // 3), (K, THREE), (L, N)),
    ),
    "tiles behind a size": (
        J * 3 + K + B * 2 + 1,
        B * 3 + 1,
        ((J, B // 3), (K, THREE)),
    ),
    "the last of two kinds of tiles": (
        N // 2 * 16 + J * 4 + K,
        N * 8,
        ((J, N % 2 * 2), (K, Const(4, INDEX))),
    ),
    "low behind a part": (K % (N - N // 2) + N // 2, N, ((K, B * N - N // 2 * B),)),
    "low behind a border": (K % N + 1, N + 1, ((K, B * N),)),
    "a divisor of a positive number of times": (K // (N - C), B, ((K, B * N - B * C),)),
    "high of a tile": ((J * 3 + K) // N, B, ((J, B * N // 3), (K, THREE))),
    "low of a tile": ((J * 3 + K) % N, N, ((J, B * N // 3), (K, THREE))),
}


def values(
    below: tuple[tuple[Var, Expr], ...], most: int
) -> Iterator[Mapping[Any, int]]:
    for n, b, c in product(range(most), repeat=3):
        sizes: dict[Any, int] = {N: n, B: b, C: c}
        ends = [range(int(evaluate(e, sizes))) for _, e in below]
        for found in product(*ends):
            pairs = zip(below, found, strict=True)
            yield {**sizes, **{v: x for (v, _), x in pairs}}


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_proven_is_so(name: str) -> None:
    index, extent, below = PROVEN[name]
    assert inside(index, extent, env(*below))
    for point in values(below, 3):
        assert 0 <= evaluate(index, point) < evaluate(extent, point)


OPEN: dict[str, tuple[Expr, Expr, dict[Any, Any]]] = {
    "a low digit too large": (H * N + J, B * N, env((H, B), (J, N + 1))),
    "a high digit too large": (H * N + J, B * N, env((H, B + 1), (J, N))),
    "behind other rows, and a low digit too large": (
        C * C * 2 + H * (N * 2) + J,
        C * C * 2 + B * N * 2,
        env((H, B), (J, N * 2 + 1)),
    ),
    "behind more rows": (
        C * C * 3 + H * N + J,
        C * C * 2 + B * N,
        env((H, B), (J, N)),
    ),
    "behind rows, among all of them": (
        C * C + J,
        C * C + N,
        env((J, C * C + N)),
    ),
    "behind rows of any sign": (
        C + H * N + J,
        C + B * N,
        env((H, B), (J, N)) | {C: (None, None)},
    ),
    "a low digit below 0": (
        H * N + J,
        B * N,
        env((H, B), (J, N)) | {J: (None, None)},
    ),
    "one more": (H * N + J + 1, B * N, env((H, B), (J, N))),
    "another size": (H * C + J, B * N, env((H, B), (J, N))),
    "a sum too long": (K // N, B, env((K, B * N + 1))),
    "a quotient of less than 0": (K // N, B, env((K, B * N)) | {K: (None, None)}),
    "a divisor and a quotient of less than 0": (
        K // N,
        B,
        env((K, B * N)) | {N: (None, None), B: (None, None)},
    ),
    "another divisor": (K // C, B, env((K, B * N))),
    "a highest too large": (K // (B * N), Const(2, INDEX), env((K, 3 * B * N))),
    "half of a size": (K // (2 * N), B, env((K, 3 * B * N))),
    "a middle of another": (K // C % B, B, env((K, 2 * B * N))),
    "a remainder by 0": (K % N, N, env() | {K: (0, None)}),
    "a remainder by another": (K % N, C, env((K, B * N))),
    "a sum of another": (K // (N + 2), B + 2, env((K, (B + 2) * (N + 1)))),
    "a sum longer than its part": (K // (N + 1), B + 1, env((K, (B + 2) * (N + 1)))),
    "a low sum too long": (K % (N + 1), N, env((K, (B + 2) * (N + 1)))),
    "a divisor and a quotient of any sign": (
        K // (N - C),
        B,
        env((K, B * N - B * C)) | {B: (None, None)},
    ),
    "a remainder, and a quotient of any sign": (
        K % (N - C),
        N - C,
        env((K, B * N - B * C)) | {B: (None, None)},
    ),
    "a difference times another number": (
        K // (N - N // 3),
        THREE * 2,
        env((K, N * 6 - N // 3 * 5)),
    ),
    "half of a scaled sum": (K // (N * 4 + 4), B, env((K, B * (N + 1) * 6))),
    "a digit of a smaller tensor": (K // N % B, B - 1, env((K, 2 * B * N))),
    "a digit of another tensor": (K // N % B, B + N - C, env((K, 2 * B * N))),
    "put together by a sum and one more": (
        H * (N + 1) + J + 1,
        B * N + B,
        env((H, B), (J, N + 1)),
    ),
    "put together by another sum": (
        H * (N + 1) + J,
        B * N + B,
        env((H, B), (J, N + 2)),
    ),
    "a low digit too large for a number": (
        H * 3 + J,
        B * 3 + 6,
        env((H, B + 2), (J, Const(4, INDEX))),
    ),
    "a high digit too large for a number": (
        H * 3 + J,
        B * 3 + 6,
        env((H, B + 3), (J, THREE)),
    ),
    "an extent between multiples of a number": (
        H * 3 + J,
        B * 3 + 5,
        env((H, B + 2), (J, THREE)),
    ),
    "a part that is larger": (
        H * (N * 4 + 4) + J,
        B * (N + 1) * 3,
        env((H, B), (J, N * 4 + 4)),
    ),
    "behind a part, one more": (
        (B + 2) * (N + 1) * 4 + H * (N * 3 + 3) + J + 1,
        (B + 2) * (N + 1) * 7,
        env((H, B + 2), (J, N * 3 + 3)),
    ),
    "a part of a size of any sign": (
        H * (N * 2 + 2) + J,
        B * (N + 1) * 3,
        env((H, B), (J, N * 2 + 2)) | {B: (None, None)},
    ),
    "a variable too far behind": (J + B * 3, B * 4 + 1, env((J, B + 2))),
    "a variable behind less than 0": (J - C, N, env((J, N))),
    "times a variable and one more": (J * 3 + C + 3, N * 3 + C, env((J, N))),
    "tiles too far behind a size": (
        J * 3 + K + B * 2 + 1,
        B * 3,
        env((J, B // 3), (K, THREE)),
    ),
    "one of two kinds of tiles too many": (
        N // 2 * 16 + J * 4 + K,
        N * 8,
        env((J, N % 2 * 2 + 1), (K, Const(4, INDEX))),
    ),
    "a tile that overlaps": (
        (J * 3 + K) // N,
        B,
        env((J, B * N // 3), (K, Const(4, INDEX))),
    ),
    "a tile too many": (
        (J * 3 + K) // N,
        B,
        env((J, (B * N + 2) // 3), (K, THREE)),
    ),
    "tiles of another length": (
        (J * 4 + K) // N,
        B,
        env((J, B * N // 3), (K, THREE)),
    ),
    "tiles before 0": (
        (J * 3 + K) // N,
        B,
        env((J, B * N // 3), (K, THREE)) | {J: (None, None)},
    ),
    "a remainder by less than 0, and a quotient": (
        K % N,
        N,
        env((K, B * N)) | {N: (None, None), B: (None, None)},
    ),
    "a digit before the border": (K % N - 1, N - 1, env((K, B * N))),
    "a digit beyond the border": (K % N + 2, N + 1, env((K, B * N))),
    "a digit before 0": (K % N - C, N - C, env((K, B * N))),
    "twice a digit": (K % N * 2, N * 2 - 2, env((K, B * N))),
    "a digit behind more": (
        K % (N - N // 2) + N // 2 + 1,
        N,
        env((K, B * N - N // 2 * B)),
    ),
    "two digits": (K % N + K // N, N, env((K, B * N))),
}


@pytest.mark.parametrize("name", OPEN)
def test_each_condition_counts(name: str) -> None:
    index, extent, known = OPEN[name]
    assert not inside(index, extent, known)


def test_a_guard_on_a_tile_tells_its_digits() -> None:
    k = J * 3 + K
    known = {**SIZES, J: (0, None), K: (0, 2)}
    guarded = refine(known, k < B * N)
    assert inside(k // N, B, guarded)
    assert inside(k % N, N, guarded)
    assert not inside(k // N, B, refine(known, k < B * N + 1))
    assert not inside(k // N, B, refine(known, J * 3 < B * N))


def test_a_remainder_by_at_least_one_is_a_digit_of_anything() -> None:
    assert inside((K - 5) % N, N, {N: (1, None)})


def test_sums_of_products_are_equal_in_any_order() -> None:
    assert products(B * N * 2 + H) == products(H + N * 2 * B)
    assert products(B * N) != products(B * N + 1)
    assert products(B * N - N * B) == {}


# Guards of `K // N - 2` for a K below (B + 2) * N, and whether they tell that it is at least 0.
GUARDS: dict[str, tuple[Expr, bool]] = {
    "as long": (K >= N * 2, True),
    "longer": (K >= N * 2 + 3, True),
    "by another part": (K >= N * 2 + B, True),
    "one less": (K >= N * 2 - 1, False),
    "less by a part": (K >= N * 2 - B, False),
    "shorter": (K >= N, False),
    "of another size": (K >= C * 2, False),
    "an end": (K < N * 2, False),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_tells_the_least_digit(name: str) -> None:
    guard, proven = GUARDS[name]
    below = ((K, (B + 2) * N),)
    known = refine(env(*below) | {N: (1, None)}, guard)
    index = K // N - 2
    assert inside(index, B, known) == proven
    assert not inside(index - 1, B, known)
    assert not inside(index, B - 1, known)
    points = [p for p in values(below, 4) if p[N] and evaluate(guard, p)]
    held = all(0 <= evaluate(index, p) < p[B] for p in points)
    assert held == proven


def test_a_guard_tells_no_digit_by_what_may_be_zero() -> None:
    known = refine(env((K, (B + 2) * N)), K >= N * 2)
    assert not inside(K // N - 2, B, known)
