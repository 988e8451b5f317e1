"""MelWeightMatrix: triangular filters over the bins of a spectrum, computed at compile time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.graph.nodes import Value
from tilewright.graph.ops.casts import dtype_attribute
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register


def weights(
    bands: int,
    length: int,
    rate: int,
    low: float,
    high: float,
) -> Array:
    """The weight of each of length // 2 + 1 bins in each band, in float64.

    low, high: the edges in hertz. rate: in samples per second.
    """
    first, last = (2595 * np.log10(1 + hertz / 700) for hertz in (low, high))
    mel = first + np.arange(bands + 2) * (last - first) / (bands + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    places = ((length + 1) * hertz // rate).astype(np.int64)
    left = places[:-2]
    center = places[1:-1]
    right = places[2:]
    bins = np.arange(length // 2 + 1)[:, None]
    rising = (bins - left) / np.maximum(center - left, 1)
    falling = (right - bins) / np.maximum(right - center, 1)
    at_peak = (bins == center) & (center == left)
    going_up = (bins >= left) & (bins <= center) & (center > left)
    going_down = (bins >= center) & (bins < right)
    found = np.where(at_peak, 1.0, 0.0)
    found = np.where(going_up, rising, found)
    return np.where(going_down, falling, found)


def _type(op: OpCall) -> Sequence[Type]:
    bands, length = (op.int_scalar(n) for n in (0, 1))
    if bands < 1 or length < 1:
        raise op.error(f"{bands} bands of a transform of length {length}")
    return [(dtype_attribute(op, "output_datatype", float32), (length // 2 + 1, bands))]


def _matrix(op: OpCall, f: Fragment) -> list[Value]:
    bands, length, rate, low, high = (
        op.need(n).reshape(-1)[0].item() for n in range(5)
    )
    ((dtype, _),) = _type(op)
    op.table(10 * bands * (length // 2 + 1), "its table of weights")
    return [f.constant(weights(bands, length, rate, low, high), dtype)]


register(
    OpDef(
        "MelWeightMatrix", _type, since=17, decompose=_matrix, by_value=(0, 1, 2, 3, 4)
    )
)
