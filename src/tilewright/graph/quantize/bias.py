"""Correcting biases for the mean error that rounded weights cause.

    E[layer(x, W)] - E[layer(x, W')]  =  layer(E[x], W - W')        as layers are linear

per channel, including padding; the bias absorbs the difference. (Nagel et al. 2019, section 4.2.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.infer import FallbackProvider
from tilewright.graph.interp import run_on
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.quantize.affine import Weights
from tilewright.graph.quantize.layers import Layer
from tilewright.graph.quantize.migrate import Slot

Array = NDArray[Any]


class CorrectedBias(NamedTuple):
    """What a layer's bias is where its weights are rounded. slot: the operand."""

    slot: Slot
    array: Array


def corrected(
    graph: Graph,
    layers: Mapping[Operation, Layer],
    weights: Mapping[Operation, Weights],
    means: Mapping[Value, Sequence[tuple[Array, int]]],
    fallback: FallbackProvider | None,
) -> tuple[dict[Operation, CorrectedBias], dict[str, str]]:
    """Corrected biases by layer, and the layers without a bias, with the reason.

    means: of the layers' data over the samples, with a first axis of 1, and their counts; one for
    each shape of the data.
    """
    found: dict[Operation, CorrectedBias] = {}
    left: dict[str, str] = {}
    for op, layer in layers.items():
        place = bias_slot(graph, layer)
        if place is None:
            left[layer.name] = "it has no bias to correct"
            continue
        owner, n = place
        shift = _shift(graph, layer, weights[op], means[layer.data], fallback)
        v = owner.inputs[n] if n < len(owner.inputs) else None
        old = 0.0 if v is None else graph.constants[v]
        array = np.asarray(old + shift).astype(np.float32)
        found[op] = CorrectedBias(place, array)
    return found, left


def bias_slot(
    graph: Graph,
    layer: Layer,
) -> Slot | None:
    """The operand that is the layer's bias: its own, or that of the sum right after it."""
    many = (layer.weight.extents[layer.channels],)
    if layer.op.qualified in ("Conv", "Gemm"):
        b = layer.bias
        if b is None:
            fits = layer.op.attr("beta", 1.0) == 1.0
        else:
            fits = b in graph.constants and b.extents == many
        return (layer.op, 2) if fits else None
    users = graph.users(layer.result)
    if len(users) != 1 or users[0].qualified != "Add" or layer.result in graph.outputs:
        return None
    for n, v in enumerate(users[0].inputs):
        if v in graph.constants and v is not None and v.extents == many:
            return users[0], n
    return None


def _shift(
    graph: Graph,
    layer: Layer,
    weights: Weights,
    means: Sequence[tuple[Array, int]],
    fallback: FallbackProvider | None,
) -> Array:
    """The error in the mean of each channel."""
    lost = graph.constants[layer.weight].astype(np.float64) - weights.real
    d = lost.astype(np.float32)
    total = np.zeros(weights.scales.shape)
    count = 0
    for mean, samples in means:
        x = mean.astype(np.float32)
        like = replace(layer.data, shape=x.shape), replace(layer.weight, shape=d.shape)
        op = replace(layer.op, inputs=like)
        (found,) = run_on(op, [x, d], fallback)
        axis = layer.data_axis % found.ndim
        others = tuple(n for n in range(found.ndim) if n != axis)
        total += samples * found.sum(others, dtype=np.float64)
        count += samples * (found.size // found.shape[axis])
    return total / max(count, 1)
