"""The processor as a target: whole models and Lift programs are mapped onto it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import InputError
from tilewright.base.text import plural
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation
from tilewright.targets.base import (
    AdaptedGraph,
    Calibration,
    Placement,
    Target,
    TargetSettings,
)
from tilewright.targets.npu.description import machine as described
from tilewright.targets.npu.listing import show
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.mapping import MappedNpuProgram, map_onto
from tilewright.targets.npu.simulator import run
from tilewright.targets.npu.timing import NpuTiming
from tilewright.targets.npu.whole import AsProgram, LazyNpuModel, whole_of


class Npu(Target):
    """A machine that programs are mapped onto: `full`, which has all operators, by default."""

    __slots__ = ("machine",)
    name: str = "npu"
    device: ClassVar[str] = "npu"
    programs: ClassVar[str] = "lift"

    def __init__(self, machine: NpuMachine) -> None:
        self.machine = machine

    @property
    def key(self) -> str:
        """The machine."""
        return f"npu {self.machine}"

    def adapt(
        self, graph: Graph, calibration: Calibration, fallback: FallbackProvider
    ) -> AdaptedGraph:
        """The graph as one program.

        Raises UnsupportedError listing the operators that it cannot do, NPUError where something
        does not fit.
        """
        made = AsProgram(self.machine).run(graph)
        (op,) = made.operations
        whole = whole_of(op)
        assert whole is not None
        mapped = whole.mapped
        name = ", ".join(v.name for v in made.outputs)
        note = f"{mapped.summary}; {mapped.timing}"
        return AdaptedGraph(
            made,
            [
                Placement(
                    device=self.device,
                    operators=str(whole),
                    tensor=name,
                    note=note,
                )
            ],
        )

    def operator(self, operation: Operation) -> LazyNpuModel | None:
        """The program for a result of `adapt`."""
        return whole_of(operation)

    def load(self, program: Any) -> LoadedNpuProgram:
        """A Lift program on this machine. Raises as `map_onto`."""
        return LoadedNpuProgram(map_onto(program, self.machine), self.machine)


class LoadedNpuProgram:
    """A mapped program as a function of its arrays, outputs last and written in place."""

    def __init__(self, mapped: MappedNpuProgram, machine: NpuMachine) -> None:
        self.mapped = mapped
        self.machine = machine

    @property
    def text(self) -> str:
        """The listing of its instructions."""
        return show(self.mapped.program)

    def __call__(self, arrays: Sequence[Any]) -> NpuTiming:
        """Run it. Raises InputError for a wrong number of arrays, or wrong shapes."""
        code = self.mapped.program
        names = [r.name for r in (*code.inputs, *code.outputs)]
        if len(arrays) != len(names):
            raise InputError(
                f"{plural(len(arrays), 'array')} given, {len(names)} expected: {', '.join(names)}",
                where=Npu.name,
                hint="inputs come first, outputs last",
            )
        count = len(code.inputs)
        given = [np.reshape(a, r.shape) if np.size(a) == 1 else np.asarray(a)
                 for a, r in zip(arrays, code.inputs, strict=False)]  # fmt: skip
        for to, value in zip(
            arrays[count:], run(code, self.machine, given), strict=True
        ):
            to[...] = np.reshape(value, np.shape(to))
        return self.mapped.timing


def make(settings: TargetSettings) -> Npu:
    """The target; its machine is from the catalog or from a file. Raises InputError."""
    return Npu(described(settings.machine or "full"))
