"""The machine as a target: models are quantized for it, its kernels are streams of instructions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.base.dtypes import int32
from tilewright.base.errors import InputError, TilewrightError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.targets.base import (
    AdaptedGraph,
    Artifact,
    Calibration,
    Placement,
    Target,
    TargetSettings,
)
from tilewright.targets.permitted import Permissions
from tilewright.targets.vta.compiled import VtaProgram
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.intrinsics import INP, WGT, elements
from tilewright.targets.vta.quantize import Quantize
from tilewright.targets.vta.schedules import PUBLISHED, scheduled, sketches

_THREADS = 2  # virtual threads of a default schedule


class Vta(Target):
    """The accelerator, of any configuration. threads: virtual threads of its schedules."""

    __slots__ = ("config", "threads")
    name: str = "vta"
    device: ClassVar[str] = "vta"
    programs: ClassVar[str] = "kernel"
    quantizes: ClassVar[bool] = True

    def __init__(self, config: VTAConfig = DEFAULT, threads: int = _THREADS) -> None:
        self.config = config
        self.threads = threads

    @property
    def key(self) -> str:
        """The configuration, and how it is scheduled for."""
        return f"vta {self.config} threads={self.threads}"

    def adapt(
        self, graph: Graph, calibration: Calibration, fallback: FallbackProvider
    ) -> AdaptedGraph:
        """The graph quantized: convolutions, products and pooling as layers of the machine.

        Raises InputError without samples or scales, and for scales of another model.
        """
        report: list[Placement] = []
        scales: dict[str, float] = {}
        made = Quantize(
            config=self.config,
            calibration=calibration,
            fallback=fallback,
            report=report,
            scales=scales,
        ).run(graph)
        return AdaptedGraph(made, report, scales)

    def refuses(self, computations: Sequence[Computation]) -> str:
        """Why a group is not a layer of the machine, by its reducers and dtypes."""
        of = elements(self.config)
        data = of[INP].dtype
        taken = (data, of[WGT].dtype, int32)
        result = computations[-1].outputs[0].tensor
        if all(c.reducer is None for c in computations):
            return "it has no reduction whose result is made bytes of"
        if len(computations) < 2:
            return "it has no reduction whose result is made bytes of"
        if result.dtype is not data:
            return f"{result.name} is {result.dtype}, and the machine makes {data}"
        own = {o.tensor for c in computations for o in c.outputs}
        for b in (b for c in computations for b in c.inputs if b not in own):
            if b.dtype not in taken:
                return f"{b.name} is {b.dtype}, and the machine takes {data}"
        return ""

    def default_schedule(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
        packed: tuple[int, ...] = (),
    ) -> Schedule:
        """The blocks that a model of the machine expects to be the fastest.

        Raises CompileError if it is not a layer, or does not fit the memories.
        """
        return scheduled(kernel, computations, self.threads, PUBLISHED, self.config)

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """The blocks as parameters: those that fit the memories, of as many threads."""
        return sketches(kernel, computations, self.threads, PUBLISHED, self.config)

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """A stream of instructions with its DRAM.

        permitted is unused here: the simulators check every access themselves. Raises
        CompileError for operations that the machine cannot do.
        """
        return Artifact(symbol, VtaProgram(kernel, self.config).code.to_bytes())

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """The listing, for `asm`."""
        if kind != "asm":
            return super().text(kernel, symbol, kind)
        return VtaProgram(kernel, self.config).text

    def simulated(self, kernel: Kernel) -> float:
        """Cycles by the published timing; they do not depend on data."""
        zeros = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.params]
        return VtaProgram(kernel, self.config).time(zeros, PUBLISHED).cycles

    def load(self, program: Any) -> VtaProgram:
        """A kernel as a stream of instructions, to be run on arrays.

        Raises CompileError if the machine cannot run it: for statements that are not an instruction
        (TW-VTA-SCALAR), buffers that do not fit (TW-VTA-MEMORY), and other reasons.
        """
        return VtaProgram(program, self.config)


def make(settings: TargetSettings) -> Vta:
    """The target; the description has fields of VTAConfig. Raises InputError for others."""
    if settings.description is None:
        return Vta()
    try:
        return Vta(VTAConfig(**settings.description))
    except (TypeError, TilewrightError) as error:
        raise InputError(f"it describes no VTA: {error}") from None
