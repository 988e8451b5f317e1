"""The smallest part of a wrong model that still fails, as an ONNX file with its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.base.files import write_whole
from tilewright.cli import diverge
from tilewright.frontends.onnx.export import to_model
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.minimal import cut, minimal, shortest_end

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


def smallest(
    graph: Graph,
    feeds: Mapping[str, diverge.Array],
    native: diverge.Native,
    found: diverge.Divergence | None,
    tolerance: float | None,
) -> tuple[Graph, dict[str, diverge.Array]]:
    """A minimal part of the graph whose compiled outputs differ from float64.

    found: the first operator that differs; its result is the output of the part. The inputs of the
    part have their values in the whole graph.
    """

    def fails(part: Graph, data: Mapping[str, Any]) -> bool:
        if not part.operations:
            return False
        try:
            pairs = zip(part.outputs, native(part, data), diverge.reference(part, data))
            return any(
                not diverge.gap(a, b) <= diverge.tolerance(v.dtype, tolerance)
                for v, a, b in pairs
            )
        except TilewrightError:
            return False

    fallback = OnnxFallback()
    start = graph
    if found is not None and fails(ending := cut(graph, (), (found.value,)), feeds):
        start = ending
    given = {v.name: feeds[v.name] for v in start.inputs}
    return minimal(*shortest_end(start, given, fails, fallback), fails, fallback)


def write(graph: Graph, feeds: Mapping[str, diverge.Array], path: Path) -> Path:
    """Write the model to `path` and its inputs to an .npz file next to it; return that path."""
    data = to_model(graph).SerializeToString()
    write_whole(path, lambda file: file.write(data))
    beside = path.with_suffix(".npz")
    # np.savez would interpret a tensor called "file" as its own argument.
    arrays: dict[str, Any] = {name: np.asarray(a) for name, a in feeds.items()}
    write_whole(beside, lambda file: np.savez(file, **arrays))
    return beside
