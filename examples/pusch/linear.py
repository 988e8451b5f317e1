"""Small systems of linear equations, written out: K x K complex matrices, one per subcarrier.

Entries are pairs of expressions. Python's loops run while these are built, so that what remains is
straight-line code. A factorization is its entries off the diagonal, and the inverses of its
diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright import te as t


class Pair(NamedTuple):
    """A complex value as its real and its imaginary part."""

    re: Any
    im: Any

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Pair) -> Pair:  # type: ignore[override]
        real = self.re * other.re - self.im * other.im
        return Pair(real, self.re * other.im + self.im * other.re)

    def inner(self, other: Pair) -> Pair:
        """The conjugate of this value times the other."""
        real = self.re * other.re + self.im * other.im
        return Pair(real, self.re * other.im - self.im * other.re)

    def scaled(self, factor: Any) -> Pair:
        """Times a real value."""
        return Pair(self.re * factor, self.im * factor)

    def power(self) -> Any:
        """The squared modulus."""
        return self.re * self.re + self.im * self.im


Entries = dict[tuple[int, int], Pair]


def cholesky(a: Entries, n: int) -> tuple[Entries, list[Any]]:
    """C of A = C Cᴴ: what is below its diagonal, and the inverses of its diagonal.

    a: the entries on and below the diagonal of a Hermitian positive definite matrix.
    """
    c: Entries = {}
    inverse: list[Any] = []
    for j in range(n):
        pivot = a[j, j].re
        for p in range(j):
            pivot = pivot - c[j, p].power()
        inverse.append(t.rsqrt(pivot))
        for i in range(j + 1, n):
            left = a[i, j]
            for p in range(j):
                left = left - c[j, p].inner(c[i, p])
            c[i, j] = left.scaled(inverse[j])
    return c, inverse


def cholesky_solve(c: Entries, inverse: list[Any], z: list[Pair]) -> list[Pair]:
    """x of C Cᴴ x = z."""
    x = list(z)
    for i in range(len(x)):
        for p in range(i):
            x[i] = x[i] - c[i, p] * x[p]
        x[i] = x[i].scaled(inverse[i])
    for i in reversed(range(len(x))):
        for p in range(i + 1, len(x)):
            x[i] = x[i] - c[p, i].inner(x[p])
        x[i] = x[i].scaled(inverse[i])
    return x


def lu(a: Entries, n: int) -> tuple[Entries, list[Any]]:
    """L and U of A = L U, L with a unit diagonal, and the inverses of U's diagonal.

    Doolittle's way, in place, without pivots: the matrix is Hermitian positive definite, which
    makes that stable, and makes the diagonal of U real. a: as for `cholesky`.
    """
    m = a | {
        (j, i): Pair(a[i, j].re, 0.0 - a[i, j].im) for i in range(n) for j in range(i)
    }
    inverse: list[Any] = []
    for k in range(n):
        inverse.append(1.0 / m[k, k].re)
        for i in range(k + 1, n):
            m[i, k] = m[i, k].scaled(inverse[k])
            for j in range(k + 1, n):
                m[i, j] = m[i, j] - m[i, k] * m[k, j]
    return {(i, j): entry for (i, j), entry in m.items() if i != j}, inverse


def lu_solve(m: Entries, inverse: list[Any], z: list[Pair]) -> list[Pair]:
    """x of L U x = z."""
    x = list(z)
    for i in range(len(x)):
        for p in range(i):
            x[i] = x[i] - m[i, p] * x[p]
    for i in reversed(range(len(x))):
        for p in range(i + 1, len(x)):
            x[i] = x[i] - m[i, p] * x[p]
        x[i] = x[i].scaled(inverse[i])
    return x


def cholesky_inverse(c: Entries, inverse: list[Any], k: int) -> Any:
    """Element (k, k) of (C Cᴴ)⁻¹: the energy of column k of C⁻¹."""
    energy = inverse[k] * inverse[k]
    column: dict[int, Pair] = {}
    for i in range(k + 1, len(inverse)):
        entry = c[i, k].scaled(-inverse[k])
        for p in range(k + 1, i):
            entry = entry - c[i, p] * column[p]
        column[i] = entry.scaled(inverse[i])
        energy = energy + column[i].power()
    return energy


def lu_inverse(m: Entries, inverse: list[Any], k: int) -> Any:
    """Element (k, k) of (L U)⁻¹, where U = D Lᴴ: the energy of column k of L⁻¹, weighed by D⁻¹."""
    energy = inverse[k]
    column: dict[int, Pair] = {}
    for i in range(k + 1, len(inverse)):
        entry = m[i, k].scaled(-1.0)
        for p in range(k + 1, i):
            entry = entry - m[i, p] * column[p]
        column[i] = entry
        energy = energy + column[i].power() * inverse[i]
    return energy


class Method(NamedTuple):
    """One way to solve A x = z for a Hermitian positive definite matrix A.

    factor: entries of A and its size, to a factorization. solve: that and z, to x. inverse: that
    and k, to element (k, k) of A⁻¹. both: whether what is above the diagonal is stored as well.
    """

    factor: Callable[[Entries, int], tuple[Entries, list[Any]]]
    solve: Callable[[Entries, list[Any], list[Pair]], list[Pair]]
    inverse: Callable[[Entries, list[Any], int], Any]
    both: bool

    def stored(self, n: int) -> list[tuple[int, int]]:
        """The places of the entries of a factorization, in the order in which they are stored."""
        return [
            (i, j) for i in range(n) for j in range(n) if j < i or (self.both and j > i)
        ]


METHODS = {
    "cholesky": Method(cholesky, cholesky_solve, cholesky_inverse, False),
    "lu": Method(lu, lu_solve, lu_inverse, True),
}
