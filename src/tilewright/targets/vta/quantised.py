"""Float layers as layers of bytes: scales are powers of two, taken from samples.

A tensor `t` is kept as `round(t * 2^e)`, with the largest `e` for which its largest sample fits a
byte. A layer's sums then have the exponent of its input plus that of its weights, and what takes
them to the exponent of its output is a shift.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.targets.vta.intrinsics import BLOCK
from tilewright.targets.vta.layers import (
    Convolution,
    Layer,
    Requantise,
    convolution,
    depthwise,
    pooling,
)
from tilewright.targets.vta.partition import MATRIX, POOLING, Part

Array = NDArray[Any]
_SUMS = (1 << 31) - 1
_MOST_SHIFT = 31


def quantise(a: Array, exponent: int) -> NDArray[np.int8]:
    """`round(a * 2^exponent)`, halves up, clipped to bytes."""
    scaled = np.floor(np.asarray(a, np.float64) * 2.0**exponent + 0.5)
    return np.clip(scaled, -128, 127).astype(np.int8)


def dequantise(a: NDArray[np.int8], exponent: int) -> NDArray[np.float32]:
    """The numbers that bytes stand for, exactly."""
    return (a.astype(np.float64) * 2.0**-exponent).astype(np.float32)


def exponent_of(largest: float) -> int:
    """The exponent that makes the most of a byte."""
    return math.floor(math.log2(127 / largest)) if largest > 0 else 0


def calibrate(graph: Graph, samples: Iterable[Mapping[str, Array]]) -> dict[Value, int]:
    """The exponent of every float tensor that is computed, from what samples make of it.

    Raises InputError where there are no samples.
    """
    largest: dict[str, float] = {}
    for sample in samples:
        found = evaluate(graph, sample, keep=lambda v: v not in graph.constants)
        for name, array in found.items():
            if np.issubdtype(array.dtype, np.floating) and array.size:
                largest[name] = max(largest.get(name, 0.0), float(np.abs(array).max()))
    if not largest:
        raise InputError("there are no samples", where=f"graph {graph.name}")
    values = [*graph.inputs, *(v for op in graph.operations for v in op.writes)]
    return {v: exponent_of(largest[v.name]) for v in values if v.name in largest}


def known(graph: Graph, scales: Mapping[str, int]) -> dict[Value, int]:
    """Exponents by the names of tensors. Raises InputError for names that the graph has not."""
    values = [*graph.inputs, *(v for op in graph.operations for v in op.writes)]
    found = {v: scales[v.name] for v in values if v.name in scales}
    missing = [v.name for v in graph.inputs if v.dtype is float32 and v not in found]
    if len(found) != len(scales) or missing:
        raise InputError(
            "the scales are of another model",
            where=f"graph {graph.name}",
            hint="quantize this one",
        )
    return found


@dataclass(frozen=True, eq=False, slots=True)
class Product:
    """A part in integers: its layer, and the constants that it takes, in the machine's layout.

    window: its shape (rows of a matrix are points of an image). channels: those of the result
    that are no filling. shift: from the sums to the result.
    """

    layer: Layer
    window: Convolution
    constants: tuple[Array, ...]
    channels: int
    shift: int = 0

    def operands(self, x: NDArray[np.int8], residual: NDArray[np.int8] | None) -> list[Array]:
        """The layer's inputs, for bytes [C, H, W]."""
        given: list[Array] = [tiled(x), *self.constants]
        return given if residual is None else [*given, tiled(residual)]


def tiled(x: NDArray[np.int8]) -> NDArray[np.int8]:
    """[C, H, W] in the machine's layout, channels filled up with zeros."""
    c, h, w = x.shape
    blocks = -(-c // BLOCK)
    full = np.zeros((blocks * BLOCK, h, w), np.int8)
    full[:c] = x
    return np.ascontiguousarray(full.reshape(blocks, BLOCK, h, w).transpose(0, 2, 3, 1))


def plain(y: NDArray[np.int8], channels: int) -> NDArray[np.int8]:
    """The inverse of `tiled`."""
    blocks, h, w, _ = y.shape
    return y.transpose(0, 3, 1, 2).reshape(blocks * BLOCK, h, w)[:channels]


def product(
    graph: Graph, part: Part, shape: Sequence[int], exponents: dict[Value, int]
) -> Product | str:
    """A part in integers, for data of a shape [C, H, W]; or why it cannot be done in them.

    exponents: of all tensors. That of the result becomes lower where sums have fewer bits, and is
    that of the data for pooling.
    """
    op = part.main
    assert op is not None
    data = op.inputs[0]
    assert data is not None
    if op.op_type == POOLING:
        exponents[part.result] = exponents[data]
        window = _window(op, op.attributes["kernel_shape"], (shape[0], *shape))
        return Product(pooling(window), window, (), shape[0])
    w = _weights_of(graph, op)
    depth = op.attributes.get("group", 1) > 1
    e_w = exponent_of(float(np.abs(w).max()))
    e_sum = exponents[data] + e_w
    e_out = exponents[part.result] = min(exponents[part.result], e_sum)
    e_more = e_sum - exponents[part.residual] if part.residual is not None else None
    shift = e_sum - e_out
    if shift > _MOST_SHIFT or (e_more is not None and not 0 <= e_more < _MOST_SHIFT - 7):
        return f"shifts by {shift} and {e_more} bits are out of range"
    whole = quantise(w, e_w)
    half = 1 << (shift - 1) if shift else 0
    added = np.floor(_bias_of(graph, op, len(w)) * 2.0**e_sum + 0.5) + half
    bound = 128 * np.abs(whole.astype(np.int64)).sum((1, 2, 3)) + np.abs(added)
    bound = bound + (128 << e_more if e_more is not None else 0)
    if bound.max() > _SUMS:
        return f"its sums can reach {int(bound.max())}, beyond 32 bits"
    window = _window(op, w.shape[2:], (len(w), *shape))
    to_bytes = Requantise(shift, part.relu, True, e_more)
    made = depthwise(window, to_bytes) if depth else convolution(window, to_bytes)
    laid = _channel_weights(whole, window) if depth else _weights(whole, window)
    return Product(made, window, (laid, _bias(added, window)), len(w), shift)


def _weights_of(graph: Graph, op: Operation) -> Array:
    """The weights of a convolution, or of a product as one: [O, I, KH, KW]."""
    v = op.inputs[1]
    assert v is not None
    w = np.asarray(graph.constants[v], np.float64)
    if op.op_type in MATRIX:
        w = (w if op.attributes.get("transB", 0) else w.T)[:, :, None, None]
    return w


def _bias_of(graph: Graph, op: Operation, count: int) -> Array:
    v = op.inputs[2] if len(op.inputs) > 2 else None
    bias = 0.0 if v is None else np.asarray(graph.constants[v], np.float64).reshape(-1)
    return np.broadcast_to(bias, count)


def _window(op: Operation, kernel: Sequence[int], shape: Sequence[int]) -> Convolution:
    """The shape of a convolution or pooling of [O, C, H, W] outputs and inputs."""
    outputs, inputs = (-(-n // BLOCK) * BLOCK for n in shape[:2])
    a = op.attributes
    (kh, kw), (sh, sw) = kernel, a.get("strides") or (1, 1)
    ph, pw = (a.get("pads") or (0, 0))[:2]
    return Convolution(inputs, outputs, (shape[2], shape[3]), (kh, kw), (sh, sw), (ph, pw))


def _channel_weights(w: NDArray[np.int8], c: Convolution) -> NDArray[np.int8]:
    full = np.zeros((c.outputs, *c.kernel), np.int8)
    full[: len(w)] = w[:, 0]
    return np.ascontiguousarray(full.reshape(-1, BLOCK, *c.kernel).transpose(0, 2, 3, 1))


def _weights(w: NDArray[np.int8], c: Convolution) -> NDArray[np.int8]:
    full = np.zeros((c.outputs, c.inputs, *c.kernel), np.int8)
    full[: w.shape[0], : w.shape[1]] = w
    tiles = full.reshape(c.outputs // BLOCK, BLOCK, c.inputs // BLOCK, BLOCK, *c.kernel)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 5, 1, 3))


def _bias(b: Array, c: Convolution) -> NDArray[np.int32]:
    full = np.zeros(c.outputs, np.int32)
    full[: len(b)] = b
    return full.reshape(-1, BLOCK)
