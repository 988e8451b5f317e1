"""Bessel functions of the second kind, plain and modified, computed in float64 and rounded once.

Near zero, what is left without the logarithm is a series in x squared (Abramowitz and Stegun,
"Handbook of Mathematical Functions", 9.1.11, 9.1.13, 9.6.11 and 9.6.13); far away the oscillating
ones have the factors of the first kind (9.2.6), the modified ones a series in 1 / x of what is left
of `exp(-x) / sqrt(x)` (9.7.2). The coefficients are those of Chebyshev interpolation in 80 points,
computed with 60 digits, and each series ends where they fall below 2^-58 of the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tilewright.frontends.torch.aten.operators.bessel import (
    BORDER,
    chebyshev,
    far_sine,
    j0_below,
    j1_below,
    modified_i0,
    modified_i1,
)
from tilewright.frontends.torch.aten.operators.special import rule_of_function
from tilewright.frontends.torch.aten.rules import rule
from tilewright.graph.ops.terms import TensorTerm

_Y0_NEAR: Final = (
    -0.03314611320328494,
    -0.2744743055297453,
    0.17903431407718265,
    0.26156734625504663,
    -0.17730201278114358,
    0.04719668959576339,
    -0.007287962479552079,
    0.0007531135932577742,
    -5.632079141056987e-05,
    3.206532537654801e-06,
    -1.44072332740187e-07,
    5.248794787330516e-09,
    -1.5837552541812015e-10,
    4.02633081830612e-12,
    -8.747341203310769e-14,
    1.6434898714919468e-15,
    -2.6977881152566837e-17,
)
_Y1_NEAR: Final = (
    0.0025380132357417816,
    -0.01608717304766875,
    -0.09591204536083074,
    0.08445197259652346,
    -0.028328123944594365,
    0.005289897544167113,
    -0.0006414551451326356,
    5.505982873338744e-05,
    -3.53808001868935e-06,
    1.7707804556154404e-07,
    -7.11055004989928e-09,
    2.344337905911516e-10,
    -6.4651518414115946e-12,
    1.51429151205002e-13,
    -3.0511859694473254e-15,
    5.34668038572867e-17,
    -8.224911372021585e-19,
)
_K0_NEAR: Final = (
    -0.2676636966169514,
    0.3442898999246285,
    0.0359799365153615,
    0.001264615411446926,
    2.286212103119452e-05,
    2.5347910790261494e-07,
    1.904516377220209e-09,
    1.0349695257633625e-11,
    4.2598161427910826e-14,
    1.3744654358807508e-16,
)
_K1_NEAR: Final = (
    0.7626501136694739,
    -0.3531559607765449,
    -0.12261118082265715,
    -0.006975723859639864,
    -0.0001730288957513052,
    -2.4334061415659684e-06,
    -2.213387630734726e-08,
    -1.4114883926335278e-10,
    -6.666901694199329e-13,
    -2.427449850519366e-15,
    -7.023863479386288e-18,
)
_K0_FAR: Final = (
    1.2201515410329777,
    -0.0314481013119645,
    0.0015698838857300533,
    -0.00012849549581627802,
    1.39498137188765e-05,
    -1.8317555227191195e-06,
    2.766813639445015e-07,
    -4.660489897687948e-08,
    8.574034017414225e-09,
    -1.6975345093890614e-09,
    3.5773972814003283e-10,
    -7.957489244477396e-11,
    1.8559491149549264e-11,
    -4.514597883374519e-12,
    1.1403405882073441e-12,
    -2.9800969231481784e-13,
    8.032890775068375e-14,
    -2.2275133267462965e-14,
    6.340076476276646e-15,
    -1.848593377920907e-15,
    5.5120559994043335e-16,
    -1.6782311257549006e-16,
    5.2103917776435543e-17,
    -1.6475805939842632e-17,
    5.3004337711773354e-18,
)
_K1_FAR: Final = (
    1.3603130952422213,
    0.10392373657681724,
    -0.002857816859622779,
    0.00019521551847135162,
    -1.936197974166083e-05,
    2.406484947837217e-06,
    -3.5019606030878126e-07,
    5.7410841254500495e-08,
    -1.0345762465678097e-08,
    2.0150497551970347e-09,
    -4.1903547593419254e-10,
    9.218315187605315e-11,
    -2.129967838427791e-11,
    5.139639673482343e-12,
    -1.2891739609498229e-12,
    3.348419666052243e-13,
    -8.976705182010146e-14,
    2.4771544242195988e-14,
    -7.0198370892147685e-15,
    2.038703166239861e-15,
    -6.057047270643018e-16,
    1.8380935752430455e-16,
    -5.689462849193648e-17,
    1.7940510478863572e-17,
    -5.7567444820733025e-18,
)

_SECOND: Final = 2  # from here on, the modified ones are series in 1 / x
_TURN: Final = 2 / math.pi


def _where_defined(x: TensorTerm, found: TensorTerm, at_zero: float) -> TensorTerm:
    """NaN below zero, and the limit at zero."""
    found = x.equals(0).chosen(at_zero, found)
    return (x < 0).chosen(math.nan, found)


def _y0(x: TensorTerm) -> TensorTerm:
    small = x.op("Min", BORDER)
    rest = chebyshev(small * small / 32 - 1, _Y0_NEAR)
    low = _TURN * small.op("Log") * j0_below(small) + rest
    return _where_defined(x, (x < BORDER).chosen(low, far_sine(x, 0)), -math.inf)


def _y1(x: TensorTerm) -> TensorTerm:
    small = x.op("Min", BORDER)
    rest = chebyshev(small * small / 32 - 1, _Y1_NEAR)
    low = _TURN * (small.op("Log") * j1_below(small) - 1 / small) + small * rest
    return _where_defined(x, (x < BORDER).chosen(low, far_sine(x, 1)), -math.inf)


def _scaled(x: TensorTerm, near: TensorTerm, far: Sequence[float]) -> TensorTerm:
    """A modified function of the second kind times exp(x), from what it is near zero."""
    large = x.op("Max", _SECOND)
    high = chebyshev(4 / large - 1, far) / large.op("Sqrt")
    low = near * x.op("Min", _SECOND).op("Exp")
    return _where_defined(x, (x <= _SECOND).chosen(low, high), math.inf)


def _k0e(x: TensorTerm) -> TensorTerm:
    small = x.op("Min", _SECOND)
    rest = chebyshev(small * small / 2 - 1, _K0_NEAR)
    near = rest - (small / 2).op("Log") * modified_i0(small)
    return _scaled(x, near, _K0_FAR)


def _k1e(x: TensorTerm) -> TensorTerm:
    small = x.op("Min", _SECOND)
    rest = chebyshev(small * small / 2 - 1, _K1_NEAR) / small
    near = rest + (small / 2).op("Log") * modified_i1(small)
    return _scaled(x, near, _K1_FAR)


def _fallen(
    scaled: Callable[[TensorTerm], TensorTerm],
) -> Callable[[TensorTerm], TensorTerm]:
    """The function itself, from the scaled one: times exp(-x)."""
    return lambda x: scaled(x) * (-x).op("Exp")


_FUNCTIONS: Final[dict[str, Callable[[TensorTerm], TensorTerm]]] = {
    "bessel_y0": _y0,
    "bessel_y1": _y1,
    "modified_bessel_k0": _fallen(_k0e),
    "modified_bessel_k1": _fallen(_k1e),
    "scaled_modified_bessel_k0": _k0e,
    "scaled_modified_bessel_k1": _k1e,
}
for _name, _apply in _FUNCTIONS.items():
    rule(f"aten.special_{_name}")(rule_of_function(_apply))
