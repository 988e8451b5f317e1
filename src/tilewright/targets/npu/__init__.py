"""A simulated neural processor with coarse operators; programs are mapped onto it by rewriting.

A machine is a description (`machine.NpuMachine`); a Lift program is brought to its operators by
rules (`map_onto`), becomes instructions in chains (`generate`), and is run and timed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tilewright.targets.npu.catalog import MACHINES
    from tilewright.targets.npu.codegen import generate
    from tilewright.targets.npu.errors import NPUError
    from tilewright.targets.npu.exhaustive import MappingSurvey, survey
    from tilewright.targets.npu.isa import DramRegion, NpuInstruction, NpuProgram
    from tilewright.targets.npu.listing import parse, show
    from tilewright.targets.npu.machine import (
        MachineOperator,
        Memory,
        NpuMachine,
        operators,
    )
    from tilewright.targets.npu.mapping import MappedNpuProgram, map_onto
    from tilewright.targets.npu.mapping_rules import rules
    from tilewright.targets.npu.numbers import (
        BlockFloat,
        Float8,
        Float16,
        Float32,
        NumberFormat,
    )
    from tilewright.targets.npu.simulator import bounds, run
    from tilewright.targets.npu.timing import NpuTiming, time

# Module -> public names, which are loaded when first used: a device needs no part of the compiler.
_PUBLIC: Final = {
    "catalog": "MACHINES",
    "codegen": "generate",
    "errors": "NPUError",
    "exhaustive": "MappingSurvey survey",
    "isa": "NpuInstruction NpuProgram DramRegion",
    "listing": "parse show",
    "machine": "NpuMachine Memory MachineOperator operators",
    "mapping": "MappedNpuProgram map_onto",
    "numbers": "BlockFloat Float8 Float16 Float32 NumberFormat",
    "mapping_rules": "rules",
    "simulator": "bounds run",
    "timing": "NpuTiming time",
}
_MODULES: Final = {
    name: module for module, names in _PUBLIC.items() for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "MACHINES",
    "BlockFloat",
    "Float8",
    "Float16",
    "Float32",
    "NpuInstruction",
    "MappedNpuProgram",
    "Memory",
    "NPUError",
    "NpuMachine",
    "NpuProgram",
    "NumberFormat",
    "MachineOperator",
    "DramRegion",
    "MappingSurvey",
    "NpuTiming",
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
