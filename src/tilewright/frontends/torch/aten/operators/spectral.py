"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.complex_numbers import (
    Complex,
    complex_rule,
    in_pairs,
    in_parts,
)
from tilewright.frontends.torch.aten.rules import AtenCall
from tilewright.graph.nodes import Value


@complex_rule("aten._fft_c2c")
def _fft(c: AtenCall) -> Complex:
    x = in_pairs(c, c["self"])
    axes = c.axes()
    counts = _extents(c, x, axes)
    for axis in axes:
        x = _transformed(c, x, axis, inverse=not c["forward"])
    return in_parts(c, _scaled(c, x, counts))


@complex_rule("aten._fft_r2c")
def _fft_of_real(c: AtenCall) -> Complex:
    """Transform the last axis first, returning only half of it if the rest is redundant."""
    axes = c.axes()
    counts = _extents(c, c.tensor(), axes)
    x = c.unsqueeze(c.tensor(), -1)
    half = bool(c["onesided"])
    x = _transformed(c, x, axes[-1], onesided=int(half))
    for axis in axes[:-1]:
        x = _transformed(c, x, axis)
    return in_parts(c, _scaled(c, x, counts))


@complex_rule("aten._fft_c2r")
def _fft_to_real(c: AtenCall) -> Value:
    """The other axes first; of the last one, half of the numbers say the others."""
    axes = c.axes()
    size = c["last_dim_size"]
    x = in_pairs(c, c["self"])
    counts = [*_extents(c, x, axes[:-1]), size]
    for axis in axes[:-1]:
        x = _transformed(c, x, axis, inverse=True)
    last = axes[-1]
    length = c.value(size, int64)
    read = c.op("Add", c.op("Div", length, c.number(2, int64)), c.number(1, int64))
    half = c.op("Slice", x, c.ints(0), c.sizes([read]), c.ints(last))
    where = c.value(last, int64)
    # The graph's transform of halves divides by its length.
    mean = c.op("DFT", half, length, where, inverse=1, onesided=1)
    found = c.op("Mul", mean, c.value(size, mean.dtype))
    return c.squeeze(_scaled(c, found, counts), -1)


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


def _extents(c: AtenCall, x: Value, axes: Sequence[int]) -> list[int | Value]:
    """The extents of these axes of `x`: numbers, or what is found at run time."""
    known = [(a, c.extent(a)) for a in axes]
    return [c.op("Shape", x, start=a, end=a + 1) if n is None else n for a, n in known]


def _scaled(c: AtenCall, x: Value, counts: Sequence[int | Value]) -> Value:
    """Normalization by mode: 0 none, 1 the root of the count, 2 the count."""
    powers = {
        0: 0.0,
        1: -0.5,
        2: -1.0,
    }
    power = powers[int(c["normalization"])]
    numbers = [n for n in counts if isinstance(n, int)]
    factor = float(max(math.prod(numbers), 1)) ** power
    if factor != 1:
        x = c.op("Mul", x, c.number(factor, x.dtype))
    open_counts = [n for n in counts if isinstance(n, Value) and power]
    for n in open_counts:
        factor_of_n = c.op("Pow", c.value(n, x.dtype), c.number(power, x.dtype))
        x = c.op("Mul", x, factor_of_n)
    return x
