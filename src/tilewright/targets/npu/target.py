"""The processor as others find it by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import InputError
from tilewright.notation.lift.nodes import Lambda
from tilewright.targets.npu.catalogue import MACHINES
from tilewright.targets.npu.listing import show
from tilewright.targets.npu.machine import Machine
from tilewright.targets.npu.mapping import map_onto
from tilewright.targets.npu.simulator import run
from tilewright.targets.npu.timing import Timing


class Processor:
    """The machine that programs are mapped onto: `full`, which has all operators."""

    name: ClassVar[str] = "npu"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def load(self, program: Lambda) -> Callable[[Sequence[Any]], Timing]:
        """The program as a function of its arrays, outputs last and written in place."""
        mapped = map_onto(program, self.machine)
        code = mapped.program
        names = [r.name for r in (*code.inputs, *code.outputs)]

        def call(arrays: Sequence[Any]) -> Timing:
            if len(arrays) != len(names):
                raise InputError(
                    f"{len(arrays)} arrays given, {len(names)} expected: {', '.join(names)}",
                    where=self.name,
                    hint="inputs come first, outputs last",
                )
            count = len(code.inputs)
            given = [np.reshape(a, r.shape) if np.size(a) == 1 else np.asarray(a)
                     for a, r in zip(arrays, code.inputs, strict=False)]  # fmt: skip
            outputs = run(code, self.machine, given)
            for to, value in zip(arrays[count:], outputs, strict=True):
                to[...] = np.reshape(value, np.shape(to))
            return mapped.timing

        return call

    def text(self, program: Lambda) -> str:
        """The listing of the program's instructions."""
        return show(map_onto(program, self.machine).program)


def make() -> Processor:
    """The processor that the registry hands out."""
    return Processor(MACHINES["full"])
