"""A model with everything needed to quantize it: ranges from data, and integer weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.passes.simplify import remove_unused
from tilewright.graph.quantize import bias, factors
from tilewright.graph.quantize.affine import (
    AffineQuantization,
    ValueRange,
    Weights,
    round_weights,
)
from tilewright.graph.quantize.calibrate import (
    Run,
    Runner,
    Sample,
    TensorObserver,
    observe,
    with_outputs,
)
from tilewright.graph.quantize.insert import write_qdq
from tilewright.graph.quantize.layers import Layer, SkippedLayer, find_layers
from tilewright.graph.quantize.observers import Observer
from tilewright.graph.quantize.places import QuantizedPlaces, find_places
from tilewright.graph.quantize.recipe import QuantizationRecipe
from tilewright.graph.quantize.rounding import round_by_data
from tilewright.graph.quantize.statistics import (
    Channels,
    CombinedObserver,
    GramMatrix,
    Mean,
)
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A model ready to be quantized, in whole or in part.

    graph: in floats, with factors moved. spans: the range of each tensor that may be quantized.
    weights: of the layers. biases: the corrected ones, of layers in bytes. skipped: operations that
    are not layers. notes: what a method left out, by method and tensor or layer. observed: runs the
    model whose tensors were observed, for all its outputs; None where factors were moved in it.
    """

    graph: Graph
    recipe: QuantizationRecipe
    layers: Sequence[Layer]
    spans: Mapping[Value, ValueRange]
    weights: Mapping[Operation, Weights]
    skipped: Sequence[SkippedLayer]
    notes: Mapping[str, Mapping[str, str]]
    biases: Mapping[Operation, bias.CorrectedBias]
    observed: Run | None = None

    def without(
        self,
        names: Collection[str],
    ) -> Calibrated:
        """The model with the named layers kept in floats, as requested."""
        left = [layer for layer in self.layers if layer.name not in names]
        asked = [SkippedLayer(la.op, _ASKED) for la in self.layers if la.name in names]
        return replace(self, layers=left, skipped=[*self.skipped, *asked])

    def places(
        self,
        keep: Collection[str] = (),
    ) -> QuantizedPlaces:
        """The tensors in bytes if the named layers stay in floats."""
        chosen = [layer for layer in self.layers if layer.name not in keep]
        return find_places(self.graph, chosen, self.spans)

    def affine(
        self,
        places: QuantizedPlaces,
    ) -> dict[Value, AffineQuantization]:
        """The quantization of each tensor in `places`; tied tensors share their joint range."""
        found = {}
        for v, tied in places.tied.items():
            span = self.spans[v]
            for other in tied:
                span = span.with_others(self.spans[other])
            found[v] = self.recipe.quantizer(span)
        return found

    def quantized(
        self,
        keep: Collection[str] = (),
    ) -> Graph:
        """The model in QDQ form; the named layers stay in floats."""
        places = self.places(keep)
        chosen = {la.op: la for la in self.layers if la.name not in keep}
        affine = self.affine(places)
        biases = {b.slot: b.array for op, b in self.biases.items() if op in chosen}
        return write_qdq(self.graph, chosen, places, affine, self.weights, biases)


def calibrated(
    graph: Graph,
    samples: Sequence[Sample],
    recipe: QuantizationRecipe,
    runner: Runner,
    fallback: FallbackProvider | None = None,
) -> Calibrated:
    """Calibrate a model with data. Raises InputError if there are no samples."""
    graph = remove_unused(rewrite(rewrite(graph, NO_OPS), [BATCHNORM]))
    notes: dict[str, Mapping[str, str]] = {}
    if recipe.equalize:
        with events.span("equalize"):
            graph, notes["equalize"] = factors.equalize(graph)
    if recipe.smooth is not None or recipe.search:
        graph = _with_factors(graph, samples, recipe, runner, notes)
    layers, skipped = find_layers(graph)
    seen = _observed(graph, layers, samples, recipe, runner)
    infinite = {v for v, o in seen.observers.items() if not o.finite}
    skipped += [SkippedLayer(la.op, _INFINITE) for la in layers if la.data in infinite]
    layers = [layer for layer in layers if layer.data not in infinite]
    spans = {
        v: o.range(recipe.quantizer)
        for v, o in seen.observers.items()
        if v not in infinite
    }
    weights = _weights(graph, layers, seen)
    same = not notes and all(v in graph.producers for v in graph.outputs)
    biases: Mapping[Operation, bias.CorrectedBias] = {}
    if recipe.correct_bias:
        by_op = {layer.op: layer for layer in layers}
        means = {v: m.means for v, m in seen.means.items()}
        made = bias.corrected(graph, by_op, weights, means, fallback)
        biases, notes["correct_bias"] = made
    return Calibrated(
        graph, recipe, layers, spans, weights, skipped, notes, biases,
        seen.run if same else None,
    )  # fmt: skip


_INFINITE = "its data are not finite"
_ASKED = "it was requested"


@dataclass(frozen=True, eq=False)
class _Seen:
    observers: Mapping[Value, Observer]
    means: Mapping[Value, Mean]
    grams: Mapping[Operation, GramMatrix]
    run: Run


def _observed(
    graph: Graph,
    layers: Sequence[Layer],
    samples: Sequence[Sample],
    recipe: QuantizationRecipe,
    runner: Runner,
) -> _Seen:
    """One pass over the data that collects everything the recipe needs."""
    values = list(find_places(graph, layers).tied)
    observers = {v: recipe.observer() for v in values}
    parts: dict[Value, list[TensorObserver]] = {v: [o] for v, o in observers.items()}
    means: dict[Value, Mean] = {}
    grams: dict[Operation, GramMatrix] = {}
    if recipe.correct_bias:
        means = {layer.data: Mean() for layer in layers}
    if recipe.rounding == "gptq":
        grams = {layer.op: GramMatrix(layer) for layer in layers if layer.group == 1}
    for v, mean in means.items():
        parts[v].append(mean)
    for layer in layers:
        if layer.op in grams:
            parts[layer.data].append(grams[layer.op])
    run = runner(with_outputs(graph, [*values, *graph.outputs]))
    observe(graph, samples, values, lambda v: CombinedObserver(parts[v]), run)
    return _Seen(observers, means, grams, run)


def _with_factors(
    graph: Graph,
    samples: Sequence[Sample],
    recipe: QuantizationRecipe,
    runner: Runner,
    notes: dict[str, Mapping[str, str]],
) -> Graph:
    """The graph after smoothing and after moving the factors that a search found."""
    if recipe.smooth is not None:
        largest, _ = _by_channel(graph, samples, runner)
        choice = factors.smooth_by(largest, recipe.smooth)
        graph, notes["smooth"] = factors.move_factors(graph, choice)
    if recipe.search:
        choice = factors.search_by(*_by_channel(graph, samples, runner, products=True))
        graph, notes["search"] = factors.move_factors(graph, choice)
    return graph


def _by_channel(
    graph: Graph,
    samples: Sequence[Sample],
    runner: Runner,
    products: bool = False,
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """By the names of the layers' data, the largest magnitudes per channel, and X^T X of what
    matrix products read, if `products` asks for it."""
    layers = find_layers(graph)[0]
    ranges = {la.data: Channels(la.data_axis) for la in layers}
    asked = [la for la in layers if products and la.op.qualified != "Conv"]
    grams = {la.data: GramMatrix(la) for la in asked}

    def make(v: Value) -> CombinedObserver:
        return CombinedObserver([ranges[v], grams[v]] if v in grams else [ranges[v]])

    run = runner(with_outputs(graph, list(ranges)))
    observe(graph, samples, list(ranges), make, run)
    largest = {v.name: c.largest for v, c in ranges.items()}
    return largest, {v.name: g.matrix for v, g in grams.items()}


def _weights(
    graph: Graph,
    layers: Sequence[Layer],
    seen: _Seen,
) -> dict[Operation, Weights]:
    found = {}
    with events.span("round", total=len(layers)):
        for layer in layers:
            w = graph.constants[layer.weight]
            gram = seen.grams.get(layer.op)
            if gram is None or not gram.rows:
                found[layer.op] = round_weights(w, layer.channels)
            else:
                found[layer.op] = round_by_data(layer, w, gram.matrix)
    return found
