"""Three methods to choose the factors that move from a layer's data into its weights.

- equalization: the channels of two layers' weights get the same range on both sides of the data
  between them (Nagel et al., Data-free quantization, 2019);
- smoothing: outliers move from the data's channels to the weights (SmoothQuant, Xiao et al.
  2023), s = max|x|^a / max|w|^(1 - a);
- search: s = max|x|^a with the a for which rounded weights minimize the error of the results on the
  data (AWQ, Lin et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.quantize.affine import round_weights
from tilewright.graph.quantize.layers import Layer, find_layers
from tilewright.graph.quantize.migrate import (
    MOST,
    by_input,
    disagreement,
    division,
    migrated,
)
from tilewright.graph.quantize.statistics import columns_of

Array = NDArray[Any]
Groups = Mapping[Value, Sequence[Layer]]
# The factor for the layers that read a tensor; None if there is nothing to move.
Choice = Callable[[Graph, Sequence[Layer]], Array | None]
_SWEEPS = 20  # most sweeps of equalization
_SETTLED = 1e-3  # a smaller change of factors does not justify another sweep
_GRID = 20  # powers to try


def readers_of(layers: Sequence[Layer]) -> dict[Value, list[Layer]]:
    """The layers by the data that they read."""
    found: dict[Value, list[Layer]] = {}
    for layer in layers:
        found.setdefault(layer.data, []).append(layer)
    return found


def move_factors(
    graph: Graph,
    choose: Choice,
) -> tuple[Graph, dict[str, str]]:
    """The graph with a factor moved at the data of each layer that accepts one.

    Also returns, by the names of tensors, why others did not accept one.
    """
    left: dict[str, str] = {}
    for name in [v.name for v in readers_of(find_layers(graph)[0])]:
        layers = find_layers(graph)[0]
        readers = next(r for v, r in readers_of(layers).items() if v.name == name)
        by_op = {layer.op: layer for layer in layers}
        why = disagreement(readers)
        if why:
            left[name] = why
            continue
        factor = choose(graph, readers)
        if factor is None:
            continue
        made = migrated(graph, readers, _bounded(factor), by_op)
        if isinstance(made, str):
            left[name] = made
        else:
            graph = made
    return graph, left


def _bounded(factor: Array) -> Array:
    fine = np.isfinite(factor) & (factor > 0)
    return np.clip(np.where(fine, factor, 1.0), 1 / MOST, MOST)


def input_ranges(
    graph: Graph,
    readers: Sequence[Layer],
) -> Array:
    """The largest magnitude of the weights that multiply each channel of the data; [channels]."""
    found: Any = 0.0
    for layer in readers:
        w = np.abs(graph.constants[layer.weight]).astype(np.float64)
        found = np.maximum(found, _by_data_channel(layer, w))
    return np.asarray(found)


def _by_data_channel(
    layer: Layer,
    w: Array,
) -> Array:
    if layer.group == 1:
        return np.asarray(
            np.moveaxis(w, layer.inputs, 0).reshape(w.shape[layer.inputs], -1).max(1)
        )
    grouped = w.reshape(layer.group, -1, w.shape[1], int(np.prod(w.shape[2:])))
    return np.asarray(grouped.max((1, 3)).reshape(-1))


# ------------------------------------------------------------------------------------ equalization


def equalize(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Sweeps until the factors settle, as each layer's change alters the next one's range."""
    left: dict[str, str] = {}
    for _ in range(_SWEEPS):
        even = _Even()
        graph, left = move_factors(graph, even)
        if even.most < _SETTLED:
            break
    return graph, left


@dataclass
class _Even:
    """Factors that give both sides the geometric mean of their ranges.

    most: the largest logarithm of a factor so far.
    """

    most: float = 0.0

    def __call__(
        self,
        graph: Graph,
        readers: Sequence[Layer],
    ) -> Array | None:
        """sqrt(range before / range after); None if no layer precedes."""
        after = input_ranges(graph, readers)
        by_op = {layer.op: layer for layer in find_layers(graph)[0]}
        found = division(graph, readers, np.ones(after.shape), by_op)
        if found.why:
            return np.ones(after.shape)  # `migrated` reports why
        if found.root is None:
            return None
        source = by_op[found.root]
        before = np.abs(columns_of(source, graph.constants[source.weight])).max(1)
        with np.errstate(all="ignore"):
            factor = np.sqrt(before.astype(np.float64) / after)
        factor = np.where((before > 0) & (after > 0), factor, 1.0)
        self.most = max(self.most, float(np.abs(np.log(factor)).max(initial=0)))
        return factor


# ---------------------------------------------------------------------------- by the data's ranges


def smooth_by(
    largest: Mapping[str, Array],
    strength: float,
) -> Choice:
    """SmoothQuant's factors. largest: magnitudes per channel, by the names of tensors."""

    def choose(
        graph: Graph,
        readers: Sequence[Layer],
    ) -> Array | None:
        seen = largest[readers[0].data.name]
        weights = input_ranges(graph, readers)
        with np.errstate(all="ignore"):
            factor = seen**strength / weights ** (1 - strength)
        return np.where((seen > 0) & (weights > 0), factor, 1.0)

    return choose


def search_by(
    largest: Mapping[str, Array],
    grams: Mapping[str, Array],
) -> Choice:
    """AWQ's factors. grams: X^T X of the layers' data, by the names of tensors."""

    def choose(
        graph: Graph,
        readers: Sequence[Layer],
    ) -> Array | None:
        name = readers[0].data.name
        if name not in grams:
            return None
        seen = largest[name]
        powers = np.linspace(0, 1, _GRID, endpoint=False)
        tried = [_powered(seen, p) for p in powers]
        return min(
            tried, key=lambda s: sum(_lost(graph, r, s, grams[name]) for r in readers)
        )

    return choose


def _powered(
    seen: Array,
    power: float,
) -> Array:
    """seen ** power, scaled so that the factors are spread evenly around 1."""
    positive = seen > 0
    factor = np.where(positive, seen, 1.0) ** power
    if not positive.any():
        return np.ones_like(seen)
    used = factor[positive]
    return np.where(positive, factor / np.sqrt(used.max() * used.min()), 1.0)


def _lost(
    graph: Graph,
    layer: Layer,
    factor: Array,
    gram: Array,
) -> float:
    """The squared error of the results if weights times the factor are rounded."""
    w = graph.constants[layer.weight].astype(np.float64)
    by = by_input(layer, w, factor)
    rounded = round_weights((w * by).astype(np.float32), layer.channels).real / by
    off = columns_of(layer, rounded - w)
    return float(np.einsum("ij,jk,ik->", off, gram, off, optimize=True))
