"""Models quantized for VTA: on the machine, and all of them compiled for the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx.parser
from numpy.typing import NDArray
from onnx import numpy_helper

import tilewright as tw
from tilewright.driver.options import Options
from tilewright.driver.steps import build
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph
from tilewright.graph.specialize import specialize
from tilewright.runtime.executable import Executable
from tilewright.targets.base import Calibration, Placement
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.target import Vta

Inputs = Mapping[str, NDArray]


class Network:
    """A float model in bytes; called, it runs on the simulated machine."""

    def __init__(
        self,
        graph: Graph,
        samples: Sequence[Inputs],
        scales: Mapping[str, float] | None = None,
        by: str = "shift",
        threads: int = 2,
        config: VTAConfig | None = None,
    ) -> None:
        target = Vta(config or VTAConfig(), threads)
        if samples and not all(v.static for v in graph.inputs):
            shapes = {v.name: samples[0][v.name].shape for v in graph.inputs}
            graph = specialize(graph, shapes=shapes, fallback=OnnxFallback())
        adapted = target.adapt(graph, Calibration(samples, scales, by), OnnxFallback())
        assert adapted.scales is not None
        self.scales = adapted.scales
        self.integers = adapted.graph
        given: dict[str, Any] = {"samples": samples, "by": by}
        if scales is not None:
            given = {"scales": {"scales": dict(scales), "by": by}}
        self.exe = Executable(build(graph, Options(target="vta", **given), target))

    def __call__(self, inputs: Inputs) -> Sequence[NDArray]:
        return _listed(self.exe(dict(inputs)))

    def on_cpu(self, inputs: Inputs) -> Sequence[NDArray]:
        """The same integers by the layers' formulas, which the CPU target compiles."""
        return _listed(tw.compile(self.integers)(dict(inputs)))

    @property
    def saved(self) -> dict[str, Any]:
        """Its scales, as the `quantize` command writes them."""
        return {"by": "shift", "scales": dict(self.scales)}

    @property
    def placements(self) -> list[Placement]:
        """What runs where, and how or why."""
        return [Placement(*p) for p in self.exe.placements]

    @property
    def why(self) -> list[str]:
        """Why each part is on the host; empty for those of the machine."""
        return ["" if p.device == "vta" else p.note for p in self.placements]


def _listed(found: Any) -> Sequence[NDArray]:
    return found if isinstance(found, tuple) else (found,)


def bound_to(graph_text: str, **weights: NDArray) -> Graph:
    """A graph of ONNX text, with values for the names that it leaves open."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> {graph_text}"""
    )
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(model)
