"""Discrete Fourier transforms as products with matrices known at compile time.

A transform is linear in the (real, imaginary) pairs of its axis, so padding, cropping, inversion,
scaling and one-sided forms all fit into one matrix. If the length is a * b, two smaller products
do the same (J. Cooley, J. Tukey, "An algorithm for the machine calculation of complex Fourier
series", 1965).
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.graph.ops.registry import Array

MATRIX_ELEMENTS = 1 << 22  # above this size a fast transform on the host is faster
# What moving a number between the two products takes, in multiplications of one product.
MOVE = 32


@dataclass(frozen=True)
class Transform:
    """A transform of the first `extent` of `length` numbers, the others being zero.

    parts: of each number: 1 if real, 2 if complex, as (real, imaginary).
    onesided: only the first half of the results, or, of an inverse, of the numbers, is there.
    """

    extent: int
    parts: int
    length: int
    onesided: bool = False
    inverse: bool = False

    @property
    def results(self) -> int:
        """The number of results."""
        half = self.onesided and not self.inverse
        return self.length // 2 + 1 if half else self.length

    @property
    def result_parts(self) -> int:
        """Of each result: 1 if real, 2 if complex."""
        return 1 if self.onesided and self.inverse else 2

    @property
    def read(self) -> int:
        """How many of the numbers make a difference."""
        half = self.onesided and self.inverse
        return min(self.extent, self.length // 2 + 1 if half else self.length)

    def matrix(self) -> Array:
        """float64[extent * parts, results * result_parts], found by transforming unit vectors."""
        units = np.eye(self.extent * self.parts).reshape(-1, self.extent, self.parts)
        signal = units[..., 0] + (1j * units[..., 1] if self.parts == 2 else 0)
        if self.result_parts == 1:
            found = np.fft.irfft(signal, self.length)[..., None]
        else:
            full = (np.fft.ifft if self.inverse else np.fft.fft)(signal, self.length)
            kept = full[:, : self.results]
            found = np.stack([kept.real, kept.imag], -1)
        return found.reshape(self.extent * self.parts, -1)

    def split(self) -> Split | None:
        """The cheapest way with two products; None if one product is as cheap."""
        counted = self.read * self.parts * self.results * self.result_parts
        small = [b for b in range(2, isqrt(self.length) + 1) if self.length % b == 0]
        inner = small + [self.length // b for b in small]
        best = min((Split(self, b) for b in inner), key=Split.work, default=None)
        return best if best is not None and best.work() < counted else None


@dataclass(frozen=True)
class Split:
    """Number `i * inner + j` goes to result `k + outer * l`, where `inner * outer` is the length.

    The first product is over i, with a matrix for each j: its results belong to j and k. The
    second is over j, with one matrix for all k.
    """

    whole: Transform
    inner: int

    @property
    def outer(self) -> int:
        """The number of results of the first product."""
        return self.whole.length // self.inner

    @property
    def rows(self) -> int:
        """The values that i takes."""
        return -(-self.whole.read // self.inner)

    @property
    def groups(self) -> int:
        """The values that l takes."""
        return -(-self.whole.results // self.outer)

    def work(self) -> int:
        """Multiplications, and what moving the numbers in between is worth."""
        first = self.rows * self.whole.parts
        second = self.groups * self.whole.result_parts
        return 2 * self.whole.length * (first + second + MOVE)

    def elements(self) -> int:
        """Of both matrices."""
        first = self.rows * self.whole.parts * self.whole.length * 2
        return first + self.inner * 2 * self.groups * self.whole.result_parts

    def first(self) -> Array:
        """float64[inner, rows * parts, outer * 2]."""
        t = self.whole
        i = np.arange(self.rows * self.inner).reshape(self.rows, self.inner).T
        turns = self._turns(i[..., None] * np.arange(self.outer), t.length)
        turns *= self._weights()[i][..., None]
        return _pairs(turns)[:, :, : t.parts].reshape(
            self.inner, self.rows * t.parts, -1
        )

    def second(self) -> Array:
        """float64[inner * 2, groups * result_parts]."""
        places = np.arange(self.inner)[:, None] * np.arange(self.groups)
        found = _pairs(self._turns(places, self.inner))[..., : self.whole.result_parts]
        return found.reshape(self.inner * 2, -1)

    def _turns(self, places: Array, period: int) -> Array:
        sign = 1 if self.whole.inverse else -1
        return np.exp(sign * 2j * np.pi * (places % period) / period)

    def _weights(self) -> Array:
        """Of each number: an inverse divides, and of half of the numbers each stands for two."""
        t = self.whole
        weights = np.ones(self.rows * self.inner)
        if t.inverse:
            weights /= t.length
        if t.result_parts == 1:
            alone = np.arange(len(weights)) * 2 % t.length == 0
            weights *= np.where(alone, 1, 2)
        return weights


def _pairs(factors: Array) -> Array:
    """Complex factors [r, c] as products of pairs: float64[r, 2, c, 2], and any axes before."""
    of_real = np.stack([factors.real, factors.imag], -1)
    of_imaginary = np.stack([-factors.imag, factors.real], -1)
    return np.stack([of_real, of_imaginary], -3)
