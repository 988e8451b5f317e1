"""Quantizing a model: calibrate, choose the layers, write, measure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.base.errors import ArgumentError
from tilewright.base.text import did_you_mean
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.quantize.calibrate import Runner, Sample
from tilewright.graph.quantize.data import held_out
from tilewright.graph.quantize.metrics import (
    check_metric,
    compare,
    of_outputs,
)
from tilewright.graph.quantize.model import Calibrated, calibrated
from tilewright.graph.quantize.recipe import QuantizationRecipe
from tilewright.graph.quantize.report import LayerReport, QuantizationReport, Quantized
from tilewright.graph.quantize.sensitivity import SensitivityResult, choose


def quantize(
    graph: Graph,
    samples: Sequence[Sample],
    recipe: QuantizationRecipe,
    runner: Runner,
    *,
    max_drop: float | None = None,
    metric: str = "both",
    keep: Collection[str] = (),
    fallback: FallbackProvider | None = None,
) -> Quantized:
    """The graph with its layers in QDQ form.

    samples: as from `data.samples_of`; of several, the last quarter is held out to measure the
    agreement. runner: makes a function that runs a graph. max_drop: the largest acceptable loss of
    top-1 agreement and cosine; fragile layers stay in floats to meet it. keep: layers to keep in
    floats in any case. metric: "cosine" if outputs are not class scores. Raises InputError for an
    unknown layer or metric.
    """
    check_metric(metric)
    for_ranges, for_measuring = held_out(samples)
    model = calibrated(graph, for_ranges, recipe, runner, fallback)
    _check_names(keep, model)
    model = model.without(keep)
    run = model.observed or runner(graph)
    names = [v.name for v in graph.outputs]
    reference = [of_outputs(names, run(sample)) for sample in for_measuring]
    if max_drop is None:
        found = map(runner(model.quantized()), for_measuring)
        agreement = compare(zip(reference, found, strict=True), metric)
        chosen = SensitivityResult({}, (), agreement)
    else:
        chosen = choose(model, for_measuring, reference, max_drop, runner, metric)
    layers = [*_layers(model, chosen), *_skipped(model)]
    apart = 0 if for_measuring is for_ranges else len(for_measuring)
    report = QuantizationReport(
        layers, chosen.agreement, len(for_ranges), apart, model.notes
    )
    return Quantized(model.quantized(chosen.keep), report)


def _check_names(
    keep: Collection[str],
    model: Calibrated,
) -> None:
    names = [layer.name for layer in model.layers]
    for name in keep:
        if name not in names:
            raise ArgumentError(
                f"there is no layer {name!r} to keep", hint=did_you_mean(name, names)
            )


_FRAGILE = "it exceeds the acceptable loss"


def _layers(
    model: Calibrated,
    chosen: SensitivityResult,
) -> list[LayerReport]:
    costs: Mapping[str, float] = chosen.costs
    return [
        LayerReport(
            layer.name,
            layer.op.op_type,
            layer.name not in chosen.keep,
            _FRAGILE if layer.name in chosen.keep else "",
            costs.get(layer.name),
        )
        for layer in model.layers
    ]


def _skipped(model: Calibrated) -> list[LayerReport]:
    return [LayerReport(s.op.label, s.op.op_type, False, s.why) for s in model.skipped]
