"""Zero points moved out of products of bytes, so that plain bytes by int8 remain.

    sum (a - p)(b - q)  =  sum a*b  -  p * (sum b - n*q)  -  q * sum a      over n terms

in int32, which wraps around, so both sides are exactly equal. A factor of the other signedness is
converted by adding or subtracting 128, from its zero point, too. Terms that depend only on
constants (the sums of weights) are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, int32, int64, uint8
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment

HALF = 128


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a product of bytes, with its zero point.

    zero: in the tensor's dtype. offset: the zero point as int32; None if it is known to be 0.
    """

    value: Value
    zero: Value
    offset: Value | None


def factor(
    f: Fragment,
    x: Value,
    zero: Value | None,
    dtype: DType | None = None,
) -> Factor:
    """`x - zero` with `x` of `dtype`, uint8 or int8; `x` and `zero` have one of these dtypes.

    None: the dtype that `x` has.
    """
    dtype = dtype or x.dtype
    assert dtype is not None
    if zero is None:
        zero = f.constant(0, x.dtype)
    value, point = (v if v.dtype is dtype else moved(f, v, dtype) for v in (x, zero))
    known = f.known.get(zero)
    low = 0 if x.dtype is dtype else HALF if x.dtype is uint8 else -HALF
    if known is not None and (known == low).all():
        return Factor(value, point, None)
    return Factor(
        value,
        point,
        f.cast(point, int32),
    )


def moved(f: Fragment, x: Value, dtype: DType) -> Value:
    """x + 128 of an int8, x - 128 of a uint8: flips only the first bit."""
    bits = f.cast(x, uint8)
    return f.op(
        "Cast",
        f.op("BitwiseXor", bits, f.constant(HALF, uint8)),
        to=number_of(dtype.name),
    )


def corrected(
    f: Fragment,
    product: Value,
    a: Factor,
    b: Factor,
    count: int,
    sums: tuple[Callable[[], Value], Callable[[], Value]],
    bias: Value | None = None,
) -> Value:
    """The product of `a` and `b` with zero points, from the one without them, plus a bias.

    count: terms of each sum. sums: of a and of b over the terms, int32, computed only if needed;
    offsets, sums and bias broadcast with the product.
    """
    if a.offset is not None:
        total = f.term(sums[1]())
        if b.offset is not None:
            total = total - f.term(b.offset) * count
        added = -(f.term(a.offset) * total)
        if bias is None:
            bias = added.value
        else:
            bias = f.op("Add", bias, added.value)
    y = f.term(product)
    if bias is not None:
        y = y + bias
    if b.offset is not None:
        y = y - f.term(b.offset) * sums[0]()
    return y.value


def total(
    f: Fragment,
    x: Value,
    axes: list[int],
    keep: bool,
) -> Value:
    """The int32 sum of bytes over some axes."""
    wide = f.cast(x, int32)
    return f.op(
        "ReduceSum",
        wide,
        f.constant(axes, int64),
        keepdims=int(keep),
    )


def shaped(
    f: Fragment,
    x: Value,
    shape: Sequence[int],
) -> Value:
    """A parameter in another shape; a constant stays a constant."""
    known = f.known.get(x)
    if known is not None:
        return f.constant(np.reshape(known, shape))
    return f.op("Reshape", x, f.constant(shape, int64))
