"""Mapping a Lift program onto a machine: three stages of rules (`levels`) and a search."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilewright.base import collector
from tilewright.base.dataclass import dataclass
from tilewright.lift.derive import Derivation, derive
from tilewright.lift.nodes import Lambda
from tilewright.targets.npu.candidate import NpuCandidate, budgets
from tilewright.targets.npu.codegen import assemble
from tilewright.targets.npu.errors import CAPACITY, NPUError
from tilewright.targets.npu.evaluate import evaluate
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.isa import NpuProgram
from tilewright.targets.npu.levels import in_memories, in_sizes, to_operators
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.mapping_rules import rules
from tilewright.targets.npu.search import search
from tilewright.targets.npu.timing import NpuTiming


@dataclass(frozen=True, slots=True)
class MappedNpuProgram:
    """A program on a machine: how it got there, its instructions, what they take."""

    derivation: Derivation
    program: NpuProgram
    timing: NpuTiming

    @property
    def summary(self) -> str:
        """The operators that the derivation ends in: `4 MVMul64 2 VVAdd128 ...`."""
        found = Counter(task.title for task in evaluate(self.derivation.program).tasks)
        return ", ".join(f"{count} {name}" for name, count in found.items())


def map_onto(program: Lambda, machine: NpuMachine) -> MappedNpuProgram:
    """The fastest mapping that is found.

    Raises NPUError for operations that no rule maps to an operator of the machine, and for programs
    whose operands alone do not fit; InputError for ill-typed programs.
    """
    with collector.paused():
        derivations = to_operators(derive(program, rules(0)))
        forms = {OperatorForm(form.program): form for form in derivations}
        found = search(tuple(forms), machine)
        return mapped(forms[found.form], found, machine)


def mapped(
    form: Derivation, candidate: NpuCandidate, machine: NpuMachine
) -> MappedNpuProgram:
    """A candidate by its derivation. Raises NPUError (CAPACITY) if it does not fit."""
    sized = in_sizes(form, candidate.choices)
    for chip in budgets(machine):
        placed = in_memories(replace(sized, rules=rules(chip)))
        try:
            code = assemble(evaluate(placed.program), machine)
        except NPUError as error:
            if error.code != CAPACITY or not chip:
                raise
            continue
        return MappedNpuProgram(placed, code.program, code.timing)
    raise AssertionError("the last budget is 0")
