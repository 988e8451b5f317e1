"""Choosing the layers to keep in floats so that a model's loss stays within a limit.

A model with switches computes each layer in bytes or floats, depending on an input, so one
compilation serves all measurements. Each layer is quantized alone and measured on data not used for
scales; the fewest of the most expensive layers that suffice go back to floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import bool_
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.quantize.calibrate import Run, Runner, Sample
from tilewright.graph.quantize.insert import QdqWriter
from tilewright.graph.quantize.metrics import Agreement, Outputs, compare
from tilewright.graph.quantize.model import Calibrated

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class SensitivityResult:
    """The result: layers by their individual cost, highest first, and those kept in floats.

    costs: 1 - cosine with the float model of each layer quantized alone.
    """

    costs: dict[str, float]
    keep: tuple[str, ...]
    agreement: Agreement


def switched(model: Calibrated) -> tuple[Graph, dict[str, Value]]:
    """The model with an input per layer, by its name, that says whether it computes in bytes."""
    out = QdqWriter(model.graph)
    affine = model.affine(model.places())
    layers = {layer.op: layer for layer in model.layers}
    owners = {model.biases[op].slot: op for op in layers if op in model.biases}
    switches: dict[str, Value] = {}
    for op in model.graph.operations:
        layer = layers.get(op)
        inputs = list(op.inputs)
        if layer is not None:
            if layer.name not in switches:  # layers with the same name share a switch
                name = out.name(f"{layer.name}/in bytes")
                switches[layer.name] = Value(name, bool_, ())
            switch = switches[layer.name]
            whole = out.rounded(layer.data, affine[layer.data])
            w = model.weights[op]
            weight = out.known(layer.weight, w.whole, w.scales, w.axis)
            pairs = ((layer.data, whole), (layer.weight, weight))
            for n, (real, rounded) in enumerate(pairs):
                stem = f"{layer.name}/operand"
                inputs[n] = out.op("Where", stem, real, switch, rounded, real)
        for n in range(len(inputs) + 1):
            if (op, n) in owners:
                owner = owners[op, n]
                switch = switches[layers[owner].name]
                array = model.biases[owner].array
                inputs[n : n + 1] = [_switched_bias(out, op, n, array, switch)]
        changed = tuple(inputs) != op.inputs
        out.operations.append(replace(op, inputs=tuple(inputs)) if changed else op)
    graph = out.done()
    inputs_ = (*graph.inputs, *switches.values())
    return replace(graph, inputs=inputs_), switches


def _switched_bias(
    out: QdqWriter,
    op: Operation,
    n: int,
    array: Array,
    switch: Value,
) -> Value:
    """The corrected bias, or the one that the model has; zeros where it has none."""
    new = out.bias(op, n, array)
    old = op.inputs[n] if n < len(op.inputs) else None
    if old is None:
        old = out.constant(f"{op.label}/bias", np.zeros_like(array))
    return out.op("Where", f"{op.label}/bias", new, switch, new, old)


@dataclass(eq=False)
class _Trials:
    """Runs the model with some layers in bytes and compares it with the float model's outputs."""

    run: Run
    switches: dict[str, Value]
    samples: Sequence[Sample]
    reference: Sequence[Outputs]
    metric: str

    def with_bytes_in(
        self,
        names: Sequence[str],
    ) -> Agreement:
        """The agreement if these layers are quantized."""
        state = {v.name: np.array(name in names) for name, v in self.switches.items()}
        found = (self.run({**sample, **state}) for sample in self.samples)
        return compare(zip(self.reference, found, strict=True), self.metric)


def choose(
    model: Calibrated,
    samples: Sequence[Sample],
    reference: Sequence[Outputs],
    limit: float,
    runner: Runner,
    metric: str = "both",
) -> SensitivityResult:
    """The layers to keep in floats so that `Agreement.drop` is at most the limit.

    samples: held out, not used for ranges. reference: the float model's outputs for them. metric:
    as for `compare`. With all layers in floats nothing is lost, so a choice always exists.
    """
    agreement = _of_qdq(model, (), samples, reference, runner, metric)
    if agreement.drop <= limit:
        return SensitivityResult({}, (), agreement)
    graph, switches = switched(model)
    trials = _Trials(runner(graph), switches, samples, reference, metric)
    costs = {}
    with events.span("sensitivity", total=len(switches)):
        for name in switches:
            with events.span("layer", name=name):
                costs[name] = 1 - trials.with_bytes_in([name]).cosine
    order = sorted(costs, key=lambda name: -costs[name])
    count = _fewest(trials, order, limit)
    while True:
        keep = tuple(order[:count])
        agreement = _of_qdq(model, keep, samples, reference, runner, metric)
        if agreement.drop <= limit or count == len(order):
            break
        # The written model may differ a little from the one tried, in sums of bytes and places.
        count = min(len(order), count + max(1, count // 4))
    return SensitivityResult({name: costs[name] for name in order}, keep, agreement)


def _fewest(
    trials: _Trials,
    order: Sequence[str],
    limit: float,
) -> int:
    """The fewest first layers to keep, by bisection; assumes that keeping more loses less."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if trials.with_bytes_in(order[middle:]).drop <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def _of_qdq(
    model: Calibrated,
    keep: Sequence[str],
    samples: Sequence[Sample],
    reference: Sequence[Outputs],
    runner: Runner,
    metric: str,
) -> Agreement:
    """The agreement of the model to be written."""
    run = runner(model.quantized(keep))
    return compare(zip(reference, map(run, samples), strict=True), metric)
