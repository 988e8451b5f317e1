"""Floats by their bits: the next one, mantissa and exponent."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.nextafter.default")
def _nextafter(x: Any, towards: Any) -> Any:
    """The bits of a float, as an integer, count the floats from zero outwards."""
    import torch

    x, towards = torch.broadcast_tensors(x, towards)
    integer = _integer(x.dtype)
    outwards = (towards > x) == (x > 0)
    bits = x.view(integer)
    stepped = torch.where(outwards, bits + 1, bits - 1).view(x.dtype)
    least = torch.ones_like(x, dtype=integer).view(x.dtype)
    moved = torch.where(x == 0, torch.copysign(least, towards), stepped)
    kept = torch.where(x == towards, towards, moved)
    return torch.where(x.isnan() | towards.isnan(), math.nan, kept)


@decomposes("aten.frexp.Tensor")
def _frexp(x: Any) -> Any:
    """The exponent field of a float's bits; subnormal ones are scaled to be normal first.

    Zeros, infinities and NaN are their own mantissas, with exponent 0.
    """
    import torch

    if x.dtype in (torch.float16, torch.bfloat16):
        mantissa, exponent = _frexp(x.float())
        return mantissa.to(x.dtype), exponent
    about = torch.finfo(x.dtype)
    digits = round(-math.log2(about.eps))
    field = (1 << (about.bits - 1 - digits)) - 1
    half = field // 2 - 1  # the field of floats between 0.5 and 1
    small = x.abs() < about.smallest_normal
    scaled = torch.where(small, x * 2.0 ** (digits + 1), x)
    bits = scaled.view(_integer(x.dtype))
    exponent = ((bits >> digits) & field) - half
    exponent = torch.where(small, exponent - (digits + 1), exponent)
    fraction = bits & ~(field << digits)
    mantissa = (fraction | (half << digits)).view(x.dtype)
    whole = x.isfinite() & (x != 0)
    mantissa = torch.where(whole, mantissa, x)
    exponent = torch.where(whole, exponent, 0)
    return mantissa, exponent.int()


def _integer(dtype: Any) -> Any:
    """The signed integers that have as many bits as the float type."""
    import torch

    return {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
