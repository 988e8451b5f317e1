"""Quantization scales from samples.

A tensor `t` is stored as `round(t / unit)` in a byte, or in fewer bits if the machine uses fewer.
With `shift`, units are powers of two, so that a layer's sums become bytes by a shift; with
`multiplier` they use the full range of a byte, and sums are also multiplied (`requantize.py`); with
`channel`, weights additionally have a unit for each channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.quantize.affine import (
    most,
    power_of_two,
    symmetric,
    whole_byte,
)
from tilewright.graph.quantize.calibrate import interpreter, observe, with_outputs
from tilewright.graph.quantize.observers import observer_of

Array = NDArray[Any]
Bytes = NDArray[np.int8]
Unit = Callable[[float], float]


def quantize(a: Array, unit: float | NDArray[np.float64], bits: int = 8) -> Bytes:
    """`round(a / unit)`, halves up, clipped to `bits` bits; unit: one, or an array of them."""
    scaled = np.floor(np.asarray(a, np.float64) / unit + 0.5)
    return np.clip(scaled, -most(bits) - 1, most(bits)).astype(np.int8)


def dequantize(a: Bytes, unit: float) -> NDArray[np.float32]:
    """The numbers that bytes represent."""
    return (a.astype(np.float64) * unit).astype(np.float32)


UNITS: Mapping[str, Callable[[float, int], float]] = {
    "shift": power_of_two,
    "multiplier": whole_byte,
    "channel": whole_byte,
}


def unit_by(name: str, bits: int = 8) -> Unit:
    """The choice of units for this many bits. Raises InputError for an unknown name."""
    if name not in UNITS:
        raise InputError(
            f"sums do not become bytes by {name!r}", hint=f"one of {', '.join(UNITS)}"
        )
    unit = UNITS[name]
    return lambda largest: unit(largest, bits)


def units_of_weights(w: Array, by: str, bits: int = 8) -> NDArray[np.float64]:
    """A unit for each channel of weights [O, ...], which are all the same but by `channel`."""
    largest = np.abs(w).reshape(len(w), -1).max(axis=1, initial=0)
    whole = largest.max(initial=0)
    # Results share a unit: of a channel that is smaller still, next to nothing is in their bytes.
    least = whole / 256 if by == "channel" else whole
    return np.array([UNITS[by](float(n), bits) for n in np.maximum(largest, least)])


def calibrate(
    graph: Graph,
    samples: Iterable[Mapping[str, Array]],
    unit: Unit,
    fallback: FallbackProvider,
    method: str = "min-max",
) -> dict[Value, float]:
    """The unit of every float32 tensor that is computed, from what samples make of it.

    method: how ranges are chosen, a name in `observers.METHODS`. What is not finite does not
    count. Raises InputError where there are no samples, and for an unknown method.
    """
    make = observer_of(method)
    values = [v for v in computed(graph) if v.dtype is float32 and v.kind == "tensor"]
    run = interpreter(fallback)(with_outputs(graph, values))
    seen = observe(graph, samples, values, lambda v: make(), run)
    return {v: unit(o.range(symmetric).largest) for v, o in seen.items()}


def known(graph: Graph, scales: Mapping[str, float], by: str) -> dict[Value, float]:
    """Units by the names of tensors.

    Raises InputError for names that the graph has not, and for units that are not positive numbers
    or, by shift, no powers of two.
    """
    found = {v: float(scales[v.name]) for v in computed(graph) if v.name in scales}
    missing = [v.name for v in graph.inputs if v.dtype is float32 and v not in found]
    if len(found) != len(scales) or missing:
        raise InputError(
            "the scales are of another model",
            where=f"graph {graph.name}",
            hint="quantize this one",
        )
    for v, u in found.items():
        if not (math.isfinite(u) and u > 0) or (
            by == "shift" and math.frexp(u)[0] != 0.5
        ):
            expected = "a power of two" if by == "shift" else "a positive number"
            message = f"the scale of {v.name} is {u}, expected {expected}"
            raise InputError(message, where=f"graph {graph.name}")
    return found


def computed(graph: Graph) -> list[Value]:
    """The inputs, and all results of operations."""
    return [*graph.inputs, *(v for op in graph.operations for v in op.writes)]
