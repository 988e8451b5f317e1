"""The processor as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import InputError
from tilewright.lift.nodes import Lambda
from tilewright.targets.npu.catalog import MACHINES
from tilewright.targets.npu.listing import show
from tilewright.targets.npu.machine import Machine
from tilewright.targets.npu.mapping import Mapped, map_onto
from tilewright.targets.npu.simulator import run
from tilewright.targets.npu.timing import Timing


class Processor:
    """The machine that programs are mapped onto: `full`, which has all operators."""

    name: ClassVar[str] = "npu"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def load(self, program: Lambda) -> Loaded:
        """The program on this machine. Raises as `map_onto`."""
        return Loaded(map_onto(program, self.machine), self.machine)


class Loaded:
    """A mapped program as a function of its arrays, outputs last and written in place."""

    def __init__(self, mapped: Mapped, machine: Machine) -> None:
        self.mapped = mapped
        self.machine = machine

    @property
    def text(self) -> str:
        """The listing of its instructions."""
        return show(self.mapped.program)

    def __call__(self, arrays: Sequence[Any]) -> Timing:
        """Run it. Raises InputError for a wrong number of arrays, or wrong shapes."""
        code = self.mapped.program
        names = [r.name for r in (*code.inputs, *code.outputs)]
        if len(arrays) != len(names):
            raise InputError(
                f"{len(arrays)} arrays given, {len(names)} expected: {', '.join(names)}",
                where=Processor.name,
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


def make() -> Processor:
    """The processor that the registry hands out."""
    return Processor(MACHINES["full"])
