"""A mapping chosen step by step, so that only feasible choices are offered."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tilewright.base.errors import ScheduleError
from tilewright.lift.derive import derive
from tilewright.lift.nodes import Lambda
from tilewright.schedule.space import Choices as Ask
from tilewright.targets.npu.candidate import NpuCandidate
from tilewright.targets.npu.exhaustive import possible
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.levels import to_operators
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.mapping_rules import rules
from tilewright.targets.npu.operator import Key
from tilewright.targets.npu.sizes import Choices, SizeChoices, SizedRule

OWN = "own"  # what is done with an operator of the machine


def forms_of(program: Lambda) -> tuple[OperatorForm, ...]:
    """A program in operators of any size, in all ways. Raises as `to_operators`."""
    made = to_operators(derive(program, rules(0)))
    return tuple(OperatorForm(derivation.program) for derivation in made)


def asked(forms: Sequence[OperatorForm], machine: NpuMachine, ask: Ask) -> NpuCandidate:
    """One mapping of a program: its form, and the choice for each operator.

    The defaults minimize the sum of costs over operators. Raises ScheduleError for an operator that
    cannot be mapped to the machine.
    """
    number = 0
    if len(forms) > 1:
        number = ask("form", tuple(range(len(forms))), 0)
    return NpuCandidate(forms[number], _choices(forms[number], machine, ask))


def _choices(form: OperatorForm, machine: NpuMachine, ask: Ask) -> Choices:
    sizes = SizeChoices(machine)
    made: dict[Key, SizedRule | None] = {}
    pending = list(form.operators)
    while pending:
        key = pending.pop(0)
        if key in made:
            continue
        found = {
            label(choice): choice
            for choice in possible(key, machine, made)
            if choice is None or sizes.cost(choice) < inf
        }
        name = f"{key[0]}{list(key[1])}"
        if not found:
            raise ScheduleError(
                f"{machine.name} has no way for it",
                where=f"operator {name}",
                hint="describe one, or write the program with others",
            )
        best = label(sizes.best(*key).choice)
        usual = best if best in found else next(iter(found))
        choice = made[key] = found[ask(name, tuple(found), usual)]
        if choice is not None and choice.pads:
            made.setdefault(choice.leaves[0][0], None)
        elif choice is not None:
            pending += [leaf for leaf, _ in choice.leaves]
    return made


def label(choice: SizedRule | None) -> str:
    """A choice as the value of a parameter: `cut-MVMul-rows p=64`."""
    if choice is None:
        return OWN
    sizes = [f"{name}={size}" for name, size in choice.sizes]
    return " ".join([choice.rule, *sizes])
