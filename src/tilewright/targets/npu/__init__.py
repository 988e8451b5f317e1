"""A simulated neural processor with coarse operators; programs are mapped onto it by rewriting.

A machine is a description (`machine.Machine`); a Lift program is brought to its operators by rules
(`map_onto`), becomes instructions in chains (`generate`), and is run and timed.
"""

from __future__ import annotations

from tilewright.targets.npu.catalog import MACHINES
from tilewright.targets.npu.codegen import generate
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.exhaustive import Survey, survey
from tilewright.targets.npu.isa import Instruction, Program, Region
from tilewright.targets.npu.listing import parse, show
from tilewright.targets.npu.machine import Machine, Memory, Operator, operators
from tilewright.targets.npu.mapping import Mapped, map_onto
from tilewright.targets.npu.numbers import BlockFloat, Float8, Float16, Float32, Number
from tilewright.targets.npu.rules import rules
from tilewright.targets.npu.simulator import bounds, run
from tilewright.targets.npu.timing import Timing, time

__all__ = [
    "BlockFloat",
    "Float16",
    "Float32",
    "Float8",
    "Instruction",
    "MACHINES",
    "Machine",
    "Mapped",
    "Memory",
    "NPUError",
    "Number",
    "Operator",
    "Program",
    "Region",
    "Survey",
    "Timing",
    "bounds",
    "generate",
    "map_onto",
    "operators",
    "parse",
    "rules",
    "run",
    "show",
    "survey",
    "time",
]
