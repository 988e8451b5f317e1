"""The processor as a device of the runtime: simulated, independent of the compiler.

A program is the listing of its instructions with the description of its machine. Times are those of
the timing model, which do not depend on data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Final

import numpy as np

from tilewright.base.errors import ArtifactError, TilewrightError
from tilewright.runtime import schema
from tilewright.runtime.device import Bytes, Duration, HostDevice
from tilewright.targets.npu.description import from_table
from tilewright.targets.npu.isa import NpuProgram
from tilewright.targets.npu.listing import parse, show
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.simulator import run
from tilewright.targets.npu.timing import time

NAME: Final = "npu"
# Hz: of BrainWave on a Stratix 10 280 (Fowers et al., ISCA 2018), after which it is modeled.
CLOCK: Final = 250e6
_SHAPE: Final = {"machine": schema.Object, "program": schema.Text}


def encode(program: NpuProgram, machine: NpuMachine) -> bytes:
    """A program for a machine as the device loads it."""
    found = {"machine": _table(machine), "program": show(program)}
    return json.dumps(found).encode()


def _table(machine: NpuMachine) -> Mapping[str, Any]:
    """The machine as a description has it."""
    table = {**asdict(machine), "number": machine.number.name}
    return {name: value for name, value in table.items() if value is not None}


def load(code: bytes) -> _Loaded:
    """A program, to be run on flat bytes. Raises ArtifactError for other bytes."""
    try:
        found = json.loads(code)
        schema.check(found, _SHAPE)
        return _Loaded(parse(found["program"]), from_table(found["machine"]))
    except (ValueError, KeyError, TypeError, RecursionError, TilewrightError) as error:
        raise ArtifactError(f"the program is not an NPU program: {error}") from error


class _Loaded:
    """A program as a function of its inputs' and outputs' bytes, which are float32."""

    def __init__(self, program: NpuProgram, machine: NpuMachine) -> None:
        self.program = program
        self.machine = machine

    def __call__(self, arrays: Sequence[Bytes], timed: bool) -> Duration | None:
        """Run in place. Raises NPUError for an instruction that the machine cannot execute."""
        regions = (*self.program.inputs, *self.program.outputs)
        pairs = zip(arrays, regions, strict=True)
        floats = [a.view(np.float32).reshape(r.shape) for a, r in pairs]
        count = len(self.program.inputs)
        results = run(self.program, self.machine, floats[:count])
        for to, value in zip(floats[count:], results, strict=True):
            to[...] = value
        return self.duration if timed else None

    @cached_property
    def duration(self) -> Duration:
        """What each run takes."""
        cycles = time(self.program, self.machine).cycles
        return Duration(
            seconds=cycles / CLOCK,
            cycles=cycles,
            clock=CLOCK,
            simulated=True,
        )


def make() -> HostDevice:
    """The device, for `runtime.devices`."""
    return HostDevice(NAME, load)
