"""Models for accelerators: their quantization, placement and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli.options import CommandOptions
from tilewright.cli.output import note, say

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph
    from tilewright.targets.base import Target


def accelerator(options: CommandOptions) -> Target | None:
    """The target, if its device is not the host."""
    if options.target == "cpu":
        return None
    from tilewright.runtime.device import HOST
    from tilewright.targets import registry

    found = registry.target(options.target)
    return None if found.device == HOST else found


def samples(
    options: CommandOptions, feeds: Mapping[str, Any], what: str
) -> dict[str, Any]:
    """The keyword arguments of `driver.compile` that quantize a model.

    feeds: the only sample if no scales are given, which is reported; what: its name there.
    """
    if options.scales is not None:
        return {"scales": options.scales}
    target = accelerator(options)
    if target is None or not target.quantizes:
        return {}
    note(f"scales come from {what} alone; use quantize to compute them from samples")
    return {"samples": [feeds]}


def lines(placements: Iterable[Sequence[str]]) -> list[str]:
    """A line for each `Placement`: what runs where, and how or why."""
    rows = list(placements)
    wide = max((len(device) + 1 for device, *_ in rows), default=0)
    return [
        f"{device:<{max(wide, 5)}}{operators:<14} {tensor:<16} {note}".rstrip()
        for device, operators, tensor, note in rows
    ]


def errors(
    graph: Graph, feeds: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """For each output, the largest difference from the float model, and the largest value."""
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph.interp import evaluate

    real = evaluate(graph, feeds, fallback=OnnxFallback())
    names = [v.name for v in graph.outputs]
    return (
        {n: float(np.abs(outputs[n] - real[n]).max(initial=0)) for n in names},
        {n: float(np.abs(real[n]).max(initial=0)) for n in names},
    )


def show(
    parts: Sequence[str], off: Mapping[str, float], peaks: Mapping[str, float]
) -> None:
    """Print the report and the errors."""
    for line in parts:
        say(line)
    for n, error in off.items():
        say(
            f"{n}: differs from the float model by at most {error:.3g}; peak {peaks[n]:.3g}"
        )
