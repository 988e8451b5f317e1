"""DFT and STFT as products with the matrix of the transform, computed at compile time.

A transform is linear in the (real, imaginary) pairs of its axis, so padding, cropping, inversion,
scaling and one-sided forms all fit into one matrix, which is found by transforming the unit
vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

MATRIX_ELEMENTS = 1 << 22  # above this size a fast transform on the host is faster


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


def transform(
    extent: int,
    parts: int,
    length: int,
    onesided: bool = False,
    inverse: bool = False,
) -> Array:
    """The transform of a row of parts as a matrix: float64[extent * parts, results * (1 or 2)]."""
    units = np.eye(extent * parts).reshape(-1, extent, parts)
    signal = units[..., 0] + (1j * units[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        found = np.fft.irfft(signal, length)[..., None]
    else:
        full = (np.fft.ifft if inverse else np.fft.fft)(signal, length)
        kept = full[:, : length // 2 + 1] if onesided else full
        found = np.stack([kept.real, kept.imag], -1)
    return found.reshape(extent * parts, -1)


def _dft(op: OpCall, g: Fragment) -> list[Value] | None:
    onesided = bool(op.attr("onesided", 0))
    inverse = bool(op.attr("inverse", 0))
    if inverse and not onesided:
        return None  # ONNX's tests require zeros to the accuracy of their own transform
    axis = _axis(op)
    rank = op.rank(0)
    length, _ = _lengths(op)
    extent = op.shape(0)[axis]
    parts = op.shape(0)[-1]
    if extent * parts * length * 2 > MATRIX_ELEMENTS or op.size(0) == 0:
        return None
    matrix = transform(extent, parts, length, onesided, inverse)
    last = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    back = [last.index(a) for a in range(rank)]
    x = _cast(op.value(0), wide_dtype(op.dtype(0)).name, g)
    x = g.transpose(x, *last)
    found = _product(x, matrix, g, parts=1 if inverse else 2)
    found = g.transpose(found, *back)
    return [_cast(found, op.dtype(0).name, g)]


def _cast(v: Value, dtype: str, g: Fragment) -> Value:
    same = v.dtype is not None and v.dtype.name == dtype
    if same:
        return v
    return g.op("Cast", v, to=number_of(dtype))


def _product(
    x: Value,
    matrix: Array,
    g: Fragment,
    parts: int,
) -> Value:
    """The last two axes of `x`, flattened, times the matrix; the result again in `parts`."""
    lead = x.extents[:-2]
    terms, results = matrix.shape
    flat = g.reshape(x, *lead, terms)
    found = g.op("MatMul", flat, g.constant(matrix, x.dtype))
    return g.reshape(found, *lead, results // parts, parts)


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
    if length * length * parts * 2 > MATRIX_ELEMENTS:
        return None
    work = wide_dtype(op.dtype(0)).name
    x = _cast(op.value(0), work, g)
    x = g.reshape(x, *shape[:2], parts)
    places = step * np.arange(count)[:, None] + np.arange(length)
    frames = g.op("Gather", x, g.constant(places), axis=1)
    if op.has(2):
        window = _cast(op.value(2), work, g)
        column = g.unsqueeze(window, 1)
        frames = g.op("Mul", frames, column)
    matrix = transform(length, parts, length, bool(op.attr("onesided", 1)))
    found = _product(frames, matrix, g, parts=2)
    return [_cast(found, op.dtype(0).name, g)]


register(
    OpDef(
        "STFT",
        _stft_type,
        since=17,
        decompose=_stft,
        by_value=(1, 3),
    )
)
