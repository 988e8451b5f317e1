"""Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.complex_numbers import (
    Complex,
    complex_rule,
    in_pairs,
    in_parts,
)
from tilewright.frontends.torch.aten.rules import AtenCall, positive
from tilewright.graph.nodes import Value


@complex_rule("aten._fft_c2c")
def _fft(c: AtenCall) -> Complex:
    x = in_pairs(c, c["self"])
    axes = c.axes()
    count = math.prod(_extents(c, axes))
    for axis in axes:
        x = _transformed(c, x, axis, inverse=not c["forward"])
    found = _scaled(c, x, count)
    return in_parts(c, found)


@complex_rule("aten._fft_r2c")
def _fft_of_real(c: AtenCall) -> Complex:
    """Transform the last axis first, returning only half of it if the rest is redundant."""
    axes = c.axes()
    count = math.prod(_extents(c, axes))
    x = c.unsqueeze(c.tensor(), -1)
    half = bool(c["onesided"])
    x = _transformed(c, x, axes[-1], onesided=int(half))
    for axis in axes[:-1]:
        x = _transformed(c, x, axis)
    pairs = _scaled(c, x, count)
    return in_parts(c, pairs)


@complex_rule("aten._fft_c2r")
def _fft_to_real(c: AtenCall) -> Value:
    """The other axes first; of the last one, half of the numbers say the others."""
    axes = c.axes()
    size = c["last_dim_size"]
    if isinstance(size, Value):
        raise c.refuse("the number of results is known only at run time")
    count = math.prod(_extents(c, axes[:-1])) * size
    x = in_pairs(c, c["self"])
    for axis in axes[:-1]:
        x = _transformed(c, x, axis, inverse=True)
    last = axes[-1]
    start = c.ints(0), c.ints(size // 2 + 1), c.ints(last)
    half = c.op("Slice", x, *start)
    length = c.value(size, int64)
    where = c.value(last, int64)
    # The graph's transform of halves divides by its length.
    mean = c.op("DFT", half, length, where, inverse=1, onesided=1)
    found = c.op("Mul", mean, c.number(size, mean.dtype))
    return c.squeeze(_scaled(c, found, count), -1)


def _signs(like: Value) -> Any:
    import numpy as np

    assert like.dtype is not None
    return np.asarray([1, -1], like.dtype.numpy)


def _transformed(
    c: AtenCall,
    x: Value,
    axis: int,
    inverse: bool = False,
    onesided: int = 0,
) -> Value:
    """The transform along one axis, with pairs along the last axis; an inverse is not divided.

    An inverse transform is the conjugate of the conjugate's transform: this one is a product with
    a matrix, where the graph's own inverse runs on the host.
    """
    where = c.value(axis, int64)
    if not inverse:
        return c.op("DFT", x, None, where, onesided=onesided)
    signs = c.build.constant(_signs(x))
    conjugate = c.op("Mul", x, signs)
    found = c.op("DFT", conjugate, None, where)
    return c.op("Mul", found, signs)


def _extents(c: AtenCall, axes: list[int]) -> list[int]:
    found = [c.extent(positive(a, c.rank())) for a in axes]
    known = [n for n in found if n is not None]
    if len(known) < len(found):
        raise c.refuse("the number of transformed elements is known only at run time")
    return known


def _scaled(c: AtenCall, x: Value, count: int) -> Value:
    """Normalization by mode: 0 none, 1 the root of the count, 2 the count."""
    powers = {
        0: 0.0,
        1: -0.5,
        2: -1.0,
    }
    factor = float(max(count, 1)) ** powers[int(c["normalization"])]
    if factor == 1:
        return x
    return c.op("Mul", x, c.number(factor, x.dtype))
