"""Hurwitz's zeta function, and the derivatives of the digamma function by it."""

from __future__ import annotations

import math
from typing import Any, Final

from tilewright.frontends.torch.aten.own.table import decomposes

_TERMS: Final = 12  # of the series; the rest is its integral, with corrections
# Bernoulli numbers B2, B4, ... over the factorials of their indices (Euler and Maclaurin).
_CORRECTIONS: Final = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
)


@decomposes("aten.polygamma.default")
def _polygamma(n: int, x: Any) -> Any:
    """The n-th derivative, in float64 and rounded once; infinite at 0, -1, ..."""
    import torch

    if n == 0:
        return torch.special.digamma(x)
    kept = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    sign = 1 if n % 2 else -1
    factorial = math.gamma(n + 1) if n < 170 else math.inf
    wide = x.to(torch.float64)
    return (sign * factorial * _zeta(n + 1, wide)).to(kept)


@decomposes("prims.zeta.default")
def _hurwitz_zeta(s: Any, x: Any) -> Any:
    """In float64 and rounded once; s and x have one dtype. As PyTorch's: infinite for s = 1 and at
    x = 0, -1, ...; NaN for a smaller s and for powers of negative numbers that are not whole. Where
    PyTorch has NaN since terms vanish, of large s or infinite x, it is the limit."""
    import torch

    wide = s.to(torch.float64)
    at = x.to(torch.float64)
    known = wide > 1
    whole = wide == wide.floor()
    pole = at == at.floor()
    found = _zeta(torch.where(known, wide, 2.0), at)
    found = torch.where((at > 0) | whole, found, torch.nan)
    found = torch.where((at <= 0) & pole, torch.inf, found)
    found = torch.where(known, found, torch.nan)
    found = torch.where(wide == 1, torch.inf, found)
    return found.to(x.dtype)


def _zeta(s: Any, x: Any) -> Any:
    """The sum of `(x + k) ** -s` over k = 0, 1, ...; s: a number, or a tensor of float64.

    Of negative numbers: the sum over all integers k, which is the same for `x` and its fraction,
    less that over the negative ones.
    """
    import torch

    fraction = x - x.floor()
    odd = 1 - 2 * (s % 2)
    every = _of_positive(s, fraction) + odd * _of_positive(s, 1 - fraction)
    below = every - odd * _of_positive(s, torch.where(x > 0, 1.0, 1 - x))
    return torch.where(x > 0, _of_positive(s, torch.where(x > 0, x, 1.0)), below)


def _of_positive(s: Any, x: Any) -> Any:
    import torch

    found = sum((x + k).pow(-s) for k in range(_TERMS))
    end = x + _TERMS
    term = end.pow(-s)
    found = found + end.pow(1 - s) / (s - 1) + term / 2
    rising = 1.0 * s
    for k, share in enumerate(_CORRECTIONS):
        term = term / end
        step = share * rising * term
        found = found + torch.where(term == 0, 0.0, step)  # the factor may be infinite
        term = term / end
        rising = rising * (s + 2 * k + 1) * (s + 2 * k + 2)
    return found
