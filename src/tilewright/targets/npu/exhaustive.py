"""How near the optimum a mapping is: every choice of sizes, each simulated.

The cost that decides between derivations adds up operators (`sizes`); what a program takes in the
end is known from the simulator alone, where chains overlap. On small programs all combinations of
choices can be tried there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.notation.lift.derive import derive
from tilewright.notation.lift.nodes import DeviceOp, Lambda
from tilewright.notation.lift.sites import root_site, walk
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.machine import Machine
from tilewright.targets.npu.mapping import map_onto, to_operators
from tilewright.targets.npu.price import Price, operator_of
from tilewright.targets.npu.rules import rules
from tilewright.targets.npu.sizes import Choice, Key, Sizes

Choices = Mapping[Key, Choice | None]


@dataclass(frozen=True, slots=True)
class Survey:
    """Cycles of the mapping that was found, of the best and the worst, and how many there are."""

    found: int
    best: int
    worst: int
    count: int
    choices: Choices


def survey(program: Lambda, machine: Machine, limit: int = 2000) -> Survey:
    """All mappings of a program. Raises NPUError if there are more than `limit`."""
    found = map_onto(program, machine).timing.cycles
    start = to_operators(derive(program, rules(machine, 0)), Price(Sizes(machine)))
    keys = {
        operator_of(at.node): None
        for at in walk(root_site(start.program))
        if isinstance(at.node, DeviceOp)
    }
    cycles: list[tuple[int, Choices]] = []
    for choices in combinations(machine, tuple(keys)):
        if len(cycles) == limit:
            raise NPUError(f"there are more than {limit} mappings", where="npu.survey",
                           hint="take smaller lengths, or fewer operators")  # fmt: skip
        mapped = map_onto(program, machine, Sizes(machine, dict(choices)))
        cycles.append((mapped.timing.cycles, choices))
    best, worst = (f(cycles, key=lambda pair: pair[0]) for f in (min, max))
    return Survey(found, best[0], worst[0], len(cycles), best[1])


def combinations(machine: Machine, keys: tuple[Key, ...]) -> Iterator[Choices]:
    """Every choice for these operators and for all that they leave; None: as it is."""
    sizes = Sizes(machine)

    def extend(pending: tuple[Key, ...], made: dict[Key, Choice | None]) -> Iterator[Choices]:
        left = [key for key in pending if key not in made]
        if not left:
            yield made
            return
        key, own = left[0], machine.find(*left[0]) is not None
        for choice in [*([None] if own else []), *sizes.choices(*key)]:
            if choice is not None and own and choice.rule.startswith("pad"):
                continue
            following = [leaf for leaf, _ in choice.leaves] if choice is not None else []
            now = {**made, key: choice}
            if not _returns(key, now):
                yield from extend((*left[1:], *following), now)

    return extend(keys, {})


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
