"""Statistics of a layer's data that weight methods need, gathered like an observer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.ops.windows import windows
from tilewright.graph.quantize.calibrate import TensorObserver
from tilewright.graph.quantize.layers import Layer

Array = NDArray[Any]
MOST_ROWS = 4096  # most rows of one array for a Gram matrix, evenly spaced


@dataclass(eq=False)
class Channels:
    """The largest magnitude of each channel along an axis; float64 [channels]."""

    axis: int
    largest: Array = field(default_factory=lambda: np.zeros(1))

    def see(
        self,
        array: Array,
    ) -> None:
        """Count an array."""
        others = tuple(n for n in range(array.ndim) if n != self.axis % array.ndim)
        found = np.abs(array).max(others, initial=0).astype(np.float64)
        self.largest = np.maximum(self.largest, found)


@dataclass(eq=False)
class Mean:
    """The means over the first axis of all arrays of one shape; float64, with that axis as 1.

    A vector counts as one row. sums: the sum and the number of rows, by a row's shape.
    """

    sums: dict[tuple[int, ...], tuple[Array, int]] = field(default_factory=dict)

    def see(
        self,
        array: Array,
    ) -> None:
        """Count an array."""
        rows = np.atleast_2d(array)
        total, count = self.sums.get(rows.shape[1:], (0.0, 0))
        total = total + rows.sum(0, keepdims=True, dtype=np.float64)
        self.sums[rows.shape[1:]] = np.asarray(total), count + len(rows)

    @property
    def means(self) -> list[tuple[Array, int]]:
        """Each mean with its number of rows."""
        found = ((total, count) for total, count in self.sums.values() if count)
        return [(total / count, count) for total, count in found]


@dataclass(eq=False)
class GramMatrix:
    """X^T X of the rows X that a layer's weights multiply; float64 [terms, terms].

    A convolution's rows are its windows. Of an array with many rows, evenly spaced ones count.
    """

    layer: Layer
    matrix: Any = 0.0
    rows: int = 0

    def see(
        self,
        array: Array,
    ) -> None:
        """Count an array."""
        x = rows_of(self.layer, array)
        x = x[:: -(-len(x) // MOST_ROWS)] if len(x) else x
        x = x.astype(np.float64)
        self.matrix = self.matrix + x.T @ x
        self.rows += len(x)


@dataclass(eq=False)
class CombinedObserver:
    """Several observers of one tensor."""

    parts: Sequence[TensorObserver]

    def see(
        self,
        array: Array,
    ) -> None:
        """Count an array in each."""
        for part in self.parts:
            part.see(array)


def rows_of(
    layer: Layer,
    x: Array,
) -> Array:
    """The rows [rows, terms] whose products with the weights' columns are the results."""
    if layer.op.qualified != "Conv":
        return x.reshape(-1, x.shape[-1])
    kernel = layer.weight.extents[2:]
    shape = windows(OpCall(layer.op), x.shape[2:], kernel)
    edges = tuple(zip(shape.begin, shape.end, strict=True))
    padded = np.pad(x, ((0, 0), (0, 0), *edges))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, shape.dilations, strict=True))
    spatial = tuple(range(2, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, spatial)
    every = [slice(None, None, s) for s in shape.strides]
    inside = [slice(None, None, d) for d in shape.dilations]
    seen = seen[(slice(None), slice(None), *every, *inside)]
    outputs = tuple(range(2, 2 + len(kernel)))
    within = tuple(range(2 + len(kernel), seen.ndim))
    taken = seen.transpose(0, *outputs, 1, *within)
    return taken.reshape(-1, x.shape[1] * int(np.prod(kernel)))


def columns_of(
    layer: Layer,
    w: Array,
) -> Array:
    """Weights as [results, terms], in the order of `rows_of`'s terms."""
    return np.moveaxis(w, layer.channels, 0).reshape(w.shape[layer.channels], -1)


def weights_of(
    layer: Layer,
    columns: Array,
    like: Array,
) -> Array:
    """The inverse of `columns_of`: weights in the layer's own form."""
    first = np.moveaxis(like, layer.channels, 0)
    return np.moveaxis(columns.reshape(first.shape), 0, layer.channels)
