"""The simulated time of a choice of sizes, without building its derivation.

The rule of a choice makes of an operator a small program. That is evaluated wherever the operator
is met, so a candidate becomes instructions in milliseconds: the same that its derivation ends in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tilewright.expr.nodes import const
from tilewright.lift.derive import derive, places
from tilewright.lift.lambdas import key as canonical
from tilewright.lift.match import device_name
from tilewright.lift.nodes import DeviceOp, Lambda, Param, apply
from tilewright.targets.npu.codegen import assemble
from tilewright.targets.npu.errors import CAPACITY, NPUError
from tilewright.targets.npu.evaluate import evaluate
from tilewright.targets.npu.isa import Program
from tilewright.targets.npu.machine import Machine
from tilewright.targets.npu.operator import Key
from tilewright.targets.npu.rules import rules, schemas
from tilewright.targets.npu.sizes import Choice, Choices
from tilewright.targets.npu.spaces import place
from tilewright.targets.npu.timing import time


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program of operators of any size, and what is done with each of them."""

    form: Lambda
    choices: Choices

    def __hash__(self) -> int:
        return hash((self.form, frozenset(self.choices.items())))

    def program(self, machine: Machine) -> Program:
        """Its instructions. Raises NPUError (CAPACITY) if they do not fit on the machine."""
        for chip in budgets(machine):
            made = evaluate(self.form, lambda key: _way(key, self.choices.get(key)))
            place(made, chip)
            try:
                return assemble(made, machine)
            except NPUError as error:
                if error.code != CAPACITY or not chip:
                    raise
        raise AssertionError

    def cycles(self, machine: Machine) -> float:
        """Of its program; infinite if it does not fit."""
        try:
            return time(self.program(machine), machine).cycles
        except NPUError as error:
            if error.code != CAPACITY:
                raise
            return inf


def budgets(machine: Machine) -> list[int]:
    """Elements that results may take on the chip, the most first.

    Operands of the operators at work need registers too, and results may lie between others.
    """
    found = [machine.elements("vrf")]
    while found[-1] > 16:
        found.append(found[-1] // 2)
    return [*found, 0]


@lru_cache(maxsize=4096)
def _way(key: Key, choice: Choice | None) -> Lambda | None:
    """The operator after the rule, as a function of its operands."""
    if choice is None:
        return None
    name, sizes = key
    schema, lengths = schemas()[name], tuple(map(const, sizes))
    operands = tuple(Param(f"x{i}", t) for i, t in enumerate(schema.operands(*lengths)))
    op = DeviceOp(
        device_name(name, sizes), sizes, canonical(schema.at(*lengths).meaning)
    )
    start = derive(Lambda(operands, apply(op, *operands)), rules(0))
    place, *_ = places(start.program)
    return start.at(place, choice.rule, dict(choice.sizes)).program
