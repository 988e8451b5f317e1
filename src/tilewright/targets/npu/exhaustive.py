"""The distance of a mapping from the optimum: every combination of choices, simulated."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from tilewright.base.dataclass import dataclass
from tilewright.lift.derive import derive
from tilewright.lift.nodes import Lambda
from tilewright.search import SearchLimits, StopReason, exhaustive
from tilewright.targets.npu.candidate import NpuCandidate
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.expansion import OperatorForm
from tilewright.targets.npu.levels import to_operators
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.mapping import map_onto
from tilewright.targets.npu.mapping_rules import rules
from tilewright.targets.npu.operator import Key
from tilewright.targets.npu.search import options
from tilewright.targets.npu.sizes import Choices, SizedRule


@dataclass(frozen=True, slots=True)
class MappingSurvey:
    """Cycles of the mapping that was found, of the best and the worst, and how many there are."""

    found: int
    best: int
    worst: int
    count: int


def survey(program: Lambda, machine: NpuMachine, limit: int = 5000) -> MappingSurvey:
    """All mappings that fit on the machine. Raises NPUError if there are more than `limit`."""
    found = map_onto(program, machine).timing.cycles
    cycles: list[float] = []

    def simulate(candidate: NpuCandidate) -> float:
        cycles.append(candidate.cycles(machine))
        return cycles[-1]

    every = exhaustive(
        _candidates(program, machine), simulate, limits=SearchLimits(evaluations=limit)
    )
    if every.stop is StopReason.EVALUATIONS:
        raise NPUError(
            f"there are more than {limit} mappings",
            where="npu.survey",
            hint="take smaller lengths, or fewer operators",
        )
    fit = [int(n) for n in cycles if n < inf]
    return MappingSurvey(found, int(every.cost), max(fit), len(fit))


def _candidates(program: Lambda, machine: NpuMachine) -> Iterator[NpuCandidate]:
    """Every combination of choices for every form of a program in operators."""
    for form in to_operators(derive(program, rules(0))):
        whole = OperatorForm(form.program)
        for choices in combinations(machine, tuple(whole.operators)):
            yield NpuCandidate(whole, choices)


def combinations(machine: NpuMachine, keys: tuple[Key, ...]) -> Iterator[Choices]:
    """Every choice for these operators and for the operators that remain after it."""

    def extend(
        pending: tuple[Key, ...], made: dict[Key, SizedRule | None]
    ) -> Iterator[Choices]:
        left = [key for key in pending if key not in made]
        if not left:
            yield made
            return
        key = left[0]
        for choice in possible(key, machine, made):
            now = {**made, key: choice}
            if choice is None:
                yield from extend(tuple(left[1:]), now)
            elif choice.pads:
                now.setdefault(choice.leaves[0][0], None)
                yield from extend(tuple(left[1:]), now)
            else:
                leaves = [leaf for leaf, _ in choice.leaves]
                yield from extend((*left[1:], *leaves), now)

    return extend(keys, {})


def possible(
    key: Key, machine: NpuMachine, made: Choices
) -> Iterator[SizedRule | None]:
    """What can be done with an operator where this was chosen for others.

    What others were padded to is used unchanged; nothing leads from an operator back to it.
    """
    for choice in options(key, machine):
        if choice is not None and choice.pads:
            if made.get(choice.leaves[0][0]) is None:
                yield choice
        elif choice is None or not _returns(key, {**made, key: choice}):
            yield choice


def _returns(start: Key, made: Choices) -> bool:
    """Whether the choices lead from an operator back to it."""
    seen: set[Key] = set()
    stack = [start]
    while stack:
        choice = made.get(stack.pop())
        for leaf, _ in choice.leaves if choice is not None else ():
            if leaf == start:
                return True
            if leaf not in seen:
                seen.add(leaf)
                stack.append(leaf)
    return False
