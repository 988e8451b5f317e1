"""fft: two-dimensional Fourier transforms of complex numbers, one image of a batch per thread.

Lines are transformed by passes of a small radix (Govindaraju et al., SC 2008), as many at once as a
vector has lanes: first along y of the transposed image, which is x, then along y. The real and the
imaginary parts of an image are planes.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

RADICES = {16: (4, 4), 32: (8, 4), 64: (8, 8)}


@dataclass(frozen=True)
class Complex:
    """A complex number of two expressions."""

    re: Any
    im: Any

    def __add__(self, other: Complex) -> Complex:
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Complex) -> Complex:
        a, b, c, d = self.re, self.im, other.re, other.im
        return Complex(a * c - b * d, a * d + b * c)

    def conjugate(self) -> Complex:
        """With the opposite imaginary part."""
        return Complex(self.re, -self.im)

    def turned(self, sign: int) -> Complex:
        """Times the imaginary unit, or times minus that."""
        return Complex(-self.im, self.re) if sign > 0 else Complex(self.im, -self.re)

    def values(self) -> tuple[Any, Any]:
        """What a Func of two values is defined by."""
        return self.re, self.im


class Fourier:
    """The parts of a transform in the words of a module."""

    def __init__(self, hl: Any, sign: int) -> None:
        self.hl, self.sign = hl, sign
        self.twiddles: dict[int, Any] = {}

    def at(self, f: Any, *place: Any) -> Complex:
        """The complex value of a Func."""
        value = f[place]
        return Complex(value[0], value[1])

    def undefined(self) -> tuple[Any, Any]:
        """A value of which only updates make something."""
        real = self.hl.Float(32)
        return self.hl.undef(real), self.hl.undef(real)

    def factors(self, n: int) -> Any:
        """exp(2 pi i k / n) for each k."""
        if n not in self.twiddles:
            k, w = self.hl.Var("k"), self.hl.Func(f"w{n}")
            angle = self.hl.f32(k) * self.hl.f32(self.sign * 2 * cmath.pi / n)
            w[k] = (self.hl.cos(angle), self.hl.sin(angle))
            w.compute_root()
            self.twiddles[n] = w
        return self.twiddles[n]

    def rotated(self, v: Complex, k: int, n: int) -> Complex:
        """A number times exp(2 pi i k / n)."""
        if k == 0:
            return v
        if 4 * k == n:
            return v.turned(self.sign)
        root = cmath.exp(self.sign * 2j * cmath.pi * k / n)
        return v * Complex(self.hl.f32(root.real), self.hl.f32(root.imag))

    def small(self, f: Any, radix: int, name: str) -> Any:
        """The transform of dimension 0 of `f`; the sums on the way to it have negative places."""
        r, s, n0, b = (self.hl.Var(n) for n in ("r", "s", "n0", "b"))
        result = self.hl.Func(name)
        result[r, s, n0, b] = self.undefined()
        free = count(-1, -1)

        def sums(places: list[int], into: list[int]) -> None:
            half = len(places) // 2
            parts = [(f, p) for p in places]
            if half > 1:
                inner = [next(free) for _ in places]
                sums(places[::2], inner[:half])
                sums(places[1::2], inner[half:])
                parts = [(result, p) for p in inner]
            values = [self.at(g, p, s, n0, b) for g, p in parts]
            for k in range(half):
                odd = self.rotated(values[half + k], k, 2 * half)
                result[into[k], s, n0, b] = (values[k] + odd).values()
                result[into[half + k], s, n0, b] = (values[k] - odd).values()

        sums(list(range(radix)), list(range(radix)))
        return result

    def step(self, x: Any, n: int, radix: int, done: int, name: str) -> tuple[Any, Any]:
        """A pass over lines of `n` numbers, `done` of which are transformed already; its RDom."""
        n0, n1, b, r, s = (self.hl.Var(v) for v in ("n0", "n1", "b", "r", "s"))
        loaded = self.hl.Func(f"{name}_loaded{done}")
        value = self.at(x, n0, s + r * (n // radix), b)
        if done > 1:
            turned = value * self.at(self.factors(radix * done), r * (s % done))
            pairs = zip(turned.values(), value.values(), strict=True)
            value = Complex(*(self.hl.select(r > 0, t, v) for t, v in pairs))
        loaded[r, s, n0, b] = value.values()
        small = self.small(loaded, radix, f"{name}_small{done}")
        rs = self.hl.RDom([(0, radix), (0, n // radix)], f"{name}_r{done}")
        step = self.hl.Func(f"{name}_pass{done}")
        step[n0, n1, b] = self.undefined()
        place = (rs.y // done) * (radix * done) + rs.y % done + rs.x * done
        step[n0, place, b] = small[rs.x, rs.y, n0, b]

        step.bound(n1, 0, n).update().unroll(rs.x)
        if done > 1:
            loaded.compute_at(step, rs.y).unroll(r).vectorize(n0)
            loaded.reorder_storage(n0, r, s, b)
        small.compute_at(step, rs.y).reorder_storage(n0, r, s, b).vectorize(n0)
        for k in range(small.num_update_definitions()):
            small.update(k).vectorize(n0)
        return step, rs

    def lines(self, x: Any, n: int, lanes: int, name: str) -> Any:
        """The transforms of dimension 1 of `x`, on groups of lanes of dimension 0."""
        n0, group = self.hl.Var("n0"), self.hl.Var("g")
        passes, done = [], 1
        for radix in RADICES[n]:
            passes.append(self.step(x, n, radix, done, name))
            x, done = passes[-1][0], done * radix
        last, rs = passes[-1]
        nest = last.update().split(n0, group, n0, lanes)
        nest.reorder(n0, rs.x, rs.y, group).vectorize(n0)
        for step, rs in passes[:-1]:
            step.compute_at(last, group).update().reorder(n0, rs.x, rs.y).vectorize(n0)
        return last


def transposed(hl: Any, f: Any, lanes: int) -> Any:
    """With the first two dimensions exchanged, by tiles that fill the registers."""
    x, y, xi, yi, b = (hl.Var(v) for v in ("n0", "n1", "xi", "yi", "b"))
    result = hl.Func()
    result[x, y, b] = f[y, x, b]
    result.tile(x, y, xi, yi, lanes, lanes).vectorize(xi).unroll(yi)
    return result


def build(hl: Any, image: Any) -> Any:
    """The transforms of a batch of square images."""
    n = image.get().width()
    lanes = min(n, F32)
    x, y, c, b = (hl.Var(v) for v in ("n0", "n1", "c", "b"))
    numbers = hl.Func("numbers")
    numbers[x, y, b] = (image[x, y, 0, b], image[x, y, 1, b])
    fourier = Fourier(hl, -1)
    turned = transposed(hl, numbers, lanes)
    along_x = fourier.lines(turned, n, lanes, "x")
    back = transposed(hl, along_x, lanes)
    along_y = fourier.lines(back, n, lanes, "y")
    output = hl.Func("output")
    output[x, y, c, b] = hl.mux(c, [along_y[x, y, b][0], along_y[x, y, b][1]])

    output.bound(x, 0, n).bound(y, 0, n).bound(c, 0, 2)
    output.reorder(c, x, y, b).unroll(c).vectorize(x, lanes).parallel(b)
    for stage in (turned, along_x, back, along_y):
        stage.compute_at(output, b)
    return output


def images(rng: Any, n: int, batch: int) -> tuple[Any, ...]:
    """Random numbers."""
    return (rng.standard_normal((batch, 2, n, n), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda n, batch: ((0, n), (0, n), (0, 2), (0, batch)),
    size=(32, 256),
    small=(16, 3),
    tolerance=1e-5,
)
