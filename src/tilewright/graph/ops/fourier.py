"""DFT and STFT as products with matrices computed at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.transforms import MATRIX_ELEMENTS, Split, Transform


def _axis(op: OpCall) -> int:
    """The transformed axis; the last one holds the real and imaginary parts."""
    if op.version >= 20:
        given = op.ints(2)
        axis = -2 if given is None else given[0]
    else:
        axis = op.attr("axis", 1)
    return op.axis(axis, op.rank(0))


def _lengths(op: OpCall) -> tuple[int, int]:
    """The length of the transform, and the number of results along the axis."""
    given = op.ints(1)
    if given is None:
        n = op.shape(0)[_axis(op)]
    else:
        n = given[0]
    onesided = bool(op.attr("onesided", 0))
    if n < 1:
        raise op.error(f"dft_length is {n}")
    if onesided and op.attr("inverse", 0):
        return (n if given is not None else 2 * (n - 1)), 0
    return n, n // 2 + 1 if onesided else n


def _dft_type(op: OpCall) -> Sequence[Type]:
    shape = list(op.shape(0))
    axis = _axis(op)
    if axis == len(shape) - 1 or shape[-1] not in (1, 2):
        raise op.error(f"{shape} does not end in an axis of 1 or 2 parts")
    length, count = _lengths(op)
    shape[axis], shape[-1] = count or length, 2 if count else 1
    return op.result(shape)


def _dft(op: OpCall, g: Fragment) -> list[Value] | None:
    onesided = bool(op.attr("onesided", 0))
    inverse = bool(op.attr("inverse", 0))
    if inverse and not onesided:
        return None  # ONNX's tests require zeros to the accuracy of their own transform
    axis = _axis(op)
    rank = op.rank(0)
    length, _ = _lengths(op)
    wanted = Transform(op.shape(0)[axis], op.shape(0)[-1], length, onesided, inverse)
    if op.size(0) == 0:
        return None
    last = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    back = [last.index(a) for a in range(rank)]
    x = g.cast(op.value(0), wide_dtype(op.dtype(0)))
    x = g.transpose(x, *last)
    found = _transformed(x, wanted, g)
    if found is None:
        return None
    return [g.cast(g.transpose(found, *back), op.dtype(0))]


def _transformed(x: Value, wanted: Transform, g: Fragment) -> Value | None:
    """The transform of the last two axes of `x`; None if the matrices are too large."""
    split = wanted.split()
    if split is not None and split.elements() <= MATRIX_ELEMENTS:
        return _in_two(x, split, g)
    if wanted.extent * wanted.parts * wanted.length * 2 > MATRIX_ELEMENTS:
        return None
    lead = x.extents[:-2]
    flat = g.reshape(x, *lead, wanted.extent * wanted.parts)
    found = g.op("MatMul", flat, g.constant(wanted.matrix(), x.dtype))
    return g.reshape(found, *lead, wanted.results, wanted.result_parts)


def _in_two(x: Value, split: Split, g: Fragment) -> Value:
    """As `_transformed`, by two products."""
    t = split.whole
    lead = x.extents[:-2]
    count = prod(lead)
    x = g.reshape(x, count, t.extent, t.parts)
    x = _resized(x, t.extent, t.read, g)
    x = _resized(x, t.read, split.rows * split.inner, g)
    x = g.reshape(x, count, split.rows, split.inner, t.parts)
    x = g.transpose(x, 2, 0, 1, 3)
    x = g.reshape(x, split.inner, count, split.rows * t.parts)
    x = g.op("MatMul", x, g.constant(split.first(), x.dtype))
    x = g.reshape(x, split.inner, count, split.outer, 2)
    x = g.transpose(x, 1, 2, 0, 3)
    x = g.reshape(x, count, split.outer, split.inner * 2)
    x = g.op("MatMul", x, g.constant(split.second(), x.dtype))
    x = g.reshape(x, count, split.outer, split.groups, t.result_parts)
    x = g.transpose(x, 0, 2, 1, 3)
    x = g.reshape(x, count, split.groups * split.outer, t.result_parts)
    x = _resized(x, split.groups * split.outer, t.results, g)
    return g.reshape(x, *lead, t.results, t.result_parts)


def _resized(x: Value, extent: int, wanted: int, g: Fragment) -> Value:
    """`x` with the axis before its last cut, or filled with zeros."""
    if wanted < extent:
        return g.op("Slice", x, g.ints(0), g.ints(wanted), g.ints(-2))
    if wanted > extent:
        return g.op("Pad", x, g.ints(0, wanted - extent), None, g.ints(-2))
    return x


for _since, _until in ((17, 19), (20, None)):
    register(
        OpDef(
            "DFT",
            _dft_type,
            since=_since,
            until=_until,
            decompose=_dft,
            by_value=(1, 2) if _since == 20 else (1,),
        )
    )


def _frames(op: OpCall) -> tuple[int, int, int]:
    """The step, length and number of frames."""
    step = op.int_scalar(1)
    if op.has(3):
        length = op.int_scalar(3)
    elif op.has(2):
        length = op.shape(2)[0]
    else:
        raise op.error("neither window nor frame_length is given")
    if step < 1 or not 1 <= length <= op.shape(0)[1]:
        raise op.error(
            f"frames of {length} in steps of {step} do not fit {list(op.shape(0))}"
        )
    return step, length, (op.shape(0)[1] - length) // step + 1


def _stft_type(op: OpCall) -> Sequence[Type]:
    _, length, count = _frames(op)
    if op.attr("onesided", 1):
        bins = length // 2 + 1
    else:
        bins = length
    return op.result((op.shape(0)[0], count, bins, 2))


def _stft(op: OpCall, g: Fragment) -> list[Value] | None:
    step, length, count = _frames(op)
    shape = op.shape(0)
    parts = shape[2] if len(shape) > 2 else 1
    x = g.cast(op.value(0), wide_dtype(op.dtype(0)))
    x = g.reshape(x, *shape[:2], parts)
    places = step * np.arange(count)[:, None] + np.arange(length)
    frames = g.op("Gather", x, g.constant(places), axis=1)
    if op.has(2):
        window = g.cast(op.value(2), wide_dtype(op.dtype(0)))
        column = g.unsqueeze(window, 1)
        frames = g.op("Mul", frames, column)
    wanted = Transform(length, parts, length, bool(op.attr("onesided", 1)))
    found = _transformed(frames, wanted, g)
    return None if found is None else [g.cast(found, op.dtype(0))]


register(
    OpDef(
        "STFT",
        _stft_type,
        since=17,
        decompose=_stft,
        by_value=(1, 3),
    )
)
