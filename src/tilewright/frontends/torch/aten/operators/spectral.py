"""Arithmetic of complex tensors, and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from tilewright.base.dtypes import DType, float32, float64, int64
from tilewright.frontends.torch.aten.complex_numbers import Complex, complex_rule
from tilewright.frontends.torch.aten.rules import Call, positive
from tilewright.graph.nodes import Value
from tilewright.graph.ops.casts import number_of


def _zeros(c: Call, like: Value) -> Value:
    """Zeros in a tensor's shape, whatever it holds."""
    return c.op(
        "Expand",
        c.number(
            0,
            like.dtype,
        ),
        c.op(
            "Shape",
            like,
        ),
    )


def _as_complex(c: Call, x: Any, part: DType) -> Complex:
    """An operand, a complex tensor, a real one, or a number, with parts of that type."""
    if isinstance(x, Complex):
        return Complex(
            c.cast(x.real, part),
            c.cast(x.imag, part),
        )
    if isinstance(x, Value):
        real = c.cast(x, part)
        return Complex(
            real,
            _zeros(c, real),
        )
    number = complex(x)
    return Complex(
        c.number(number.real, part),
        c.number(number.imag, part),
    )


def _operands(c: Call) -> tuple[Complex, Complex]:
    """Both with parts of the result's type: a real operand may be wider than a complex one."""
    part = _part_of(c)
    return _as_complex(c, c["self"], part), _as_complex(c, c["other"], part)


def _part_of(c: Call) -> DType:
    """The type of the parts of a complex result."""
    import torch

    parts = {torch.complex64: float32, torch.complex128: float64}
    if c.result.dtype not in parts:
        raise c.refuse(f"its result is {c.result.dtype}")
    return parts[c.result.dtype]


@complex_rule("aten._to_copy", "aten.to", "prims.convert_element_type")
def _converted(c: Call) -> Complex | Value:
    """To complex with nothing beside the real part; to a real type the real part alone."""
    x = c["self"] if c.has("self") else c["a"]
    if not c.result.dtype.is_complex:
        return c.cast(x.real, c.dtype)
    dtype = _part_of(c)
    if isinstance(x, Complex):
        return Complex(
            c.cast(x.real, dtype),
            c.cast(x.imag, dtype),
        )
    real = c.cast(x, dtype)
    return Complex(
        real,
        _zeros(c, real),
    )


@complex_rule("aten.complex")
def _joined(c: Call) -> Complex:
    real, imag = c.tensor("real"), c.tensor("imag")
    zero_real, zero_imag = _zeros(c, real), _zeros(c, imag)
    # Each part is broadcast to the shape of both; adding zeros would lose the sign of one.
    shape = c.op(
        "Shape",
        c.op(
            "Add",
            zero_real,
            zero_imag,
        ),
    )
    return Complex(
        c.op(
            "Expand",
            real,
            shape,
        ),
        c.op(
            "Expand",
            imag,
            shape,
        ),
    )


@complex_rule("aten.polar")
def _polar(c: Call) -> Complex:
    size, angle = c.tensor("abs"), c.tensor("angle")
    parts = (
        c.op(
            name,
            angle,
        )
        for name in ("Cos", "Sin")
    )
    real, imag = (
        c.op(
            "Mul",
            size,
            part,
        )
        for part in parts
    )
    return Complex(
        real,
        imag,
    )


@complex_rule("aten.view_as_complex")
def _paired(c: Call) -> Complex:
    parts = c.build.ops(
        "Split",
        c.tensor(),
        count=2,
        axis=-1,
        num_outputs=2,
    )
    real, imag = (
        c.op(
            "Squeeze",
            p,
            c.ints(-1),
        )
        for p in parts
    )
    return Complex(
        real,
        imag,
    )


@complex_rule("aten.view_as_real")
def _as_pairs(c: Call) -> Value:
    return _pairs(c, c["self"])


def _pairs(c: Call, x: Complex) -> Value:
    parts = [
        c.op(
            "Unsqueeze",
            p,
            c.ints(-1),
        )
        for p in (x.real, x.imag)
    ]
    return c.op(
        "Concat",
        *parts,
        axis=-1,
    )


@complex_rule("aten.add", "aten.sub")
def _sum(c: Call) -> Complex:
    a, b = _operands(c)
    if c["alpha"] not in (None, 1):
        raise c.refuse("one of its complex operands is scaled")
    op_type = "Add" if ".add." in f"{c.name}." else "Sub"
    return Complex(
        c.op(
            op_type,
            a.real,
            b.real,
        ),
        c.op(
            op_type,
            a.imag,
            b.imag,
        ),
    )


@complex_rule("aten.mul")
def _product(c: Call) -> Complex:
    a, b = _operands(c)

    def mul(x: Value, y: Value) -> Value:
        return c.op(
            "Mul",
            x,
            y,
        )

    real = c.op(
        "Sub",
        mul(a.real, b.real),
        mul(a.imag, b.imag),
    )
    return Complex(
        real,
        c.op(
            "Add",
            mul(a.real, b.imag),
            mul(a.imag, b.real),
        ),
    )


@complex_rule("aten.neg")
def _negated(c: Call) -> Complex:
    x = c["self"]
    return Complex(
        c.op(
            "Neg",
            x.real,
        ),
        c.op(
            "Neg",
            x.imag,
        ),
    )


@complex_rule("aten._conj", "aten._conj_physical", "aten.conj_physical")
def _conjugated(c: Call) -> Complex:
    return Complex(
        c["self"].real,
        c.op(
            "Neg",
            c["self"].imag,
        ),
    )


@complex_rule("aten.resolve_conj", "aten.resolve_neg")
def _resolved(c: Call) -> Complex:
    found: Complex = c["self"]
    return found


@complex_rule("aten.real")
def _real(c: Call) -> Value:
    found: Value = c["self"].real
    return found


@complex_rule("aten.imag")
def _imaginary(c: Call) -> Value:
    found: Value = c["self"].imag
    return found


@complex_rule("aten.abs")
def _size(c: Call) -> Value:
    """By the larger part, so that no square of it overflows."""
    pairs = _pairs(c, c["self"])
    sizes = c.op(
        "Abs",
        pairs,
    )
    most = c.op(
        "ReduceMax",
        sizes,
        c.ints(-1),
        keepdims=1,
    )
    zero, one = (
        c.number(
            0,
            pairs.dtype,
        ),
        c.number(
            1,
            pairs.dtype,
        ),
    )
    divisor = c.op(
        "Where",
        c.op(
            "Equal",
            most,
            zero,
        ),
        one,
        most,
    )
    shares = c.op(
        "ReduceL2",
        c.op(
            "Div",
            pairs,
            divisor,
        ),
        c.ints(-1),
        keepdims=0,
    )
    found = c.op(
        "Mul",
        shares,
        c.op(
            "Squeeze",
            divisor,
            c.ints(-1),
        ),
    )
    # Of each part: with an infinite one the size is infinite, whatever the other one is.
    ends = c.op(
        "Cast",
        c.op(
            "IsInf",
            pairs,
        ),
        to=number_of("int32"),
    )
    infinite = c.op(
        "Cast",
        c.op(
            "ReduceMax",
            ends,
            c.ints(-1),
            keepdims=0,
        ),
        to=number_of("bool"),
    )
    return c.op(
        "Where",
        infinite,
        c.number(
            math.inf,
            pairs.dtype,
        ),
        found,
    )


# -- Fourier transforms


@complex_rule("aten._fft_c2c")
def _fft(c: Call) -> Complex:
    x, axes = _pairs(c, c["self"]), c.axes()
    count = math.prod(_extents(c, axes))
    for axis in axes:
        x = _transformed(
            c,
            x,
            axis,
            inverse=not c["forward"],
        )
    found = _scaled(
        c,
        x,
        count,
        inverse=not c["forward"],
    )
    return _parts(c, found)


@complex_rule("aten._fft_r2c")
def _fft_of_real(c: Call) -> Complex:
    """The last of its axes first, of which half is given where the rest says nothing new."""
    axes = c.axes()
    count = math.prod(_extents(c, axes))
    x = c.op(
        "Unsqueeze",
        c.tensor(),
        c.ints(-1),
    )
    half = bool(c["onesided"])
    x = _transformed(
        c,
        x,
        axes[-1],
        onesided=int(half),
    )
    for axis in axes[:-1]:
        x = _transformed(
            c,
            x,
            axis,
        )
    return _parts(
        c,
        _scaled(
            c,
            x,
            count,
        ),
    )


@complex_rule("aten._fft_c2r")
def _fft_to_real(c: Call) -> Value:
    """The other axes first; the last one's left out half is the conjugate of the half there."""
    axes, size = c.axes(), int(c["last_dim_size"])
    count = math.prod(_extents(c, axes[:-1])) * size
    x = _pairs(c, c["self"])
    for axis in axes[:-1]:
        x = _transformed(
            c,
            x,
            axis,
            inverse=True,
        )
    last = axes[-1]
    start = c.ints(0), c.ints(size // 2 + 1), c.ints(last)
    half = c.op(
        "Slice",
        x,
        *start,
    )
    rest = size - (size // 2 + 1)
    if rest > 0:
        # Elements rest, rest - 1, ..., 1 of it.
        bounds = c.ints(rest), c.ints(0), c.ints(last), c.ints(-1)
        other = c.op(
            "Slice",
            half,
            *bounds,
        )
        signs = c.build.constant(_signs(half))
        half = c.op(
            "Concat",
            half,
            c.op(
                "Mul",
                other,
                signs,
            ),
            axis=last,
        )
    found = _transformed(
        c,
        half,
        last,
        inverse=True,
    )
    return _parts(
        c,
        _scaled(
            c,
            found,
            count,
            inverse=True,
        ),
    ).real


def _signs(like: Value) -> Any:
    import numpy as np

    assert like.dtype is not None
    return np.asarray([1, -1], like.dtype.numpy)


def _transformed(
    c: Call, x: Value, axis: int, inverse: bool = False, onesided: int = 0
) -> Value:
    """The transform along one axis; pairs are the last axis."""
    where = c.value(axis, int64)
    return c.op(
        "DFT",
        x,
        None,
        where,
        inverse=int(inverse),
        onesided=onesided,
    )


def _extents(c: Call, axes: list[int]) -> list[int]:
    found = [c.extent(positive(a, c.rank())) for a in axes]
    known = [n for n in found if n is not None]
    if len(known) < len(found):
        raise c.refuse("a call only knows how many elements it transforms")
    return known


def _scaled(c: Call, x: Value, count: int, inverse: bool = False) -> Value:
    """By what was asked: 0 nothing, 1 the root of the count, 2 the count.

    The inverse transform of the graph divides by the count already.
    """
    powers = {0: 0.0, 1: -0.5, 2: -1.0}
    factor = float(max(count, 1)) ** (powers[int(c["normalization"])] + int(inverse))
    return (
        x
        if factor == 1
        else c.op(
            "Mul",
            x,
            c.number(
                factor,
                x.dtype,
            ),
        )
    )


def _parts(c: Call, pairs: Value) -> Complex:
    parts = c.build.ops(
        "Split",
        pairs,
        count=2,
        axis=-1,
        num_outputs=2,
    )
    real, imag = (
        c.op(
            "Squeeze",
            p,
            c.ints(-1),
        )
        for p in parts
    )
    return Complex(
        real,
        imag,
    )
