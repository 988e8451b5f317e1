"""A candidate: a choice of sizes for every operator of a program, and its simulated time.

It becomes instructions in milliseconds, without its derivation (`expansion`): the same ones that
the derivation ends in.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.codegen import Assembled, assemble
from tilewright.targets.npu.errors import CAPACITY, NPUError
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.sizes import Choices
from tilewright.targets.npu.spaces import place


@dataclass(frozen=True, slots=True)
class NpuCandidate:
    """A program of operators of any size, and the choice for each of them."""

    form: OperatorForm
    choices: Choices

    def __hash__(self) -> int:
        return hash((self.form, frozenset(self.choices.items())))

    @property
    def key(self) -> Hashable:
        """Equal only for candidates of equal instructions."""
        return self.form, self.form.key(self.choices)

    def assembled(self, machine: NpuMachine) -> Assembled:
        """Its instructions. Raises NPUError (CAPACITY) if they do not fit on the machine."""
        for chip in budgets(machine):
            made = self.form.tasks(self.choices)
            place(made, chip)
            try:
                return assemble(made, machine)
            except NPUError as error:
                if error.code != CAPACITY or not chip:
                    raise
        raise AssertionError

    def cycles(self, machine: NpuMachine) -> float:
        """Of its program; infinite if it does not fit."""
        try:
            return self.assembled(machine).timing.cycles
        except NPUError as error:
            if error.code != CAPACITY:
                raise
            return inf


def budgets(machine: NpuMachine) -> list[int]:
    """Elements that results may take on the chip, the most first.

    Operands of the operators at work need registers too, and results may be between others.
    """
    found = [machine.elements("vrf")]
    while found[-1] > 16:
        found.append(found[-1] // 2)
    return [*found, 0]
